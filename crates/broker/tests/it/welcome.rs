//! The good case, field by field: challenge, hello's result, the small methods.

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::keys::{hex, unix_ms};
use crate::common::{LONG, Sock, Who, broker, join};

fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn recent(value: &Value) -> bool {
    value.as_u64().is_some_and(|ms| ms.abs_diff(unix_ms()) < 60_000)
}

#[tokio::test]
async fn the_challenge_is_a_fresh_nonce() {
    let broker = broker(LONG).await;
    let mut nonces = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let sock = Sock::open(broker.addr()).await;
        assert_eq!(fields(&sock.challenge), ["broker", "nonce", "ts"]);
        let nonce = sock.challenge["nonce"].as_str().unwrap();
        assert_eq!(BASE64URL_NOPAD.decode(nonce.as_bytes()).expect("base64url, unpadded").len(), 32);
        assert!(recent(&sock.challenge["ts"]), "{}", sock.challenge);
        assert!(!sock.challenge["broker"].as_str().unwrap().is_empty());
        assert!(nonces.insert(nonce.to_owned()), "a nonce twice");
    }
}

#[tokio::test]
async fn the_result_of_hello_has_every_field() {
    let mut config = Config::ephemeral(LONG);
    (config.mesh.ping_interval_ms, config.mesh.stale_after_ms) = (11_000, 44_000);
    (config.mesh.tick_interval_ms, config.mesh.max_payload) = (22_000, 128 * 1024);
    config.mesh.min_client = Some("0.1.0".to_owned());
    let broker = Broker::start(config).await.unwrap();
    let who = Who::new("self");
    let mut sock = Sock::open(broker.addr()).await;
    let mut hello = sock.hello_of(&who);
    hello["profile"] = json!({
        "name": "self", "status": "dnd", "summary": "testing ☃", "host": "box", "cwd": "/src", "role": "tester",
        "lastInputSeconds": 3, "tags": ["a", "b"],
    });
    let before = unix_ms();
    let result = sock.hello(hello).await;
    assert_eq!(
        fields(&result),
        [
            "broker",
            "connId",
            "events",
            "features",
            "lease",
            "leaseTtlMs",
            "minClient",
            "policy",
            "protocol",
            "resume",
            "sessionId",
            "snapshot",
            "stateVersion"
        ]
    );
    assert_eq!((&result["protocol"], &result["lease"]), (&json!(1), &json!("new")));
    assert_eq!((&result["sessionId"], &result["leaseTtlMs"]), (&json!(who.id()), &json!(LONG)));
    assert_eq!(result["minClient"], "0.1.0");
    assert_eq!(result["broker"]["id"], sock.challenge["broker"]);
    assert!(!result["broker"]["version"].as_str().unwrap().is_empty());
    assert!(!result["connId"].as_str().unwrap().is_empty());
    assert_eq!(
        result["policy"],
        json!({
            "pingIntervalMs": 11_000, "staleAfterMs": 44_000, "tickIntervalMs": 22_000, "maxPayload": 128 * 1024,
            "maxBufferedBytes": result["policy"]["maxBufferedBytes"].as_u64().unwrap(),
            "maxBufferedMessages": result["policy"]["maxBufferedMessages"].as_u64().unwrap(),
            "maxInflight": 4096, "durability": "fsync",
        })
    );
    for bit in ["resume", "replay", "reconcile", "maxPayload", "runs", "services"] {
        assert_eq!(result["features"][bit]["version"], 1, "{bit}");
    }
    assert_eq!(result["features"]["maxPayload"]["bytes"], 128 * 1024);
    let dedupe = json!({"version": 2, "mode": "retention_scoped", "retentionDays": 30, "fingerprint": true});
    assert_eq!(result["features"]["dedupe"], dedupe);
    assert_eq!(fields(&result["events"]), ["epoch", "nextSeq", "replay"]);
    assert_eq!((&result["events"]["nextSeq"], &result["events"]["replay"]), (&json!(1), &json!("resync")));
    assert!(!result["events"]["epoch"].as_str().unwrap().is_empty());
    assert_eq!(fields(&result["stateVersion"]), ["health", "presence", "services"]);
    assert!(result["stateVersion"].as_object().unwrap().values().all(Value::is_u64));
    let snapshot = &result["snapshot"];
    let expected = ["health", "presence", "queues", "runs", "services", "subscriptions", "uptimeMs"];
    assert_eq!(fields(snapshot), expected);
    assert_eq!(snapshot["runs"], json!([]));
    assert_eq!(snapshot["queues"], json!([]), "nothing was ever sent to it");
    assert_eq!((&snapshot["health"], &snapshot["services"]), (&json!("ok"), &json!([])));
    assert!(snapshot["subscriptions"].is_array() && snapshot["uptimeMs"].is_u64());
    let joined_at = snapshot["presence"][0]["joinedAt"].as_u64().unwrap();
    assert!((before..=unix_ms()).contains(&joined_at));
    assert_eq!(
        snapshot["presence"],
        json!([{
            "session": who.id(), "member": hex(&who.member), "name": "self", "status": "dnd",
            "summary": "testing ☃", "host": "box", "cwd": "/src", "role": "tester", "tags": ["a", "b"],
            "instanceId": who.instance, "joinedAt": joined_at, "lastInputSeconds": 3, "services": [],
        }])
    );
}

