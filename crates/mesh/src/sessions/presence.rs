//! Who is here: a versioned map of peers, and a feed of its changes.
//!
//! The trick that makes fan-out cheap is [`crate::sessions::feed`]: a watcher is a cursor, and what it has not seen is what lies
//! beyond.
//!
//! What it promises: each watcher sees, per lease, `joined` at most once, then `updated`s, then `left` at most
//! once and never without the `joined`; versions rise strictly; a cursor that the feed cannot serve any more is
//! told so ([`Catchup::Resync`]), never silently restarted.

use std::sync::Arc;

use tenure_proto::event::PresenceKind;
use tenure_proto::ids::SessionKey;
use tenure_proto::peer::{Peer, SharedPeer};

use crate::sessions::feed::{Feed, Turn};

pub use crate::sessions::feed::{DELTA_CHANGES, DEPARTURES};

/// The presence of one mesh; bounded by the mesh's `max_sessions`.
#[derive(Debug, Default)]
pub struct Presence(Feed<SessionKey, SharedPeer>);

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
        self.0.version()
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Changes and departures that the feed remembers.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        self.0.sizes()
    }

    /// The peer of `session`.
    pub fn get(&self, session: &SessionKey) -> Option<&SharedPeer> {
        self.0.get(session)
    }

    /// A lease began.
    pub fn join(&mut self, peer: Peer) {
        self.0.put(peer.session, SharedPeer::new(peer));
    }

    /// The peer changed in a way worth telling.
    pub fn update(&mut self, peer: Peer) {
        self.0.update(peer.session, SharedPeer::new(peer));
    }

    /// The peer changed in a way that only those who ask will see.
    pub fn update_quietly(&mut self, peer: Peer) {
        self.0.update_quietly(&peer.session.clone(), SharedPeer::new(peer));
    }

    /// A lease ended.
    pub fn leave(&mut self, session: &SessionKey) {
        self.0.remove(session);
    }

    /// What a watcher at `cursor` sees next.
    pub fn catch_up(&self, cursor: u64) -> Catchup {
        let Some(steps) = self.0.after(cursor) else { return Catchup::Resync(self.version()) };
        let step = |(version, turn, peer): (u64, Turn, &SharedPeer)| {
            let kind = match turn {
                Turn::Came => PresenceKind::Joined,
                Turn::Changed => PresenceKind::Updated,
                Turn::Went => PresenceKind::Left,
            };
            Step { kind, peer: peer.clone(), version }
        };
        let steps: Vec<Step> = steps.into_iter().map(step).collect();
        let version = steps.last().map_or(cursor, |step| step.version);
        Catchup::Delta(Arc::new(Delta { base: cursor, version, steps }))
    }

    /// Up to `limit` peers after `after`, in the order of their keys, and whether there are more.
    pub fn page(&self, after: Option<&SessionKey>, limit: usize) -> (Vec<SharedPeer>, bool) {
        let mut peers = self.0.range_after(after);
        let page = peers.by_ref().take(limit).map(|(_, peer)| peer.clone()).collect();
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
        assert_eq!(presence.sizes(), (2 * DEPARTURES + 1, DEPARTURES));
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
