//! Messages as a client by hand sends and reads them.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::keys::hex;
use super::sock::Sock;
use super::{PATIENCE, Who};

pub(crate) fn to_session(who: &Who) -> String {
    format!("session:{}", who.id())
}

pub(crate) fn to_member(who: &Who) -> String {
    format!("member:{}", hex(&who.member))
}

pub(crate) fn inbox_of(who: &Who) -> String {
    format!("inbox/s/{}", who.id())
}

impl Sock {
    /// Sends a text under an id; the result.
    pub(crate) async fn post(&mut self, to: &str, id: &str, body: &str) -> Value {
        self.call("send", json!({"to": to, "clientMessageId": id, "body": body})).await
    }

    /// Sends texts `a1`, `a2` … to a topic, all in flight at once; their results.
    pub(crate) async fn post_many(&mut self, to: &str, prefix: &str, count: usize) -> Vec<Value> {
        let frame = |n: usize| {
            let id = format!("{prefix}{n}");
            let params = json!({"to": to, "clientMessageId": id, "body": id});
            json!({"type": "req", "id": format!("post-{id}"), "method": "send", "params": params})
        };
        let frames: Vec<Value> = (1..=count).map(frame).collect();
        self.send_all(&frames).await;
        let mut results = Vec::new();
        while results.len() < count {
            let answer = self.frame().await;
            if answer["type"] == "event" {
                self.keep(answer);
            } else {
                assert_eq!(answer["ok"], true, "{answer}");
                results.push(answer["result"].clone());
            }
        }
        results
    }

    /// The data of the next event called `name`; those before it are passed over.
    pub(crate) async fn until(&mut self, name: &str) -> Value {
        let found = async {
            loop {
                let event = self.event().await;
                if event["event"] == name {
                    return event["data"].clone();
                }
            }
        };
        timeout(PATIENCE, found).await.expect(name)
    }

    /// The next delivery.
    pub(crate) async fn delivery(&mut self) -> Value {
        self.until("message").await
    }

    /// The next `count` deliveries.
    pub(crate) async fn deliveries(&mut self, count: usize) -> Vec<Value> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.delivery().await);
        }
        all
    }

    /// The next delivery, which must have this body; its tag.
    pub(crate) async fn reads(&mut self, body: &str) -> Value {
        let delivery = self.delivery().await;
        assert_eq!(delivery["message"]["body"], body, "{delivery}");
        delivery["tag"].clone()
    }

    /// Acks a delivery, which must take effect.
    pub(crate) async fn ack(&mut self, tag: &Value) {
        let result = self.call("ack", json!({"tags": [tag]})).await;
        assert_eq!(result, json!({"settled": [tag], "stale": []}));
    }

    /// Deliveries that have come although nobody waited for them: those of a few rounds through the broker.
    pub(crate) async fn stray(&mut self) -> Vec<Value> {
        for _ in 0..4 {
            self.call("ping", json!({})).await;
        }
        let events: VecDeque<Value> = self.kept();
        events
            .into_iter()
            .filter(|event| event["event"] == "message")
            .map(|event| event["data"].clone())
            .collect()
    }

    /// Nothing is delivered.
    #[track_caller]
    pub(crate) fn quiet(&mut self) -> impl Future<Output = ()> {
        async move {
            let stray = self.stray().await;
            assert!(stray.is_empty(), "{stray:?}");
        }
    }

    /// The error of a request that must fail with `code`, and whose message must have `words` in it.
    pub(crate) async fn refuses(&mut self, method: &str, params: Value, code: &str, words: &str) -> Value {
        let shown: String = params.to_string().chars().take(200).collect();
        let id = self.request(method, params).await;
        let answer = self.response(&id).await;
        assert_eq!(answer["error"]["code"], code, "{method} {shown}: {answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(words), "{method} {shown}: {message:?} does not say {words:?}");
        assert!(message.len() < 700, "{method} {shown}: an answer as long as what it answers");
        answer["error"].clone()
    }
}

/// Waits until the broker has noticed that the socket of `who` is gone; `sock` is somebody else's.
pub(crate) async fn in_grace(sock: &mut Sock, who: &Who) {
    loop {
        let list = sock.call("presence.list", json!({"debug": true})).await;
        let peers = list["peers"].as_array().expect("peers");
        if peers.iter().any(|peer| peer["session"] == who.id() && peer["transport"] == "grace") {
            return;
        }
    }
}
