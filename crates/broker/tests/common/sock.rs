//! A socket of our own that watches what it is told: every frame must have its shape, every number its place.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::http::Request;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::PATIENCE;
use super::keys::Who;
use super::mirror::Mirror;
use super::pipe::Pipe;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    MsgPack,
}

/// How to knock.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) addr: SocketAddr,
    /// The Host header, which the proof names.
    pub(crate) host: String,
    pub(crate) origin: Option<String>,
    /// The subprotocols offered.
    pub(crate) offer: Option<String>,
    /// Bytes of our receive buffer, for readers that do not read.
    pub(crate) buffer: Option<u32>,
}

impl Dial {
    pub(crate) fn to(addr: SocketAddr) -> Dial {
        Dial { addr, host: addr.to_string(), origin: None, offer: None, buffer: None }
    }

    pub(crate) fn offering(self, offer: &str) -> Dial {
        Dial { offer: Some(offer.to_owned()), ..self }
    }

    /// Knocks; the status when it did not become a socket.
    pub(crate) async fn open(self) -> Result<Sock, u16> {
        let tcp = match self.buffer {
            None => TcpStream::connect(self.addr).await.expect("connect"),
            Some(bytes) => {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.set_recv_buffer_size(bytes).expect("a small buffer");
                socket.connect(self.addr).await.expect("connect")
            }
        };
        tcp.set_nodelay(true).expect("nodelay");
        let mut request = Request::builder()
            .uri(format!("ws://{}/v1/ws", self.addr))
            .header("Host", &self.host)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key());
        if let Some(origin) = &self.origin {
            request = request.header("Origin", origin);
        }
        if let Some(offer) = &self.offer {
            request = request.header("Sec-WebSocket-Protocol", offer);
        }
        let request = request.body(()).expect("a request");
        let lost = Arc::new(AtomicBool::new(false));
        let pipe = Pipe { tcp, lost: lost.clone() };
        let upgrade = timeout(PATIENCE, tokio_tungstenite::client_async(request, pipe));
        let (ws, response) = match upgrade.await.expect("an upgrade in time") {
            Ok(upgraded) => upgraded,
            Err(Error::Http(response)) => return Err(response.status().as_u16()),
            Err(error) => panic!("upgrade: {error}"),
        };
        let chosen = response.headers().get("Sec-WebSocket-Protocol").map(|p| p.to_str().expect("text"));
        let codec = match chosen {
            None => {
                assert!(self.offer.is_none(), "an offer is answered");
                Codec::Json
            }
            Some("tenure.v1.json") => Codec::Json,
            Some("tenure.v1.msgpack") => Codec::MsgPack,
            Some(other) => panic!("subprotocol {other}"),
        };
        let mut sock = Sock {
            ws,
            codec,
            host: self.host,
            challenge: Value::Null,
            lost,
            requests: 0,
            result: Value::Null,
            next_seq: None,
            mirror: Mirror::default(),
            inbox: VecDeque::new(),
        };
        let first = sock.frame().await;
        assert_eq!((&first["type"], &first["event"]), (&json!("event"), &json!("challenge")), "{first}");
        sock.challenge = first["data"].clone();
        Ok(sock)
    }
}

/// What came.
#[derive(Debug)]
pub(crate) enum Got {
    Frame(Value),
    Ping,
    Pong,
    Closed(u16, String),
    /// The end of the connection.
    Cut,
    /// A reset, on which what was on its way may be lost.
    Reset,
}

/// What a client remembers of a socket when it dials the next.
#[derive(Clone)]
pub(crate) struct Past {
    pub(crate) token: Value,
    pub(crate) epoch: Value,
    pub(crate) last_seq: u64,
    pub(crate) mirror: Mirror,
}

/// How a socket ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Frames before `closing`.
    pub(crate) frames: Vec<Value>,
    /// The data of `closing`.
    pub(crate) closing: Value,
}

pub(crate) struct Sock {
    ws: WebSocketStream<Pipe>,
    pub(crate) codec: Codec,
    pub(crate) host: String,
    /// The data of the challenge.
    pub(crate) challenge: Value,
    lost: Arc<AtomicBool>,
    requests: u64,
    /// The result of the hello.
    pub(crate) result: Value,
    /// The number that the next event must have, once there is a hello.
    next_seq: Option<u64>,
    pub(crate) mirror: Mirror,
    /// Events that came while something else was waited for.
    inbox: VecDeque<Value>,
}

