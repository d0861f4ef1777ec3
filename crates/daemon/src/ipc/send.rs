//! `POST /v1/send`: a 2xx means that the message is on this machine's disk.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_kit::bounds::within_bounds;
use tenure_outbox::{Answer, Place};
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::{ClientMessageId, SessionKey};
use tenure_proto::limits::MAX_PAYLOAD_BYTES;
use tenure_proto::message::{Address, Bytes, Fallback, Meta, Priority, SendParams};
use tenure_proto::name::MeshName;
use tenure_proto::number::U53;
use tenure_proto::peer::Peer;
use utoipa::ToSchema;

use super::asking::asking;
use super::body::{Json, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::problem::Problem;
use crate::outbox::Request;
use crate::sessions::Local;
use crate::shared::Shared;

/// Candidates that are named when a name does not tell who is meant.
const CANDIDATES: usize = 10;

/// A message to be sent.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SendRequest {
    /// The mesh; the daemon's first one if absent.
    #[serde(default)]
    #[schema(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// The session that sends: the one whose token is in the header `Tenure-Session`.
    #[serde(default)]
    #[schema(value_type = Option<document::SessionKey>)]
    session: Option<SessionKey>,
    /// `session:<hex>`, `member:<hex>`, `topic:<name>`, or the display name of one who is here.
    #[schema(value_type = document::Target)]
    to: String,
    /// The text; or give `bodyB64`.
    #[serde(default)]
    body: Option<String>,
    /// The bytes, in standard base64; or give `body`.
    #[serde(default, rename = "bodyB64")]
    #[schema(value_type = Option<document::Base64>)]
    body_b64: Option<Bytes>,
    /// The sender's id: two sends with one id are one message. `Idempotency-Key` takes precedence; without either it
    /// is a fresh ULID.
    #[serde(default)]
    #[schema(value_type = Option<document::MessageName>)]
    client_message_id: Option<ClientMessageId>,
    /// `now`, `next` (the default) or `low`.
    #[serde(default)]
    #[schema(value_type = Option<document::Priority>)]
    priority: Option<Priority>,
    /// Free facts beside the body.
    #[serde(default)]
    #[schema(value_type = Option<document::Meta>)]
    meta: Option<Meta>,
    /// The message that it answers.
    #[serde(default)]
    #[schema(value_type = Option<document::ReplyTo>)]
    reply_to: Option<String>,
    /// How long it may wait for its reader.
    #[serde(default)]
    #[schema(value_type = Option<document::TtlMs>)]
    ttl_ms: Option<U53>,
    /// How long it must wait.
    #[serde(default)]
    #[schema(value_type = Option<document::DelayMs>)]
    delay_ms: Option<U53>,
    /// `hold` (the default), `member` or `fail`: what happens when the receiving session's lease ends first.
    #[serde(default)]
    #[schema(value_type = Option<document::Fallback>)]
    fallback: Option<Fallback>,
    /// What chooses its partition of a topic.
    #[serde(default)]
    #[schema(value_type = Option<document::PartitionKey>)]
    key: Option<String>,
    /// What the body is.
    #[serde(default)]
    #[schema(value_type = Option<document::ContentType>)]
    content_type: Option<String>,
}

/// What became of a send.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent {
    /// The sender's id for it.
    client_message_id: String,
    /// `queued`, `inflight` or `done`.
    status: &'static str,
    /// Whether it was done before; absent unless it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
    /// The broker's id for it, once it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_message_id: Option<String>,
    /// Its number in its log, once the broker has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_seq: Option<u64>,
}

/// Takes a message: on disk before it is answered, sent to the broker as soon as that can be reached.
#[utoipa::path(post, path = "/v1/send", request_body = SendRequest,
    params(("Idempotency-Key" = Option<document::IdempotencyKey>, Header, description = "The sender's id for the message")),
    responses(
        (status = 202, description = "On disk: queued, or on its way", body = Sent),
        (status = 200, description = "The broker has it already", body = Sent),
    Refusals))]
