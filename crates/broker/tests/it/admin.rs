//! The admin API: who gets in, and a drain by way of it.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};

use super::durable;
use crate::common::http::{Answer, get, raw};
use crate::common::mail::{inbox_of, to_session};
use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, join};

const TOKEN: &str = "a-token-of-the-operator";
const DRAIN: &str = "/v1/admin/drain";

async fn administered() -> Broker {
    let config = Config { admin_token: Some(TOKEN.to_owned()), ..Config::ephemeral(LONG) };
    Broker::start(config).await.expect("start")
}

/// A request with these header lines besides its Host.
async fn ask(addr: SocketAddr, line: &str, lines: &[&str], body: &str) -> Answer {
    let mut head = format!("{line} HTTP/1.1\r\nHost: {addr}\r\nContent-Length: {}\r\n", body.len());
    for line in lines {
        head += &format!("{line}\r\n");
    }
    raw(addr, &format!("{head}Connection: close\r\n\r\n{body}")).await
}

async fn as_operator(addr: SocketAddr, method: &str, body: &str) -> Answer {
    ask(addr, &format!("{method} {DRAIN}"), &[&format!("Authorization: Bearer {TOKEN}")], body).await
}

fn data(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}: {:?}", answer.status, answer.body))
}

/// A refusal is a problem with one of our codes and a sentence.
fn refused(answer: &Answer, status: u16, code: &str, words: &str) {
    let problem = data(answer);
    assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{problem}");
    assert_eq!(problem["status"], status);
    assert!(answer.head.contains("content-type: application/problem+json"), "{}", answer.head);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{problem}");
}

#[tokio::test]
async fn without_a_token_there_is_nothing_to_administer() {
    let broker = Broker::start(Config::ephemeral(LONG)).await.expect("start");
    assert_eq!(as_operator(broker.addr(), "POST", "").await.status, 404);
    broker.stop("end").await;
}

#[tokio::test]
async fn only_the_token_opens_and_only_in_its_header() {
    let broker = administered().await;
    let addr = broker.addr();
    let missing = get(addr, DRAIN).await;
    refused(&missing, 401, "unauthorized", "Bearer");
    assert!(missing.head.contains("www-authenticate: bearer"), "{}", missing.head);
    let wrong =
        ask(addr, &format!("POST {DRAIN}"), &["Authorization: Bearer not-the-token-at-all"], "").await;
    refused(&wrong, 401, "unauthorized", "not the operator's token");
    let good = format!("Authorization: Bearer {TOKEN}");
    let in_url = ask(addr, &format!("GET {DRAIN}?token={TOKEN}"), &[&good], "").await;
    refused(&in_url, 400, "bad_request", "logs");
    assert!(!in_url.body.contains(TOKEN));
    let renamed = format!("GET {DRAIN}?limit=1&x={TOKEN}");
    refused(&ask(addr, &renamed, &[&good], "").await, 400, "bad_request", "logs");
    refused(&ask(addr, &renamed, &[], "").await, 401, "unauthorized", "Bearer");
    let page = ask(addr, &format!("POST {DRAIN}"), &[&good, "Origin: http://evil.example"], "").await;
    refused(&page, 403, "forbidden", "Origin");
    let elsewhere =
        format!("GET {DRAIN} HTTP/1.1\r\nHost: evil.example\r\n{good}\r\nConnection: close\r\n\r\n");
    refused(&raw(addr, &elsewhere).await, 403, "forbidden", "Host");
    let state = as_operator(addr, "GET", "").await;
    assert_eq!((state.status, data(&state)), (200, json!({"draining": false})));
    assert_eq!(get(addr, "/readyz").await.status, 200, "nothing of that stopped it");
    broker.stop("end").await;
}

