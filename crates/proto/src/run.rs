//! Runs: calls to agents whose answers stream back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::WireError;
use crate::ids::{MemberKey, RunId, SessionKey};
use crate::limits::RUN_KEY_BYTES;
use crate::message::Address;
use crate::number::U53;

/// The params of `run.start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunStartParams {
    /// The session or member that is called.
    pub to: Address,
    /// What it gets.
    #[serde(deserialize_with = "crate::value::bounded")]
    pub input: Value,
    /// The caller's key: the same key is the same run.
    #[cfg_attr(any(test, feature = "schema"), schemars(regex(pattern = r"^[ -~]{1,128}$")))]
    pub idempotency_key: String,
    /// How long it may take, a day at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<U53>,
    /// The first chunk wanted, of a run that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<U53>,
}

impl RunStartParams {
    /// Whether a text can be a caller's key.
    pub fn is_key(text: &str) -> bool {
        (1..=RUN_KEY_BYTES).contains(&text.len()) && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Nobody has taken it yet.
    Queued,
    /// Somebody is at it.
    Running,
    /// It went well.
    Ok,
    /// It failed.
    Error,
    /// It was cancelled.
    Cancelled,
}

/// The result of `run.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunStartResult {
    /// The run.
    pub run_id: RunId,
    /// Where it stands.
    pub state: RunState,
}

/// The params of `run.chunk`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunChunkParams {
    /// The run.
    pub run_id: RunId,
    /// 1, 2, 3, …
    pub seq: U53,
    /// A piece of the answer.
    #[serde(deserialize_with = "crate::value::bounded")]
    pub data: Value,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RunEndStatus {
    /// Well.
    Ok,
    /// Not well.
    Error,
    /// It was cancelled.
    Cancelled,
}

/// The params of `run.end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunEndParams {
    /// The run.
    pub run_id: RunId,
    /// One past the last chunk.
    pub seq: U53,
    /// How it ended.
    pub status: RunEndStatus,
    /// The answer, when it went well.
    #[serde(
        default,
        deserialize_with = "crate::value::bounded_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    /// What went wrong, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// The params of `run.cancel` and `run.get`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunIdParams {
    /// The run.
    pub run_id: RunId,
}

/// The result of `run.get`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunGetResult {
    /// The run.
    pub run_id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// The last chunk's number.
    pub last_seq: U53,
    /// The answer.
    #[serde(
        default,
        deserialize_with = "crate::value::bounded_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// The params of `runs.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RunsListParams {
    /// Begin after this run: the `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<RunId>,
    /// At most so many, up to 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `runs.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RunsListResult {
    /// Runs that have not ended, ordered by id, which is about the order of their start.
    pub runs: Vec<RunInfo>,
    /// What to pass as `after` to go on, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RunId>,
}

/// A run that has not ended, in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunInfo {
    /// The run.
    pub run_id: RunId,
    /// `queued` or `running`.
    pub state: RunState,
    /// Whose inbox its message is in: who was called.
    pub to: Address,
    /// The member that called.
    pub caller: MemberKey,
    /// The session that answers, once one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<SessionKey>,
    /// The last chunk's number, as far as this broker has seen since it started.
    pub last_seq: U53,
    /// Whether its caller wants it stopped.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancelled: bool,
    /// When it was accepted, Unix milliseconds.
    pub started_at: U53,
    /// When its time is over, Unix milliseconds; absent when its end is decided and on its way to the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<U53>,
}

/// `event run`, to the caller (`seq` with `data` or `end`) or to the callee (`cancel`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunEvent {
    /// The run.
    pub run_id: RunId,
    /// The chunk's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<U53>,
    /// A piece of the answer.
    #[serde(
        default,
        deserialize_with = "crate::value::bounded_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub data: Option<Value>,
    /// The end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RunEnd>,
    /// The caller wants it stopped.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel: bool,
    /// Chunks before this one were lost with a broker.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gap: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How a run ended, as its caller gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RunEnd {
    /// How.
    pub status: RunEndStatus,
    /// The answer.
    #[serde(
        default,
        deserialize_with = "crate::value::bounded_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}
