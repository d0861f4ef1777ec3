//! Any value of a wire type, written and read in both codecs, is the same value, and is written the same again.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::str::FromStr;

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_proto::dead::{DeadLetter, DeadListResult, DeadRetryResult};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::feature::{FeatureWish, FeatureWishes};
use tenure_proto::frame::{self, Event, Request};
use tenure_proto::hello::{
    Attestation, ClientInfo, Credential, HelloParams, HelloReconcile, InboxChoice, Later, LogPosition,
    ProtocolRange, ResumeParams,
};
use tenure_proto::message::{
    Address, Bytes, Delivery, Fallback, Message, MessageKind, Meta, Priority, SendParams, Sender,
};
use tenure_proto::peer::{Peer, Profile, ProfilePatch, SharedPeer, Status, Transport};
use tenure_proto::reconcile::{
    ClientInflight, ClientSubscription, InflightState, ReconcileParams, ReconcilePolicy, Settle,
};
use tenure_proto::run::{RunEnd, RunEndStatus, RunEvent, RunStartParams};
use tenure_proto::service::{ServiceKind, ServiceMetadata, ServiceOffer, ServiceRenewParams};
use tenure_proto::subscribe::{AckMode, From, SubscribeParams};
use tenure_proto::topic::{GroupInfo, TopicInfo, TopicsListResult};
use tenure_proto::{Closing, MemberKey, MessageId, Reason, RunId, SessionKey, U53};
use wire::CODECS;

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn survives<T>(value: T) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug + Clone,
{
    for codec in CODECS {
        let bytes = codec.encode(&value);
        let read: T = codec.decode(&bytes).map_err(|e| TestCaseError::fail(format!("{codec:?}: {e}")))?;
        prop_assert_eq!(&read, &value);
        prop_assert_eq!(codec.encode(&read), bytes);
        let request = codec.encode(&Request::new("7".parse().expect("an id"), "x", value.clone()));
        prop_assert_eq!(frame::params::<T>(codec, &request), Ok(value.clone()));
        let event = codec.encode(&Event::new("x", Some(1), value.clone()));
        prop_assert_eq!(frame::data::<T>(codec, &event), Ok(value.clone()));
    }
    Ok(())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,12}", "\\PC{0,8}", Just("\u{0}\u{7f}\u{2028}\u{1f600}\"\\/".to_owned())]
}

fn number() -> impl Strategy<Value = U53> {
    prop_oneof![0u64..300, 60_000u64..70_000, any::<u64>()].prop_map(U53::saturating)
}

fn id<T: FromStr + Debug>() -> impl Strategy<Value = T> {
    "[a-z0-9][a-z0-9._-]{0,20}".prop_filter_map("reserved", |text| text.parse().ok())
}

fn session() -> impl Strategy<Value = SessionKey> {
    any::<[u8; 32]>().prop_map(SessionKey)
}

fn member() -> impl Strategy<Value = MemberKey> {
    any::<[u8; 32]>().prop_map(MemberKey)
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        session().prop_map(Address::Session),
        member().prop_map(Address::Member),
        id().prop_map(Address::Topic)
    ]
}

/// Any JSON, `null` included.
fn json() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        text().prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text(), inner, 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// JSON that is there: `null` in an optional field is absence.
fn some_json() -> impl Strategy<Value = Value> {
    json().prop_filter("null is absent", |value| !value.is_null())
}

fn meta() -> impl Strategy<Value = Meta> {
    btree_map(text(), json(), 0..4).prop_map(|fields| Meta(fields.into_iter().collect::<Map<_, _>>()))
}

fn profile() -> impl Strategy<Value = Profile> {
    let status = select(vec![Status::Idle, Status::Working, Status::Dnd]);
    let texts = (text(), of(text()), of(text()), of(text()), of(text()));
    (texts, status, of(number()), vec(text(), 0..3)).prop_map(|(texts, status, last_input_seconds, tags)| {
        let (name, summary, host, cwd, role) = texts;
        Profile { name, status, summary, host, cwd, role, last_input_seconds, tags }
    })
}

fn peer() -> impl Strategy<Value = Peer> {
    let transport = of(select(vec![Transport::Online, Transport::Grace]));
    let keys = (session(), member(), id());
    (keys, profile(), any::<u64>(), vec(id(), 0..3), transport, of(number())).prop_map(
        |((session, member, instance), profile, joined_at, services, transport, lease_until)| Peer {
            services,
            transport,
            lease_until,
            ..Peer::new(session, member, instance, joined_at, &profile)
        },
    )
}

fn ack_mode() -> impl Strategy<Value = AckMode> {
    select(vec![AckMode::Manual, AckMode::Auto])
}

