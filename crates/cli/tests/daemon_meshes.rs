//! One daemon in two meshes: what belongs to one is never sent to, shown to or decided by the other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;
#[path = "common/until.rs"]
mod until;

use http::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_broker::{Broker, Config as BrokerConfig, StoreChoice};
use tenure_daemon::{Config, Daemon, MeshChoice};
use until::until;

async fn token(client: &Client, mesh: &str) -> (String, String) {
    let (status, made) = client.post("/v1/sessions", &json!({"name": "agent", "mesh": mesh})).await;
    assert_eq!(status, 200, "{made}");
    (made["session"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_meshes_do_not_hear_each_other() {
    let (home, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let config = BrokerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Sqlite(store.path().to_owned()),
        ..BrokerConfig::ephemeral(60_000)
    };
    let broker = Broker::start(config).await.unwrap();
    let mesh =
        |name: &str, broker: String| MeshChoice { name: name.parse().unwrap(), broker, authority: None };
    let here = mesh("default", format!("ws://{}", broker.addr()));
    let mut config = Config::new(home.path().to_owned(), here, "laptop");
    // Its broker is away, so that everything for it stays here to be looked at.
    config.meshes.push(mesh("other", "ws://127.0.0.1:9".to_owned()));
    let daemon = Daemon::start(config).await.unwrap();
    let client = Client::new(daemon.socket());
    let health =
        until(async || Some(client.get("/v1/health").await.1).filter(|health| health["connected"] == true));
    let own = format!("session:{}", health.await["session"].as_str().unwrap());
    assert_eq!(client.get("/v1/health?mesh=other").await.1["connected"], false);

    // The same address and the same id are another message in another mesh.
    let send =
        |mesh: &str, body: &str| json!({"mesh": mesh, "to": own, "body": body, "clientMessageId": "a"});
    assert_eq!(client.post("/v1/send", &send("other", "of the other")).await.0, 202);
    let (status, sent) = client.post("/v1/send", &send("default", "of this one")).await;
    assert_eq!((status, &sent["status"]), (202, &json!("queued")), "{sent}");
    let letters = async |mesh: &str| {
        let (status, page) = client.get(&format!("/v1/inbox?mesh={mesh}")).await;
        assert_eq!(status, 200);
        page["messages"].as_array().unwrap().clone()
    };
    let kept = until(async || Some(letters("default").await).filter(|kept| !kept.is_empty())).await;
    let told = |letter: &Value| (letter["mesh"].clone(), letter["message"]["body"].clone());
    assert_eq!(kept.iter().map(told).collect::<Vec<_>>(), [(json!("default"), json!("of this one"))]);
    let (_, rows) = client.get("/v1/outbox?status=pending").await;
    let waiting: Vec<&Value> = rows["rows"].as_array().unwrap().iter().map(|row| &row["mesh"]).collect();
    assert_eq!(waiting, ["other"], "it waits for its own broker, and goes to no other");
    assert!(letters("other").await.is_empty());

    // One name is a session in each mesh, and a token speaks in its own alone.
    let ((this, _), (that, token)) = (token(&client, "default").await, token(&client, "other").await);
    assert_ne!(this, that);
    let headers = [("Tenure-Session", token.as_str())];
    let (status, problem) = client.call("POST", "/v1/send", &headers, Some(&send("default", "x"))).await;
    assert_eq!((status, &problem["pointer"]), (403, &json!("/mesh")), "{problem}");
    let (status, page) = client.call("GET", "/v1/inbox?mesh=default", &headers, None).await;
    assert_eq!(status, 403, "{page}");
    assert_eq!(client.get("/v1/inbox?mesh=third").await.0, 404);
    daemon.stop().await;
}
