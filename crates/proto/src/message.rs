//! Messages: addresses, priorities, `send` and what it answers, deliveries and settling.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use crate::body::{Bytes, Meta};
pub use crate::dead::{DeadListParams, DeadRetryParams};
use crate::error::WireError;
use crate::ids::{ClientMessageId, MemberKey, MessageId, SessionKey, SubId, Tag};
use crate::name::TopicName;
use crate::number::U53;

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// One session's inbox.
    Session(SessionKey),
    /// A member's inbox, read by whichever of its sessions asks.
    Member(MemberKey),
    /// A topic.
    Topic(TopicName),
}

impl Address {
    /// The two fields of the fingerprint.
    pub fn kind_and_ref(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Address::Session(key) => ("session", key.to_string().into()),
            Address::Member(key) => ("member", key.to_string().into()),
            Address::Topic(name) => ("topic", name.as_str().into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, reference) = self.kind_and_ref();
        write!(f, "{kind}:{reference}")
    }
}

impl FromStr for Address {
    type Err = WireError;
    fn from_str(text: &str) -> Result<Address, WireError> {
        let bad = || WireError::bad_request("an address is session:<hex>, member:<hex> or topic:<name>");
        let (kind, reference) = text.split_once(':').ok_or_else(bad)?;
        match kind {
            "session" => reference.parse().map(Address::Session).map_err(|_| bad()),
            "member" => reference.parse().map(Address::Member).map_err(|_| bad()),
            "topic" => reference.parse().map(Address::Topic),
            _ => Err(bad()),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|e: WireError| de::Error::custom(e.message))
    }
}

#[cfg(any(test, feature = "schema"))]
impl schemars::JsonSchema for Address {
    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^((session|member):[0-9a-f]{64}|topic:[a-z0-9][a-z0-9._-]{0,63})$"})
    }
}

/// How urgent a message is: which lane of an inbox it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Always delivered.
    Now,
    /// Unless the receiver is working or does not want to be disturbed.
    #[default]
    Next,
    /// Only when the receiver is idle.
    Low,
}

impl Priority {
    /// As it stands on the wire and in the fingerprint.
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::Now => "now",
            Priority::Next => "next",
            Priority::Low => "low",
        }
    }
}

/// What happens to a session's message when its lease ends first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// It waits for the key to come back.
    #[default]
    Hold,
    /// It moves to the member's inbox.
    Member,
    /// It fails.
    Fail,
}

/// The params of `send`. Exactly one of `body` and `bodyB64`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SendParams {
    /// Where it goes.
    pub to: Address,
    /// UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Bytes in standard base64.
    #[serde(default, rename = "bodyB64", skip_serializing_if = "Option::is_none")]
    pub body_b64: Option<Bytes>,
    /// The sender's id for it: the key of its idempotency.
    pub client_message_id: ClientMessageId,
    /// How urgent it is.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub priority: Priority,
    /// What chooses its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Free facts beside the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    /// What the body is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How long it may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<U53>,
    /// How long it must wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<U53>,
    /// What happens when the receiver's lease ends first.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub fallback: Fallback,
    /// The client's own fingerprint in hex, to be compared with ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// The result of `send`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SendResult {
    /// The broker's id.
    pub id: MessageId,
    /// The log it went to.
    pub log: String,
    /// Its number there.
    pub seq: U53,
    /// Whether it had been accepted before.
    pub duplicate: bool,
    /// Whether the receiving session's lease lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<Recipient>,
    /// When it was first accepted, of a duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<U53>,
    /// Whether the entry still exists, of a duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_available: Option<bool>,
}

/// Whether a receiving session's lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Recipient {
    /// It lives.
    Online,
    /// It has ended; the message waits for the key.
    Gone,
}

/// Who sent a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Sender {
    /// The member.
    pub member: MemberKey,
    /// The session.
    pub session: SessionKey,
    /// The session's display name when it was sent.
    pub name: String,
}

/// What a log entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MessageKind {
    /// A message.
    #[default]
    Message,
    /// A call that waits for an answer.
    Run,
}

/// A message as its receivers get it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The broker's id.
    pub id: MessageId,
    /// The sender's id.
    pub client_message_id: String,
    /// Who sent it.
    pub from: Sender,
    /// Where it was sent.
    pub to: Address,
    /// The log it is in.
    pub log: String,
    /// Its number there.
    pub seq: U53,
    /// What chose its partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// The message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Free facts beside the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    /// UTF-8 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Bytes.
    #[serde(default, rename = "bodyB64", skip_serializing_if = "Option::is_none")]
    pub body_b64: Option<Bytes>,
    /// What the body is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// When it was accepted, Unix milliseconds.
    pub sent_at: U53,
    /// When it goes to the dead letters, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<U53>,
    /// What it is.
    #[serde(default)]
    pub kind: MessageKind,
}

/// `event message`, and an entry of `fetch`: a message in the hands of one reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The subscription it came through.
    pub sub_id: SubId,
    /// What settles it.
    pub tag: Tag,
    /// How often it was handed out and given back before, plus one.
    pub attempt: u32,
    /// Whether somebody may have seen it before.
    pub redelivered: bool,
    /// The message.
    pub message: Message,
}

/// The params of `send.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SendStatusParams {
    /// The sender's ids, at most 256.
    pub client_message_ids: Vec<ClientMessageId>,
}

/// The result of `send.status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SendStatusResult {
    /// One for each id asked for, in that order.
    pub statuses: Vec<SendStatus>,
}

/// The fate of one sent message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SendStatus {
    /// The sender's id.
    pub client_message_id: ClientMessageId,
    /// The broker's id, when it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Its fate.
    pub state: SendState,
    /// Why, when it was not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The first eight bytes of the fingerprint of what was accepted under this id, in lower-case hex: tells whether
    /// that is the request that the sender means. Absent when the id is unknown, and from brokers before it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint_prefix: Option<String>,
}

/// The fate of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SendState {
    /// Never accepted, or forgotten.
    Unknown,
    /// On disk, waiting.
    Accepted,
    /// Settled by its receiver.
    Delivered,
    /// In the dead letters.
    Dead,
    /// Nobody settled it in time.
    Expired,
}

/// The params of `ack` and `progress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TagsParams {
    /// The deliveries meant, at most 4,096.
    pub tags: Vec<Tag>,
}

/// The params of `nack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NackParams {
    /// The deliveries given back, at most 4,096.
    pub tags: Vec<Tag>,
    /// How long they wait before the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<U53>,
    /// Whether they go straight to the dead letters.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub dead: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The result of `ack`, `nack` and `progress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SettleResult {
    /// Tags that took effect, now or before.
    pub settled: Vec<Tag>,
    /// Tags that did not.
    pub stale: Vec<StaleTag>,
}

/// A tag that did not take effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StaleTag {
    /// The tag.
    pub tag: Tag,
    /// Why.
    pub reason: String,
}

/// The params of `history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HistoryParams {
    /// The log to read.
    pub log: String,
    /// Where to begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<U53>,
    /// How many, at most 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HistoryResult {
    /// The entries.
    pub messages: Vec<Message>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<U53>,
    /// Entries of this page that cannot be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedEntry>,
}

/// An entry that cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DamagedEntry {
    /// Its number in the log.
    pub seq: U53,
    /// Why: `damaged`, its bytes do not match their checksum.
    pub reason: String,
}
