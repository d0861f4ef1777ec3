//! Messages as the broker carries them: an envelope before it has a place, an entry once it has one.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use tenure_proto::codec::Codec;
use tenure_proto::fingerprint::{Fingerprint, fingerprint};
use tenure_proto::ids::{MemberKey, MessageId, RunId};
use tenure_proto::limits::INBOX_TTL_MS;
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Bytes, Fallback, Message, MessageKind, Meta, Priority, Sender};
use tenure_proto::number::U53;

/// Bytes of a message on the wire that are not its body, if it has the usual fields and went to a topic; and how many more if
/// it went to an inbox, whose name has a key in it.
const AROUND_A_BODY: usize = 416;
const IN_AN_INBOX: usize = 160;

/// Which part of a log an entry is in: an inbox has one per priority, a topic only the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u8);

impl Lane {
    /// The lanes of an inbox, the most urgent first.
    pub const ALL: [Lane; 3] = [Lane(0), Lane(1), Lane(2)];

    /// The lane that a message of `priority` takes in `log`.
    pub fn of(log: &LogName, priority: Priority) -> Lane {
        match (log.is_inbox(), priority) {
            (false, _) | (true, Priority::Now) => Lane(0),
            (true, Priority::Next) => Lane(1),
            (true, Priority::Low) => Lane(2),
        }
    }

    /// The lanes that `log` has.
    pub fn of_log(log: &LogName) -> &'static [Lane] {
        if log.is_inbox() { &Lane::ALL } else { &Lane::ALL[..1] }
    }

    /// Its place in an array of lanes.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// UTF-8 text.
    Text(String),
    /// Any bytes.
    Bytes(Vec<u8>),
}

impl Body {
    /// The bytes themselves: what is hashed and counted.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Body::Text(text) => text.as_bytes(),
            Body::Bytes(bytes) => bytes,
        }
    }
}

/// A message before it has a place in a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// The broker's id for it.
    pub id: MessageId,
    /// The sender's id for it.
    pub client_message_id: Arc<str>,
    /// Who sent it.
    pub from: Sender,
    /// Where it was sent.
    pub to: Address,
    /// What chose its partition.
    pub key: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// The message it answers.
    pub reply_to: Option<String>,
    /// Free facts beside the body.
    pub meta: Option<Meta>,
    /// What it says.
    pub body: Body,
    /// What the body is.
    pub content_type: Option<String>,
    /// When it was accepted, Unix milliseconds.
    pub sent_at: u64,
    /// When it goes to the dead letters, Unix milliseconds, if its sender said so.
    pub expires_at: Option<u64>,
    /// Before when it is handed to nobody, Unix milliseconds.
    pub not_before: Option<u64>,
    /// What happens when the receiver's lease ends first.
    pub fallback: Fallback,
    /// What it is.
    pub kind: MessageKind,
}

impl Envelope {
    /// Says that it came at `wall`: its id, and the times that count from then, move with it.
    pub fn stamp(&mut self, wall: u64) {
        let sent_at = std::mem::replace(&mut self.sent_at, wall);
        let moved = |at: u64| wall.saturating_add(at.saturating_sub(sent_at));
        self.expires_at = self.expires_at.map(moved);
        self.not_before = self.not_before.map(moved);
        self.id = MessageId::from_parts(wall, self.id.0);
        if self.kind == MessageKind::Run {
            self.meta = Some(Envelope::run_meta(self.id));
        }
    }

    /// What the message of a run says of it: a run has the id of its message.
    pub fn run_meta(id: MessageId) -> Meta {
        Meta(Map::from_iter([("runId".to_owned(), Value::String(RunId(id.0).to_string()))]))
    }

    /// How long nobody gets it yet at `wall`, if so; never longer than it was to wait when it came. What was stamped by a
    /// clock that was ahead, and has been set right since, would wait for that time to come again.
    pub fn delay_left(&self, wall: u64) -> Option<u64> {
        let until = self.not_before?;
        let left = until.saturating_sub(wall).min(until.saturating_sub(self.sent_at));
        (left > 0).then_some(left)
    }