impl Sock {
    pub(crate) async fn open(addr: SocketAddr) -> Sock {
        Dial::to(addr).open().await.expect("upgrade")
    }

    pub(crate) async fn open_msgpack(addr: SocketAddr) -> Sock {
        Dial::to(addr).offering("tenure.v1.msgpack").open().await.expect("upgrade")
    }

    /// From here on nothing we write reaches the broker; what it writes reaches us.
    pub(crate) fn lose_writes(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn send_message(&mut self, message: Message) {
        // A broker that has hung up is found out by reading.
        let _ = timeout(PATIENCE, self.ws.send(message)).await.expect("room to write");
    }

    pub(crate) async fn send_text(&mut self, text: impl Into<String>) {
        self.send_message(Message::text(text.into())).await;
    }

    pub(crate) async fn send(&mut self, frame: &Value) {
        let message = self.encode(frame);
        self.send_message(message).await;
    }

    /// Queues frames and writes them all at once.
    pub(crate) async fn send_all(&mut self, frames: &[Value]) {
        for frame in frames {
            let message = self.encode(frame);
            self.ws.feed(message).await.expect("feed");
        }
        timeout(PATIENCE, self.ws.flush()).await.expect("room to write").expect("flush");
    }

    fn encode(&self, frame: &Value) -> Message {
        match self.codec {
            Codec::Json => Message::text(frame.to_string()),
            Codec::MsgPack => Message::binary(rmp_serde::to_vec_named(frame).expect("msgpack")),
        }
    }

    /// The next thing that comes, whatever it is.
    pub(crate) async fn recv(&mut self) -> Got {
        let next = timeout(PATIENCE, self.ws.next()).await;
        let frame: Value = match next.expect("something in time") {
            Some(Ok(Message::Text(text))) => {
                assert_eq!(self.codec, Codec::Json, "text on a MessagePack socket");
                serde_json::from_str(text.as_str()).expect("JSON")
            }
            Some(Ok(Message::Binary(bytes))) => {
                assert_eq!(self.codec, Codec::MsgPack, "binary on a JSON socket");
                rmp_serde::from_slice(&bytes).expect("MessagePack")
            }
            Some(Ok(Message::Ping(_))) => return Got::Ping,
            Some(Ok(Message::Pong(_) | Message::Frame(_))) => return Got::Pong,
            Some(Ok(Message::Close(Some(close)))) => {
                return Got::Closed(close.code.into(), close.reason.as_str().to_owned());
            }
            Some(Err(Error::Io(error))) if error.kind() == ErrorKind::ConnectionReset => return Got::Reset,
            Some(Ok(Message::Close(None)) | Err(_)) | None => return Got::Cut,
        };
        self.observe(&frame);
        Got::Frame(frame)
    }

    /// The next frame; anything else but pings is an error.
    pub(crate) async fn frame(&mut self) -> Value {
        loop {
            match self.recv().await {
                Got::Frame(frame) => return frame,
                Got::Ping | Got::Pong => {}
                other => panic!("a frame was expected, not {other:?}"),
            }
        }
    }

    fn observe(&mut self, frame: &Value) {
        let object = frame.as_object().expect("a frame is an object");
        match object["type"].as_str() {
            Some("res") => {
                let ok = object["ok"].as_bool().expect("ok");
                assert!(object["id"].is_string(), "{frame}");
                assert_eq!(
                    (object.contains_key("result"), object.contains_key("error")),
                    (ok, !ok),
                    "{frame}"
                );
                if !ok {
                    let error = &object["error"];
                    assert!(error["code"].is_string() && error["message"].is_string(), "{frame}");
                    assert!(error["retryable"].is_boolean(), "{frame}");
                }
            }
            Some("event") => {
                assert!(object["data"].is_object(), "{frame}");
                let unnumbered = matches!(object["event"].as_str(), Some("challenge" | "closing"));
                match self.next_seq {
                    _ if unnumbered => assert!(!object.contains_key("seq"), "{frame}"),
                    None => panic!("a numbered event before the hello's answer: {frame}"),
                    Some(next) => {
                        assert_eq!(object["seq"].as_u64(), Some(next), "{frame}");
                        self.next_seq = Some(next + 1);
                    }
                }
                if object["event"] == "presence" {
                    self.mirror.step(&object["data"]);
                }
            }
            _ => panic!("neither response nor event: {frame}"),
        }
    }

    /// Good params of a hello by `who` on this socket.
    pub(crate) fn hello_of(&self, who: &Who) -> Value {
        who.hello(&self.challenge, &self.host)
    }

    /// Says hello with these params; the result.
    pub(crate) async fn hello(&mut self, params: Value) -> Value {
        self.send(&json!({"type": "req", "id": "hello", "method": "hello", "params": params})).await;
        let answer = self.frame().await;
        assert_eq!((&answer["id"], &answer["ok"]), (&json!("hello"), &json!(true)), "{answer}");
        let result = answer["result"].clone();
        self.welcomed(&result);
        result
    }

    /// Takes in the result of a hello that was sent some other way.
    pub(crate) fn welcomed(&mut self, result: &Value) {
        self.result = result.clone();
        self.next_seq = Some(result["events"]["nextSeq"].as_u64().expect("nextSeq"));
        self.mirror.attached(result);
    }

    /// Joins as `who`; the hello's result.
    pub(crate) async fn join(&mut self, who: &Who) -> Value {
        let params = self.hello_of(who);
        self.hello(params).await
    }

    /// What this socket leaves to the next.
    pub(crate) fn past(&self) -> Past {
        Past {
            token: self.result["resume"]["token"].clone(),
            epoch: self.result["events"]["epoch"].clone(),
            last_seq: self.next_seq.expect("after hello") - 1,
            mirror: self.mirror.clone(),
        }
    }

    /// Joins as `who`, who was here before; the hello's result.
    pub(crate) async fn resume(&mut self, who: &Who, past: &Past) -> Value {
        let params = self.hello_of(who);
        self.resume_with(params, past).await
    }

    /// Resumes with these params of hello.
    pub(crate) async fn resume_with(&mut self, mut params: Value, past: &Past) -> Value {
        params["resume"] = json!({"token": past.token, "epoch": past.epoch, "lastSeq": past.last_seq});
        self.mirror = past.mirror.clone();
        let result = self.hello(params).await;
        let complete = result["events"]["replay"] == "complete";
        assert_eq!(result.get("snapshot").is_none(), complete, "a snapshot unless the replay is complete");
        if complete {
            assert_eq!(self.past().last_seq, past.last_seq, "it goes on where it was");
            assert_eq!(result["events"]["epoch"], past.epoch);
            assert_eq!(self.mirror.version, past.mirror.version, "or the replay would be old news");
        }
        result
    }

    /// Says hello with these params, is refused, and sees the socket end; the error and the data of `closing`.
    pub(crate) async fn refused(&mut self, params: Value) -> (Value, Value) {
        self.send(&json!({"type": "req", "id": "no", "method": "hello", "params": params})).await;
        let ended = self.ended().await;
        assert_eq!(ended.frames.len(), 1, "one answer: {:?}", ended.frames);
        assert_eq!((&ended.frames[0]["id"], &ended.frames[0]["ok"]), (&json!("no"), &json!(false)));
        (ended.frames[0]["error"].clone(), ended.closing)
    }

    /// Sends a request; its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> String {
        self.requests += 1;
        let id = format!("r{}", self.requests);
        self.send(&json!({"type": "req", "id": id, "method": method, "params": params})).await;
        id
    }

