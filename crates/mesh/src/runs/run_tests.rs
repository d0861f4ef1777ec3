//! One run by itself: numbers, ring, cursors, and an end that comes once.

use serde_json::json;

use super::*;

const CALLER: MemberKey = MemberKey([1; 32]);
const CALLEE: SessionKey = SessionKey([2; 32]);
const WATCHER: SessionKey = SessionKey([3; 32]);

fn run() -> Run {
    Run::new(RunId(7), CALLER, LogName::Session(CALLEE), 1, 10)
}

fn add(run: &mut Run, seq: u64, bytes: usize) {
    assert_eq!(run.step(seq), Step::Next);
    run.keep(seq, json!("x".repeat(bytes)));
}

/// Everything that a watcher gets now: numbers, `0` for the end, and which came after a gap.
fn drain(run: &mut Run, session: &SessionKey) -> Vec<(u64, bool)> {
    let mut got = Vec::new();
    while run.has_for(session) {
        let EventBody::Run(event) = &*run.feed(session).unwrap().event else { panic!("not of a run") };
        let seq = if event.end.is_some() { 0 } else { event.seq.unwrap().get() };
        got.push((seq, event.gap));
    }
    assert!(run.feed(session).is_none());
    got
}

#[test]
fn numbers_follow_each_other() {
    let mut run = run();
    assert_eq!((run.step(2), run.step(1)), (Step::Gap, Step::Next));
    add(&mut run, 1, 1);
    assert_eq!((run.step(1), run.step(3), run.step(2)), (Step::Again, Step::Gap, Step::Next));
}

#[test]
fn each_watcher_has_a_cursor_of_its_own() {
    let mut run = run();
    assert!(run.watch(WATCHER, None));
    add(&mut run, 1, 1);
    add(&mut run, 2, 1);
    assert_eq!(drain(&mut run, &WATCHER), [(1, false), (2, false)]);
    assert!(run.watch(CALLEE, Some(2)) && run.watch(WATCHER, None));
    assert_eq!(drain(&mut run, &CALLEE), [(2, false)]);
    assert_eq!(drain(&mut run, &WATCHER), []);
    assert!(run.watch(WATCHER, Some(0)));
    assert_eq!(drain(&mut run, &WATCHER), [(1, false), (2, false)]);
    assert!(run.watch(WATCHER, Some(4)), "one that has more than this broker");
    add(&mut run, 3, 1);
    add(&mut run, 4, 1);
    assert_eq!(drain(&mut run, &WATCHER), [(4, false)]);
    run.unwatch(&WATCHER);
    assert!(!run.has_for(&WATCHER));
}

#[test]
fn the_ring_lets_the_oldest_go_and_that_is_a_gap() {
    let mut run = run();
    assert!(run.watch(WATCHER, None));
    for seq in 1..=5 {
        add(&mut run, seq, RUN_RING_BYTES / 4);
    }
    assert!(run.ring_bytes() <= RUN_RING_BYTES);
    assert_eq!(drain(&mut run, &WATCHER), [(3, true), (4, false), (5, false)]);
    add(&mut run, 6, 2 * RUN_RING_BYTES);
    assert_eq!((run.oldest(), run.chunks()), (Some(6), 1), "a chunk that is larger is alone");
    assert_eq!(drain(&mut run, &WATCHER), [(6, false)]);
    add(&mut run, 7, 1);
    add(&mut run, 8, 1);
    run.drop_through(7);
    assert_eq!(drain(&mut run, &WATCHER), [(8, true)]);
    run.drop_through(8);
    assert_eq!((run.ring_bytes(), run.chunks()), (0, 0));
}

#[test]
fn it_ends_once_and_then_its_watchers_are_none_any_more() {
    let mut run = run();
    assert!(run.watch(WATCHER, None));
    add(&mut run, 1, 1);
    run.decide(RunState::Ok, Some(json!(1)), None, 5, None);
    run.decide(RunState::Cancelled, None, None, 6, None);
    assert_eq!((run.outcome(), run.state()), (Some(RunState::Ok), RunState::Queued), "not on disk yet");
    assert_eq!(drain(&mut run, &WATCHER), [(1, false)]);
    assert!(run.says_again(RunState::Ok, Some(&json!(1)), None));
    assert!(!run.says_again(RunState::Ok, None, None));
    assert_eq!(run.end().map(|ending| ending.at), Some(5));
    assert_eq!((run.state(), run.watched()), (RunState::Ok, 1));
    assert_eq!(drain(&mut run, &WATCHER), [(0, false)]);
    assert_eq!(run.watched(), 0);
    assert!(run.watch(WATCHER, Some(1)));
    assert_eq!(drain(&mut run, &WATCHER), [(1, false), (0, false)]);
}

#[test]
fn watchers_are_bounded() {
    let mut run = run();
    for n in 0..RUN_WATCHERS as u8 {
        assert!(run.watch(SessionKey([n + 10; 32]), None));
    }
    assert!(!run.watch(WATCHER, None));
    assert!(run.watch(SessionKey([10; 32]), Some(3)), "one that watches may ask again");
}

#[test]
fn the_first_number_after_a_start_sets_the_sequence() {
    let record = RunRecord {
        id: RunId(7),
        caller: CALLER,
        caller_session: WATCHER,
        callee: Some((CALLEE, MemberKey([4; 32]))),
        log: LogName::Session(CALLEE),
        lane: crate::messages::envelope::Lane(0),
        seq: 1,
        size: 10,
        state: RunState::Running,
        cancelled: false,
        last_seq: 0,
        result: None,
        error: None,
        deadline: 9,
        started_at: 1,
        ended_at: None,
    };
    let mut run = Run::restored(record.clone());
    assert!(run.is_living() && run.is_answered_by(&CALLEE) && !run.is_answered_by(&WATCHER));
    assert!(run.watch(WATCHER, None));
    add(&mut run, 40, 1);
    assert_eq!(run.step(42), Step::Gap);
    assert_eq!(drain(&mut run, &WATCHER), [(40, true)]);
    let (state, ended_at) = (RunState::Ok, Some(8));
    let mut ended = Run::restored(RunRecord { state, ended_at, last_seq: 3, ..record });
    assert!(ended.watch(WATCHER, Some(4)) && ended.watch(CALLEE, None));
    assert_eq!(drain(&mut ended, &WATCHER), [(0, false)]);
    assert_eq!(drain(&mut ended, &CALLEE), [(0, true)], "its chunks are gone");
}
