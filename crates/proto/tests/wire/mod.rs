//! What the tests share: reading a whole frame as its head calls for, and the vectors on disk.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_proto::codec::DecodeError;
use tenure_proto::dead::{
    DeadDropParams, DeadDropResult, DeadListParams, DeadListResult, DeadRetryParams, DeadRetryResult,
};
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, FrameType, Head, Request, Response};
use tenure_proto::hello::{HelloParams, HelloResult};
use tenure_proto::message::{
    HistoryParams, HistoryResult, NackParams, SendParams, SendResult, SendStatusParams, SendStatusResult,
    SettleResult, TagsParams,
};
use tenure_proto::method::{Empty, HealthResult, Method, PingResult, PresenceListParams, PresenceListResult};
use tenure_proto::peer::ProfilePatch;
use tenure_proto::reconcile::{ReconcileParams, ReconcileResult};
use tenure_proto::run::{
    RunChunkParams, RunEndParams, RunGetResult, RunIdParams, RunStartParams, RunStartResult, RunsListParams,
    RunsListResult,
};
use tenure_proto::service::{
    RelayOpenParams, RelayOpenResult, ServiceRenewParams, ServiceRenewResult, ServiceWithdrawParams,
    ServicesListParams, ServicesListResult,
};
use tenure_proto::subscribe::{
    FetchParams, FetchResult, SubscribeParams, SubscribeResult, UnsubscribeParams,
};
use tenure_proto::topic::{
    GroupDeleteParams, GroupsListParams, GroupsListResult, TopicCreateParams, TopicDeleteParams,
    TopicsListParams, TopicsListResult,
};
use tenure_proto::{Codec, text};

/// Both codecs.
pub(crate) const CODECS: [Codec; 2] = [Codec::Json, Codec::MsgPack];

/// Reads a frame in one codec and writes what was understood in another.
type Transcode = fn(&Head, Codec, &[u8], Codec) -> Result<Vec<u8>, DecodeError>;

fn request<P: DeserializeOwned + Serialize>(
    head: &Head,
    from: Codec,
    bytes: &[u8],
    to: Codec,
) -> Result<Vec<u8>, DecodeError> {
    let params: P = frame::params(from, bytes)?;
    write_request(head, params, to)
}

/// A request that may come without params.
fn bare_request<P: DeserializeOwned + Serialize + Default>(
    head: &Head,
    from: Codec,
    bytes: &[u8],
    to: Codec,
) -> Result<Vec<u8>, DecodeError> {
    let params: P = frame::params_or_default(from, bytes)?;
    write_request(head, params, to)
}

fn write_request<P: Serialize>(head: &Head, params: P, to: Codec) -> Result<Vec<u8>, DecodeError> {
    let absent = |what: &str| DecodeError(format!("a request without {what}"));
    let id = head.id.clone().ok_or_else(|| absent("id"))?;
    let method = head.method.as_ref().ok_or_else(|| absent("method"))?;
    Ok(to.encode(&Request::new(id, method, params)))
}

fn response<R: DeserializeOwned + Serialize>(
    _: &Head,
    from: Codec,
    bytes: &[u8],
    to: Codec,
) -> Result<Vec<u8>, DecodeError> {
    Ok(to.encode(&from.decode::<Response<R>>(bytes)?))
}

