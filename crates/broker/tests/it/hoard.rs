//! Clients that hold what they can: connections, memory, time. Whoever behaves does not notice.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::common::http::get;
use crate::common::mail::{in_grace, to_session};
use crate::common::sock::assert_closing;
use crate::common::{Dial, LONG, PATIENCE, Sock, Who, join, still_serves};

const MIB: usize = 1024 * 1024;
/// What all sockets may hold together.
const BOUND: usize = 16 * MIB;

async fn bounded() -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.max_buffered_total = BOUND;
    Broker::start(config).await.expect("start")
}

/// A number of `/metrics`; none is zero.
async fn metric(addr: SocketAddr, name: &str) -> usize {
    let text = get(addr, "/metrics").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |number| number.parse().expect("a number"))
}

const LET_GO: &str = "tenure_connections_let_go_total{kind=\"buffers\"}";

/// Looks at what sockets hold until so many were let go. It must stay near the bound: requests under way and what comes
/// between two looks are on top of it.
async fn let_go(addr: SocketAddr, count: usize) {
    let start = Instant::now();
    while metric(addr, LET_GO).await < count {
        let held = metric(addr, "tenure_buffered_bytes").await;
        assert!(held <= 2 * BOUND, "{held} bytes are held");
        assert!(start.elapsed() < PATIENCE, "nobody is let go at {held} bytes");
    }
}

