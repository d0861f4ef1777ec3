//! The table of methods, and the params and results of the small ones.

use serde::{Deserialize, Serialize};

use crate::hello::HealthStatus;
use crate::hello::StateVersion;
use crate::ids::SessionKey;
use crate::limits::{RUNS_PAGE_BYTES, SERVICES_PAGE_BYTES};
use crate::number::U53;
use crate::peer::SharedPeer;
use crate::right::Right;

/// The table of methods: calls `$then!` with a row for each but `hello`, in the order of the contract. Whatever depends on a
/// method is generated from its row: its name, how its params are read, its schema, the right that it needs, the memory that it
/// may hold, and how its result is written.
///
/// A row is the variant, the name, `(params how)`, `(result how)`, the right, and the size of the answer.
///
/// - Params come as they are (nothing behind the type), may be left out (`default`), are kept in a box (`boxed`), or are checked
///   and completed before anybody may act on them (`prepared`). `none` is a method without any.
/// - A result is written as it is, from a box (`boxed`), or made from what the mesh knows by the socket that writes it
///   (`rendered`). Several methods may have one in common (`shared`); `none` is `{}`.
/// - The right is a cap, or `any` for every session that was let in.
/// - An answer is `small`, about one message (`payload`), or a page of services or runs.
#[macro_export]
macro_rules! with_methods {
    ($then:ident) => {
        $then! {
            Bye "bye" (Empty none) (Empty none) any small;
            Ping "ping" (Empty none) (PingResult) any small;
            Reconcile "reconcile" (ReconcileParams boxed) (ReconcileResult boxed) any small;
            PresenceList "presence.list" (PresenceListParams default) (PresenceListResult boxed) any small;
            ProfileSet "profile.set" (ProfilePatch default boxed) (Empty none) any small;
            Health "health" (Empty default prepared) (HealthResult boxed) any small;
            Send "send" (SendParams prepared) (SendResult boxed) Send small;
            SendStatus "send.status" (SendStatusParams) (SendStatusResult) Send small;
            Subscribe "subscribe" (SubscribeParams) (SubscribeResult) Read small;
            Unsubscribe "unsubscribe" (UnsubscribeParams) (Empty none) any small;
            Fetch "fetch" (FetchParams) (FetchResult rendered) Read payload;
            Ack "ack" (TagsParams) (SettleResult shared) Read small;
            Nack "nack" (NackParams) (SettleResult shared) Read small;
            Progress "progress" (TagsParams) (SettleResult shared) Read small;
            History "history" (HistoryParams) (HistoryResult rendered) Read payload;
            TopicsList "topics.list" (TopicsListParams default) (TopicsListResult) Read small;
            TopicsCreate "topics.create" (TopicCreateParams) (Empty none) Send small;
            TopicsDelete "topics.delete" (TopicDeleteParams) (Empty none) Send small;
            GroupsList "groups.list" (GroupsListParams) (GroupsListResult) Read small;
            GroupsDelete "groups.delete" (GroupDeleteParams) (Empty none) Read small;
            DeadList "dead.list" (DeadListParams) (DeadListResult rendered) Read payload;
            DeadRetry "dead.retry" (DeadRetryParams) (DeadRetryResult) Read small;
            DeadDrop "dead.drop" (DeadDropParams) (DeadDropResult) Read small;
            RunStart "run.start" (RunStartParams prepared) (RunStartResult) Run small;
            RunChunk "run.chunk" (RunChunkParams prepared) (Empty none) Run small;
            RunEnd "run.end" (RunEndParams prepared) (Empty none) Run small;
            RunCancel "run.cancel" (RunIdParams) (Empty none) Run small;
            RunGet "run.get" (RunIdParams) (RunGetResult boxed) Run payload;
            RunsList "runs.list" (RunsListParams default) (RunsListResult boxed) Run runs;
            ServicesList "services.list" (ServicesListParams default) (ServicesListResult boxed) any services;
            ServiceRenew "service.renew" (ServiceRenewParams) (ServiceRenewResult) Serve small;
            ServiceWithdraw "service.withdraw" (ServiceWithdrawParams) (Empty none) any small;
            // Needs a right by its role: to publish `serve`, to connect `run`.
            RelayOpen "relay.open" (RelayOpenParams) (RelayOpenResult rendered) any small;
        }
    };
}

macro_rules! right {
    (any) => {
        None
    };
    ($right:ident) => {
        Some(Right::$right)
    };
}

macro_rules! answer_bytes {
    (small $max_payload:expr) => {
        0
    };
    (payload $max_payload:expr) => {
        $max_payload
    };
    (runs $max_payload:expr) => {
        RUNS_PAGE_BYTES
    };
    (services $max_payload:expr) => {
        SERVICES_PAGE_BYTES
    };
}

macro_rules! methods {
    ($($variant:ident $name:literal ($($params:ident)*) ($($result:ident)*) $right:ident $size:ident;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            /// `hello`, which opens a session's socket and is no call.
            Hello,
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Method {
            /// Every method, in the order of the contract.
            pub const ALL: &'static [Method] = &[Method::Hello, $(Method::$variant,)*];

            /// As it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { Method::Hello => "hello", $(Method::$variant => $name,)* }
            }

            /// The method called `name`.
            pub fn from_wire(name: &str) -> Option<Method> {
                match name { "hello" => Some(Method::Hello), $($name => Some(Method::$variant),)* _ => None }
            }

            /// The right that it needs; nothing for those that every session may use that was let in. `relay.open` needs one
            /// by its role: to publish [`Right::Serve`], to connect [`Right::Run`].
            pub const fn needs(self) -> Option<Right> {
                match self { Method::Hello => None, $(Method::$variant => right!($right),)* }
            }

            /// Roughly the memory that its answer takes at most, beyond a few hundred bytes.
            pub const fn answer_bytes(self, max_payload: usize) -> usize {
                match self { Method::Hello => 0, $(Method::$variant => answer_bytes!($size max_payload),)* }
            }
        }
    };
}

with_methods!(methods);

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
