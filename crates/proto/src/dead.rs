//! Dead letters: what nobody could settle, and what an operator does about it.

use serde::{Deserialize, Serialize};

use crate::message::Message;
use crate::name::GroupName;
use crate::number::U53;

/// The params of `dead.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadListParams {
    /// The log whose dead letters are meant.
    pub log: String,
    /// After which seq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<U53>,
    /// How many, at most 256; absent is 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `dead.list`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadListResult {
    /// Dead letters, ordered by seq; an entry that several groups gave up stands there once for each.
    pub letters: Vec<DeadLetter>,
    /// Present when there are more: what to pass as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<U53>,
}

/// A message that nobody could settle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadLetter {
    /// The message.
    pub message: Message,
    /// The group that gave it up; absent for an inbox, a private reader or everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// How often it was handed out.
    pub attempts: u32,
    /// Why: `max_attempts`, `expired`, `lease_expired`, `retention`, `damaged`, or what the reader said.
    pub reason: String,
    /// When, Unix milliseconds.
    pub at: U53,
}

/// The params of `dead.retry`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadRetryParams {
    /// The log whose dead letters are meant.
    pub log: String,
    /// Which of them, at most 256.
    pub seqs: Vec<U53>,
}

/// The result of `dead.retry`: every seq asked for is in one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadRetryResult {
    /// Dead letters that are back in their log, to be handed out again.
    pub retried: Vec<U53>,
    /// Seqs at which there was none.
    pub missing: Vec<U53>,
}

/// The params of `dead.drop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadDropParams {
    /// The log whose dead letters are meant.
    pub log: String,
    /// Which of them, at most 256.
    pub seqs: Vec<U53>,
}

/// The result of `dead.drop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DeadDropResult {
    /// Dead letters that are gone for good.
    pub dropped: U53,
}
