//! Runs: calls to agents whose answers stream back.

use serde_json::{Value, json};
use tenure_kit::rate::Rate;
use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Note, Push};
use tenure_mesh::input::Call;
use tenure_mesh::runs::start;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, RunId};
use tenure_proto::limits::{RUN_KEPT_MS, RUN_TIMEOUT_MAX_MS, RUN_TIMEOUT_MS, RUN_WATCHERS, RUNS_PER_MEMBER};
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, MessageKind, Priority};
use tenure_proto::number::U53;
use tenure_proto::run::{
    RunChunkParams, RunEndParams, RunEndStatus, RunEvent, RunGetResult, RunIdParams, RunStartParams,
    RunStartResult, RunState,
};

use super::words::*;
use super::world::{Disk, Engine, Outcome, World};

/// Both engines, one after the other.
pub(crate) fn on_both(test: impl Fn(World)) {
    for engine in [Engine::memory(), Engine::sqlite()] {
        test(World::new(engine, MeshConfig::default()));
    }
}

/// A call of `to` under `key`, with the key as its input.
pub(crate) fn ring(to: Address, key: &str) -> RunStartParams {
    RunStartParams { to, input: json!(key), idempotency_key: key.into(), timeout_ms: None, from_seq: None }
}

pub(crate) fn from(params: RunStartParams, seq: u64) -> RunStartParams {
    RunStartParams { from_seq: ms(seq), ..params }
}

pub(crate) fn chunk(run: RunId, seq: u64, data: &str) -> Call {
    Call::RunChunk(RunChunkParams { run_id: run, seq: U53::saturating(seq), data: json!(data) })
}

/// The end of a run, well, with its seq as the result.
pub(crate) fn end(run: RunId, seq: u64) -> RunEndParams {
    let (status, result) = (RunEndStatus::Ok, Some(json!(seq)));
    RunEndParams { run_id: run, seq: U53::saturating(seq), status, result, error: None }
}

pub(crate) fn ending(run: RunId, seq: u64) -> Call {
    Call::RunEnd(Box::new(end(run, seq)))
}

/// What a watcher was told, one word each: `1 a`, `2 b gap`, `end 3 ok`, `cancel`.
fn word(event: &RunEvent) -> String {
    let seq = event.seq.map_or(0, U53::get);
    let gap = if event.gap { " gap" } else { "" };
    match (&event.data, &event.end) {
        _ if event.cancel => "cancel".to_owned(),
        (Some(Value::String(data)), None) => format!("{seq} {data}{gap}"),
        (None, Some(end)) => {
            let status = match end.status {
                RunEndStatus::Ok => "ok",
                RunEndStatus::Error => "error",
                RunEndStatus::Cancelled => "cancelled",
            };
            let code = end.error.as_ref().map_or(String::new(), |error| format!(" {}", error.code));
            format!("end {seq} {status}{code}{gap}")
        }
        other => panic!("{other:?}"),
    }
}

impl World {
    pub(crate) fn starting(&mut self, params: RunStartParams) -> Result<Call, WireError> {
        let id = self.next_message();
        let start = start::prepare(params, id, self.wall, self.config.max_payload)?;
        Ok(Call::RunStart(Box::new(start)))
    }

    #[track_caller]
    pub(crate) fn try_start(&mut self, conn: ConnId, params: RunStartParams) -> Outcome {
        let call = self.starting(params)?;
        self.call(conn, call)
    }

