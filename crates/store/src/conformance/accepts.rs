//! What a store promises about accepting messages, one case each.

use std::sync::Arc;

use tenure_mesh::messages::accept::{Accept, Accepted, Remembered, Route};
use tenure_mesh::messages::envelope::{Body, Envelope, Lane};
use tenure_mesh::store::record::{StoreOutcome, StoreWrite};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::log::LogName;
use tenure_proto::message::{Fallback, Priority};

use super::messages::*;
use super::{Engine, end, lease, put};
use crate::{Store, StoreError, Write};

fn fresh(log: &LogName, lane: u8, seq: u64) -> Accepted {
    Accepted::Fresh { log: log.clone(), lane: Lane(lane), seq }
}

pub(crate) fn an_accept_answers_by_the_table<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    assert_eq!(send(&mut store, accept(log.clone(), plain(1))), fresh(&log, 0, 1));
    assert_eq!(send(&mut store, accept(log.clone(), plain(2))), fresh(&log, 0, 2));
    drop(store);
    let mut store = place.open();
    // A retry is another request: the broker gave it another id and another time, and maybe another log.
    let retry = Envelope { id: plain(7).id, sent_at: NOW + 99, ..plain(1) };
    let remembered = Remembered {
        id: plain(1).id,
        fingerprint: plain(1).fingerprint().unwrap(),
        log: log.clone(),
        seq: 1,
        first_seen_at: NOW + 1,
        available: true,
    };
    for to in [log.clone(), topic("elsewhere")] {
        let answer = send(&mut store, accept(to, retry.clone()));
        assert_eq!(answer, Accepted::Duplicate(remembered.clone()));
    }
    let other = Accept { fingerprint: print(2), ..accept(log.clone(), retry) };
    assert_eq!(send(&mut store, other), Accepted::Reused(plain(1).fingerprint().unwrap()));
    assert_eq!(send(&mut store, accept(log.clone(), plain(3))), fresh(&log, 0, 3), "and nothing was written");
    assert_eq!(store.restore(&mesh()).unwrap().logs.len(), 1, "not even a log");
}

pub(crate) fn a_twin_in_the_same_batch_is_a_duplicate<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    let first = write(StoreWrite::Accept(Arc::new(accept(log.clone(), plain(1)))));
    let outcomes = store.apply(&[first.clone(), first.clone(), first]).unwrap();
    let [StoreOutcome::Accepted(made), second, third] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(*made, fresh(&log, 1, 1));
    for twin in [second, third] {
        let StoreOutcome::Accepted(Accepted::Duplicate(twin)) = twin else { panic!("{twin:?}") };
        assert_eq!((twin.seq, twin.available), (1, true));
    }
    assert_eq!(seqs(&store, &log, Lane(1)), [1]);
}

pub(crate) fn a_known_id_is_answered_before_any_refusal<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    let busy = WireError::new(ErrorCode::Busy, "full");
    send(&mut store, accept(log.clone(), plain(1)));
    let again = Accept { refusal: Some(busy.clone()), ..accept(log.clone(), plain(1)) };
    assert!(matches!(send(&mut store, again.clone()), Accepted::Duplicate(_)));
    let other = Accept { fingerprint: print(2), ..again };
    assert_eq!(send(&mut store, other), Accepted::Reused(plain(1).fingerprint().unwrap()));
    let new = Accept { refusal: Some(busy.clone()), ..accept(log, plain(2)) };
    assert_eq!(send(&mut store, new), Accepted::Refused(busy));
}

pub(crate) fn a_refused_accept_leaves_no_trace<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    let refusal = Some(WireError::new(ErrorCode::Busy, "full"));
    for _ in 0..2 {
        let refused = Accept { refusal: refusal.clone(), ..accept(log.clone(), plain(1)) };
        assert!(matches!(send(&mut store, refused), Accepted::Refused(_)));
    }
    assert!(store.restore(&mesh()).unwrap().logs.is_empty());
    let other = Accept { fingerprint: print(2), ..accept(log.clone(), plain(1)) };
    assert_eq!(send(&mut store, other), fresh(&log, 1, 1), "its id stayed free");
}

pub(crate) fn an_absent_session_is_looked_up<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let absent = |n: u64, fallback: Fallback| {
        let envelope = Envelope { fallback, ..plain(n) };
        Accept { route: Route::Absent(session(9)), ..accept(inbox(9), envelope) }
    };
    let code = |accepted: Accepted| match accepted {
        Accepted::Refused(error) => error.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(send(&mut store, absent(1, Fallback::Hold))), ErrorCode::NoSuchSession);
    let gone = lease("m", 9);
    store.apply(&[put(&gone), end(&gone)]).unwrap();
    drop(store);
    let mut store = place.open();
    assert_eq!(send(&mut store, absent(1, Fallback::Hold)), fresh(&inbox(9), 1, 1));
    let theirs = LogName::Member(gone.member);
    assert_eq!(send(&mut store, absent(2, Fallback::Member)), fresh(&theirs, 1, 1));
    assert_eq!(code(send(&mut store, absent(3, Fallback::Fail))), ErrorCode::LeaseExpired);
    let elsewhere = Write::Mesh {
        mesh: "n".parse().unwrap(),
        run: 1,
        write: StoreWrite::Accept(Arc::new(absent(4, Fallback::Hold))),
    };
    let outcomes = store.apply(&[elsewhere]).unwrap();
    assert!(matches!(&outcomes[..], [StoreOutcome::Accepted(Accepted::Refused(_))]), "{outcomes:?}");
}