#[tokio::test]
async fn who_guesses_is_locked_out_and_the_operator_beside_it_never_is() {
    let broker = administered().await;
    let addr = broker.addr();
    for n in 0..10 {
        let guess = format!("Authorization: Bearer guess-number-{n:04}");
        assert_eq!(ask(addr, &format!("GET {DRAIN}"), &[&guess], "").await.status, 401);
    }
    let guess = ["Authorization: Bearer one-guess-too-many"];
    let locked = ask(addr, &format!("GET {DRAIN}"), &guess, "").await;
    refused(&locked, 429, "rate_limited", "wait");
    assert!(data(&locked)["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0 && ms <= 60_000));
    assert!(locked.head.contains("retry-after: "), "{}", locked.head);
    assert_eq!(as_operator(addr, "GET", "").await.status, 200, "from the same address, with the right token");
    assert_eq!(get(addr, "/readyz").await.status, 200);
    broker.stop("end").await;
}

#[tokio::test]
async fn a_problem_points_at_the_field_that_is_wrong() {
    let broker = administered().await;
    let addr = broker.addr();
    let good = format!("Authorization: Bearer {TOKEN}");
    let headers = [good.as_str(), "Content-Type: application/json"];
    let member = format!("/v1/admin/meshes/default/members/{}", "ab".repeat(32));
    let settings = "/v1/admin/meshes/default/settings";
    for (line, body, pointer) in [
        (format!("PUT {member}"), json!({"caps": ["read", 5]}), "/caps/1"),
        (format!("PUT {member}"), json!({"caps": ["send", "nope"]}), "/caps/1"),
        ("POST /v1/admin/meshes/default/tokens".to_owned(), json!({"caps": ["nope"]}), "/caps/0"),
        (format!("PATCH {settings}"), json!({"values": {}}), "/version"),
        (
            format!("PATCH {settings}"),
            json!({"version": 0, "values": {"leaseTtlMs": 1}}),
            "/values/leaseTtlMs",
        ),
        (format!("PATCH {settings}"), json!({"version": 0, "values": {"a/b~c": 1}}), "/values/a~1b~0c"),
        ("POST /v1/admin/drain".to_owned(), json!({"deadlineMs": 99_999_999}), "/deadlineMs"),
        ("POST /v1/admin/drain".to_owned(), json!({"restartInMs": 99_999_999_999u64}), "/restartInMs"),
    ] {
        let answer = ask(addr, &line, &headers, &body.to_string()).await;
        assert_eq!(answer.status, 400, "{line} {body}: {}", answer.body);
        assert_eq!(data(&answer)["pointer"], pointer, "{line} {body}: {}", answer.body);
    }
    broker.stop("end").await;
}

#[tokio::test]
async fn a_setting_answers_to_its_alias() {
    let broker = administered().await;
    let addr = broker.addr();
    let good = format!("Authorization: Bearer {TOKEN}");
    let headers = [good.as_str(), "Content-Type: application/json"];
    let patch = "PATCH /v1/admin/meshes/default/settings";
    let body = json!({"version": 0, "values": {"connection.reconnect_grace_ms": 7_000}}).to_string();
    let set = ask(addr, patch, &headers, &body).await;
    assert_eq!(set.status, 200, "{}", set.body);
    assert_eq!(data(&set)["values"]["reconnectGraceMs"], 7_000);
    assert_eq!(data(&set)["changed"], json!(["reconnectGraceMs"]), "kept under its own name");
    let both = json!({"version": 1, "values": {"connection.reconnect_grace_ms": 1, "reconnectGraceMs": 2}});
    refused(&ask(addr, patch, &headers, &both.to_string()).await, 422, "bad_request", "names of one setting");
    broker.stop("end").await;
}

#[tokio::test]
async fn what_makes_no_sense_stops_nothing() {
    let broker = administered().await;
    let addr = broker.addr();
    for (body, words) in [
        ("{", "EOF"),
        (r#"{"restartIn": 5}"#, "restartIn"),
        (r#"{"restartInMs": -1}"#, "-1"),
        (r#"{"deadlineMs": 300001}"#, "deadlineMs"),
        (r#"{"restartInMs": 3600001}"#, "restartInMs"),
        (&json!({"reason": "x".repeat(257)}).to_string(), "reason"),
    ] {
        refused(&as_operator(addr, "POST", body).await, 400, "bad_request", words);
    }
    assert_eq!(as_operator(addr, "POST", &" ".repeat(300_000)).await.status, 413);
    assert_eq!(as_operator(addr, "DELETE", "").await.status, 405);
    assert_eq!(data(&as_operator(addr, "GET", "").await)["draining"], false);
    broker.stop("end").await;
}

#[tokio::test]
async fn an_operator_drains_it_and_who_asks_again_hears_what_is_under_way() {
    let broker = administered().await;
    let addr = broker.addr();
    let (mut sender, _) = join(addr, "sender").await;
    let (mut reader, who) = join(addr, "reader").await;
    sender.post(&to_session(&who), "m1", "in hand").await;
    let delivery = reader.delivery().await;

    let order = json!({"restartInMs": 60_000, "deadlineMs": 120_000, "reason": "upgrade"}).to_string();
    let begun = as_operator(addr, "POST", &order).await;
    let facts = json!({
        "draining": true, "begun": true, "reason": "upgrade", "sessions": 2,
        "restartInMs": 60_000, "deadlineMs": 120_000,
    });
    assert_eq!((begun.status, data(&begun)), (202, facts.clone()));
    let told = broker.told_to_stop().await;
    assert_eq!((told.reason.as_str(), told.sessions), ("upgrade", 2));

    // Who has nothing to wait for goes; who has something in hand may settle it.
    let ended = sender.ended().await;
    assert_closing(&ended.closing, 1012, "restart", true);
    assert!(ended.closing["retryAfterMs"].as_u64().is_some_and(|ms| ms > 50_000), "{}", ended.closing);
    let mut late = Sock::open(addr).await;
    let params = late.hello_of(&Who::new("late"));
    let (error, closing) = late.refused(params).await;
    assert_eq!(error["code"], "draining");
    assert!(error["retryAfterMs"].as_u64().is_some_and(|ms| ms > 50_000), "the truth: {error}");
    assert_closing(&closing, 1013, "draining", true);

    let again = as_operator(addr, "POST", r#"{"deadlineMs": 1}"#).await;
    let mut same = facts;
    same["begun"] = json!(false);
    assert_eq!((again.status, data(&again)), (200, same.clone()));
    same.as_object_mut().unwrap().remove("begun");
    assert_eq!(data(&as_operator(addr, "GET", "").await), same);

    let stopping = tokio::spawn(broker.stop("asked"));
    reader.ack(&delivery["tag"]).await;
    let ended = reader.ended().await;
    assert_closing(&ended.closing, 1012, "restart", true);
    stopping.await.unwrap();
}

/// Changes some bytes of a store at rest, as a disk does.
fn damage(dir: &Path, from: &[u8], to: &[u8]) {
    let path = dir.join("tenure.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).expect("it is in the file");
    bytes[at..at + to.len()].copy_from_slice(to);
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_entry_is_told_to_its_sender_and_listed_for_the_operator() {
    let dir = tempfile::tempdir().unwrap();
    let start = async || {
        let mut config = Config { admin_token: Some(TOKEN.to_owned()), ..Config::ephemeral(LONG) };
        config.store = StoreChoice::Sqlite(dir.path().to_owned());
        Broker::start(config).await.expect("start")
    };
    let (a_who, b_who) = (Who::new("a"), Who::new("b"));
    let broker = start().await;
    let (mut a, mut b) = (durable::enter(&broker, &a_who).await, durable::enter(&broker, &b_who).await);
    b.bye().await;
    let sent = a.post(&to_session(&b_who), "m1", "what the disk damages").await;
    let past = durable::stop(broker, vec![a]).await;
    damage(dir.path(), b"what the disk damages", b"WHAT");

    let broker = start().await;
    let mut a = durable::back(&broker, &a_who, &past[0]).await;
    let b = durable::enter(&broker, &b_who).await;
    let receipt = a.until("receipt").await;
    assert_eq!((&receipt["id"], &receipt["state"]), (&sent["id"], &json!("dead")), "{receipt}");
    assert_eq!(receipt["reason"], "damaged", "{receipt}");
    let line = format!("GET /v1/admin/meshes/default/dead?log={}", inbox_of(&b_who));
    let listed = ask(broker.addr(), &line, &[&format!("Authorization: Bearer {TOKEN}")], "").await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    assert!(listed.body.contains("\"damaged\""), "{}", listed.body);
    assert!(listed.body.contains(sent["id"].as_str().unwrap()), "{}", listed.body);
    drop((a, b));
    broker.stop("end").await;
}
