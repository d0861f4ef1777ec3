//! The session itself: dialling, resuming, requests, the end.

use serde_json::json;
use tenure_proto::canonical::{Attested, Proof};
use tenure_proto::close::{Action, Closing, Reason};
use tenure_proto::hello::HelloParams;
use tenure_proto::method::{Empty, Method};
use tenure_proto::peer::{ProfilePatch, Status};

use super::*;

#[test]
fn the_hello_proves_the_session_and_carries_a_fresh_attestation() {
    let mut world = World::new();
    let sock = World::dialled(&world.take());
    let hello = world.challenge(sock);
    let hello: HelloParams = serde_json::from_value(hello["params"].clone()).unwrap();
    let HelloParams { mesh, member, session, .. } = &hello;
    let proof = Proof { mesh, member, session, nonce: "n", broker: "b", host: "localhost:7400" };
    assert!(proof.verify(&hello.proof));
    let attestation = hello.attestation.as_ref().unwrap();
    let expires_at = attestation.expires_at.get();
    assert_eq!(expires_at, 1_700_000_500_000 + 600_000, "minted on the broker's clock");
    assert!(Attested { mesh, member, session, expires_at, caps: None }.verify(&attestation.signature));
    assert_eq!(hello.resume, None);
}

#[test]
fn a_broken_socket_is_resumed_from_the_last_event() {
    let (mut world, sock) = World::attached();
    assert_eq!(delivered(&world.tick_event(sock, 1)), [1]);
    assert_eq!(delivered(&world.tick_event(sock, 2)), [2]);
    let effects = world.input(LinkInput::Gone(sock, None));
    assert!(matches!(effects[0], LinkEffect::Deliver(SessionEvent::Detached { .. })));
    let sock = world.redial();
    let hello = world.challenge(sock);
    assert_eq!(hello["params"]["resume"], json!({"token": "token-1", "epoch": "e1", "lastSeq": 2}));
    world.answer(sock, "kept", "resumed", 3);
    assert_eq!(delivered(&world.tick_event(sock, 3)), [3]);
}

#[test]
fn a_gap_or_garbage_costs_the_socket_not_the_session() {
    let bad = [
        json!({"type": "event", "event": "tick", "seq": 3, "data": {"ts": 1}}),
        json!({"type": "event", "event": "tick", "seq": 1, "data": "not a tick"}),
        json!(["not a frame"]),
    ];
    for frame in bad {
        let (mut world, sock) = World::attached();
        let effects = world.frame(sock, frame);
        assert!(matches!(effects[0], LinkEffect::Drop(s) if s == sock));
        assert!(delivered(&effects).is_empty() && ended(&effects).is_none());
        world.redial();
    }
}

#[test]
fn every_close_reason_does_what_the_table_says() {
    for reason in Reason::ALL {
        let (mut world, sock) = World::attached();
        let effects = world.closing(sock, &Closing::new(*reason));
        match (reason.action(), ended(&effects)) {
            (Action::Done, Some(End::Bye)) => {}
            (Action::Stop, Some(End::Stopped { reason: why, .. })) => assert_eq!(why, reason.as_str()),
            (Action::ResumeIfOwn, Some(End::Replaced { .. })) => {}
            (Action::Resume | Action::Backoff, None) => {
                world.redial();
            }
            (action, end) => panic!("{reason:?}: {action:?} gave {end:?}"),
        }
    }
}

#[test]
fn replaced_by_itself_it_resumes_and_by_another_it_stops() {
    let (mut world, sock) = World::attached();
    let closing =
        Closing { instance_id: Some("mine".parse().unwrap()), ..Closing::new(Reason::SessionReplaced) };
    assert_eq!(ended(&world.closing(sock, &closing)), None);
    let (mut world, sock) = World::attached();
    let by: Option<tenure_proto::InstanceId> = Some("theirs".parse().unwrap());
    let closing = Closing { instance_id: by.clone(), ..Closing::new(Reason::SessionReplaced) };
    assert_eq!(ended(&world.closing(sock, &closing)), Some(End::Replaced { by }));
}

#[test]
fn retry_after_is_waited_for() {
    let (mut world, sock) = World::attached();
    world.closing(sock, &Closing::new(Reason::Restart).retry_after(5_000));
    let effects = world.pass(4_999);
    assert!(!effects.iter().any(|effect| matches!(effect, LinkEffect::Dial(_))));
    world.redial();
}

