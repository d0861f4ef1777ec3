//! What is exactly as much as it may be is fine. That one more is not is shown where each bound's refusal is
//! (`bad_input`, `first_frame`, `requests`, `limits`), but for what is here.

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::mail::{inbox_of, to_session};
use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, broker, join, still_serves};

#[tokio::test]
async fn a_hello_of_exactly_64_kib_is_read_and_one_byte_more_is_not() {
    let broker = broker(LONG).await;
    for (bytes, fine) in [(64 * 1024, true), (64 * 1024 + 1, false)] {
        let mut sock = Sock::open(broker.addr()).await;
        let params = sock.hello_of(&Who::new("padded"));
        let mut frame = json!({"type": "req", "id": "hello", "method": "hello", "params": params, "pad": ""});
        frame["pad"] = json!("x".repeat(bytes - frame.to_string().len()));
        assert_eq!(frame.to_string().len(), bytes);
        sock.send(&frame).await;
        if fine {
            let answer = sock.frame().await;
            assert_eq!(answer["ok"], true, "{answer}");
        } else {
            assert_closing(&sock.ended().await.closing, 1009, "too_large", true);
        }
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn sockets_that_have_not_said_hello() {
    let mut config = Config::ephemeral(LONG);
    config.max_unauthenticated = 2;
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    // Whoever has said hello is not one of them.
    let (mut here, _) = join(addr, "here").await;
    let mut first = Sock::open(addr).await;
    let mut second = Sock::open(addr).await;
    // For one more the oldest of them goes, and is told why.
    let mut third = Sock::open(addr).await;
    assert_closing(&first.ended().await.closing, 1013, "busy", true);
    here.call("ping", json!({})).await;
    // A place is free when its socket says hello.
    second.join(&Who::new("second")).await;
    let mut fourth = Sock::open(addr).await;
    third.join(&Who::new("third")).await;
    fourth.join(&Who::new("fourth")).await;
}

#[tokio::test]
async fn a_profile_as_large_as_it_may_be() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    let text = |bytes: usize| "x".repeat(bytes);
    let full = json!({"name": text(128), "summary": text(1024), "host": text(1024), "cwd": text(1024),
        "role": text(1024), "tags": vec![text(64); 32]});
    sock.call("profile.set", full).await;
    for (field, value) in [
        ("name", json!(text(129))),
        ("summary", json!(text(1025))),
        ("host", json!(text(1025))),
        ("cwd", json!(text(1025))),
        ("role", json!(text(1025))),
        ("tags", json!(vec![text(1); 33])),
        ("tags", json!([text(65)])),
    ] {
        sock.refuses("profile.set", json!({field: value}), "bad_request", field).await;
    }
}

#[tokio::test]
async fn requests_as_large_as_they_may_be() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "a").await;
    let own = inbox_of(&who);
    let (tags, ids): (Vec<String>, Vec<String>) = (
        (0..4_096).map(|n| format!("nonsense {n}").replace(' ', "-")).collect(),
        (0..256).map(|n| format!("m{n}")).collect(),
    );
    for method in ["ack", "nack", "progress"] {
        let stale = sock.call(method, json!({"tags": tags})).await["stale"].clone();
        assert_eq!(stale.as_array().map(Vec::len), Some(4_096), "{method}");
    }
    let seqs: Vec<u64> = (0..256).collect();
    let count = |value: &Value| value.as_array().map(Vec::len);
    assert_eq!(
        count(&sock.call("send.status", json!({"clientMessageIds": ids})).await["statuses"]),
        Some(256)
    );
    assert_eq!(
        count(&sock.call("dead.retry", json!({"log": own, "seqs": seqs})).await["missing"]),
        Some(256)
    );
    assert_eq!(sock.call("dead.drop", json!({"log": own, "seqs": seqs})).await["dropped"], 0);
    for (method, params) in [
        ("presence.list", json!({"limit": 500})),
        ("history", json!({"log": own, "limit": 256})),
        ("fetch", json!({"subId": "inbox", "limit": 256})),
        ("dead.list", json!({"log": own, "limit": 256})),
        ("topics.list", json!({"limit": 256})),
        ("subscribe", json!({"topic": "t", "prefetch": 4_096})),
        ("topics.create", json!({"name": "u", "partitions": 256})),
        ("nack", json!({"tags": [], "reason": "x".repeat(256), "delayMs": 30 * 24 * 3_600_000_u64})),
    ] {
        sock.call(method, params).await;
    }
    sock.refuses("presence.list", json!({"limit": 501}), "bad_request", "500").await;
    let (day, most) = (24 * 3_600_000_u64, 1024 * 1024);
    let full = json!({"to": to_session(&who), "clientMessageId": "x".repeat(128), "body": "x".repeat(most),
        "key": "x".repeat(256), "replyTo": "x".repeat(128), "contentType": "x".repeat(128), "ttlMs": 30 * day,
        "meta": {"m": "x".repeat(64 * 1024 - 8)}});
    sock.call("send", full.clone()).await;
    let mut over = full;
    over["clientMessageId"] = json!("over");
    over["meta"] = json!({"m": "x".repeat(64 * 1024 - 7)});
    sock.refuses("send", over, "bad_request", "meta").await;
    sock.refuses(
        "send",
        json!({"to": to_session(&who), "clientMessageId": "x".repeat(129), "body": ""}),
        "bad_request",
        "",
    )
    .await;
}
