//! What becomes of messages on their way when a broker stops in good order.

use tenure_mesh::input::Call;
use tenure_mesh::{Input, MeshConfig};
use tenure_proto::error::ErrorCode;
use tenure_proto::event::EventBody;
use tenure_proto::ids::ConnId;

use super::words::*;
use super::world::{Disk, Engine, World};

fn worlds() -> [World; 2] {
    [Engine::memory(), Engine::sqlite()].map(|engine| World::new(engine, MeshConfig::default()))
}

fn stop(w: &mut World) {
    let reason = "upgrade".to_owned();
    w.tell(Input::Drain { reason, restart_in_ms: Some(5_000), deadline_ms: 3_000 });
}

fn reason(w: &World, conn: ConnId) -> Option<&str> {
    w.socket(conn).closing.as_ref().map(|closing| closing.reason.as_str())
}

#[test]
fn what_is_in_hand_can_be_settled_until_the_deadline_and_nothing_more_is_handed_out() {
    for mut w in worlds() {
        let (a, b) = (w.join(1), w.join(2));
        w.post(a, letter(to(2), "first"));
        w.post(a, letter(to(2), "second"));
        w.sockets.get_mut(&a).unwrap().flushes = false;
        stop(&mut w);
        w.post(a, letter(to(2), "third"));
        w.pass(1_000);
        let pushes = w.pushes(b);
        assert_eq!((bodies(&pushes), reason(&w, b)), (vec!["first".into(), "second".into()], None));
        w.ack_all(b, &pushes[..1]);
        assert_eq!(reason(&w, b), None, "it has another in hand");
        w.ack_all(b, &pushes[1..]);
        assert_eq!(reason(&w, b), Some("restart"));
        w.crash(0);
        let b = w.resume(2, b);
        assert_eq!(w.drain(b), ["third"], "what was settled during the drain is on disk");
    }
}

/// A subscription that was made during a drain was handed nothing, and kept on disk for nobody.
#[test]
fn nothing_new_is_subscribed_during_a_drain_and_sends_are_still_accepted() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    let known = w.subscribe(b, subscription("known", None));
    w.post(a, letter(to(2), "slow"));
    assert_eq!(w.pushes(b).len(), 1);
    stop(&mut w);
    let refused = w.call(b, Call::Subscribe(subscription("new", Some("crew"))));
    assert_eq!(code(&refused), ErrorCode::Draining);
    let error = refused.unwrap_err();
    assert!(error.retryable && error.retry_after_ms.is_some_and(|ms| ms.get() >= 5_000), "{error:?}");
    assert_eq!(w.subscribe(b, subscription("known", None)), known, "what it has it has");
    w.post(b, letter(topic("known"), "late"));
    w.pass(2_900);
    w.post(b, letter(topic("known"), "later"));
}

#[test]
fn a_hurry_and_no_time_at_all_tell_everybody_what_happens() {
    for hurried in [true, false] {
        let mut w = World::new(Engine::memory(), MeshConfig::default());
        let (a, b) = (w.join(1), w.join(2));
        w.post(a, letter(to(2), "slow"));
        assert_eq!(w.pushes(b).len(), 1);
        if hurried {
            stop(&mut w);
            w.pass(100);
            w.tell(Input::Hurry);
        } else {
            w.tell(Input::Drain { reason: "now".to_owned(), restart_in_ms: None, deadline_ms: 0 });
        }
        w.pass(250);
        assert_eq!(reason(&w, b), Some(if hurried { "restart" } else { "going_away" }));
        let shutdown = |event: &EventBody| matches!(event, EventBody::Shutdown(_));
        assert!(w.socket(b).events.iter().any(shutdown), "and was told before");
    }
}

#[test]
fn who_settles_nothing_is_closed_at_the_deadline_and_keeps_it() {
    for mut w in worlds() {
        let (a, b) = (w.join(1), w.join(2));
        w.post(a, letter(to(2), "slow"));
        assert_eq!(w.pushes(b).len(), 1);
        stop(&mut w);
        assert_eq!((reason(&w, a), reason(&w, b)), (Some("restart"), None));
        w.pass(2_999);
        assert_eq!(reason(&w, b), None);
        w.pass(1);
        assert_eq!(reason(&w, b), Some("restart"));
        let wait = w.socket(b).closing.as_ref().and_then(|closing| closing.retry_after_ms);
        assert_eq!(wait.map(|ms| ms.get()), Some(2_000), "three of the five seconds are over");
        w.crash(usize::MAX);
        let b = w.resume(2, b);
        assert_eq!(w.drain(b), ["slow"]);
    }
}

#[test]
fn a_request_that_was_read_is_answered_before_its_socket_closes() {
    for mut w in worlds() {
        let a = w.join(1);
        w.set_disk(Disk::Holds);
        let request = w.ask_send(a, letter(to(1), "note to self"));
        stop(&mut w);
        assert_eq!(reason(&w, a), None, "its send waits for the disk");
        w.set_disk(Disk::Commits);
        w.commit(usize::MAX);
        assert!(w.answered(a, &request).is_some_and(|outcome| outcome.is_ok()));
        assert_eq!(reason(&w, a), Some("restart"));
        w.crash(0);
        let a = w.resume(1, a);
        assert_eq!(w.drain(a), ["note to self"]);
    }
}

#[test]
fn what_settles_by_being_written_holds_nobody_up() {
    for mut w in worlds() {
        let (a, b) = (w.join(1), w.join(2));
        let auto = tenure_proto::subscribe::AckMode::Auto;
        let params =
            tenure_proto::subscribe::SubscribeParams { ack_mode: auto, ..subscription("news", None) };
        w.subscribe(b, params);
        w.sockets.get_mut(&b).unwrap().flushes = false;
        w.post(a, letter(topic("news"), "extra"));
        stop(&mut w);
        assert_eq!(reason(&w, b), None, "it has not left");
        w.unblock(b);
        assert_eq!((bodies(&w.pushes(b)), reason(&w, b)), (vec!["extra".to_owned()], Some("restart")));
    }
}
