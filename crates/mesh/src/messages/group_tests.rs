use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn session(n: u8) -> SessionKey {
    SessionKey([n; 32])
}

fn holder(n: u8) -> Holder {
    Holder { session: session(n), sub: "s".parse().unwrap() }
}

fn settled(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Settled(..))
}

#[test]
fn a_tag_settles_once_and_again_means_done() {
    let mut group = Group::at(0);
    group.take_new(1, holder(1), None, None);
    assert!(settled(&group.settle(1, 1, &session(1))));
    assert_eq!(group.settle(1, 1, &session(1)), Verdict::Again);
    assert_eq!(group.settle(2, 1, &session(1)), Verdict::Stale("never_delivered"));
    assert_eq!((group.cursor(), group.floor()), (1, 1));
}

#[test]
fn a_lone_reader_is_believed_about_an_attempt_that_a_crash_forgot() {
    let mut group = Group::at(3);
    let record = OpenRecord { seq: 2, attempt: 1, tries: 1, holder: None, ready_at: None, lasting: false };
    group.restore(&record, OpenState::Ready, None);
    assert_eq!(group.claim(2, 2, &session(1)), Claim::Stale("requeued"));
    group.assume_attempt(2, 2, session(1));
    assert_eq!(group.claim(2, 2, &session(1)), Claim::Good);
    group.assume_attempt(2, 1, session(1));
    assert_eq!(group.claim(2, 1, &session(1)), Claim::Stale("requeued"), "it was given back");
    // One that had waited for its time, and was never handed out before.
    let record = OpenRecord { seq: 3, attempt: 0, tries: 0, ready_at: Some(5), ..record };
    group.restore(&record, OpenState::Ready, None);
    assert!(matches!(group.claim(3, 1, &session(1)), Claim::Stale(_)));
    group.assume_attempt(3, 1, session(1));
    assert_eq!(group.claim(3, 1, &session(1)), Claim::Good);
}

#[test]
fn a_late_tag_counts_until_somebody_else_has_the_entry() {
    let mut group = Group::at(0);
    group.take_new(1, holder(1), None, None);
    group.give_back(1, None, true);
    assert_eq!(group.claim(1, 1, &session(1)), Claim::Good, "unclaimed, and its attempt has not moved on");
    assert_eq!(group.take_ready(1, holder(2), None), Some(2));
    assert_eq!(group.settle(1, 1, &session(1)), Verdict::Stale("requeued"));
    assert_eq!(group.settle(1, 2, &session(1)), Verdict::Stale("requeued"), "another's attempt");
    assert!(settled(&group.settle(1, 2, &session(2))));
}

#[test]
fn what_was_given_back_comes_before_what_is_new_and_in_order() {
    let mut group = Group::at(0);
    for seq in 1..=3 {
        group.take_new(seq, holder(1), None, None);
    }
    group.give_back(3, None, false);
    group.give_back(1, None, false);
    assert_eq!(group.first_ready(), Some(1));
    assert_eq!(group.floor(), 0);
    group.take_ready(1, holder(2), None);
    assert_eq!(group.first_ready(), Some(3));
}

#[test]
fn an_ack_timeout_fires_unless_there_was_progress() {
    let mut group = Group::at(0);
    group.take_new(1, holder(1), Some(Millis(10)), None);
    group.take_new(2, holder(1), Some(Millis(10)), None);
    group.progress(1, Some(Millis(20)));
    assert_eq!(group.next_deadline(), Some(Millis(10)));
    assert_eq!(group.fire(Millis(9)), None);
    assert_eq!(group.fire(Millis(10)), Some(Fired::TimedOut(2, 1)));
    group.give_back(2, None, true);
    assert_eq!(group.fire(Millis(10)), None);
    assert_eq!(group.fire(Millis(20)), Some(Fired::TimedOut(1, 1)));
}

#[test]
fn a_delay_ends_by_itself() {
    let mut group = Group::at(0);
    group.delay_new(1, Millis(50), 1_050, None);
    assert_eq!((group.first_ready(), group.next_deadline()), (None, Some(Millis(50))));
    assert_eq!(group.fire(Millis(50)), Some(Fired::Ready));
    assert_eq!(group.take_ready(1, holder(1), None), Some(1), "the first time anybody gets it");
}

#[test]
fn the_store_is_told_what_changed_and_only_that() {
    let mut group = Group::at(0);
    group.take_new(1, holder(1), None, None);
    group.take_new(2, holder(1), None, None);
    group.settle(1, 1, &session(1));
    let changes = group.take_changes();
    assert_eq!((changes.put.len(), changes.del.len()), (1, 0), "1 came and went between two writes");
    assert!(!group.is_dirty());
    group.settle(2, 1, &session(1));
    assert_eq!(group.take_changes().del, [2]);
    group.changes_lost();
    assert!(group.is_dirty() && group.take_changes().replace);
}

