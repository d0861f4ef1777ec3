//! What a subscription remembers of one log: what is in hand, what is owed, what is done.
//!
//! This is why an entry is handed to the application once although it may be delivered many times, and why a
//! subscription that has to be made again begins where nothing is lost: at the first entry that is not done.

use std::collections::{BTreeMap, BTreeSet};

use super::delivery::DeliveryId;

/// Runs of consecutive acked entries that are remembered per log; the lowest are forgotten first.
///
/// What can come back although it was acked: after a broker start, what a private group acked within the 5 s
/// that its floor may lag behind; after a break, acks whose answer was lost, at most a prefetch; after a lost
/// lease, everything from the first entry that is not done. A sole reader acks in runs, so all of that is a
/// handful of them however fast it reads. Readers that compete leave a run for each entry in the worst case:
/// then this is 5 s of 1,600 acks a second, and what is forgotten is merely delivered again.
const ACKED_RUNS: usize = 8_192;

/// Entries that are owed and remembered per log; the lowest are forgotten first. The broker keeps them all: this
/// only says where to begin if it has lost its place.
const OWED: usize = 1_024;

/// One log of one subscription.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Which partition it is, of a topic.
    pub(super) partition: Option<u32>,
    /// The last entry that came, or the one before the first that will.
    seen: Option<u64>,
    /// What is with the application, or on its way to being settled.
    in_hand: BTreeMap<u64, DeliveryId>,
    /// What was given back or let go, and will come again.
    owed: BTreeSet<u64>,
    acked: Runs,
}

impl Book {
    /// An empty one, of that partition of a topic or of an inbox.
    pub(super) fn of(partition: Option<u32>) -> Book {
        Book { partition, ..Book::default() }
    }

    /// The subscription begins at `seq`.
    pub(super) fn begin(&mut self, seq: u64) {
        self.seen = seq.checked_sub(1);
    }

    /// An entry has come, or was skipped.
    pub(super) fn pass(&mut self, seq: u64) {
        self.seen = self.seen.max(Some(seq));
    }

    /// The delivery that `seq` is in hand by.
    pub(super) fn in_hand(&self, seq: u64) -> Option<DeliveryId> {
        self.in_hand.get(&seq).copied()
    }

    /// How many are in hand.
    pub(super) fn hands(&self) -> usize {
        self.in_hand.len()
    }

    /// Whether `seq` was acked and is remembered.
    pub(super) fn is_acked(&self, seq: u64) -> bool {
        self.acked.contains(seq)
    }

    /// `seq` is in hand.
    pub(super) fn take(&mut self, seq: u64, id: DeliveryId) {
        self.pass(seq);
        self.owed.remove(&seq);
        self.in_hand.insert(seq, id);
    }

    /// `seq` is done.
    pub(super) fn done(&mut self, seq: u64, id: DeliveryId) {
        if self.drop_hand(seq, id) {
            self.acked.insert(seq);
        }
    }

    /// `seq` is in hand no more and will come again.
    pub(super) fn owe(&mut self, seq: u64, id: DeliveryId) {
        if self.drop_hand(seq, id) {
            self.owed.insert(seq);
            if self.owed.len() > OWED {
                self.owed.pop_first();
            }
        }
    }

    /// `seq` is in hand no more, and no business of ours.
    pub(super) fn forget(&mut self, seq: u64, id: DeliveryId) {
        self.drop_hand(seq, id);
    }

    /// Whether `id` was how `seq` is in hand: a later delivery may have taken its place.
    fn drop_hand(&mut self, seq: u64, id: DeliveryId) -> bool {
        let own = self.in_hand(seq) == Some(id);
        if own {
            self.in_hand.remove(&seq);
        }
        own
    }

    /// The last entry up to which nothing is owed. Begin after it, and nothing is lost; what comes again
    /// although it was acked is recognised.
    pub(super) fn position(&self) -> Option<u64> {
        let open = self.in_hand.keys().next().copied();
        let owed = self.owed.first().copied();
        match [open, owed].into_iter().flatten().min() {
            Some(first) => first.checked_sub(1),
            None => self.seen,
        }
    }
}

/// A set of numbers in runs.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn contains(&self, seq: u64) -> bool {
        self.0.range(..=seq).next_back().is_some_and(|(_, end)| *end >= seq)
    }

    fn insert(&mut self, seq: u64) {
        if self.contains(seq) {
            return;
        }
        let end = self.0.remove(&(seq + 1)).unwrap_or(seq);
        match self.0.range_mut(..seq).next_back() {
            Some((_, before)) if *before + 1 == seq => *before = end,
            _ => {
                self.0.insert(seq, end);
            }
        }
        if self.0.len() > ACKED_RUNS {
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_stay_bounded() {
        let mut runs = Runs::default();
        for seq in [5, 7, 6, 1, 2, 5] {
            runs.insert(seq);
        }
        assert_eq!(runs.0, BTreeMap::from([(1, 2), (5, 7)]));
        assert!(runs.contains(6) && !runs.contains(3) && !runs.contains(0) && !runs.contains(8));
        for seq in 0..20_000 {
            runs.insert(100 + 2 * seq);
        }
        assert_eq!(runs.0.len(), ACKED_RUNS);
        assert!(runs.contains(100 + 2 * 19_999) && !runs.contains(1));
    }

    #[test]
    fn the_position_is_before_the_first_entry_that_is_not_done() {
        let mut book = Book::default();
        assert_eq!(book.position(), None);
        book.begin(10);
        assert_eq!(book.position(), Some(9));
        for seq in 10..14 {
            book.take(seq, DeliveryId(seq));
        }
        book.done(10, DeliveryId(10));
        book.done(12, DeliveryId(12));
        assert_eq!(book.position(), Some(10));
        book.owe(11, DeliveryId(11));
        assert_eq!(book.position(), Some(10));
        book.take(11, DeliveryId(20));
        book.done(11, DeliveryId(11));
        assert_eq!(book.position(), Some(10), "the second delivery is not done");
        book.done(11, DeliveryId(20));
        book.done(13, DeliveryId(13));
        assert_eq!(book.position(), Some(13));
    }
}
