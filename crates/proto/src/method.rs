//! The methods: their names, and the params and results of the small ones.

use serde::{Deserialize, Serialize};

use crate::hello::HealthStatus;
use crate::hello::StateVersion;
use crate::ids::SessionKey;
use crate::number::U53;
use crate::peer::SharedPeer;

macro_rules! methods {
    ($($variant:ident $name:literal;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Method {
            /// Every method, in the order of the contract.
            pub const ALL: &'static [Method] = &[$(Method::$variant,)*];

            /// As it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Method::$variant => $name,)* }
            }

            /// The method called `name`.
            pub fn from_wire(name: &str) -> Option<Method> {
                match name { $($name => Some(Method::$variant),)* _ => None }
            }
        }
    };
}

methods! {
    Hello "hello";
    Bye "bye";
    Ping "ping";
    Reconcile "reconcile";
    PresenceList "presence.list";
    ProfileSet "profile.set";
    Health "health";
    Send "send";
    SendStatus "send.status";
    Subscribe "subscribe";
    Unsubscribe "unsubscribe";
    Fetch "fetch";
    Ack "ack";
    Nack "nack";
    Progress "progress";
    History "history";
    TopicsList "topics.list";
    TopicsCreate "topics.create";
    TopicsDelete "topics.delete";
    GroupsList "groups.list";
    GroupsDelete "groups.delete";
    DeadList "dead.list";
    DeadRetry "dead.retry";
    DeadDrop "dead.drop";
    RunStart "run.start";
    RunChunk "run.chunk";
    RunEnd "run.end";
    RunCancel "run.cancel";
    RunGet "run.get";
    RunsList "runs.list";
    ServicesList "services.list";
    ServiceRenew "service.renew";
    ServiceWithdraw "service.withdraw";
    RelayOpen "relay.open";
}

/// `{}`: the params or result of a method that needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Empty {}

/// The result of `ping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PingResult {
    /// The broker's wall clock, Unix milliseconds.
    pub ts: U53,
}

/// The params of `presence.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PresenceListParams {
    /// Go on after this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<SessionKey>,
    /// How many, at most 500; absent is 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
    /// Whether `transport` and `leaseUntil` are wanted.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub debug: bool,
}

/// The result of `presence.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PresenceListResult {
    /// Peers, ordered by session key.
    pub peers: Vec<SharedPeer>,
    /// Present when there are more: where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SessionKey>,
    /// The version of this answer.
    pub state_version: StateVersion,
}

/// The result of `health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthResult {
    /// How the broker is.
    pub status: HealthStatus,
    /// Why it is `degraded`, in words for a person; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which broker.
    pub broker_id: String,
    /// How long it has been up.
    pub uptime_ms: U53,
    /// Living leases of this mesh.
    pub sessions: U53,
    /// What waits in groups.
    pub groups: GroupsHealth,
    /// The store.
    pub store: StoreHealth,
    /// Whether it is stopping.
    pub draining: bool,
    /// The version of this answer.
    #[serde(default)]
    pub state_version: StateVersion,
}

/// What waits in groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupsHealth {
    /// Entries that wait.
    pub depth: U53,
    /// How long the oldest has waited.
    pub oldest_ms: U53,
}

/// The store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoreHealth {
    /// Which engine.
    pub kind: String,
    /// How long the oldest unanswered write has waited.
    pub lag_ms: U53,
}
