//! A daemon whose disk, sessions or meshes fail for a while, or one at a time: what is whole goes on, and what was promised
//! is kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;
#[path = "common/until.rs"]
mod until;

use futures_util::FutureExt;
use http::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_broker::{Broker, Config as BrokerConfig, StoreChoice};
use tenure_daemon::{Config, Daemon, MeshChoice};
use until::until;

/// A broker, a daemon that is with it, and where they keep things.
struct House {
    daemon: Daemon,
    client: Client,
    broker: Broker,
    home: TempDir,
    _store: TempDir,
}

async fn house_with(change: impl FnOnce(&mut Config)) -> House {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = BrokerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Sqlite(store.path().to_owned()),
        ..BrokerConfig::ephemeral(60_000)
    };
    let broker = Broker::start(config).await.unwrap();
    let mesh = MeshChoice {
        name: "default".parse().unwrap(),
        broker: format!("ws://{}", broker.addr()),
        authority: None,
    };
    let mut config = Config::new(home.path().to_owned(), mesh, "laptop");
    change(&mut config);
    let daemon = Daemon::start(config).await.unwrap();
    let client = Client::new(daemon.socket());
    until(async || connected(&client).await).await;
    House { daemon, client, broker, home, _store: store }
}

async fn house() -> House {
    house_with(|_| {}).await
}

async fn connected(client: &Client) -> Option<()> {
    (client.get("/v1/health").await.1["connected"] == true).then_some(())
}

/// The token of a session called `name`.
async fn token(client: &Client, name: &str) -> String {
    let (status, made) = client.post("/v1/sessions", &json!({"name": name})).await;
    assert_eq!(status, 200, "{made}");
    made["token"].as_str().unwrap().to_owned()
}

async fn send_as(client: &Client, token: &str, id: &str) -> (u16, Value) {
    let message = json!({"to": "topic:jobs", "body": "x", "clientMessageId": id});
    client.call("POST", "/v1/send", &[("Tenure-Session", token)], Some(&message)).await
}

