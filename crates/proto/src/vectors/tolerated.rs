//! Frames that nobody should write and everybody must read: unknown fields, `null` for absent, other orders.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::samples;
use crate::codec::Codec;
use crate::event::EventBody;
use crate::frame::{self, Head, Request};
use crate::hello::HelloParams;
use crate::message::SendParams;
use crate::method::{Empty, Method};
use crate::subscribe::SubscribeParams;
use crate::text;

pub(super) fn tolerated() -> Vec<Value> {
    let mut entries = hellos();
    entries.extend(requests());
    entries.extend(events());
    entries
}

/// A request as `text` spells it, and as we would.
fn request<P: Serialize + DeserializeOwned>(name: &str, method: Method, text: &str) -> Value {
    let params: P = frame::params(Codec::Json, text.as_bytes()).expect("a tolerated request");
    let reads = Codec::Json.encode(&Request::new(samples::id("7"), method.as_str(), params));
    entry(name, json!({"frame": "req", "method": method.as_str()}), text, Some(reads))
}

fn entry(name: &str, mut head: Value, text: &str, reads: Option<Vec<u8>>) -> Value {
    let value: Value = serde_json::from_str(text).expect("JSON");
    head["name"] = json!(name);
    head["json"] = json!(text);
    head["msgpack"] = json!(text::hex(&Codec::MsgPack.encode(&value)));
    head["reads"] = json!(reads.map(|bytes| String::from_utf8(bytes).expect("text of ours")));
    head
}

/// The least hello with `change` made to its params.
fn hello(name: &str, change: impl Fn(&mut Value)) -> Value {
    let mut params = json!(samples::hello_least());
    change(&mut params);
    let text = json!({"type": "req", "id": "7", "method": "hello", "params": params}).to_string();
    request::<HelloParams>(name, Method::Hello, &text)
}

fn hellos() -> Vec<Value> {
    let nulls = ["attestation", "resume", "reconcile", "inbox", "features", "auth"];
    vec![
        hello("hello: null is absent", |params| nulls.iter().for_each(|field| params[field] = Value::Null)),
        hello("hello: null inside is absent", |params| {
            params["client"]["platform"] = Value::Null;
            params["profile"] = json!({"name": "n", "status": null, "summary": null, "tags": null});
            params["features"] = json!({"require": null, "optional": null});
            params["reconcile"] = json!({"policy": null, "subscriptions": null, "inflight": null});
        }),
        hello("hello: what has a default is absent", |params| {
            params.as_object_mut().map(|fields| fields.remove("inbox"));
            params.as_object_mut().map(|fields| fields.remove("features"));
            params["profile"] = json!({"name": "n"});
            params["reconcile"] = json!({});
        }),
        hello("hello: unknown fields at every level", |params| {
            let new = || json!({"deep": [{"x": null}]});
            params["new"] = new();
            for field in ["protocol", "client", "profile", "features"] {
                params[field]["new"] = new();
            }
            params["auth"] = json!({"token": "secret", "new": new()});
        }),
        hello("hello: null beside the credential", |params| {
            params["auth"] = json!({"invite": "i", "token": null})
        }),
        hello("hello: a feature as an object", |params| {
            params["features"] = json!({"require": [{"bit": "dedupe", "version": 2}, "resume"]});
        }),
        hello("hello: integers spelled as fractions", |params| {
            params["resume"] = json!({"token": "t", "epoch": "e", "lastSeq": 41.0});
            params["attestation"] = json!({"expiresAt": 1_700_000_000_000.0, "signature": "s"});
        }),
        hello("hello: a resume whose epoch is empty", |params| {
            params["resume"] = json!({"token": "t", "epoch": "", "lastSeq": 41});
        }),
        hello("hello: a resume of other types", |params| {
            params["resume"] = json!({"token": 7, "epoch": ["e"], "lastSeq": -1});
        }),
        hello("hello: a resume that is no object", |params| params["resume"] = json!("t")),
    ]
}

fn requests() -> Vec<Value> {
    let ping = r#"{"type":"req","id":"7","method":"ping"}"#;
    let absent: Empty = frame::params_or_default(Codec::Json, ping.as_bytes()).expect("a ping");
    let reads = Codec::Json.encode(&Request::new(samples::id("7"), "ping", absent));
    let order = "\n{ \"params\" : {\"prefetch\":null, \"topic\":\"jobs\",\t\"from\":null},\r\n \"method\":\"subscribe\", \
                 \"new\":1, \"id\":\"7\", \"type\":\"req\" } ";
    let escapes = r#"{"\u0074ype":"req","id":"7","method":"send","params":{"to":"topic:jobs","\u0062ody":"\u0061","clientMessageId":"1","meta":{"\u0061":1}}}"#;
    let text = r#"{"type":"req","id":"7","method":"send","params":{"to":"topic:jobs","bodyB64":"AP+A","clientMessageId":"1"}}"#;
    vec![
        entry("ping without params", json!({"frame": "req", "method": "ping"}), ping, Some(reads)),
        request::<SubscribeParams>("any order and white space", Method::Subscribe, order),
        request::<SendParams>("escaped keys", Method::Send, escapes),
        request::<SendParams>("bytes as base64 in either codec", Method::Send, text),
    ]
}

fn events() -> Vec<Value> {
    let event = |name: &str, text: &str| {
        let head = Head::decode(Codec::Json, text.as_bytes()).expect("an event");
        let event = head.event.unwrap_or_default();
        let body = EventBody::decode(Codec::Json, &event, text.as_bytes()).expect("an event");
        let known = !matches!(body, EventBody::Unknown(_));
        let reads = known.then(|| body.encode(Codec::Json, head.seq.map(|seq| seq.get())));
        entry(name, json!({"frame": "event", "event": event}), text, reads)
    };
    vec![
        event(
            "event: unknown fields",
            r#"{"new":{},"type":"event","event":"tick","seq":5,"data":{"ts":1,"new":[]}}"#,
        ),
        event("event: null seq", r#"{"type":"event","event":"tick","seq":null,"data":{"ts":1}}"#),
        event(
            "event: of tomorrow, to be ignored",
            r#"{"type":"event","event":"of_tomorrow","seq":6,"data":{"x":1}}"#,
        ),
        event("event: of tomorrow, without data", r#"{"type":"event","event":"of_tomorrow","seq":7}"#),
    ]
}
