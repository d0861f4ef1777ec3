//! Ten seconds to say hello: the one test that waits them out, for everything at once.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::common::sock::assert_closing;
use crate::common::{Got, LONG, PATIENCE, Sock, broker, still_serves};

const HELLO: Duration = Duration::from_secs(10);

#[tokio::test]
async fn no_hello_in_ten_seconds() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let start = Instant::now();
    let silent = async {
        let mut sock = Sock::open(addr).await;
        let ended = sock.ended().await;
        assert!(ended.frames.is_empty());
        assert_closing(&ended.closing, 4008, "hello_timeout", true);
    };
    // Control frames prove that somebody is there, not who.
    let pinging = async {
        let mut sock = Sock::open(addr).await;
        let mut beat = tokio::time::interval(Duration::from_millis(500));
        let mut closing = None;
        loop {
            tokio::select! {
                _ = beat.tick(), if closing.is_none() => sock.send_message(Message::Ping(vec![].into())).await,
                got = sock.recv() => match got {
                    Got::Frame(frame) => closing = Some(frame["data"].clone()),
                    Got::Closed(code, reason) => {
                        assert_eq!((code, reason.as_str()), (4008, "hello_timeout"));
                        assert_closing(&closing.expect("closing"), 4008, "hello_timeout", true);
                        return;
                    }
                    Got::Ping | Got::Pong => {}
                    other => panic!("{other:?}"),
                },
            }
        }
    };
    // Nor does a request whose head never ends become a socket.
    let loris = async {
        let mut tcp = TcpStream::connect(addr).await.unwrap();
        tcp.write_all(b"GET /v1/ws HTTP/1.1\r\nHost: ").await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, tcp.read_to_end(&mut rest)).await;
        let _ = read.expect("hung up on in time");
        assert!(!String::from_utf8_lossy(&rest).contains("101"));
    };
    tokio::join!(silent, pinging, loris);
    let took = start.elapsed();
    assert!(took >= HELLO && took < HELLO + Duration::from_secs(5), "{took:?}");
    still_serves(addr).await;
}
