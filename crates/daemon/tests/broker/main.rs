//! Brokers that a daemon cannot work with: it says why in one sentence, or waits for a better day.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// The handshake's callback answers with a whole response, by its library's choice.
#![allow(clippy::result_large_err)]

#[path = "../http/client.rs"]
#[allow(dead_code)]
mod client;
mod table;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::Client;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tenure_daemon::{Config, Daemon, MeshChoice};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

const PATIENCE: Duration = Duration::from_secs(30);

/// A broker that admits everybody and promises this.
async fn promising(features: Value) -> String {
    promising_at(features, 1).await
}

/// The same, by whose clock it is so late.
async fn promising_at(features: Value, ts: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, features.clone(), ts));
        }
    });
    url
}

async fn serve(socket: tokio::net::TcpStream, features: Value, ts: u64) {
    let choose = |_: &_, mut response: tokio_tungstenite::tungstenite::handshake::server::Response| {
        response.headers_mut().insert("sec-websocket-protocol", "tenure.v1.json".parse().unwrap());
        Ok(response)
    };
    let mut ws = tokio_tungstenite::accept_hdr_async(socket, choose).await.unwrap();
    let nonce = "A".repeat(43);
    let challenge =
        json!({"type": "event", "event": "challenge", "data": {"nonce": nonce, "ts": 1, "broker": "b"}});
    ws.send(Message::text(challenge.to_string())).await.unwrap();
    while let Some(Ok(message)) = ws.next().await {
        let Message::Text(text) = message else { continue };
        let frame: Value = serde_json::from_str(&text).unwrap();
        let mut answer = match frame["method"].as_str() {
            Some("ping") => json!({"ok": true, "result": {"ts": ts}}),
            Some("send") => match table::verdict(frame["params"]["clientMessageId"].as_str().unwrap()) {
                Some(answer) => answer,
                None => continue,
            },
            Some("hello") => json!({"ok": true, "result": hello(&frame, &features)}),
            _ => continue,
        };
        answer["type"] = json!("res");
        answer["id"] = frame["id"].clone();
        ws.send(Message::text(answer.to_string())).await.unwrap();
    }
}

fn hello(frame: &Value, features: &Value) -> Value {
    assert_eq!(frame["params"]["features"]["require"], json!(["dedupe"]), "asked for");
    json!({
        "protocol": 1, "broker": {"id": "b", "version": "0"}, "connId": "c1",
        "sessionId": frame["params"]["session"], "lease": "new",
        "resume": {"outcome": "new", "token": "t"}, "leaseTtlMs": 60000,
        "policy": {"pingIntervalMs": 20000, "staleAfterMs": 50000, "tickIntervalMs": 20000, "maxPayload": 1048576,
            "maxBufferedBytes": 4194304, "maxBufferedMessages": 16384, "maxInflight": 4096, "durability": "fsync"},
        "features": features, "events": {"epoch": "e", "nextSeq": 1, "replay": "resync"},
        "snapshot": {"presence": [], "services": [], "subscriptions": [], "health": "ok", "uptimeMs": 1},
        "stateVersion": {"presence": 0, "services": 0, "health": 0},
    })
}

async fn start(broker: String, max_age_hours: Option<u64>) -> (Daemon, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mesh = MeshChoice { name: "default".parse().unwrap(), broker, authority: None };
    let mut config = Config::new(dir.path().to_owned(), mesh, "laptop");
    config.max_age_hours = max_age_hours;
    (Daemon::start(config).await.unwrap(), dir)
}

async fn failure(features: Value, max_age_hours: Option<u64>) -> String {
    let (daemon, _dir) = start(promising(features).await, max_age_hours).await;
    let why = tokio::time::timeout(PATIENCE, daemon.failed()).await.expect("it works with such a broker");
    daemon.stop().await;
    why
}

fn dedupe(days: u64) -> Value {
    json!({"dedupe": {"version": 2, "mode": "retention_scoped", "retentionDays": days, "fingerprint": true}})
}

#[tokio::test]
async fn a_broker_that_does_not_promise_enough_ends_the_daemon_with_one_sentence() {
    let missing = failure(json!({"resume": {"version": 1}}), None).await;
    assert!(missing.contains("feature_unavailable"), "{missing}");
    let invalid = failure(json!({"dedupe": {"version": 2, "mode": "?", "fingerprint": true}}), None).await;
    assert!(invalid.contains("feature_param_invalid"), "{invalid}");
    let below = failure(dedupe(6), None).await;
    assert!(below.contains("feature_param_below_floor") && below.contains("6 days"), "{below}");
    let above = failure(dedupe(7), Some(145)).await;
    assert!(above.contains("outbox_max_age_above_dedupe_window"), "{above}");
}