    #[track_caller]
    pub(crate) fn start_run(&mut self, conn: ConnId, params: RunStartParams) -> RunStartResult {
        match self.try_start(conn, params) {
            Ok(Answer::RunStart(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    /// What a socket was told of runs since the last look.
    pub(crate) fn told(&mut self, conn: ConnId) -> Vec<String> {
        let events = std::mem::take(&mut self.sockets.get_mut(&conn).unwrap().events);
        let run = |event: &EventBody| match event {
            EventBody::Run(event) => Some(word(event)),
            _ => None,
        };
        events.iter().filter_map(run).collect()
    }

    #[track_caller]
    pub(crate) fn done(&mut self, conn: ConnId, call: Call) {
        let outcome = self.call(conn, call);
        assert!(matches!(outcome, Ok(Answer::Empty)), "{outcome:?}");
    }

    #[track_caller]
    pub(crate) fn run(&mut self, conn: ConnId, run: RunId) -> RunGetResult {
        match self.call(conn, Call::RunGet(RunIdParams { run_id: run })) {
            Ok(Answer::RunGet(result)) => *result,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn cancel(&mut self, conn: ConnId, run: RunId) {
        self.done(conn, Call::RunCancel(RunIdParams { run_id: run }));
    }

    /// The one run that a session was handed.
    #[track_caller]
    pub(crate) fn handed(&mut self, conn: ConnId) -> (RunId, Push) {
        let pushes = self.pushes(conn);
        assert_eq!(pushes.len(), 1, "{pushes:?}");
        let push = pushes.into_iter().next().unwrap();
        assert_eq!(push.entry.envelope.kind, MessageKind::Run);
        let meta = push.entry.envelope.meta.as_ref().unwrap();
        (meta.0["runId"].as_str().unwrap().parse().unwrap(), push)
    }

    /// Why the dead letters of an inbox are there.
    pub(crate) fn reasons(&mut self, conn: ConnId, log: &LogName) -> Vec<String> {
        self.dead(conn, log).into_iter().map(|letter| letter.reason).collect()
    }
}

/// A caller, 11, whose run 2 has in hand.
pub(crate) fn called(w: &mut World) -> (ConnId, ConnId, RunId) {
    let (a, b) = (w.join(11), w.join(2));
    let started = w.start_run(a, ring(to(2), "k"));
    assert_eq!(w.handed(b).0, started.run_id);
    (a, b, started.run_id)
}

#[test]
fn an_answer_streams_back_and_its_end_is_told_and_remembered() {
    on_both(|mut w| {
        let (a, b) = (w.join(11), w.join(2));
        let started = w.start_run(a, ring(to(2), "k"));
        assert_eq!(started.state, RunState::Queued);
        let (run, push) = w.handed(b);
        assert_eq!((run, body(&push).as_str()), (started.run_id, "\"k\""));
        let envelope = &push.entry.envelope;
        assert_eq!((envelope.priority, &*envelope.client_message_id), (Priority::Now, "run:k"));
        assert_eq!(w.run(a, run).state, RunState::Running);
        w.done(b, chunk(run, 1, "x"));
        w.done(b, chunk(run, 2, "y"));
        assert_eq!(w.told(a), ["1 x", "2 y"]);
        w.done(b, ending(run, 3));
        assert_eq!(w.told(a), ["end 3 ok"]);
        for restarted in [false, true] {
            let (a, b) = if restarted {
                w.restart();
                (w.join(11), w.join(2))
            } else {
                (a, b)
            };
            for conn in [a, b] {
                let got = w.run(conn, run);
                assert_eq!((got.state, got.last_seq.get(), got.result), (RunState::Ok, 2, Some(json!(3))));
            }
            assert!(w.pushes(b).is_empty(), "its message is settled");
            w.done(b, ending(run, 3));
            assert_eq!(code(&w.call(b, chunk(run, 3, "z"))), ErrorCode::Conflict);
            let other = RunEndParams { result: None, ..end(run, 3) };
            assert_eq!(code(&w.call(b, Call::RunEnd(Box::new(other)))), ErrorCode::Conflict);
            w.cancel(a, run);
            assert_eq!(w.run(a, run).state, RunState::Ok, "an end is for good");
        }
        assert!(w.notes.iter().any(|note| matches!(note, Note::RunEnded { status: "ok", .. })));
    });
}

#[test]
fn the_same_key_is_the_same_run_and_another_input_is_refused() {
    on_both(|mut w| {
        let (a, b) = (w.join(11), w.join(2));
        let run = w.start_run(a, ring(to(2), "k")).run_id;
        let longer = RunStartParams { timeout_ms: ms(5), ..ring(to(2), "k") };
        assert_eq!(w.start_run(a, longer).run_id, run, "how long it may take is no part of it");
        let other = RunStartParams { input: json!("other"), ..ring(to(2), "k") };
        assert_eq!(code(&w.try_start(a, other)), ErrorCode::IdempotencyKeyReused);
        assert_eq!(code(&w.try_start(a, ring(to(3), "k"))), ErrorCode::IdempotencyKeyReused);
        let same = RunStartParams { input: json!({"b": 1.0, "a": 2}), ..ring(to(2), "l") };
        let spelled = RunStartParams { input: json!({"a": 2, "b": 1}), ..ring(to(2), "l") };
        assert_eq!(w.start_run(a, same).run_id, w.start_run(a, spelled).run_id);
        assert_eq!(w.pushes(b).len(), 2, "each was handed out once");
    });
}

#[test]
fn twins_of_one_member_join_and_two_members_are_strangers() {
    let mut w = world();
    let (a, twin, other, b) = (w.join(11), w.join(12), w.join(21), w.join(2));
    let call = [w.starting(ring(to(2), "k")).unwrap(), w.starting(ring(to(2), "k")).unwrap()];
    let (inputs, requests): (Vec<_>, Vec<_>) =
        [a, twin].into_iter().zip(call).map(|(conn, call)| w.request(conn, call)).unzip();
    w.tell_all(inputs);
    let answers = [w.answered(a, &requests[0]), w.answered(twin, &requests[1])];
    let ids = answers.map(|answer| match answer {
        Some(Ok(Answer::RunStart(result))) => result.run_id,
        other => panic!("{other:?}"),
    });
    assert_eq!(ids[0], ids[1]);
    assert_eq!(w.handed(b).0, ids[0]);
    let theirs = w.start_run(other, ring(to(2), "k")).run_id;
    assert_ne!(theirs, ids[0]);
    assert_eq!(w.handed(b).0, theirs);
    w.done(b, chunk(ids[0], 1, "x"));
    w.done(b, ending(ids[0], 2));
    for conn in [a, twin] {
        assert_eq!(w.told(conn), ["1 x", "end 2 ok"]);
    }
    assert!(w.told(other).is_empty());
    assert_eq!(code(&w.call(other, Call::RunGet(RunIdParams { run_id: ids[0] }))), ErrorCode::NotFound);
    let foreign = Call::RunCancel(RunIdParams { run_id: ids[0] });
    assert_eq!(code(&w.call(other, foreign)), ErrorCode::NotOwner);
}

#[test]
fn only_who_has_it_in_hand_may_answer() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        let c = w.join(3);
        for call in [chunk(run, 1, "x"), ending(run, 1)] {
            assert_eq!(code(&w.call(c, call)), ErrorCode::NotOwner);
        }
        let unknown = RunId::from_parts(1, 1);
        for call in [chunk(unknown, 1, "x"), ending(unknown, 1)] {
            assert_eq!(code(&w.call(c, call)), ErrorCode::NotFound);
        }
        assert!(w.told(a).is_empty());
        w.done(b, ending(run, 1));
        for call in [chunk(run, 1, "x"), ending(run, 1)] {
            assert_eq!(code(&w.call(c, call)), ErrorCode::NotOwner, "nor afterwards");
        }
        w.restart();
        let c = w.join(3);
        assert_eq!(code(&w.call(c, chunk(run, 1, "x"))), ErrorCode::NotOwner, "nor ever");
    });
}

#[test]
fn a_repeat_is_ignored_and_a_gap_ends_the_run_on_both_sides() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        assert_eq!(code(&w.call(b, chunk(run, 0, "x"))), ErrorCode::BadRequest);
        w.done(b, chunk(run, 1, "x"));
        w.done(b, chunk(run, 1, "again"));
        w.done(b, chunk(run, 2, "y"));
        assert_eq!(w.told(a), ["1 x", "2 y"]);
        assert_eq!(code(&w.call(b, chunk(run, 4, "late"))), ErrorCode::SeqGap);
        assert_eq!(w.told(a), ["end 3 error seq_gap"]);
        assert_eq!(w.run(a, run).error.unwrap().code, ErrorCode::SeqGap);
        assert_eq!(w.reasons(b, &inbox(2)), ["seq_gap"]);
        assert_eq!(code(&w.call(b, chunk(run, 3, "z"))), ErrorCode::Conflict);
    });
    let mut w = world();
    let (a, b, run) = called(&mut w);
    assert_eq!(code(&w.call(b, ending(run, 2))), ErrorCode::SeqGap, "an end has a number too");
    assert_eq!(w.told(a), ["end 1 error seq_gap"]);
    let run = w.start_run(a, ring(to(2), "l")).run_id;
    w.done(b, chunk(run, 1, "x"));
    w.done(b, ending(run, 1));
    assert_eq!(w.told(a), ["1 x", "end 2 ok"], "a process that began anew may have said less");
}

