//! A broker that a test plays on a real socket, frame by frame.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tenure_client::{Options, Session, random_key};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

pub(crate) struct Broker {
    listener: TcpListener,
    ws: Option<WebSocketStream<TcpStream>>,
    events: u64,
    leased: bool,
    /// The params of the last hello.
    pub(crate) hello: Value,
}

impl Broker {
    pub(crate) async fn start() -> (Broker, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        (Broker { listener, ws: None, events: 0, leased: false, hello: Value::Null }, url)
    }

    pub(crate) async fn say(&mut self, frame: Value) {
        self.ws.as_mut().unwrap().send(Message::text(frame.to_string())).await.unwrap();
    }

    /// The next request.
    pub(crate) async fn hear(&mut self) -> Value {
        loop {
            let message = self.ws.as_mut().unwrap().next().await.expect("a frame").expect("a frame");
            if let Message::Text(text) = message {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    /// The next request, which must be this one: its id and params.
    pub(crate) async fn expect(&mut self, method: &str) -> (Value, Value) {
        let mut frame = self.hear().await;
        assert_eq!(frame["method"], method, "{frame}");
        (frame["id"].take(), frame["params"].take())
    }

    pub(crate) async fn reply(&mut self, id: Value, result: Value) {
        self.say(json!({"type": "res", "id": id, "ok": true, "result": result})).await;
    }

    /// Takes the next socket and says hello.
    pub(crate) async fn accept(&mut self, reconcile: Value) {
        let (stream, _) = self.listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        #[allow(clippy::result_large_err)]
        let protocol = |_: &Request, mut response: Response| {
            let protocol = "tenure.v1.json".parse().unwrap();
            response.headers_mut().insert("sec-websocket-protocol", protocol);
            Ok(response)
        };
        self.ws = Some(tokio_tungstenite::accept_hdr_async(stream, protocol).await.unwrap());
        let challenge = json!({"nonce": "n", "ts": 1, "broker": "b"});
        self.say(json!({"type": "event", "event": "challenge", "data": challenge})).await;
        let (id, hello) = self.expect("hello").await;
        self.hello = hello;
        let kept = std::mem::replace(&mut self.leased, true);
        let (lease, outcome, replay) =
            if kept { ("kept", "resumed", "complete") } else { ("new", "new", "resync") };
        let mut result = json!({
            "protocol": 1, "broker": {"id": "b", "version": "0"}, "connId": "c1", "sessionId": "01".repeat(32),
            "lease": lease, "resume": {"outcome": outcome, "token": "t"}, "leaseTtlMs": 90_000,
            "policy": {"pingIntervalMs": 30_000, "staleAfterMs": 75_000, "tickIntervalMs": 30_000,
                "maxPayload": 1_048_576, "maxBufferedBytes": 1, "maxBufferedMessages": 1, "maxInflight": 1,
                "durability": "fsync"},
            "features": {}, "events": {"epoch": "e", "nextSeq": self.events + 1, "replay": replay},
            "stateVersion": {"presence": 0, "services": 0, "health": 0},
        });
        if !reconcile.is_null() {
            result["reconcile"] = reconcile;
        }
        self.reply(id, result).await;
    }

    pub(crate) async fn event(&mut self, name: &str, data: Value) {
        self.events += 1;
        self.say(json!({"type": "event", "event": name, "seq": self.events, "data": data})).await;
    }

    pub(crate) async fn deliver(&mut self, sub: &str, log: &str, seq: u64) {
        let key = "02".repeat(32);
        // Each entry of each log is a message of its own.
        let logs = log.bytes().map(u64::from).sum::<u64>() % 10_000;
        let message = json!({
            "id": format!("01HZY000000000000{logs:04}{seq:05}"), "clientMessageId": "m", "to": "topic:jobs", "log": log, "seq": seq,
            "from": {"member": key, "session": key, "name": "n"}, "priority": "next", "body": seq.to_string(),
            "sentAt": 1,
        });
        let tag = format!("{sub}.{seq}");
        self.event(
            "message",
            json!({"subId": sub, "tag": tag, "attempt": 1, "redelivered": false, "message": message}),
        )
        .await;
    }

    pub(crate) async fn subscribed(&mut self, sub: &str) -> Value {
        let (id, params) = self.expect("subscribe").await;
        self.reply(id, json!({"subId": sub, "startSeq": {"0": 1}})).await;
        params
    }

    /// Answers acks until it has heard of `count` tags; gives them.
    pub(crate) async fn acked(&mut self, count: usize) -> Vec<String> {
        let mut tags = Vec::new();
        while tags.len() < count {
            let (id, params) = self.expect("ack").await;
            self.reply(id, json!({"settled": params["tags"], "stale": []})).await;
            tags.extend(
                params["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap().to_owned()),
            );
        }
        tags
    }
}

/// A session in front of a broker that the test plays.
pub(crate) async fn connect(describe: impl FnOnce(Options) -> Options) -> (Broker, Session) {
    let (mut broker, url) = Broker::start().await;
    let options = describe(Options::new(&url, random_key().unwrap(), "me").unwrap());
    let (connected, ()) = tokio::join!(Session::connect(options), broker.accept(Value::Null));
    let (session, _) = connected.unwrap();
    (broker, session)
}