#[tokio::test]
async fn the_token_says_what_it_is() {
    let broker = broker(LONG).await;
    let who = Who::new("holder");
    let mut sock = Sock::open(broker.addr()).await;
    let result = sock.join(&who).await;
    assert_eq!(fields(&result["resume"]), ["outcome", "token"]);
    assert_eq!(result["resume"]["outcome"], "new");
    let token = result["resume"]["token"].as_str().unwrap();
    let parts: Vec<&str> = token.strip_prefix("tenure-resume.v1.").expect("the prefix").split('.').collect();
    let [payload, signature] = parts[..] else { panic!("two parts in {token}") };
    assert_eq!(BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap().len(), 64);
    let payload = BASE64URL_NOPAD.decode(payload.as_bytes()).unwrap();
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(fields(&payload), ["bid", "iat", "lid", "mid", "sub"]);
    assert_eq!((&payload["sub"], &payload["mid"]), (&json!(who.id()), &json!("default")));
    assert!(payload["bid"].is_string() && payload["lid"].is_string() && recent(&payload["iat"]));
}

#[tokio::test]
async fn the_small_methods_answer_as_described() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    let (_other, who) = join(broker.addr(), "b").await;
    sock.sees("joined", &who).await;
    let pong = sock.call("ping", json!({})).await;
    assert_eq!(fields(&pong), ["ts"]);
    assert!(recent(&pong["ts"]));
    let health = sock.call("health", json!({})).await;
    assert_eq!(
        fields(&health),
        ["brokerId", "draining", "groups", "sessions", "stateVersion", "status", "store", "uptimeMs"]
    );
    assert_eq!((&health["status"], &health["draining"]), (&json!("ok"), &json!(false)));
    assert_eq!((&health["sessions"], &health["brokerId"]), (&json!(2), &sock.challenge["broker"]));
    assert_eq!(fields(&health["groups"]), ["depth", "oldestMs"]);
    assert_eq!(fields(&health["store"]), ["kind", "lagMs"]);
    assert_eq!((&health["store"]["kind"], health["uptimeMs"].is_u64()), (&json!("memory"), true));
    // Params may be left out where none are needed.
    for method in ["ping", "health", "presence.list", "profile.set", "bye"] {
        sock.send(&json!({"type": "req", "id": method, "method": method})).await;
        assert_eq!(sock.response(method).await["ok"], true, "{method}");
    }
}

#[tokio::test]
async fn ids_come_back_as_they_were_sent() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    for id in ["7", "0007", "~!@#$%^&*()", "\\\"", &"x".repeat(128)] {
        sock.send(&json!({"type": "req", "id": id, "method": "ping", "params": {}})).await;
        assert_eq!(sock.frame().await["id"], id);
    }
    // The same id twice at once is the client's own business.
    let twin = json!({"type": "req", "id": "twin", "method": "ping", "params": {}});
    sock.send_all(&[twin.clone(), twin]).await;
    for _ in 0..2 {
        assert_eq!(sock.frame().await["id"], "twin");
    }
}

#[tokio::test]
async fn what_waits_for_a_session_is_in_its_snapshot() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let who = Who::new("reader");
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    let crew =
        sock.call("subscribe", json!({"topic": "t", "group": "g", "prefetch": 1})).await["subId"].clone();
    let alone = sock.call("subscribe", json!({"topic": "u"})).await["subId"].clone();
    sock.call("profile.set", json!({"status": "dnd"})).await;
    let past = sock.past();
    sock.cut();
    for n in 0..3 {
        a.post(&crate::common::mail::to_session(&who), &format!("i{n}"), "x").await;
        a.post("topic:t", &format!("t{n}"), "x").await;
    }
    // Another epoch: the subscriptions go on, and the snapshot says what waits.
    let mut back = Sock::open(broker.addr()).await;
    let mut params = back.hello_of(&who);
    params["resume"] = json!({"token": past.token, "epoch": "another", "lastSeq": 0});
    let result = back.hello(params).await;
    let mut queues = result["snapshot"]["queues"].as_array().unwrap().clone();
    queues.sort_by_key(|queue| queue["depth"].as_u64());
    assert_eq!(queues[0], json!({"subId": alone, "depth": 0}));
    for name in [&json!("inbox"), &crew] {
        assert!(queues.contains(&json!({"subId": name, "depth": 3})), "{queues:?}");
    }
    assert_eq!(result["snapshot"]["subscriptions"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_a_screen_shows_can_be_read_again() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "screen").await;
    let versions = sock.result["stateVersion"].clone();
    for params in [json!({}), json!({"all": true})] {
        let listed = sock.call("services.list", params).await;
        assert_eq!(listed, json!({"services": [], "stateVersion": versions}));
    }
    let health = sock.call("health", json!({})).await;
    assert_eq!((&health["status"], &health["stateVersion"]), (&json!("ok"), &versions));
    assert_eq!(sock.call("presence.list", json!({})).await["stateVersion"], versions);
}