#[test]
fn a_refused_hello_ends_with_its_error() {
    let mut world = World::new();
    let sock = World::dialled(&world.take());
    world.challenge(sock);
    let error = json!({"code": "unauthorized", "message": "no", "retryable": false});
    world.frame(sock, json!({"type": "res", "id": "hello", "ok": false, "error": error}));
    let effects = world.closing(sock, &Closing::new(Reason::Unauthorized));
    let Some(End::Stopped { reason, error: Some(error) }) = ended(&effects) else { panic!("{effects:?}") };
    assert_eq!((reason.as_str(), error.code.as_str()), ("unauthorized", "unauthorized"));
    assert!(world.pass(100_000).is_empty(), "nothing follows the end");
    assert!(world.input(LinkInput::Opened(sock)).is_empty());
}

#[test]
fn silence_for_two_ticks_is_death_and_pings_go_out_every_interval() {
    let (mut world, sock) = World::attached();
    let pings = |effects: &[LinkEffect]| effects.iter().filter(|e| matches!(e, LinkEffect::Ping(_))).count();
    assert_eq!(pings(&world.pass(30_000)), 1);
    world.input(LinkInput::Heard(sock));
    let effects = world.pass(59_999);
    assert_eq!(pings(&effects), 1);
    assert!(world.link.is_attached(), "heard of 59,999 ms ago");
    let effects = world.pass(1);
    assert!(effects.iter().any(|effect| matches!(effect, LinkEffect::Drop(s) if *s == sock)));
    assert!(!world.link.is_attached());
}

#[test]
fn after_a_sleep_the_old_socket_is_probed_beside_a_new_dial_and_kept_if_it_answers() {
    let (mut world, sock) = World::attached();
    world.jump(40_000);
    world.link.tick(world.now);
    let effects = world.take();
    let next = World::dialled(&effects);
    assert!(effects.iter().any(|effect| matches!(effect, LinkEffect::Ping(s) if *s == sock)));
    assert!(world.input(LinkInput::Heard(sock)).is_empty(), "it may have lain unread since before");
    let effects = world.input(LinkInput::Answered(sock));
    assert!(matches!(effects[..], [LinkEffect::Drop(s)] if s == next));
    assert_eq!(delivered(&world.tick_event(sock, 1)), [1]);
}

#[test]
fn after_a_sleep_a_silent_socket_gives_way_to_the_new_one() {
    let (mut world, old) = World::attached();
    world.jump(40_000);
    world.link.tick(world.now);
    let next = World::dialled(&world.take());
    world.challenge(next);
    assert!(delivered(&world.tick_event(old, 1)).is_empty(), "old numbers mean nothing after the new hello");
    let effects = world.answer(next, "kept", "resumed", 1);
    assert!(effects.iter().any(|effect| matches!(effect, LinkEffect::Drop(s) if *s == old)));
    assert_eq!(delivered(&world.tick_event(next, 1)), [1]);
}

#[test]
fn what_the_old_socket_took_after_the_new_hello_was_written_is_said_again() {
    let status = |effects: &[LinkEffect]| {
        let frames = sent(effects).into_iter().filter(|frame| frame["method"] == "profile.set");
        frames.map(|frame| (frame["id"].clone(), frame["params"]["status"].clone())).collect::<Vec<_>>()
    };
    let ok = |id: &Value| json!({"type": "res", "id": id, "ok": true, "result": {}});
    let set = |world: &mut World, status: Status| {
        let patch = ProfilePatch { status: Some(status), ..ProfilePatch::default() };
        world.link.set_profile(world.now, &patch, 5_000).unwrap();
        world.take()
    };
    let (mut world, old) = World::attached();
    world.jump(40_000);
    world.link.tick(world.now);
    let next = World::dialled(&world.take());
    assert_eq!(world.challenge(next)["params"]["profile"]["status"], "idle");
    let (id, _) = status(&set(&mut world, Status::Working)).remove(0);
    world.frame(old, ok(&id));
    let said = status(&world.answer(next, "kept", "resumed", 1));
    assert_eq!(said.len(), 1, "the hello has undone it");
    assert_eq!(said[0].1, "working");

    // Refused for now, it is said once more as it is by then.
    let busy = json!({"code": "busy", "message": "later", "retryable": true});
    world.frame(next, json!({"type": "res", "id": said[0].0, "ok": false, "error": busy}));
    let (id, _) = status(&set(&mut world, Status::Dnd)).remove(0);
    world.frame(next, ok(&id));
    let said = status(&world.pass(5_000));
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].1, "dnd");

    // Nothing is said if the hello said it.
    world.frame(next, ok(&said[0].0));
    world.jump(40_000);
    world.link.tick(world.now);
    let third = World::dialled(&world.take());
    assert_eq!(world.challenge(third)["params"]["profile"]["status"], "dnd");
    assert!(status(&world.answer(third, "kept", "resumed", 1)).is_empty());
}

