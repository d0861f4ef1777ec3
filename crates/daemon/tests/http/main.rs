//! The daemon's HTTP through real sockets, without a broker: what is taken, what is refused and how, who may call.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod doors;
mod sessions;
mod slow;

use serde_json::{Value, json};
use tenure_daemon::outbox::Cap;
use tenure_daemon::{Config, Daemon, MeshChoice, StartError};

use client::Client;

/// Nobody listens there.
const NOWHERE: &str = "ws://127.0.0.1:9";

struct House {
    daemon: Daemon,
    client: Client,
    dir: tempfile::TempDir,
}

fn config(dir: &tempfile::TempDir) -> Config {
    let mesh = MeshChoice { name: "default".parse().unwrap(), broker: NOWHERE.to_owned(), authority: None };
    Config::new(dir.path().to_owned(), mesh, "laptop")
}

async fn house_with(change: impl FnOnce(&mut Config)) -> House {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir);
    change(&mut config);
    let daemon = Daemon::start(config).await.unwrap();
    let client = Client::new(daemon.socket());
    House { daemon, client, dir }
}

async fn house() -> House {
    house_with(|_| {}).await
}

fn send(id: &str, body: &str) -> Value {
    json!({"to": "topic:jobs", "body": body, "clientMessageId": id})
}

#[tokio::test]
async fn what_is_taken_is_on_disk_and_there_after_a_restart() {
    let house = house().await;
    let (status, sent) = house.client.post("/v1/send", &send("a", "x")).await;
    assert_eq!((status, &sent["status"], &sent["clientMessageId"]), (202, &json!("queued"), &json!("a")));
    let (status, fresh) = house.client.post("/v1/send", &json!({"to": "topic:jobs", "body": "y"})).await;
    assert_eq!((status, fresh["clientMessageId"].as_str().unwrap().len()), (202, 26), "a ULID");
    let key = [("Idempotency-Key", "from header")];
    let (_, sent) = house.client.call("POST", "/v1/send", &key, Some(&send("from body", "z"))).await;
    assert_eq!(sent["clientMessageId"], "from header");
    let (_, page) = house.client.get("/v1/outbox?status=pending").await;
    assert_eq!(page["rows"].as_array().unwrap().len(), 3);
    let config = config(&house.dir);
    house.daemon.stop().await;
    let daemon = Daemon::start(config).await.unwrap();
    let (_, row) = Client::new(daemon.socket()).get("/v1/outbox/1").await;
    assert_eq!(
        (&row["status"], &row["to"], &row["attempts"]),
        (&json!("pending"), &json!("topic:jobs"), &json!(0))
    );
}

