//! Ends of leases: kept in the transaction of the end, read by pages, forgotten in time and when there are too many.

use tenure_mesh::store::record::{LeaseEnd, LeaseEndEntry, StoreFound, StoreOutcome, StoreRead, StoreWrite};
use tenure_proto::MeshName;

use super::cases::BULK;
use super::{Engine, end, lease, put};
use crate::{LeaseRow, Store, StoreError, Write};

fn ends(store: &dyn Store, mesh: &str, before: Option<u64>, limit: u32) -> (Vec<LeaseEndEntry>, bool) {
    let mesh: MeshName = mesh.parse().unwrap();
    match store.reader().unwrap().read(&mesh, &StoreRead::LeaseEnds { before, limit }).unwrap() {
        StoreFound::LeaseEnds(ends, more) => (ends, more),
        other => panic!("{other:?}"),
    }
}

/// The write that ends `row`'s lease at this moment.
fn end_at(row: &LeaseRow, at: u64, why: &str) -> Write {
    let Write::Mesh { mesh, run, write: StoreWrite::EndLease(end) } = end(row) else { panic!("no end") };
    let end = LeaseEnd { at, why: why.to_owned(), ..*end };
    Write::Mesh { mesh, run, write: StoreWrite::EndLease(Box::new(end)) }
}

fn sweep(store: &mut dyn Store, dead_before: u64, limit: u32) -> StoreOutcome {
    let write = StoreWrite::Sweep { now: 0, dead_before, runs_before: 0, limit };
    store.apply(&[Write::Mesh { mesh: "m".parse().unwrap(), run: 1, write }]).unwrap().remove(0)
}

pub(crate) fn the_end_of_a_lease_is_kept_with_it<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let (one, two, other) = (lease("m", 1), lease("m", 2), lease("n", 3));
    store.apply(&[put(&one), put(&two), put(&other)]).unwrap();
    let ending = [end_at(&one, 50, "bye")];
    let too_much: Vec<Write> = ending.iter().cloned().chain((0..BULK).map(|n| put(&lease("z", n)))).collect();
    E::starve(&mut store, true);
    assert!(matches!(store.apply(&too_much), Err(StoreError::Unavailable(_))));
    E::starve(&mut store, false);
    assert_eq!(ends(&store, "m", None, 9), (Vec::new(), false), "no end, no row");
    store.apply(&ending).unwrap();
    // What ended before, or is another lease, ends nothing.
    store.apply(&ending).unwrap();
    store
        .apply(&[end_at(&LeaseRow { lease: "earlier".parse().unwrap(), ..two.clone() }, 60, "bye")])
        .unwrap();
    store.apply(&[end_at(&two, 70, "expired"), end_at(&other, 80, "banned")]).unwrap();
    drop(store);
    let store = place.open();
    let (found, more) = ends(&store, "m", None, 1);
    assert!(more && found.len() == 1, "by pages, newest first");
    let newest = &found[0];
    let LeaseRow { session, lease, member, .. } = two;
    let (name, why) = (two.profile.name, "expired".to_owned());
    assert_eq!(newest.end, LeaseEnd { session, lease, member, name, why, at: 70 });
    let (found, more) = ends(&store, "m", Some(newest.seq), 9);
    assert_eq!(
        found.iter().map(|row| (row.end.session, row.end.at)).collect::<Vec<_>>(),
        [(one.session, 50)]
    );
    assert!(!more && found[0].seq < newest.seq);
    assert_eq!(ends(&store, "n", None, 9).0[0].end.why, "banned", "of each mesh apart");
}

pub(crate) fn ends_of_leases_are_forgotten_in_slices<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    for n in 1..=4 {
        let row = lease("m", n);
        store.apply(&[put(&row), end_at(&row, u64::from(n) * 10, "bye")]).unwrap();
    }
    let ats =
        |store: &E::Store| -> Vec<u64> { ends(store, "m", None, 9).0.iter().map(|row| row.end.at).collect() };
    sweep(&mut store, 10, 100);
    assert_eq!(ats(&store), [40, 30, 20, 10], "none is older");
    // An engine may look at less in a slice, never at more than is due.
    for _ in 0..8 {
        sweep(&mut store, 31, 1);
    }
    sweep(&mut store, 31, 100);
    assert_eq!(ats(&store), [40]);
}
