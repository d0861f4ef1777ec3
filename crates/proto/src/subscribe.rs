//! Subscriptions: where a session reads a topic.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ids::SubId;
use crate::message::Delivery;
use crate::name::{GroupName, TopicName};
use crate::number::U53;
pub use crate::topic::TopicCreateParams;

/// When a delivery counts as settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AckMode {
    /// When the reader says so.
    #[default]
    Manual,
    /// When it was written to the socket: at most once, by choice.
    Auto,
}

/// Where a new group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// At the log's end.
    #[default]
    New,
    /// At the oldest entry there is.
    Earliest,
    /// At this seq.
    Seq(U53),
}

impl Serialize for From {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            From::New => serializer.serialize_str("new"),
            From::Earliest => serializer.serialize_str("earliest"),
            From::Seq(seq) => seq.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for From {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Word(String),
            Seq(U53),
        }
        match Either::deserialize(deserializer) {
            Ok(Either::Word(word)) if word == "new" => Ok(From::New),
            Ok(Either::Word(word)) if word == "earliest" => Ok(From::Earliest),
            Ok(Either::Seq(seq)) => Ok(From::Seq(seq)),
            _ => Err(de::Error::custom("from is \"new\", \"earliest\" or a seq below 2^53")),
        }
    }
}

#[cfg(any(test, feature = "schema"))]
impl schemars::JsonSchema for From {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "From".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Where a new group begins: at the log's end, at the oldest entry there is, or at a seq.",
            "anyOf": [
                {"type": "string", "enum": ["new", "earliest"]},
                {"type": "integer", "minimum": 0, "maximum": U53::MAX.get()},
            ],
        })
    }
}

/// Deliveries that may be unsettled at once, unless a subscription says otherwise.
pub const DEFAULT_PREFETCH: u32 = 32;

fn default_prefetch() -> u32 {
    DEFAULT_PREFETCH
}

/// The params of `subscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeParams {
    /// The topic.
    pub topic: TopicName,
    /// The crew to join; absent is private to this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// One partition; absent is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Deliveries that may be unsettled at once.
    #[serde(default = "default_prefetch", deserialize_with = "crate::null::or_prefetch")]
    pub prefetch: u32,
    /// When a delivery counts as settled.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub ack_mode: AckMode,
    /// Where a new group begins.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub from: From,
}

/// The result of `subscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscribeResult {
    /// The subscription.
    pub sub_id: SubId,
    /// Where it begins in each partition.
    pub start_seq: BTreeMap<String, U53>,
}

/// A subscription as its session sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Its name on the session.
    pub sub_id: SubId,
    /// The topic.
    pub topic: TopicName,
    /// The crew, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The partition, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// When a delivery counts as settled.
    #[serde(default)]
    pub ack_mode: AckMode,
    /// Deliveries that may be unsettled at once.
    pub prefetch: u32,
}

/// The params of `unsubscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct UnsubscribeParams {
    /// The subscription.
    pub sub_id: SubId,
}

/// The params of `fetch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FetchParams {
    /// The subscription.
    pub sub_id: SubId,
    /// How many, at most 256.
    pub limit: U53,
}

/// The result of `fetch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct FetchResult {
    /// The deliveries.
    pub messages: Vec<Delivery>,
}

/// `event subscription`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionEvent {
    /// The subscription.
    pub sub_id: SubId,
    /// What became of it.
    pub kind: SubscriptionEventKind,
    /// The partition, of a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The first missing seq, of a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<U53>,
    /// The last missing seq, of a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<U53>,
    /// Why, of a close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What became of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SubscriptionEventKind {
    /// Entries were pruned before it read them.
    Gap,
    /// It ended.
    Closed,
}
