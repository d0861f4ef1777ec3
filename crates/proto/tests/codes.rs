//! `codes.json` against the tables of the contract, copied here by hand: a change of either must be meant.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use serde_json::{Value, json};
use tenure_proto::close::Closing;
use tenure_proto::{ErrorCode, Reason};
use wire::{entries, text_of, vectors};

const ERRORS: &str = "bad_request, unknown_method, unauthorized, forbidden, protocol_mismatch, not_found, too_large, \
    rate_limited, busy, unavailable, draining, idempotency_key_reused, no_such_session, lease_expired, name_taken, \
    name_rejected, ttl_out_of_bounds, banned, stale_delivery, seq_gap, session_contested, not_owner, conflict, \
    expired, feature_unavailable, feature_param_invalid, feature_param_below_floor, internal";

const RETRYABLE: &[&str] =
    &["rate_limited", "busy", "unavailable", "draining", "session_contested", "not_owner", "internal"];

/// Code, reasons, and what a client does.
const CLOSES: &[(u16, &[&str], &str)] = &[
    (1000, &["bye"], "done"),
    (1000, &["session_replaced"], "resume_if_own"),
    (1001, &["going_away"], "resume"),
    (1012, &["restart"], "resume"),
    (1002, &["protocol_mismatch"], "stop"),
    (1008, &["bad_first_frame", "unauthorized", "forbidden"], "stop"),
    (1008, &["slow_consumer"], "resume"),
    (1009, &["too_large"], "resume"),
    (1013, &["busy", "draining", "session_contested"], "backoff"),
    (4003, &["kicked"], "stop"),
    (4004, &["banned"], "stop"),
    (4008, &["hello_timeout"], "resume"),
    (4009, &["stale"], "resume"),
    (4010, &["feature_unavailable"], "stop"),
    (4011, &["feature_param_invalid"], "stop"),
    (4012, &["feature_param_below_floor"], "stop"),
    // Ours: the contract has no reason for a message that breaks WebSocket itself after hello.
    (1002, &["bad_frame"], "backoff"),
];

/// `dead.drop` is ours: the contract lets an operator see and retry dead letters, but not forget them.
const METHODS: &str = "hello bye ping reconcile presence.list profile.set health send send.status subscribe \
    unsubscribe fetch ack nack progress history topics.list topics.create topics.delete groups.list groups.delete dead.list \
    dead.retry dead.drop run.start run.chunk \
    run.end run.cancel run.get runs.list services.list service.renew service.withdraw relay.open";

const EVENTS: &str = "challenge closing message receipt presence service health run subscription tick shutdown resync \
    notice";

#[test]
fn error_codes_are_those_of_the_contract() {
    let file = vectors("codes.json");
    let listed: Vec<_> = entries(&file, "errors").iter().map(|row| text_of(row, "code")).collect();
    assert_eq!(listed, ERRORS.split(", ").collect::<Vec<_>>());
    for row in entries(&file, "errors") {
        let code = text_of(row, "code");
        assert_eq!(row["retryable"], RETRYABLE.contains(&code), "{code}");
        let ours = ErrorCode::from_wire(code).expect(code);
        assert_eq!((json!(ours.as_str()), json!(ours.retryable())), (json!(code), row["retryable"].clone()));
        assert_eq!(json!(ours), code, "serde and the table agree");
    }
}

#[test]
fn close_reasons_are_those_of_the_contract() {
    let file = vectors("codes.json");
    let expected: Vec<Value> = CLOSES
        .iter()
        .flat_map(|(code, reasons, action)| reasons.iter().map(move |reason| json!([code, reason, action])))
        .collect();
    let listed: Vec<Value> = entries(&file, "closes")
        .iter()
        .map(|row| json!([row["code"], row["reason"], row["action"]]))
        .collect();
    assert_eq!(listed, expected);
    for row in entries(&file, "closes") {
        let reason = Reason::from_wire(text_of(row, "reason")).expect("a reason");
        assert_eq!(json!(reason), row["reason"], "serde and the table agree");
        let closing = Closing::new(reason);
        assert_eq!(json!(closing.retryable), row["retryable"], "{row}");
        assert_eq!(json!(closing.action()), row["action"], "{row}");
    }
}

#[test]
fn methods_and_events_are_those_of_the_contract() {
    let file = vectors("codes.json");
    let methods: Vec<_> = entries(&file, "methods").iter().filter_map(Value::as_str).collect();
    assert_eq!(methods, METHODS.split_whitespace().collect::<Vec<_>>());
    let events: Vec<_> = entries(&file, "events").iter().map(|row| text_of(row, "event")).collect();
    assert_eq!(events, EVENTS.split_whitespace().collect::<Vec<_>>());
    for row in entries(&file, "events") {
        assert_eq!(row["numbered"], !["challenge", "closing"].contains(&text_of(row, "event")), "{row}");
    }
}

#[test]
fn the_numbers_are_those_of_the_contract() {
    let limits = &vectors("codes.json")["limits"];
    for (name, value) in [
        ("protocol", 1),
        ("frameBeforeHelloBytes", 65_536),
        ("maxPayloadBytes", 1_048_576),
        // 4/3 of the payload and 64 KiB, rounded up to whole groups of base64.
        ("frameBytes", 1_398_104 + 65_536),
        ("helloTimeoutMs", 10_000),
        ("closeFlushMs", 1_000),
        ("slowConsumerMs", 10_000),
        ("nonceBytes", 32),
        ("attestationAheadMs", 86_400_000),
        ("nameBytes", 64),
        ("maxInflight", 4096),
        ("presencePage", 500),
        ("presencePerMesh", 100_000),
        ("page", 256),
        ("prefetch", 32),
        ("ringEvents", 1024),
        ("ringBytes", 1_048_576),
        ("leaseTtlMs", 90_000),
        ("pingIntervalMs", 30_000),
        ("staleAfterMs", 75_000),
        ("tickIntervalMs", 30_000),
        ("contestReplacements", 5),
        ("contestWindowMs", 30_000),
        ("contestRetryMs", 5_000),
        ("tagsPerSettle", 4_096),
        ("subscriptionsPerSession", 1_024),
        ("prefetchMax", 4_096),
        ("partitionsMax", 256),
        ("maxAttempts", 16),
        ("ackTimeoutMs", 600_000),
        ("reconnectGraceMs", 5_000),
        ("reconcileWaitMs", 5_000),
        ("inboxEntries", 100_000),
        ("inboxBytes", 1_073_741_824),
        ("inboxTtlMs", 604_800_000),
        ("dedupeDays", 30),
        ("dedupeDaysFloor", 7),
        ("retentionMs", 604_800_000),
        ("deadLetterMs", 2_592_000_000),
        ("groupUnusedMs", 2_592_000_000),
        ("ttlMaxMs", 2_592_000_000),
        ("delayMaxMs", 2_592_000_000),
        ("keyBytes", 256),
        ("replyToBytes", 128),
        ("contentTypeBytes", 128),
        ("metaBytes", 65_536),
        ("reasonBytes", 256),
        ("integerMax", 9_007_199_254_740_991u64),
    ] {
        assert_eq!(limits[name], value, "{name}");
    }
    assert_eq!(limits["subprotocolJson"], "tenure.v1.json");
    assert_eq!(limits["subprotocolMsgpack"], "tenure.v1.msgpack");
}
