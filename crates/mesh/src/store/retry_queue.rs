//! What the store must be told and nobody waits for: burials, ends of subscriptions and groups. It is asked for again
//! until the store has it, and it is bounded: past the bound nothing is begun that would add to it.

use tenure_kit::time::Millis;
use tenure_proto::error::WireError;
use tenure_proto::limits::{PARTITIONS_MAX, SUBSCRIPTIONS_PER_SESSION};

use crate::Mesh;
use crate::messages::deliver::RETRY_MS;
use crate::store::pending::{Awaiting, unavailable};
use crate::store::record::StoreWrite;

/// Writes that may be owed before nothing more is begun that leads to one.
pub(crate) const OWED_MAX: usize = 131_072;
/// What each session may add past that: the ends of the subscriptions that it has, which cannot be made again then.
pub(crate) const OWED_PER_SESSION: usize = SUBSCRIPTIONS_PER_SESSION * (PARTITIONS_MAX as usize + 1);

/// Writes that must not be lost.
#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    /// Those that the store could not take; with those on their way bounded by [`OWED_MAX`] and [`OWED_PER_SESSION`].
    due: Vec<StoreWrite>,
    /// How many are on their way.
    sent: usize,
}

impl RetryQueue {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.due.len() + self.sent
    }

    /// Whether it holds as much as it may: nothing more may be begun that would add to it.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= OWED_MAX
    }

    /// Whether some wait to be asked for again.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// One of them is on disk.
    pub(crate) fn paid(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }
}

impl Mesh {
    /// Refuses what would add to what is owed when that is as much as it may be.
    pub(crate) fn may_owe(&self) -> Result<(), WireError> {
        if self.store.retries.is_full() { Err(unavailable()) } else { Ok(()) }
    }

    /// Asks for a write that nobody waits for but that must not be lost when the store cannot take it now.
    pub(crate) fn write_surely(&mut self, write: StoreWrite) {
        self.store.retries.sent += 1;
        self.write_for(Awaiting::Owed(Box::new(write.clone())), write);
    }

    /// The store could not take one that was on its way: it is asked again in a while.
    pub(crate) fn owe_again(&mut self, now: Millis, write: StoreWrite) {
        self.store.retries.paid();
        self.owe(now, write);
    }

    /// The store could not take a write that it must: it is asked again in a while.
    pub(crate) fn owe(&mut self, now: Millis, write: StoreWrite) {
        self.store.retries.due.push(write);
        self.messages.write_again_at(now.plus(RETRY_MS));
    }

    /// Asks for everything that is owed.
    pub(crate) fn write_owed(&mut self) {
        for write in std::mem::take(&mut self.store.retries.due) {
            // A name that was used again since must not be taken from its new owner.
            let lives = match &write {
                StoreWrite::DropSub(session, sub) => {
                    self.sessions.lease(session).is_some_and(|lease| lease.subs.get(sub).is_some())
                }
                // It was deleted since.
                StoreWrite::PutTopic(record) => !self.messages.has_topic(&record.name),
                _ => false,
            };
            if !lives {
                self.write_surely(write);
            }
        }
    }
}