#[derive(Clone, Debug)]
enum Op {
    New(u8),
    Ready(u8),
    Settle { seq: u64, attempt: u32, by: u8 },
    Back { seq: u64, delay: Option<u64> },
    Reclaim { seq: u64, by: u8 },
    Time(u64),
    Written { lost: bool },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1u8..4).prop_map(Op::New),
        3 => (1u8..4).prop_map(Op::Ready),
        4 => (1u64..12, 0u32..4, 1u8..4).prop_map(|(seq, attempt, by)| Op::Settle { seq, attempt, by }),
        3 => (1u64..12, proptest::option::of(0u64..30)).prop_map(|(seq, delay)| Op::Back { seq, delay }),
        1 => (1u64..12, 1u8..4).prop_map(|(seq, by)| Op::Reclaim { seq, by }),
        2 => (0u64..20).prop_map(Op::Time),
        2 => any::<bool>().prop_map(|lost| Op::Written { lost }),
    ];
    proptest::collection::vec(op, 0..80)
}

/// What the store would hold after the writes that it took.
#[derive(Default)]
struct Disk {
    cursor: u64,
    open: BTreeMap<u64, OpenRecord>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// However it is treated, every entry is in exactly one place, is settled at most once, and what the store was
    /// told is what a new start needs.
    #[test]
    fn every_entry_is_in_one_place_and_the_store_knows(ops in ops()) {
        let (mut group, mut disk, mut now, mut next) = (Group::at(0), Disk::default(), Millis(0), 1);
        let mut done = BTreeMap::new();
        for op in ops {
            match op {
                Op::New(by) => {
                    group.take_new(next, holder(by), Some(now.plus(25)), None);
                    next += 1;
                }
                Op::Ready(by) => {
                    if let Some(seq) = group.first_ready() {
                        prop_assert!(group.take_ready(seq, holder(by), None).is_some());
                    }
                }
                Op::Settle { seq, attempt, by } => {
                    let claim = group.claim(seq, attempt, &session(by));
                    let verdict = group.settle(seq, attempt, &session(by));
                    prop_assert_eq!(claim == Claim::Good, settled(&verdict));
                    if settled(&verdict) {
                        prop_assert!(done.insert(seq, ()).is_none(), "{} settled twice", seq);
                    }
                    prop_assert_eq!(verdict == Verdict::Again, claim == Claim::Done);
                }
                Op::Back { seq, delay } => {
                    let delay = delay.map(|ms| (now.plus(ms), ms));
                    group.give_back(seq, delay, true);
                }
                Op::Reclaim { seq, by } => group.reclaim(seq, holder(by), None),
                Op::Time(ms) => {
                    now = now.plus(ms);
                    while let Some(fired) = group.fire(now) {
                        if let Fired::TimedOut(seq, _) = fired {
                            group.give_back(seq, None, true);
                        }
                    }
                    prop_assert!(group.next_deadline().is_none_or(|due| due > now));
                }
                Op::Written { lost } => {
                    let changes = group.take_changes();
                    if lost {
                        group.changes_lost();
                        continue;
                    }
                    if changes.replace {
                        disk.open.clear();
                    }
                    disk.cursor = group.cursor();
                    for seq in changes.del {
                        prop_assert!(disk.open.remove(&seq).is_some(), "a row that was never written");
                    }
                    disk.open.extend(changes.put.into_iter().map(|record| (record.seq, record)));
                    let open: BTreeMap<_, _> = group.opens().map(|(seq, open)| (seq, open.record(seq))).collect();
                    prop_assert_eq!(&disk.open, &open);
                }
            }
            let (mut ready, mut delayed) = (Vec::new(), Vec::new());
            for (seq, open) in group.opens() {
                prop_assert!(seq <= group.cursor() && !done.contains_key(&seq));
                match &open.state {
                    OpenState::Ready => ready.push(seq),
                    OpenState::Delayed(until, _) => delayed.push((*until, seq)),
                    OpenState::Held { .. } => {}
                }
            }
            delayed.sort_unstable();
            prop_assert!(group.ready().eq(ready));
            prop_assert!(group.delayed.iter().copied().eq(delayed));
            prop_assert_eq!(done.len() + group.open_len(), (next - 1) as usize, "nothing is lost");
        }
    }
}

#[test]
fn what_was_given_back_or_waits_is_settled_by_nobody_who_has_not_had_it() {
    let mut group = Group::at(0);
    group.take_new(1, holder(1), None, None);
    group.give_back(1, None, true);
    group.delay_new(2, Millis(50), 50, None);
    assert_eq!(group.settle(1, 1, &session(2)), Verdict::Stale("requeued"), "another had it");
    for attempt in 0..3 {
        assert_eq!(group.settle(2, attempt, &session(2)), Verdict::Stale("requeued"), "nobody had it");
    }
    assert!(settled(&group.settle(1, 1, &session(1))));
}
