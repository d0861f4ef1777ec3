//! The two ends joined by a plain queue.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::message::{Address, Fallback, MessageKind, Priority, Sender};

use super::*;
use crate::messages::accept::{Accept, Route};
use crate::messages::envelope::{Body, Envelope};
use crate::store::record::TopicRecord;

/// A queue with its two ends, and the sum of what waits.
#[derive(Default)]
struct Pair {
    asking: Asking,
    taking: Taking,
    queue: VecDeque<Queued>,
    waiting: Load,
}

impl Pair {
    fn ask(&mut self, id: u64, write: StoreWrite) {
        let queued = self.asking.ask(WriteId(id), write, self.waiting);
        self.waiting.writes += queued.load().writes;
        self.waiting.bytes += queued.load().bytes;
        self.queue.push_back(queued);
    }

    fn fill(&mut self) -> Batch {
        let queue = &mut self.queue;
        self.taking.fill(std::iter::from_fn(|| queue.pop_front()))
    }

    fn done(&mut self, batch: Batch, sound: bool) -> Option<(bool, u64)> {
        let Load { writes, bytes } = batch.load();
        self.waiting.writes -= writes;
        self.waiting.bytes -= bytes;
        let outcome = if sound { Ok(vec![StoreOutcome::Done; batch.writes.len()]) } else { Err("full") };
        match self.taking.done(batch, outcome)? {
            Input::Committed { through, .. } => Some((true, through.0)),
            Input::Failed { through } => Some((false, through.0)),
            other => panic!("{other:?}"),
        }
    }

    /// One turn of the writer: what the mesh is told of it.
    fn turn(&mut self, sound: bool) -> Option<(bool, u64)> {
        let batch = self.fill();
        self.done(batch, sound)
    }
}

fn topic(n: u64) -> StoreWrite {
    let name = format!("t{n}").parse().unwrap();
    StoreWrite::PutTopic(TopicRecord {
        name,
        partitions: 1,
        retention_ms: None,
        created_at: n,
        owner: None,
        state: Default::default(),
    })
}

/// An accept of so many bytes.
fn message(bytes: usize) -> StoreWrite {
    let envelope = Envelope {
        id: MessageId::from_parts(1, 1),
        client_message_id: "m".into(),
        from: Sender { member: MemberKey([0; 32]), session: SessionKey([0; 32]), name: String::new() },
        to: Address::Topic("t".parse().unwrap()),
        key: None,
        priority: Priority::default(),
        reply_to: None,
        meta: None,
        body: Body::Bytes(vec![0; bytes - 256]),
        content_type: None,
        sent_at: 1,
        expires_at: None,
        not_before: None,
        fallback: Fallback::default(),
        kind: MessageKind::default(),
    };
    assert_eq!(envelope.weight(), bytes);
    let accept = Accept {
        envelope: Arc::new(envelope),
        fingerprint: Fingerprint([0; 32]),
        route: Route::Log("topic/t/0".parse().unwrap()),
        refusal: None,
        remember_until: None,
        full: Vec::new(),
        run: None,
    };
    StoreWrite::Accept(Arc::new(accept))
}

#[test]
fn what_waits_is_one_transaction_and_only_answers_are_told() {
    let mut pair = Pair::default();
    for n in 1..=3 {
        pair.ask(n, topic(n));
    }
    let batch = pair.fill();
    assert_eq!((batch.writes.len(), batch.is_refused()), (3, false));
    let outcomes = vec![StoreOutcome::Done, StoreOutcome::Opened(Err(7)), StoreOutcome::Done];
    let Some(Input::Committed { through, outcomes }) = pair.taking.done(batch, Ok::<_, ()>(outcomes)) else {
        panic!("not committed")
    };
    assert_eq!((through, outcomes), (WriteId(3), vec![(WriteId(2), StoreOutcome::Opened(Err(7)))]));
    assert_eq!(pair.turn(true), None, "nothing is told of nothing");
    assert_eq!(pair.turn(false), None, "nor of a failure that was not the mesh's");
    pair.ask(4, topic(4));
    assert_eq!(pair.turn(true), Some((true, 4)), "which lost nothing");
}

#[test]
fn what_was_asked_for_before_a_failure_was_heard_fails_with_it() {
    let mut pair = Pair::default();
    pair.ask(1, topic(1));
    assert_eq!(pair.turn(true), Some((true, 1)));
    pair.ask(2, topic(2));
    assert_eq!(pair.turn(false), Some((false, 2)));
    // The mesh has not heard of it when it asks for more, which may rest on what was lost.
    pair.ask(3, topic(3));
    assert_eq!(pair.turn(true), None, "one failure is told once");
    pair.ask(4, topic(4));
    assert_eq!(pair.asking.fail_all(), WriteId(4));
    pair.ask(5, topic(5));
    let batch = pair.fill();
    assert_eq!(batch.writes.len(), 1, "what is lost is dropped, and what comes after is not");
    assert_eq!(pair.done(batch, true), Some((true, 5)));
    assert_eq!(pair.waiting, Load::default());
}

#[test]
fn a_transaction_is_bounded_by_writes() {
    let mut pair = Pair::default();
    for n in 1..=BATCH as u64 + 1 {
        pair.ask(n, topic(n));
    }
    assert_eq!(pair.turn(true), Some((true, BATCH as u64)));
    assert_eq!(pair.turn(true), Some((true, BATCH as u64 + 1)));
}

#[test]
fn a_transaction_is_bounded_by_bytes_unless_the_first_alone_is_more() {
    let mut pair = Pair::default();
    pair.ask(1, message(BATCH_BYTES + 1));
    pair.ask(2, message(BATCH_BYTES / 2));
    pair.ask(3, message(BATCH_BYTES / 2));
    pair.ask(4, message(1_000));
    assert_eq!(pair.turn(true), Some((true, 1)));
    assert!(pair.taking.is_holding());
    assert_eq!(pair.turn(true), Some((true, 3)));
    assert_eq!(pair.turn(true), Some((true, 4)));
    assert!(!pair.taking.is_holding());
    assert_eq!(pair.waiting, Load::default());
}

#[test]
fn a_write_for_which_there_is_no_room_fails_in_its_turn() {
    let mut pair = Pair::default();
    pair.ask(1, topic(1));
    pair.waiting.writes += WAITING;
    pair.ask(2, topic(2));
    pair.waiting.writes -= WAITING;
    pair.ask(3, topic(3));
    assert_eq!(pair.turn(true), Some((true, 1)), "what came before it is not touched");
    let batch = pair.fill();
    assert!(batch.is_refused() && batch.writes.is_empty());
    assert_eq!(pair.done(batch, true), Some((false, 2)), "whatever the store says");
    assert_eq!(pair.turn(true), None, "what came behind it may rest on it");
    assert_eq!(pair.waiting, Load::default());
}

#[test]
fn bytes_that_wait_are_bounded_too() {
    let mut pair = Pair::default();
    pair.waiting.bytes = WAITING_BYTES - 1;
    pair.ask(1, message(1_000));
    assert_eq!(pair.waiting.bytes, WAITING_BYTES + 999, "one is let past the bound");
    pair.ask(2, message(1_000));
    assert_eq!(pair.waiting.bytes, WAITING_BYTES + 999, "and what is refused holds nothing");
    assert_eq!(pair.turn(true), Some((true, 1)));
    assert_eq!(pair.turn(true), Some((false, 2)));
}
