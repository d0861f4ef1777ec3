//! A connection to a daemon's socket: HTTP/1.1, one request after the other, and nothing to it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// A connection.
#[derive(Debug)]
pub(super) struct Line(BufReader<UnixStream>);

impl Line {
    pub(super) async fn open(socket: &Path) -> Result<Line> {
        Ok(Line(BufReader::new(UnixStream::connect(socket).await.context("reach the daemon")?)))
    }

    /// Hands a message over; an error unless the daemon promises it.
    pub(super) async fn send(&mut self, body: &Value) -> Result<()> {
        let body = body.to_string();
        let head = format!(
            "POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let (status, answer) = self.call(&format!("{head}{body}")).await?;
        ensure!(status == 202, "the daemon answered {status}: {answer}");
        Ok(())
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Value> {
        let (status, answer) = self.call(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await?;
        ensure!(status == 200, "the daemon answered {status}: {answer}");
        Ok(serde_json::from_str(&answer)?)
    }

    async fn call(&mut self, request: &str) -> Result<(u16, String)> {
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .context("an answer without a status")?;
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        Ok((status, String::from_utf8(body)?))
    }
}
