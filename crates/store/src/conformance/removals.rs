//! What a store promises about what leaves a log, one case each.

use tenure_mesh::messages::accept::{Accept, Accepted};
use tenure_mesh::messages::envelope::{Envelope, Lane};
use tenure_mesh::store::record::{
    Burial, DeadEntry, Reader, StoreFound, StoreOutcome, StoreRead, StoreWrite,
};
use tenure_proto::ids::SessionKey;
use tenure_proto::log::LogName;
use tenure_proto::message::{Fallback, Priority, SendState};

use super::messages::*;
use super::{Engine, end, lease, put};
use crate::Store;

fn burial(log: &LogName, lane: Lane, seq: u64, remove: bool) -> Burial {
    let (log, reason) = (log.clone(), "max_attempts".to_owned());
    Burial { log, lane, seq, group: None, attempts: 16, reason, at: NOW + seq, remove }
}

fn bury(store: &mut impl Store, burial: Burial) {
    assert_eq!(apply(store, StoreWrite::Bury(Box::new(burial))), StoreOutcome::Done);
}

fn dead(store: &impl Store, log: &LogName) -> Vec<DeadEntry> {
    let all = StoreRead::Dead { log: log.clone(), after: 0, limit: 1_000, bytes: usize::MAX };
    match read(store, &all) {
        StoreFound::Dead { letters, next: None } => letters,
        other => panic!("{other:?}"),
    }
}