#[test]
fn a_wall_clock_that_runs_ahead_is_a_sleep_too() {
    let (mut world, _) = World::attached();
    world.now.wall += 60_000;
    world.link.tick(world.now);
    World::dialled(&world.take());
}

#[test]
fn a_dial_and_a_hello_each_give_up_after_five_seconds() {
    let mut world = World::new();
    let sock = World::dialled(&world.take());
    assert!(world.pass(4_999).is_empty());
    let effects = world.pass(1);
    assert!(matches!(effects[0], LinkEffect::Drop(s) if s == sock));
    let sock = world.redial();
    world.challenge(sock);
    assert!(world.pass(4_999).is_empty());
    assert!(matches!(world.pass(1)[0], LinkEffect::Drop(s) if s == sock));
}

#[test]
fn requests_survive_a_break_are_answered_once_and_time_out() {
    let (mut world, sock) = World::attached();
    let now = world.now;
    let ask = |world: &mut World| world.link.request(now, Method::Ping, &Empty {}, 20_000).unwrap();
    let (first, second) = (ask(&mut world), ask(&mut world));
    assert_eq!(sent(&world.take()).len(), 2);
    let answer = |id: &str| json!({"type": "res", "id": id, "ok": true, "result": {"ts": 1}});
    assert!(matches!(&world.frame(sock, answer("1"))[..], [LinkEffect::Answer(n, Ok(_))] if *n == first));
    assert!(world.frame(sock, answer("1")).is_empty(), "answered once");
    world.input(LinkInput::Gone(sock, None));
    let sock = world.redial();
    world.challenge(sock);
    let again = sent(&world.answer(sock, "kept", "resumed", 1));
    assert_eq!(again.len(), 1, "only the unanswered one goes out again");
    assert_eq!(again[0]["id"], "2");
    let effects = world.pass(20_000);
    let late: Vec<_> =
        effects.iter().filter(|e| matches!(e, LinkEffect::Answer(n, Err(_)) if *n == second)).collect();
    assert_eq!(late.len(), 1);
}

#[test]
fn bye_is_said_and_ends_the_session_answered_or_not() {
    let (mut world, sock) = World::attached();
    world.link.bye(world.now);
    let effects = world.take();
    assert_eq!(sent(&effects)[0]["method"], "bye");
    assert_eq!(ended(&world.closing(sock, &Closing::new(Reason::Bye))), Some(End::Bye));

    let (mut world, _) = World::attached();
    world.link.bye(world.now);
    assert_eq!(ended(&world.pass(1_000)), Some(End::Bye));

    let mut world = World::new();
    world.take();
    world.link.bye(world.now);
    assert_eq!(ended(&world.take()), Some(End::Bye));
}

#[test]
fn open_requests_are_answered_when_the_session_ends() {
    let (mut world, sock) = World::attached();
    world.link.request(world.now, Method::Ping, &Empty {}, 20_000).unwrap();
    world.take();
    let effects = world.closing(sock, &Closing::new(Reason::Kicked));
    assert!(effects.iter().any(|effect| matches!(effect, LinkEffect::Answer(_, Err(_)))));
    assert!(matches!(effects.last(), Some(LinkEffect::Ended(_))), "the end comes last");
}

#[test]
fn the_profile_of_the_next_hello_is_the_newest() {
    let (mut world, sock) = World::attached();
    let patch = ProfilePatch { summary: Some("busy".into()), ..ProfilePatch::default() };
    world.link.set_profile(world.now, &patch, 1_000).unwrap();
    world.take();
    world.input(LinkInput::Gone(sock, None));
    let sock = world.redial();
    assert_eq!(world.challenge(sock)["params"]["profile"]["summary"], "busy");
    let empty = ProfilePatch { name: Some(String::new()), ..ProfilePatch::default() };
    assert!(world.link.set_profile(world.now, &empty, 1_000).is_err());
}

#[test]
fn patience_grows_once_the_lease_is_gone() {
    let mut longest = 0;
    for seed in 0..200 {
        let now = Now { at: Millis(1_000), wall: 0 };
        let mut world = World { link: Link::new(config(), seed, now), now, broker_wall: BROKER_WALL };
        world.link.start(now);
        let mut sock = World::dialled(&world.take());
        for _ in 0..40 {
            world.input(LinkInput::Gone(sock, None));
            let wait = world.link.next_deadline().unwrap().since(world.now.at);
            let leased = world.now.at.since(Millis(1_000)) < LEASE;
            assert!(wait <= if leased { 1_000 } else { 30_000 }, "{wait}");
            longest = longest.max(wait);
            let effects = world.pass(wait.max(3_000));
            sock = World::dialled(&effects);
        }
    }
    assert!(longest > 20_000, "{longest}");
}

