//! A daemon with a real broker: what is handed over arrives once and in order, whoever is away meanwhile; what comes is
//! kept once and shown to whom it is for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;
#[path = "common/until.rs"]
mod until;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::{Client, request};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_broker::{Broker, Config as BrokerConfig, StoreChoice};
use tenure_client::{InboxChoice, Options, Session, Start, random_key};
use tenure_daemon::{Config, Daemon, MeshChoice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use until::{PATIENCE, until};

async fn broker(dir: &Path, listen: SocketAddr) -> Broker {
    let config = BrokerConfig {
        listen,
        store: StoreChoice::Sqlite(dir.to_owned()),
        ..BrokerConfig::ephemeral(60_000)
    };
    Broker::start(config).await.unwrap()
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn daemon(dir: &Path, broker: SocketAddr) -> (Daemon, Client) {
    let mesh =
        MeshChoice { name: "default".parse().unwrap(), broker: format!("ws://{broker}"), authority: None };
    let daemon = Daemon::start(Config::new(dir.to_owned(), mesh, "laptop")).await.unwrap();
    let client = Client::new(daemon.socket());
    (daemon, client)
}

async fn peer(broker: SocketAddr, name: &str) -> Session {
    let options = Options::new(&format!("ws://{broker}"), random_key().unwrap(), name).unwrap();
    let (session, events) = Session::connect(options.inbox(InboxChoice::Session)).await.unwrap();
    drop(events);
    session
}

async fn connected(client: &Client) {
    until(async || (client.get("/v1/health").await.1["connected"] == true).then_some(())).await;
}

async fn row(client: &Client, id: u64, status: &str) -> Value {
    let path = format!("/v1/outbox/{id}");
    until(async || Some(client.get(&path).await.1).filter(|row| row["status"] == status)).await
}

fn as_session(token: &str) -> [(&str, &str); 1] {
    [("Tenure-Session", token)]
}

async fn session(client: &Client, name: &str) -> (String, String) {
    let (status, made) = client.post("/v1/sessions", &json!({"name": name})).await;
    assert_eq!(status, 200);
    (made["session"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

async fn inbox(client: &Client, token: &str) -> Vec<String> {
    let (_, page) = client.call("GET", "/v1/inbox", &as_session(token), None).await;
    let body = |letter: &Value| letter["message"]["body"].as_str().unwrap().to_owned();
    page["messages"].as_array().unwrap().iter().map(body).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_over_while_the_broker_was_away_arrives_once_and_in_order() {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = broker(store.path(), any()).await;
    let addr = first.addr();
    let reader = peer(addr, "reader").await;
    let mut jobs = reader.subscribe("jobs").group("all").from(Start::Earliest).await.unwrap();
    first.stop("test").await;
    let (running, client) = daemon(home.path(), addr).await;
    for n in 0..20 {
        let body = json!({"to": "topic:jobs", "body": n.to_string(), "clientMessageId": format!("id {n}")});
        assert_eq!(client.post("/v1/send", &body).await.0, 202);
    }
    running.stop().await;
    let (_running, client) = daemon(home.path(), addr).await;
    let _second = broker(store.path(), addr).await;
    for n in 20..40 {
        let body = json!({"to": "topic:jobs", "body": n.to_string(), "clientMessageId": format!("id {n}")});
        assert_eq!(client.post("/v1/send", &body).await.0, 202);
    }
    for n in 0..40 {
        let message = tokio::time::timeout(PATIENCE, jobs.next_message()).await.unwrap().unwrap();
        assert_eq!(
            (message.text(), message.client_message_id.as_str()),
            (Some(n.to_string().as_str()), format!("id {n}").as_str())
        );
        message.ack().await.unwrap();
    }
    let last = row(&client, 40, "done").await;
    assert_eq!((&last["logSeq"], last["brokerMessageId"].is_string()), (&json!(40), true));
    let body = json!({"to": "topic:jobs", "body": "7", "clientMessageId": "id 7"});
    let (status, again) = client.post("/v1/send", &body).await;
    assert_eq!((status, &again["duplicate"], &again["logSeq"]), (200, &json!(true), &json!(8)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_will_not_have_is_dead_until_a_person_sends_it_anew() {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let broker = broker(store.path(), any()).await;
    let (_running, client) = daemon(home.path(), broker.addr()).await;
    let nobody = format!("session:{}", "ab".repeat(32));
    let body = json!({"to": nobody, "body": "x", "clientMessageId": "a"});
    assert_eq!(client.post("/v1/send", &body).await.0, 202);
    let dead = row(&client, 1, "dead").await;
    assert!(dead["lastError"].as_str().unwrap().starts_with("no_such_session"), "{dead}");
    let (status, problem) = client.post("/v1/send", &body).await;
    assert_eq!((status, &problem["conflict"]), (409, &json!("outbox_dead_fingerprint_match")));
    let (status, anew) = client.post("/v1/outbox/1/requeue", &json!({"newClientMessageId": "b"})).await;
    assert_eq!((status, &anew["id"]), (202, &json!(2)), "the broker was asked, and does not know it");
    row(&client, 2, "dead").await;
    assert_eq!(row(&client, 1, "aborted").await["supersededBy"], 2);
    let receiver = peer(broker.addr(), "receiver").await;
    connected(&client).await;
    let (status, problem) = client.post("/v1/send", &json!({"to": "nobody", "body": "x"})).await;
    assert_eq!((status, &problem["pointer"]), (404, &json!("/to")));
    assert!(
        problem["candidates"].as_array().unwrap().iter().any(|one| one["name"] == "receiver"),
        "{problem}"
    );
    let (status, _) = client.post("/v1/send", &json!({"to": "receiver", "body": "by name"})).await;
    assert_eq!(status, 202);
    let message = receiver.inbox().unwrap().next_message().await.unwrap();
    assert_eq!(message.text(), Some("by name"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_kept_and_a_stream_goes_on_where_it_was() {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let broker = broker(store.path(), any()).await;
    let (running, client) = daemon(home.path(), broker.addr()).await;
    connected(&client).await;
    let (_, health) = client.get("/v1/health").await;
    assert_eq!(health["maxAgeHours"], 648, "{health}");
    let (own, member) = (health["session"].as_str().unwrap(), health["member"].as_str().unwrap());
    let sender = peer(broker.addr(), "sender").await;
    sender.send(tenure_client::To(format!("session:{own}").parse().unwrap()), "one").await.unwrap();
    sender.send(tenure_client::To(format!("member:{member}").parse().unwrap()), "two").await.unwrap();
    let all = until(async || {
        let (_, page) = client.get("/v1/inbox").await;
        Some(page["messages"].as_array().unwrap().clone()).filter(|all| all.len() == 2)
    })
    .await;
    let status = |id: &str| {
        let sender = sender.clone();
        let params = json!({"clientMessageIds": [id]});
        async move {
            let method = tenure_client::proto::method::Method::SendStatus;
            let answer: Value = sender.request(method, params).await.unwrap();
            answer["statuses"][0]["state"].clone()
        }
    };
    for letter in &all {
        let id = letter["message"]["clientMessageId"].as_str().unwrap().to_owned();
        until(async || (status(&id).await == "delivered").then_some(())).await;
    }
    let (first, second) = (all[0]["id"].as_u64().unwrap(), all[1]["id"].as_u64().unwrap());
    let (_, marked) = client.post("/v1/inbox/seen", &json!({"ids": [first]})).await;
    assert_eq!(marked["marked"], 1);
    let (_, unseen) = client.get("/v1/inbox?unseen=true").await;
    assert_eq!(unseen["messages"].as_array().unwrap().len(), 1);

    let mut stream = client.open().await;
    let last = first.to_string();
    stream.write_all(&request("GET", "/v1/events", &[("Last-Event-ID", &last)], b"")).await.unwrap();
    let mut heard = String::new();
    let mut hear = async |what: String| {
        let hearing = async {
            while !heard.contains(&what) {
                let mut bytes = [0u8; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                assert!(read > 0, "the stream ended: {heard}");
                heard += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        tokio::time::timeout(PATIENCE, hearing).await.expect("never heard");
        heard.clone()
    };
    hear(format!("id: {second}\n")).await;
    sender.send(tenure_client::To(format!("session:{own}").parse().unwrap()), "three").await.unwrap();
    let heard = hear("\"three\"".to_owned()).await;
    assert!(heard.contains("event: connected") && !heard.contains(&format!("id: {first}\n")), "{heard}");
    running.stop().await;
    let (_running, client) = daemon(home.path(), broker.addr()).await;
    connected(&client).await;
    let (_, page) = client.get("/v1/inbox").await;
    assert_eq!(page["messages"].as_array().unwrap().len(), 3, "nothing comes twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn local_sessions_do_not_hear_what_is_not_theirs() {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let broker = broker(store.path(), any()).await;
    let (running, client) = daemon(home.path(), broker.addr()).await;
    let ((alice, a), (bob, b)) = (session(&client, "alice").await, session(&client, "bob").await);
    for token in [&a, &b] {
        until(async || {
            let (_, health) = client.call("GET", "/v1/health", &as_session(token), None).await;
            (health["connected"] == true).then_some(())
        })
        .await;
        let (status, _) = client.call("POST", "/v1/topics/news/subscribe", &as_session(token), None).await;
        assert_eq!(status, 200);
    }
    // A topic is followed once its group is there; what is posted then is seen.
    let lookout = peer(broker.addr(), "lookout").await;
    until(async || {
        let groups: Value =
            lookout.request(tenure_client::proto::method::Method::TopicsList, json!({})).await.unwrap();
        (groups.to_string().matches("daemon.").count() >= 2).then_some(())
    })
    .await;
    let send = async |token: &str, to: &str, body: &str| {
        let request = json!({"to": to, "body": body});
        let (status, _) = client.call("POST", "/v1/send", &as_session(token), Some(&request)).await;
        assert_eq!(status, 202);
    };
    send(&a, "topic:news", "posted by alice").await;
    send(&a, &format!("session:{bob}"), "for bob").await;
    send(&b, &format!("session:{alice}"), "for alice").await;
    send(&a, &format!("session:{alice}"), "a note to myself").await;
    let sorted = async |token: &str| {
        let mut all = inbox(&client, token).await;
        all.sort();
        all
    };
    until(async || (sorted(&b).await == ["for bob", "posted by alice"]).then_some(())).await;
    until(async || (sorted(&a).await == ["a note to myself", "for alice"]).then_some(())).await;
    let (_, own) = client.get("/v1/inbox").await;
    assert_eq!(own["messages"], json!([]), "the daemon's own session got nothing");
    let (status, _) = client.call("DELETE", &format!("/v1/sessions/{alice}"), &as_session(&a), None).await;
    assert_eq!(status, 204);
    until(async || (client.get("/v1/health").await.1["sessions"] == 2).then_some(())).await;
    running.stop().await;
}

/// Eight programs send, each again until it is answered 2xx, while broker and daemon come and go.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_answered_is_missing_or_doubled_while_both_come_and_go() {
    const PROGRAMS: usize = 8;
    const EACH: usize = 25;
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut running_broker = broker(store.path(), any()).await;
    let addr = running_broker.addr();
    let reader = peer(addr, "reader").await;
    let mut jobs = reader.subscribe("jobs").group("all").from(Start::Earliest).await.unwrap();
    let (mut running, client) = daemon(home.path(), addr).await;
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|program| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    let id = format!("{program} {n}");
                    let body = json!({"to": "topic:jobs", "body": id, "clientMessageId": id});
                    while !matches!(client.try_post("/v1/send", &body).await, Some((200 | 202, _))) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            })
        })
        .collect();
    for _ in 0..3 {
        running_broker.stop("test").await;
        running.stop().await;
        running_broker = broker(store.path(), addr).await;
        (running, _) = daemon(home.path(), addr).await;
    }
    for program in programs {
        program.await.unwrap();
    }
    let mut heard: Vec<Vec<usize>> = vec![Vec::new(); PROGRAMS];
    while heard.iter().map(Vec::len).sum::<usize>() < PROGRAMS * EACH {
        let message =
            tokio::time::timeout(PATIENCE, jobs.next_message()).await.expect("something is missing").unwrap();
        let text = message.text().unwrap().to_owned();
        let (program, n) = text.split_once(' ').unwrap();
        heard[program.parse::<usize>().unwrap()].push(n.parse().unwrap());
        message.ack().await.unwrap();
    }
    let all: Vec<usize> = (0..EACH).collect();
    assert!(heard.iter().all(|one| *one == all), "missing, doubled or out of order: {heard:?}");
    until(async || (client.get("/v1/health").await.1["outbox"]["pending"] == 0).then_some(())).await;
    running.stop().await;
    running_broker.stop("test").await;
}
