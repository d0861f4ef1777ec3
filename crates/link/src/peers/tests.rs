//! The mirror of presence, step by step.

use serde_json::json;
use tenure_proto::event::Resync;
use tenure_proto::hello::StateVersion;
use tenure_proto::ids::MemberKey;
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, Profile};

use super::*;

use PresenceKind::{Joined, Left, Updated};

fn peer(key: u8, name: &str, joined: u64) -> SharedPeer {
    let (session, member) = (SessionKey([key; 32]), MemberKey([9; 32]));
    SharedPeer::new(Peer::new(session, member, "i".parse().unwrap(), joined, &Profile::named(name)))
}

fn at(version: u64) -> StateVersion {
    let zero = U53::saturating(0);
    StateVersion { presence: U53::saturating(version), services: zero, health: zero }
}

fn snapshot(peers: &[SharedPeer], more: bool, version: u64) -> SessionEvent {
    let hello = json!({
        "protocol": 1, "broker": {"id": "b", "version": "0"}, "connId": "c1", "sessionId": "01".repeat(32),
        "lease": "new", "resume": {"outcome": "new", "token": "t"}, "leaseTtlMs": 90_000,
        "policy": {"pingIntervalMs": 30_000, "staleAfterMs": 75_000, "tickIntervalMs": 30_000, "maxPayload": 1,
            "maxBufferedBytes": 1, "maxBufferedMessages": 1, "maxInflight": 1, "durability": "fsync"},
        "features": {}, "events": {"epoch": "e1", "nextSeq": 1, "replay": "resync"},
        "snapshot": {"presence": peers, "more": more, "services": [], "subscriptions": [], "health": "ok",
            "uptimeMs": 1},
        "stateVersion": at(version),
    });
    SessionEvent::Attached(Box::new(serde_json::from_value(hello).unwrap()))
}

fn event(body: EventBody) -> SessionEvent {
    SessionEvent::Event { seq: 1, body: Box::new(body) }
}

fn step(kind: PresenceKind, peer: &SharedPeer, base: u64, version: u64) -> SessionEvent {
    let (base, version) = (U53::saturating(base), U53::saturating(version));
    event(EventBody::Presence(PresenceEvent { kind, peer: peer.clone(), base, version }))
}

fn page(peers: &[SharedPeer], next: Option<u8>, version: u64) -> PresenceListResult {
    let next = next.map(|key| SessionKey([key; 32]));
    PresenceListResult { peers: peers.to_vec(), next, state_version: at(version) }
}

fn names(map: &PeerMap) -> Vec<&str> {
    map.peers().map(|peer| peer.get().name.as_str()).collect()
}

#[test]
fn the_first_snapshot_tells_no_change_and_deltas_go_on_from_it() {
    let mut map = PeerMap::default();
    let (a, b) = (peer(1, "a", 1), peer(2, "b", 2));
    assert_eq!(map.apply(&snapshot(std::slice::from_ref(&a), false, 5)), PeerChange::Replaced(Vec::new()));
    assert_eq!(map.apply(&step(Joined, &b, 5, 6)), PeerChange::Peer(Joined, b.clone()));
    assert_eq!(names(&map), ["a", "b"]);
    assert_eq!(map.apply(&step(Left, &a, 6, 7)), PeerChange::Peer(Left, a));
    assert_eq!(names(&map), ["b"]);
    assert!(!map.needs_fetch());
}

#[test]
fn old_news_is_dropped_and_a_base_beyond_ours_asks_for_the_map() {
    let mut map = PeerMap::default();
    let (a, b) = (peer(1, "a", 1), peer(2, "b", 2));
    map.apply(&snapshot(std::slice::from_ref(&a), false, 5));
    assert_eq!(map.apply(&step(Left, &a, 4, 5)), PeerChange::None);
    assert_eq!(names(&map), ["a"]);
    assert_eq!(map.apply(&step(Joined, &b, 7, 8)), PeerChange::Peer(Joined, b.clone()));
    assert!(map.needs_fetch());
    assert_eq!(map.page(&page(&[b], None, 8), true), PeerChange::Replaced(vec![(Left, a)]));
    assert!(!map.needs_fetch());
}

#[test]
fn a_replaced_map_tells_who_left_joined_and_changed() {
    let mut map = PeerMap::default();
    let (gone, kept, old, was) = (peer(1, "gone", 1), peer(2, "kept", 1), peer(3, "old", 1), peer(4, "x", 1));
    map.apply(&snapshot(&[gone.clone(), kept.clone(), old, was.clone()], false, 5));
    let (new, is, came) = (peer(3, "new", 1), peer(4, "x", 2), peer(5, "came", 2));
    let change = map.apply(&snapshot(&[kept, new.clone(), is.clone(), came.clone()], false, 9));
    let found = vec![(Left, gone), (Left, was), (Updated, new), (Joined, is), (Joined, came)];
    assert_eq!(change, PeerChange::Replaced(found));
}

#[test]
fn a_part_of_the_map_is_compared_when_the_rest_is_read() {
    let mut map = PeerMap::default();
    let (a, b, c) = (peer(1, "a", 1), peer(2, "b", 1), peer(3, "c", 1));
    let nothing = PeerChange::Replaced(Vec::new());
    let first = snapshot(std::slice::from_ref(&a), true, 5);
    assert_eq!(map.apply(&first), nothing);
    assert!(map.needs_fetch());
    assert_eq!(map.page(&page(&[a.clone(), b.clone()], None, 5), true), nothing, "they were there before us");
    assert_eq!(map.apply(&snapshot(std::slice::from_ref(&a), true, 9)), nothing, "b need not have left");
    let change = map.page(&page(&[a, c.clone()], None, 9), true);
    assert_eq!(change, PeerChange::Replaced(vec![(Left, b), (Joined, c)]));
}

#[test]
fn a_step_between_the_pages_of_a_refetch_is_told_once_and_kept() {
    let mut map = PeerMap::default();
    let (a, b, c, d) = (peer(1, "a", 1), peer(2, "b", 1), peer(3, "c", 1), peer(4, "d", 1));
    map.apply(&snapshot(&[a.clone(), b.clone(), c.clone()], false, 5));
    let resync = event(EventBody::Resync(Resync { what: vec![ResyncWhat::Presence] }));
    assert_eq!(map.apply(&resync), PeerChange::None);
    assert!(map.needs_fetch());
    assert_eq!(map.page(&page(&[a.clone(), b], Some(2), 8), true), PeerChange::None);
    assert_eq!(map.apply(&step(Left, &a, 8, 9)), PeerChange::Peer(Left, a.clone()));
    // The second page is read at version 10, in which `d` has joined and `c` has left.
    let change = map.page(&page(std::slice::from_ref(&d), None, 10), false);
    assert_eq!(change, PeerChange::Replaced(vec![(Left, c), (Joined, d.clone())]));
    assert_eq!(map.apply(&step(Joined, &d, 9, 10)), PeerChange::None, "told by the difference already");
    assert_eq!(names(&map), ["b", "d"]);
}
