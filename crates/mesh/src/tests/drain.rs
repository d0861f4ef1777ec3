//! Stopping without surprise.

use tenure_proto::event::EventBody;
use tenure_proto::hello::{HealthStatus, LeaseFate};
use tenure_proto::peer::ProfilePatch;
use tenure_proto::{ConnId, ErrorCode};

use crate::input::Call;
use crate::tests::world::{Disk, Frame, World, knock, session};

fn events(world: &mut World, conn: ConnId) -> Vec<EventBody> {
    let frames = std::mem::take(&mut world.socket_mut(conn).frames);
    frames.into_iter().filter_map(|f| if let Frame::Event(_, body) = f { Some(body) } else { None }).collect()
}

#[test]
fn everybody_is_told_the_truth_and_then_closed() {
    for (restart_in_ms, reason, at_least) in [(Some(5_000), "restart", 5_000), (None, "going_away", 250)] {
        let mut world = World::new();
        let conns: Vec<_> = (1..=3).map(|n| world.join(n)).collect();
        for conn in &conns {
            world.seen(*conn);
        }
        world.drain(restart_in_ms, 10_000);
        assert!(world.mesh.is_draining());
        for conn in conns {
            let told = events(&mut world, conn);
            let [EventBody::Health(health), EventBody::Shutdown(shutdown)] = told.as_slice() else {
                panic!("{told:?}")
            };
            assert_eq!(health.status, HealthStatus::Draining);
            assert_eq!((shutdown.reason.as_str(), shutdown.deadline_ms.get()), ("upgrade", 10_000));
            assert_eq!(shutdown.restart_expected_ms.map(|ms| ms.get()), restart_in_ms);
            let (closed, retry_after_ms) = world.closed(conn).expect("closed when it has everything");
            assert_eq!((closed, retry_after_ms), (reason, Some(shutdown.reconnect_after_ms.get())));
            assert!((at_least..=at_least + 2_000).contains(&shutdown.reconnect_after_ms.get()));
        }
        assert_eq!((world.drained, world.mesh.sessions()), (1, 3), "leases outlive the broker");
        world.advance(60_000);
        assert_eq!(world.drained, 1, "exactly once");
    }
}

#[test]
fn a_broker_with_nobody_on_it_is_drained_at_once() {
    let mut world = World::new();
    world.drain(None, 10_000);
    assert_eq!(world.drained, 1);
    world.drain(None, 10_000);
    assert_eq!(world.drained, 1);
}

