//! Fixed values of the larger wire types: one that has every field, and some that have few.

use std::collections::BTreeMap;

use serde_json::json;

use super::{MEMBER, SESSION, key};
use crate::canonical::{member_key, session_key};
use crate::feature::{FeatureWish, FeatureWishes};
use crate::hello::{
    Attestation, BrokerInfo, ClientInfo, Credential, Durability, EventsResult, HealthStatus, HelloParams,
    HelloReconcile, HelloResult, InboxChoice, LeaseFate, LogPosition, Policy, ProtocolRange, Queue, Replay,
    ResumeOutcome, ResumeParams, ResumeResult, Snapshot, StateVersion,
};
use crate::ids::{ConnId, MemberKey, MessageId, RunId, SessionKey};
use crate::message::{
    Address, Bytes, Delivery, Fallback, Message, MessageKind, Meta, Priority, SendParams, Sender,
};
use crate::number::U53;
use crate::peer::{Peer, Profile, SharedPeer, Status, Transport};
use crate::reconcile::{
    ClientInflight, ClientSubscription, InflightResult, InflightState, InflightVerdict, ReconcileAction,
    ReconcileParams, ReconcilePolicy, ReconcileResult, Settle, SubscriptionVerdict,
};
use crate::run::{RunInfo, RunState};
use crate::service::{Service, ServiceKind, ServiceMetadata, ServiceState};
use crate::subscribe::{AckMode, Subscription};

/// Unix milliseconds, when everything here happens.
pub(super) const NOW: u64 = 1_700_000_000_000;

/// `text` as any textual type.
pub(super) fn id<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("a legal id")
}

/// `value` as the wire's integer.
pub(super) fn n(value: u64) -> U53 {
    U53::saturating(value)
}

pub(super) fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub(super) fn session() -> SessionKey {
    session_key(&key(SESSION))
}

pub(super) fn member() -> MemberKey {
    member_key(&key(MEMBER))
}

pub(super) fn message_id() -> MessageId {
    MessageId::from_parts(NOW, 7)
}

pub(super) fn run_id() -> RunId {
    RunId::from_parts(NOW, 8)
}

/// A signature's spelling; what it says is in `signatures.json`.
fn signature() -> String {
    crate::text::b64url(&[0x5a; 64])
}

pub(super) fn profile() -> Profile {
    Profile {
        name: "planner".to_owned(),
        status: Status::Working,
        summary: some("plans \"Größe\" \u{1f600}"),
        host: some("laptop"),
        cwd: some("~/src"),
        role: some("agent"),
        last_input_seconds: Some(n(12)),
        tags: vec!["blue".to_owned(), "ü".to_owned()],
    }
}

pub(super) fn hello_least() -> HelloParams {
    HelloParams {
        protocol: ProtocolRange { min: 1, max: 1 },
        client: ClientInfo {
            name: "vectors".to_owned(),
            version: "0.1.0".to_owned(),
            platform: None,
            instance_id: id("instance-1"),
        },
        mesh: id("default"),
        member: member(),
        session: session_key(&key(MEMBER)),
        attestation: None,
        proof: signature(),
        resume: None,
        reconcile: None,
        positions: Vec::new(),
        inbox: InboxChoice::Session,
        profile: Profile::named("daemon"),
        features: FeatureWishes::default(),
        auth: None,
    }
}

pub(super) fn hello_full() -> HelloParams {
    HelloParams {
        client: ClientInfo { platform: some("linux"), ..hello_least().client },
        session: session(),
        attestation: Some(Attestation {
            expires_at: n(NOW + 3_600_000),
            caps: Some(vec![id("send"), id("read")]),
            signature: signature(),
        }),
        resume: Some(ResumeParams {
            token: "tenure-resume.v1.e30.AAAA".to_owned(),
            epoch: Some(id("epoch-1")),
            last_seq: Some(n(41)),
        }),
        reconcile: Some(HelloReconcile::Now(Box::new(reconcile_params()))),
        positions: vec![LogPosition { log: "topic/jobs/0".to_owned(), seq: n(41), id: message_id() }],
        inbox: InboxChoice::Both,
        profile: profile(),
        features: FeatureWishes {
            require: vec!["resume".into(), dedupe_wish()],
            optional: vec!["runs".into()],
        },
        auth: Some(Credential::Invite("secret".to_owned())),
        ..hello_least()
    }
}

fn dedupe_wish() -> FeatureWish {
    let floors = [("version", json!(2)), ("retentionDays", json!(7))];
    let floors = floors.into_iter().map(|(name, floor)| (name.to_owned(), floor)).collect();
    FeatureWish { bit: "dedupe".to_owned(), floors }
}

