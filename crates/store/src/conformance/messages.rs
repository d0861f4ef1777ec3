//! Messages, writes and reads for tests, told apart by small numbers.

use std::sync::Arc;

use serde_json::json;
use tenure_mesh::messages::accept::{Accept, Accepted, Route};
use tenure_mesh::messages::envelope::{Body, Entry, Envelope, Lane};
use tenure_mesh::store::record::{
    GroupId, GroupRecord, GroupWrite, OpenRecord, Reader, StoreFound, StoreOutcome, StoreRead, StoreWrite,
};
use tenure_proto::MeshName;
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Fallback, MessageKind, Meta, Priority, Sender};

use crate::{Store, Write};

/// The moment of tests, Unix milliseconds.
pub(crate) const NOW: u64 = 1_700_000_000_000;

pub(crate) fn mesh() -> MeshName {
    "m".parse().unwrap()
}

pub(crate) fn session(n: u8) -> SessionKey {
    SessionKey([n; 32])
}

pub(crate) fn member(n: u8) -> MemberKey {
    MemberKey([n.wrapping_add(100); 32])
}

/// The inbox of session `n`.
pub(crate) fn inbox(n: u8) -> LogName {
    LogName::Session(session(n))
}

/// The first partition of a topic.
pub(crate) fn topic(name: &str) -> LogName {
    LogName::Topic(name.parse().unwrap(), 0)
}

/// A message from session 1 of member 1 with nothing that can be left out.
pub(crate) fn plain(n: u64) -> Envelope {
    Envelope {
        id: MessageId::from_parts(NOW + n, u128::from(n)),
        client_message_id: format!("c-{n}").into(),
        from: Sender { member: member(1), session: session(1), name: "one".to_owned() },
        to: Address::Session(session(9)),
        key: None,
        priority: Priority::Next,
        reply_to: None,
        meta: None,
        body: Body::Text(format!("body {n}")),
        content_type: None,
        sent_at: NOW + n,
        expires_at: None,
        not_before: None,
        fallback: Fallback::Hold,
        kind: MessageKind::Message,
    }
}

/// A message with everything.
pub(crate) fn full(n: u64) -> Envelope {
    let meta = json!({"a": [1, -2, 0.1, 1.5e300, null, true, "\u{1f600}"], "b": {"c": {}}});
    let serde_json::Value::Object(meta) = meta else { unreachable!() };
    Envelope {
        from: Sender { name: "naïve \0".to_owned(), ..plain(n).from },
        to: Address::Topic("jobs".parse().unwrap()),
        key: Some(String::new()),
        priority: Priority::Low,
        reply_to: Some("x".repeat(200)),
        meta: Some(Meta(meta)),
        body: Body::Bytes((0..=255).collect()),
        content_type: Some("a/b".to_owned()),
        expires_at: Some(NOW + 1_000_000),
        not_before: Some(NOW + 5),
        fallback: Fallback::Fail,
        kind: MessageKind::Run,
        ..plain(n)
    }
}

/// The fingerprint `n`.
pub(crate) fn print(n: u8) -> Fingerprint {
    Fingerprint([n; 32])
}

/// The accept of `envelope` into `log`, remembered for ever.
pub(crate) fn accept(log: LogName, envelope: Envelope) -> Accept {
    let (fingerprint, route) = (envelope.fingerprint().unwrap(), Route::Log(log));
    let (envelope, full) = (Arc::new(envelope), Vec::new());
    Accept { envelope, fingerprint, route, refusal: None, remember_until: None, full, run: None }
}

/// A write of mesh `m`.
pub(crate) fn write(write: StoreWrite) -> Write {
    Write::Mesh { mesh: mesh(), run: 1, write }
}

/// What one write of mesh `m` came to.
pub(crate) fn apply(store: &mut impl Store, one: StoreWrite) -> StoreOutcome {
    let outcomes = store.apply(&[write(one)]).unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes.into_iter().next().unwrap()
}

/// What became of one message.
pub(crate) fn send(store: &mut impl Store, accept: Accept) -> Accepted {
    match apply(store, StoreWrite::Accept(Arc::new(accept))) {
        StoreOutcome::Accepted(accepted) => accepted,
        other => panic!("{other:?}"),
    }
}

/// Sends the plain messages `numbers` to `log`.
pub(crate) fn fill(store: &mut impl Store, log: &LogName, numbers: std::ops::Range<u64>) {
    let accepts = numbers.map(|n| write(StoreWrite::Accept(Arc::new(accept(log.clone(), plain(n))))));
    for outcome in store.apply(&accepts.collect::<Vec<_>>()).unwrap() {
        assert!(matches!(outcome, StoreOutcome::Accepted(Accepted::Fresh { .. })), "{outcome:?}");
    }
}

/// What a new reader finds in mesh `m`.
pub(crate) fn read(store: &impl Store, read: &StoreRead) -> StoreFound {
    store.reader().unwrap().read(&mesh(), read).unwrap()
}

/// All entries of a lane.
pub(crate) fn lane(store: &impl Store, log: &LogName, lane: Lane) -> Vec<Arc<Entry>> {
    let page = StoreRead::Page { log: log.clone(), lane, after: 0, limit: 1_000_000, bytes: usize::MAX };
    match read(store, &page) {
        StoreFound::Page { entries, damaged } if damaged.is_empty() => entries,
        other => panic!("{other:?}"),
    }
}

/// The seqs of all entries of a lane.
pub(crate) fn seqs(store: &impl Store, log: &LogName, of: Lane) -> Vec<u64> {
    lane(store, log, of).iter().map(|entry| entry.seq).collect()
}

/// Group `id` in a lane of `log`.
pub(crate) fn group(id: u64, log: &LogName, lane: Lane, reader: Reader) -> GroupRecord {
    let owner = matches!(reader, Reader::Shared(_)).then(|| member(7));
    GroupRecord { id: GroupId(id), log: log.clone(), lane, reader, owner }
}

/// The write that moves a group to `cursor` with `open` in hand.
pub(crate) fn advance(record: &GroupRecord, cursor: u64, open: &[u64]) -> StoreWrite {
    StoreWrite::Group(Box::new(GroupWrite {
        record: record.clone(),
        cursor,
        used_at: NOW,
        replace: true,
        put: open.iter().map(|seq| opened(*seq)).collect(),
        del: Vec::new(),
        settlers: Default::default(),
    }))
}

/// An entry in the hands of session 9.
pub(crate) fn opened(seq: u64) -> OpenRecord {
    OpenRecord { seq, attempt: 2, tries: 1, holder: Some(session(9)), ready_at: None, lasting: false }
}
