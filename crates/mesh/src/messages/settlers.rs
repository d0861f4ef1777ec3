//! Who settled what in a group that several read: so that whoever had an entry before is told the truth when it settles it
//! late.
//!
//! An entry that was handed out once has had one holder, and nobody else has a tag of it. So only entries that were
//! handed out again are remembered, the last [`SETTLERS_MAX`] of them that were settled. They are on disk with the settle
//! itself, in its transaction.

use std::collections::{BTreeMap, BTreeSet};

use tenure_proto::ids::SessionKey;

use crate::store::record::SettlerRecord;

/// Settled entries of one group whose settler is remembered; of older ones a late settle counts as settled.
pub const SETTLERS_MAX: usize = 4_096;

/// What the store has to be told of settlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettlerChanges {
    /// To be remembered, each in place of what was remembered of its entry.
    pub put: Vec<SettlerRecord>,
    /// Entries of which nothing is remembered any more.
    pub del: Vec<u64>,
}

/// Who settled the entries of a group that were handed out more than once.
#[derive(Clone, Debug, Default)]
pub struct Settlers {
    /// By seq. Bounded by [`SETTLERS_MAX`].
    known: BTreeMap<u64, SettlerRecord>,
    /// Seqs by the order in which they were settled: one for each that is known.
    order: BTreeMap<u64, u64>,
    /// Seqs that the store must be told.
    untold: BTreeSet<u64>,
    /// Seqs that the store must forget.
    forgotten: Vec<u64>,
}

impl Settlers {
    /// Takes up what the store remembers.
    pub fn restore(&mut self, record: SettlerRecord) {
        self.order.insert(record.nth, record.seq);
        self.known.insert(record.seq, record);
    }

    /// Notes that `session` settled an entry under `attempt`.
    pub fn note(&mut self, seq: u64, attempt: u32, session: SessionKey) {
        // There was nobody before it.
        if attempt <= 1 {
            return;
        }
        let nth = self.order.last_key_value().map_or(0, |(nth, _)| nth + 1);
        if let Some(old) = self.known.insert(seq, SettlerRecord { seq, attempt, session, nth }) {
            self.order.remove(&old.nth);
        }
        self.order.insert(nth, seq);
        self.untold.insert(seq);
        if self.known.len() > SETTLERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
            self.untold.remove(&oldest);
            self.forgotten.push(oldest);
        }
    }

    /// Forgets who settled an entry.
    pub fn forget(&mut self, seq: u64) {
        if let Some(old) = self.known.remove(&seq) {
            self.order.remove(&old.nth);
            self.untold.remove(&seq);
            self.forgotten.push(seq);
        }
    }

    /// Whether an entry that is settled is known to have been settled otherwise than by this attempt of this session.
    pub fn is_by_other(&self, seq: u64, attempt: u32, session: &SessionKey) -> bool {
        self.known.get(&seq).is_some_and(|known| (known.attempt, &known.session) != (attempt, session))
    }

    /// Whether the store does not know all of this yet.
    pub fn is_dirty(&self) -> bool {
        !self.untold.is_empty() || !self.forgotten.is_empty()
    }

    /// What the store has to be told; from here on it counts as told. All there is, when it `replace`s.
    pub fn take_changes(&mut self, replace: bool) -> SettlerChanges {
        let untold = std::mem::take(&mut self.untold);
        let del = std::mem::take(&mut self.forgotten);
        if replace {
            return SettlerChanges { put: self.known.values().cloned().collect(), del: Vec::new() };
        }
        SettlerChanges { put: untold.iter().filter_map(|seq| self.known.get(seq)).cloned().collect(), del }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionKey = SessionKey([1; 32]);
    const B: SessionKey = SessionKey([2; 32]);

    #[test]
    fn only_the_settler_and_its_attempt_settled_it() {
        let mut settlers = Settlers::default();
        settlers.note(7, 2, B);
        assert!(settlers.is_by_other(7, 1, &A), "who had it before");
        assert!(settlers.is_by_other(7, 1, &B), "an earlier attempt of the same session");
        assert!(!settlers.is_by_other(7, 2, &B));
        assert!(!settlers.is_by_other(8, 1, &A), "nothing is known of it");
        settlers.note(7, 3, A);
        assert!(
            settlers.is_by_other(7, 2, &B) && !settlers.is_by_other(7, 3, &A),
            "it came back, and was settled anew"
        );
    }

    #[test]
    fn what_was_handed_out_once_needs_no_memory() {
        let mut settlers = Settlers::default();
        settlers.note(7, 1, A);
        assert!(!settlers.is_dirty() && settlers.take_changes(true) == SettlerChanges::default());
    }

    #[test]
    fn the_last_ones_are_remembered_in_the_order_of_their_settling() {
        let mut settlers = Settlers::default();
        let max = SETTLERS_MAX as u64;
        // The first entry is settled last.
        for seq in (2..=max + 1).chain([1]) {
            settlers.note(seq, 2, B);
        }
        assert!(!settlers.is_by_other(2, 1, &A), "the one that was settled first is forgotten");
        assert!(settlers.is_by_other(1, 1, &A) && settlers.is_by_other(3, 1, &A));
        let told = settlers.take_changes(false);
        assert_eq!((told.put.len(), told.del), (SETTLERS_MAX, vec![2]));
        assert!(!settlers.is_dirty());
        // A start goes on in the same order.
        let mut restored = Settlers::default();
        told.put.into_iter().for_each(|record| restored.restore(record));
        restored.note(9_000, 2, B);
        assert_eq!(restored.take_changes(false).del, [3]);
    }

    #[test]
    fn what_the_store_did_not_take_is_said_again() {
        let mut settlers = Settlers::default();
        settlers.note(7, 2, B);
        settlers.take_changes(false);
        settlers.note(9, 3, A);
        let seqs: Vec<u64> = settlers.take_changes(true).put.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, [7, 9]);
        assert!(!settlers.is_dirty());
    }
}
