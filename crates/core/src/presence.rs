//! Who is here: a versioned map of peers, and a feed of its changes.
//!
//! The feed is the trick that makes fan-out cheap. Instead of a queue per watcher there is one index of changes
//! by version, in which every lease stands where it joined, at its newest update, and where it left. A watcher is
//! a cursor, nothing more: what it has not seen is what lies beyond. So a change costs one entry whatever the
//! number of watchers, a slow watcher costs nothing, coalescing needs no code, and watchers at the same cursor
//! share one [`Delta`].
//!
//! A `joined` keeps its place even when its lease has changed or left since. Therefore a cursor says exactly who
//! is known at it, wherever a delta was cut and however much of it arrived.
//!
//! What it promises: each watcher sees, per lease, `joined` at most once, then `updated`s, then `left` at most
//! once and never without the `joined`; versions rise strictly; a cursor that the feed cannot serve any more is
//! told so ([`Catchup::Resync`]), never silently restarted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tenure_proto::event::PresenceKind;
use tenure_proto::ids::SessionKey;
use tenure_proto::peer::{Peer, SharedPeer};

use crate::mutant::{self, Mutant};

/// Departures that the feed remembers; a watcher further behind is told to resync.
pub const DEPARTURES: usize = 16_384;
/// Changes in one delta: what one socket is handed at a time.
pub const DELTA_CHANGES: usize = 128;

/// The presence of one mesh.
#[derive(Debug, Default)]
pub struct Presence {
    version: u64,
    /// Bounded by the mesh's `max_sessions`.
    peers: BTreeMap<SessionKey, Entry>,
    /// At most two per peer and two per remembered departure.
    changes: BTreeMap<u64, Change>,
    /// Versions of the remembered departures, oldest first.
    departures: VecDeque<u64>,
    /// Cursors below this have missed a forgotten departure.
    floor: u64,
}

#[derive(Debug)]
struct Entry {
    peer: SharedPeer,
    /// The version at which this lease joined.
    joined: u64,
    /// The version of its newest change.
    version: u64,
}

#[derive(Debug)]
enum Change {
    /// The peer of this session joined or changed.
    Here(SessionKey),
    /// A lease began that has ended since.
    Came(SharedPeer),
    /// A lease ended that had begun at version `joined`.
    Left { peer: SharedPeer, joined: u64 },
}

/// One step, ready to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What happened, to somebody who knows everything up to the delta's base.
    pub kind: PresenceKind,
    /// The peer.
    pub peer: SharedPeer,
    /// The version after it.
    pub version: u64,
}

/// What a watcher at `base` has not seen, up to `version`; shared by all watchers at that base.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The cursor it starts from.
    pub base: u64,
    /// The cursor after it.
    pub version: u64,
    /// The steps in order; the last brings the map to `version`.
    pub steps: Vec<Step>,
}

/// How a cursor catches up.
#[derive(Clone, Debug, PartialEq)]
pub enum Catchup {
    /// By these steps.
    Delta(Arc<Delta>),
    /// Not by steps: it must read the map again, which is now at this version.
    Resync(u64),
}