pub(crate) async fn send(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    headers: HeaderMap,
    Json(request): Json<SendRequest>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, request.mesh.as_ref(), request.session.as_ref())?;
    let id = message_id(&shared, &headers, request.client_message_id.clone())?;
    let name = (!is_address(&request.to)).then(|| request.to.clone());
    let to = resolve(&shared, &local, &id, &request.to).await?;
    let params = SendParams {
        to,
        body: request.body,
        body_b64: request.body_b64,
        client_message_id: id.clone(),
        priority: request.priority.unwrap_or_default(),
        key: request.key,
        reply_to: request.reply_to,
        meta: request.meta,
        content_type: request.content_type,
        ttl_ms: request.ttl_ms,
        delay_ms: request.delay_ms,
        fallback: request.fallback.unwrap_or_default(),
        fingerprint: None,
    };
    let wall = shared.clock.wall();
    let frozen = Request::new(local.mesh.clone(), local.key, params)?.named(name);
    within_bounds(frozen.params(), MAX_PAYLOAD_BYTES)?;
    let print = *frozen.fingerprint();
    let accepted = shared.outbox.accept(frozen, wall).await?;
    if let Some((_, lane)) = accepted.row {
        shared.queued(&local.mesh, &local.key, lane);
    }
    let sent = |status, place: Option<Place>| Sent {
        client_message_id: id.to_string(),
        status,
        duplicate: (status == "done").then_some(true),
        broker_message_id: place.as_ref().map(|place| place.id.to_string()),
        log_seq: place.and_then(|place| place.seq),
    };
    Ok(match accepted.answer {
        Answer::Insert | Answer::Queued => answer(StatusCode::ACCEPTED, &sent("queued", None)),
        Answer::Inflight => answer(StatusCode::ACCEPTED, &sent("inflight", None)),
        Answer::Done(place) => answer(StatusCode::OK, &sent("done", place)),
        Answer::Conflict(conflict) => return Err(Problem::conflict(&conflict, &print)),
    })
}

/// The id: of the header, else of the body, else a fresh one.
fn message_id(
    shared: &Shared,
    headers: &HeaderMap,
    body: Option<ClientMessageId>,
) -> Result<ClientMessageId, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let id = match (keys.next(), keys.next()) {
        (None, _) => body.or_else(|| shared.clock.mint()),
        (Some(key), None) => {
            let bad = || {
                Problem::bad(
                    "/clientMessageId",
                    "Idempotency-Key is 1 to 128 printable ASCII characters, not starting with 'run:'",
                )
            };
            Some(key.to_str().ok().and_then(|key| key.parse().ok()).ok_or_else(bad)?)
        }
        (Some(_), Some(_)) => return Err(Problem::bad("/clientMessageId", "one Idempotency-Key at most")),
    };
    id.ok_or_else(|| Problem::of(ErrorCode::Unavailable, "the system gave no randomness for an id"))
}

/// Whether what was written is meant as an address, and not as a name.
fn is_address(to: &str) -> bool {
    matches!(to.split_once(':'), Some(("session" | "member" | "topic", _)))
}

/// The address behind what was written; a display name is looked up before the request is frozen, once for each id.
async fn resolve(shared: &Shared, local: &Local, id: &ClientMessageId, to: &str) -> Result<Address, Problem> {
    if is_address(to) {
        return to.parse().map_err(|error: tenure_proto::WireError| Problem::bad("/to", error.message));
    }
    if to.is_empty() {
        return Err(Problem::bad("/to", "name somebody, or give an address"));
    }
    let held = shared.outbox.named(local.mesh.clone(), id.clone(), to.to_owned()).await?;
    if let Some(Ok(held)) = held.map(|held| held.parse()) {
        return Ok(held);
    }
    if !local.standing.borrow().is_attached() {
        let detail = "a name can only be looked up while the broker can be reached; give an address";
        return Err(Problem::of(ErrorCode::Unavailable, detail).at("/to"));
    }
    let peers = asking(shared, local.client.peers(false)).await?;
    let named: Vec<&Peer> = peers.iter().filter(|peer| peer.name == to).collect();
    let told = |peers: &[&Peer]| {
        let candidate = |peer: &&Peer| json!({"name": peer.name, "to": format!("session:{}", peer.session)});
        json!(peers.iter().take(CANDIDATES).map(candidate).collect::<Vec<_>>())
    };
    match named.as_slice() {
        [peer] => Ok(Address::Session(peer.session)),
        [] => {
            let detail = format!("nobody called {to:?} is here");
            let all: Vec<&Peer> = peers.iter().collect();
            Err(Problem::of(ErrorCode::NotFound, detail).at("/to").with("candidates", told(&all)))
        }
        several => {
            let detail =
                format!("{} sessions are called {to:?}; say which one by its address", several.len());
            Err(Problem::of(ErrorCode::Conflict, detail).at("/to").with("candidates", told(several)))
        }
    }
}