#[test]
fn cancelling_what_nobody_has_ends_it_at_once() {
    on_both(|mut w| {
        let (a, b) = (w.join(11), w.join(2));
        w.drop_socket(b);
        let run = w.start_run(a, ring(to(2), "k")).run_id;
        w.cancel(a, run);
        assert_eq!(w.told(a), ["end 1 cancelled"]);
        assert_eq!(w.run(a, run).state, RunState::Cancelled);
        let b = w.join(2);
        assert!(w.pushes(b).is_empty(), "it is not handed out any more");
        assert_eq!(w.reasons(b, &inbox(2)), ["cancelled"]);
        // What was settled by nobody is not work: another run comes through.
        let next = w.start_run(a, ring(to(2), "l")).run_id;
        assert_eq!(w.handed(b).0, next);
        w.dead_retry(b, &inbox(2), &[1]);
        assert!(w.pushes(b).is_empty(), "an ended run is never handed out");
        assert_eq!(w.reasons(b, &inbox(2)), ["run_ended"]);
    });
}

#[test]
fn cancelling_what_somebody_works_on_asks_it_to_stop() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        w.cancel(a, run);
        assert_eq!((w.told(b), w.told(a)), (vec!["cancel".to_owned()], vec![]));
        assert_eq!(w.run(a, run).state, RunState::Running);
        // A process that comes back without what it was told is told again.
        w.drop_socket(b);
        let b = w.join(2);
        assert_eq!(w.told(b), ["cancel"]);
        w.done(b, chunk(run, 1, "x"));
        let end = RunEndParams { status: RunEndStatus::Cancelled, result: None, ..end(run, 2) };
        w.done(b, Call::RunEnd(Box::new(end)));
        assert_eq!(w.told(a), ["1 x", "end 2 cancelled"]);
        assert!(w.told(b).is_empty());
    });
}