    /// The response to `id`; events that come before it are kept.
    pub(crate) async fn response(&mut self, id: &str) -> Value {
        loop {
            let frame = self.frame().await;
            if frame["type"] == "event" {
                self.inbox.push_back(frame);
            } else {
                assert_eq!(frame["id"], id, "{frame}");
                return frame;
            }
        }
    }

    /// Keeps an event for later.
    pub(crate) fn keep(&mut self, event: Value) {
        self.inbox.push_back(event);
    }

    /// Everything that was kept.
    pub(crate) fn kept(&mut self) -> VecDeque<Value> {
        std::mem::take(&mut self.inbox)
    }

    /// The result of a request that must succeed.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        let answer = self.response(&id).await;
        assert_eq!(answer["ok"], true, "{method}: {answer}");
        answer["result"].clone()
    }

    /// The error code of a request that must fail.
    pub(crate) async fn fails(&mut self, method: &str, params: Value) -> String {
        let id = self.request(method, params).await;
        let answer = self.response(&id).await;
        assert_eq!(answer["ok"], false, "{method}: {answer}");
        answer["error"]["code"].as_str().expect("a code").to_owned()
    }

    /// The next event that is not a tick.
    pub(crate) async fn event(&mut self) -> Value {
        loop {
            let frame = match self.inbox.pop_front() {
                Some(frame) => frame,
                None => self.frame().await,
            };
            assert_eq!(frame["type"], "event", "{frame}");
            if frame["event"] != "tick" {
                return frame;
            }
        }
    }

    /// The data of the next event that is not a tick, which must be `name`.
    pub(crate) async fn expect(&mut self, name: &str) -> Value {
        let event = self.event().await;
        assert_eq!(event["event"], name, "{event}");
        event["data"].clone()
    }

    /// The data of the next event, which must be this step of presence.
    pub(crate) async fn sees(&mut self, kind: &str, who: &Who) -> Value {
        let data = self.expect("presence").await;
        assert_eq!((&data["kind"], &data["peer"]["session"]), (&json!(kind), &json!(who.id())), "{data}");
        data
    }

    /// Presence as it is now, all pages, which must be what the events had told.
    pub(crate) async fn sees_all_of_it(&mut self) {
        let list = self.call("presence.list", json!({})).await;
        assert!(list.get("next").is_none(), "{list}");
        let peers: Vec<&Value> = self.mirror.peers.values().collect();
        let listed: Vec<&Value> = list["peers"].as_array().expect("peers").iter().collect();
        assert_eq!(peers, listed);
    }

    /// Reads until the socket ends, which `closing` must announce truthfully.
    pub(crate) async fn ended(&mut self) -> Ended {
        let mut frames: Vec<Value> = self.inbox.drain(..).collect();
        let (code, reason) = loop {
            match self.recv().await {
                Got::Frame(frame) => frames.push(frame),
                Got::Ping | Got::Pong => {}
                Got::Closed(code, reason) => break (code, reason),
                other => panic!("the socket ended without a close frame, {other:?} after {frames:?}"),
            }
        };
        // We have answered the close; then the broker hangs up, and not before we could have read it.
        assert!(matches!(self.recv().await, Got::Cut), "nothing follows a close");
        let last = frames.pop().expect("closing precedes every close");
        assert_eq!(last["event"], "closing", "{last}");
        let closing = last["data"].clone();
        assert_eq!((&closing["code"], &closing["reason"]), (&json!(code), &json!(reason)), "{closing}");
        assert!(closing["retryable"].is_boolean(), "{closing}");
        Ended { frames, closing }
    }

    /// Says goodbye and sees it through.
    pub(crate) async fn bye(&mut self) {
        let id = self.request("bye", json!({})).await;
        let answer = self.response(&id).await;
        assert_eq!((&answer["ok"], &answer["result"]), (&json!(true), &json!({})), "{answer}");
        let ended = self.ended().await;
        assert_eq!((&ended.closing["code"], &ended.closing["reason"]), (&json!(1000), &json!("bye")));
    }

    /// Reads a byte at a time and no more until the socket ends, or for as long as anybody has patience; whether it
    /// ended. What is read is lost.
    pub(crate) async fn trickle(self, pause: Duration) -> bool {
        let mut tcp = self.ws.into_inner().tcp;
        let mut pace = tokio::time::interval(pause);
        let until = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < until {
            pace.tick().await;
            match tcp.try_read(&mut [0]) {
                Ok(0) => return true,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return true,
                _ => {}
            }
            // A socket that has ended says so when it is written to, however much of it is unread.
            if matches!(tcp.try_write(&[0x8a, 0x80, 0, 0, 0, 0]), Err(e) if e.kind() != ErrorKind::WouldBlock)
            {
                return true;
            }
        }
        let _ = tcp.shutdown().await;
        false
    }

    /// The connection itself, to write what is no frame.
    pub(crate) fn into_tcp(self) -> TcpStream {
        self.ws.into_inner().tcp
    }

    /// Drops the connection as a crash would: no close frame, no goodbye.
    pub(crate) fn cut(self) {
        drop(self);
    }
}

/// Whether `closing` says this.
#[track_caller]
pub(crate) fn assert_closing(closing: &Value, code: u16, reason: &str, retryable: bool) {
    let said = (&closing["code"], &closing["reason"], &closing["retryable"]);
    assert_eq!(said, (&json!(code), &json!(reason), &json!(retryable)), "{closing}");
}
