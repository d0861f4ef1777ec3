//! What a store promises about the end of a topic, one case each.

use tenure_mesh::messages::accept::Accepted;
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{
    Burial, Reader, StoreFound, StoreOutcome, StoreRead, StoreWrite, TopicRecord, TopicState,
};
use tenure_proto::log::LogName;
use tenure_proto::message::SendState;
use tenure_proto::subscribe::From;

use super::Engine;
use super::messages::*;
use crate::Store;

fn record(state: TopicState) -> TopicRecord {
    TopicRecord {
        name: "t".parse().unwrap(),
        partitions: 2,
        retention_ms: None,
        created_at: NOW,
        owner: Some(member(1)),
        state,
    }
}

fn end(store: &mut impl Store, state: TopicState, if_empty: bool) -> bool {
    match apply(store, StoreWrite::EndTopic { record: Box::new(record(state)), if_empty }) {
        StoreOutcome::Ended(ended) => ended,
        other => panic!("{other:?}"),
    }
}

/// Clears a topic in slices of `limit`: how many rows went with each.
fn clear(store: &mut impl Store, limit: u32) -> Vec<u64> {
    let mut slices = Vec::new();
    loop {
        let record = Box::new(record(TopicState::Deleted));
        match apply(store, StoreWrite::ClearTopic { record, limit }) {
            StoreOutcome::Count { rows, more } => {
                slices.push(rows);
                if !more {
                    return slices;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn partition(n: u32) -> LogName {
    LogName::Topic("t".parse().unwrap(), n)
}

pub(crate) fn a_topic_goes_in_slices_and_its_numbers_go_on<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    apply(&mut store, StoreWrite::PutTopic(record(TopicState::Living)));
    fill(&mut store, &partition(0), 1..8);
    fill(&mut store, &partition(1), 11..14);
    fill(&mut store, &topic("other"), 21..24);
    for (id, log) in [(1, partition(0)), (2, partition(1)), (3, topic("other"))] {
        let reader = Reader::Shared("g".parse().unwrap());
        apply(&mut store, advance(&group(id, &log, Lane(0), reader), 3, &[2, 3]));
    }
    let burial = Burial {
        log: partition(0),
        lane: Lane(0),
        seq: 5,
        group: None,
        attempts: 1,
        reason: "expired".to_owned(),
        at: NOW,
        remove: true,
    };
    apply(&mut store, StoreWrite::Bury(Box::new(burial)));
    assert!(end(&mut store, TopicState::Deleted, false));
    assert_eq!(
        store.restore(&mesh()).unwrap().topics,
        [record(TopicState::Deleted)],
        "a start goes on with it"
    );
    // In the first partition a group with two open entries, six entries, a dead letter; in the other three fewer, and none.
    let rows = clear(&mut store, 4);
    assert_eq!((rows.iter().sum::<u64>(), rows.len()), (16, 5), "{rows:?}");
    drop(store);
    let mut store = place.open();
    assert_eq!(store.check(), Ok(vec![]));
    let found = store.restore(&mesh()).unwrap();
    assert!(found.topics.is_empty());
    assert_eq!(found.groups.iter().map(|state| state.record.id.0).collect::<Vec<_>>(), [3]);
    assert_eq!(found.logs.iter().map(|log| log.log.clone()).collect::<Vec<_>>(), [topic("other")]);
    let tombs: Vec<_> = found.deleted.iter().map(|log| (log.record.log.clone(), log.told)).collect();
    assert_eq!(tombs, [(partition(0), true), (partition(1), true)]);
    assert_eq!(found.deleted.iter().map(|log| log.record.lanes[0].end).collect::<Vec<_>>(), [7, 3]);
    let ids = ["c-3", "c-5"].map(|id| id.parse().unwrap()).to_vec();
    let StoreFound::Fates(fates) = read(&store, &StoreRead::Fates { member: member(1), ids }) else {
        panic!("fates")
    };
    let states: Vec<SendState> = fates.iter().map(|fate| fate.state).collect();
    assert_eq!(states, [SendState::Accepted, SendState::Expired], "what was known of a message stays known");
    // Made again, it goes on where it was, and an id that was used stays used.
    apply(&mut store, StoreWrite::PutTopic(record(TopicState::Living)));
    let again = send(&mut store, accept(partition(0), plain(3)));
    assert!(matches!(again, Accepted::Duplicate(_)), "{again:?}");
    let fresh = send(&mut store, accept(partition(0), plain(31)));
    assert!(matches!(fresh, Accepted::Fresh { seq: 8, .. }), "{fresh:?}");
    let reader = group(4, &partition(1), Lane(0), Reader::Shared("g".parse().unwrap()));
    let opened =
        apply(&mut store, StoreWrite::OpenGroup { record: reader, from: From::Earliest, used_at: NOW });
    assert!(matches!(opened, StoreOutcome::Opened(Ok(placed)) if placed.cursor == 3), "{opened:?}");
    let found = store.restore(&mesh()).unwrap();
    assert!(found.deleted.is_empty(), "{:?}", found.deleted);
    assert_eq!(found.logs.len(), 3);
    assert_eq!(store.check(), Ok(vec![]));
}

pub(crate) fn only_an_empty_topic_goes_if_it_must_be<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    apply(&mut store, StoreWrite::PutTopic(record(TopicState::Living)));
    fill(&mut store, &partition(1), 1..3);
    assert!(!end(&mut store, TopicState::Unused, true), "it has entries");
    assert_eq!(store.restore(&mesh()).unwrap().topics, [record(TopicState::Living)]);
    let bury = |seq: u64| Burial {
        log: partition(1),
        lane: Lane(0),
        seq,
        group: None,
        attempts: 1,
        reason: "no".to_owned(),
        at: NOW,
        remove: true,
    };
    for seq in 1..3 {
        apply(&mut store, StoreWrite::Bury(Box::new(bury(seq))));
    }
    assert!(!end(&mut store, TopicState::Unused, true), "it has dead letters");
    apply(&mut store, StoreWrite::DropDead { log: partition(1), seqs: vec![1, 2] });
    assert!(end(&mut store, TopicState::Unused, true));
    let record = Box::new(record(TopicState::Unused));
    apply(&mut store, StoreWrite::ClearTopic { record, limit: 9 });
    let found = store.restore(&mesh()).unwrap();
    assert_eq!(found.deleted.iter().map(|log| log.told).collect::<Vec<_>>(), [false]);
    assert!(found.topics.is_empty());
}