/// How the requests and responses of `method` are read.
pub(crate) fn method_types(method: Method) -> (Transcode, Transcode) {
    match method {
        Method::Hello => (request::<HelloParams>, response::<HelloResult>),
        Method::Bye => (bare_request::<Empty>, response::<Empty>),
        Method::Ping => (bare_request::<Empty>, response::<PingResult>),
        Method::Reconcile => (request::<ReconcileParams>, response::<ReconcileResult>),
        Method::PresenceList => (bare_request::<PresenceListParams>, response::<PresenceListResult>),
        Method::ProfileSet => (request::<ProfilePatch>, response::<Empty>),
        Method::Health => (bare_request::<Empty>, response::<HealthResult>),
        Method::Send => (request::<SendParams>, response::<SendResult>),
        Method::SendStatus => (request::<SendStatusParams>, response::<SendStatusResult>),
        Method::Subscribe => (request::<SubscribeParams>, response::<SubscribeResult>),
        Method::Unsubscribe => (request::<UnsubscribeParams>, response::<Empty>),
        Method::Fetch => (request::<FetchParams>, response::<FetchResult>),
        Method::Ack | Method::Progress => (request::<TagsParams>, response::<SettleResult>),
        Method::Nack => (request::<NackParams>, response::<SettleResult>),
        Method::History => (request::<HistoryParams>, response::<HistoryResult>),
        Method::TopicsList => (bare_request::<TopicsListParams>, response::<TopicsListResult>),
        Method::TopicsCreate => (request::<TopicCreateParams>, response::<Empty>),
        Method::TopicsDelete => (request::<TopicDeleteParams>, response::<Empty>),
        Method::GroupsDelete => (request::<GroupDeleteParams>, response::<Empty>),
        Method::GroupsList => (request::<GroupsListParams>, response::<GroupsListResult>),
        Method::DeadList => (request::<DeadListParams>, response::<DeadListResult>),
        Method::DeadRetry => (request::<DeadRetryParams>, response::<DeadRetryResult>),
        Method::DeadDrop => (request::<DeadDropParams>, response::<DeadDropResult>),
        Method::RunStart => (request::<RunStartParams>, response::<RunStartResult>),
        Method::RunChunk => (request::<RunChunkParams>, response::<Empty>),
        Method::RunEnd => (request::<RunEndParams>, response::<Empty>),
        Method::RunCancel => (request::<RunIdParams>, response::<Empty>),
        Method::RunGet => (request::<RunIdParams>, response::<RunGetResult>),
        Method::RunsList => (bare_request::<RunsListParams>, response::<RunsListResult>),
        Method::ServicesList => (bare_request::<ServicesListParams>, response::<ServicesListResult>),
        Method::ServiceRenew => (request::<ServiceRenewParams>, response::<ServiceRenewResult>),
        Method::ServiceWithdraw => (request::<ServiceWithdrawParams>, response::<Empty>),
        Method::RelayOpen => (request::<RelayOpenParams>, response::<RelayOpenResult>),
    }
}

/// Reads the frame in `bytes` as its head calls for and writes it in `to`; `answers` is the method of a response.
/// What nobody understands (an unknown method or event, a response to nothing) is written as nothing.
pub(crate) fn transcode(
    from: Codec,
    bytes: &[u8],
    answers: Option<Method>,
    to: Codec,
) -> Result<Vec<u8>, DecodeError> {
    let head = Head::decode(from, bytes)?;
    match head.kind {
        FrameType::Req => match head.method.as_deref().and_then(Method::from_wire) {
            Some(method) => method_types(method).0(&head, from, bytes, to),
            None => Ok(Vec::new()),
        },
        FrameType::Res => match answers {
            Some(method) => method_types(method).1(&head, from, bytes, to),
            None => Ok(Vec::new()),
        },
        FrameType::Event => {
            match EventBody::decode(from, head.event.as_deref().unwrap_or_default(), bytes)? {
                EventBody::Unknown(_) => Ok(Vec::new()),
                body => Ok(body.encode(to, head.seq.map(|seq| seq.get()))),
            }
        }
    }
}

/// One file of vectors.
pub(crate) fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The entries of a list in a file of vectors; an empty one proves nothing.
pub(crate) fn entries<'a>(file: &'a Value, list: &str) -> &'a [Value] {
    let entries = file[list].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(!entries.is_empty(), "no {list}");
    entries
}

/// A text field of a vector.
pub(crate) fn text_of<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or_else(|| panic!("no {field} in {case}"))
}

/// The bytes of a vector's frame in `codec`, if it has them.
pub(crate) fn frame_of(case: &Value, codec: Codec) -> Option<Vec<u8>> {
    match codec {
        Codec::Json => case["json"].as_str().map(|text| text.as_bytes().to_vec()),
        Codec::MsgPack => case["msgpack"].as_str().map(|hex| text::unhex(hex).expect("hex")),
    }
}

/// Every well-formed frame of the vectors: its bytes, and the method that a response answers.
pub(crate) fn good_frames(codec: Codec) -> Vec<(Vec<u8>, Option<Method>)> {
    let file = vectors("frames.json");
    let frame = |case: &Value| {
        let method = case["method"].as_str().and_then(Method::from_wire);
        (frame_of(case, codec).expect("a frame in both codecs"), method)
    };
    entries(&file, "frames").iter().map(frame).collect()
}
