//! The messages that a subscription has handled, by id: the newest of them.
//!
//! Runs of seqs recognise what comes again within one history. Ids recognise it in any: a store that was restored has the
//! same messages at the same places as far as its history goes, and other messages there after it; and what a session
//! left moves to its member's inbox under its own id.

use std::collections::{BTreeMap, VecDeque};

use tenure_proto::ids::MessageId;

use crate::delivery::Verb;

/// Ids that one subscription remembers, the two inboxes together; the oldest are forgotten first.
pub(super) const IDS: usize = 4_096;

/// How a message was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It is done.
    Acked,
    /// It was given up for good, at this attempt and in this way. A later attempt was fetched from the dead letters.
    Dead(u32, Verb),
}

/// The newest ids that were handled; at most [`IDS`].
#[derive(Debug, Default)]
pub(super) struct Ids {
    order: VecDeque<MessageId>,
    fates: BTreeMap<MessageId, Fate>,
    /// The greatest that was forgotten: of greater ones all that were handled are known.
    forgotten: Option<MessageId>,
}

impl Ids {
    /// How many are remembered.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// A message is done.
    pub(super) fn acked(&mut self, id: MessageId) {
        self.insert(id, Fate::Acked);
    }

    /// A message was given up for good.
    pub(super) fn buried(&mut self, id: MessageId, attempt: u32, how: Verb) {
        self.insert(id, Fate::Dead(attempt, how));
    }

    /// How a message was handled that is now delivered as `attempt`; `None` when it is new.
    pub(super) fn handled(&self, id: &MessageId, attempt: u32) -> Option<&Verb> {
        match self.fates.get(id)? {
            Fate::Acked => Some(&Verb::Ack),
            Fate::Dead(at, how) => (attempt <= *at).then_some(how),
        }
    }

    /// Whether a message was certainly never handled.
    pub(super) fn is_new(&self, id: &MessageId) -> bool {
        !self.fates.contains_key(id) && self.forgotten.is_none_or(|forgotten| forgotten < *id)
    }

    /// Forgets all, for a mutant.
    pub(super) fn forget(&mut self) {
        *self = Ids::default();
    }

    fn insert(&mut self, id: MessageId, fate: Fate) {
        if self.fates.insert(id, fate).is_some() {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.fates.remove(&oldest);
            self.forgotten = self.forgotten.max(Some(oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_and_a_later_attempt_of_a_dead_one_is_new() {
        let mut ids = Ids::default();
        let dead = Verb::Nack { delay_ms: None, dead: true, reason: None };
        for n in 0..IDS as u128 + 1 {
            ids.acked(MessageId(n));
            ids.acked(MessageId(n));
        }
        assert_eq!(ids.len(), IDS);
        assert_eq!(ids.handled(&MessageId(0), 1), None, "the oldest is forgotten");
        assert!(!ids.is_new(&MessageId(0)), "it may have been handled");
        assert!(!ids.is_new(&MessageId(1)) && ids.is_new(&MessageId(99_999)));
        assert_eq!(ids.handled(&MessageId(1), 9), Some(&Verb::Ack));
        ids.buried(MessageId(99_999), 2, dead.clone());
        assert_eq!(ids.handled(&MessageId(99_999), 2), Some(&dead));
        assert_eq!(ids.handled(&MessageId(99_999), 3), None, "fetched from the dead letters");
        ids.acked(MessageId(99_999));
        assert_eq!((ids.handled(&MessageId(99_999), 3), ids.len()), (Some(&Verb::Ack), IDS));
    }
}
