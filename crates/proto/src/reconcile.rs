//! Reconciliation: what both sides believe about subscriptions and deliveries after a break.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{SubId, Tag};
use crate::name::{GroupName, TopicName};
use crate::number::U53;
use crate::subscribe::{AckMode, DEFAULT_PREFETCH, Subscription};

/// What to do about subscriptions that only the client knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReconcilePolicy {
    /// Close what the server has forgotten.
    #[default]
    Conservative,
    /// Make it again from the client's positions.
    RestoreClient,
}

fn default_prefetch() -> u32 {
    DEFAULT_PREFETCH
}

/// A subscription as the client believes it to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientSubscription {
    /// The client's name for it.
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
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub ack_mode: AckMode,
    /// Deliveries that may be unsettled at once.
    #[serde(default = "default_prefetch", deserialize_with = "crate::null::or_prefetch")]
    pub prefetch: u32,
    /// The last seq it has of each partition.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub positions: BTreeMap<String, U53>,
}

/// A delivery that the client has in hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ClientInflight {
    /// The delivery.
    pub tag: Tag,
    /// What the client is doing with it.
    pub state: InflightState,
    /// How it was settled, when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle: Option<Settle>,
}

/// What a client is doing with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InflightState {
    /// Working on it.
    Processing,
    /// Done, but the broker may not know.
    Settled,
}

/// How a delivery was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Settle {
    /// Done.
    Ack,
    /// Given back.
    Nack,
}

/// The params of `reconcile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ReconcileParams {
    /// What to do about subscriptions that only the client knows.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub policy: ReconcilePolicy,
    /// All that the client believes to have.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub subscriptions: Vec<ClientSubscription>,
    /// All that it has in hand.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub inflight: Vec<ClientInflight>,
}

/// The result of `reconcile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ReconcileResult {
    /// One per subscription that either side knows.
    pub results: Vec<SubscriptionVerdict>,
    /// One per delivery listed.
    pub inflight: Vec<InflightVerdict>,
}

/// What becomes of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionVerdict {
    /// What becomes of it.
    pub action: ReconcileAction,
    /// Its name from here on.
    pub sub_id: SubId,
    /// The client's name, when it knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<SubId>,
    /// The server's name, when it knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<SubId>,
    /// Why.
    pub reason: String,
    /// The subscription as the client listed it, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_view: Option<Box<Subscription>>,
    /// The subscription as the server knew it before this reconciliation, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_view: Option<Box<Subscription>>,
    /// The first entry of each partition that is not settled, of a lone reader that goes on: nothing before it will come.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::or_default"
    )]
    pub start_seq: BTreeMap<String, U53>,
}

/// What becomes of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReconcileAction {
    /// It goes on.
    Keep,
    /// The client closes it.
    CloseClientSide,
    /// The server dropped it.
    CloseServerSide,
    /// The client subscribes again.
    RecreateClientSide,
}

/// What becomes of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct InflightVerdict {
    /// The delivery.
    pub tag: Tag,
    /// What becomes of it.
    pub result: InflightResult,
}

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InflightResult {
    /// It counts as settled.
    Settled,
    /// It is still the client's.
    Kept,
    /// It belongs to somebody else now.
    Requeued,
}
