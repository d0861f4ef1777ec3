//! A response to every method, and the errors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::frames::response;
use super::samples::{self, NOW, id, n, some};
use crate::dead::{DeadDropResult, DeadLetter, DeadListResult, DeadRetryResult};
use crate::error::{ErrorCode, WireError};
use crate::hello::{HealthStatus, LeaseFate, Replay};
use crate::message::{
    DamagedEntry, HistoryResult, Recipient, SendResult, SendState, SendStatus, SendStatusResult,
    SettleResult, StaleTag,
};
use crate::method::{Empty, GroupsHealth, HealthResult, Method, PingResult, PresenceListResult, StoreHealth};
use crate::peer::SharedPeer;
use crate::run::{RunGetResult, RunStartResult, RunState, RunsListResult};
use crate::service::{RelayOpenResult, ServiceRenewResult, ServiceVerdict, ServicesListResult};
use crate::subscribe::{FetchResult, SubscribeResult};
use crate::topic::{GroupInfo, GroupsListResult, TopicInfo, TopicsListResult};

/// The methods whose result is `{}`.
const EMPTY: &[Method] = &[
    Method::Bye,
    Method::ProfileSet,
    Method::Unsubscribe,
    Method::TopicsCreate,
    Method::TopicsDelete,
    Method::GroupsDelete,
    Method::RunChunk,
    Method::RunEnd,
    Method::RunCancel,
    Method::ServiceWithdraw,
];

pub(super) fn responses() -> Vec<Value> {
    let mut responses = sessions();
    responses.extend(messages());
    responses.extend(topics_and_dead_letters());
    responses.extend(runs_and_services());
    responses.extend(EMPTY.iter().map(|&method| response(method.as_str(), method, Ok(Empty {}))));
    responses.extend(errors());
    responses
}

fn sessions() -> Vec<Value> {
    let new = samples::hello_result(LeaseFate::New, Replay::Resync);
    let kept = samples::hello_result(LeaseFate::Kept, Replay::Complete);
    let last = PresenceListResult {
        peers: vec![SharedPeer::new(samples::peer_debug())],
        next: None,
        state_version: samples::state_version(),
    };
    let more = PresenceListResult { next: Some(samples::session()), peers: Vec::new(), ..last.clone() };
    let health = HealthResult {
        status: HealthStatus::Degraded,
        reason: Some("the store cannot write".to_owned()),
        broker_id: "broker-1".to_owned(),
        uptime_ms: n(123_456),
        sessions: n(2),
        groups: GroupsHealth { depth: n(10), oldest_ms: n(1500) },
        store: StoreHealth { kind: "sqlite".to_owned(), lag_ms: n(0) },
        draining: false,
        state_version: samples::state_version(),
    };
    vec![
        response("hello, new", Method::Hello, Ok(new)),
        response("hello, resumed", Method::Hello, Ok(kept)),
        response("ping", Method::Ping, Ok(PingResult { ts: n(NOW) })),
        response("reconcile", Method::Reconcile, Ok(samples::reconcile_result())),
        response("presence.list, last page", Method::PresenceList, Ok(last)),
        response("presence.list, more", Method::PresenceList, Ok(more)),
        response("health", Method::Health, Ok(health)),
    ]
}

fn messages() -> Vec<Value> {
    let sent = SendResult {
        id: samples::message_id(),
        log: "topic/jobs/0".to_owned(),
        seq: n(1),
        duplicate: false,
        recipient: None,
        first_seen_at: None,
        history_available: None,
    };
    let again = SendResult {
        duplicate: true,
        recipient: Some(Recipient::Gone),
        first_seen_at: Some(n(NOW)),
        history_available: Some(false),
        ..sent.clone()
    };
    let status = |text: &str, state, reason: Option<&str>| SendStatus {
        client_message_id: id(text),
        id: (state != SendState::Unknown).then(samples::message_id),
        state,
        reason: reason.map(str::to_owned),
        fingerprint_prefix: (state != SendState::Unknown).then(|| "0123456789abcdef".to_owned()),
    };
    let statuses = SendStatusResult {
        statuses: vec![
            status("1", SendState::Unknown, None),
            status("2", SendState::Accepted, None),
            status("3", SendState::Delivered, None),
            status("4", SendState::Dead, Some("max_attempts")),
            status("5", SendState::Expired, Some("expired")),
        ],
    };
    let subscribed = SubscribeResult {
        sub_id: id("sub-1"),
        start_seq: BTreeMap::from([("0".to_owned(), n(1)), ("1".to_owned(), n(9))]),
    };
    let settled = || SettleResult {
        settled: vec![id("tag-1")],
        stale: vec![StaleTag { tag: id("tag-2"), reason: "not_owner".to_owned() }],
    };
    let fetched = FetchResult { messages: vec![samples::delivery(samples::message_bytes(), 1)] };
    let damaged = vec![DamagedEntry { seq: n(2), reason: "damaged".to_owned() }];
    let history = HistoryResult { messages: vec![samples::message()], next: Some(n(4)), damaged };
    vec![
        response("send", Method::Send, Ok(sent)),
        response("send, a duplicate", Method::Send, Ok(again)),
        response("send.status", Method::SendStatus, Ok(statuses)),
        response("subscribe", Method::Subscribe, Ok(subscribed)),
        response("fetch", Method::Fetch, Ok(fetched)),
        response("ack", Method::Ack, Ok(settled())),
        response("nack", Method::Nack, Ok(settled())),
        response("progress", Method::Progress, Ok(SettleResult::default())),
        response("history", Method::History, Ok(history)),
    ]
}

