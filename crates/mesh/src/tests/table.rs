//! The table of lease states, row by row, with what a watching peer sees of each.

use tenure_proto::hello::{LeaseFate, Replay, ResumeOutcome};

use crate::effect::{Effect, Note};
use crate::input::{Call, Input};
use crate::tests::world::{World, knock, process, session};

#[test]
fn the_first_hello_begins_a_lease_and_peers_see_joined() {
    let mut world = World::new();
    let watcher = world.join(1);
    let conn = world.join(2);
    let answer = world.answer(conn);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::New, ResumeOutcome::New));
    assert_eq!((answer.replay, answer.next_seq), (Replay::Resync, 1));
    assert_ne!(answer.lease_id, world.answer(watcher).lease_id);
    assert_eq!(world.seen(watcher), ["1 joined s2"]);
    assert!(world.has_note(|n| matches!(n, Note::IdentityIssued { client, .. } if client == "test/1")));
}

#[test]
fn its_own_joined_is_in_the_snapshot_and_not_an_event() {
    let mut world = World::new();
    world.join(1);
    let conn = world.join(2);
    let snapshot = world.answer(conn).snapshot.as_ref().unwrap();
    let sessions: Vec<_> = snapshot.presence.iter().map(|peer| peer.get().session).collect();
    assert_eq!(sessions, [session(1), session(2)]);
    assert_eq!(world.answer(conn).state_version.presence.get(), 2);
    assert!(world.seen(conn).is_empty());
    world.join(3);
    assert_eq!(world.seen(conn), ["1 joined s3"], "and nothing was skipped");
}

#[test]
fn a_socket_that_ends_without_bye_is_nothing_a_peer_can_see() {
    for by_client in [true, false] {
        let mut world = World::new();
        let (watcher, conn) = (world.join(1), world.join(2));
        world.seen(watcher);
        let version = world.mesh.presence_version();
        world.close(conn, by_client);
        world.advance(89_000);
        assert_eq!(world.mesh.presence_version(), version);
        assert_eq!((world.mesh.sessions(), world.mesh.online()), (2, 1));
        assert!(world.seen(watcher).iter().all(|event| event.ends_with("tick")));
        assert!(world.has_note(|n| matches!(n, Note::GraceEntered { reason: "closed", .. })));
    }
}

#[test]
fn silence_closes_the_socket_as_stale_and_is_nothing_a_peer_can_see() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.socket_mut(conn).lively = false;
    world.advance(75_000);
    assert_eq!(world.closed(conn), Some(("stale", None)));
    assert_eq!((world.mesh.sessions(), world.mesh.online()), (2, 1));
    assert_eq!(world.mesh.presence_version(), 2);
    assert!(world.has_note(|n| matches!(n, Note::GraceEntered { reason: "stale", .. })));
}

#[test]
fn in_grace_the_key_alone_brings_the_session_back_unseen() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.close(conn, false);
    world.advance(60_000);
    let again = world.enter(knock(2));
    let answer = world.answer(again);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::Kept, ResumeOutcome::New));
    assert_eq!(answer.lease_id, world.answer(conn).lease_id);
    assert_eq!(answer.replay, Replay::Resync, "without a token nobody knows what it has");
    assert!(answer.snapshot.is_some());
    assert_eq!(world.mesh.presence_version(), 2);
}

#[test]
fn in_grace_the_token_brings_the_event_stream_back_as_well() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.join(3);
    let again = world.enter(world.resume(conn, 0));
    let answer = world.answer(again);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::Kept, ResumeOutcome::Resumed));
    assert_eq!((answer.replay, answer.next_seq), (Replay::Complete, 1));
    assert_eq!(answer.epoch, world.answer(conn).epoch);
    assert!(answer.snapshot.is_none());
    assert_eq!(world.seen(again), ["1 joined s3"], "what happened meanwhile");
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 joined s3"]);
}

#[test]
fn every_token_of_a_living_lease_is_good() {
    let mut world = World::new();
    let first = world.join(2);
    let second = world.enter(world.resume(first, 0));
    world.enter(world.resume(second, 0));
    let old = world.enter(world.resume(first, 0));
    assert_eq!(world.answer(old).outcome, ResumeOutcome::Resumed, "a lost hello answer costs nothing");
}

#[test]
fn another_hello_replaces_the_socket_and_names_the_newcomer() {
    let mut world = World::new();
    let (watcher, old) = (world.join(1), world.join(2));
    world.seen(watcher);
    let new = world.enter(process(2, "newcomer"));
    assert_eq!(world.closed(old), Some(("session_replaced", None)));
    let closing = world.socket(old).closing.as_ref().unwrap();
    assert_eq!(closing.instance_id.as_ref().map(|id| id.as_str()), Some("newcomer"));
    assert!(world.is_open(new));
    assert_eq!(world.answer(new).lease, LeaseFate::Kept);
    assert!(world.seen(watcher).is_empty());
    assert!(world.has_note(|n| matches!(n, Note::SessionReplaced { other_process: true, .. })));
}

