//! The params and results of all methods by their plain names, as the rows of [`with_methods!`](crate::with_methods) spell them.

pub use crate::dead::{
    DeadDropParams, DeadDropResult, DeadListParams, DeadListResult, DeadRetryParams, DeadRetryResult,
};
pub use crate::hello::{HelloParams, HelloResult};
pub use crate::message::{
    HistoryParams, HistoryResult, NackParams, SendParams, SendResult, SendStatusParams, SendStatusResult,
    SettleResult, TagsParams,
};
pub use crate::method::{Empty, HealthResult, PingResult, PresenceListParams, PresenceListResult};
pub use crate::peer::ProfilePatch;
pub use crate::reconcile::{ReconcileParams, ReconcileResult};
pub use crate::run::{
    RunChunkParams, RunEndParams, RunGetResult, RunIdParams, RunStartParams, RunStartResult, RunsListParams,
    RunsListResult,
};
pub use crate::service::{
    RelayOpenParams, RelayOpenResult, ServiceRenewParams, ServiceRenewResult, ServiceWithdrawParams,
    ServicesListParams, ServicesListResult,
};
pub use crate::subscribe::{FetchParams, FetchResult, SubscribeParams, SubscribeResult, UnsubscribeParams};
pub use crate::topic::{
    GroupDeleteParams, GroupsListParams, GroupsListResult, TopicCreateParams, TopicDeleteParams,
    TopicsListParams, TopicsListResult,
};