fn topics_and_dead_letters() -> Vec<Value> {
    let behind = GroupInfo {
        name: id("crew"),
        depth: n(10),
        unsettled: n(3),
        members: n(2),
        oldest_ms: Some(n(1500)),
    };
    let idle = GroupInfo { name: id("idle"), depth: n(0), unsettled: n(0), members: n(0), oldest_ms: None };
    let topic = TopicInfo {
        name: id("jobs"),
        partitions: 4,
        retention_ms: Some(n(86_400_000)),
        entries: n(70_000),
        groups: vec![behind.clone(), idle.clone()],
        group_count: Some(n(3)),
        groups_next: Some(id("idle")),
    };
    let bare = TopicInfo {
        name: id("news"),
        partitions: 1,
        retention_ms: None,
        entries: n(0),
        groups: Vec::new(),
        group_count: Some(n(0)),
        groups_next: None,
    };
    let groups = GroupsListResult { groups: vec![behind, idle], next: Some(id("idle")) };
    let listed = TopicsListResult { topics: vec![topic, bare], next: Some(id("news")) };
    let letter = DeadLetter {
        message: samples::message(),
        group: None,
        attempts: 16,
        reason: "max_attempts".to_owned(),
        at: n(NOW + 1),
    };
    let of_a_group = DeadLetter {
        message: samples::message_bytes(),
        group: Some(id("crew")),
        attempts: 1,
        reason: "cannot parse".to_owned(),
        ..letter.clone()
    };
    let dead = DeadListResult { letters: vec![letter, of_a_group], next: Some(n(3)) };
    let retried = DeadRetryResult { retried: vec![n(1)], missing: vec![n(9_007_199_254_740_991)] };
    vec![
        response("topics.list, more", Method::TopicsList, Ok(listed)),
        response("topics.list, nothing", Method::TopicsList, Ok(TopicsListResult::default())),
        response("groups.list, more", Method::GroupsList, Ok(groups)),
        response("groups.list, nothing", Method::GroupsList, Ok(GroupsListResult::default())),
        response("dead.list, more", Method::DeadList, Ok(dead)),
        response("dead.list, nothing", Method::DeadList, Ok(DeadListResult::default())),
        response("dead.retry", Method::DeadRetry, Ok(retried)),
        response("dead.drop", Method::DeadDrop, Ok(DeadDropResult { dropped: n(1) })),
    ]
}

fn runs_and_services() -> Vec<Value> {
    let running = RunGetResult {
        run_id: samples::run_id(),
        state: RunState::Running,
        last_seq: n(1),
        result: None,
        error: None,
    };
    let failed = RunGetResult {
        state: RunState::Error,
        error: Some(WireError::new(ErrorCode::LeaseExpired, "the callee's lease has ended")),
        ..running.clone()
    };
    let done = RunGetResult { state: RunState::Ok, result: Some(json!([1, "two"])), ..running.clone() };
    let under_way = RunsListResult { runs: samples::runs(), next: Some(samples::run_id()) };
    let taken = WireError::new(ErrorCode::NameTaken, "another session holds that name");
    let verdicts = ServiceRenewResult {
        results: vec![
            ServiceVerdict { name: "db".to_owned(), ok: true, error: None },
            ServiceVerdict { name: "web".to_owned(), ok: false, error: Some(taken) },
        ],
    };
    let listed = ServicesListResult {
        services: vec![samples::service()],
        next: None,
        state_version: samples::state_version(),
    };
    let opened = RelayOpenResult {
        ticket: "ticket-1".to_owned(),
        url: "ws://127.0.0.1:7480/relay".to_owned(),
        expires_at: n(NOW + 30_000),
        peer: Some(samples::session()),
        public: Some("http://*.localhost:7480/".to_owned()),
    };
    let started = RunStartResult { run_id: samples::run_id(), state: RunState::Queued };
    vec![
        response("run.start", Method::RunStart, Ok(started)),
        response("run.get, running", Method::RunGet, Ok(running)),
        response("run.get, failed", Method::RunGet, Ok(failed)),
        response("run.get, done", Method::RunGet, Ok(done)),
        response("runs.list", Method::RunsList, Ok(under_way)),
        response("services.list", Method::ServicesList, Ok(listed)),
        response("service.renew", Method::ServiceRenew, Ok(verdicts)),
        response("relay.open", Method::RelayOpen, Ok(opened)),
    ]
}

fn errors() -> Vec<Value> {
    let mismatch = WireError::new(ErrorCode::ProtocolMismatch, "this broker speaks version 1")
        .with_details(json!({"max": 1, "min": 1}));
    let busy = WireError::new(ErrorCode::RateLimited, "too many sends").retry_after(250);
    let unknown = WireError::new(ErrorCode::UnknownMethod, some("no method `x`").unwrap_or_default());
    vec![
        response::<Empty>("error with details", Method::Hello, Err(mismatch)),
        response::<Empty>("error with a time to wait", Method::Send, Err(busy)),
        response::<Empty>("error, the least", Method::Ping, Err(unknown)),
    ]
}