pub(super) fn hello_result(lease: LeaseFate, replay: Replay) -> HelloResult {
    let kept = lease == LeaseFate::Kept;
    HelloResult {
        protocol: 1,
        min_client: kept.then(|| "0.1.0".to_owned()),
        broker: BrokerInfo { id: "broker-1".to_owned(), version: "0.1.0".to_owned() },
        conn_id: ConnId(17),
        session_id: session(),
        lease,
        resume: ResumeResult {
            outcome: if kept { ResumeOutcome::Resumed } else { ResumeOutcome::ResumeRejected },
            reason: (!kept).then(|| "bad_signature".to_owned()),
            token: "tenure-resume.v1.e30.AAAA".to_owned(),
        },
        lease_ttl_ms: n(90_000),
        policy: Policy {
            ping_interval_ms: n(30_000),
            stale_after_ms: n(75_000),
            tick_interval_ms: n(30_000),
            max_payload: n(1 << 20),
            max_buffered_bytes: n(4 << 20),
            max_buffered_messages: n(16_384),
            max_inflight: n(4096),
            durability: Durability::Fsync,
        },
        features: BTreeMap::from([
            (
                "dedupe".to_owned(),
                json!({"fingerprint": true, "mode": "retention_scoped", "retentionDays": 30, "version": 2}),
            ),
            ("resume".to_owned(), json!({"version": 1})),
        ]),
        events: EventsResult { epoch: id("epoch-1"), next_seq: n(if kept { 42 } else { 1 }), replay },
        snapshot: (replay == Replay::Resync).then(|| Box::new(snapshot())),
        state_version: state_version(),
        reconcile: kept.then(|| Box::new(reconcile_result())),
        rewound: if kept { Vec::new() } else { vec!["topic/jobs/0".to_owned()] },
    }
}

pub(super) fn state_version() -> StateVersion {
    StateVersion { presence: n(9), services: n(4), health: n(1) }
}

fn snapshot() -> Snapshot {
    Snapshot {
        presence: vec![SharedPeer::new(peer()), SharedPeer::new(peer_least())],
        more: true,
        services: vec![service()],
        more_services: true,
        subscriptions: vec![subscription()],
        queues: vec![
            Queue { sub_id: id("inbox"), depth: n(0) },
            Queue { sub_id: subscription().sub_id, depth: n(12) },
        ],
        runs: runs(),
        more_runs: true,
        health: HealthStatus::Ok,
        uptime_ms: n(123_456),
    }
}

/// A run that nobody has taken, and one that is being answered.
pub(super) fn runs() -> Vec<RunInfo> {
    let queued = RunInfo {
        run_id: run_id(),
        state: RunState::Queued,
        to: Address::Member(member()),
        caller: member(),
        callee: None,
        last_seq: n(0),
        cancelled: false,
        started_at: n(NOW),
        deadline: Some(n(NOW + 600_000)),
    };
    let running = RunInfo {
        state: RunState::Running,
        to: Address::Session(session()),
        callee: Some(session()),
        last_seq: n(3),
        cancelled: true,
        deadline: None,
        ..queued.clone()
    };
    vec![queued, running]
}

pub(super) fn peer() -> Peer {
    let mut peer = Peer::new(session(), member(), id("instance-1"), NOW, &profile());
    peer.services = vec![id("db")];
    peer
}

pub(super) fn peer_least() -> Peer {
    Peer::new(session_key(&key(MEMBER)), member(), id("instance-2"), NOW, &Profile::named("daemon"))
}

pub(super) fn peer_debug() -> Peer {
    Peer { transport: Some(Transport::Grace), lease_until: Some(n(NOW + 90_000)), ..peer() }
}

pub(super) fn subscription() -> Subscription {
    Subscription {
        sub_id: id("sub-1"),
        topic: id("jobs"),
        group: Some(id("crew")),
        partition: Some(0),
        ack_mode: AckMode::Manual,
        prefetch: 32,
    }
}

pub(super) fn reconcile_params() -> ReconcileParams {
    ReconcileParams {
        policy: ReconcilePolicy::RestoreClient,
        subscriptions: vec![ClientSubscription {
            sub_id: id("sub-1"),
            topic: id("jobs"),
            group: None,
            partition: None,
            ack_mode: AckMode::Auto,
            prefetch: 8,
            positions: BTreeMap::from([("0".to_owned(), n(5)), ("1".to_owned(), n(0))]),
        }],
        inflight: vec![
            ClientInflight { tag: id("tag-1"), state: InflightState::Processing, settle: None },
            ClientInflight { tag: id("tag-2"), state: InflightState::Settled, settle: Some(Settle::Nack) },
        ],
    }
}

