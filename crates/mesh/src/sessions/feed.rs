//! A versioned map, and a feed of its changes that makes fan-out cheap.
//!
//! Instead of a queue per watcher there is one index of changes by version, in which everything that was ever put in
//! stands where it came, at its newest change, and where it went. A watcher is a cursor, nothing more: what it has
//! not seen is what lies beyond. So a change costs one entry whatever the number of watchers, a slow watcher costs
//! nothing, coalescing needs no code, and watchers at the same cursor share what they are told.
//!
//! A coming keeps its place even when the thing has changed or gone since. Therefore a cursor says exactly what is
//! known at it, wherever a delta was cut and however much of it arrived.
//!
//! What it promises: each watcher sees, of each thing, its coming at most once, then changes, then its going at most
//! once and never without the coming; versions rise strictly; a cursor that the feed cannot serve any more is told
//! so (`None` of [`Feed::after`]), never silently restarted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tenure_kit::mutant::{self, Mutant};

/// Goings that a feed remembers; a watcher further behind is told to read anew.
pub const DEPARTURES: usize = 16_384;
/// Changes in one delta: what one socket is handed at a time.
pub const DELTA_CHANGES: usize = 128;

/// A versioned map with the feed of its changes.
#[derive(Debug)]
pub struct Feed<K, V> {
    version: u64,
    /// Bounded by whoever puts in.
    here: BTreeMap<K, Entry<V>>,
    /// At most two per entry and two per remembered departure.
    changes: BTreeMap<u64, Change<K, V>>,
    /// Versions of the remembered departures, oldest first.
    departures: VecDeque<u64>,
    /// Cursors below this have missed a forgotten departure.
    floor: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    /// The version at which it came.
    came: u64,
    /// The version of its newest change.
    version: u64,
}

#[derive(Debug)]
enum Change<K, V> {
    /// What is under this key came or changed.
    Here(K),
    /// Something came that has gone since.
    Came(V),
    /// Something went that had come at this version.
    Went { value: V, came: u64 },
}

/// What a step is to somebody who knows everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It was not there before.
    Came,
    /// It is not as it was.
    Changed,
    /// It is not there any more.
    Went,
}

impl<K, V> Default for Feed<K, V> {
    fn default() -> Feed<K, V> {
        Feed {
            version: 0,
            here: BTreeMap::new(),
            changes: BTreeMap::new(),
            departures: VecDeque::new(),
            floor: 0,
        }
    }
}

impl<K: Clone + Ord, V: Clone> Feed<K, V> {
    /// The version of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.here.len()
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.here.is_empty()
    }

    /// Changes and departures that it remembers.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.changes.len(), self.departures.len())
    }

    /// What is under `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.here.get(key).map(|entry| &entry.value)
    }

    /// Something came. What was under its key before is forgotten without a word: take it out first.
    pub fn put(&mut self, key: K, value: V) {
        self.version += 1;
        let version = self.version;
        self.changes.insert(version, Change::Here(key.clone()));
        if let Some(old) = self.here.insert(key, Entry { value, came: version, version }) {
            self.changes.remove(&old.came);
            self.changes.remove(&old.version);
        }
    }

    /// It changed in a way worth telling.
    pub fn update(&mut self, key: K, value: V) {
        let Some(entry) = self.here.get_mut(&key) else { return };
        self.version += 1;
        if entry.version != entry.came {
            self.changes.remove(&entry.version);
        }
        self.changes.insert(self.version, Change::Here(key));
        (entry.version, entry.value) = (self.version, value);
    }

    /// It changed in a way that only those who ask will see.
    pub fn update_quietly(&mut self, key: &K, value: V) {
        if let Some(entry) = self.here.get_mut(key) {
            entry.value = value;
        }
    }

    /// It went.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let Entry { value, came, version } = self.here.remove(key)?;
        self.version += 1;
        self.changes.remove(&version);
        self.changes.insert(came, Change::Came(value.clone()));
        self.changes.insert(self.version, Change::Went { value: value.clone(), came });
        if mutant::on(Mutant::LeftTwice) {
            self.version += 1;
            self.changes.insert(self.version, Change::Went { value: value.clone(), came });
        }
        self.departures.push_back(self.version);
        if self.departures.len() > DEPARTURES
            && let Some(oldest) = self.departures.pop_front()
        {
            if let Some(Change::Went { came, .. }) = self.changes.remove(&oldest) {
                self.changes.remove(&came);
            }
            self.floor = oldest;
        }
        Some(value)
    }

    /// The first steps that a watcher at `cursor` has not seen, at most [`DELTA_CHANGES`], with the version after
    /// each; `None` when it must read the map again. What is still here is shown as it is now, so that what follows
    /// its coming is old news at worst.
    pub fn after(&self, cursor: u64) -> Option<Vec<(u64, Turn, &V)>> {
        if cursor < self.floor {
            return None;
        }
        let unseen = self.changes.range((Bound::Excluded(cursor), Bound::Unbounded));
        Some(unseen.take(DELTA_CHANGES).filter_map(|(version, change)| self.tell(*version, change)).collect())
    }

    fn tell<'a>(&'a self, version: u64, change: &'a Change<K, V>) -> Option<(u64, Turn, &'a V)> {
        let (turn, value) = match change {
            Change::Here(key) => {
                let entry = self.here.get(key)?;
                (if entry.came == version { Turn::Came } else { Turn::Changed }, &entry.value)
            }
            Change::Came(value) => (Turn::Came, value),
            Change::Went { value, .. } => (Turn::Went, value),
        };
        Some((version, turn, value))
    }

    /// What comes after `after`, in the order of keys.
    pub fn range_after<'a>(&'a self, after: Option<&'a K>) -> impl Iterator<Item = (&'a K, &'a V)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.here.range((from, Bound::Unbounded)).map(|(key, entry)| (key, &entry.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_by_what_is_here_and_by_departures() {
        let mut feed = Feed::default();
        feed.put(1, 'a');
        for _ in 0..DEPARTURES + 1 {
            feed.put(2, 'b');
            feed.remove(&2);
        }
        assert_eq!(feed.after(1), None, "a departure after that cursor is forgotten");
        assert_eq!(feed.changes.len(), 2 * DEPARTURES + 1);
    }
}