#[tokio::test]
async fn a_refused_request_consumes_nothing_and_names_the_field() {
    let house = house().await;
    let b64 = "x".repeat(1_100_000);
    let cases = [
        (json!({"to": "topic:jobs", "clientMessageId": "a"}), 400, json!("/body")),
        (
            json!({"to": "topic:jobs", "body": "x", "bodyB64": "", "clientMessageId": "a"}),
            400,
            json!("/bodyB64"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "meta": {"n": 1u64 << 60}}),
            400,
            json!("/meta"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "replyTo": "\0"}),
            400,
            json!("/replyTo"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "ttlMs": 5, "delayMs": 6}),
            422,
            json!("/delayMs"),
        ),
        (json!({"to": "topic:jobs", "body": 7, "clientMessageId": "a"}), 400, json!("/body")),
        (json!({"to": "topic:Bad Name", "body": "x", "clientMessageId": "a"}), 400, json!("/to")),
        (json!({"body": "x", "clientMessageId": "a"}), 400, json!("/to")),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "run:a"}),
            400,
            json!("/clientMessageId"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "priority": "soon"}),
            400,
            json!("/priority"),
        ),
        (json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "meta": [1]}), 400, json!("/meta")),
        (json!({"to": "topic:jobs", "bodyB64": "?", "clientMessageId": "a"}), 400, json!("/bodyB64")),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "fallback": "member"}),
            400,
            json!("/fallback"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "key": "k".repeat(300)}),
            400,
            json!("/key"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "mesh": "other"}),
            404,
            json!("/mesh"),
        ),
        (
            json!({"to": "topic:jobs", "body": "x", "clientMessageId": "a", "session": "ab".repeat(32)}),
            403,
            json!("/session"),
        ),
        // A slip of the pen in the name of the id would make every retry another message.
        (json!({"to": "topic:jobs", "body": "x", "clientMessageID": "a"}), 400, json!("/clientMessageID")),
        (json!({"to": "alice", "body": "x", "clientMessageId": "a"}), 503, json!("/to")),
        (json!({"to": "topic:jobs", "body": b64, "clientMessageId": "a"}), 413, Value::Null),
    ];
    for (body, expected, pointer) in cases {
        let (status, problem) = house.client.post("/v1/send", &body).await;
        let shown: String = body.to_string().chars().take(120).collect();
        assert_eq!((status, &problem["pointer"]), (expected, &pointer), "{shown}: {problem}");
        assert_eq!(problem["status"], expected);
        assert!(problem["code"].is_string() && problem["detail"].is_string(), "{problem}");
        let says = problem["detail"].as_str().unwrap().contains("base64");
        assert!(expected != 413 || says, "what fits straight to the broker may not fit here: {problem}");
    }
    let (status, _) =
        house.client.raw("POST", "/v1/send", &[("Content-Type", "application/json")], b"{").await;
    assert_eq!(status, 400);
    let twice = br#"{"to":"topic:jobs","body":"x","to":"topic:jobs","clientMessageId":"a"}"#;
    let (status, problem) =
        house.client.raw("POST", "/v1/send", &[("Content-Type", "application/json")], twice).await;
    assert_eq!(status, 400);
    assert!(problem.contains(r#""pointer":"/to""#), "{problem}");
    let (status, problem) = house.client.get("/v1/sent/%ff").await;
    assert_eq!((status, &problem["code"]), (400, &json!("bad_request")), "a problem, and not a line of text");
    let (status, _) = house.client.raw("POST", "/v1/send", &[("Content-Type", "text/plain")], b"{}").await;
    assert_eq!(status, 415);
    for path in ["/v1/send?mesh=none", "/v1/send?clientMessageId=a", "/v1/sessions?mesh=none"] {
        let (status, problem) = house.client.post(path, &send("a", "x")).await;
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains("there is no query parameter"),
            "{path}: {problem}"
        );
    }
    assert_eq!(house.client.get("/v1/version?after=1").await.0, 400);
    assert_eq!(house.client.get("/v1/inbox?after=1").await.0, 200);
    let (status, sent) = house.client.post("/v1/send", &send("a", "x")).await;
    assert_eq!((status, &sent["status"]), (202, &json!("queued")), "the id was never used");
    let (_, page) = house.client.get("/v1/outbox").await;
    assert_eq!(page["rows"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_full_outbox_is_507_and_still_answers_retries() {
    let house = house_with(|config| config.outbox_cap = Cap { bytes: 60_000 }).await;
    let mut last = 202;
    for n in 0..100 {
        let (status, problem) =
            house.client.post("/v1/send", &send(&n.to_string(), &"x".repeat(2_000))).await;
        last = status;
        if status != 202 {
            assert_eq!((status, &problem["code"]), (507, &json!("insufficient_storage")));
            break;
        }
    }
    assert_eq!(last, 507);
    let (status, _) = house.client.post("/v1/send", &send("0", &"x".repeat(2_000))).await;
    assert_eq!(status, 202);
    let (_, health) = house.client.get("/v1/health").await;
    assert_eq!(health["outbox"]["space"], "full");
}

#[tokio::test]
async fn a_row_is_requeued_and_dropped() {
    let house = house().await;
    house.client.post("/v1/send", &send("a", "x")).await;
    let (status, problem) = house.client.post("/v1/outbox/1/requeue", &json!({"newClientId": "b"})).await;
    assert_eq!((status, &problem["pointer"]), (400, &json!("/newClientId")), "{problem}");
    let (status, anew) =
        house.client.post("/v1/outbox/1/requeue", &json!({"newClientMessageId": "b", "body": "y"})).await;
    assert_eq!((status, &anew["id"], &anew["clientMessageId"]), (202, &json!(2), &json!("b")));
    let (_, old) = house.client.get("/v1/outbox/1").await;
    assert_eq!((&old["status"], &old["supersededBy"]), (&json!("aborted"), &json!(2)));
    assert_eq!(house.client.post("/v1/outbox/1/requeue", &json!({})).await.0, 409);
    assert_eq!(house.client.call("DELETE", "/v1/outbox/2", &[], None).await.0, 204);
    assert_eq!(house.client.call("DELETE", "/v1/outbox/2", &[], None).await.0, 409);
    assert_eq!(house.client.call("DELETE", "/v1/outbox/9", &[], None).await.0, 404);
    assert_eq!(house.client.get("/v1/outbox/none").await.0, 404);
    assert_eq!(house.client.get("/v1/outbox?status=lost").await.0, 400);
    let (status, problem) = house.client.post("/v1/send", &send("b", "y")).await;
    assert_eq!((status, &problem["conflict"]), (409, &json!("outbox_aborted_fingerprint_match")));
}

#[tokio::test]
async fn a_row_is_not_requeued_under_an_id_that_is_used() {
    let house = house().await;
    house.client.post("/v1/send", &send("a", "x")).await;
    house.client.post("/v1/send", &send("b", "y")).await;
    let anew = json!({"newClientMessageId": "b"});
    let (status, problem) = house.client.post("/v1/outbox/1/requeue", &anew).await;
    assert_eq!((status, &problem["code"]), (409, &json!("idempotency_key_reused")));
    assert_eq!(problem["conflict"], "outbox_pending_fingerprint_mismatch");
    assert_eq!(problem["pointer"], "/newClientMessageId");
    let prefix = |name: &str| problem[name].as_str().unwrap_or_default().len();
    assert_eq!(
        (prefix("daemonFingerprintPrefix"), prefix("requestFingerprintPrefix")),
        (16, 16),
        "{problem}"
    );
    assert_ne!(problem["daemonFingerprintPrefix"], problem["requestFingerprintPrefix"]);
    let (_, row) = house.client.get("/v1/outbox/1").await;
    assert_eq!(row["status"], "pending", "nothing has become of it");
}

#[tokio::test]
async fn what_needs_the_broker_says_that_it_cannot_be_reached() {
    let house = house().await;
    for path in ["/v1/peers", "/v1/services", "/v1/history?log=topic/jobs/0"] {
        let (status, problem) = house.client.get(path).await;
        assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{path}");
    }
    assert_eq!(house.client.post("/v1/profile", &json!({"status": "working"})).await.0, 503);
    let run = json!({"to": format!("member:{}", "ab".repeat(32)), "input": 1, "idempotencyKey": "k"});
    assert_eq!(house.client.post("/v1/runs", &run).await.0, 503);
    let (status, health) = house.client.get("/v1/health").await;
    assert_eq!((status, &health["connected"], &health["mesh"]), (200, &json!(false), &json!("default")));
    assert_eq!(house.client.get("/v1/version").await.1["api"], "v1");
    let (status, text) = house.client.raw("GET", "/v1/metrics", &[], b"").await;
    assert!(status == 200 && text.contains("tenure_daemon_outbox_pending 0"), "{text}");
}

#[tokio::test]
async fn it_says_what_it_is_and_how_far_behind() {
    let house = house().await;
    let (_, version) = house.client.get("/v1/version").await;
    let known = env!("CARGO_PKG_VERSION");
    assert_eq!(
        (&version["version"], &version["protocolRange"]),
        (&json!(known), &json!({"min": 1, "max": 1}))
    );
    assert!(
        version["schema"]["outbox"].as_u64() >= Some(1) && version["schema"]["inbox"].as_u64() >= Some(1)
    );
    assert_eq!(
        (&version["build"]["os"], &version["requires"]["dedupe"]),
        (&json!(std::env::consts::OS), &json!(2))
    );
    let (_, idle) = house.client.get("/v1/health").await;
    assert_eq!(idle["outbox"]["drainLagMs"], Value::Null, "nothing waits: {idle}");
    for id in ["a", "b"] {
        assert_eq!(house.client.post("/v1/send", &send(id, "x")).await.0, 202);
    }
    assert_eq!(house.client.call("DELETE", "/v1/outbox/2", &[], None).await.0, 204);
    let lag = async || house.client.get("/v1/health").await.1["outbox"]["drainLagMs"].as_u64().unwrap();
    let first = lag().await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(lag().await > first, "it grows while the broker is away");
    let (_, text) = house.client.raw("GET", "/v1/metrics", &[], b"").await;
    for line in [
        "tenure_daemon_outbox_rows{status=\"pending\"} 1",
        "tenure_daemon_outbox_rows{status=\"inflight\"} 0",
        "tenure_daemon_outbox_rows{status=\"done\"} 0",
        "tenure_daemon_outbox_rows{status=\"aborted\"} 1",
        "tenure_daemon_schema_version{file=\"outbox\"} ",
        "tenure_daemon_outbox_drain_lag_seconds ",
        "tenure_daemon_outbox_oldest_dead_seconds 0",
        "tenure_daemon_outbox_last_done_timestamp_seconds 0",
        "tenure_daemon_connected{mesh=\"default\"} 0",
        "tenure_daemon_disk_full 0",
        &format!("tenure_daemon_build_info{{version=\"{known}\",protocol=\"1\""),
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
}

#[tokio::test]
async fn the_document_names_every_route() {
    let house = house().await;
    let (status, document) = house.client.get("/v1/openapi.json").await;
    assert_eq!(status, 200);
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/send",
        "/v1/inbox",
        "/v1/inbox/seen",
        "/v1/outbox",
        "/v1/outbox/{id}",
        "/v1/outbox/{id}/requeue",
        "/v1/peers",
        "/v1/profile",
        "/v1/topics/{topic}/subscribe",
        "/v1/topics/{topic}/unsubscribe",
        "/v1/history",
        "/v1/runs",
        "/v1/services",
        "/v1/events",
        "/v1/sessions",
        "/v1/sessions/{session}",
        "/v1/health",
        "/v1/version",
        "/v1/metrics",
    ] {
        assert!(paths.contains_key(path), "{path} is not documented");
    }
    let methods = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let parameters = methods.flat_map(|method| method["parameters"].as_array().cloned().unwrap_or_default());
    for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
        let path = format!("/v1/nothing?{}=x", parameter["name"].as_str().unwrap());
        assert_eq!(house.client.get(&path).await.0, 404, "{path} is no unknown name");
    }
    assert!(document["components"]["schemas"]["SendRequest"]["properties"]["to"].is_object());
    assert_eq!(serde_json::to_value(tenure_daemon::document()).unwrap(), document);
}

#[tokio::test]
async fn a_second_daemon_is_told_who_is_the_first() {
    let house = house().await;
    let refused = Daemon::start(config(&house.dir)).await.unwrap_err();
    assert!(matches!(refused, StartError::Home(_)));
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    assert_eq!(house.client.get("/v1/version").await.0, 200, "the first goes on");
}

#[tokio::test]
async fn a_damaged_outbox_refuses_to_start_and_a_damaged_inbox_does_not() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("inbox.db"), vec![1u8; 5_000]).unwrap();
    let daemon = Daemon::start(config(&dir)).await.unwrap();
    assert!(daemon.put_aside().is_some());
    daemon.stop().await;
    std::fs::write(dir.path().join("outbox.db"), vec![1u8; 5_000]).unwrap();
    let refused = Daemon::start(config(&dir)).await.unwrap_err().to_string();
    assert!(refused.contains("tenure daemon recover"), "{refused}");
}

#[tokio::test]
async fn rows_of_a_mesh_that_was_taken_out_are_told_of() {
    let other = MeshChoice { name: "other".parse().unwrap(), broker: NOWHERE.to_owned(), authority: None };
    let house = house_with(|config| config.meshes.push(other)).await;
    let mut there = send("a", "x");
    there["mesh"] = json!("other");
    assert_eq!(house.client.post("/v1/send", &there).await.0, 202);
    assert_eq!(house.client.get("/v1/status").await.1["outbox"]["stranded"], json!([]));
    let config = config(&house.dir);
    house.daemon.stop().await;
    let daemon = Daemon::start(config).await.unwrap();
    let client = Client::new(daemon.socket());
    assert_eq!(client.get("/v1/status").await.1["outbox"]["stranded"], json!(["other"]));
    let (_, found) = client.get("/v1/outbox?clientMessageId=a").await;
    assert_eq!(found["rows"][0]["mesh"], "other", "its id is found, whatever its mesh");
    assert_eq!(client.call("DELETE", "/v1/outbox/1", &[], None).await.0, 204);
    assert_eq!(client.get("/v1/status").await.1["outbox"]["stranded"], json!([]));
}
