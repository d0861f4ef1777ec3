//! A WebSocket client with nothing to it, so that the load leaves the machine to what is measured.
//!
//! Frames are MessagePack in binary messages, written whole and masked with zeros, which the protocol allows and
//! the other side cannot tell: what was built once is sent as it is. The hello is a real one.

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_client::SigningKey;
use tenure_client::proto::canonical::{Proof, member_key, session_key};
use tenure_client::proto::codec::Codec;
use tenure_client::proto::frame::{self, Request, Response};
use tenure_client::proto::hello::{
    Challenge, ClientInfo, HelloParams, HelloResult, InboxChoice, ProtocolRange, ResumeParams,
};
use tenure_client::proto::limits::PROTOCOL;
use tenure_client::proto::peer::Profile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How frames are spelled.
const CODEC: Codec = Codec::MsgPack;
/// Bytes that are asked of a socket at a time.
const READ: usize = 64 * 1024;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;

/// One socket.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    /// What was read; from `start` on it has not been looked at.
    read: Vec<u8>,
    start: usize,
}

impl Wire {
    /// A socket to `path` at `address`.
    pub async fn open(address: &str, path: &str) -> Result<Wire> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        Wire::over(stream, address, path).await
    }

    /// The same over a connection that there is.
    pub async fn over(stream: TcpStream, address: &str, path: &str) -> Result<Wire> {
        stream.set_nodelay(true)?;
        let mut wire = Wire { stream, read: Vec::with_capacity(READ), start: 0 };
        let upgrade = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: {}\r\n\r\n",
            CODEC.subprotocol()
        );
        wire.stream.write_all(upgrade.as_bytes()).await?;
        let head = loop {
            wire.fill().await?;
            if let Some(end) = find(&wire.read, b"\r\n\r\n") {
                break end + 4;
            }
        };
        ensure!(wire.read.starts_with(b"HTTP/1.1 101"), "the server does not upgrade to a WebSocket");
        wire.start = head;
        Ok(wire)
    }

    /// A socket to the broker at `address` that has said hello with `key` as member and session in one, and reads no
    /// inbox.
    pub async fn join(address: &str, key: &SigningKey, name: &str) -> Result<Wire> {
        Wire::join_reading(address, key, name, InboxChoice::None).await
    }

    /// The same, and it reads these inboxes.
    pub async fn join_reading(
        address: &str,
        key: &SigningKey,
        name: &str,
        inbox: InboxChoice,
    ) -> Result<Wire> {
        let mut wire = Wire::open(address, "/v1/ws").await?;
        wire.greet(address, key, name, inbox, None).await?;
        Ok(wire)
    }

    /// Says hello on a socket that was just opened; with `resume`, as one that was here.
    pub async fn greet(
        &mut self,
        address: &str,
        key: &SigningKey,
        name: &str,
        inbox: InboxChoice,
        resume: Option<ResumeParams>,
    ) -> Result<HelloResult> {
        let challenge: Challenge = frame::data(CODEC, &self.frame().await?)?;
        let hello = HelloParams { inbox, resume, ..hello(&challenge, key, name, address)? };
        self.ask("hello", hello).await.context("say hello")
    }

    /// Makes a request and waits for its answer; events meanwhile are passed over.
    pub async fn ask<P: Serialize, R: DeserializeOwned>(&mut self, method: &str, params: P) -> Result<R> {
        self.write(&framed(&request("ask", method, params)?)).await?;
        loop {
            let frame = self.frame().await?;
            if !answers(&frame, b"ask") {
                continue;
            }
            let response: Response<R> = CODEC.decode(&frame)?;
            return match (response.result, response.error) {
                (Some(result), _) => Ok(result),
                (None, Some(error)) => Err(anyhow!("{method}: {error}")),
                (None, None) => bail!("{method}: the answer is empty"),
            };
        }
    }

    /// Writes bytes that are frames.
    pub async fn write(&mut self, frames: &[u8]) -> Result<()> {
        self.stream.write_all(frames).await.context("write to the broker")
    }

    /// Waits for more bytes.
    pub async fn fill(&mut self) -> Result<()> {
        if self.start == self.read.len() {
            self.read.clear();
            self.start = 0;
        } else if self.start > READ {
            self.read.drain(..self.start);
            self.start = 0;
        }
        self.read.reserve(READ);
        let count = self.stream.read_buf(&mut self.read).await.context("read from the broker")?;
        ensure!(count > 0, "the broker closed a socket");
        Ok(())
    }

    /// The next whole message of those that were read; pings and the like are passed over.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>> {
        loop {
            let rest = &self.read[self.start..];
            let [first, second, ..] = *rest else { return Ok(None) };
            let (head, len) = match second {
                126 if rest.len() >= 4 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
                127 if rest.len() >= 10 => {
                    let mut len = [0; 8];
                    len.copy_from_slice(&rest[2..10]);
                    (10, usize::try_from(u64::from_be_bytes(len))?)
                }
                126 | 127 => return Ok(None),
                len => (2, usize::from(len)),
            };
            if rest.len() < head + len {
                return Ok(None);
            }
            let from = self.start + head;
            self.start = from + len;
            match first & 0x0f {
                BINARY => return Ok(Some(&self.read[from..from + len])),
                CLOSE => bail!("the broker closed a socket: {}", reason(&self.read[from..from + len])),
                _ => {}
            }
        }
    }

    /// Waits for a message.
    pub async fn frame(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(frame) = self.next_message()? {
                return Ok(frame.to_vec());
            }
            self.fill().await?;
        }
    }
}

