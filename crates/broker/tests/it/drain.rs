//! Stopping in good order: what is said, who is still let in, how long it may take.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::slow::{patient, stuck};
use crate::common::http::get;
use crate::common::sock::assert_closing;
use crate::common::{LONG, PATIENCE, Sock, Who, broker, join};

/// What every session is told when the broker stops and nothing says that it comes back.
pub(crate) async fn sees_shutdown(sock: &mut Sock, reason: &str) {
    let ended = sock.ended().await;
    let events: Vec<&Value> = ended.frames.iter().collect();
    let shutdown = events.iter().find(|frame| frame["event"] == "shutdown").expect("shutdown is announced");
    let data = &shutdown["data"];
    assert_eq!(data["reason"], reason);
    assert!(data["deadlineMs"].as_u64().is_some_and(|ms| ms > 0), "{data}");
    assert!(data["reconnectAfterMs"].is_u64(), "{data}");
    assert!(data.get("restartExpectedMs").is_none(), "no restart was announced: {data}");
    assert_closing(&ended.closing, 1001, "going_away", true);
    assert_eq!(ended.closing["retryAfterMs"], data["reconnectAfterMs"]);
}

#[tokio::test]
async fn a_draining_broker_turns_new_sessions_away_and_tells_the_others_the_truth() {
    let broker = patient().await;
    let addr = broker.addr();
    let who = Who::new("session");
    let mut sock = Sock::open(addr).await;
    sock.join(&who).await;
    let _stuck = stuck(addr).await;
    assert_eq!(get(addr, "/readyz").await.status, 200);
    let start = Instant::now();
    let stopping = tokio::spawn(broker.stop("maintenance"));
    sees_shutdown(&mut sock, "maintenance").await;

    // The stuck one holds the drain open. Nobody new comes in, and not the key alone either.
    for newcomer in [Who::new("newcomer"), who.clone()] {
        let mut new = Sock::open(addr).await;
        let params = new.hello_of(&newcomer);
        let (error, closing) = new.refused(params).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!("draining"), &json!(true)));
        assert!(error["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{error}");
        assert_closing(&closing, 1013, "draining", true);
        assert_eq!(closing["retryAfterMs"], error["retryAfterMs"]);
    }
    // A good token is still admitted, told, and sent away again.
    let mut back = Sock::open(addr).await;
    let result = back.resume(&who, &sock.past()).await;
    assert_eq!((&result["lease"], &result["resume"]["outcome"]), (&json!("kept"), &json!("resumed")));
    sees_shutdown(&mut back, "maintenance").await;
    assert_eq!(get(addr, "/readyz").await.status, 503);
    assert_eq!(get(addr, "/livez").await.status, 200);
    assert!(!stopping.is_finished(), "all of that was during the drain");
    stopping.await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "three seconds for the drain, one for the close: {took:?}");
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn nobody_who_says_nothing_holds_a_stop_up() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let (mut member, _) = join(addr, "member").await;
    // A socket before its hello, one after it that will not read, a bare connection, half a request.
    let mut silent = Sock::open(addr).await;
    let (_unread, who) = join(addr, "will not read").await;
    member.sees("joined", &who).await;
    let mut bare = TcpStream::connect(addr).await.unwrap();
    let start = Instant::now();
    let stopping = tokio::spawn(broker.stop("now"));
    sees_shutdown(&mut member, "now").await;
    let ended = silent.ended().await;
    assert!(ended.frames.is_empty(), "{:?}", ended.frames);
    assert_closing(&ended.closing, 1013, "draining", true);
    assert!(ended.closing["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{}", ended.closing);
    stopping.await.unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, bare.read_to_end(&mut rest)).await;
    assert!(closed.is_ok() && rest.is_empty());
}