fn reconcile() -> impl Strategy<Value = ReconcileParams> {
    let positions = btree_map("[0-9]{1,3}", number(), 0..3).prop_map(BTreeMap::from_iter);
    let subscription = (id(), id(), of(id()), of(any::<u32>()), ack_mode(), any::<u32>(), positions)
        .prop_map(|(sub_id, topic, group, partition, ack_mode, prefetch, positions)| ClientSubscription {
            sub_id,
            topic,
            group,
            partition,
            ack_mode,
            prefetch,
            positions,
        });
    let state = select(vec![InflightState::Processing, InflightState::Settled]);
    let inflight = (id(), state, of(select(vec![Settle::Ack, Settle::Nack])))
        .prop_map(|(tag, state, settle)| ClientInflight { tag, state, settle });
    let policy = select(vec![ReconcilePolicy::Conservative, ReconcilePolicy::RestoreClient]);
    (policy, vec(subscription, 0..3), vec(inflight, 0..3))
        .prop_map(|(policy, subscriptions, inflight)| ReconcileParams { policy, subscriptions, inflight })
}

fn hello() -> impl Strategy<Value = HelloParams> {
    let client = (text(), text(), of(text()), id()).prop_map(|(name, version, platform, instance_id)| {
        ClientInfo { name, version, platform, instance_id }
    });
    let attestation = (number(), of(vec(id(), 0..3)), text())
        .prop_map(|(expires_at, caps, signature)| Attestation { expires_at, caps, signature });
    let resume = (text(), of(id()), of(number())).prop_map(|(token, epoch, last_seq)| ResumeParams {
        token,
        epoch,
        last_seq,
    });
    let reconcile = prop_oneof![
        Just(HelloReconcile::Later(Later::Later)),
        reconcile().prop_map(|params| HelloReconcile::Now(Box::new(params)))
    ];
    let inbox = select(vec![InboxChoice::Session, InboxChoice::Member, InboxChoice::Both, InboxChoice::None]);
    let wish = || {
        let floors = btree_map(text().prop_filter("is the name", |name| name != "bit"), any::<bool>(), 0..3);
        (text(), floors).prop_map(|(bit, floors)| FeatureWish {
            bit,
            floors: floors.into_iter().map(|(name, floor)| (name, floor.into())).collect(),
        })
    };
    let features = (vec(wish(), 0..3), vec(wish(), 0..3))
        .prop_map(|(require, optional)| FeatureWishes { require, optional });
    let auth = prop_oneof![text().prop_map(Credential::Token), text().prop_map(Credential::Invite)];
    let who = (any::<(u32, u32)>(), client, id(), member(), session());
    let position = (text(), number(), any::<u128>()).prop_map(|(log, seq, id)| LogPosition {
        log,
        seq,
        id: MessageId(id),
    });
    let what = (of(attestation), text(), of(resume), of(reconcile), inbox, profile(), features, of(auth));
    (who, what, vec(position, 0..3)).prop_map(
        |((versions, client, mesh, member, session), what, positions)| {
            let (attestation, proof, resume, reconcile, inbox, profile, features, auth) = what;
            let protocol = ProtocolRange { min: versions.0, max: versions.1 };
            #[rustfmt::skip]
        let hello = HelloParams {
            protocol, client, mesh, member, session, attestation, proof, resume, reconcile, positions, inbox,
            profile, features, auth,
        };
            hello
        },
    )
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes)
}

fn priority() -> impl Strategy<Value = Priority> {
    select(vec![Priority::Now, Priority::Next, Priority::Low])
}

fn send() -> impl Strategy<Value = SendParams> {
    let fallback = select(vec![Fallback::Hold, Fallback::Member, Fallback::Fail]);
    let carried = (of(text()), of(bytes()), of(meta()), of(text()));
    let routed = (address(), id(), priority(), of(text()), of(text()));
    (carried, routed, of(number()), of(number()), fallback, of(text())).prop_map(
        |(carried, routed, ttl_ms, delay_ms, fallback, fingerprint)| {
            let (body, body_b64, meta, content_type) = carried;
            let (to, client_message_id, priority, key, reply_to) = routed;
            #[rustfmt::skip]
            let send = SendParams {
                to, body, body_b64, client_message_id, priority, key, reply_to, meta, content_type, ttl_ms, delay_ms,
                fallback, fingerprint,
            };
            send
        },
    )
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let sender =
        (member(), session(), text()).prop_map(|(member, session, name)| Sender { member, session, name });
    let kind = select(vec![MessageKind::Message, MessageKind::Run]);
    let placed = (any::<u128>(), text(), sender, text(), number(), number(), of(number()), kind);
    (send(), placed, id(), id(), any::<u32>(), any::<bool>()).prop_map(
        |(send, placed, sub_id, tag, attempt, redelivered)| {
            let (message_id, client_message_id, from, log, seq, sent_at, expires_at, kind) = placed;
            let SendParams { to, body, body_b64, priority, key, reply_to, meta, content_type, .. } = send;
            #[rustfmt::skip]
            let message = Message {
                id: MessageId(message_id), client_message_id, from, to, log, seq, key, priority, reply_to, meta, body,
                body_b64, content_type, sent_at, expires_at, kind,
            };
            Delivery { sub_id, tag, attempt, redelivered, message }
        },
    )
}

