//! A request for every method.

use serde_json::{Value, json};

use super::frames::request;
use super::samples::{self, id, n, some};
use crate::dead::{DeadDropParams, DeadListParams, DeadRetryParams};
use crate::hello::{Credential, HelloParams, HelloReconcile, Later};
use crate::message::{
    Fallback, HistoryParams, NackParams, Priority, SendParams, SendStatusParams, TagsParams,
};
use crate::method::{Empty, Method, PresenceListParams};
use crate::peer::{ProfilePatch, Status};
use crate::reconcile::ReconcileParams;
use crate::run::{RunChunkParams, RunEndParams, RunEndStatus, RunIdParams, RunStartParams, RunsListParams};
use crate::service::{
    RelayOpenParams, RelayRole, ServiceKind, ServiceMetadata, ServiceOffer, ServiceRenewParams,
    ServiceWithdrawParams, ServicesListParams,
};
use crate::subscribe::{AckMode, DEFAULT_PREFETCH, FetchParams, From, SubscribeParams, UnsubscribeParams};
use crate::topic::{
    GroupDeleteParams, GroupsListParams, TopicCreateParams, TopicDeleteParams, TopicsListParams,
};
use crate::{ErrorCode, WireError};

pub(super) fn requests() -> Vec<Value> {
    let mut requests = sessions();
    requests.extend(messages());
    requests.extend(subscriptions());
    requests.extend(runs());
    requests.extend(services());
    requests
}

fn sessions() -> Vec<Value> {
    let later = HelloParams {
        reconcile: Some(HelloReconcile::Later(Later::Later)),
        auth: Some(Credential::Token("secret".to_owned())),
        ..samples::hello_least()
    };
    let patch = ProfilePatch { status: Some(Status::Dnd), summary: some(""), ..ProfilePatch::default() };
    let page = PresenceListParams { after: Some(samples::session()), limit: Some(n(500)), debug: true };
    vec![
        request("hello, the least", Method::Hello, samples::hello_least()),
        request("hello, everything", Method::Hello, samples::hello_full()),
        request("hello, reconcile later", Method::Hello, later),
        request("bye", Method::Bye, Empty {}),
        request("ping", Method::Ping, Empty {}),
        request("reconcile nothing", Method::Reconcile, ReconcileParams::default()),
        request("reconcile", Method::Reconcile, samples::reconcile_params()),
        request("presence.list, first page", Method::PresenceList, PresenceListParams::default()),
        request("presence.list, next page", Method::PresenceList, page),
        request("profile.set, some of it", Method::ProfileSet, patch),
        request("profile.set, nothing", Method::ProfileSet, ProfilePatch::default()),
        request("health", Method::Health, Empty {}),
    ]
}

fn messages() -> Vec<Value> {
    let urgent = SendParams {
        to: crate::message::Address::Member(samples::member()),
        body: some("größer \u{1f600} \u{0} \"quoted\""),
        priority: Priority::Now,
        fallback: Fallback::Fail,
        ..samples::send_least()
    };
    let nack = NackParams {
        tags: vec![id("tag-1")],
        delay_ms: Some(n(1000)),
        dead: true,
        reason: some("cannot parse"),
    };
    let back = NackParams { tags: vec![id("tag-1")], delay_ms: None, dead: false, reason: None };
    let tags = || TagsParams { tags: vec![id("tag-1"), id("tag-2")] };
    let status = SendStatusParams { client_message_ids: vec![id("01"), id("a b")] };
    let log = "topic/jobs/0".to_owned();
    let history = HistoryParams { log: log.clone(), from: Some(n(5)), limit: Some(n(256)) };
    let dead = DeadListParams { log: log.clone(), after: None, limit: None };
    let more = DeadListParams { after: Some(n(0)), limit: Some(n(256)), ..dead.clone() };
    let seqs = vec![n(1), n(9_007_199_254_740_991)];
    vec![
        request("send, the least", Method::Send, samples::send_least()),
        request("send, everything", Method::Send, samples::send_full()),
        request("send text", Method::Send, urgent),
        request("send.status", Method::SendStatus, status),
        request("ack", Method::Ack, tags()),
        request("ack nothing", Method::Ack, TagsParams { tags: Vec::new() }),
        request("nack", Method::Nack, back),
        request("nack to the dead letters", Method::Nack, nack),
        request("progress", Method::Progress, tags()),
        request("history", Method::History, history),
        request("dead.list, first page", Method::DeadList, dead),
        request("dead.list, next page", Method::DeadList, more),
        request("dead.retry", Method::DeadRetry, DeadRetryParams { log: log.clone(), seqs: seqs.clone() }),
        request("dead.drop", Method::DeadDrop, DeadDropParams { log, seqs }),
    ]
}