#[test]
fn ten_seconds_attached_forgive_earlier_failures() {
    let longest_wait = |attached_ms: u64| {
        let waits = (0..200).map(|seed| {
            let now = Now { at: Millis(1_000), wall: 0 };
            let mut world = World { link: Link::new(config(), seed, now), now, broker_wall: BROKER_WALL };
            world.link.start(now);
            let mut sock = World::dialled(&world.take());
            for _ in 0..4 {
                world.input(LinkInput::Gone(sock, None));
                sock = world.redial();
            }
            world.challenge(sock);
            world.answer(sock, "new", "new", 1);
            world.pass(attached_ms);
            world.input(LinkInput::Gone(sock, None));
            world.link.next_deadline().unwrap().since(world.now.at)
        });
        waits.max().unwrap()
    };
    assert!(longest_wait(9_999) > 900);
    assert!(longest_wait(10_000) <= 250);
}

/// Why the link waits, and whether somebody told it.
fn waiting(effects: &[LinkEffect]) -> Option<(&str, bool)> {
    effects.iter().find_map(|effect| match effect {
        LinkEffect::Deliver(SessionEvent::Waiting { reason, answered, .. }) => {
            Some((reason.as_str(), *answered))
        }
        _ => None,
    })
}

#[test]
fn waiting_says_what_for() {
    let mut world = World::new();
    let sock = World::dialled(&world.take());
    let failed = |sock, reason: &str, answered| LinkInput::Failed { sock, reason: reason.into(), answered };
    let effects = world.input(failed(sock, "connection refused", false));
    assert_eq!(waiting(&effects), Some(("connection refused", false)));
    let sock = world.redial();
    let effects = world.input(failed(sock, "HTTP 403: no", true));
    assert_eq!(waiting(&effects), Some(("HTTP 403: no", true)));
    let sock = world.redial();
    world.challenge(sock);
    let error = json!({"code": "busy", "message": "the mesh is full", "retryable": true});
    world.frame(sock, json!({"type": "res", "id": "hello", "ok": false, "error": error}));
    let effects = world.closing(sock, &Closing::new(Reason::Restart));
    assert_eq!(waiting(&effects), Some(("busy: the mesh is full", true)));
    let sock = world.redial();
    world.challenge(sock);
    let effects = world.closing(sock, &Closing::new(Reason::Restart));
    assert_eq!(waiting(&effects), Some((Reason::Restart.as_str(), true)));
    world.redial();
    assert_eq!(waiting(&world.pass(5_000)), Some(("no answer in time", false)));
}

#[test]
fn a_request_that_the_broker_would_not_read_is_refused_at_once() {
    let ask = |world: &mut World, bytes: usize| {
        let params = json!({"x": "y".repeat(bytes)});
        world.link.request(world.now, Method::Ping, &params, 20_000)
    };
    let mut world = World::new();
    assert!(ask(&mut world, 70_000).is_ok(), "before the hello the default holds");
    assert_eq!(ask(&mut world, 2_000_000).unwrap_err().code.as_str(), "too_large");
    let (mut world, _) = World::attached();
    // The scripted broker takes bodies of one byte, and what goes around them.
    assert_eq!(ask(&mut world, 70_000).unwrap_err().code.as_str(), "too_large");
    assert!(world.take().is_empty());
    assert!(ask(&mut world, 60_000).is_ok());
}

#[test]
fn a_close_over_a_large_frame_answers_the_largest_and_sends_the_rest_again() {
    let reasons: [fn(&mut World, SockId) -> Vec<LinkEffect>; 2] = [
        |world, sock| world.closing(sock, &Closing::new(Reason::TooLarge)),
        |world, sock| world.input(LinkInput::Gone(sock, Some(Reason::TooLarge.code()))),
    ];
    for close in reasons {
        let (mut world, sock) = World::attached();
        for bytes in [10, 1_000, 100] {
            let params = json!({"x": "y".repeat(bytes)});
            world.link.request(world.now, Method::Ping, &params, 20_000).unwrap();
        }
        world.take();
        let effects = close(&mut world, sock);
        let answers: Vec<_> = effects.iter().filter(|e| matches!(e, LinkEffect::Answer(..))).collect();
        let [LinkEffect::Answer(RequestNumber(2), Err(error))] = answers[..] else { panic!("{effects:?}") };
        assert_eq!(error.code.as_str(), "too_large");
        let sock = world.redial();
        world.challenge(sock);
        let again = sent(&world.answer(sock, "kept", "resumed", 1));
        assert_eq!(again.iter().map(|frame| &frame["id"]).collect::<Vec<_>>(), ["1", "3"]);
    }
}
