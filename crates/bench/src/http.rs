//! HTTP/1.1 over a Unix socket with nothing to it: one request at a time, the connection kept.
//!
//! It shares no code with the daemon, and costs as little as a client can, so that what is measured is the server.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Bytes of an answer's head, at most.
const HEAD: usize = 8 * 1024;
/// Bytes of an answer's body, at most.
const BODY: usize = 16 * 1024 * 1024;

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Http {
    socket: UnixStream,
    read: Vec<u8>,
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answered {
    /// The body, if it is JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Http {
    pub(crate) async fn connect(socket: &Path) -> Result<Http> {
        Ok(Http { socket: UnixStream::connect(socket).await?, read: Vec::with_capacity(4_096) })
    }

    /// Asks, and waits for the answer. After an error the connection is of no use.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answered> {
        self.send(&request("localhost", (method, path), headers, body)).await
    }

    /// The same with the bytes of a whole request.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<Answered> {
        self.socket.write_all(request).await?;
        self.read.clear();
        let head = loop {
            if let Some(end) = end_of_head(&self.read) {
                break end;
            }
            if self.read.len() > HEAD {
                return Err(wrong("the head of an answer is too long"));
            }
            self.more().await?;
        };
        let (status, length) = parse(&self.read[..head]).ok_or_else(|| wrong("an answer is not HTTP"))?;
        if length > BODY {
            return Err(wrong("an answer is too long"));
        }
        while self.read.len() < head + length {
            self.more().await?;
        }
        Ok(Answered { status, body: self.read[head..head + length].to_vec() })
    }

    async fn more(&mut self) -> Result<()> {
        match self.socket.read_buf(&mut self.read).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// A request to `host`, as it goes over the wire.
pub(crate) fn request(
    host: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n", body.len());
    if !body.is_empty() {
        text += "Content-Type: application/json\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    [(text + "\r\n").as_bytes(), body].concat()
}

fn end_of_head(read: &[u8]) -> Option<usize> {
    read.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The status and the length of the body.
fn parse(head: &[u8]) -> Option<(u16, usize)> {
    let head = std::str::from_utf8(head).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Some((status, length.unwrap_or(0)))
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_its_status_and_its_length() {
        let head = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n";
        assert_eq!(end_of_head(head), Some(head.len()));
        assert_eq!(parse(head), Some((202, 17)));
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n"), Some((204, 0)));
        assert_eq!((end_of_head(b"HTTP/1.1 204\r\n"), parse(b"nonsense")), (None, None));
    }
}
