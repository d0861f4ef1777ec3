//! What the mesh has asked of its store: writes and reads under way, who waits for each, and whether the store is well.

use std::collections::{BTreeMap, VecDeque};

use crate::effect::{Effect, ReadId, WriteId};
use crate::messages::reads::Purpose;
use crate::store::pending::Awaiting;
use crate::store::record::{StoreRead, StoreWrite};
use crate::store::retry_queue::RetryQueue;
use crate::store::trouble::Trouble;

/// The requests of a mesh to its store.
#[derive(Debug)]
pub(crate) struct StoreQueue {
    /// Who waits for writes, in the order of the writes; bounded by leases and unanswered requests.
    awaiting: VecDeque<(WriteId, Awaiting)>,
    /// Who waits for the end of this round, when what it has settled is written; bounded by unanswered requests.
    round: Vec<Awaiting>,
    last_write: WriteId,
    /// The last write that the store has answered.
    settled_write: WriteId,
    /// Reads under way; bounded by groups, hellos and unanswered requests.
    reads: BTreeMap<ReadId, Purpose>,
    last_read: ReadId,
    /// Whether the last thing that the store was asked to write is on disk.
    sound: bool,
    /// What else is wrong with it.
    pub(super) trouble: Trouble,
    /// Writes for which nobody waits and that must not be lost.
    pub(crate) retries: RetryQueue,
}

impl Default for StoreQueue {
    fn default() -> StoreQueue {
        StoreQueue {
            awaiting: VecDeque::new(),
            round: Vec::new(),
            last_write: WriteId(0),
            settled_write: WriteId(0),
            reads: BTreeMap::new(),
            last_read: ReadId::default(),
            sound: true,
            trouble: Trouble::default(),
            retries: RetryQueue::default(),
        }
    }
}

impl StoreQueue {
    /// Whether the store can write, as far as is known.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound
    }

    /// What is wrong with the store besides that it cannot write.
    pub(crate) fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// How many wait for writes.
    pub(crate) fn waiting(&self) -> usize {
        self.awaiting.len()
    }

    /// How many reads are under way.
    pub(crate) fn reading(&self) -> usize {
        self.reads.len()
    }

    /// A write, for which nobody waits yet.
    pub(super) fn ask(&mut self, write: StoreWrite) -> Effect {
        self.last_write.0 += 1;
        Effect::Write { id: self.last_write, write }
    }

    /// Lets `who` wait for everything that was asked for so far.
    pub(super) fn wait(&mut self, who: Awaiting) {
        self.awaiting.push_back((self.last_write, who));
    }

    /// Lets `who` wait for what this round has settled: first until it is written, then until it is on disk.
    pub(crate) fn wait_for_round(&mut self, who: Awaiting) {
        self.round.push(who);
    }

    /// Whether somebody waits for the end of this round.
    pub(super) fn has_round(&self) -> bool {
        !self.round.is_empty()
    }

    /// Those who waited for the end of this round, which has come.
    pub(crate) fn take_round(&mut self) -> Vec<Awaiting> {
        std::mem::take(&mut self.round)
    }

    /// Whether the store has answered everything.
    pub(super) fn is_settled(&self) -> bool {
        self.last_write <= self.settled_write
    }

    /// The store has answered everything up to `through`: it is on disk, or nothing of it is.
    pub(super) fn settle(&mut self, through: WriteId) {
        self.settled_write = self.settled_write.max(through);
    }

    /// The next of those who wait for a write up to `through`.
    pub(super) fn next(&mut self, through: WriteId) -> Option<(WriteId, Awaiting)> {
        self.awaiting.pop_front_if(|(id, _)| *id <= through)
    }

    /// Takes up whether the store can write; says whether that is something new.
    pub(super) fn becomes(&mut self, sound: bool) -> bool {
        std::mem::replace(&mut self.sound, sound) != sound
    }

    /// A read, and its number.
    pub(crate) fn ask_read(&mut self, purpose: Purpose, read: StoreRead) -> (ReadId, Effect) {
        self.last_read.0 += 1;
        let id = self.last_read;
        self.reads.insert(id, purpose);
        (id, Effect::Read { id, read })
    }

    /// What a read under way is for.
    pub(crate) fn purpose(&self, id: ReadId) -> Option<&Purpose> {
        self.reads.get(&id)
    }

    /// What a read was for that is over, or is not wanted any more.
    pub(crate) fn take_read(&mut self, id: ReadId) -> Option<Purpose> {
        self.reads.remove(&id)
    }

    /// Sessions whose leases wait for a write, in the order of the writes; the order must hold.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Vec<tenure_proto::ids::SessionKey> {
        assert!(self.awaiting.iter().zip(self.awaiting.iter().skip(1)).all(|(a, b)| a.0 <= b.0));
        assert!(self.awaiting.back().is_none_or(|(id, _)| *id <= self.last_write));
        let lease = |(_, who): &(WriteId, Awaiting)| match who {
            Awaiting::Lease(session) => Some(*session),
            _ => None,
        };
        self.awaiting.iter().filter_map(lease).collect()
    }
}