/// The bytes of a request.
pub fn request<P: Serialize>(id: &str, method: &str, params: P) -> Result<Vec<u8>> {
    let id = id.parse().map_err(|_| anyhow!("{id} is no id of a request"))?;
    Ok(CODEC.encode(&Request::new(id, method, params)))
}

/// A client's frame around `payload`.
pub fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | BINARY];
    match payload.len() {
        len @ 0..=125 => frame.push(0x80 | len as u8),
        len @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// Where the id begins in a request or response: after a map's head, `type`, `req` or `res`, `id` and a text's head.
pub const ID_AT: usize = 1 + 5 + 4 + 3 + 1;

/// The id of a request or response, of so many characters; nothing for an event.
pub fn id_of(frame: &[u8], len: usize) -> Option<&[u8]> {
    let kind = frame.get(7..10)?;
    if kind != b"req" && kind != b"res" { None } else { frame.get(ID_AT..ID_AT + len) }
}

/// Whether this is a response that says no; gives it in words.
pub fn refusal(frame: &[u8], id_len: usize) -> Option<String> {
    let ok = frame.get(ID_AT + id_len..ID_AT + id_len + 4);
    if frame.get(7..10) != Some(b"res") || ok == Some(b"\xa2ok\xc3") {
        return None;
    }
    let response: Result<Response<serde_json::Value>, _> = CODEC.decode(frame);
    Some(match response {
        Ok(Response { error: Some(error), .. }) => error.to_string(),
        Ok(_) => "the answer is empty".to_owned(),
        Err(error) => format!("the answer does not read: {error}"),
    })
}

fn answers(frame: &[u8], id: &[u8]) -> bool {
    frame.get(7..10) == Some(b"res") && id_of(frame, id.len()) == Some(id)
}

/// Where `needle` first begins in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

fn reason(close: &[u8]) -> String {
    String::from_utf8_lossy(close.get(2..).unwrap_or_default()).into_owned()
}

fn hello(challenge: &Challenge, key: &SigningKey, name: &str, host: &str) -> Result<HelloParams> {
    let mesh = "default".parse().map_err(|_| anyhow!("no name of a mesh"))?;
    let (member, session) = (member_key(key), session_key(key));
    let Challenge { nonce, broker, .. } = challenge;
    let proof = Proof { mesh: &mesh, member: &member, session: &session, nonce, broker, host }.sign(key);
    Ok(HelloParams {
        protocol: ProtocolRange { min: PROTOCOL, max: PROTOCOL },
        client: ClientInfo {
            name: "tenure-bench".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            platform: None,
            instance_id: "bench".parse().map_err(|_| anyhow!("no id of an instance"))?,
        },
        proof,
        mesh,
        member,
        session,
        attestation: None,
        resume: None,
        reconcile: None,
        positions: Vec::new(),
        inbox: InboxChoice::None,
        profile: Profile::named(name),
        features: Default::default(),
        auth: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_where_they_are_looked_for() {
        let asked = request("00000042", "ping", serde_json::json!({})).unwrap();
        assert_eq!(id_of(&asked, 8), Some(&b"00000042"[..]));
        let id = "00000042".parse().unwrap();
        let good = CODEC.encode(&Response::new(id, Ok(serde_json::json!({"a": 1}))));
        assert_eq!((id_of(&good, 8), refusal(&good, 8)), (Some(&b"00000042"[..]), None));
        let id = "00000042".parse().unwrap();
        let no = tenure_client::proto::WireError::bad_request("no");
        let bad = CODEC.encode(&Response::<()>::new(id, Err(no)));
        assert!(refusal(&bad, 8).unwrap().contains("no"));
    }

    #[test]
    fn a_frame_is_masked_with_zeros() {
        let frame = framed(&[7; 300]);
        assert_eq!(&frame[..8], &[0x82, 0x80 | 126, 1, 44, 0, 0, 0, 0]);
        assert_eq!(frame.len(), 308);
    }
}