impl Presence {
    /// The version of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Changes and departures that the feed remembers.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.changes.len(), self.departures.len())
    }

    /// The peer of `session`.
    pub fn get(&self, session: &SessionKey) -> Option<&SharedPeer> {
        self.peers.get(session).map(|e| &e.peer)
    }

    /// A lease began.
    pub fn join(&mut self, peer: Peer) {
        self.version += 1;
        let (session, version) = (peer.session, self.version);
        let entry = Entry { peer: SharedPeer::new(peer), joined: version, version };
        self.changes.insert(version, Change::Here(session));
        if let Some(old) = self.peers.insert(session, entry) {
            self.changes.remove(&old.joined);
            self.changes.remove(&old.version);
        }
    }

    /// The peer changed in a way worth telling.
    pub fn update(&mut self, peer: Peer) {
        let Some(entry) = self.peers.get_mut(&peer.session) else { return };
        self.version += 1;
        if entry.version != entry.joined {
            self.changes.remove(&entry.version);
        }
        self.changes.insert(self.version, Change::Here(peer.session));
        entry.version = self.version;
        entry.peer = SharedPeer::new(peer);
    }

    /// The peer changed in a way that only those who ask will see.
    pub fn update_quietly(&mut self, peer: Peer) {
        if let Some(entry) = self.peers.get_mut(&peer.session) {
            entry.peer = SharedPeer::new(peer);
        }
    }

    /// A lease ended.
    pub fn leave(&mut self, session: &SessionKey) {
        let Some(entry) = self.peers.remove(session) else { return };
        self.version += 1;
        self.changes.remove(&entry.version);
        self.changes.insert(entry.joined, Change::Came(entry.peer.clone()));
        let Entry { peer, joined, .. } = entry;
        self.changes.insert(self.version, Change::Left { peer: peer.clone(), joined });
        if mutant::on(Mutant::LeftTwice) {
            self.version += 1;
            self.changes.insert(self.version, Change::Left { peer, joined });
        }
        self.departures.push_back(self.version);
        if self.departures.len() > DEPARTURES
            && let Some(oldest) = self.departures.pop_front()
        {
            if let Some(Change::Left { joined, .. }) = self.changes.remove(&oldest) {
                self.changes.remove(&joined);
            }
            self.floor = oldest;
        }
    }

    /// What a watcher at `cursor` sees next.
    pub fn catch_up(&self, cursor: u64) -> Catchup {
        if cursor < self.floor {
            return Catchup::Resync(self.version);
        }
        let unseen = self.changes.range((Bound::Excluded(cursor), Bound::Unbounded));
        let steps: Vec<Step> =
            unseen.take(DELTA_CHANGES).filter_map(|(version, change)| self.tell(*version, change)).collect();
        let version = steps.last().map_or(cursor, |step| step.version);
        Catchup::Delta(Arc::new(Delta { base: cursor, version, steps }))
    }

    /// How the `change` that brought the map to `version` is told. A peer that is still here is shown as it is
    /// now, so that what follows its `joined` is old news at worst.
    fn tell(&self, version: u64, change: &Change) -> Option<Step> {
        let (kind, peer) = match change {
            Change::Here(session) => {
                let entry = self.peers.get(session)?;
                let joined = entry.joined == version;
                (if joined { PresenceKind::Joined } else { PresenceKind::Updated }, &entry.peer)
            }
            Change::Came(peer) => (PresenceKind::Joined, peer),
            Change::Left { peer, .. } => (PresenceKind::Left, peer),
        };
        Some(Step { kind, peer: peer.clone(), version })
    }

    /// Up to `limit` peers after `after`, in the order of their keys, and whether there are more.
    pub fn page(&self, after: Option<&SessionKey>, limit: usize) -> (Vec<SharedPeer>, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut peers = self.peers.range((from, Bound::Unbounded));
        let page = peers.by_ref().take(limit).map(|(_, e)| e.peer.clone()).collect();
        (page, peers.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_proto::ids::MemberKey;
    use tenure_proto::peer::Profile;

    fn peer(n: u8, name: &str) -> Peer {
        Peer::new(SessionKey([n; 32]), MemberKey([9; 32]), "i".parse().unwrap(), 0, &Profile::named(name))
    }

    fn told(presence: &Presence, cursor: u64) -> Vec<(PresenceKind, String, u64)> {
        match presence.catch_up(cursor) {
            Catchup::Delta(d) => {
                d.steps.iter().map(|s| (s.kind, s.peer.get().name.clone(), s.version)).collect()
            }
            Catchup::Resync(_) => panic!("resync"),
        }
    }

    #[test]
    fn updates_coalesce_and_keep_the_kind_a_watcher_needs() {
        let mut presence = Presence::default();
        presence.join(peer(1, "a"));
        presence.update(peer(1, "b"));
        presence.update(peer(1, "c"));
        assert_eq!(
            told(&presence, 0),
            [(PresenceKind::Joined, "c".into(), 1), (PresenceKind::Updated, "c".into(), 3)]
        );
        assert_eq!(told(&presence, 1), [(PresenceKind::Updated, "c".into(), 3)]);
        assert_eq!(told(&presence, 3), []);
    }

    #[test]
    fn a_lease_that_came_and_went_unseen_is_told_from_beginning_to_end() {
        let mut presence = Presence::default();
        presence.join(peer(1, "a"));
        presence.update(peer(1, "b"));
        presence.leave(&SessionKey([1; 32]));
        let left = (PresenceKind::Left, "b".into(), 3);
        assert_eq!(told(&presence, 0), [(PresenceKind::Joined, "b".into(), 1), left.clone()]);
        // Whoever has heard the first half, because a delta was cut or a socket broke there, needs the second.
        assert_eq!(told(&presence, 1), [left]);
    }

    #[test]
    fn a_cursor_in_the_middle_of_a_delta_knows_only_what_it_was_told() {
        let mut presence = Presence::default();
        presence.join(peer(1, "a"));
        presence.join(peer(2, "b"));
        presence.update(peer(1, "c"));
        let first = &told(&presence, 0)[0];
        assert_eq!((first.0, first.2), (PresenceKind::Joined, 1), "an update does not move a joined");
        assert_eq!(told(&presence, 2), [(PresenceKind::Updated, "c".into(), 3)]);
    }

    #[test]
    fn a_slow_watcher_still_sees_left_before_the_next_joined() {
        let mut presence = Presence::default();
        presence.join(peer(1, "a"));
        presence.leave(&SessionKey([1; 32]));
        presence.join(peer(1, "again"));
        assert_eq!(
            told(&presence, 1),
            [(PresenceKind::Left, "a".into(), 2), (PresenceKind::Joined, "again".into(), 3)]
        );
    }

    #[test]
    fn a_cursor_below_forgotten_departures_must_resync() {
        let mut presence = Presence::default();
        presence.join(peer(1, "a"));
        for _ in 0..DEPARTURES + 1 {
            presence.join(peer(2, "b"));
            presence.leave(&SessionKey([2; 32]));
        }
        assert_eq!(presence.catch_up(1), Catchup::Resync(presence.version()));
        assert_eq!(presence.changes.len(), 2 * DEPARTURES + 1);
    }

    #[test]
    fn long_deltas_are_cut_and_go_on() {
        let mut presence = Presence::default();
        for n in 0..200 {
            presence.join(peer(n, "x"));
        }
        let Catchup::Delta(first) = presence.catch_up(0) else { panic!() };
        assert_eq!((first.steps.len(), first.version), (DELTA_CHANGES, DELTA_CHANGES as u64));
        assert_eq!(told(&presence, first.version).len(), 200 - DELTA_CHANGES);
    }
}