    /// Within what its sender's id for it is remembered.
    pub fn scope(&self) -> MemberKey {
        crate::messages::accept::scope(self.from.member)
    }

    /// The fingerprint of the request that it came with; nothing if no such request is accepted.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        // What a run is told of itself was not in its request.
        let meta = self.meta.as_ref().filter(|_| self.kind == MessageKind::Message).map(|meta| &meta.0);
        fingerprint(&self.to, self.reply_to.as_deref(), self.priority, meta, self.body.as_bytes()).ok()
    }

    /// Roughly the memory it takes, for bounds.
    pub fn weight(&self) -> usize {
        let meta = self.meta.as_ref().map_or(0, |meta| 64 * meta.0.len());
        self.body.as_bytes().len() + meta + 256
    }
}

/// A message with its place in a log; encoded at most once per codec, whatever the number of readers.
#[derive(Debug)]
pub struct Entry {
    /// The log.
    pub log: LogName,
    /// Its part of the log.
    pub lane: Lane,
    /// Its number there.
    pub seq: u64,
    /// The message.
    pub envelope: Arc<Envelope>,
    json: OnceLock<Box<[u8]>>,
    msgpack: OnceLock<Box<[u8]>>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (&self.log, self.lane, self.seq, &self.envelope)
            == (&other.log, other.lane, other.seq, &other.envelope)
    }
}

impl Entry {
    /// `envelope` at its place.
    pub fn new(log: LogName, lane: Lane, seq: u64, envelope: Arc<Envelope>) -> Entry {
        Entry { log, lane, seq, envelope, json: OnceLock::new(), msgpack: OnceLock::new() }
    }

    /// When it expires, Unix milliseconds: what its sender said, else in an inbox a week after it could first be
    /// handed out, in a topic never.
    pub fn expires_at(&self) -> Option<u64> {
        let Envelope { sent_at, expires_at, not_before, .. } = &*self.envelope;
        let ready_at = not_before.map_or(*sent_at, |at| at.max(*sent_at));
        let default = self.log.is_inbox().then(|| ready_at.saturating_add(INBOX_TTL_MS));
        expires_at.or(default)
    }

    /// The message as it stands on the wire.
    pub fn message(&self) -> Message {
        let envelope = &*self.envelope;
        let (body, body_b64) = match &envelope.body {
            Body::Text(text) => (Some(text.clone()), None),
            Body::Bytes(bytes) => (None, Some(Bytes(bytes.clone()))),
        };
        Message {
            id: envelope.id,
            client_message_id: envelope.client_message_id.as_ref().to_owned(),
            from: envelope.from.clone(),
            to: envelope.to.clone(),
            log: self.log.spelled(),
            seq: U53::saturating(self.seq),
            key: envelope.key.clone(),
            priority: envelope.priority,
            reply_to: envelope.reply_to.clone(),
            meta: envelope.meta.clone(),
            body,
            body_b64,
            content_type: envelope.content_type.clone(),
            sent_at: U53::saturating(envelope.sent_at),
            expires_at: self.expires_at().map(U53::saturating),
            kind: envelope.kind,
        }
    }

    /// The wire's bytes of the message, made on first use.
    pub fn encoded(&self, codec: Codec) -> &[u8] {
        let cell = match codec {
            Codec::Json => &self.json,
            Codec::MsgPack => &self.msgpack,
        };
        cell.get_or_init(|| {
            let encoded = codec.encode_with_room(&self.message(), self.room(codec));
            // Readers may be long in coming. Room that was too large is given back by a copy: an allocator asked to shrink a
            // block may leave it as large as it was.
            if encoded.capacity() > encoded.len() + encoded.len() / 8 {
                Box::from(&encoded[..])
            } else {
                encoded.into_boxed_slice()
            }
        })
    }

