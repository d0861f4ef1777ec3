//! Runs: the third row of an accept, who answers, and how it ended.

use serde_json::json;
use tenure_mesh::messages::accept::Accept;
use tenure_mesh::messages::envelope::{Envelope, Lane};
use tenure_mesh::store::record::{
    Burial, RunEnding, RunRecord, StoreFound, StoreOutcome, StoreRead, StoreWrite,
};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::RunId;
use tenure_proto::message::{MessageKind, Priority};
use tenure_proto::run::RunState;

use super::Engine;
use super::messages::{NOW, accept, apply, inbox, member, mesh, plain, print, read, send, session};
use crate::Store;

/// Message `n` as a run that must be answered within a second.
fn call(n: u64) -> Accept {
    let (kind, priority) = (MessageKind::Run, Priority::Now);
    let envelope = Envelope { kind, priority, ..plain(n) };
    Accept { run: Some(NOW + 1_000), ..accept(inbox(9), envelope) }
}

fn id(n: u64) -> RunId {
    RunId(plain(n).id.0)
}

fn run(store: &impl Store, n: u64) -> Option<RunRecord> {
    match read(store, &StoreRead::Run(id(n))) {
        StoreFound::Run(found) => found.map(|found| *found),
        other => panic!("{other:?}"),
    }
}

fn claim(n: u64, who: u8) -> StoreWrite {
    StoreWrite::ClaimRun { run: id(n), callee: session(who), member: member(who) }
}

fn end(n: u64, at: u64) -> RunEnding {
    let (state, result) = (RunState::Ok, Some(json!({"a": [1, null, "\u{0}x"]})));
    RunEnding { id: id(n), state, last_seq: 7, result, error: None, at }
}

fn living(store: &mut impl Store) -> Vec<RunId> {
    store.restore(&mesh()).unwrap().runs.into_iter().map(|run| run.id).collect()
}

pub(crate) fn a_run_is_kept_with_its_message_and_reads_as_it_was<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    assert_eq!(run(&store, 1), None);
    send(&mut store, call(1));
    send(&mut store, accept(inbox(9), plain(2)));
    let fresh = RunRecord {
        id: id(1),
        caller: plain(1).from.member,
        caller_session: plain(1).from.session,
        callee: None,
        log: inbox(9),
        lane: Lane(0),
        seq: 1,
        size: plain(1).body.as_bytes().len() as u64,
        state: RunState::Queued,
        cancelled: false,
        last_seq: 0,
        result: None,
        error: None,
        deadline: NOW + 1_000,
        started_at: plain(1).sent_at,
        ended_at: None,
    };
    assert_eq!(run(&store, 1), Some(fresh.clone()));
    assert_eq!(run(&store, 2), None, "a message is none");
    assert_eq!(store.restore(&mesh()).unwrap().runs, std::slice::from_ref(&fresh));
    // Twins and others under its key change nothing.
    send(&mut store, Accept { run: Some(5), ..call(1) });
    send(&mut store, Accept { fingerprint: print(2), ..call(1) });
    assert_eq!(run(&store, 1), Some(fresh.clone()));
    apply(&mut store, claim(1, 3));
    apply(&mut store, claim(1, 4));
    let taken = RunRecord { callee: Some((session(3), member(3))), state: RunState::Running, ..fresh };
    assert_eq!(run(&store, 1), Some(taken.clone()), "the first answers for good");
    apply(&mut store, StoreWrite::CancelRun(id(1)));
    let taken = RunRecord { cancelled: true, ..taken };
    drop(store);
    let mut store = engine.open();
    assert_eq!(store.restore(&mesh()).unwrap().runs, std::slice::from_ref(&taken));
    apply(&mut store, StoreWrite::EndRun(Box::new(end(1, NOW + 5))));
    let error = Some(WireError::new(ErrorCode::Expired, "late").with_details(json!({"x": 1})));
    let other = RunEnding { state: RunState::Error, result: None, error, ..end(1, NOW + 6) };
    apply(&mut store, StoreWrite::EndRun(Box::new(other.clone())));
    let RunEnding { state, last_seq, result, at, .. } = end(1, NOW + 5);
    let ended = RunRecord { state, last_seq, result, ended_at: Some(at), ..taken };
    assert_eq!(run(&store, 1), Some(ended.clone()), "the first end counts");
    assert_eq!(living(&mut store), []);
    send(&mut store, call(3));
    apply(&mut store, StoreWrite::EndRun(Box::new(RunEnding { id: id(3), ..other.clone() })));
    assert_eq!(run(&store, 3).unwrap().error, other.error);
    drop(store);
    assert_eq!(run(&engine.open(), 1), Some(ended));
}

pub(crate) fn a_refused_run_leaves_no_trace<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    let refusal = Some(WireError::new(ErrorCode::Busy, "full"));
    send(&mut store, Accept { refusal, ..call(1) });
    assert_eq!(run(&store, 1), None);
    apply(&mut store, claim(1, 3));
    apply(&mut store, StoreWrite::CancelRun(id(1)));
    apply(&mut store, StoreWrite::EndRun(Box::new(end(1, NOW))));
    assert_eq!(run(&store, 1), None, "what is not there is not made");
}

pub(crate) fn a_sweep_forgets_runs_that_ended_long_ago<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    for n in 1..=4 {
        send(&mut store, call(n));
    }
    for (n, at) in [(1, NOW + 10), (2, NOW + 20), (3, NOW + 30)] {
        apply(&mut store, StoreWrite::EndRun(Box::new(end(n, at))));
    }
    let mut sweep = |runs_before: u64| {
        let write = StoreWrite::Sweep { now: 0, dead_before: 0, runs_before, limit: 100 };
        match apply(&mut store, write) {
            StoreOutcome::Count { rows, .. } => rows,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((sweep(NOW + 10), sweep(NOW + 30)), (0, 2));
    assert_eq!((1..=4).map(|n| run(&store, n).is_some()).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!(living(&mut store), [id(4)]);
    let (log, lane, reason) = (inbox(9), Lane(0), "cancelled".to_owned());
    let burial = Burial { log, lane, seq: 4, group: None, attempts: 0, reason, at: NOW, remove: true };
    apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    assert_eq!(run(&store, 4).unwrap().size, 0, "its message has left");
    assert_eq!(store.check().unwrap(), Vec::<String>::new(), "its end is about to be written");
}
