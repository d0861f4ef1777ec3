//! The messages that start runs: where they are, and what becomes of them when their run ends.

use tenure_proto::event::ReceiptState;
use tenure_proto::log::LogName;
use tenure_proto::message::Priority;

use crate::messages::Messages;
use crate::messages::envelope::Lane;
use crate::messages::group::Holder;
use crate::runs::run::Run;
use crate::store::record::{Burial, GroupId};

impl Messages {
    /// Somebody says after a crash that it has this in hand. Where runs are it may have gone to the dead letters before,
    /// with its run: a look at it tells.
    pub(crate) fn look_for_run(&mut self, id: GroupId, seq: u64) {
        let log = self.readings.get(&id).map(|reading| &reading.record.log);
        if log.is_some_and(|log| self.urgent_place(log) == Some(id) && log.is_inbox()) {
            self.body(id, seq);
        }
    }

    /// The place of an inbox's owner in the lane that runs take.
    pub(crate) fn urgent_place(&self, log: &LogName) -> Option<GroupId> {
        self.logs.lane(log, Lane::of(log, Priority::Now))?.groups.first().copied()
    }

    /// Sends the message of a run to the dead letters, unless it is settled. Says who had it in hand.
    pub(crate) fn bury_run(&mut self, run: &Run, reason: &str, at: u64) -> Option<Holder> {
        let (log, seq, size) = (run.log.clone(), run.seq, run.size);
        let lane = Lane::of(&log, Priority::Now);
        let reading = self.urgent_place(&log).and_then(|group| Some((group, self.readings.get_mut(&group)?)));
        let Some((group, reading)) = reading else {
            self.burials.push(burial(log, lane, seq, reason, at));
            return None;
        };
        if let Some(open) = reading.group.remove(seq) {
            let holder = open.holder().cloned();
            self.bury(group, seq, Some(open), reason, ReceiptState::Dead, at, None);
            return holder;
        }
        if seq > reading.group.cursor() {
            reading.page.retain(|other| other.seq != seq);
            reading.miss(seq);
            reading.passed = (reading.passed.0 + 1, reading.passed.1 + size);
            self.logs.remove(&log, lane, seq);
            self.burials.push(burial(log, lane, seq, reason, at));
            self.touch(group);
        }
        None
    }
}

fn burial(log: LogName, lane: Lane, seq: u64, reason: &str, at: u64) -> Burial {
    let reason = reason.to_owned();
    Burial { log, lane, seq, group: None, attempts: 0, reason, at, remove: true }
}
