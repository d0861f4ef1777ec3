//! `frames.json`: every kind of frame in both codecs, frames that are tolerated, and frames that are not.

use serde::Serialize;
use serde_json::{Value, json};

use super::{events, malformed, requests, responses, tolerated};
use crate::codec::Codec;
use crate::error::WireError;
use crate::event::EventBody;
use crate::frame::{Request, Response};
use crate::method::Method;
use crate::text;

pub(super) fn frames() -> Value {
    let mut frames = requests::requests();
    frames.extend(responses::responses());
    frames.extend(events::events());
    json!({
        "about": "`json` is a frame's text and `msgpack` its bytes in hex; both say `value`, except that bytes \
                  (`bodyB64`) are base64 in JSON and `bin` in MessagePack. `frames` encode to exactly these bytes. \
                  `tolerated` decode to what `reads` says. `malformed` are errors.",
        "frames": frames,
        "tolerated": tolerated::tolerated(),
        "malformed": malformed::malformed(),
    })
}

/// A frame in both codecs, after the fields of `head`.
fn entry(mut head: Value, encode: impl Fn(Codec) -> Vec<u8>) -> Value {
    let bytes = encode(Codec::Json);
    head["value"] = serde_json::from_slice(&bytes).expect("JSON of ours");
    head["json"] = json!(String::from_utf8(bytes).expect("text of ours"));
    head["msgpack"] = json!(text::hex(&encode(Codec::MsgPack)));
    head
}

/// A request for `method`.
pub(super) fn request<P: Serialize>(name: &str, method: Method, params: P) -> Value {
    let frame = Request::new(super::samples::id("7"), method.as_str(), params);
    entry(json!({"name": name, "frame": "req", "method": method.as_str()}), |codec| codec.encode(&frame))
}

/// A response to `method`.
pub(super) fn response<R: Serialize>(name: &str, method: Method, outcome: Result<R, WireError>) -> Value {
    let frame = Response::new(super::samples::id("7"), outcome);
    entry(json!({"name": name, "frame": "res", "method": method.as_str()}), |codec| codec.encode(&frame))
}

/// An event, numbered or not.
pub(super) fn event(name: &str, seq: Option<u64>, body: EventBody) -> Value {
    let head = json!({"name": name, "frame": "event", "event": body.name()});
    entry(head, |codec| body.encode(codec, seq))
}
