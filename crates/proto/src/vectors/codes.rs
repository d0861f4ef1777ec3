//! `codes.json`: the tables that every implementation has a copy of.

use serde_json::{Value, json};

use crate::close::{Action, Reason};
use crate::error::ErrorCode;
use crate::event::EventBody;
use crate::limits;
use crate::method::Method;
use crate::subscribe::DEFAULT_PREFETCH;

pub(super) fn codes() -> Value {
    let errors: Vec<_> = ErrorCode::ALL
        .iter()
        .map(|code| json!({"code": code.as_str(), "retryable": code.retryable()}))
        .collect();
    let closes: Vec<_> = Reason::ALL
        .iter()
        .map(|reason| {
            json!({
                "reason": reason.as_str(),
                "code": reason.code(),
                "retryable": reason.retryable(),
                "action": reason.action(),
            })
        })
        .collect();
    let events: Vec<_> = EventBody::NAMES
        .iter()
        .map(|&name| json!({"event": name, "numbered": !matches!(name, "challenge" | "closing")}))
        .collect();
    json!({
        "about": "Error codes, close reasons with what a client does about them, names, and default numbers.",
        "errors": errors,
        "unknownError": {"action": "believe `retryable`"},
        "closes": closes,
        "unknownClose": {"retryable": Action::Backoff, "notRetryable": Action::Stop, "withoutClosingEvent": Action::Backoff},
        "methods": Method::ALL.iter().map(|method| method.as_str()).collect::<Vec<_>>(),
        "events": events,
        "limits": limits(),
    })
}

fn limits() -> Value {
    let mut limits = of_sessions();
    if let (Value::Object(all), Value::Object(more)) = (&mut limits, of_messages()) {
        all.extend(more);
    }
    limits
}

fn of_sessions() -> Value {
    json!({
        "protocol": limits::PROTOCOL,
        "subprotocolJson": limits::SUBPROTOCOL_JSON,
        "subprotocolMsgpack": limits::SUBPROTOCOL_MSGPACK,
        "frameBeforeHelloBytes": limits::FRAME_BEFORE_HELLO_BYTES,
        "frameBytes": limits::frame_bytes(limits::MAX_PAYLOAD_BYTES),
        "maxPayloadBytes": limits::MAX_PAYLOAD_BYTES,
        "maxPayloadBytesFloor": limits::MAX_PAYLOAD_BYTES_FLOOR,
        "maxBufferedBytes": limits::MAX_BUFFERED_BYTES,
        "maxBufferedMessages": limits::MAX_BUFFERED_MESSAGES,
        "maxInflight": limits::MAX_INFLIGHT,
        "helloTimeoutMs": limits::HELLO_TIMEOUT_MS,
        "closeFlushMs": limits::CLOSE_FLUSH_MS,
        "slowConsumerMs": limits::SLOW_CONSUMER_MS,
        "nonceBytes": limits::NONCE_BYTES,
        "attestationAheadMs": limits::ATTESTATION_AHEAD_MS,
        "attestationCaps": limits::ATTESTATION_CAPS,
        "nameBytes": limits::NAME_BYTES,
        "tokenBytes": limits::TOKEN_BYTES,
        "nesting": limits::NESTING,
        "freeJsonNesting": limits::FREE_JSON_NESTING,
        "integerMax": crate::U53::MAX,
        "profileNameBytes": limits::PROFILE_NAME_BYTES,
        "profileTextBytes": limits::PROFILE_TEXT_BYTES,
        "profileTags": limits::PROFILE_TAGS,
        "profileTagBytes": limits::PROFILE_TAG_BYTES,
        "presencePage": limits::PRESENCE_PAGE,
        "presencePerMesh": limits::PRESENCE_PER_MESH,
        "ringEvents": limits::RING_EVENTS,
        "ringBytes": limits::RING_BYTES,
        "leaseTtlMs": limits::LEASE_TTL_MS,
        "pingIntervalMs": limits::PING_INTERVAL_MS,
        "staleAfterMs": limits::STALE_AFTER_MS,
        "tickIntervalMs": limits::TICK_INTERVAL_MS,
        "contestReplacements": limits::CONTEST_REPLACEMENTS,
        "contestWindowMs": limits::CONTEST_WINDOW_MS,
        "contestRetryMs": limits::CONTEST_RETRY_MS,
    })
}

fn of_messages() -> Value {
    json!({
        "page": limits::PAGE,
        "prefetch": DEFAULT_PREFETCH,
        "tagsPerSettle": limits::TAGS_PER_SETTLE,
        "subscriptionsPerSession": limits::SUBSCRIPTIONS_PER_SESSION,
        "prefetchMax": limits::PREFETCH_MAX,
        "partitionsMax": limits::PARTITIONS_MAX,
        "maxAttempts": limits::MAX_ATTEMPTS,
        "ackTimeoutMs": limits::ACK_TIMEOUT_MS,
        "reconnectGraceMs": limits::RECONNECT_GRACE_MS,
        "reconcileWaitMs": limits::RECONCILE_WAIT_MS,
        "inboxEntries": limits::INBOX_ENTRIES,
        "inboxBytes": limits::INBOX_BYTES,
        "inboxTtlMs": limits::INBOX_TTL_MS,
        "dedupeDays": limits::DEDUPE_DAYS,
        "dedupeDaysFloor": limits::DEDUPE_DAYS_FLOOR,
        "retentionMs": limits::RETENTION_MS,
        "deadLetterMs": limits::DEAD_LETTER_MS,
        "groupUnusedMs": limits::GROUP_UNUSED_MS,
        "ttlMaxMs": limits::TTL_MAX_MS,
        "delayMaxMs": limits::DELAY_MAX_MS,
        "keyBytes": limits::KEY_BYTES,
        "replyToBytes": limits::REPLY_TO_BYTES,
        "contentTypeBytes": limits::CONTENT_TYPE_BYTES,
        "metaBytes": limits::META_BYTES,
        "reasonBytes": limits::REASON_BYTES,
    })
}
