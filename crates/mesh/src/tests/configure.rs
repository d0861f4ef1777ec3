//! Other numbers while the mesh runs: what was promised is kept, everything else holds at once.

use tenure_proto::ErrorCode;
use tenure_proto::hello::LeaseFate;

use crate::config::MeshConfig;
use crate::effect::Note;
use crate::tests::world::{World, knock};

#[test]
fn a_lease_keeps_what_its_client_was_told_until_its_next_hello() {
    let mut world = World::new();
    let (watcher, away) = (world.join(1), world.join(2));
    world.close(away, true);
    world.configure(&MeshConfig::with_lease(9_000));
    assert!(world.has_note(|note| *note == Note::Configured));
    world.advance(89_999);
    assert_eq!(world.mesh.sessions(), 2, "it was promised 90 s");
    let back = world.enter(world.resume(away, 0));
    assert_eq!(world.answer(back).lease, LeaseFate::Kept);
    assert_eq!(world.answer(back).config.lease_ttl_ms, 9_000, "and now it is told 9");
    world.close(back, true);
    world.advance(8_999);
    assert_eq!(world.mesh.sessions(), 2);
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 1);
    assert!(world.is_open(watcher), "who is here and was told of 90 s is not stale after 9");
}

#[test]
fn a_lease_found_at_a_start_lives_as_long_as_operators_have_set() {
    let mut world = World::with(MeshConfig::with_lease(9_000));
    world.join(1);
    let set = crate::access::setting::all(&MeshConfig::with_lease(60_000));
    world.remembers.settings = set.into_iter().filter(|(name, _)| name.ends_with("Ms")).collect();
    world.restart(usize::MAX);
    world.advance(59_000);
    assert_eq!(world.mesh.sessions(), 1, "not only as long as the broker was started with");
    world.advance(2_000);
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn a_socket_is_watched_as_its_client_expects() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    world.configure(&MeshConfig::with_lease(9_000));
    world.advance(74_999);
    assert!(world.is_open(conn), "its client may be silent for 75 s");
    assert!(world.pings(conn) >= 24, "and is asked every 3 s from here on");
    world.advance(1);
    assert_eq!(world.closed(conn), Some(("stale", None)));
}

#[test]
fn longer_leases_are_longer_at_once_and_signs_of_life_come_as_often_as_before() {
    let mut world = World::with(MeshConfig::with_lease(9_000));
    let (away, here) = (world.join(1), world.join(2));
    world.close(away, true);
    world.configure(&MeshConfig::default());
    world.advance(60_000);
    assert_eq!(world.mesh.sessions(), 2);
    assert_eq!(world.pings(here), 20, "the client still expects one every 3 s");
    world.advance(30_000);
    assert_eq!(world.mesh.sessions(), 1);
}

#[test]
fn fewer_sessions_evict_nobody() {
    let mut world = World::new();
    for n in 1..=3 {
        world.join(n);
    }
    world.configure(&MeshConfig { max_sessions: 1, ..MeshConfig::default() });
    assert_eq!(world.mesh.online(), 3);
    let fourth = world.hello(knock(4));
    assert_eq!(world.refusal(fourth), (ErrorCode::Busy, "busy", Some(1_000)));
}

#[test]
fn numbers_that_contradict_each_other_change_nothing() {
    let mut world = World::new();
    let bad = MeshConfig { stale_after_ms: 95_000, lease_ttl_ms: 90_000, ..MeshConfig::default() };
    let refused = world.configure(&bad).unwrap().unwrap_err();
    assert!(refused.message.contains("stale-after"), "{refused:?}");
    let conn = world.join(2);
    assert_eq!(*world.answer(conn).config, MeshConfig::default());
}

#[test]
fn a_freeze_is_measured_by_the_numbers_that_hold() {
    let mut world = World::new();
    world.configure(&MeshConfig::with_lease(1_000));
    let conn = world.join(2);
    world.close(conn, true);
    world.freeze(5_000);
    assert!(world.has_note(|note| matches!(note, Note::Frozen { .. })), "half a second is a freeze now");
    assert_eq!(world.mesh.sessions(), 1);
    world.advance(1_000);
    assert_eq!(world.mesh.sessions(), 0);
}
