//! A start far from when the store last ran, through a real broker and its admin API.

use std::path::Path;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};
use tenure_store::{Sqlite, Store, Write};

use crate::common::http::raw;
use crate::common::mail::to_session;
use crate::common::{LONG, Sock, Who};

const TOKEN: &str = "a-token-of-the-operator";
const DAY_MS: u64 = 24 * 3_600_000;

async fn start(dir: &Path) -> Broker {
    let store = StoreChoice::Sqlite(dir.to_owned());
    let config = Config { admin_token: Some(TOKEN.to_owned()), store, ..Config::ephemeral(LONG) };
    Broker::start(config).await.expect("start")
}

async fn ask(broker: &Broker, line: &str) -> (u16, Value) {
    let addr = broker.addr();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let answer = raw(addr, &head).await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

fn wall() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Makes the store believe that it last ran so long ago: what a clock that is ahead looks like.
fn last_ran(dir: &Path, ago_ms: u64) {
    let mut store = Sqlite::open(dir).unwrap();
    let believed_at = Some(wall() - ago_ms);
    store.apply(&[Write::Heartbeat { run: 1, uptime_ms: 0, believed_at }]).unwrap();
}

#[tokio::test]
async fn a_start_in_doubt_says_so_holds_expiry_and_ends_by_confirmation() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who) = (Who::new("a"), Who::new("b"));
    let broker = start(dir.path()).await;
    assert_eq!(ask(&broker, "GET /v1/admin/clock").await.1["believed"], true);
    assert_eq!(ask(&broker, "POST /v1/admin/clock/confirm").await.0, 409, "there is nothing to confirm");
    let (mut a, mut b) = (Sock::open(broker.addr()).await, Sock::open(broker.addr()).await);
    a.join(&a_who).await;
    b.join(&b_who).await;
    b.bye().await;
    let letter = json!({"to": to_session(&b_who), "clientMessageId": "m1", "body": "x", "ttlMs": 1});
    a.call("send", letter).await;
    a.bye().await;
    broker.stop("end").await;
    last_ran(dir.path(), 60 * DAY_MS);

    let broker = start(dir.path()).await;
    let (mut a, mut b) = (Sock::open(broker.addr()).await, Sock::open(broker.addr()).await);
    a.join(&a_who).await;
    let health = a.call("health", json!({})).await;
    assert_eq!(health["status"], "degraded");
    assert!(health["reason"].as_str().unwrap().contains("60 days ahead"), "{health}");
    let (_, clock) = ask(&broker, "GET /v1/admin/clock").await;
    assert_eq!((&clock["believed"], &clock["reason"]), (&json!(false), &health["reason"]), "{clock}");
    assert!(clock["apartMs"].as_i64().unwrap() > 59 * DAY_MS as i64, "{clock}");
    b.join(&b_who).await;
    b.reads("x").await;
    b.bye().await;
    let (status, confirmed) = ask(&broker, "POST /v1/admin/clock/confirm").await;
    assert_eq!((status, &confirmed["believed"]), (200, &json!(true)), "{confirmed}");
    let health = a.call("health", json!({})).await;
    assert_eq!((&health["status"], &health["reason"]), (&json!("ok"), &Value::Null));
    let (_, audit) = ask(&broker, "GET /v1/admin/meshes/default/audit").await;
    assert_eq!(audit["rows"][0]["act"], "clock.confirm", "{audit}");
    a.bye().await;
    broker.stop("end").await;
}

#[tokio::test]
async fn a_run_that_ends_before_its_first_beat_leaves_what_the_clock_said() {
    let dir = tempfile::tempdir().unwrap();
    // The first run of a store; then one that found an older time, of the day before.
    for ago_ms in [None, Some(20 * 3_600_000)] {
        if let Some(ago_ms) = ago_ms {
            last_ran(dir.path(), ago_ms);
        }
        let broker = start(dir.path()).await;
        assert_eq!(ask(&broker, "GET /v1/admin/clock").await.1["believed"], true);
        broker.stop("end").await;
        let now = wall();
        let found = Sqlite::open(dir.path()).unwrap().begin_run(now).unwrap().believed_at.unwrap();
        assert!(now.abs_diff(found) < 3_600_000, "{found} is not {now}");
    }
}
