//! A reader that does not read: it costs itself its socket, and nobody else anything.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::http::get;
use crate::common::{Dial, Got, LONG, Sock, Who, join};

/// A broker that lets much wait for one socket.
pub(crate) async fn patient() -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_buffered_bytes = 64 * 1024 * 1024;
    Broker::start(config).await.expect("start")
}

/// A session that asks for much and reads nothing, so that the broker cannot be done with it.
pub(crate) async fn stuck(addr: SocketAddr) -> (Sock, Who) {
    let who = Who::new("stuck");
    let mut sock = Dial { buffer: Some(4096), ..Dial::to(addr) }.open().await.expect("upgrade");
    let fat = "x".repeat(1024);
    let mut hello = sock.hello_of(&who);
    hello["profile"] = json!({"name": "stuck", "summary": fat, "host": fat, "cwd": fat, "role": fat});
    sock.hello(hello).await;
    const REQUESTS: usize = 2_000;
    let list =
        |n: usize| json!({"type": "req", "id": n.to_string(), "method": "presence.list", "params": {}});
    let lists: Vec<Value> = (0..REQUESTS).map(list).collect();
    sock.send_all(&lists).await;
    // All of them heard, so that what they are answered is on its way: some nine megabytes.
    loop {
        let metrics = get(addr, "/metrics").await.body;
        let line = metrics.lines().find(|line| line.starts_with("tenure_frames_received_total "));
        let count = line.and_then(|line| line.rsplit_once(' ')).and_then(|(_, n)| n.parse::<usize>().ok());
        if count.expect("frames are counted") > REQUESTS {
            return (sock, who);
        }
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_let_go_after_ten_seconds() {
    let broker = patient().await;
    let (mut watcher, watcher_who) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = stuck(broker.addr()).await;
    let past = sock.past();
    watcher.sees("joined", &who).await;
    let start = Instant::now();
    // An event for the stuck one, which cannot leave; for everybody else it does, and so do all that follow.
    let mut updates = 0;
    let transport = |list: &Value| {
        let peers = list["peers"].as_array().expect("peers");
        peers.iter().find(|peer| peer["session"] == who.id()).expect("there")["transport"].clone()
    };
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        pace.tick().await;
        updates += 1;
        watcher.call("profile.set", json!({"summary": format!("update {updates}")})).await;
        watcher.sees("updated", &watcher_who).await;
        if transport(&watcher.call("presence.list", json!({"debug": true})).await) == "grace" {
            break;
        }
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(15), "{took:?}");
    // If it reads now it may still hear why.
    let mut closing = None;
    loop {
        match sock.recv().await {
            Got::Frame(frame) if frame["event"] == "closing" => {
                closing = Some(frame["data"]["reason"].clone())
            }
            Got::Frame(_) | Got::Ping | Got::Pong => {}
            Got::Closed(..) | Got::Cut | Got::Reset => break,
        }
    }
    assert!(closing.is_none_or(|reason| reason == "slow_consumer"));
    // The session is in grace like any other, and what it missed is told in one step.
    let mut sock = Sock::open(broker.addr()).await;
    let mut params = sock.hello_of(&who);
    params["profile"] = past.mirror.peers[&who.id()].clone();
    let back = sock.resume_with(params, &past).await;
    assert_eq!((&back["lease"], &back["events"]["replay"]), (&json!("kept"), &json!("complete")));
    assert!(updates > 10, "{updates}");
    let summary = format!("update {updates}");
    assert_eq!(sock.sees("updated", &watcher_who).await["peer"]["summary"], summary);
    sock.sees_all_of_it().await;
}