pub(crate) fn an_absent_member_is_looked_up<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let gone = lease("m", 9);
    let to_member = |n: u64| {
        let route = Route::AbsentMember(gone.member);
        Accept { route, ..accept(LogName::Member(gone.member), plain(n)) }
    };
    let stranger = send(&mut store, to_member(1));
    assert!(
        matches!(&stranger, Accepted::Refused(error) if error.code == ErrorCode::NoSuchSession),
        "{stranger:?}"
    );
    store.apply(&[put(&gone), end(&gone)]).unwrap();
    drop(store);
    let mut store = place.open();
    assert_eq!(send(&mut store, to_member(1)), fresh(&LogName::Member(gone.member), 1, 1));
}

pub(crate) fn ids_belong_to_a_sender_in_a_mesh<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    let mut theirs = plain(1);
    theirs.from.member = member(2);
    send(&mut store, accept(log.clone(), plain(1)));
    assert_eq!(send(&mut store, accept(log.clone(), theirs)), fresh(&log, 0, 2), "another sender");
    let elsewhere = Write::Mesh {
        mesh: "n".parse().unwrap(),
        run: 1,
        write: StoreWrite::Accept(Arc::new(accept(log.clone(), plain(1)))),
    };
    let outcomes = store.apply(&[elsewhere]).unwrap();
    assert_eq!(outcomes, [StoreOutcome::Accepted(fresh(&log, 0, 1))], "another mesh");
    let mut other = plain(1);
    other.from.session = session(3);
    assert!(matches!(send(&mut store, accept(log, other)), Accepted::Duplicate(_)), "another session");
}

pub(crate) fn lanes_share_the_numbers_of_a_log<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let order = [Priority::Low, Priority::Now, Priority::Next, Priority::Now, Priority::Low];
    for (n, priority) in (1..).zip(order) {
        for log in [inbox(9), topic("t")] {
            let mut envelope = Envelope { priority, ..plain(n) };
            envelope.client_message_id = format!("{log} {n}").into();
            let lane = if log.is_inbox() { Lane::of(&log, priority).0 } else { 0 };
            assert_eq!(send(&mut store, accept(log.clone(), envelope)), fresh(&log, lane, n));
        }
    }
    drop(store);
    let store = place.open();
    assert_eq!(seqs(&store, &inbox(9), Lane(0)), [2, 4]);
    assert_eq!(seqs(&store, &inbox(9), Lane(1)), [3]);
    assert_eq!(seqs(&store, &inbox(9), Lane(2)), [1, 5]);
    assert_eq!(seqs(&store, &topic("t"), Lane(0)), [1, 2, 3, 4, 5]);
}

pub(crate) fn a_message_reads_as_it_was_sent<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    let bodies = [
        Body::Text(String::new()),
        Body::Text("a\0b \u{1f600}".to_owned()),
        Body::Bytes(Vec::new()),
        Body::Bytes(b"text".to_vec()),
        Body::Text("x".repeat(100_000)),
    ];
    let mut expected: Vec<Envelope> =
        (10..).zip(bodies).map(|(n, body)| Envelope { body, ..plain(n) }).collect();
    expected.extend([plain(1), full(2)]);
    for envelope in &expected {
        send(&mut store, accept(log.clone(), envelope.clone()));
    }
    drop(store);
    let found = lane(&place.open(), &log, Lane(0));
    assert_eq!(found.len(), expected.len());
    for (seq, (entry, envelope)) in (1..).zip(found.iter().zip(&expected)) {
        assert_eq!((&entry.log, entry.lane, entry.seq), (&log, Lane(0), seq));
        assert_eq!(*entry.envelope, *envelope);
    }
}

pub(crate) fn a_starved_store_numbers_on_without_a_gap<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let (log, new) = (inbox(9), topic("new"));
    fill(&mut store, &log, 1..4);
    let before = store.restore(&mesh()).unwrap();
    let batch: Vec<Write> = (4..500)
        .flat_map(|n| [accept(log.clone(), plain(n)), accept(new.clone(), plain(n + 1000))])
        .map(|accept| write(StoreWrite::Accept(Arc::new(accept))))
        .collect();
    for _ in 0..2 {
        E::starve(&mut store, true);
        assert!(matches!(store.apply(&batch), Err(StoreError::Unavailable(_))));
        assert_eq!(store.restore(&mesh()).unwrap(), before, "no trace");
        assert_eq!(seqs(&store, &log, Lane(1)), [1, 2, 3]);
        E::starve(&mut store, false);
    }
    assert_eq!(send(&mut store, accept(log.clone(), plain(4))), fresh(&log, 1, 4));
    assert_eq!(send(&mut store, accept(new.clone(), plain(9000))), fresh(&new, 0, 1));
    let outcomes = store.apply(&batch).unwrap();
    assert!(matches!(&outcomes[0], StoreOutcome::Accepted(Accepted::Duplicate(_))));
    assert_eq!(outcomes[1], StoreOutcome::Accepted(fresh(&new, 0, 2)));
    assert_eq!(seqs(&store, &log, Lane(1)).len(), 499);
}