fn subscriptions() -> Vec<Value> {
    let private = SubscribeParams {
        topic: id("jobs"),
        group: None,
        partition: None,
        prefetch: DEFAULT_PREFETCH,
        ack_mode: AckMode::Manual,
        from: From::New,
    };
    let shared = SubscribeParams {
        group: Some(id("crew")),
        partition: Some(3),
        prefetch: 1,
        ack_mode: AckMode::Auto,
        from: From::Earliest,
        ..private.clone()
    };
    let at = SubscribeParams { from: From::Seq(n(70_000)), ..private.clone() };
    let page = TopicsListParams { after: Some(id("jobs")), limit: Some(n(256)) };
    let topic = TopicCreateParams { name: id("jobs"), partitions: 4, retention_ms: Some(n(86_400_000)) };
    let gone = GroupDeleteParams { topic: id("jobs"), group: id("crew") };
    let groups = GroupsListParams { topic: id("jobs"), after: None, limit: None };
    let more_groups = GroupsListParams { after: Some(id("crew")), limit: Some(n(256)), ..groups.clone() };
    vec![
        request("subscribe, private", Method::Subscribe, private),
        request("subscribe, shared", Method::Subscribe, shared),
        request("subscribe from a seq", Method::Subscribe, at),
        request("unsubscribe", Method::Unsubscribe, UnsubscribeParams { sub_id: id("sub-1") }),
        request("fetch", Method::Fetch, FetchParams { sub_id: id("inbox"), limit: n(256) }),
        request("topics.list, first page", Method::TopicsList, TopicsListParams::default()),
        request("topics.list, next page", Method::TopicsList, page),
        request("topics.create", Method::TopicsCreate, topic),
        request("topics.delete", Method::TopicsDelete, TopicDeleteParams { name: id("jobs") }),
        request("groups.delete", Method::GroupsDelete, gone),
        request("groups.list, first page", Method::GroupsList, groups.clone()),
        request("groups.list, next page", Method::GroupsList, more_groups),
    ]
}

fn runs() -> Vec<Value> {
    let start = RunStartParams {
        to: crate::message::Address::Session(samples::session()),
        input: json!({"question": "ü?", "tries": [1, 2.5, null]}),
        idempotency_key: "key-1".to_owned(),
        timeout_ms: Some(n(600_000)),
        from_seq: Some(n(1)),
    };
    let chunk = RunChunkParams { run_id: samples::run_id(), seq: n(1), data: json!("piece") };
    let nothing = RunChunkParams { data: Value::Null, ..chunk.clone() };
    let good = RunEndParams {
        run_id: samples::run_id(),
        seq: n(2),
        status: RunEndStatus::Ok,
        result: Some(json!({"answer": 42})),
        error: None,
    };
    let error = WireError::new(ErrorCode::Internal, "the tool failed").with_details(json!({"exit": 1}));
    let bad = RunEndParams { status: RunEndStatus::Error, result: None, error: Some(error), ..good.clone() };
    let this = || RunIdParams { run_id: samples::run_id() };
    let more = RunsListParams { after: Some(samples::run_id()), limit: Some(n(10)) };
    vec![
        request("run.start", Method::RunStart, start),
        request("run.chunk", Method::RunChunk, chunk),
        request("run.chunk of null", Method::RunChunk, nothing),
        request("run.end, well", Method::RunEnd, good),
        request("run.end, not well", Method::RunEnd, bad),
        request("run.cancel", Method::RunCancel, this()),
        request("run.get", Method::RunGet, this()),
        request("runs.list", Method::RunsList, RunsListParams::default()),
        request("runs.list, the next page", Method::RunsList, more),
    ]
}

fn services() -> Vec<Value> {
    let least = ServiceOffer {
        name: "web".to_owned(),
        kind: ServiceKind::Http,
        ttl_ms: None,
        metadata: ServiceMetadata::default(),
        degraded: false,
    };
    let full = ServiceOffer {
        name: "db".to_owned(),
        kind: ServiceKind::Tcp,
        ttl_ms: Some(n(30_000)),
        metadata: ServiceMetadata { hide: true, ..samples::service().metadata },
        degraded: true,
    };
    let publish = RelayOpenParams { role: RelayRole::Publish, name: None };
    let connect = RelayOpenParams { role: RelayRole::Connect, name: Some(id("db")) };
    vec![
        request(
            "services.list",
            Method::ServicesList,
            ServicesListParams { all: true, ..ServicesListParams::default() },
        ),
        request("service.renew", Method::ServiceRenew, ServiceRenewParams { services: vec![least, full] }),
        request(
            "service.withdraw",
            Method::ServiceWithdraw,
            ServiceWithdrawParams { names: vec!["db".to_owned()] },
        ),
        request("relay.open to publish", Method::RelayOpen, publish),
        request("relay.open to connect", Method::RelayOpen, connect),
    ]
}