#[test]
fn nobody_comes_back_and_peers_see_left_once() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, true);
    world.seen(watcher);
    world.advance(89_999);
    assert_eq!(world.mesh.sessions(), 2, "to the last millisecond");
    world.seen(watcher);
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 1);
    let events = world.seen(watcher);
    assert_eq!(events.iter().filter(|event| event.contains("s2")).count(), 1, "{events:?}");
    assert!(events.last().unwrap().ends_with("left s2"));
    world.advance(300_000);
    assert!(!world.seen(watcher).iter().any(|event| event.contains("s2")));
    assert!(world.has_note(|n| matches!(n, Note::GraceExpired { .. })));
    assert!(world.has_note(|n| matches!(n, Note::LeaseEvicted { reason: "expired", .. })));
}

#[test]
fn the_lease_runs_from_the_last_proof_of_life_and_a_broken_socket_is_none() {
    for (by_client, left) in [(true, 90_000), (false, 80_000)] {
        let mut world = World::new();
        let conn = world.join(2);
        world.advance(10_000);
        world.close(conn, by_client);
        world.advance(left - 1);
        assert_eq!(world.mesh.sessions(), 1, "closed by the client: {by_client}");
        world.advance(1);
        assert_eq!(world.mesh.sessions(), 0, "closed by the client: {by_client}");
    }
}

#[test]
fn a_stale_socket_leaves_what_is_left_of_the_lease() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    world.advance(89_999);
    assert_eq!((world.mesh.sessions(), world.mesh.online()), (1, 0));
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 0, "going stale proves nothing");
}

#[test]
fn bye_is_the_same_teardown_at_once() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    let outcome = world.bye(conn).unwrap();
    assert!(outcome.is_ok());
    assert_eq!(world.closed(conn), Some(("bye", None)));
    assert_eq!(world.seen(watcher), ["2 left s2"]);
    assert_eq!(world.mesh.sessions(), 1);
    assert!(world.has_note(|n| matches!(n, Note::LeaseEvicted { reason: "bye", .. })));
    assert!(!world.has_note(|n| matches!(n, Note::GraceEntered { .. })), "it was no break");
}

#[test]
fn who_comes_back_after_the_end_is_new_and_its_token_is_not_found() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.bye(conn);
    let again = world.enter(world.resume(conn, 0));
    let answer = world.answer(again);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::New, ResumeOutcome::ResumeNotFound));
    assert_eq!((answer.reason, answer.replay), (Some("lease_ended"), Replay::Resync));
    assert_ne!(answer.lease_id, world.answer(conn).lease_id);
    assert_ne!(answer.epoch, world.answer(conn).epoch);
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 left s2", "3 joined s2"]);
    assert!(world.has_note(|n| matches!(n, Note::ResumeRejected { reason: "lease_ended", .. })));
}

#[test]
fn a_break_up_to_the_lease_less_one_ping_is_invisible() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    // The worst moment: the next ping was about to be answered.
    world.advance(29_999);
    world.socket_mut(conn).lively = false;
    world.advance(59_999);
    let again = world.enter(world.resume_all(conn));
    assert_eq!(world.answer(again).lease, LeaseFate::Kept);
    assert!(!world.seen(watcher).iter().any(|event| event.contains("left")));
}

#[test]
fn what_comes_from_a_socket_that_is_not_current_has_no_effect() {
    let mut world = World::new();
    let (watcher, old) = (world.join(1), world.join(2));
    let new = world.enter(world.resume(old, 0));
    world.seen(watcher);
    world.socket_mut(new).lively = false;
    world.advance(50_000);
    let (now, at) = (world.now(), world.now().at);
    world.mesh.handle(now, Input::Alive { conn: old, at });
    world.mesh.handle(now, Input::Flushed { conn: old });
    world.mesh.handle(now, Input::Closed { conn: old, at, by_client: true });
    world.mesh.flush();
    assert!(world.mesh.poll_effect().is_none());
    assert!(world.is_open(new) && world.mesh.online() == 2);
    world.advance(25_000);
    assert_eq!(world.closed(new), Some(("stale", None)), "the old socket's frame proved nothing");
}

#[test]
fn a_request_on_a_socket_that_lost_its_session_is_told_so() {
    let mut world = World::new();
    let old = world.join(2);
    let new = world.enter(world.resume(old, 0));
    for call in [Call::Bye, Call::Ping] {
        let request = "late".parse().unwrap();
        let input = Input::Request { conn: old, at: world.now().at, request, call };
        world.mesh.handle(world.now(), input);
        let effects: Vec<Effect> = std::iter::from_fn(|| world.mesh.poll_effect()).collect();
        let [Effect::Respond { outcome: Err(error), .. }] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(error.code, tenure_proto::ErrorCode::LeaseExpired);
    }
    assert!(world.is_open(new), "an old socket's bye is not the session's");
    assert_eq!(world.mesh.sessions(), 1);
}
