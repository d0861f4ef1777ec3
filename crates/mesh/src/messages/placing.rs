//! The places of an inbox: nothing is handed out from one before the store knows it. A tag names its place; after a
//! crash that forgot the place, what somebody has in hand would be handed out as if nobody had it.

use tenure_proto::ids::SessionKey;
use tenure_proto::log::LogName;

use crate::Mesh;
use crate::messages::Messages;
use crate::messages::envelope::Lane;
use crate::store::record::GroupId;

/// Whether the store knows a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It may not.
    No,
    /// It is being told.
    Asked,
    /// It does.
    Yes,
}

impl Mesh {
    /// A message is on its way into an inbox: the place from which it will be read is written before it, by the same
    /// commit if both fit into one, so that its reader need not wait for another.
    pub(crate) fn place_inbox(&mut self, log: &LogName, lane: Lane) {
        self.ensure_inbox(log);
        let Some(id) = self.messages.logs.lane(log, lane).and_then(|lane| lane.groups.first().copied())
        else {
            return;
        };
        if self.messages.readings.get(&id).is_some_and(|reading| reading.placed == Placed::No) {
            self.messages.dirty.remove(&id);
            self.write_group(id);
        }
    }

    /// The store may have forgotten the inbox of a session that had no lease, if it was empty.
    pub(crate) fn place_anew(&mut self, session: SessionKey) {
        for id in self.messages.places(&LogName::Session(session)) {
            let Messages { readings, logs, .. } = &mut self.messages;
            if let Some(reading) = readings.get_mut(&id)
                && let Some(lane) = logs.lane(&reading.record.log, reading.record.lane)
                && lane.end <= reading.group.cursor()
                && reading.group.open_len() == 0
            {
                reading.placed = Placed::No;
            }
        }
    }
}

impl Messages {
    /// The store has a group: if its readers waited for that, their turn comes.
    pub(crate) fn group_kept(&mut self, id: GroupId) {
        if let Some(reading) = self.readings.get_mut(&id)
            && std::mem::replace(&mut reading.placed, Placed::Yes) != Placed::Yes
        {
            self.wakes.insert(id);
        }
    }

    /// Whether something waits in a place that the store does not know yet.
    pub(crate) fn is_unplaced(&self, id: GroupId) -> bool {
        self.readings.get(&id).filter(|reading| reading.placed != Placed::Yes).is_some_and(|reading| {
            let lane = self.logs.lane(&reading.record.log, reading.record.lane);
            reading.group.first_ready().is_some()
                || lane.is_some_and(|lane| lane.end > reading.group.cursor())
        })
    }

    /// Has the store told of a place that waits to be read and that it does not know.
    pub(crate) fn place(&mut self, id: GroupId) {
        if self.readings.get(&id).is_some_and(|reading| reading.placed == Placed::No) {
            self.dirty.insert(id);
            self.urgent = true;
        }
    }
}
