//! Services: leased names for what a session can answer, and tickets to reach them.

use serde::{Deserialize, Serialize};

use crate::error::WireError;
use crate::hello::StateVersion;
use crate::ids::{MemberKey, SessionKey};
use crate::name::ServiceName;
use crate::number::U53;

/// How a service is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// A byte stream.
    Tcp,
    /// HTTP, public by name on the relay.
    Http,
    /// Runs.
    Run,
}

/// Whether a service can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It can.
    Online,
    /// Its session is in grace or did not renew: the name is held.
    Stale,
}

/// What a publisher says of its service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceMetadata {
    /// A sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Free labels.
    #[serde(default, deserialize_with = "crate::null::or_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Whom to ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether it is left out of lists.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub hide: bool,
}

/// A service as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// How it is spoken to.
    pub kind: ServiceKind,
    /// Whether it can be reached.
    pub state: ServiceState,
    /// Whether its local target fails the probe.
    #[serde(default)]
    pub degraded: bool,
    /// The session that publishes it.
    pub session: SessionKey,
    /// That session's member.
    pub member: MemberKey,
    /// What the publisher says of it.
    pub metadata: ServiceMetadata,
    /// When its session took the name, Unix milliseconds. The times are in the answers of `services.list` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<U53>,
    /// When it was last renewed, or its session attached, Unix milliseconds; absent if that was before the broker's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_renewed_at: Option<U53>,
    /// When it ends at the earliest unless it is renewed, Unix milliseconds; absent while its session is in grace, where the
    /// lease decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<U53>,
}

impl Service {
    /// The same without its times, as events tell it: so two can be compared.
    pub fn without_times(self) -> Service {
        Service { first_seen_at: None, last_renewed_at: None, expires_at: None, ..self }
    }
}

/// What became of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServiceEventKind {
    /// It can be reached.
    Online,
    /// It cannot just now.
    Stale,
    /// It is gone; the name is free.
    Gone,
    /// What it says of itself changed.
    Updated,
}

impl ServiceEventKind {
    /// As it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            ServiceEventKind::Online => "online",
            ServiceEventKind::Stale => "stale",
            ServiceEventKind::Gone => "gone",
            ServiceEventKind::Updated => "updated",
        }
    }
}

/// `event service`: one step of the service map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceEvent {
    /// What became of it.
    pub kind: ServiceEventKind,
    /// The service.
    pub service: Service,
    /// The version last sent to this session.
    pub base: U53,
    /// The version after this step.
    pub version: U53,
}

/// The params of `services.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServicesListParams {
    /// Whether hidden ones are wanted too.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub all: bool,
    /// Begin after this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ServiceName>,
    /// At most so many, and at most 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `services.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServicesListResult {
    /// The services, ordered by name.
    pub services: Vec<Service>,
    /// After which name to go on, when there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<ServiceName>,
    /// The version of this answer.
    pub state_version: StateVersion,
}

/// One service to take or renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServiceOffer {
    /// Its name; checked by rule, so that each gets its own verdict.
    pub name: String,
    /// How it is spoken to.
    pub kind: ServiceKind,
    /// How long without renewal until it is stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<U53>,
    /// What the publisher says of it.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub metadata: ServiceMetadata,
    /// Whether the local target fails the probe.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub degraded: bool,
}

/// The params of `service.renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceRenewParams {
    /// All of a session's services.
    pub services: Vec<ServiceOffer>,
}

/// A verdict on one renewal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceVerdict {
    /// The service.
    pub name: String,
    /// Whether it is this session's now.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// The result of `service.renew`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceRenewResult {
    /// One for each service, in order.
    pub results: Vec<ServiceVerdict>,
}

/// The params of `service.withdraw`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ServiceWithdrawParams {
    /// The names to give up.
    pub names: Vec<String>,
}

/// Which end of a relayed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RelayRole {
    /// The end that answers.
    Publish,
    /// The end that asks.
    Connect,
}

/// The params of `relay.open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RelayOpenParams {
    /// Which end.
    pub role: RelayRole,
    /// The service, for the end that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ServiceName>,
}

/// The result of `relay.open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RelayOpenResult {
    /// Good once, for 30 s, in `Authorization`.
    pub ticket: String,
    /// Where.
    pub url: String,
    /// When it lapses, Unix milliseconds.
    pub expires_at: U53,
    /// Who answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SessionKey>,
    /// Where HTTP services are found, with `*` for the name: `http://*.localhost:7480/`. Absent where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
}