    /// About how long the message is on the wire.
    fn room(&self, codec: Codec) -> usize {
        let body = match (&self.envelope.body, codec) {
            (Body::Bytes(bytes), Codec::Json) => bytes.len().div_ceil(3) * 4,
            (body, _) => body.as_bytes().len(),
        };
        body + AROUND_A_BODY + if self.log.is_inbox() { IN_AN_INBOX } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::ids::SessionKey;

    use super::*;

    fn entry(log: &str, expires_at: Option<u64>, not_before: Option<u64>) -> Entry {
        let log: LogName = log.parse().unwrap();
        let lane = Lane::of(&log, Priority::Next);
        let envelope = Envelope {
            id: MessageId::from_parts(1, 1),
            client_message_id: "m1".into(),
            from: Sender { member: MemberKey([1; 32]), session: SessionKey([2; 32]), name: "n".into() },
            to: Address::Session(SessionKey([3; 32])),
            key: None,
            priority: Priority::Next,
            reply_to: None,
            meta: None,
            body: Body::Bytes(vec![0, 255]),
            content_type: None,
            sent_at: 1_000,
            expires_at,
            not_before,
            fallback: Fallback::Hold,
            kind: MessageKind::Message,
        };
        Entry::new(log, lane, 7, Arc::new(envelope))
    }

    #[test]
    fn an_inbox_keeps_a_message_for_a_week_from_when_it_is_ready() {
        let inbox = format!("inbox/s/{}", "03".repeat(32));
        assert_eq!(entry(&inbox, None, None).expires_at(), Some(1_000 + INBOX_TTL_MS));
        assert_eq!(entry(&inbox, Some(5_000), None).expires_at(), Some(5_000));
        let month = 30 * 24 * 3600 * 1000;
        assert_eq!(entry(&inbox, None, Some(month)).expires_at(), Some(month + INBOX_TTL_MS));
        assert_eq!(entry("topic/jobs/0", None, Some(month)).expires_at(), None);
        assert_eq!(entry("topic/jobs/0", Some(5_000), None).expires_at(), Some(5_000));
    }

    #[test]
    fn a_usual_message_is_encoded_in_the_room_that_is_made_for_it() {
        for log in ["topic/jobs/0".to_owned(), format!("inbox/s/{}", "03".repeat(32))] {
            let Entry { log, lane, envelope, .. } = entry(&log, None, None);
            let to = if log.is_inbox() { envelope.to.clone() } else { "topic:jobs".parse().unwrap() };
            for body in [Body::Text("x".repeat(1024)), Body::Bytes(vec![7; 1024])] {
                let client_message_id = MessageId::from_parts(1, 2).to_string().into();
                let envelope = Envelope { to: to.clone(), body, client_message_id, ..(*envelope).clone() };
                let entry = Entry::new(log.clone(), lane, 1_000_000, Arc::new(envelope));
                for codec in [Codec::Json, Codec::MsgPack] {
                    let (len, room) = (entry.encoded(codec).len(), entry.room(codec));
                    assert!(len <= room, "{log} in {codec:?} grows: {len} of {room}");
                    assert!(room <= len + len / 8, "{log} in {codec:?} is copied: {len} of {room}");
                }
            }
        }
    }

    #[test]
    fn only_inboxes_have_lanes() {
        assert_eq!(entry("topic/jobs/0", None, None).lane, Lane(0));
        assert_eq!(entry(&format!("inbox/m/{}", "03".repeat(32)), None, None).lane, Lane(1));
    }

    #[test]
    fn a_message_is_encoded_once_and_as_it_is_typed() {
        let entry = entry("topic/jobs/0", Some(5_000), None);
        for codec in [Codec::Json, Codec::MsgPack] {
            let first = entry.encoded(codec).as_ptr();
            assert_eq!(entry.encoded(codec).as_ptr(), first);
            assert_eq!(codec.decode::<Message>(entry.encoded(codec)), Ok(entry.message()));
        }
    }
}
