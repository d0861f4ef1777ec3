//! Readers that are slow, and readers that do not read: these cost themselves their socket, and nobody else anything.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::http::get;
use crate::common::mail::{in_grace, to_session};
use crate::common::wire::Wire;
use crate::common::{Dial, Got, LONG, PATIENCE, Sock, Who, join};

/// A broker that lets much wait for one socket.
pub(crate) async fn patient() -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_buffered_bytes = 64 * 1024 * 1024;
    Broker::start(config).await.expect("start")
}

/// How long a reader is given to read, where it is not to take ten seconds.
const SOON_MS: u64 = 1_000;

/// A broker that lets much wait for one socket, and not for long.
async fn impatient() -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_buffered_bytes = 64 * 1024 * 1024;
    config.mesh.slow_consumer_ms = SOON_MS;
    Broker::start(config).await.expect("start")
}

/// A session behind a wire.
async fn behind(wire: Wire, addr: SocketAddr, name: &str) -> (Sock, Who) {
    let who = Who::new(name);
    let dial = Dial { host: addr.to_string(), ..Dial::to(wire.to(addr).await) };
    let mut sock = dial.open().await.expect("upgrade");
    sock.join(&who).await;
    (sock, who)
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
async fn a_reader_that_does_not_read_is_let_go_in_time() {
    let broker = impatient().await;
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
    assert!(took >= Duration::from_millis(SOON_MS), "{took:?}");
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
    assert!(updates > 5, "{updates}");
    let summary = format!("update {updates}");
    assert_eq!(sock.sees("updated", &watcher_who).await["peer"]["summary"], summary);
    sock.sees_all_of_it().await;
}

#[tokio::test]
async fn a_reader_on_a_thin_and_long_wire_is_kept_as_long_as_it_reads() {
    let broker = impatient().await;
    let wire = Wire { bytes_per_second: 400 * 1024, latency: Duration::from_millis(200) };
    let (mut slow, who) = behind(wire, broker.addr(), "slow").await;
    let (mut sender, _) = join(broker.addr(), "sender").await;
    // One message that takes more than twice the time a reader is given, then a burst, and answers in between.
    let large = "m".repeat(1024 * 1024);
    let burst = "b".repeat(64 * 1024);
    sender.post(&to_session(&who), "large", &large).await;
    for n in 0..6 {
        sender.post(&to_session(&who), &format!("burst {n}"), &burst).await;
    }
    let pinged = slow.request("ping", json!({})).await;
    let start = Instant::now();
    let mut lengths = Vec::new();
    let mut answered = false;
    while lengths.len() < 7 {
        let frame = slow.frame().await;
        if frame["event"] == "message" {
            lengths.push(frame["data"]["message"]["body"].as_str().expect("a body").len());
        }
        answered |= frame["id"] == json!(pinged);
    }
    assert_eq!(lengths, [&[large.len()][..], &[burst.len(); 6]].concat());
    assert!(start.elapsed() > Duration::from_millis(2 * SOON_MS), "or the wire was not thin");
    assert!(answered, "what it asks is answered meanwhile");
    // On the socket that it came with, and nothing came twice.
    slow.call("ping", json!({})).await;
}

#[tokio::test]
async fn a_reader_that_takes_a_byte_now_and_then_does_not_read() {
    let broker = impatient().await;
    let (mut sender, _) = join(broker.addr(), "sender").await;
    let who = Who::new("trickle");
    let mut sock = Dial { buffer: Some(4096), ..Dial::to(broker.addr()) }.open().await.expect("upgrade");
    sock.join(&who).await;
    let trickle = tokio::spawn(sock.trickle(Duration::from_millis(SOON_MS / 10)));
    sender.post(&to_session(&who), "large", &"m".repeat(1024 * 1024)).await;
    in_grace(&mut sender, &who).await;
    // It was told, as far as it read, and then let go.
    let closed = tokio::time::timeout(PATIENCE, trickle).await.expect("in time").expect("no panic");
    assert!(closed, "the socket ended");
    // It is in grace like any other, and what it did not read comes again.
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&who).await["lease"], "kept");
    let again = sock.delivery().await;
    assert_eq!((&again["message"]["clientMessageId"], &again["attempt"]), (&json!("large"), &json!(1)));
}
