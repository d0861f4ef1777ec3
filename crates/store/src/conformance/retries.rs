//! What a store promises about taking dead letters out, and about times that count no more; one case each.

use tenure_mesh::messages::envelope::{Envelope, Lane};
use tenure_mesh::store::record::{Burial, Reader, StoreFound, StoreOutcome, StoreRead, StoreWrite};
use tenure_proto::log::LogName;
use tenure_proto::name::GroupName;

use super::Engine;
use super::messages::*;
use crate::Store;

fn crew(name: &str) -> GroupName {
    name.parse().unwrap()
}

fn bury(store: &mut impl Store, log: &LogName, seq: u64, group: Option<&str>, remove: bool) {
    let burial = Burial {
        log: log.clone(),
        lane: Lane(0),
        seq,
        group: group.map(crew),
        attempts: 3,
        reason: "max_attempts".to_owned(),
        at: NOW,
        remove,
    };
    apply(store, StoreWrite::Bury(Box::new(burial)));
}

fn dead(store: &impl Store, log: &LogName) -> Vec<(u64, Option<GroupName>)> {
    let all = StoreRead::Dead { log: log.clone(), after: 0, limit: 100, bytes: usize::MAX };
    match read(store, &all) {
        StoreFound::Dead { letters, .. } => letters.into_iter().map(|l| (l.entry.seq, l.group)).collect(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn only_the_letters_of_named_crews_are_taken_out<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("jobs");
    fill(&mut store, &log, 1..3);
    bury(&mut store, &log, 1, Some("a"), false);
    bury(&mut store, &log, 1, Some("b"), false);
    bury(&mut store, &log, 2, None, true);
    let revive =
        |crews: Option<Vec<GroupName>>| StoreWrite::Revive { log: log.clone(), seqs: vec![1, 2], crews };
    let none = apply(&mut store, revive(Some(vec![crew("c")])));
    assert_eq!(none, StoreOutcome::Revived(Vec::new()));
    assert_eq!(dead(&store, &log), [(1, Some(crew("a"))), (1, Some(crew("b"))), (2, None)]);
    let one = apply(&mut store, revive(Some(vec![crew("b"), crew("c")])));
    assert_eq!(one, StoreOutcome::Revived(vec![(Lane(0), 1, Some(crew("b")), 3)]));
    assert_eq!(dead(&store, &log), [(1, Some(crew("a"))), (2, None)], "the others stay");
    assert_eq!(seqs(&store, &log, Lane(0)), [1], "and so does what they are of");
    drop(store);
    let mut store = place.open();
    let rest = apply(&mut store, revive(None));
    let all = vec![(Lane(0), 1, Some(crew("a")), 3), (Lane(0), 2, None, 3)];
    assert_eq!(rest, StoreOutcome::Revived(all));
    assert_eq!((dead(&store, &log), seqs(&store, &log, Lane(0))), (Vec::new(), vec![1, 2]));
}

pub(crate) fn what_was_settled_late_does_not_expire<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("jobs");
    for n in 1..4 {
        send(&mut store, accept(log.clone(), Envelope { expires_at: Some(NOW + 10), ..plain(n) }));
    }
    let record = group(7, &log, Lane(0), Reader::Shared(crew("a")));
    apply(&mut store, advance(&record, 3, &[]));
    let expired = |store: &E::Store| match read(store, &StoreRead::Expired { now: NOW + 10, limit: 10 }) {
        StoreFound::Expired(entries) => entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(expired(&store), [1, 2, 3]);
    let settled = StoreWrite::Unexpire { log: log.clone(), lane: Lane(0), seqs: vec![1, 3, 99] };
    assert_eq!(apply(&mut store, settled), StoreOutcome::Done);
    assert_eq!(expired(&store), [2]);
    drop(store);
    let store = place.open();
    assert_eq!(expired(&store), [2]);
    assert_eq!(seqs(&store, &log, Lane(0)), [1, 2, 3], "they are still there");
}
