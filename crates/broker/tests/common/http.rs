//! HTTP by hand, so that a request can be as wrong as it likes.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// `GET path` as a well-behaved client sends it.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Answer {
    raw(addr, &format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")).await
}

/// An upgrade request with these header lines and no others but the WebSocket ones.
pub(crate) async fn upgrade(addr: SocketAddr, lines: &[&str]) -> Answer {
    let mut head = "GET /v1/ws HTTP/1.1\r\n".to_owned();
    let fixed = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    for line in lines.iter().chain(&fixed) {
        head.push_str(line);
        head.push_str("\r\n");
    }
    raw(addr, &format!("{head}\r\n")).await
}

/// Sends `request` and reads the head of the answer and, unless it became a socket, what follows.
pub(crate) async fn raw(addr: SocketAddr, request: &str) -> Answer {
    let exchange = async {
        let mut tcp = TcpStream::connect(addr).await.expect("connect");
        tcp.write_all(request.as_bytes()).await.expect("write");
        let mut text = Vec::new();
        let mut chunk = [0; 4096];
        while !complete(&text) {
            match tcp.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(n) => text.extend_from_slice(&chunk[..n]),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    let text = timeout(PATIENCE, exchange).await.expect("an answer in time");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Whether an answer without a close of the connection is all there.
fn complete(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if head.starts_with("http/1.1 101") {
        return true;
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|n| n.trim().parse::<usize>().ok()).is_some_and(|n| body.len() >= n)
}
