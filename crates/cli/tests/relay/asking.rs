//! HTTP by hand, as a consumer.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::patience;

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of =
            |line: &'_ str| line.split_once(':').is_some_and(|(given, _)| given.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| of(line)).map(|line| line.split_once(':').unwrap().1.trim())
    }
}

/// Sends `bytes` and reads until the other end closes; what came is the first answer and whatever follows it.
pub(crate) async fn ask(addr: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    // What is refused may be answered before all of it is sent.
    let _ = stream.write_all(bytes).await;
    let mut all = Vec::new();
    tokio::time::timeout(patience(), async {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut piece).await {
            all.extend_from_slice(&piece[..read]);
        }
    })
    .await
    .unwrap_or_else(|_| panic!("no end after {:?}", String::from_utf8_lossy(&all)));
    parse(&all)
}

pub(crate) fn parse(all: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(all).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// `GET path` of `web`, on a connection of its own.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Answer {
    ask(addr, format!("GET {path} HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n").as_bytes())
        .await
}

/// Asks until the answer is as it should be.
pub(crate) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(patience(), asked).await.expect("it never came true")
}
