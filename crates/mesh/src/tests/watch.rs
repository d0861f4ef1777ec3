//! Watchdogs: pings, ticks, staleness, slow readers, and a broker that was itself asleep.

use tenure_proto::hello::LeaseFate;
use tenure_proto::ids::ConnId;
use tenure_proto::limits::SLOW_CONSUMER_MS;
use tenure_proto::peer::ProfilePatch;

use crate::config::MeshConfig;
use crate::effect::Note;
use crate::input::{Call, Input};
use crate::tests::world::{World, knock};

#[test]
fn a_socket_is_stale_at_exactly_stale_after() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    world.advance(10_000);
    world.alive(conn);
    world.advance(74_999);
    assert!(world.is_open(conn));
    world.advance(1);
    assert_eq!(world.closed(conn), Some(("stale", None)));
}

#[test]
fn any_frame_keeps_a_socket_fresh() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    for _ in 0..20 {
        world.advance(74_000);
        world.alive(conn);
    }
    assert!(world.is_open(conn));
}

#[test]
fn a_ping_goes_out_every_interval() {
    let mut world = World::new();
    let conn = world.join(2);
    world.advance(29_999);
    assert_eq!(world.pings(conn), 0);
    world.advance(1);
    assert_eq!(world.pings(conn), 1);
    world.advance(300_000);
    assert_eq!(world.pings(conn), 10);
    world.close(conn, true);
    world.advance(60_000);
    assert_eq!(world.pings(conn), 0);
}

#[test]
fn a_tick_goes_out_only_after_a_tick_interval_of_nothing() {
    let mut world = World::new();
    let conn = world.join(1);
    world.advance(20_000);
    world.join(2);
    assert_eq!(world.seen(conn), ["1 joined s2"]);
    world.advance(29_999);
    assert!(world.seen(conn).is_empty(), "something was sent in between");
    world.advance(1);
    assert_eq!(world.seen(conn), ["2 tick"]);
    world.advance(90_000);
    assert_eq!(world.seen(conn), ["3 tick", "4 tick", "5 tick"]);
}

#[test]
fn a_tick_is_never_in_the_replay_but_keeps_its_number() {
    let mut world = World::new();
    let conn = world.join(1);
    world.advance(30_000);
    world.join(2);
    assert_eq!(world.seen(conn), ["1 tick", "2 joined s2"]);
    let again = world.enter(world.resume(conn, 0));
    assert_eq!(world.seen(again), ["1 joined s2"], "the tick was lost, and nobody misses it");
    let again = world.enter(world.resume(again, 1));
    assert!(world.seen(again).is_empty());
}

#[test]
fn a_socket_that_takes_nothing_for_ten_seconds_is_a_slow_consumer() {
    let mut world = World::new();
    let (slow, other) = (world.join(1), world.join(3));
    world.seen(slow);
    world.socket_mut(slow).flushes = false;
    world.join(2);
    world.advance(SLOW_CONSUMER_MS - 1);
    assert!(world.is_open(slow));
    world.advance(1);
    assert_eq!(world.closed(slow), Some(("slow_consumer", None)));
    assert!(world.is_open(other));
    let again = world.enter(world.resume(slow, 1));
    assert_eq!(world.answer(again).lease, LeaseFate::Kept, "in grace like any other");
    assert_eq!(world.seen(again), ["2 joined s2"]);
}

#[test]
fn a_socket_that_takes_some_of_it_is_slow_and_not_stuck() {
    let mut world = World::new();
    let slow = world.join(1);
    world.socket_mut(slow).flushes = false;
    world.join(2);
    // A megabyte at a megabit a second, many times over: it is never done, and always reading.
    for _ in 0..30 {
        world.advance(SLOW_CONSUMER_MS - 1);
        world.input(Input::Taken { conn: slow });
    }
    assert!(world.is_open(slow));
    assert_eq!(world.seen(slow), ["1 joined s2"], "and still holds one batch only");
    world.advance(SLOW_CONSUMER_MS - 1);
    assert!(world.is_open(slow));
    world.advance(1);
    assert_eq!(world.closed(slow), Some(("slow_consumer", None)), "it has stopped to read");
}

