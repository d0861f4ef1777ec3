//! Deadlines: one per key, the earliest first, O(log n) to move. A million leases cost no scan.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Millis;

/// A set of deadlines, at most one per key; bounded by the number of keys its owner holds.
#[derive(Clone, Debug)]
pub struct Deadlines<K: Ord + Copy> {
    by_time: BTreeSet<(Millis, K)>,
    by_key: BTreeMap<K, Millis>,
}

impl<K: Ord + Copy> Default for Deadlines<K> {
    fn default() -> Self {
        Deadlines { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    /// Sets or moves the deadline of `key`.
    pub fn set(&mut self, key: K, due: Millis) {
        if let Some(old) = self.by_key.insert(key, due) {
            if old == due {
                return;
            }
            self.by_time.remove(&(old, key));
        }
        self.by_time.insert((due, key));
    }

    /// Forgets the deadline of `key`.
    pub fn clear(&mut self, key: &K) {
        if let Some(old) = self.by_key.remove(key) {
            self.by_time.remove(&(old, *key));
        }
    }

    /// The deadline of `key`.
    pub fn at(&self, key: &K) -> Option<Millis> {
        self.by_key.get(key).copied()
    }

    /// Whether `key` has one.
    pub fn has(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// How many keys have one.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Millis> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes out a key whose deadline has come.
    pub fn pop_due(&mut self, now: Millis) -> Option<K> {
        let (due, key) = *self.by_time.first()?;
        if due > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_key.remove(&key);
        Some(key)
    }
}
