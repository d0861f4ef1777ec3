//! Runs through breaks: of the caller, of the callee, of the broker.

use serde_json::json;
use tenure_mesh::MeshConfig;
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::limits::{RUN_RING_BYTES, RUN_TIMEOUT_MS};
use tenure_proto::number::U53;
use tenure_proto::reconcile::{ClientInflight, InflightState, ReconcileParams};
use tenure_proto::run::{RunChunkParams, RunIdParams, RunState};

use super::runs::{called, chunk, ending, from, on_both, ring};
use super::words::*;
use super::world::{Disk, Engine, World};

#[test]
fn a_caller_that_flaps_misses_nothing() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.done(b, chunk(run, 1, "x"));
    w.drop_socket(a);
    w.done(b, chunk(run, 2, "y"));
    let admission = w.resuming(11, a);
    let a = w.dial(admission);
    assert_eq!(w.told(a), ["2 y"], "a resumed stream goes on by itself");
    w.drop_socket(a);
    let a = w.join(11);
    w.done(b, chunk(run, 3, "z"));
    assert!(w.told(a).is_empty(), "a new numbering asks again");
    assert_eq!(w.start_run(a, from(ring(to(2), "k"), 2)).run_id, run);
    assert_eq!(w.told(a), ["2 y", "3 z"]);
    w.start_run(a, ring(to(2), "k"));
    assert!(w.told(a).is_empty(), "without a number it goes on from where it is");
    w.start_run(a, from(ring(to(2), "k"), 3));
    w.done(b, ending(run, 4));
    assert_eq!(w.told(a), ["3 z", "end 4 ok"]);
    w.start_run(a, from(ring(to(2), "k"), 1));
    assert_eq!(w.told(a), ["1 x", "2 y", "3 z", "end 4 ok"], "also of a run that has just ended");
    w.pass(120_000);
    let a = w.join(11);
    w.start_run(a, from(ring(to(2), "k"), 4));
    assert_eq!(w.told(a), ["end 4 ok"]);
    w.start_run(a, from(ring(to(2), "k"), 3));
    assert_eq!(w.told(a), ["end 4 ok gap"], "a chunk that is nowhere any more");
}

#[test]
fn the_result_waits_for_a_caller_that_is_gone() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        w.bye(a);
        w.done(b, chunk(run, 1, "x"));
        w.done(b, ending(run, 2));
        w.restart();
        let a = w.join(11);
        assert_eq!(w.run(a, run).result, Some(json!(2)));
        assert_eq!(w.start_run(a, from(ring(to(2), "k"), 2)).state, RunState::Ok);
        assert_eq!(w.told(a), ["end 2 ok"]);
    });
}

#[test]
fn a_callee_that_flaps_goes_on() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.done(b, chunk(run, 1, "x"));
    w.drop_socket(b);
    w.pass(60_000);
    let b = w.resume(2, b);
    w.done(b, chunk(run, 1, "x"));
    w.done(b, chunk(run, 2, "y"));
    w.done(b, ending(run, 3));
    assert_eq!(w.told(a), ["1 x", "2 y", "end 3 ok"]);
}

#[test]
fn a_restarted_broker_takes_up_where_the_callee_is() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        w.done(b, chunk(run, 1, "x"));
        w.done(b, chunk(run, 2, "y"));
        w.restart();
        let a2 = w.resume(11, a);
        let b = w.resume(2, b);
        assert_eq!(w.start_run(a2, from(ring(to(2), "k"), 3)).state, RunState::Running);
        // The callee does not know whether its second came.
        w.done(b, chunk(run, 2, "y"));
        w.done(b, chunk(run, 3, "z"));
        assert_eq!(w.told(a2), ["3 z"], "nothing is missing for who said what it has");
        let twin = w.join(12);
        w.start_run(twin, ring(to(2), "k"));
        assert_eq!(w.told(twin), ["2 y gap", "3 z"], "what came before is lost, and said to be");
        w.done(b, ending(run, 4));
        assert_eq!(w.told(a2), ["end 4 ok"]);
        assert_eq!(w.told(twin), ["end 4 ok"]);
        assert!(w.pushes(b).len() <= 1, "who was called may be handed it again, and knows it");
    });
}

