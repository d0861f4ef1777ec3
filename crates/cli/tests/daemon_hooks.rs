//! Hooks of a daemon with a real broker: shown what comes, once it is kept; bounded; off unless asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;
#[path = "common/until.rs"]
mod until;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use http::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_broker::{Broker, Config as BrokerConfig, StoreChoice};
use tenure_daemon::{Config, Daemon, MeshChoice};
use until::until;

struct House {
    home: TempDir,
    hooks: TempDir,
    broker: Broker,
    _store: TempDir,
}

async fn house() -> House {
    let store = TempDir::new().unwrap();
    let config = BrokerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Sqlite(store.path().to_owned()),
        ..BrokerConfig::ephemeral(60_000)
    };
    let broker = Broker::start(config).await.unwrap();
    House { home: TempDir::new().unwrap(), hooks: TempDir::new().unwrap(), broker, _store: store }
}

impl House {
    async fn daemon(&self, with_hooks: bool) -> (Daemon, Client) {
        let broker = format!("ws://{}", self.broker.addr());
        let mesh = MeshChoice { name: "default".parse().unwrap(), broker, authority: None };
        let mut config = Config::new(self.home.path().to_owned(), mesh, "laptop");
        config.hooks = with_hooks.then(|| self.hooks.path().to_owned());
        let daemon = Daemon::start(config).await.unwrap();
        let client = Client::new(daemon.socket());
        (daemon, client)
    }

    fn hook(&self, name: &str, script: &str) {
        let path = self.hooks.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.hooks.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn has_lines(&self, file: &str, count: usize) {
        until(async || (self.lines(file).len() >= count).then_some(())).await;
    }
}

/// The daemon's own address, once the broker knows it.
async fn address(client: &Client) -> String {
    let asked = until(async || Some(client.get("/v1/health").await.1).filter(|h| h["connected"] == true));
    format!("session:{}", asked.await["session"].as_str().unwrap())
}

async fn send(client: &Client, to: &str, body: &str) {
    assert_eq!(client.post("/v1/send", &json!({"to": to, "body": body})).await.0, 202);
}

async fn arrived(client: &Client, count: usize) -> Vec<Value> {
    let page = async || Some(client.get("/v1/inbox").await.1["messages"].as_array().unwrap().clone());
    until(async || page().await.filter(|letters| letters.len() >= count)).await
}

fn cursor(home: &Path) -> String {
    fs::read_to_string(home.join("hooks.cursor")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_shown_as_it_stands_in_the_inbox() {
    let house = house().await;
    // One write a line, so that lines of several do not mix.
    house.hook("on-message", r#"read line; printf '%s\n' "$line" >> seen"#);
    house.hook("on-dm", r#"read line; printf '%s %s\n' "$TENURE_HOOK" "$TENURE_MESH" >> kinds; exit 7"#);
    house.hook("on-topic-jobs", r#"printf '%s\n' "$TENURE_HOOK" >> kinds"#);
    let (_daemon, client) = house.daemon(true).await;
    let me = address(&client).await;
    send(&client, &me, "first").await;
    send(&client, &me, "second").await;
    house.has_lines("kinds", 2).await;
    assert_eq!(house.lines("kinds"), ["on-dm default", "on-dm default"], "a failing hook stops nothing");
    let mut seen: Vec<Value> =
        house.lines("seen").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    seen.sort_by_key(|letter| letter["id"].as_u64());
    assert_eq!(seen, arrived(&client, 2).await, "the same as GET /v1/inbox gives");
    until(async || (cursor(house.home.path()) == "2\n").then_some(())).await;

    let (status, made) = client.post("/v1/sessions", &json!({"name": "agent"})).await;
    assert_eq!(status, 200);
    let token = [("Tenure-Session", made["token"].as_str().unwrap())];
    let followed = client.call("POST", "/v1/topics/jobs/subscribe", &token, None).await;
    assert_eq!(followed.0, 200);
    until(async || {
        // Until it is followed at the broker too, nothing comes.
        send(&client, "topic:jobs", "third").await;
        house.lines("kinds").contains(&"on-topic-jobs".to_owned()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_eight_run_at_once() {
    let house = house().await;
    house.hook(
        "on-message",
        "mkdir -p running/$$; ls running | wc -l >> counts\n\
         while [ ! -e go ]; do sleep 0.05; done\n\
         rmdir running/$$; echo over >> over",
    );
    let (_daemon, client) = house.daemon(true).await;
    let me = address(&client).await;
    for n in 0..20 {
        send(&client, &me, &n.to_string()).await;
    }
    arrived(&client, 20).await;
    house.has_lines("counts", 8).await;
    fs::write(house.hooks.path().join("go"), "").unwrap();
    house.has_lines("over", 20).await;
    let counts: Vec<usize> =
        house.lines("counts").iter().map(|count| count.trim().parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().max()), (20, Some(&8)));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_unless_asked_for_and_what_came_meanwhile_is_not_new() {
    let house = house().await;
    house.hook("on-message", r#"read line; printf '%s\n' "$line" >> seen"#);
    let (daemon, client) = house.daemon(false).await;
    let me = address(&client).await;
    send(&client, &me, "before").await;
    arrived(&client, 1).await;
    daemon.stop().await;
    assert!(house.lines("seen").is_empty());
    let (_daemon, client) = house.daemon(true).await;
    address(&client).await;
    send(&client, &me, "after").await;
    house.has_lines("seen", 1).await;
    assert!(house.lines("seen")[0].contains("after") && !house.lines("seen")[0].contains("before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_over_when_the_daemon_stopped_is_shown_again() {
    let house = house().await;
    house
        .hook("on-message", "echo begun >> begun; while [ ! -e go ]; do sleep 0.05; done; echo over >> over");
    let (daemon, client) = house.daemon(true).await;
    let me = address(&client).await;
    send(&client, &me, "x").await;
    house.has_lines("begun", 1).await;
    daemon.stop().await;
    assert!(house.lines("over").is_empty(), "it was killed");
    fs::write(house.hooks.path().join("go"), "").unwrap();
    let (_daemon, _) = house.daemon(true).await;
    house.has_lines("over", 1).await;
    assert_eq!(house.lines("begun").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_others_could_have_put_there_is_not_run() {
    let house = house().await;
    house.hook("on-message", "echo ran >> ran");
    house.hook("on-dm", "echo ran >> dm");
    let shared = house.hooks.path().join("on-message");
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    let (_daemon, client) = house.daemon(true).await;
    let me = address(&client).await;
    send(&client, &me, "x").await;
    house.has_lines("dm", 1).await;
    assert!(house.lines("ran").is_empty());
}
