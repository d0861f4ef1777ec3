//! A send as it becomes an envelope, and each way in which it does not.

use serde_json::Value;
use tenure_proto::U53;
use tenure_proto::error::ErrorCode;
use tenure_proto::limits::{
    CONTENT_TYPE_BYTES, DELAY_MAX_MS, KEY_BYTES, META_BYTES, REPLY_TO_BYTES, TTL_MAX_MS,
};
use tenure_proto::message::{Address, Bytes, Fallback, Meta, Priority};

use super::*;

const WALL: u64 = 1_800_000_000_000;
const MAX: usize = 1000;

fn to(text: &str) -> Address {
    text.parse().unwrap()
}

fn to_session() -> Address {
    Address::Session(SessionKey([7; 32]))
}

fn send() -> SendParams {
    SendParams {
        to: to("topic:jobs"),
        body: Some("hello".into()),
        body_b64: None,
        client_message_id: "m1".parse().unwrap(),
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

fn meta(value: Value) -> Option<Meta> {
    value.as_object().cloned().map(Meta)
}

fn ms(value: u64) -> Option<U53> {
    Some(U53::saturating(value))
}

fn prepared(params: SendParams) -> Result<Prepared, WireError> {
    prepare(params, MessageId::from_parts(WALL, 1), WALL, MAX)
}

/// What is wrong with it, at once.
fn error(params: SendParams) -> WireError {
    prepared(params).expect_err("an error")
}

/// What is wrong with it, unless its id is known.
fn refusal(params: SendParams) -> WireError {
    prepared(params).expect("well formed").refusal.expect("a refusal")
}

fn good(params: SendParams) -> Prepared {
    let prepared = prepared(params).expect("well formed");
    assert_eq!(prepared.refusal, None);
    prepared
}

#[test]
fn everything_said_is_in_the_envelope() {
    let params = SendParams {
        to: to_session(),
        body: None,
        body_b64: Some(Bytes(vec![0, 255])),
        priority: Priority::Low,
        key: Some("k".into()),
        reply_to: Some("r".into()),
        meta: meta(json!({"a": 1})),
        content_type: Some("text/plain".into()),
        ttl_ms: ms(60_000),
        delay_ms: ms(1_000),
        fallback: Fallback::Member,
        ..send()
    };
    let Prepared { envelope, fingerprint: print, .. } = good(params.clone());
    let nobody = Sender { member: MemberKey([0; 32]), session: SessionKey([0; 32]), name: String::new() };
    let expected = Envelope {
        id: MessageId::from_parts(WALL, 1),
        client_message_id: "m1".into(),
        from: nobody,
        to: to_session(),
        key: params.key.clone(),
        priority: Priority::Low,
        reply_to: params.reply_to.clone(),
        meta: params.meta.clone(),
        body: Body::Bytes(vec![0, 255]),
        content_type: params.content_type.clone(),
        sent_at: WALL,
        expires_at: Some(WALL + 60_000),
        not_before: Some(WALL + 1_000),
        fallback: Fallback::Member,
        kind: MessageKind::Message,
    };
    assert_eq!(envelope, expected);
    let free = params.meta.as_ref().map(|meta| &meta.0);
    assert_eq!(Ok(print), fingerprint(&to_session(), Some("r"), Priority::Low, free, &[0, 255]));
}

#[test]
fn little_said_is_little_assumed() {
    let envelope = good(send()).envelope;
    assert_eq!((envelope.expires_at, envelope.not_before), (None, None));
    assert_eq!(envelope.body, Body::Text("hello".into()));
    assert_eq!(good(SendParams { delay_ms: ms(0), ..send() }).envelope.not_before, None);
    assert_eq!(good(SendParams { body: Some(String::new()), ..send() }).envelope.body.as_bytes(), b"");
}

#[test]
fn a_message_has_exactly_one_body() {
    let neither = SendParams { body: None, ..send() };
    let both = SendParams { body_b64: Some(Bytes(Vec::new())), ..send() };
    for params in [neither, both] {
        let error = error(params);
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.message.contains("exactly one of body and bodyB64"), "{error:?}");
        assert!(error.details.is_some_and(|details| details["field"].is_string()), "it names the field");
    }
}

#[test]
fn a_body_is_measured_in_its_own_bytes() {
    good(SendParams { body: Some("x".repeat(MAX)), ..send() });
    good(SendParams { body: None, body_b64: Some(Bytes(vec![0; MAX])), ..send() });
    let text = SendParams { body: Some("ä".repeat(MAX / 2 + 1)), ..send() };
    let bytes = SendParams { body: None, body_b64: Some(Bytes(vec![0; MAX + 2])), ..send() };
    for params in [text, bytes] {
        let error = refusal(params);
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(!error.retryable);
        assert_eq!(error.details.as_deref(), Some(&json!({"limit": MAX, "size": MAX + 2})));
    }
}

#[test]
fn what_is_beyond_a_bound_can_still_be_recognised() {
    let large = SendParams { body: Some("x".repeat(MAX + 1)), ..send() };
    let print = prepared(large.clone()).expect("well formed").fingerprint;
    let larger_broker = prepare(large, MessageId::from_parts(WALL, 2), WALL, MAX + 1).expect("well formed");
    assert_eq!((larger_broker.fingerprint, larger_broker.refusal), (print, None));
}

#[test]
fn nul_and_unsafe_numbers_have_no_fingerprint() {
    let nul = error(SendParams { reply_to: Some("a\0b".into()), ..send() });
    assert_eq!(nul.code, ErrorCode::BadRequest);
    assert!(nul.message.contains("NUL"));
    let number = error(SendParams { meta: meta(json!({"n": 9_007_199_254_740_992u64})), ..send() });
    assert_eq!(number.code, ErrorCode::BadRequest);
    good(SendParams { body: Some("a\0b".into()), key: Some("a\0b".into()), ..send() });
}

#[test]
fn a_fingerprint_of_the_clients_must_be_ours() {
    let ours = good(send()).fingerprint;
    let with = |text: &str| SendParams { fingerprint: Some(text.to_owned()), ..send() };
    assert_eq!(good(with(&ours.hex())).fingerprint, ours);
    let other = error(with(&"ab".repeat(32)));
    assert_eq!(other.code, ErrorCode::BadRequest);
    let details =
        json!({"clientFingerprintPrefix": "ab".repeat(8), "brokerFingerprintPrefix": ours.prefix()});
    assert_eq!(other.details.as_deref(), Some(&details));
    for text in ["", "ab", &ours.hex().to_uppercase(), &"zz".repeat(32)] {
        let error = error(with(text));
        assert_eq!((error.code, error.details), (ErrorCode::BadRequest, None), "{text}");
    }
}

#[test]
fn texts_and_meta_have_bounds() {
    type With = fn(String) -> SendParams;
    let cases: [(&str, usize, With); 4] = [
        ("key", KEY_BYTES, |text| SendParams { key: Some(text), ..send() }),
        ("replyTo", REPLY_TO_BYTES, |text| SendParams { reply_to: Some(text), ..send() }),
        ("contentType", CONTENT_TYPE_BYTES, |text| SendParams { content_type: Some(text), ..send() }),
        // `{"a":""}` is eight bytes itself.
        ("meta", META_BYTES, |text| SendParams { meta: meta(json!({"a": text[8..]})), ..send() }),
    ];
    for (field, limit, with) in cases {
        good(with("x".repeat(limit)));
        let error = refusal(with("x".repeat(limit + 1)));
        assert_eq!(error.code, ErrorCode::BadRequest);
        let details = json!({"field": field, "limit": limit, "size": limit + 1});
        assert_eq!(error.details.as_deref(), Some(&details), "{field}");
        assert!(error.message.contains(field) && error.message.contains(&limit.to_string()));
    }
}

#[test]
fn times_have_bounds_that_are_said() {
    let with = |ttl_ms, delay_ms| SendParams { ttl_ms, delay_ms, ..send() };
    good(with(ms(1), None));
    good(with(ms(TTL_MAX_MS), ms(TTL_MAX_MS - 1)));
    good(with(None, ms(DELAY_MAX_MS)));
    let refusals = [
        (with(ms(0), None), "ttlMs is 1 to 2592000000"),
        (with(ms(TTL_MAX_MS + 1), None), "ttlMs is 1 to 2592000000"),
        (with(ms(u64::MAX), ms(u64::MAX)), "ttlMs"),
        (with(None, ms(DELAY_MAX_MS + 1)), "delayMs is at most 2592000000"),
        (with(ms(5_000), ms(5_000)), "delayMs must be below ttlMs"),
    ];
    for (params, says) in refusals {
        let error = refusal(params);
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.message.contains(says), "{}", error.message);
    }
}

#[test]
fn only_a_session_has_a_fallback() {
    for fallback in [Fallback::Member, Fallback::Fail] {
        good(SendParams { to: to_session(), fallback, ..send() });
        for other in [to("topic:jobs"), Address::Member(MemberKey([1; 32]))] {
            let error = refusal(SendParams { to: other, fallback, ..send() });
            assert_eq!(error.code, ErrorCode::BadRequest);
            assert!(error.message.contains("fallback"));
        }
    }
    good(SendParams { to: Address::Member(MemberKey([1; 32])), ..send() });
}
