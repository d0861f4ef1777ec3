//! What a store promises, one case each.

use std::slice;

use tenure_proto::U53;
use tenure_proto::peer::{Profile, Status};

use super::{Engine, end, identity, lease, put, touch};
use crate::{LeaseRow, Store, StoreError, Write};

/// Leases that are more than a starved store has room for.
pub(crate) const BULK: u8 = 200;

fn rows(store: &mut impl Store) -> Vec<LeaseRow> {
    store.leases().unwrap().into_iter().map(|stored| stored.row).collect()
}

fn spent(store: &mut impl Store) -> Vec<u64> {
    store.leases().unwrap().into_iter().map(|stored| stored.spent_ms).collect()
}

/// Stops the store as a crash would, opens it again and begins the next run.
fn restart<E: Engine>(place: &E, store: E::Store) -> E::Store {
    drop(store);
    let mut store = place.open();
    store.begin_run(0).unwrap();
    store
}

pub(crate) fn identity_is_made_once<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    assert_eq!(store.identity(&identity(1)), Ok(identity(1)));
    assert_eq!(store.identity(&identity(2)), Ok(identity(1)));
    E::starve(&mut store, true);
    assert_eq!(store.identity(&identity(2)), Ok(identity(1)), "reading it needs no room");
    drop(store);
    assert_eq!(place.open().identity(&identity(3)), Ok(identity(1)));
}

pub(crate) fn runs_are_numbered<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    for number in 1..=3 {
        let run = store.begin_run(1000 + number).unwrap();
        assert_eq!((run.number, run.started_at), (number, 1000 + number));
    }
    drop(store);
    assert_eq!(place.open().begin_run(0).unwrap().number, 4);
}

pub(crate) fn a_run_is_told_when_the_clock_was_last_believed<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let beat = |store: &mut E::Store, run, believed_at| {
        store.apply(&[Write::Heartbeat { run, uptime_ms: 1, believed_at }]).unwrap();
    };
    assert_eq!(store.begin_run(9_000).unwrap().believed_at, None, "of the first nobody knows");
    drop(store);
    let mut store = place.open();
    assert_eq!(store.begin_run(60_000).unwrap().believed_at, Some(9_000), "it had no time for a beat");
    beat(&mut store, 2, Some(9_500));
    beat(&mut store, 2, None);
    drop(store);
    let mut store = place.open();
    assert_eq!(store.begin_run(70_000).unwrap().believed_at, Some(9_500), "a beat in doubt changes nothing");
    assert_eq!(store.begin_run(71_000).unwrap().believed_at, Some(9_500), "nor does a start");
    beat(&mut store, 4, Some(8_000));
    assert_eq!(store.begin_run(9_000).unwrap().believed_at, Some(8_000), "a clock may be set back");
}

pub(crate) fn a_lease_reads_as_it_was_put<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let plain = lease("m", 1);
    let full = LeaseRow {
        profile: Profile {
            name: "naïve \u{1f600} \"quoted\"\n".into(),
            status: Status::Working,
            summary: Some(String::new()),
            host: Some("h".into()),
            cwd: Some("a/b".into()),
            role: Some("r".into()),
            last_input_seconds: Some(U53::MAX),
            tags: vec!["x".into(), "\0".into()],
        },
        caps: Some(vec!["send".parse().unwrap(), "read".parse().unwrap()]),
        joined_at: U53::MAX.get(),
        touched_run: U53::MAX.get(),
        ..lease("m", 2)
    };
    let narrow = LeaseRow { caps: Some(vec![]), ..lease("m", 3) };
    let expected = vec![plain, full, narrow];
    store.apply(&expected.iter().map(put).collect::<Vec<_>>()).unwrap();
    assert_eq!(rows(&mut store), expected);
    drop(store);
    assert_eq!(rows(&mut place.open()), expected);
}

pub(crate) fn a_put_replaces<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let old = lease("m", 1);
    let new = LeaseRow {
        lease: "another".parse().unwrap(),
        profile: Profile::named("renamed"),
        caps: Some(vec![]),
        touched_run: 2,
        ..old.clone()
    };
    let elsewhere = lease("n", 1);
    store.apply(&[put(&old), put(&elsewhere)]).unwrap();
    store.apply(&[put(&new)]).unwrap();
    assert_eq!(rows(&mut store), [new, elsewhere]);
}

pub(crate) fn leases_come_in_order<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let sorted = [lease("a", 2), lease("a", 200), lease("a-b", 1), lease("a.b", 1), lease("b", 0)];
    store.apply(&sorted.iter().rev().map(put).collect::<Vec<_>>()).unwrap();
    assert_eq!(rows(&mut store), sorted);
}

pub(crate) fn an_end_names_its_lease<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let (row, other) = (lease("m", 1), lease("m", 2));
    store.apply(&[put(&row), put(&other)]).unwrap();
    store.apply(&[end(&LeaseRow { lease: "earlier".parse().unwrap(), ..row.clone() })]).unwrap();
    store.apply(&[end(&LeaseRow { mesh: "n".parse().unwrap(), ..row.clone() })]).unwrap();
    store.apply(&[end(&lease("m", 3))]).unwrap();
    assert_eq!(rows(&mut store), [row.clone(), other.clone()], "none of them was meant");
    store.apply(&[end(&row)]).unwrap();
    assert_eq!(rows(&mut store), slice::from_ref(&other));
    store.apply(&[end(&row)]).unwrap();
    assert_eq!(rows(&mut store), [other]);
}