fn error() -> impl Strategy<Value = WireError> {
    (select(ErrorCode::ALL.to_vec()), text(), any::<bool>(), of(number()), of(some_json())).prop_map(
        |(code, message, retryable, retry_after_ms, details)| WireError {
            code,
            message,
            retryable,
            retry_after_ms,
            details: details.map(Box::new),
        },
    )
}

fn run_event() -> impl Strategy<Value = RunEvent> {
    let status = select(vec![RunEndStatus::Ok, RunEndStatus::Error, RunEndStatus::Cancelled]);
    let end = (status, of(some_json()), of(error())).prop_map(|(status, result, error)| RunEnd {
        status,
        result,
        error,
    });
    (any::<u128>(), of(number()), of(some_json()), of(end), any::<bool>(), any::<bool>()).prop_map(
        |(run, seq, data, end, cancel, gap)| RunEvent { run_id: RunId(run), seq, data, end, cancel, gap },
    )
}

fn services() -> impl Strategy<Value = ServiceRenewParams> {
    let metadata = (of(text()), vec(text(), 0..3), of(text()), any::<bool>())
        .prop_map(|(description, tags, owner, hide)| ServiceMetadata { description, tags, owner, hide });
    let kind = select(vec![ServiceKind::Tcp, ServiceKind::Http, ServiceKind::Run]);
    let offer = (text(), kind, of(number()), metadata, any::<bool>()).prop_map(
        |(name, kind, ttl_ms, metadata, degraded)| ServiceOffer { name, kind, ttl_ms, metadata, degraded },
    );
    vec(offer, 0..4).prop_map(|services| ServiceRenewParams { services })
}

fn subscribe() -> impl Strategy<Value = SubscribeParams> {
    let from = prop_oneof![Just(From::New), Just(From::Earliest), number().prop_map(From::Seq)];
    (id(), of(id()), of(any::<u32>()), any::<u32>(), ack_mode(), from).prop_map(
        |(topic, group, partition, prefetch, ack_mode, from)| SubscribeParams {
            topic,
            group,
            partition,
            prefetch,
            ack_mode,
            from,
        },
    )
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn hellos_survive(value in hello()) {
        survives(value)?;
    }

    #[test]
    fn peers_survive(value in peer(), patch in profile()) {
        survives(SharedPeer::new(value.clone()))?;
        survives(value.profile())?;
        survives(value)?;
        let Profile { name, summary, status, tags, .. } = patch;
        survives(ProfilePatch {
            name: Some(name), summary, status: Some(status), tags: Some(tags), ..ProfilePatch::default()
        })?;
    }

    #[test]
    fn sends_and_deliveries_survive(send in send(), delivery in delivery()) {
        survives(send)?;
        survives(delivery)?;
    }

    #[test]
    fn dead_letters_and_topics_survive(delivery in delivery(), group in of(id()), name in id(), number in number(), reason in text()) {
        let Delivery { message, attempt: attempts, .. } = delivery;
        survives(DeadListResult {
            letters: vec![DeadLetter { message, group: group.clone(), attempts, reason, at: number }],
            next: Some(number),
        })?;
        let group = group.map(|name| GroupInfo {
            name, depth: number, unsettled: number, members: number, oldest_ms: Some(number),
        });
        let topic = TopicInfo {
            name, partitions: attempts, retention_ms: Some(number), entries: number,
            groups_next: group.as_ref().map(|group| group.name.clone()), group_count: Some(number), groups: group.into_iter().collect(),
        };
        survives(TopicsListResult { next: Some(topic.name.clone()), topics: vec![topic] })?;
        survives(DeadRetryResult { retried: vec![number], missing: Vec::new() })?;
    }

    #[test]
    fn reconciliations_and_subscriptions_survive(reconcile in reconcile(), subscribe in subscribe()) {
        survives(reconcile)?;
        survives(subscribe)?;
    }

    #[test]
    fn runs_survive(event in run_event(), to in address(), input in json(), key in text(), from_seq in of(number())) {
        survives(event)?;
        survives(RunStartParams { to, input, idempotency_key: key, timeout_ms: None, from_seq })?;
    }

    #[test]
    fn services_errors_and_closings_survive(
        services in services(),
        error in error(),
        reason in select(Reason::ALL.to_vec()),
        wait in any::<u64>(),
        instance in of(id()),
    ) {
        survives(services)?;
        survives(error)?;
        survives(Closing { instance_id: instance, ..Closing::new(reason).retry_after(wait) })?;
    }
}
