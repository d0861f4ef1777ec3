//! A hello that lists positions waits for the store, and holds nobody up.

use crate::effect::Note;
use tenure_proto::ErrorCode;
use tenure_proto::hello::{LeaseFate, LogPosition};
use tenure_proto::ids::MessageId;
use tenure_proto::number::U53;

use crate::conn::admit::Admission;
use crate::store::record::{LaneRecord, LogRecord, RestoredMessages, StoreFound, StoreRead};
use crate::tests::world::{World, knock, process, session};
use crate::*;

/// A hello of session `n` that has read entry 5 of its inbox.
fn reading(admission: Admission) -> Admission {
    let log = format!("inbox/s/{}", admission.session);
    let positions = vec![LogPosition { log, seq: U53::from(5), id: MessageId(7) }];
    Admission { positions, ..admission }
}

/// A world whose store has entries in the inbox of session 2 that are not in memory.
fn world() -> World {
    let lane = LaneRecord { end: 9, count: 9, bytes: 9, pruned: 0 };
    let lanes = [lane, LaneRecord::default(), LaneRecord::default()];
    let logs = vec![LogRecord { log: tenure_proto::LogName::Session(session(2)), lanes }];
    let mut world = World::new();
    world.start_with(RestoredMessages { logs, ..Default::default() });
    world.hold_reads = true;
    world
}

fn found(world: &mut World, ids: Vec<Option<MessageId>>) {
    let wanted =
        |(_, read): &(_, StoreRead)| matches!(read, StoreRead::Ids { places } if places.len() == ids.len());
    let first = world.reads.iter().position(wanted).expect("a read");
    let (id, _) = world.reads.remove(first).expect("it is there");
    world.input(Input::Found { id, found: StoreFound::Ids(ids) });
}

#[test]
fn a_hello_is_answered_when_the_store_has_said_what_is_there() {
    for (there, rewound) in [(Some(MessageId(7)), 0), (None, 0), (Some(MessageId(8)), 1)] {
        let mut world = world();
        let watcher = world.join(1);
        let conn = world.hello(reading(knock(2)));
        assert!(world.socket(conn).answer.is_none() && world.is_open(conn));
        assert!(world.seen(watcher).is_empty(), "nobody has joined yet");
        found(&mut world, vec![there]);
        assert_eq!(world.answer(conn).rewound.len(), rewound, "{there:?}");
        assert_eq!(world.has_note(|note| matches!(note, Note::HistoryRewound { logs: 1, .. })), rewound == 1);
        assert_eq!(world.seen(watcher), ["1 joined s2"]);
    }
}

#[test]
fn an_older_entry_tells_when_the_newest_is_gone() {
    let cases = [
        ([None, Some(MessageId(6))], 0),
        ([None, Some(MessageId(8))], 1),
        ([None, None], 0),
        ([Some(MessageId(8)), Some(MessageId(9))], 1),
    ];
    for (there, rewound) in cases {
        let mut world = world();
        let mut admission = reading(knock(2));
        let older = LogPosition { seq: U53::from(4), id: MessageId(6), ..admission.positions[0].clone() };
        admission.positions.push(older);
        let conn = world.hello(admission);
        found(&mut world, there.to_vec());
        assert_eq!(world.answer(conn).rewound.len(), rewound, "{there:?}");
    }
}

#[test]
fn a_socket_that_goes_while_its_hello_waits_is_forgotten() {
    let mut world = world();
    let conn = world.hello(reading(knock(2)));
    world.close(conn, true);
    found(&mut world, vec![Some(MessageId(7))]);
    assert_eq!(world.mesh.sessions(), 0);
    world.enter(knock(2));
}

#[test]
fn the_newest_of_several_hellos_that_wait_is_let_in() {
    let mut world = world();
    let first = world.hello(reading(knock(2)));
    let second = world.hello(reading(process(2, "second")));
    assert_eq!(world.closed(first), Some(("session_replaced", None)));
    found(&mut world, vec![Some(MessageId(7))]);
    found(&mut world, vec![Some(MessageId(7))]);
    assert_eq!(world.answer(second).lease, LeaseFate::New);
    // One of the same process that comes late is the one that is too late.
    let third = world.hello(reading(process(2, "second")));
    world.hello_on(ConnId(0), reading(process(2, "second")));
    assert_eq!(world.refusal(ConnId(0)).0, ErrorCode::Conflict);
    found(&mut world, vec![Some(MessageId(7))]);
    assert_eq!(world.answer(third).lease, LeaseFate::Kept);
}

#[test]
fn a_lease_does_not_end_while_its_hello_waits() {
    let mut world = world();
    let (watcher, conn) = (world.join(1), world.enter(knock(2)));
    world.close(conn, false);
    world.advance(89_999);
    world.seen(watcher);
    let again = world.hello(reading(knock(2)));
    world.advance(500);
    found(&mut world, vec![Some(MessageId(7))]);
    assert_eq!(world.answer(again).lease, LeaseFate::Kept);
    assert!(world.seen(watcher).iter().all(|event| !event.contains("left")));
}

#[test]
fn a_ban_holds_for_a_hello_that_waits_and_a_drain_ends_its_waiting() {
    let mut world = world();
    let banned = world.hello(reading(knock(2)));
    world.ban(crate::input::Banned::Session(session(2)));
    found(&mut world, vec![Some(MessageId(7))]);
    assert_eq!(world.refusal(banned).1, "banned");
    let mut world = self::world();
    let waiting = world.hello(reading(knock(2)));
    world.drain(None, 0);
    assert_eq!(world.refusal(waiting).0, ErrorCode::Draining);
    found(&mut world, vec![Some(MessageId(7))]);
}
