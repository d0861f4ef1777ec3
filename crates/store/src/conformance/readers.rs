//! What a store promises about groups and about reading, one case each.

use std::sync::Arc;

use tenure_mesh::messages::envelope::{Body, Entry, Envelope, Lane};
use tenure_mesh::store::record::{
    Fate, GroupId, GroupWrite, LaneRecord, LogRecord, OpenRecord, Origin, Placed, Reader, SettlerChanges,
    SettlerRecord, StoreFound, StoreOutcome, StoreRead, StoreWrite, SubRecord, TopicRecord, TopicState,
};
use tenure_proto::U53;
use tenure_proto::limits::INBOX_TTL_MS;
use tenure_proto::log::LogName;
use tenure_proto::message::{Priority, SendState};
use tenure_proto::subscribe::{AckMode, From};

use super::messages::*;
use super::{Engine, end, lease, put};
use crate::Store;

pub(crate) fn a_group_begins_where_it_was_told<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    let open = |store: &mut E::Store, id: u64, from: From| {
        let record = group(id, &log, Lane(0), Reader::Shared("g".parse().unwrap()));
        match apply(store, StoreWrite::OpenGroup { record, from, used_at: NOW }) {
            StoreOutcome::Opened(placed) => {
                let known = store.restore(&mesh()).unwrap().groups.into_iter().find(|g| g.record.id.0 == id);
                let known = known.map(|state| Placed { cursor: state.cursor, passed: state.passed });
                assert_eq!(placed.ok(), known, "what a start would find");
                placed.map(|placed| placed.cursor)
            }
            other => panic!("{other:?}"),
        }
    };
    let seq = |n: u32| From::Seq(U53::from(n));
    assert_eq!(open(&mut store, 1, From::New), Ok(0), "an empty log");
    assert_eq!(open(&mut store, 2, From::Earliest), Ok(0));
    assert_eq!(open(&mut store, 3, seq(2)), Err(0));
    assert_eq!(open(&mut store, 3, seq(1)), Ok(0));
    fill(&mut store, &log, 1..6);
    assert_eq!(open(&mut store, 4, From::New), Ok(5));
    assert_eq!(open(&mut store, 5, From::Earliest), Ok(0));
    assert_eq!(open(&mut store, 6, seq(0)), Ok(0));
    assert_eq!(open(&mut store, 7, seq(4)), Ok(3));
    assert_eq!(open(&mut store, 8, seq(6)), Ok(5));
    assert_eq!(open(&mut store, 9, seq(7)), Err(5));
    let prune = StoreWrite::Prune {
        log: log.clone(),
        lane: Lane(0),
        through: 3,
        before: u64::MAX,
        keep_bytes: None,
        at: 0,
        limit: 9,
    };
    apply(&mut store, prune);
    assert_eq!(open(&mut store, 10, From::Earliest), Ok(3), "before the first that is there");
    assert_eq!(open(&mut store, 7, From::New), Ok(3), "a group that exists stays where it is");
    let ids: Vec<u64> =
        store.restore(&mesh()).unwrap().groups.iter().map(|state| state.record.id.0).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8, 10], "what was refused was not made");
}

pub(crate) fn a_group_keeps_its_place_and_what_is_open<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    fill(&mut store, &log, 1..9);
    let record = group(7, &log, Lane(1), Reader::Inbox);
    let change = |cursor: u64, replace: bool, put: &[OpenRecord], del: &[u64]| {
        let (put, del) = (put.to_vec(), del.to_vec());
        let used_at = NOW + cursor;
        let record = record.clone();
        let settlers = SettlerChanges::default();
        StoreWrite::Group(Box::new(GroupWrite { record, cursor, used_at, replace, put, del, settlers }))
    };
    let waiting =
        OpenRecord { seq: 3, attempt: 1, tries: 1, holder: None, ready_at: Some(NOW + 50), lasting: true };
    apply(&mut store, change(4, false, &[opened(2), waiting.clone(), opened(4)], &[]));
    let again = OpenRecord { attempt: 3, ..opened(4) };
    apply(&mut store, change(5, false, std::slice::from_ref(&again), &[2, 99]));
    drop(store);
    let mut store = place.open();
    let state = store.restore(&mesh()).unwrap().groups.remove(0);
    assert_eq!((state.cursor, state.used_at), (5, NOW + 5));
    assert_eq!(state.record, record);
    let origin = |n: u64| {
        let Envelope { id, client_message_id, from, .. } = plain(n);
        Some(Origin { session: from.session, id, client_message_id })
    };
    assert_eq!(state.open, [(waiting, origin(3)), (again, origin(4))]);
    assert_eq!(state.passed, (5, 5 * 6), "five bodies of six bytes");
    apply(&mut store, change(6, true, &[opened(6)], &[]));
    let open = store.restore(&mesh()).unwrap().groups.remove(0).open;
    assert_eq!(open, [(opened(6), origin(6))]);
    apply(&mut store, StoreWrite::DropGroup(GroupId(7)));
    assert!(store.restore(&mesh()).unwrap().groups.is_empty());
    apply(&mut store, change(6, false, &[], &[]));
    assert!(store.restore(&mesh()).unwrap().groups.remove(0).open.is_empty(), "what was open went with it");
}

