//! An HTTP client that shares no code with the daemon: bytes on a socket.

use std::path::PathBuf;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

#[derive(Clone)]
pub(crate) struct Client(PathBuf);

pub(crate) type Headers<'a> = &'a [(&'a str, &'a str)];

/// A request as it goes over the wire.
pub(crate) fn request(method: &str, path: &str, headers: Headers<'_>, body: &[u8]) -> Vec<u8> {
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    [(text + "\r\n").as_bytes(), body].concat()
}

fn split(answer: &[u8]) -> (u16, String) {
    let text = String::from_utf8_lossy(answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

pub(crate) async fn over_tcp(addr: std::net::SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    split(&answer)
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Client {
        Client(socket)
    }

    pub(crate) async fn open(&self) -> UnixStream {
        UnixStream::connect(&self.0).await.unwrap()
    }

    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: Headers<'_>,
        body: &[u8],
    ) -> (u16, String) {
        let mut socket = self.open().await;
        // A server that has seen enough answers before it has read all.
        let _ = socket.write_all(&request(method, path, headers, body)).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        split(&answer)
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: Headers<'_>,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let (status, text) = self.raw(method, path, &headers, body.as_bytes()).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, &[], None).await
    }

    /// Posts to a daemon that may be away: nothing, if it is.
    #[allow(dead_code)]
    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let mut socket = UnixStream::connect(&self.0).await.ok()?;
        let headers = [("Content-Type", "application/json")];
        socket.write_all(&request("POST", path, &headers, body.to_string().as_bytes())).await.ok()?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.ok()?;
        let (status, text) = split(&answer);
        Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call("POST", path, &[], Some(body)).await
    }
}