#[test]
fn a_new_session_is_turned_away_and_a_good_token_is_not() {
    let mut world = World::new();
    let (busy, gone) = (world.join(1), world.join(2));
    world.close(gone, false);
    world.socket_mut(busy).flushes = false;
    world.drain(Some(2_000), 10_000);
    let new = world.hello(knock(3));
    assert_eq!(world.refusal(new), (ErrorCode::Draining, "draining", Some(2_000)), "the truth");
    let no_token = world.hello(knock(2));
    assert_eq!(world.refusal(no_token).0, ErrorCode::Draining);

    world.seen(busy);
    world.advance(500);
    let back = world.enter(world.resume_all(gone));
    assert_eq!(world.answer(back).lease, LeaseFate::Kept);
    let told = events(&mut world, back);
    let [EventBody::Health(_), EventBody::Shutdown(shutdown)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(
        shutdown.restart_expected_ms.map(|ms| ms.get()),
        Some(1_500),
        "it is told as well, and the truth"
    );
    assert_eq!(shutdown.deadline_ms.get(), 9_500);
    world.advance(249);
    assert!(world.is_open(back), "it may have something to say");
    world.advance(1);
    assert_eq!(world.closed(back), Some(("restart", Some(1_250))));
    assert_eq!(world.drained, 0, "one is still here");
    world.unblock(busy);
    assert_eq!(world.closed(busy).map(|c| c.0), Some("restart"));
    assert_eq!(world.drained, 1);
}

#[test]
fn who_comes_back_may_ask_and_is_not_waited_for() {
    let mut world = World::new();
    let (busy, gone) = (world.join(1), world.join(2));
    world.close(gone, false);
    world.socket_mut(busy).flushes = false;
    world.drain(None, 10_000);
    let back = world.enter(world.resume_all(gone));
    assert!(matches!(world.ask(back, Call::Ping), Some(Ok(_))));
    assert!(world.is_open(back));
    world.unblock(busy);
    assert_eq!(world.drained, 1);
    assert_eq!(world.closed(back).map(|c| c.0), Some("going_away"));
}

#[test]
fn the_deadline_closes_who_takes_nothing() {
    let mut world = World::new();
    let conn = world.join(1);
    world.socket_mut(conn).flushes = false;
    world.drain(Some(2_000), 4_000);
    world.advance(3_999);
    assert!(world.is_open(conn) && world.drained == 0);
    world.advance(1);
    assert_eq!(world.closed(conn).map(|c| c.0), Some("restart"));
    assert_eq!(world.drained, 1);
}

#[test]
fn a_session_that_hears_of_others_last_moves_is_closed_all_the_same() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.socket_mut(watcher).flushes = false;
    world.socket_mut(conn).flushes = false;
    world.drain(None, 8_000);
    let patch = ProfilePatch { summary: Some("stopping".into()), ..Default::default() };
    world.ask(conn, Call::ProfileSet(Box::new(patch)));
    world.unblock(watcher);
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 health", "3 shutdown", "4 updated s2"]);
    assert_eq!(world.closed(watcher).map(|c| c.0), Some("going_away"));
}

#[test]
fn a_hello_that_waits_for_the_store_is_waited_for() {
    let mut world = World::new();
    world.disk(Disk::Holds);
    let conn = world.hello(knock(1));
    world.drain(None, 8_000);
    assert_eq!(world.drained, 0, "a socket is open");
    world.disk(Disk::Commits);
    assert_eq!(world.answer(conn).lease, LeaseFate::New);
    assert_eq!(world.seen(conn), ["1 health", "2 shutdown"]);
    assert_eq!((world.closed(conn).map(|c| c.0), world.drained), (Some("going_away"), 1));
}

#[test]
fn a_hello_that_the_store_keeps_waiting_is_told_at_the_deadline() {
    let mut world = World::new();
    world.disk(Disk::Holds);
    let conn = world.hello(knock(1));
    world.drain(None, 8_000);
    world.advance(8_000);
    assert_eq!(world.refusal(conn), (ErrorCode::Draining, "draining", Some(1_000)));
    assert_eq!(world.drained, 1);
}

#[test]
fn a_bye_that_waits_for_the_store_is_waited_for() {
    let mut world = World::new();
    let conn = world.join(1);
    world.disk(Disk::Holds);
    world.bye(conn);
    world.drain(None, 8_000);
    assert_eq!(world.drained, 0);
    world.disk(Disk::Commits);
    assert_eq!((world.closed(conn).map(|c| c.0), world.drained), (Some("bye"), 1));
}

#[test]
fn what_changed_is_stored_before_the_end() {
    let mut world = World::new();
    let conn = world.join(1);
    let patch = ProfilePatch { summary: Some("last words".into()), ..Default::default() };
    world.ask(conn, Call::ProfileSet(Box::new(patch)));
    world.drain(None, 8_000);
    let (record, _) = &world.store.leases[&session(1)];
    assert_eq!(record.profile.summary.as_deref(), Some("last words"));
}

#[test]
fn a_restart_after_a_drain_is_no_blink() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    world.drain(Some(1_000), 5_000);
    world.restart(0);
    let watcher = world.enter(world.resume_all(one));
    let version = world.mesh.presence_version();
    let again = world.enter(world.resume_all(two));
    assert_eq!(world.answer(again).lease, LeaseFate::Kept);
    assert_eq!(world.mesh.presence_version(), version);
    assert!(world.seen(watcher).is_empty());
}