pub(crate) fn a_lease_takes_its_subscriptions_with_it<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    store.begin_run(0).unwrap();
    let (leaving, staying) = (lease("m", 9), lease("m", 8));
    store.apply(&[put(&leaving), put(&staying)]).unwrap();
    let log = topic("t");
    fill(&mut store, &log, 1..4);
    let sub = |n: u8, name: &str| SubRecord {
        session: session(n),
        sub: name.parse().unwrap(),
        topic: "t".parse().unwrap(),
        group: (name == "shared").then(|| "g".parse().unwrap()),
        partition: (name == "one").then_some(3),
        ack_mode: if n == 8 { AckMode::Auto } else { AckMode::Manual },
        prefetch: u32::from(n),
    };
    let subs = [sub(8, "all"), sub(9, "one"), sub(9, "shared")];
    for sub in [&subs[..], &[sub(8, "gone")]].concat() {
        apply(&mut store, StoreWrite::PutSub(Box::new(sub)));
    }
    apply(&mut store, StoreWrite::DropSub(session(8), "gone".parse().unwrap()));
    let readers =
        [Reader::Private(session(8)), Reader::Private(session(9)), Reader::Shared("g".parse().unwrap())];
    for (id, reader) in (1..).zip(readers) {
        apply(&mut store, advance(&group(id, &log, Lane(0), reader), 2, &[1, 2]));
    }
    drop(store);
    let mut store = place.open();
    assert_eq!(store.restore(&mesh()).unwrap().subs, subs);
    let earlier = crate::LeaseRow { lease: "earlier".parse().unwrap(), ..leaving.clone() };
    store.apply(&[end(&earlier)]).unwrap();
    assert_eq!(store.restore(&mesh()).unwrap().subs, subs, "another lease");
    store.apply(&[end(&leaving)]).unwrap();
    let left = store.restore(&mesh()).unwrap();
    assert_eq!(left.subs, subs[..1]);
    assert_eq!(left.groups.iter().map(|state| state.record.id.0).collect::<Vec<_>>(), [1, 3]);
    assert!(left.groups.iter().all(|state| state.open.len() == 2 && state.open[0].1.is_none()));
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn a_start_learns_topics_and_logs<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let topics = ["a", "b"].map(|name| TopicRecord {
        name: name.parse().unwrap(),
        partitions: 4,
        retention_ms: (name == "b").then_some(77),
        created_at: NOW,
        owner: (name == "a").then(|| member(3)),
        state: if name == "b" { TopicState::Deleted } else { TopicState::Living },
    });
    for topic in topics.iter().rev() {
        apply(&mut store, StoreWrite::PutTopic(TopicRecord { partitions: 1, ..topic.clone() }));
        apply(&mut store, StoreWrite::PutTopic(topic.clone()));
    }
    for (n, priority) in (1..).zip([Priority::Now, Priority::Low, Priority::Low]) {
        send(&mut store, accept(inbox(9), Envelope { priority, ..plain(n) }));
    }
    fill(&mut store, &topic("b"), 10..12);
    drop(store);
    let mut store = place.open();
    let found = store.restore(&mesh()).unwrap();
    assert_eq!(found.topics, topics);
    let lane = |end: u64, count: u64, bytes: u64| LaneRecord { end, count, bytes, pruned: 0 };
    let logs = [
        LogRecord { log: inbox(9), lanes: [lane(1, 1, 6), lane(0, 0, 0), lane(3, 2, 12)] },
        LogRecord { log: topic("b"), lanes: [lane(2, 2, 14), lane(0, 0, 0), lane(0, 0, 0)] },
    ];
    assert_eq!(found.logs, logs);
    assert_eq!(store.restore(&"n".parse().unwrap()).unwrap(), Default::default(), "another mesh");
}

fn page(log: &LogName, after: u64, limit: u32, bytes: usize) -> StoreRead {
    StoreRead::Page { log: log.clone(), lane: Lane(0), after, limit, bytes }
}

fn numbers(entries: &[Arc<Entry>]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq).collect()
}