#[tokio::test]
async fn the_daemon_ends_with_its_last_mesh_and_names_them_all() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = async |name: &str, days| MeshChoice {
        name: name.parse().unwrap(),
        broker: promising(dedupe(days)).await,
        authority: None,
    };
    let mut config = Config::new(dir.path().to_owned(), mesh("one", 6).await, "laptop");
    config.meshes.push(mesh("two", 5).await);
    let daemon = Daemon::start(config).await.unwrap();
    let why = tokio::time::timeout(PATIENCE, daemon.failed()).await.expect("no mesh is left");
    assert!(why.contains("mesh one: ") && why.contains("; mesh two: "), "{why}");
    daemon.stop().await;
}

#[tokio::test]
async fn one_that_speaks_nonsense_is_tried_again_and_loses_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let (daemon, dir) = start(url, None).await;
    for _ in 0..3 {
        let (mut socket, _) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n\x00\xff nonsense").await.unwrap();
    }
    let waits = tokio::time::timeout(Duration::from_millis(50), daemon.failed()).await;
    assert!(waits.is_err(), "it waits for a better day");
    daemon.stop().await;
    assert!(dir.path().join("outbox.db").exists());
}

/// It admits everybody and answers nothing: who waits for it leaves room for those who do not, and is told when the daemon
/// stops that another time may be better.
#[tokio::test]
async fn one_that_does_not_answer_holds_up_nobody_else() {
    let (daemon, _dir) = start(promising(dedupe(7)).await, None).await;
    let client = Client::new(daemon.socket());
    let connected = async { while client.get("/v1/health").await.1["connected"] != true {} };
    tokio::time::timeout(PATIENCE, connected).await.expect("it is never connected");
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        asked.spawn(async move { client.get("/v1/peers").await });
    }
    for _ in 0..32 {
        let (status, problem) = asked.join_next().await.unwrap().unwrap();
        assert_eq!((status, &problem["code"]), (429, &json!("busy")), "half of the places are for others");
    }
    let message = json!({"to": "topic:jobs", "body": "x"});
    assert_eq!(client.post("/v1/send", &message).await.0, 202);
    let (_, answers) = tokio::join!(daemon.stop(), asked.join_all());
    assert_eq!(answers.len(), 32);
    for (status, problem) in answers {
        assert_eq!(
            (status, &problem["code"], &problem["retryable"]),
            (503, &json!("unavailable"), &json!(true))
        );
    }
}

/// What becomes of a row that is four years old by our clock, with a broker whose clock stands there.
async fn fate_of_an_old_row(wall: u64, ts: u64) -> (Value, Value) {
    const FOUR_YEARS_MS: u64 = 4 * 365 * 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let config = |broker: String| {
        let mesh = MeshChoice { name: "default".parse().unwrap(), broker, authority: None };
        Config::new(dir.path().to_owned(), mesh, "laptop")
    };
    let daemon = Daemon::start(config("ws://127.0.0.1:9".to_owned())).await.unwrap();
    let row = json!({"to": "topic:jobs", "body": "x"});
    assert_eq!(Client::new(daemon.socket()).post("/v1/send", &row).await.0, 202);
    daemon.stop().await;
    let file = rusqlite::Connection::open(dir.path().join("outbox.db")).unwrap();
    let old = i64::try_from(wall - FOUR_YEARS_MS).unwrap();
    file.execute("UPDATE outbox SET enqueued_at = ?1", [old]).unwrap();
    drop(file);
    let daemon = Daemon::start(config(promising_at(dedupe(7), ts).await)).await.unwrap();
    let client = Client::new(daemon.socket());
    let decided = async {
        loop {
            let (_, row) = client.get("/v1/outbox/1").await;
            if row["status"] == "done" || row["status"] == "dead" {
                return (row["status"].clone(), row["lastError"].clone());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let fate = tokio::time::timeout(PATIENCE, decided).await.expect("it is never decided");
    daemon.stop().await;
    fate
}

#[tokio::test]
async fn a_row_is_given_up_for_its_age_only_when_the_brokers_clock_agrees() {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap();
    let (status, error) = fate_of_an_old_row(wall, wall).await;
    assert!(status == "dead" && error.as_str().unwrap().starts_with("expired"), "{status} {error}");
    let (status, error) = fate_of_an_old_row(wall, wall - 4 * 365 * 86_400_000).await;
    assert_eq!((&status, &error), (&json!("done"), &Value::Null), "it is our clock that is wrong");
}
