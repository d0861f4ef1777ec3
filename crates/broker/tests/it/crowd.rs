//! Two hundred who mean harm, fifty who do not.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::common::{Got, LONG, PATIENCE, Sock, Who, broker, join, still_serves};

const HARMFUL: usize = 200;
const GOOD: usize = 50;

/// One socket's worth of trouble, of a kind by number.
async fn harm(addr: SocketAddr, n: usize) {
    let mut sock = match n % 10 {
        8 | 9 => return raw_harm(addr, n).await,
        1 => Sock::open_msgpack(addr).await,
        _ => Sock::open(addr).await,
    };
    let who = Who::new("harmful");
    let good =
        json!({"type": "req", "id": "1", "method": "hello", "params": sock.hello_of(&who)}).to_string();
    let message = match n % 10 {
        0 => Message::text("\u{0}garbage".repeat(n)),
        1 => Message::binary(vec![0xc1; n]),
        2 => Message::text(&good[..good.len() - n % 100 - 1]),
        3 => Message::text("[".repeat(60_000)),
        4 => Message::text("x".repeat(1_000_000)),
        5 => Message::text(good.replace("\"proof\":\"", "\"proof\":\"A")),
        6 => return sock.cut(),
        _ => Message::binary(good.into_bytes()),
    };
    sock.send_message(message).await;
    loop {
        match sock.recv().await {
            Got::Closed(code, _) => return assert!(matches!(code, 1008 | 1009), "{code}"),
            Got::Cut | Got::Reset => panic!("cut instead of closed: kind {}", n % 10),
            _ => {}
        }
    }
}

/// Bytes that are not even WebSocket frames.
async fn raw_harm(addr: SocketAddr, n: usize) {
    let mut tcp = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "GET /v1/ws HTTP/1.1\r\nHost: {addr}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    tcp.write_all(head.as_bytes()).await.unwrap();
    let frames: [&[u8]; 5] = [
        b"\x81\x05hello",                              // not masked
        b"\xff\x80\0\0\0\0",                           // reserved bits and an unknown opcode
        b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\0", // longer than any memory
        b"\x80\x80\0\0\0\0",                           // a continuation of nothing
        b"\x89\xfe\x10\0\0\0\0\0",                     // a ping that may not be so long
    ];
    let _ = tcp.write_all(frames[n / 10 % frames.len()]).await;
    let _ = tcp.write_all(&[0; 8192]).await;
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, tcp.read_to_end(&mut rest)).await.expect("hung up on in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_good_are_unharmed() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let (mut watcher, _) = join(addr, "watcher").await;
    let mut harmful = tokio::task::JoinSet::new();
    for n in 0..HARMFUL {
        harmful.spawn(harm(addr, n));
    }
    let mut good = tokio::task::JoinSet::new();
    for n in 0..GOOD {
        good.spawn(async move {
            let (mut sock, _) = join(addr, &format!("good {n}")).await;
            for round in 0..5 {
                assert!(sock.call("ping", json!({})).await["ts"].is_u64());
                sock.call("profile.set", json!({"summary": format!("round {round}")})).await;
            }
            sock
        });
    }
    while let Some(done) = harmful.join_next().await {
        done.expect("turned away in good order");
    }
    let mut socks = good.join_all().await;
    let marker = Who::new("marker");
    let mut last = Sock::open(addr).await;
    last.join(&marker).await;
    socks.push(watcher);
    for sock in &mut socks {
        while !sock.mirror.peers.contains_key(&marker.id()) {
            sock.expect("presence").await;
        }
        assert_eq!(sock.mirror.peers.len(), GOOD + 2);
        sock.sees_all_of_it().await;
    }
    watcher = socks.pop().expect("the watcher");
    let health = watcher.call("health", json!({})).await;
    assert_eq!((&health["status"], &health["sessions"]), (&json!("ok"), &json!(GOOD + 2)));
    still_serves(addr).await;
}