pub(crate) fn a_page_is_bounded_but_never_empty<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    for n in 1..=6 {
        let body = Body::Bytes(vec![0; 100]);
        send(&mut store, accept(log.clone(), Envelope { body, ..plain(n) }));
    }
    let found = |read: StoreRead| match self::read(&store, &read) {
        StoreFound::Page { entries, damaged } if damaged.is_empty() => numbers(&entries),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(page(&log, 0, 3, 1_000)), [1, 2, 3]);
    assert_eq!(found(page(&log, 3, 9, 1_000)), [4, 5, 6]);
    assert_eq!(found(page(&log, 0, 9, 250)), [1, 2]);
    assert_eq!(found(page(&log, 0, 9, 0)), [1]);
    assert_eq!(found(page(&log, 6, 9, 9)), [0u64; 0]);
    assert_eq!(found(page(&topic("never"), 0, 9, 9)), [0u64; 0]);
    assert_eq!(found(page(&log, u64::MAX, 9, 9)), [0u64; 0]);
    let seqs = vec![5, 2, 9, 2];
    assert_eq!(found(StoreRead::Entries { log: log.clone(), lane: Lane(0), seqs }), [2, 5]);
    let places = vec![(log.clone(), Lane(0), 0), (log.clone(), Lane(0), 6), (topic("never"), Lane(0), 0)];
    let oldest = read(&store, &StoreRead::Oldest { places });
    assert_eq!(oldest, StoreFound::Oldest(vec![Some(NOW + 1), None, None]));
}

pub(crate) fn history_reads_all_lanes_in_order<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    for (n, priority) in (1..=7).zip([Priority::Low, Priority::Now, Priority::Next].into_iter().cycle()) {
        let body = Body::Bytes(vec![0; 100]);
        send(&mut store, accept(log.clone(), Envelope { priority, body, ..plain(n) }));
    }
    let places = [0, 1, 2, 3, 8, u64::MAX].map(|seq| (log.clone(), seq)).to_vec();
    let ids = [None, Some(plain(1).id), Some(plain(2).id), Some(plain(3).id), None, None].to_vec();
    assert_eq!(read(&store, &StoreRead::Ids { places }), StoreFound::Ids(ids), "whatever their lanes");
    let nowhere = StoreRead::Ids { places: vec![(inbox(8), 1)] };
    assert_eq!(read(&store, &nowhere), StoreFound::Ids(vec![None]));
    let found = |from: u64, limit: u32, bytes: usize| match read(
        &store,
        &StoreRead::History { log: log.clone(), from, limit, bytes },
    ) {
        StoreFound::History { entries, next, .. } => (numbers(&entries), next),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(0, 9, 10_000), ((1..=7).collect(), None));
    assert_eq!(found(2, 3, 10_000), (vec![2, 3, 4], Some(5)));
    assert_eq!(found(5, 3, 10_000), (vec![5, 6, 7], None));
    assert_eq!(found(1, 9, 250), (vec![1, 2], Some(3)));
    assert_eq!(found(1, 9, 0), (vec![1], Some(2)));
    assert_eq!(found(8, 9, 0), (vec![], None));
}

pub(crate) fn settlers_are_kept_with_their_group<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    fill(&mut store, &log, 1..9);
    let record = group(7, &log, Lane(0), Reader::Shared("g".parse().unwrap()));
    let by = |seq: u64, n: u8, nth: u64| SettlerRecord { seq, attempt: 2, session: session(n), nth };
    let change = |replace: bool, put: Vec<SettlerRecord>, del: Vec<u64>| {
        let settlers = SettlerChanges { put, del };
        let StoreWrite::Group(mut write) = advance(&record, 8, &[]) else { panic!() };
        (write.replace, write.settlers) = (replace, settlers);
        StoreWrite::Group(write)
    };
    let kept = |store: &mut E::Store| store.restore(&mesh()).unwrap().groups[0].settlers.clone();
    apply(&mut store, change(false, vec![by(5, 1, 0), by(3, 2, 1)], Vec::new()));
    apply(&mut store, change(false, vec![by(5, 2, 2), by(6, 1, 3)], vec![3]));
    drop(store);
    let mut store = place.open();
    assert_eq!(kept(&mut store), [by(5, 2, 2), by(6, 1, 3)], "the last word on each, by seq");
    apply(&mut store, change(true, vec![by(8, 1, 4)], Vec::new()));
    assert_eq!(kept(&mut store), [by(8, 1, 4)]);
    apply(&mut store, StoreWrite::DropGroup(GroupId(7)));
    apply(&mut store, advance(&record, 8, &[]));
    assert_eq!(kept(&mut store), [], "they go with their group");
}