#[test]
fn what_takes_too_long_ends_and_who_works_on_it_is_told() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        let c = w.join(3);
        w.drop_socket(c);
        let queued = w.start_run(a, ring(to(3), "queued")).run_id;
        let long = RunStartParams { timeout_ms: ms(RUN_TIMEOUT_MS + 1), ..ring(to(2), "long") };
        let long = w.start_run(a, long).run_id;
        assert_eq!(w.handed(b).0, long);
        w.pass(RUN_TIMEOUT_MS - 1);
        assert!(w.told(a).is_empty());
        w.pass(1);
        assert_eq!(w.told(a), ["end 1 error expired", "end 1 error expired"]);
        assert_eq!(w.told(b), ["cancel"]);
        assert_eq!(code(&w.call(b, chunk(run, 1, "x"))), ErrorCode::Conflict);
        for id in [run, queued] {
            assert_eq!(w.run(a, id).error.unwrap().code, ErrorCode::Expired);
        }
        assert_eq!(w.reasons(b, &inbox(2)), ["expired"]);
        let c = w.join(3);
        assert!(w.pushes(c).is_empty());
        assert_eq!(w.reasons(c, &inbox(3)), ["expired"]);
        assert_eq!(w.run(a, long).state, RunState::Running);
    });
}

#[test]
fn an_ack_leaves_a_run_running_and_a_nack_refuses_it() {
    on_both(|mut w| {
        let (a, b) = (w.join(11), w.join(2));
        let run = w.start_run(a, ring(to(2), "k")).run_id;
        let (_, push) = w.handed(b);
        w.ack_all(b, &[push]);
        w.done(b, chunk(run, 1, "x"));
        w.restart();
        let (a, b) = (w.join(11), w.join(2));
        assert!(w.pushes(b).is_empty());
        assert_eq!(w.run(a, run).state, RunState::Running);
        w.done(b, ending(run, 2));
        assert_eq!(w.run(a, run).state, RunState::Ok);

        let refused = w.start_run(a, ring(to(2), "l")).run_id;
        let (_, push) = w.handed(b);
        let busy =
            tenure_proto::message::NackParams { reason: Some("busy".into()), ..nacked(vec![tag(&push)]) };
        assert_eq!(w.settle(b, Call::Nack(busy)).settled.len(), 1);
        let error = w.run(a, refused).error.unwrap();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.ends_with(": busy"), "{error}");
        assert_eq!(w.told(a), ["end 1 error unavailable"]);
        assert!(w.pushes(b).is_empty());
        assert_eq!(w.reasons(b, &inbox(2)), ["busy"]);
    });
}