pub(crate) fn a_touch_names_its_lease<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let row = LeaseRow { touched_run: 3, ..lease("m", 1) };
    store.apply(&[put(&row)]).unwrap();
    store.apply(&[touch(&LeaseRow { lease: "earlier".parse().unwrap(), ..row.clone() }, 9)]).unwrap();
    store.apply(&[touch(&lease("m", 2), 9)]).unwrap();
    store.apply(&[touch(&row, 2)]).unwrap();
    assert_eq!(rows(&mut store), slice::from_ref(&row), "another lease, no lease, an earlier run");
    store.apply(&[touch(&row, 4)]).unwrap();
    assert_eq!(rows(&mut store), [LeaseRow { touched_run: 4, ..row }]);
}

pub(crate) fn uptime_is_spent_between_runs<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    assert_eq!(store.begin_run(0).unwrap().number, 1);
    store.apply(&[put(&lease("m", 1))]).unwrap();
    store.heartbeat(1, 50_000).unwrap();
    assert_eq!(spent(&mut store), [0], "attached in this run");

    let mut store = restart(&place, store);
    assert_eq!(spent(&mut store), [0], "the first start after an attach gives a full TTL");
    store.heartbeat(2, 7_000).unwrap();
    assert_eq!(spent(&mut store), [0], "the current run does not count");

    let mut store = restart(&place, store);
    assert_eq!(spent(&mut store), [8_000], "and a second that is on no record");
    let newcomer = LeaseRow { touched_run: 3, ..lease("m", 2) };
    store.apply(&[put(&newcomer), Write::Heartbeat { run: 3, uptime_ms: 400, believed_at: None }]).unwrap();

    let mut store = restart(&place, restart(&place, store));
    assert_eq!(spent(&mut store), [10_400, 1_000], "run 4 was too short for a heartbeat");
}

pub(crate) fn every_start_counts_a_second<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    store.apply(&[put(&lease("m", 1))]).unwrap();
    // A crash loop: no run lives long enough for a heartbeat.
    for _ in 0..91 {
        store = restart(&place, store);
    }
    assert_eq!(spent(&mut store), [90_000]);
}

pub(crate) fn a_touch_restores_the_full_time<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    let (kept, lost) = (lease("m", 1), lease("m", 2));
    store.apply(&[put(&kept), put(&lost)]).unwrap();
    for run in 2..=4 {
        store = restart(&place, store);
        store.heartbeat(run, 1_000).unwrap();
    }
    assert_eq!(spent(&mut store), [4_000, 4_000]);
    store.apply(&[touch(&kept, 4)]).unwrap();
    assert_eq!(spent(&mut store), [0, 4_000]);

    let mut store = restart(&place, store);
    assert_eq!(spent(&mut store), [0, 6_000]);
    store.heartbeat(5, 10).unwrap();
    store.apply(&[end(&lost)]).unwrap();
    let mut store = restart(&place, store);
    assert_eq!(spent(&mut store), [1_010], "what only the ended lease needed is forgotten, and nothing else");
}

pub(crate) fn heartbeats_never_go_down<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    store.apply(&[put(&lease("m", 1))]).unwrap();
    let mut store = restart(&place, store);
    store.heartbeat(2, 500).unwrap();
    store.heartbeat(2, 400).unwrap();
    store.heartbeat(9, 999).unwrap();
    let mut store = restart(&place, store);
    assert_eq!(spent(&mut store), [1_500], "a run that never was has no uptime");
}

pub(crate) fn a_batch_is_all_or_nothing<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.identity(&identity(1)).unwrap();
    store.begin_run(0).unwrap();
    let (first, second) = (lease("a", 1), lease("a", 2));
    store.apply(&[put(&first), put(&second)]).unwrap();
    let before = store.leases().unwrap();

    let mut batch = vec![
        end(&first),
        touch(&second, 7),
        Write::Heartbeat { run: 1, uptime_ms: 5_000, believed_at: None },
    ];
    batch.extend((0..BULK).map(|n| put(&lease("z", n))));
    for _ in 0..2 {
        E::starve(&mut store, true);
        assert!(matches!(store.apply(&batch), Err(StoreError::Unavailable(_))));
        assert_eq!(store.leases().unwrap(), before, "no trace, and reads go on");
        E::starve(&mut store, false);
    }
    drop(store);
    let mut store = place.open();
    assert_eq!(store.leases().unwrap(), before, "nor after a restart");

    E::starve(&mut store, true);
    assert!(matches!(store.apply(&batch), Err(StoreError::Unavailable(_))));
    E::starve(&mut store, false);
    store.apply(&batch).unwrap();
    assert_eq!(store.leases().unwrap().len(), usize::from(BULK) + 1, "room came back: it works again");
    assert_eq!(rows(&mut store)[0], LeaseRow { touched_run: 7, ..second });
}

pub(crate) fn writes_of_a_batch_see_each_other<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let row = lease("m", 1);
    let again = LeaseRow { lease: "again".parse().unwrap(), ..row.clone() };
    store.apply(&[put(&row), end(&row), put(&again), end(&row), touch(&again, 8)]).unwrap();
    assert_eq!(rows(&mut store), [LeaseRow { touched_run: 8, ..again }]);
    store.apply(&[]).unwrap();
}

pub(crate) fn a_lease_of_an_impossible_run_is_a_finding<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    store.begin_run(0).unwrap();
    let good = [lease("m", 1), LeaseRow { touched_run: 2, ..lease("m", 2) }];
    store.apply(&good.each_ref().map(put)).unwrap();
    assert_eq!(store.check(), Ok(vec![]));
    let bad = [LeaseRow { touched_run: 0, ..lease("m", 3) }, LeaseRow { touched_run: 3, ..lease("m", 4) }];
    store.apply(&bad.each_ref().map(put)).unwrap();
    let findings = store.check().unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].contains("touched in run 0") && findings[1].contains("touched in run 3"));
}
