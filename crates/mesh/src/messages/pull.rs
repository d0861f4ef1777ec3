//! Pulling: what a reader takes when its turn comes, and in which order.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::event::ReceiptState;
use tenure_proto::ids::{RunId, SessionKey, SubId};
use tenure_proto::message::MessageKind;
use tenure_proto::peer::Status;
use tenure_proto::run::RunState;
use tenure_proto::subscribe::AckMode;

use crate::effect::Push;
use crate::messages::deliver::RETRY_MS;
use crate::messages::envelope::{Entry, Lane};
use crate::messages::group::{Holder, Open};
use crate::messages::subs::Sub;
use crate::messages::{Handed, Messages, Moment, origin};
use crate::runs::Runs;
use crate::sessions::lease::Lease;
use crate::store::record::GroupId;

/// Deliveries in one batch.
pub(crate) const PUSHES: usize = 128;
/// Bytes in one batch, unless the first delivery alone is more.
const PUSH_BYTES: usize = 256 * 1024;
/// Entries that one subscription may have in hand, fetched ones included.
const IN_HAND: usize = 8_192;

/// What readers pull from: logs and groups, and the runs that some of their messages start, at one moment.
pub(crate) struct Pull<'a> {
    pub(crate) messages: &'a mut Messages,
    pub(crate) runs: &'a mut Runs,
    pub(crate) moment: Moment,
}