#[test]
fn what_a_socket_without_a_batch_takes_changes_nothing() {
    let mut world = World::new();
    let conn = world.join(1);
    world.input(Input::Taken { conn });
    world.input(Input::Taken { conn: ConnId(99) });
    world.join(2);
    assert_eq!(world.seen(conn), ["1 joined s2"]);
}

#[test]
fn a_slow_reader_costs_only_itself_and_finds_changes_coalesced() {
    let mut world = World::new();
    let (slow, quick) = (world.join(1), world.join(9));
    world.seen(slow);
    world.socket_mut(slow).flushes = false;
    let conn = world.join(2);
    for n in 0..5 {
        let patch = ProfilePatch { summary: Some(n.to_string()), ..ProfilePatch::default() };
        world.ask(conn, Call::ProfileSet(Box::new(patch)));
    }
    assert_eq!(world.seen(quick).len(), 6);
    assert_eq!(world.seen(slow), ["2 joined s2"], "one batch is on its way, the rest waits");
    world.unblock(slow);
    assert_eq!(world.seen(slow), ["3 updated s2"]);
}

#[test]
fn no_tick_while_a_batch_is_on_its_way() {
    let config = MeshConfig { tick_interval_ms: 2_000, ..MeshConfig::default() };
    let mut world = World::with(config);
    let conn = world.join(1);
    world.socket_mut(conn).flushes = false;
    world.join(2);
    world.advance(8_000);
    assert_eq!(world.seen(conn), ["1 joined s2"]);
    world.unblock(conn);
    world.advance(2_000);
    assert_eq!(world.seen(conn), ["2 tick"]);
}

#[test]
fn a_broker_that_was_frozen_blames_nobody() {
    let mut world = World::new();
    let (online, silent, gone) = (world.join(1), world.join(2), world.join(3));
    world.socket_mut(silent).lively = false;
    world.advance(40_000);
    world.alive(silent);
    world.close(gone, true);
    world.advance(20_000);
    let version = world.mesh.presence_version();
    world.freeze(60_000);
    assert!(world.has_note(|n| matches!(n, Note::Frozen { ms: 59_000..=60_000 })));
    assert!(world.is_open(online) && world.is_open(silent), "nothing is stale");
    assert_eq!((world.mesh.sessions(), world.mesh.presence_version()), (3, version), "nobody is evicted");
    world.advance(53_999);
    assert!(world.is_open(silent), "75 s of silence, counted while awake");
    world.advance(2_000);
    assert_eq!(world.closed(silent).map(|c| c.0), Some("stale"));
    world.advance(13_000);
    assert_eq!(world.mesh.sessions(), 3, "90 s of absence, counted while awake");
    world.advance(2_000);
    assert_eq!(world.mesh.sessions(), 1, "and then they count");
}

#[test]
fn even_an_hour_of_freezes_ends_no_lease() {
    let mut world = World::new();
    let conn = world.join(2);
    world.close(conn, false);
    for _ in 0..60 {
        world.freeze(60_000);
        world.advance(500);
    }
    assert_eq!(world.mesh.sessions(), 1);
    world.enter(knock(2));
}

#[test]
fn a_little_late_is_not_frozen() {
    let mut world = World::new();
    let conn = world.join(2);
    world.close(conn, true);
    for _ in 0..15 {
        world.freeze(6_000);
    }
    assert_eq!(world.mesh.sessions(), 0, "six seconds from look to look is late, and time all the same");
    assert!(!world.has_note(|n| matches!(n, Note::Frozen { .. })));
}

#[test]
fn what_was_heard_before_a_freeze_still_counts_after_it() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    world.advance(50_000);
    // Read from the socket now, handed to the mesh when it wakes.
    let heard = world.now().at;
    world.freeze(120_000);
    world.input(Input::Alive { conn, at: heard });
    world.advance(74_000 - 1_000);
    assert!(world.is_open(conn), "heard 74 s ago");
    world.advance(3_000);
    assert_eq!(world.closed(conn).map(|c| c.0), Some("stale"));
}