pub(crate) fn fates_are_told<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    fill(&mut store, &log, 1..7);
    fill(&mut store, &topic("t"), 7..9);
    let fates = |store: &E::Store, numbers: &[u64]| {
        let ids = numbers.iter().map(|n| format!("c-{n}").parse().unwrap()).collect();
        match read(store, &StoreRead::Fates { member: member(1), ids }) {
            StoreFound::Fates(fates) => fates,
            other => panic!("{other:?}"),
        }
    };
    let told = |n: u64, state: SendState| Fate {
        accepted: Some((plain(n).id, plain(n).fingerprint().unwrap())),
        state,
        reason: None,
    };
    assert_eq!(fates(&store, &[1]), [told(1, SendState::Accepted)], "nobody reads it yet");
    apply(&mut store, advance(&group(1, &log, Lane(1), Reader::Inbox), 4, &[2]));
    let crew = group(2, &topic("t"), Lane(0), Reader::Shared("g".parse().unwrap()));
    apply(&mut store, advance(&crew, 8, &[]));
    apply(
        &mut store,
        StoreWrite::Prune {
            log: log.clone(),
            lane: Lane(1),
            through: 1,
            before: u64::MAX,
            keep_bytes: None,
            at: 0,
            limit: 9,
        },
    );
    assert_eq!(
        fates(&store, &[1, 2, 3, 5, 7, 99]),
        [
            told(1, SendState::Delivered),
            told(2, SendState::Accepted),
            told(3, SendState::Delivered),
            told(5, SendState::Accepted),
            told(7, SendState::Accepted),
            Fate::UNKNOWN,
        ]
    );
    let stranger = StoreRead::Fates { member: member(2), ids: vec!["c-1".parse().unwrap()] };
    assert_eq!(read(&store, &stranger), StoreFound::Fates(vec![Fate::UNKNOWN]));
}

pub(crate) fn expired_is_what_nobody_settled_in_time<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = inbox(9);
    let with = |n: u64, expires_at: Option<u64>| Envelope { expires_at, ..plain(n) };
    for envelope in [with(1, None), with(2, Some(NOW + 50)), with(3, None), with(4, Some(NOW + 60))] {
        send(&mut store, accept(log.clone(), envelope));
    }
    for envelope in [with(5, None), with(6, Some(NOW + 70))] {
        send(&mut store, accept(topic("t"), envelope));
    }
    let late = NOW + INBOX_TTL_MS;
    let expired =
        |store: &E::Store, now: u64, limit: u32| match read(store, &StoreRead::Expired { now, limit }) {
            StoreFound::Expired(entries) => {
                let mut ids: Vec<_> = entries.iter().map(|entry| entry.envelope.sent_at - NOW).collect();
                ids.sort_unstable();
                ids
            }
            other => panic!("{other:?}"),
        };
    assert_eq!(expired(&store, NOW + 49, 9), [0u64; 0]);
    assert_eq!(expired(&store, NOW + 50, 9), [2]);
    assert_eq!(expired(&store, late + 1, 9), [1, 2, 4, 6], "a topic's live for ever");
    assert_eq!(expired(&store, late + 3, 9), [1, 2, 3, 4, 6]);
    assert_eq!(expired(&store, late + 3, 2).len(), 2);
    apply(&mut store, advance(&group(1, &log, Lane(1), Reader::Inbox), 3, &[1]));
    assert_eq!(expired(&store, late + 3, 9), [1, 4, 6], "the owner settled two of them");
    apply(&mut store, StoreWrite::Sweep { now: late + 3, dead_before: 0, runs_before: 0, limit: 100 });
    assert_eq!(expired(&store, late + 3, 9), [1, 4, 6]);
    let elsewhere = StoreRead::Expired { now: u64::MAX / 2, limit: 9 };
    let mut reader = store.reader().unwrap();
    let found = reader.read(&"n".parse().unwrap(), &elsewhere).unwrap();
    assert_eq!(found, StoreFound::Expired(Vec::new()), "another mesh");
}

pub(crate) fn a_reader_sees_what_is_committed<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    let log = topic("t");
    let mut reader = store.reader().unwrap();
    let mut read = || match reader.read(&mesh(), &page(&log, 0, 9, 999)).unwrap() {
        StoreFound::Page { entries, .. } => numbers(&entries),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(), [0u64; 0]);
    fill(&mut store, &log, 1..3);
    assert_eq!(read(), [1, 2]);
    E::starve(&mut store, true);
    assert_eq!(read(), [1, 2], "a full disk can be read");
    fn assert_send<T: Send + ?Sized>() {}
    assert_send::<Box<dyn crate::StoreReader>>();
    assert_eq!(reader.check(), Ok(vec![]));
}