#[tokio::test]
async fn readers_that_never_read_do_not_hold_more_than_all_may() {
    const READERS: usize = 12;
    let broker = bounded().await;
    let addr = broker.addr();
    let (mut sender, _) = join(addr, "sender").await;
    let (mut good, good_who) = join(addr, "good").await;
    for n in 0..8 {
        sender.post("topic:news", &n.to_string(), &"x".repeat(120 * 1024)).await;
    }
    let mut stuck = Vec::new();
    for n in 0..READERS {
        let who = Who::new(&format!("stuck {n}"));
        let mut sock = Dial { buffer: Some(4096), ..Dial::to(addr) }.open().await.expect("upgrade");
        sock.join(&who).await;
        // Some megabytes of answers that it does not read.
        let page = |n| json!({"type": "req", "id": format!("{n}"), "method": "history", "params": {"log": "topic/news/0"}});
        let pages: Vec<Value> = (0..4).map(page).collect();
        sock.send_all(&pages).await;
        stuck.push((sock, who));
    }
    let_go(addr, READERS * 3 / 4 - 4).await;
    // Whoever was let go is in grace, is back with its lease, and whoever reads has noticed nothing.
    sender.post(&to_session(&good_who), "hello", "x").await;
    good.delivery().await;
    // It is counted when it is told to go, and goes when its last word has had its time.
    let start = Instant::now();
    let who = loop {
        assert!(start.elapsed() < PATIENCE, "nobody goes");
        let list = sender.call("presence.list", json!({"debug": true})).await;
        let peers = list["peers"].as_array().expect("peers");
        let in_grace =
            |who: &Who| peers.iter().any(|peer| peer["session"] == who.id() && peer["transport"] == "grace");
        if let Some((_, who)) = stuck.iter().find(|(_, who)| in_grace(who)) {
            break who;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(Sock::open(addr).await.join(who).await["lease"], "kept");
    assert!(metric(addr, "tenure_buffered_bytes").await <= BOUND);
    drop(stuck);
    still_serves(addr).await;
}

/// The beginning of a frame: a text that is not final, with so many bytes.
fn fragment(bytes: usize) -> Vec<u8> {
    let mut frame = vec![0x01, 0x80 | 127];
    frame.extend((bytes as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.resize(frame.len() + bytes, b'x');
    frame
}

/// A whole `send` with a body of so many bytes, as a frame.
fn letter(to: &str, bytes: usize) -> Vec<u8> {
    let params = json!({"to": to, "clientMessageId": "large", "body": "x".repeat(bytes)});
    let text = json!({"type": "req", "id": "large", "method": "send", "params": params}).to_string();
    let mut frame = vec![0x81, 0x80 | 127];
    frame.extend((text.len() as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

/// Sends all of it in small pieces, with turns for others between them; what is said until it is answered or closed.
async fn send_slowly(mut tcp: TcpStream, frame: Vec<u8>) -> String {
    for piece in frame.chunks(32 * 1024) {
        if tcp.write_all(piece).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&said);
        if text.contains("\"id\":\"large\"") || text.contains("slow_consumer") {
            return text.into_owned();
        }
        match tcp.read(&mut chunk).await {
            Ok(0) | Err(_) => return text.into_owned(),
            Ok(count) => said.extend_from_slice(&chunk[..count]),
        }
    }
}

#[tokio::test]
async fn senders_of_large_messages_are_all_served_whatever_they_come_to() {
    const SENDERS: usize = 40;
    let broker = bounded().await;
    let addr = broker.addr();
    let (mut good, good_who) = join(addr, "good").await;
    let mut sending = Vec::new();
    for n in 0..SENDERS {
        let (sock, _) = join(addr, &format!("sender {n}")).await;
        // Two and a half times as much as all sockets may hold, all at the same time.
        sending.push(send_slowly(sock.into_tcp(), letter("topic:news", MIB - 1024)));
    }
    let sending = tokio::spawn(futures_util::future::join_all(sending));
    while !sending.is_finished() {
        let held = metric(addr, "tenure_buffered_bytes").await;
        assert!(held <= BOUND, "{held} bytes are held");
        good.post(&to_session(&good_who), &held.to_string(), "x").await;
    }
    for said in sending.await.expect("all of them") {
        assert!(said.contains("\"ok\":true"), "{said}");
    }
    assert_eq!(metric(addr, LET_GO).await, 0, "nobody does anything wrong");
}

#[tokio::test]
async fn whoever_keeps_room_and_sends_nothing_makes_way_for_those_who_send() {
    const HOARDS: usize = 20;
    let broker = bounded().await;
    let addr = broker.addr();
    let mut hoards = Vec::new();
    for n in 0..HOARDS {
        let (sock, who) = join(addr, &format!("hoard {n}")).await;
        let mut tcp = sock.into_tcp();
        // Some of a message, of which no more will come.
        tcp.write_all(&fragment(MIB)[..16 * 1024]).await.expect("room to write");
        hoards.push((tcp, who));
    }
    let (sock, _) = join(addr, "sender").await;
    let sent = send_slowly(sock.into_tcp(), letter("topic:news", MIB - 1024));
    let said = timeout(PATIENCE, sent).await.expect("its turn");
    assert!(said.contains("\"ok\":true"), "{said}");
    assert!(metric(addr, LET_GO).await > 0, "somebody made way");
    drop(hoards);
}

const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];

#[tokio::test]
async fn unfinished_messages_do_not_hold_more_than_all_may_however_they_ping() {
    const SOCKETS: usize = 40;
    let broker = bounded().await;
    let addr = broker.addr();
    let (mut good, good_who) = join(addr, "good").await;
    let mut hoards = Vec::new();
    for n in 0..SOCKETS {
        let who = Who::new(&format!("hoard {n}"));
        let mut sock = Sock::open(addr).await;
        sock.join(&who).await;
        let mut tcp = sock.into_tcp();
        // Not all of it: what is announced and has not come is not held.
        let frame = fragment(MIB);
        let _ = timeout(PATIENCE, tcp.write_all(&frame[..MIB / 2])).await.expect("room to write");
        hoards.push((tcp, who, frame));
        if n == 9 {
            // Ten of them hold what has come, and not what was announced.
            while metric(addr, "tenure_buffered_bytes").await < 10 * MIB / 2 {}
            assert!(metric(addr, "tenure_buffered_bytes").await < 10 * MIB);
        }
    }
    // They go on, with a ping between fragments, and none of them ever ends its message.
    for (tcp, _, frame) in &mut hoards {
        let _ = timeout(PATIENCE, tcp.write_all(&[&frame[MIB / 2..], &PING].concat())).await;
    }
    let_go(addr, SOCKETS - BOUND / MIB).await;
    good.post(&to_session(&good_who), "hello", "x").await;
    good.delivery().await;
    // The first of them made no progress for longest.
    let (mut tcp, who, _) = hoards.remove(0);
    in_grace(&mut good, &who).await;
    let mut said = Vec::new();
    let _ = timeout(PATIENCE, tcp.read_to_end(&mut said)).await.expect("it was let go");
    assert!(String::from_utf8_lossy(&said).contains("slow_consumer"));
    assert_eq!(Sock::open(addr).await.join(&who).await["lease"], "kept");
    drop(hoards);
    still_serves(addr).await;
}

#[tokio::test]
async fn a_message_must_be_whole_in_thirty_seconds() {
    let broker = bounded().await;
    let addr = broker.addr();
    let (mut good, _) = join(addr, "good").await;
    let (sock, who) = join(addr, "trickle").await;
    let mut tcp = sock.into_tcp();
    let start = Instant::now();
    let frame = fragment(60_000);
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    // A byte now and then, and all the while it reads and answers.
    for byte in &frame {
        if tcp.write_all(&[*byte]).await.is_err() {
            break;
        }
        match timeout(Duration::from_millis(500), tcp.read(&mut chunk)).await {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(count)) => said.extend_from_slice(&chunk[..count]),
            Err(_) => {}
        }
        assert!(start.elapsed() < Duration::from_secs(30) + PATIENCE, "it goes on for ever");
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(29), "{took:?}");
    assert!(String::from_utf8_lossy(&said).contains("stale"), "it hears why");
    in_grace(&mut good, &who).await;
    assert_eq!(Sock::open(addr).await.join(&who).await["lease"], "kept");
}

/// A connection that has asked for something and may ask for more.
async fn keep_alive(addr: SocketAddr) -> Option<TcpStream> {
    let mut tcp = TcpStream::connect(addr).await.expect("connect");
    ask(&mut tcp, addr).await.then_some(tcp)
}

/// Asks once more; whether it was answered with yes.
async fn ask(tcp: &mut TcpStream, addr: SocketAddr) -> bool {
    let request = format!("GET /livez HTTP/1.1\r\nHost: {addr}\r\n\r\n");
    let mut answer = [0; 1024];
    let exchange = async {
        tcp.write_all(request.as_bytes()).await.ok()?;
        let count = tcp.read(&mut answer).await.ok()?;
        Some(answer[..count].starts_with(b"HTTP/1.1 200"))
    };
    timeout(PATIENCE, exchange).await.expect("an answer in time").unwrap_or(false)
}

#[tokio::test]
async fn a_session_comes_back_however_many_connections_others_keep() {
    const TOTAL: usize = 24;
    let mut config = Config::ephemeral(LONG);
    config.max_connections = Some(TOTAL);
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    let (mut watcher, _) = join(addr, "watcher").await;
    let (mut sock, who) = join(addr, "dropped").await;
    watcher.sees("joined", &who).await;
    sock.call("ping", json!({})).await;
    let past = sock.past();
    sock.cut();
    // One after another takes a connection and keeps it busy.
    let mut kept = Vec::new();
    for _ in 0..4 * TOTAL {
        kept.extend(keep_alive(addr).await);
        for tcp in &mut kept {
            ask(tcp, addr).await;
        }
    }
    assert!(kept.len() > TOTAL, "all were let in at first");
    assert!(metric(addr, "tenure_connections").await <= TOTAL);
    let start = Instant::now();
    let mut sock = Sock::open(addr).await;
    assert_eq!(sock.resume(&who, &past).await["resume"]["outcome"], "resumed");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Its peers have not seen it go, and whoever was here stays.
    watcher.call("ping", json!({})).await;
    assert!(watcher.kept().iter().all(|event| event["data"]["kind"] != "left"));
    let mut alive = 0;
    for tcp in &mut kept {
        alive += usize::from(ask(tcp, addr).await);
    }
    assert!(alive < TOTAL, "{alive} are still there");
}

#[tokio::test]
async fn connections_that_are_no_sockets_count_for_their_address() {
    let mut config = Config::ephemeral(LONG);
    config.addresses.loopback = true;
    config.addresses.sockets = 4;
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    let (mut here, _) = join(addr, "here").await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(keep_alive(addr).await.expect("room"));
    }
    assert!(keep_alive(addr).await.is_none(), "one too many");
    assert_eq!(Dial::to(addr).open().await.err(), Some(503));
    // Another address is none of their business.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("bind");
    let mut other = socket.connect(addr).await.expect("connect");
    assert!(ask(&mut other, addr).await);
    // A place is free when its connection is gone.
    drop(kept.pop());
    while keep_alive(addr).await.is_none() {}
    here.call("ping", json!({})).await;
}

#[tokio::test]
async fn the_last_connections_are_for_sessions_that_come_back() {
    const TOTAL: usize = 16;
    let mut config = Config::ephemeral(LONG);
    config.max_connections = Some(TOTAL);
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    let mut all = Vec::new();
    for n in 0..TOTAL - TOTAL / 8 {
        all.push(join(addr, &n.to_string()).await);
    }
    let mut late = Sock::open(addr).await;
    let params = late.hello_of(&Who::new("late"));
    let (error, closing) = late.refused(params).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("busy"), &json!(true)));
    assert_closing(&closing, 1013, "busy", true);
    // Whoever was here comes back, while its old socket is still there.
    let (old, who) = &all[0];
    let past = old.past();
    let mut sock = Sock::open(addr).await;
    assert_eq!(sock.resume(who, &past).await["resume"]["outcome"], "resumed");
    // And when somebody goes, there is room.
    let (mut gone, _) = all.pop().expect("one");
    gone.bye().await;
    loop {
        let mut sock = Sock::open(addr).await;
        let params = sock.hello_of(&Who::new("next"));
        sock.send(&json!({"type": "req", "id": "1", "method": "hello", "params": params})).await;
        let answer = sock.frame().await;
        if answer["ok"] == true {
            break;
        }
        assert_eq!(answer["error"]["code"], "busy");
    }
}