/// Session `n`, which reads its member's inbox.
fn crew(w: &mut World, n: u8) -> ConnId {
    w.dial(Admission { inbox: InboxChoice::Both, ..knock(n) })
}

#[test]
fn the_first_of_a_member_to_take_it_answers_for_good() {
    on_both(|mut w| {
        let (a, b) = (w.join(11), crew(&mut w, 2));
        let run = w.start_run(a, ring(Address::Member(member(2)), "k")).run_id;
        assert_eq!(w.handed(b).0, run);
        let c = crew(&mut w, 3);
        assert_eq!(code(&w.call(c, chunk(run, 1, "x"))), ErrorCode::NotOwner);
        w.done(b, chunk(run, 1, "x"));
        w.drop_socket(b);
        w.pass(80_000);
        assert_eq!(w.run(c, run).state, RunState::Running, "in grace it keeps its run");
        w.pass(20_000);
        assert_eq!(w.told(a), ["1 x", "end 2 error lease_expired"]);
        assert!(w.pushes(c).is_empty(), "nobody else is handed it");
        assert_eq!(w.reasons(c, &LogName::Member(member(2))), ["lease_expired"]);
        let next = w.start_run(a, ring(Address::Member(member(2)), "l")).run_id;
        assert_eq!(w.handed(c).0, next);
    });
}

#[test]
fn a_callee_that_says_goodbye_fails_its_runs() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.bye(b);
    assert_eq!(w.told(a), ["end 1 error lease_expired"]);
    let b = w.join(2);
    assert!(w.pushes(b).is_empty());
    assert_eq!(code(&w.call(b, chunk(run, 1, "x"))), ErrorCode::Conflict);
}

#[test]
fn a_run_for_who_is_not_here_waits_for_it() {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    w.bye(b);
    let run = w.start_run(a, ring(to(2), "k")).run_id;
    assert_eq!(code(&w.try_start(a, ring(to(99), "l"))), ErrorCode::NoSuchSession);
    let b = w.join(2);
    assert_eq!(w.handed(b).0, run);
    w.done(b, ending(run, 1));
    assert_eq!(w.told(a), ["end 1 ok"]);
}

#[test]
fn bad_starts_are_refused_and_bounds_hold() {
    let mut w = world();
    let (a, _) = (w.join(11), w.join(2));
    let refused = |w: &mut World, params| code(&w.try_start(a, params));
    assert_eq!(refused(&mut w, ring(topic("t"), "k")), ErrorCode::BadRequest);
    for key in [String::new(), "x".repeat(129), "a\nb".to_owned()] {
        assert_eq!(refused(&mut w, ring(to(2), &key)), ErrorCode::BadRequest, "{key:?}");
    }
    for timeout in [0, RUN_TIMEOUT_MAX_MS + 1] {
        let params = RunStartParams { timeout_ms: ms(timeout), ..ring(to(2), "k") };
        assert_eq!(refused(&mut w, params), ErrorCode::BadRequest);
    }
    let unsafe_number = RunStartParams { input: json!(1u64 << 53), ..ring(to(2), "k") };
    assert_eq!(refused(&mut w, unsafe_number), ErrorCode::BadRequest);
    let huge = "x".repeat(w.config.max_payload);
    let params = RunStartParams { input: json!(huge), ..ring(to(2), "k") };
    assert_eq!(refused(&mut w, params), ErrorCode::TooLarge);
    for n in 0..RUNS_PER_MEMBER {
        w.start_run(a, ring(to(2), &format!("k{n}")));
    }
    assert_eq!(refused(&mut w, ring(to(2), "more")), ErrorCode::Busy);
    let first = w.start_run(a, ring(to(2), "k0"));
    let other = w.join(21);
    w.start_run(other, ring(to(2), "k0"));
    w.cancel(a, first.run_id);
    let b = w.join(2);
    w.done(b, ending(first.run_id, 1));
    w.start_run(a, ring(to(2), "more"));
}