fn fate(store: &impl Store, n: u64) -> (SendState, Option<String>) {
    let ids = vec![format!("c-{n}").parse().unwrap()];
    match read(store, &StoreRead::Fates { member: member(1), ids }) {
        StoreFound::Fates(mut fates) => fates.pop().map(|fate| (fate.state, fate.reason)).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn count(outcome: StoreOutcome) -> (u64, bool) {
    match outcome {
        StoreOutcome::Count { rows, more } => (rows, more),
        other => panic!("{other:?}"),
    }
}

/// Sweeps until nothing is left to look at.
fn sweep(store: &mut impl Store, now: u64, dead_before: u64, limit: u32) -> u64 {
    let mut rows = 0;
    loop {
        let (gone, more) = count(apply(store, StoreWrite::Sweep { now, dead_before, runs_before: 0, limit }));
        rows += gone;
        if !more {
            return rows;
        }
    }
}

pub(crate) fn a_dead_letter_outlives_its_entry_and_can_return<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    fill(&mut store, &log, 1..4);
    let owner = group(1, &log, Lane(1), Reader::Inbox);
    apply(&mut store, advance(&owner, 3, &[2, 3]));
    bury(&mut store, burial(&log, Lane(1), 3, true));
    bury(&mut store, Burial { reason: "expired".into(), ..burial(&log, Lane(1), 2, true) });
    bury(&mut store, burial(&log, Lane(1), 99, true));
    bury(&mut store, burial(&log, Lane(0), 1, true));
    bury(&mut store, burial(&topic("never"), Lane(0), 1, true));
    drop(store);
    let mut store = place.open();
    assert_eq!(seqs(&store, &log, Lane(1)), [1]);
    let letters = dead(&store, &log);
    assert_eq!(letters.iter().map(|letter| letter.entry.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(*letters[1].entry.envelope, plain(3));
    assert_eq!((letters[1].attempts, letters[1].at, &letters[1].group), (16, NOW + 3, &None));
    assert_eq!(fate(&store, 2), (SendState::Expired, Some("expired".into())));
    assert_eq!(fate(&store, 3), (SendState::Dead, Some("max_attempts".into())));
    let again = send(&mut store, accept(log.clone(), plain(3)));
    assert!(matches!(again, Accepted::Duplicate(found) if !found.available && found.seq == 3));
    assert!(store.restore(&mesh()).unwrap().groups[0].open.is_empty(), "nobody has it in hand");
    assert_eq!(send_seq(&mut store, &log, 4), 4, "its number is not given again");

    let revive = StoreWrite::Revive { log: log.clone(), seqs: vec![3, 3, 8], crews: None };
    assert_eq!(apply(&mut store, revive.clone()), StoreOutcome::Revived(vec![(Lane(1), 3, None, 16)]));
    assert_eq!(apply(&mut store, revive), StoreOutcome::Revived(vec![]));
    assert_eq!(seqs(&store, &log, Lane(1)), [1, 3, 4]);
    let again = send(&mut store, accept(log.clone(), plain(3)));
    assert!(matches!(again, Accepted::Duplicate(found) if found.available));
    assert_eq!(store.check(), Ok(vec![]));
}

fn send_seq(store: &mut impl Store, log: &LogName, n: u64) -> u64 {
    match send(store, accept(log.clone(), plain(n))) {
        Accepted::Fresh { seq, .. } => seq,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn each_group_has_its_own_dead_letters<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    fill(&mut store, &log, 1..5);
    let of = |group: &str, seq: u64| Burial {
        group: Some(group.parse().unwrap()),
        ..burial(&log, Lane(0), seq, false)
    };
    for letter in [of("b", 1), of("a", 1), of("b", 2), of("a", 3), of("a", 3)] {
        bury(&mut store, letter);
    }
    assert_eq!(seqs(&store, &log, Lane(0)), [1, 2, 3, 4], "copies");
    assert_eq!(fate(&store, 1), (SendState::Accepted, None), "what a crew gives up is its own affair");
    assert_eq!(fate(&store, 4).0, SendState::Accepted);
    let names = |letters: &[DeadEntry]| -> Vec<(u64, String)> {
        letters.iter().map(|letter| (letter.entry.seq, letter.group.clone().unwrap().to_string())).collect()
    };
    let expected = [(1, "a".into()), (1, "b".into()), (2, "b".into()), (3, "a".into())];
    assert_eq!(names(&dead(&store, &log)), expected);
    for (after, limit, bytes, range, next) in [
        (0, 1, 999, 0..2, Some(1)),
        (0, 9, 1, 0..2, Some(1)),
        (1, 1, 999, 2..3, Some(2)),
        (2, 1, 999, 3..4, None),
        (3, 9, 999, 4..4, None),
    ] {
        match read(&store, &StoreRead::Dead { log: log.clone(), after, limit, bytes }) {
            StoreFound::Dead { letters, next: found } => {
                assert_eq!((names(&letters), found), (expected[range].to_vec(), next));
            }
            other => panic!("{other:?}"),
        }
    }
    let dropped = apply(&mut store, StoreWrite::DropDead { log: log.clone(), seqs: vec![1, 7, 1] });
    assert_eq!(count(dropped).0, 2);
    let revived = apply(&mut store, StoreWrite::Revive { log: log.clone(), seqs: vec![3, 2], crews: None });
    let StoreOutcome::Revived(letters) = revived else { panic!("{revived:?}") };
    assert_eq!(letters.iter().map(|letter| letter.1).collect::<Vec<_>>(), [2, 3]);
    assert!(dead(&store, &log).is_empty());
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn what_is_gone_for_good_stays_dead<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    fill(&mut store, &log, 1..4);
    for (seq, reason) in [(1, "poison"), (2, "expired"), (3, "odd")] {
        bury(&mut store, Burial { reason: reason.into(), ..burial(&log, Lane(1), seq, true) });
    }
    apply(&mut store, StoreWrite::DropDead { log: log.clone(), seqs: vec![1] });
    assert_eq!(sweep(&mut store, NOW, NOW + 3, 1), 1, "one of the two is old enough");
    assert_eq!(dead(&store, &log).len(), 1);
    assert_eq!(fate(&store, 1), (SendState::Dead, Some("poison".into())));
    assert_eq!(fate(&store, 2), (SendState::Expired, Some("expired".into())));
    assert_eq!(fate(&store, 3), (SendState::Dead, Some("odd".into())));
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn pruning_goes_in_slices_and_ids_stay_known<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    fill(&mut store, &log, 1..11);
    let prune = |store: &mut E::Store, through: u64, before: u64, limit: u32| {
        let (log, lane) = (log.clone(), Lane(0));
        let write = StoreWrite::Prune { log, lane, through, before, keep_bytes: None, at: NOW, limit };
        match apply(store, write) {
            StoreOutcome::Pruned { through, more } => (through, more),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(prune(&mut store, 3, u64::MAX, 2), (2, true));
    assert_eq!(prune(&mut store, 3, u64::MAX, 2), (3, false));
    assert_eq!(prune(&mut store, 10, NOW + 6, 9), (5, false), "the others are too young");
    assert_eq!(prune(&mut store, 10, NOW + 6, 9), (0, false));
    assert_eq!(seqs(&store, &log, Lane(0)), [6, 7, 8, 9, 10]);
    let again = send(&mut store, accept(log.clone(), plain(2)));
    assert!(matches!(again, Accepted::Duplicate(found) if !found.available && found.seq == 2));
    assert_eq!(prune(&mut store, u64::MAX, u64::MAX, 99), (10, false));
    drop(store);
    let mut store = place.open();
    let lane = store.restore(&mesh()).unwrap().logs[0].lanes[0].clone();
    assert_eq!((lane.end, lane.count, lane.pruned, lane.bytes), (10, 10, 10, 61));
    assert_eq!(send_seq(&mut store, &log, 11), 11, "numbers outlive their entries");
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn a_cap_lets_the_oldest_go_and_buries_what_somebody_has_not_read<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    fill(&mut store, &log, 1..11);
    let total = store.restore(&mesh()).unwrap().logs[0].lanes[0].bytes;
    let prune = |store: &mut E::Store, keep_bytes: u64| {
        let (log, lane, through, before) = (log.clone(), Lane(0), 2, 0);
        apply(
            store,
            StoreWrite::Prune {
                log,
                lane,
                through,
                before,
                keep_bytes: Some(keep_bytes),
                at: NOW,
                limit: 99,
            },
        )
    };
    assert_eq!(prune(&mut store, total), StoreOutcome::Pruned { through: 0, more: false });
    // Bodies are six bytes, the last one seven: three of the newest are nineteen.
    assert_eq!(prune(&mut store, 19), StoreOutcome::Pruned { through: 7, more: false });
    assert_eq!(seqs(&store, &log, Lane(0)), [8, 9, 10]);
    let letters = dead(&store, &log);
    assert_eq!(letters.len(), 5, "1 and 2 were settled by everybody");
    assert!(letters.iter().all(|letter| letter.reason == "retention" && letter.group.is_none()));
    assert_eq!(store.check(), Ok(vec![]));
}

fn evacuate(session: SessionKey, limit: u32, after: (Lane, u64)) -> StoreWrite {
    StoreWrite::Evacuate {
        session,
        member: member(9),
        limit,
        after,
        through: u64::from(u32::MAX),
        at: NOW + 500,
    }
}

pub(crate) fn an_inbox_is_evacuated_in_slices<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let (log, theirs) = (inbox(9), LogName::Member(member(9)));
    send(&mut store, accept(theirs.clone(), plain(100)));
    let fallbacks = [Fallback::Member, Fallback::Hold, Fallback::Fail];
    for n in 1..=12 {
        let fallback = fallbacks[n as usize % 3];
        let priority = if n > 6 { Priority::Low } else { Priority::Next };
        send(&mut store, accept(log.clone(), Envelope { fallback, priority, ..plain(n) }));
    }
    // Of the first six, 1, 2 and 4 are settled, 3 is in hand, 5 and 6 were never read.
    apply(&mut store, advance(&group(1, &log, Lane(1), Reader::Inbox), 4, &[3]));
    let (mut moved, mut failed, mut after, mut calls) = (Vec::new(), Vec::new(), (Lane(0), 0), 0);
    let mut left = Vec::new();
    loop {
        let outcome = apply(&mut store, evacuate(session(9), 2, after));
        let StoreOutcome::Evacuated { moved: more, failed: worse, next } = outcome else { panic!() };
        left.extend(more.iter().map(|moved| moved.from));
        moved.extend(more.into_iter().map(|moved| moved.entry));
        failed.extend(worse);
        calls += 1;
        match next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(calls, 5, "nine were looked at");
    let from = |entries: &[std::sync::Arc<tenure_mesh::messages::envelope::Entry>]| -> Vec<u64> {
        entries.iter().map(|entry| entry.envelope.sent_at - NOW).collect()
    };
    assert_eq!(from(&moved), [3, 6, 9, 12]);
    assert_eq!(left, [3, 6, 9, 12], "their old places are told");
    assert_eq!(from(&failed), [5, 8, 11]);
    let places: Vec<_> = moved.iter().map(|entry| (entry.log.clone(), entry.lane.0, entry.seq)).collect();
    let at = |lane: u8, seq: u64| (theirs.clone(), lane, seq);
    assert_eq!(places, [at(1, 2), at(1, 3), at(2, 4), at(2, 5)]);
    assert_eq!(lane(&store, &theirs, Lane(2)), moved[2..]);
    assert_eq!(seqs(&store, &log, Lane(1)), [1, 2, 4], "settled ones and those that hold stay");
    assert_eq!(seqs(&store, &log, Lane(2)), [7, 10]);
    let letters = dead(&store, &log);
    assert_eq!(letters.len(), 3);
    assert!(letters.iter().all(|letter| letter.reason == "lease_expired" && letter.at == NOW + 500));
    assert_eq!(fate(&store, 8), (SendState::Dead, Some("lease_expired".into())));
    let again = send(&mut store, accept(log.clone(), plain(6)));
    assert!(
        matches!(&again, Accepted::Duplicate(found) if found.available && found.log == theirs && found.seq == 3),
        "{again:?}"
    );
    assert!(store.restore(&mesh()).unwrap().groups[0].open.is_empty());
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn a_sweep_forgets_what_has_outlived_its_time<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    let (empty, holding) = (lease("m", 8), lease("m", 9));
    store.apply(&[put(&empty), put(&holding), put(&lease("m", 7))]).unwrap();
    for (n, until) in [(1, Some(NOW + 10)), (2, Some(NOW + 20)), (3, None)] {
        let remember_until = until;
        send(&mut store, Accept { remember_until, ..accept(inbox(9), plain(n)) });
    }
    fill(&mut store, &inbox(8), 4..6);
    apply(&mut store, advance(&group(1, &inbox(8), Lane(1), Reader::Inbox), 5, &[]));
    apply(
        &mut store,
        StoreWrite::Prune {
            log: inbox(8),
            lane: Lane(1),
            through: 5,
            before: u64::MAX,
            keep_bytes: None,
            at: 0,
            limit: 9,
        },
    );
    store.apply(&[end(&empty), end(&holding)]).unwrap();
    assert_eq!(sweep(&mut store, NOW + 9, 1_000, 2), 0, "nothing is old enough");
    let gone = sweep(&mut store, NOW + 10, 1_001, 1);
    assert_eq!(gone, 4, "an id, the session whose inbox is empty, and what was kept of both ends");
    let found = store.restore(&mesh()).unwrap();
    assert_eq!(found.logs.iter().map(|log| &log.log).collect::<Vec<_>>(), [&inbox(9)]);
    assert!(found.groups.is_empty());
    assert_eq!(fate(&store, 1).0, SendState::Unknown);
    assert_eq!(fate(&store, 4).0, SendState::Delivered, "ids outlive the session");
    assert_eq!(store.check(), Ok(vec![]), "an entry may outlive its record");
    drop(store);
    let mut store = place.open();
    assert_eq!(sweep(&mut store, NOW + 20, 1_001, 1), 1);
    let reused = send(&mut store, accept(inbox(9), Envelope { id: plain(77).id, ..plain(1) }));
    assert!(matches!(reused, Accepted::Fresh { seq: 4, .. }), "a forgotten id is free: {reused:?}");
    assert_eq!(send_seq(&mut store, &inbox(8), 50), 3, "a log that comes back numbers on");
    assert_eq!(store.restore(&mesh()).unwrap().logs.len(), 2);
    assert_eq!(store.check(), Ok(vec![]));
}
