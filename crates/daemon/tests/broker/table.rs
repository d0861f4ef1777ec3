//! The table of what a daemon takes, every cell through real HTTP, twice. How a row came to stand where it does is the
//! broker's doing and the daemon's: nothing is written into its file by hand.

use serde_json::{Value, json};

use super::client::Client;
use super::{PATIENCE, dedupe, promising, start};

const STATES: [&str; 5] = ["pending", "inflight", "done", "dead", "aborted"];

/// What a broker says to a `send` with this id; nothing, if it keeps it waiting.
pub(crate) fn verdict(id: &str) -> Option<Value> {
    let error = |code: &str, retryable: bool| {
        let wish = retryable.then_some(3_600_000);
        let error = json!({"code": code, "message": "no", "retryable": retryable, "retryAfterMs": wish});
        Some(json!({"ok": false, "error": error}))
    };
    match id {
        "inflight" => None,
        "done" => {
            let result = json!({"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "log": "topic/of-done/0", "seq": 7, "duplicate": false});
            Some(json!({"ok": true, "result": result}))
        }
        "dead" => error("too_large", false),
        // One that is refused for now waits; so does what is to be taken back.
        "pending" | "aborted" => error("busy", true),
        _ => {
            let result = json!({"id": "0".repeat(26), "log": "topic/jobs/0", "seq": 1, "duplicate": false});
            Some(json!({"ok": true, "result": result}))
        }
    }
}

fn send(id: &str, body: &str) -> Value {
    // A topic of its own: what waits for an answer holds up what is behind it.
    json!({"to": format!("topic:of-{id}"), "body": body, "clientMessageId": id})
}

async fn until(client: &Client, id: &str, status: &str) {
    let so = async {
        loop {
            let (_, row) = client.get(&format!("/v1/outbox?clientMessageId={id}")).await;
            let row = &row["rows"][0];
            if row["status"] == status && row["attempts"] == 1 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, so).await.unwrap_or_else(|_| panic!("{id} is never {status}"));
}

#[tokio::test]
async fn every_cell_twice() {
    let (daemon, _dir) = start(promising(dedupe(7)).await, None).await;
    let client = Client::new(daemon.socket());
    for id in STATES {
        assert_eq!(client.post("/v1/send", &send(id, "x")).await.0, 202);
        until(&client, id, if id == "aborted" { "pending" } else { id }).await;
    }
    let (_, page) = client.get("/v1/outbox?clientMessageId=aborted").await;
    let path = format!("/v1/outbox/{}", page["rows"][0]["id"]);
    assert_eq!(client.call("DELETE", &path, &[], None).await.0, 204);
    for _ in 0..2 {
        for id in STATES {
            same(&client, id).await;
            other(&client, id).await;
        }
    }
    assert_eq!(client.post("/v1/send", &send("new", "x")).await.0, 202);
    daemon.stop().await;
}

/// The same request once more.
async fn same(client: &Client, id: &str) {
    let (status, same) = client.post("/v1/send", &send(id, "x")).await;
    let expected = match id {
        "pending" => (202, json!("queued"), json!(null)),
        "inflight" => (202, json!("inflight"), json!(null)),
        "done" => (200, json!("done"), json!(null)),
        other => (409, json!(409), json!(format!("outbox_{other}_fingerprint_match"))),
    };
    assert_eq!((status, same["status"].clone(), same["conflict"].clone()), expected, "{same}");
    match id {
        "done" => {
            assert_eq!((&same["duplicate"], &same["logSeq"]), (&json!(true), &json!(7)));
            assert_eq!(same["brokerMessageId"], "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        }
        "dead" => assert_eq!(same["reason"], "too_large: no"),
        _ => {}
    }
}

/// Another request under the same id.
async fn other(client: &Client, id: &str) {
    let (status, other) = client.post("/v1/send", &send(id, "y")).await;
    assert_eq!((status, &other["code"]), (409, &json!("idempotency_key_reused")));
    assert_eq!(other["conflict"], format!("outbox_{id}_fingerprint_mismatch"));
    assert_eq!(other["daemonFingerprintPrefix"].as_str().unwrap().len(), 16);
    assert_ne!(other["daemonFingerprintPrefix"], other["requestFingerprintPrefix"]);
    assert_eq!(other["brokerMessageId"].is_string(), id == "done");
}