impl Pull<'_> {
    /// What a session's socket is given next: first what it may never have read, then new entries.
    pub(crate) fn pull(&mut self, session: SessionKey, lease: &mut Lease, status: Status) -> Vec<Push> {
        let mut batch = Pushes { pushes: Vec::new(), bytes: 0 };
        while !batch.is_full()
            && let Some(push) = lease.subs.cleared.pop_front()
        {
            // Not what was settled, given back or handed out anew meanwhile, or will be pushed as unread anyway.
            let current =
                self.messages.readings.get(&push.group).is_some_and(|reading| reading.is_current(&push));
            let Some(sub) = lease.subs.get_mut(&push.sub) else { continue };
            let place = (push.group, push.entry.seq);
            if sub.claiming.remove(&place) && current {
                batch.add(push);
            }
        }
        for id in std::mem::take(&mut lease.subs.eager) {
            let Some(sub) = lease.subs.get_mut(&id) else { continue };
            if sub.opening.is_some() {
                continue;
            }
            let more = self.pull_unread(session, &id, sub, &mut batch)
                && self.pull_new(session, &id, sub, status, &mut batch);
            if more || !sub.fetches.is_empty() {
                lease.subs.eager.insert(id);
            }
        }
        batch.pushes
    }

    /// Pushes again what may never have been read; says whether newer entries may follow.
    fn pull_unread(&mut self, session: SessionKey, id: &SubId, sub: &mut Sub, batch: &mut Pushes) -> bool {
        for (group, seq) in sub.unread.clone() {
            if batch.is_full() {
                return true;
            }
            if self.messages.readings.get(&group).and_then(|r| r.group.open(seq)).is_none() {
                sub.release(group, seq);
                continue;
            }
            // What is on disk comes first all the same: newer entries wait for it.
            let Some(handed) = self.messages.again(group, seq) else { return false };
            sub.unread.remove(&(group, seq));
            self.messages.pushed_again(group, seq, self.moment);
            let Handed { attempt, entry, redelivered } = handed;
            let (sub, cleared) = (id.clone(), false);
            batch.add(Push { sub, group, attempt, session, redelivered, entry, cleared });
        }
        true
    }

    /// Takes new entries as far as credit allows; says whether there may be more.
    fn pull_new(
        &mut self,
        session: SessionKey,
        id: &SubId,
        sub: &mut Sub,
        status: Status,
        batch: &mut Pushes,
    ) -> bool {
        let holder = Holder { session, sub: id.clone() };
        if sub.is_inbox() {
            // However far the last batch came, what is urgent goes first.
            sub.turn = 0;
        }
        let mut idle = 0;
        while idle < sub.groups.len() {
            if batch.is_full() {
                return true;
            }
            sub.turn %= sub.groups.len();
            let group = sub.groups[sub.turn];
            let open = self
                .messages
                .readings
                .get(&group)
                .is_some_and(|reading| !sub.is_inbox() || lane_is_open(reading.record.lane, status));
            if !open || sub.credit(group) == 0 {
                (idle, sub.turn) = (idle + 1, sub.turn + 1);
                continue;
            }
            let handed = self.hand_out(group, &holder);
            self.messages.touch(group);
            let Some(handed) = handed else {
                (idle, sub.turn) = (idle + 1, sub.turn + 1);
                continue;
            };
            idle = 0;
            let Handed { attempt, entry, redelivered } = handed;
            sub.hold(group, entry.seq);
            let (name, cleared) = (id.clone(), false);
            batch.add(Push { sub: name, group, attempt, session, redelivered, entry, cleared });
            if !sub.is_inbox() {
                // Partitions take turns; the lanes of an inbox do not: the urgent one goes first.
                sub.turn += 1;
            }
        }
        sub.turn = 0;
        false
    }

    /// Takes entries whatever their priority and the reader's credit; says whether there are some that cannot be handed
    /// out yet: they are still on disk, or their place is not, or too much is owed.
    pub(crate) fn fetch(
        &mut self,
        session: SessionKey,
        id: &SubId,
        sub: &mut Sub,
        limit: usize,
    ) -> (Vec<Push>, bool) {
        let holder = Holder { session, sub: id.clone() };
        let mut batch = Pushes { pushes: Vec::new(), bytes: 0 };
        let mut loading = false;
        for group in sub.groups.clone() {
            while batch.pushes.len() < limit && batch.bytes < PUSH_BYTES && sub.in_hand() < IN_HAND {
                let Some(handed) = self.hand_out(group, &holder) else { break };
                let Handed { attempt, entry, redelivered } = handed;
                sub.hold_freely(group, entry.seq);
                let (name, cleared) = (id.clone(), false);
                batch.add(Push { sub: name, group, attempt, session, redelivered, entry, cleared });
            }
            self.messages.touch(group);
            loading |= self.messages.is_hungry(group)
                || self.messages.is_unplaced(group)
                || self.moment.retries_full;
        }
        (batch.pushes, loading)
    }

    /// The next entry for `holder`, taken into its hand.
    fn hand_out(&mut self, id: GroupId, holder: &Holder) -> Option<Handed> {
        let moment = self.moment;
        let reading = self.messages.readings.get(&id).filter(|reading| reading.is_made())?;
        if self.messages.logs.get(&reading.record.log).is_none_or(|log| log.evacuating) {
            return None;
        }
        let until = reading.is_shared().then(|| moment.now.plus(moment.ack_timeout_ms));
        if self.moment.retries_full {
            // An entry whose time is over would add to what is owed.
            self.messages.starved.insert(id);
            self.messages.reads_due.get_or_insert(moment.now.plus(RETRY_MS));
            return None;
        }
        if self.messages.is_unplaced(id) {
            self.messages.place(id);
            return None;
        }
        self.messages.tell_gap(id, holder);
        let behind = mutant::on(Mutant::RequeueToBack) && self.messages.next_new(id).is_some();
        while !behind && let Some(seq) = self.messages.readings.get(&id)?.group.first_ready() {
            let entry = self.messages.body(id, seq)?;
            let lasting = self.messages.readings.get(&id)?.group.open(seq).is_some_and(|open| open.lasting);
            if !lasting && self.messages.bury_if_expired(id, &entry, moment)
                || self.bury_if_over(id, &entry, &holder.session)
            {
                continue;
            }
            // A crash may have forgotten that it was to wait. What was handed out once has waited, whatever the clock says now.
            let unseen =
                self.messages.readings.get(&id)?.group.open(seq).is_some_and(|open| open.attempt == 0);
            // So has what comes from the future of a clock that was set right: its delay was measured when it was first met.
            let unseen = unseen && entry.envelope.sent_at <= moment.wall;
            if let Some(left) = entry.envelope.delay_left(moment.wall).filter(|_| unseen) {
                let delay = (moment.now.plus(left), moment.wall.saturating_add(left));
                self.messages.readings.get_mut(&id)?.group.give_back(seq, Some(delay), false);
                continue;
            }
            let before = self.messages.was_maybe_handed(id, seq);
            let reading = self.messages.readings.get_mut(&id)?;
            let before = before || reading.group.open(seq).is_some_and(Open::is_assumed);
            let attempt = reading.group.take_ready(seq, holder.clone(), until)?;
            reading.group.know_mark(seq, entry.envelope.id.into());
            if entry.log.is_inbox() {
                reading.group.know_origin(seq, || origin(&entry));
            }
            reading.again.remove(&seq);
            self.claim_run(&entry, holder.session);
            return Some(Handed { entry, attempt, redelivered: before || attempt > 1 });
        }
        loop {
            let entry = self.messages.next_new(id)?;
            let seq = entry.seq;
            if self.messages.bury_if_expired(id, &entry, moment)
                || self.bury_if_over(id, &entry, &holder.session)
            {
                continue;
            }
            let reading = self.messages.readings.get_mut(&id)?;
            if !reading.group.has_room() {
                return None;
            }
            self.messages.pass(id, &entry);
            let origin = Some(origin(&entry)).filter(|_| entry.log.is_inbox());
            let reading = self.messages.readings.get_mut(&id)?;
            match entry.envelope.delay_left(moment.wall) {
                Some(left) => {
                    let wall = moment.wall.saturating_add(left);
                    reading.group.delay_new(seq, moment.now.plus(left), wall, origin);
                }
                None => {
                    reading.group.take_new(seq, holder.clone(), until, origin);
                    reading.group.know_mark(seq, entry.envelope.id.into());
                    self.claim_run(&entry, holder.session);
                    let redelivered = self.messages.was_maybe_handed(id, seq);
                    return Some(Handed { entry, attempt: 1, redelivered });
                }
            }
        }
    }

    /// A run's message was handed to a session: the first to get it answers.
    fn claim_run(&mut self, entry: &Entry, session: SessionKey) {
        if entry.envelope.kind == MessageKind::Run {
            self.runs.claim(RunId(entry.envelope.id.0), session);
        }
    }

    /// The message of a run that is over, or that somebody else answers, goes to the dead letters instead of to
    /// anybody.
    fn bury_if_over(&mut self, id: GroupId, entry: &Entry, session: &SessionKey) -> bool {
        if entry.envelope.kind != MessageKind::Run {
            return false;
        }
        let reason = match self.runs.get(&RunId(entry.envelope.id.0)) {
            Some(run) if run.orphaned => "lease_expired",
            // It ended before a crash let us know that it had been handed out: it is settled.
            Some(run) if run.outcome() == Some(RunState::Ok) => {
                self.messages.pass_over(id, entry);
                if let Some(reading) = self.messages.readings.get_mut(&id) {
                    reading.group.remove(entry.seq);
                }
                self.messages.touch(id);
                return true;
            }
            Some(run) if !run.is_living() => "run_ended",
            Some(run) if run.callee.is_some_and(|callee| callee != *session) => "not_owner",
            Some(_) => return false,
            None => "run_ended",
        };
        self.messages.pass_over(id, entry);
        let origin = Some(origin(entry));
        self.messages.bury(id, entry.seq, None, reason, ReceiptState::Dead, self.moment.wall, origin);
        true
    }
}

struct Pushes {
    pushes: Vec<Push>,
    bytes: usize,
}

impl Pushes {
    fn is_full(&self) -> bool {
        self.pushes.len() >= PUSHES || self.bytes >= PUSH_BYTES
    }

    fn add(&mut self, push: Push) {
        self.bytes += push.entry.envelope.weight();
        self.pushes.push(push);
    }
}

/// Whether a reader of that status takes entries of that lane without asking for them.
fn lane_is_open(lane: Lane, status: Status) -> bool {
    match lane.index() {
        _ if mutant::on(Mutant::DndIgnored) => true,
        0 => true,
        1 => !matches!(status, Status::Working | Status::Dnd),
        _ => status == Status::Idle,
    }
}

/// Deliveries that count as settled once they have left.
pub(crate) fn auto_settled(lease: &Lease, pushes: &[Push]) -> Vec<(GroupId, u64, u32)> {
    let auto = |push: &&Push| lease.subs.get(&push.sub).is_some_and(|sub| sub.ack_mode == AckMode::Auto);
    pushes.iter().filter(auto).map(|push| (push.group, push.entry.seq, push.attempt)).collect()
}