#[test]
fn chunks_lost_with_a_broker_are_a_gap() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.done(b, chunk(run, 1, "x"));
    w.restart();
    let (a, b) = (w.resume(11, a), w.resume(2, b));
    w.start_run(a, from(ring(to(2), "k"), 2));
    w.done(b, chunk(run, 4, "w"));
    w.done(b, chunk(run, 5, "v"));
    assert_eq!(w.told(a), ["4 w gap", "5 v"]);
    assert_eq!(
        code(&w.call(b, chunk(run, 7, "late"))),
        ErrorCode::SeqGap,
        "in one start numbers have no gaps"
    );
    assert_eq!(w.told(a), ["end 6 error seq_gap"]);
}

/// Whatever of the writes got to the disk before a crash, the run ends once and everybody hears the same.
#[test]
fn a_crash_at_any_write_leaves_a_run_that_can_end() {
    for landed in 0..12 {
        on_both(|mut w| {
            let (a, b) = (w.join(11), w.join(2));
            w.set_disk(Disk::Holds);
            let call = w.starting(ring(to(2), "k")).unwrap();
            w.ask(a, call);
            w.commit(landed);
            let pushed = w.pushes(b);
            w.crash(landed);
            let a = w.resume(11, a);
            let inflight: Vec<_> = pushed
                .iter()
                .map(|push| ClientInflight { tag: tag(push), state: InflightState::Processing, settle: None })
                .collect();
            let listed = ReconcileParams { inflight, ..ReconcileParams::default() };
            let (b, _) = w.resume_with(2, b, listed);
            let run = w.start_run(a, ring(to(2), "k")).run_id;
            let fresh = w.pushes(b);
            assert_eq!(pushed.len() + fresh.len(), 1, "landed {landed}: {pushed:?} {fresh:?}");
            w.done(b, chunk(run, 1, "x"));
            w.done(b, ending(run, 2));
            assert_eq!(w.told(a), ["1 x", "end 2 ok"], "landed {landed}");
            w.restart();
            let b = w.join(2);
            assert!(w.pushes(b).is_empty(), "landed {landed}");
            assert_eq!(w.run(b, run).state, RunState::Ok);
        });
    }
}

#[test]
fn an_end_that_a_crash_tore_is_said_again() {
    for landed in 0..6 {
        on_both(|mut w| {
            let (a, b, run) = called(&mut w);
            w.done(b, chunk(run, 1, "x"));
            w.set_disk(Disk::Holds);
            w.ask(b, ending(run, 2));
            assert!(w.pending.len() <= 6, "{:?}", w.pending);
            w.crash(landed);
            let (a, b) = (w.resume(11, a), w.resume(2, b));
            w.start_run(a, from(ring(to(2), "k"), 2));
            w.done(b, ending(run, 2));
            assert_eq!(w.told(a), ["end 2 ok"], "landed {landed}");
            let got = w.run(a, run);
            assert_eq!((got.state, got.last_seq.get(), got.result), (RunState::Ok, 1, Some(json!(2))));
        });
    }
}

#[test]
fn a_callee_whose_end_a_crash_tore_off_fails_its_run() {
    for landed in 0..6 {
        on_both(|mut w| {
            let (a, b, run) = called(&mut w);
            let request = Call::Bye;
            w.set_disk(Disk::Holds);
            w.ask(b, request);
            w.commit(1);
            w.crash(landed);
            let a = w.resume(11, a);
            w.start_run(a, ring(to(2), "k"));
            // Whether or not it says hello before anything else has happened.
            let b = w.dial(knock(2));
            w.pass(1);
            assert!(w.pushes(b).is_empty(), "landed {landed}");
            assert_eq!(w.told(a), ["end 1 error lease_expired"], "landed {landed}");
            assert_eq!(w.run(a, run).error.unwrap().code, ErrorCode::LeaseExpired);
        });
    }
}

