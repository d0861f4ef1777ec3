//! The envelope: requests, responses, events. One object a WebSocket message.
//!
//! Frames are decoded in two passes over the same bytes: first the [`Head`], which skips over the payload
//! without building it, then the payload as the type that the head calls for. So every payload decodes straight
//! into its type in either codec, and a duplicate key anywhere we look is an error instead of a surprise. What comes
//! most often is read in one pass ([`request`]), to the same end.

use serde::{Deserialize, Serialize};

use crate::codec::{Codec, DecodeError};
use crate::error::WireError;
use crate::ids::RequestId;
use crate::number::U53;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FrameType {
    /// A request.
    Req,
    /// Its response.
    Res,
    /// Something that happened.
    Event,
}

/// Everything of a frame but its payload, or with its params as `P`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Head<P = Skipped> {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: FrameType,
    /// Of a request or response.
    #[serde(default)]
    pub id: Option<RequestId>,
    /// Of a request.
    #[serde(default)]
    pub method: Option<String>,
    /// Of a response.
    #[serde(default)]
    pub ok: Option<bool>,
    /// Of an event.
    #[serde(default)]
    pub event: Option<String>,
    /// Of a numbered event.
    #[serde(default)]
    pub seq: Option<U53>,
    #[serde(default = "none")]
    params: Option<P>,
    #[serde(default)]
    result: Skipped,
    #[serde(default)]
    error: Skipped,
    #[serde(default)]
    data: Skipped,
}

/// A payload that was stepped over: it must be there at most once and well formed, no more is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Skipped)
    }
}

impl Head {
    /// The head of the frame in `bytes`.
    pub fn decode(codec: Codec, bytes: &[u8]) -> Result<Head, DecodeError> {
        codec.decode(bytes)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request<P> {
    /// Always `req`.
    #[serde(rename = "type")]
    pub kind: FrameType,
    /// What the response repeats.
    pub id: RequestId,
    /// What to do.
    pub method: String,
    /// With what.
    pub params: P,
}

impl<P> Request<P> {
    /// A request to do `method` with `params`.
    pub fn new(id: RequestId, method: &str, params: P) -> Request<P> {
        Request { kind: FrameType::Req, id, method: method.to_owned(), params }
    }
}

/// A response: either a result or an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response<R> {
    /// Always `res`.
    #[serde(rename = "type")]
    pub kind: FrameType,
    /// The request's id.
    pub id: RequestId,
    /// Whether it was done.
    pub ok: bool,
    /// What came of it.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

fn none<R>() -> Option<R> {
    None
}

impl<R> Response<R> {
    /// The response to `id`.
    pub fn new(id: RequestId, outcome: Result<R, WireError>) -> Response<R> {
        let (ok, result, error) = match outcome {
            Ok(result) => (true, Some(result), None),
            Err(error) => (false, None, Some(error)),
        };
        Response { kind: FrameType::Res, id, ok, result, error }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event<D> {
    /// Always `event`.
    #[serde(rename = "type")]
    pub kind: FrameType,
    /// What happened.
    pub event: String,
    /// Its number on this session's stream; absent for `challenge` and `closing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<U53>,
    /// The particulars.
    pub data: D,
}

impl<D> Event<D> {
    /// An event of `name`.
    pub fn new(name: &str, seq: Option<u64>, data: D) -> Event<D> {
        Event { kind: FrameType::Event, event: name.to_owned(), seq: seq.map(U53::saturating), data }
    }
}

/// The id and params of a request of `method`, read in one pass. Nothing if it is something else or something is wrong
/// with it: what, is for the two passes to say.
pub fn request<P: serde::de::DeserializeOwned>(
    codec: Codec,
    method: &str,
    bytes: &[u8],
) -> Option<(RequestId, P)> {
    let head: Head<P> = codec.decode(bytes).ok()?;
    let asked = head.kind == FrameType::Req && head.method.as_deref() == Some(method);
    head.id.zip(head.params).filter(|_| asked)
}

/// The payload of a request whose head has been read.
pub fn params<P: serde::de::DeserializeOwned>(codec: Codec, bytes: &[u8]) -> Result<P, DecodeError> {
    #[derive(Deserialize)]
    struct Only<P> {
        params: P,
    }
    codec.decode::<Only<P>>(bytes).map(|o| o.params)
}

/// The payload of a request that may have none: absent params are `{}`.
pub fn params_or_default<P: serde::de::DeserializeOwned + Default>(
    codec: Codec,
    bytes: &[u8],
) -> Result<P, DecodeError> {
    #[derive(Deserialize)]
    struct Only<P> {
        #[serde(default = "none")]
        params: Option<P>,
    }
    codec.decode::<Only<P>>(bytes).map(|o| o.params.unwrap_or_default())
}

/// The payload of an event whose head has been read.
pub fn data<D: serde::de::DeserializeOwned>(codec: Codec, bytes: &[u8]) -> Result<D, DecodeError> {
    #[derive(Deserialize)]
    struct Only<D> {
        data: D,
    }
    codec.decode::<Only<D>>(bytes).map(|o| o.data)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::message::SendParams;

    fn send() -> Value {
        json!({
            "type": "req", "id": "7", "method": "send",
            "params": {"to": "topic:jobs", "body": "one", "clientMessageId": "c-1"},
        })
    }

    fn read(codec: Codec, frame: &Value) -> Option<(RequestId, SendParams)> {
        request(codec, "send", &codec.encode(frame))
    }

    #[test]
    fn one_pass_reads_what_two_read() {
        for codec in [Codec::Json, Codec::MsgPack] {
            let bytes = codec.encode(&send());
            let head = Head::decode(codec, &bytes).unwrap();
            let params: SendParams = params(codec, &bytes).unwrap();
            assert_eq!(read(codec, &send()), Some((head.id.unwrap(), params)));
        }
    }

    #[test]
    fn what_is_not_sound_is_left_to_two_passes() {
        let cases = [
            ("type", json!("res")),
            ("id", Value::Null),
            ("method", json!("ack")),
            ("params", Value::Null),
            ("params", json!({"to": "topic:jobs"})),
            ("ok", json!("yes")),
            ("seq", json!(-1)),
        ];
        for (field, value) in cases {
            let mut frame = send();
            frame[field] = value;
            for codec in [Codec::Json, Codec::MsgPack] {
                assert_eq!(read(codec, &frame), None, "{frame}");
            }
        }
        let twice = br#"{"type":"req","id":"7","method":"send","params":{"to":"topic:jobs","body":"one",
            "clientMessageId":"c-1"},"params":{"to":"topic:jobs","body":"two","clientMessageId":"c-2"}}"#;
        assert_eq!(request::<SendParams>(Codec::Json, "send", twice), None);
    }
}