#[test]
fn runs_that_the_store_is_about_to_accept_count() {
    let mut w = world();
    let (a, _) = (w.join(11), w.join(2));
    let calls = (0..RUNS_PER_MEMBER + 10).map(|n| w.starting(ring(to(2), &format!("k{n}"))).unwrap());
    let calls = calls.collect();
    let requests = w.ask_all(a, calls);
    let outcomes: Vec<_> = requests.iter().map(|request| w.answered(a, request).unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), RUNS_PER_MEMBER);
    assert!(outcomes.iter().skip(RUNS_PER_MEMBER).all(|outcome| code(outcome) == ErrorCode::Busy));
}

#[test]
fn what_answers_a_run_and_the_retry_of_a_call_are_never_too_often() {
    let rate = Rate { burst: 3, per_second: 1 };
    let config = MeshConfig { send_rate: rate, request_rate: rate, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b) = (w.dial(counted(11)), w.dial(counted(2)));
    let run = w.start_run(a, ring(to(2), "k")).run_id;
    for _ in 0..20 {
        w.start_run(a, ring(to(2), "k"));
    }
    for seq in 1..=20 {
        w.done(b, chunk(run, seq, "x"));
    }
    w.done(b, ending(run, 21));
    let fresh: Vec<_> = (0..4).map(|n| w.try_start(a, ring(to(2), &format!("k{n}")))).collect();
    assert_eq!(fresh.iter().filter(|outcome| outcome.is_ok()).count(), 2, "one of three was taken");
    assert_eq!(code(&fresh[2]), ErrorCode::RateLimited);
}

fn counted(n: u8) -> Admission {
    Admission { counted: true, ..knock(n) }
}

#[test]
fn a_run_streams_to_as_many_sessions_as_it_may() {
    let mut w = World::new(Engine::memory(), MeshConfig::default());
    let b = w.join(2);
    let mut knocks = (100..200).map(|n| Admission { member: member(11), ..knock(n) });
    let mut watch = |w: &mut World| {
        let conn = w.dial(knocks.next().unwrap());
        (conn, w.try_start(conn, ring(to(2), "k")))
    };
    let (first, outcome) = watch(&mut w);
    assert!(outcome.is_ok());
    for _ in 1..RUN_WATCHERS {
        assert!(watch(&mut w).1.is_ok());
    }
    assert_eq!(code(&watch(&mut w).1), ErrorCode::Busy);
    w.bye(first);
    assert!(watch(&mut w).1.is_ok(), "who is gone watches no more");
    assert_eq!(w.pushes(b).len(), 1);
}

#[test]
fn an_end_is_remembered_for_a_day_and_its_key_longer() {
    on_both(|mut w| {
        let (_, b, run) = called(&mut w);
        w.done(b, ending(run, 1));
        w.sleep(RUN_KEPT_MS - 200_000);
        w.pass(100_000);
        let a = w.join(11);
        assert_eq!(w.start_run(a, ring(to(2), "k")).state, RunState::Ok);
        assert_eq!(w.told(a), ["end 1 ok"]);
        w.pass(200_000);
        assert_eq!(code(&w.call(a, Call::RunGet(RunIdParams { run_id: run }))), ErrorCode::NotFound);
        assert_eq!(code(&w.try_start(a, ring(to(2), "k"))), ErrorCode::Expired);
    });
}

#[test]
fn nothing_is_told_before_it_is_on_disk_and_a_failed_end_is_tried_again() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.set_disk(Disk::Holds);
    let asked = w.ask(b, ending(run, 1));
    let again = w.ask(b, ending(run, 1));
    assert_eq!(w.run(a, run).state, RunState::Running);
    assert!(w.answered(b, &asked).is_none() && w.told(a).is_empty());
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    for request in [&asked, &again] {
        assert_eq!(code(&w.answered(b, request).unwrap()), ErrorCode::Unavailable);
    }
    assert!(w.told(a).is_empty());
    w.set_disk(Disk::Commits);
    w.pass(2_000);
    assert_eq!(w.told(a), ["end 1 ok"]);
    w.done(b, ending(run, 1));

    w.set_disk(Disk::Fails);
    assert_eq!(code(&w.try_start(a, ring(to(2), "l"))), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    w.start_run(a, ring(to(2), "l"));
}