#[test]
fn a_start_gives_a_run_a_leases_time() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        w.pass(RUN_TIMEOUT_MS - 10_000);
        w.restart();
        let (a, b) = (w.resume(11, a), w.resume(2, b));
        w.start_run(a, ring(to(2), "k"));
        w.pass(w.config.lease_ttl_ms - 1);
        assert_eq!(w.run(a, run).state, RunState::Running);
        w.pass(1);
        assert_eq!(w.told(a), ["end 1 error expired"]);
        assert_eq!(w.told(b), ["cancel"]);
    });
}

#[test]
fn a_slow_caller_breaks_nothing_and_hears_what_it_missed() {
    let config = MeshConfig { max_payload: RUN_RING_BYTES, ..MeshConfig::default() };
    let mut w = World::new(Engine::memory(), config);
    let (a, b, run) = called(&mut w);
    w.sockets.get_mut(&a).unwrap().flushes = false;
    let piece = "x".repeat(RUN_RING_BYTES / 8);
    for seq in 1..=64 {
        let call = RunChunkParams { run_id: run, seq: U53::saturating(seq), data: json!(piece) };
        w.done(b, Call::RunChunk(call));
    }
    w.done(b, ending(run, 65));
    assert!(w.socket(a).open, "a quick callee does not break a slow caller");
    w.unblock(a);
    let told = w.told(a);
    assert!(w.socket(a).open);
    let heard: Vec<(u64, bool)> = told
        .iter()
        .filter(|word| !word.starts_with("end"))
        .map(|word| (word.split(' ').next().unwrap().parse().unwrap(), word.ends_with("gap")))
        .collect();
    assert_eq!(heard[0], (1, false));
    let gaps: Vec<_> = heard.windows(2).filter(|pair| pair[1].0 != pair[0].0 + 1).collect();
    assert_eq!(gaps.len(), 1, "{heard:?}");
    assert!(heard.windows(2).all(|pair| pair[1].1 == (pair[1].0 != pair[0].0 + 1)), "{heard:?}");
    assert_eq!(heard.last().unwrap().0, 64);
    assert_eq!(told.last().unwrap(), "end 65 ok");
}

#[test]
fn runs_take_turns_on_a_slow_socket() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    let other = w.start_run(a, ring(to(2), "other")).run_id;
    w.sockets.get_mut(&a).unwrap().flushes = false;
    for seq in 1..=400 {
        w.done(b, chunk(run, seq, "x"));
    }
    for seq in 1..=3 {
        w.done(b, chunk(other, seq, "o"));
    }
    w.unblock(a);
    let told = w.told(a);
    assert_eq!(told.len(), 403);
    let last = told.iter().rposition(|word| word.ends_with('o')).unwrap();
    assert!(last < 400, "{last}");
}

#[test]
fn whoever_asks_for_a_run_from_a_chunk_on_gets_that_next() {
    let mut w = world();
    let (a, b, run) = called(&mut w);
    w.sockets.get_mut(&a).unwrap().flushes = false;
    for seq in 1..=400 {
        w.done(b, chunk(run, seq, "x"));
    }
    w.start_run(a, from(ring(to(2), "k"), 50));
    w.unblock(a);
    let heard = w.told(a);
    let expected: Vec<String> = std::iter::once(1).chain(50..=400).map(|seq| format!("{seq} x")).collect();
    assert_eq!(heard, expected, "the first had left");
}

#[test]
fn a_cancel_is_told_once_and_after_a_start_again() {
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        for _ in 0..3 {
            w.cancel(a, run);
        }
        assert_eq!(w.told(b), ["cancel"]);
        w.restart();
        let b = w.join(2);
        assert_eq!(w.told(b), ["cancel"]);
    });
}

#[test]
fn a_cancel_is_answered_when_it_is_on_disk() {
    let mut w = world();
    let (a, _, run) = called(&mut w);
    w.set_disk(Disk::Fails);
    let outcome = w.call(a, Call::RunCancel(RunIdParams { run_id: run }));
    assert_eq!(code(&outcome), ErrorCode::Unavailable);
}