/// Waits until the broker has what was sent under this id.
async fn arrives(client: &Client, id: &str) -> Value {
    let row = async || {
        let (_, page) = client.get("/v1/outbox").await;
        let mut rows = page["rows"].as_array().unwrap().iter();
        rows.find(|row| row["clientMessageId"] == id && row["status"] == "done").cloned()
    };
    until(row).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_began_while_the_disk_was_held_sends_when_it_is_not() {
    let house = house().await;
    let held = rusqlite::Connection::open(house.home.path().join("outbox.db")).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    let token = token(&house.client, "agent").await;
    // Twice, one after the other: by the end of the second the session's drain has asked the disk in vain.
    for _ in 0..2 {
        let (status, problem) = send_as(&house.client, &token, "a").await;
        assert_eq!((status, &problem["retryable"]), (503, &json!(true)), "{problem}");
    }
    held.execute_batch("ROLLBACK").unwrap();
    assert_eq!(send_as(&house.client, &token, "a").await.0, 202);
    arrives(&house.client, "a").await;
    house.daemon.stop().await;
    house.broker.stop("the test is over").await;
}

/// What the daemon says of the session called `name`.
async fn session(client: &Client, name: &str) -> Value {
    let (_, status) = client.get("/v1/status").await;
    let mut sessions = status["sessions"].as_array().unwrap().iter();
    sessions.find(|session| session["name"] == name).cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_taken_over_is_taken_up_again_when_it_is_used() {
    let house = house().await;
    let token = token(&house.client, "reviewer").await;
    until(async || (session(&house.client, "reviewer").await["connected"] == true).then_some(())).await;
    let mut other = tokio::process::Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["inbox", "--as", "reviewer", "--direct", "--follow"])
        .env("TENURE_HOME", house.home.path())
        .env("TENURE_BROKER", format!("ws://{}", house.broker.addr()))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lost = until(async || {
        Some(session(&house.client, "reviewer").await).filter(|session| session["connected"] == false)
    });
    assert_eq!(lost.await["reason"], "another process took this session over");
    assert_eq!(send_as(&house.client, &token, "a").await.0, 202);
    arrives(&house.client, "a").await;
    let ended = tokio::time::timeout(until::PATIENCE, other.wait()).await.expect("two have it").unwrap();
    assert_eq!(ended.code(), Some(3), "one key is one session");
    let back = session(&house.client, "reviewer").await;
    assert_eq!((&back["connected"], &back["reason"]), (&json!(true), &Value::Null));
    house.daemon.stop().await;
    house.broker.stop("the test is over").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mesh_that_fails_leaves_the_others_alone() {
    let house = house_with(|config| {
        let broker = config.meshes[0].broker.clone();
        config.meshes.push(MeshChoice { name: "second".parse().unwrap(), broker, authority: None });
    })
    .await;
    let second = async || house.client.get("/v1/status").await.1["meshes"][1].clone();
    let why = until(async || {
        second().await["reason"].as_str().map(str::to_owned).filter(|why| why.contains("for good"))
    });
    assert!(why.await.contains("no mesh second"), "{}", second().await);
    let message =
        |mesh: &str| json!({"mesh": mesh, "to": "topic:jobs", "body": "x", "clientMessageId": mesh});
    assert_eq!(house.client.post("/v1/send", &message("second")).await.0, 202, "it waits on the disk");
    assert_eq!(house.client.post("/v1/send", &message("default")).await.0, 202);
    arrives(&house.client, "default").await;
    assert_eq!(house.daemon.failed().now_or_never(), None, "a daemon ends with its last mesh");
    house.daemon.stop().await;
    house.broker.stop("the test is over").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lived_too_short_for_its_broker_is_dead_and_never_arrives() {
    let house = house().await;
    // A mesh whose broker comes late.
    let (home, late) = (TempDir::new().unwrap(), house.broker.addr());
    let mesh = |broker: String| MeshChoice { name: "default".parse().unwrap(), broker, authority: None };
    let config = |broker: String| Config::new(home.path().to_owned(), mesh(broker), "phone");
    let daemon = Daemon::start(config("ws://127.0.0.1:9".to_owned())).await.unwrap();
    let client = Client::new(daemon.socket());
    let message =
        |id: &str, ttl: u64| json!({"to": "topic:jobs", "body": id, "clientMessageId": id, "ttlMs": ttl});
    assert_eq!(client.post("/v1/send", &message("short", 1)).await.0, 202);
    assert_eq!(client.post("/v1/send", &message("long", 600_000)).await.0, 202);
    daemon.stop().await;
    let daemon = Daemon::start(config(format!("ws://{late}"))).await.unwrap();
    let client = Client::new(daemon.socket());
    arrives(&client, "long").await;
    let (_, short) = client.get("/v1/outbox/1").await;
    assert_eq!((&short["status"], &short["attempts"]), (&json!("dead"), &json!(0)), "{short}");
    assert!(short["lastError"].as_str().unwrap().starts_with("expired"), "{short}");
    daemon.stop().await;
    house.daemon.stop().await;
    house.broker.stop("the test is over").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_row_is_not_sent_anew_in_another_name() {
    let house = house().await;
    let token = token(&house.client, "agent").await;
    let headers = [("Tenure-Session", token.as_str())];
    let nobody = json!({"to": format!("session:{}", "ab".repeat(32)), "body": "x"});
    assert_eq!(house.client.call("POST", "/v1/send", &headers, Some(&nobody)).await.0, 202);
    let row = async || house.client.get("/v1/outbox/1").await.1;
    let dead = until(async || Some(row().await).filter(|row| row["status"] == "dead")).await;
    let agent = format!("/v1/sessions/{}", dead["session"].as_str().unwrap());
    assert_eq!(house.client.call("DELETE", &agent, &headers, None).await.0, 204);
    // It is gone when it is not counted any more.
    until(async || (house.client.get("/v1/health").await.1["sessions"] == 1).then_some(())).await;
    let (status, problem) = house.client.post("/v1/outbox/1/requeue", &json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("session was let go"), "{problem}");
    self::token(&house.client, "agent").await;
    let (status, anew) = house.client.post("/v1/outbox/1/requeue", &json!({})).await;
    assert_eq!(status, 202, "its session is back: {anew}");
    let (_, anew) = house.client.get("/v1/outbox/2").await;
    assert_eq!(anew["session"], dead["session"]);
    house.daemon.stop().await;
    house.broker.stop("the test is over").await;
}