pub(super) fn reconcile_result() -> ReconcileResult {
    let seen = |name: &str, prefetch: u32| Subscription {
        sub_id: id(name),
        topic: id("jobs"),
        group: Some(id("crew")),
        partition: None,
        ack_mode: AckMode::Manual,
        prefetch,
    };
    let verdict =
        |action, sub: &str, client: Option<&str>, server: Option<&str>, reason: &str| SubscriptionVerdict {
            action,
            sub_id: id(sub),
            client: client.map(id),
            server: server.map(id),
            reason: reason.to_owned(),
            client_view: client.map(|name| Box::new(seen(name, 32))),
            server_view: server.map(|name| Box::new(seen(name, 16))),
            start_seq: BTreeMap::new(),
        };
    ReconcileResult {
        results: vec![
            verdict(ReconcileAction::Keep, "sub-1", Some("sub-1"), Some("sub-1"), "same"),
            verdict(
                ReconcileAction::CloseClientSide,
                "sub-2",
                Some("sub-2"),
                Some("sub-2"),
                "settings_differ",
            ),
            verdict(ReconcileAction::CloseServerSide, "sub-3", None, Some("sub-3"), "server_only"),
            verdict(ReconcileAction::RecreateClientSide, "sub-4", Some("sub-4"), None, "client_only"),
        ],
        inflight: vec![
            InflightVerdict { tag: id("tag-1"), result: InflightResult::Kept },
            InflightVerdict { tag: id("tag-2"), result: InflightResult::Settled },
            InflightVerdict { tag: id("tag-3"), result: InflightResult::Requeued },
        ],
    }
}

pub(super) fn meta() -> Meta {
    let free = json!({"a": [1, -1, 0.5, null, true], "b": {"c": "ü"}});
    Meta(free.as_object().cloned().unwrap_or_default())
}

pub(super) fn send_least() -> SendParams {
    SendParams {
        to: Address::Topic(id("jobs")),
        body: some(""),
        body_b64: None,
        client_message_id: id("01"),
        priority: Priority::Next,
        key: None,
        reply_to: None,
        meta: None,
        content_type: None,
        ttl_ms: None,
        delay_ms: None,
        fallback: Fallback::Hold,
        fingerprint: None,
    }
}

pub(super) fn send_full() -> SendParams {
    SendParams {
        to: Address::Session(session()),
        body: None,
        body_b64: Some(Bytes(vec![0, 255, 128, 10])),
        client_message_id: id("a b"),
        priority: Priority::Low,
        key: some("k"),
        reply_to: Some(message_id().to_string()),
        meta: Some(meta()),
        content_type: some("application/octet-stream"),
        ttl_ms: Some(n(60_000)),
        delay_ms: Some(n(0)),
        fallback: Fallback::Member,
        fingerprint: Some("ab".repeat(32)),
    }
}

pub(super) fn message() -> Message {
    Message {
        id: message_id(),
        client_message_id: "a b".to_owned(),
        from: Sender { member: member(), session: session(), name: "planner".to_owned() },
        to: Address::Member(member()),
        log: format!("inbox/m/{}", member()),
        seq: n(3),
        key: some("k"),
        priority: Priority::Now,
        reply_to: some("01HF7YAT000000000000000001"),
        meta: Some(meta()),
        body: some("hello \u{2603}"),
        body_b64: None,
        content_type: some("text/plain"),
        sent_at: n(NOW),
        expires_at: Some(n(NOW + 604_800_000)),
        kind: MessageKind::Message,
    }
}

pub(super) fn message_bytes() -> Message {
    Message {
        client_message_id: "run:1".to_owned(),
        key: None,
        reply_to: None,
        meta: None,
        body: None,
        body_b64: Some(Bytes((0..=255).collect())),
        content_type: None,
        expires_at: None,
        kind: MessageKind::Run,
        ..message()
    }
}

pub(super) fn delivery(message: Message, attempt: u32) -> Delivery {
    Delivery { sub_id: id("member"), tag: id("tag-1"), attempt, redelivered: attempt > 1, message }
}

pub(super) fn service() -> Service {
    Service {
        first_seen_at: None,
        last_renewed_at: None,
        expires_at: None,
        name: id("db"),
        kind: ServiceKind::Tcp,
        state: ServiceState::Online,
        degraded: false,
        session: session(),
        member: member(),
        metadata: ServiceMetadata {
            description: some("a database"),
            tags: vec!["sql".to_owned()],
            owner: some("ops"),
            hide: false,
        },
    }
}
