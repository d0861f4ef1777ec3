//! What waits to be sent, and what a person does about it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_outbox::requeue::{Lookup, Refusal, sender};
use tenure_outbox::{Place, Status};
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::ClientMessageId;
use tenure_proto::limits::MAX_PAYLOAD_BYTES;
use tenure_proto::message::{Bytes, SendState, SendStatus, SendStatusParams, SendStatusResult};
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use utoipa::{IntoParams, ToSchema};

use super::asking::asking;
use super::body::{Json, Path, Query, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::inbox::page;
use super::problem::Problem;
use crate::link::Standing;
use crate::outbox::{Anew, Entry, Patch, Requeued, Wanted, Withdrawn};
use crate::shared::Shared;

/// How often the broker is asked about a row that is sent once more meanwhile.
const LOOKS: u32 = 3;

/// How long a session that has just begun may take to be attached before the broker counts as out of reach.
const BEGINNING: std::time::Duration = std::time::Duration::from_secs(5);

/// Which rows are wanted.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboxQuery {
    /// `pending`, `inflight`, `done`, `dead` or `aborted`.
    #[param(value_type = Option<document::RowStatus>)]
    status: Option<String>,
    /// With this id of their sender's: one of each mesh at most.
    #[serde(rename = "clientMessageId")]
    #[param(value_type = Option<document::MessageName>)]
    client_message_id: Option<ClientMessageId>,
    /// After this number: the `next` of the page before.
    #[param(value_type = Option<document::Natural>)]
    after: Option<U53>,
    /// At most so many, up to 256.
    #[param(value_type = Option<document::Natural>)]
    limit: Option<U53>,
}

/// A row of the outbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Its number.
    id: u64,
    /// Of which mesh.
    mesh: String,
    /// The sender's id for it.
    client_message_id: String,
    /// The session that sends it.
    session: String,
    /// Where it goes.
    to: String,
    /// How urgent it is.
    priority: String,
    /// `pending`, `inflight`, `done`, `dead` or `aborted`.
    status: &'static str,
    /// When it was taken, Unix milliseconds as all times here.
    enqueued_at: u64,
    /// How often it was sent.
    attempts: u32,
    /// When it is sent next, while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<u64>,
    /// Why it was refused last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// When the broker was known to have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered_at: Option<u64>,
    /// The broker's id for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_message_id: Option<String>,
    /// Its number in its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_seq: Option<u64>,
    /// When it was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    aborted_at: Option<u64>,
    /// Who took it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    aborted_by: Option<String>,
    /// The row that went in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded_by: Option<u64>,
    /// Bytes of its frozen request.
    bytes: u64,
}

impl From<Entry> for Row {
    fn from(entry: Entry) -> Row {
        Row {
            id: entry.id,
            mesh: entry.mesh,
            client_message_id: entry.client_message_id,
            session: entry.sender.to_string(),
            to: entry.target,
            priority: entry.priority,
            status: entry.status.as_str(),
            enqueued_at: entry.enqueued_at,
            attempts: entry.attempts,
            next_attempt_at: (entry.status == Status::Pending).then_some(entry.next_attempt_at),
            last_error: entry.last_error,
            delivered_at: entry.delivered_at,
            broker_message_id: entry.place.as_ref().map(|place| place.id.to_string()),
            log_seq: entry.place.and_then(|place| place.seq),
            aborted_at: entry.aborted_at,
            aborted_by: entry.aborted_by,
            superseded_by: entry.superseded_by,
            bytes: entry.bytes,
        }
    }
}

/// A page of rows.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutboxPage {
    /// In the order in which they were taken.
    rows: Vec<Row>,
    /// What to pass as `after` to go on; also when there are no rows in this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// What waits, is on its way, is done or is dead: of the session that asks, or of all without a token.
#[utoipa::path(get, path = "/v1/outbox", params(OutboxQuery), responses(
    (status = 200, description = "A page", body = OutboxPage),
    Refusals))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<OutboxQuery>,
) -> Result<Response, Problem> {
    let status = match query.status.as_deref() {
        None => None,
        Some(text) => Some(Status::from_text(text).ok_or_else(|| {
            Problem::of(ErrorCode::BadRequest, "status is pending, inflight, done, dead or aborted")
        })?),
    };
    let wanted = Wanted {
        status,
        sender: caller.confined().map(|local| (local.mesh.clone(), local.key)),
        client_message_id: query.client_message_id,
        after: query.after.unwrap_or_default().get(),
        limit: page(query.limit),
    };
    let (rows, next) = shared.outbox.page(wanted).await?;
    Ok(answer(StatusCode::OK, &OutboxPage { rows: rows.into_iter().map(Row::from).collect(), next }))
}

/// One row.
#[utoipa::path(get, path = "/v1/outbox/{id}", params(("id" = u64, Path, description = "The row")), responses(
    (status = 200, description = "The row", body = Row),
    Refusals))]
pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let entry = entry(&shared, &caller, number(&id)?).await?;
    Ok(answer(StatusCode::OK, &Row::from(entry)))
}

/// How a row is to be sent anew.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RequeueRequest {
    /// The new id; a fresh one if absent.
    #[serde(default)]
    #[schema(value_type = Option<document::MessageName>)]
    new_client_message_id: Option<ClientMessageId>,
    /// Another text.
    #[serde(default)]
    body: Option<String>,
    /// Other bytes, in standard base64.
    #[serde(default, rename = "bodyB64")]
    #[schema(value_type = Option<document::Base64>)]
    body_b64: Option<Bytes>,
    /// Whether it is worth arriving twice, should the broker be out of reach.
    #[serde(default)]
    force: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequeueAnswer {
    /// `queued`, or `done` when the broker has had it all along.
    status: &'static str,
    /// The new row.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_message_id: Option<String>,
    /// The broker's id, when it has had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_message_id: Option<String>,
}

/// Sends a dead or pending row anew under another id; the old one is never free again. A row that was attempted is
/// first looked up at the broker: only if that has the very same request under its id, by its fingerprint, is the row
/// done and nothing sent. Then another body is refused (`outbox_already_there`).
#[utoipa::path(post, path = "/v1/outbox/{id}/requeue", params(("id" = u64, Path, description = "The row")),
    request_body = RequeueRequest, responses(
    (status = 202, description = "Queued anew", body = RequeueAnswer),
    (status = 200, description = "The broker has had it all along", body = RequeueAnswer),
    Refusals))]
pub(crate) async fn requeue(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(request): Json<RequeueRequest>,
) -> Result<Response, Problem> {
    let row = entry(&shared, &caller, number(&id)?).await?.id;
    let body = match (request.body, request.body_b64) {
        (None, None) => None,
        (Some(text), None) => Some(Patch::Text(text)),
        (None, Some(bytes)) => Some(Patch::Bytes(bytes.0)),
        (Some(_), Some(_)) => return Err(Problem::bad("/bodyB64", "give body or bodyB64, not both")),
    };
    let size = body.as_ref().map_or(0, |body| match body {
        Patch::Text(text) => text.len(),
        Patch::Bytes(bytes) => bytes.len(),
    });
    if size > MAX_PAYLOAD_BYTES {
        return Err(Problem::of(ErrorCode::TooLarge, "the body is too large").at("/body"));
    }
    let fresh = request.new_client_message_id.or_else(|| shared.clock.mint());
    let client_message_id =
        fresh.ok_or_else(|| Problem::of(ErrorCode::Unavailable, "the system gave no randomness"))?;
    sender_is_here(&shared, row, request.force).await?;
    let (lookup, by) = (Lookup::NotAsked, "http".to_owned());
    let mut anew = Anew { client_message_id, body, lookup, force: request.force, by };
    let mut outcome = shared.outbox.requeue(row, anew.clone(), shared.clock.wall()).await?;
    for _ in 0..LOOKS {
        if !matches!(outcome, Requeued::Ask(_)) {
            break;
        }
        anew.lookup = look_up(&shared, row).await?;
        outcome = shared.outbox.requeue(row, anew.clone(), shared.clock.wall()).await?;
    }
    let told = |status, id, client_message_id, place: Option<Place>| RequeueAnswer {
        status,
        id,
        client_message_id,
        broker_message_id: place.map(|place| place.id.to_string()),
    };
    Ok(match outcome {
        Requeued::Replaced { row, client_message_id, lane, sender } => {
            shared.queued(&sender.0, &sender.1, lane);
            let id = Some(client_message_id.to_string());
            answer(StatusCode::ACCEPTED, &told("queued", Some(row), id, None))
        }
        Requeued::Finished(place) => answer(StatusCode::OK, &told("done", None, None, Some(place))),
        Requeued::NoSuchRow => return Err(no_such_row()),
        Requeued::Refused(refusal) => return Err(refused(refusal)),
        Requeued::IdTaken(conflict, request) => {
            let problem =
                Problem::conflict(&conflict, &request).saying("the new id is used already; take another");
            return Err(problem.at("/newClientMessageId"));
        }
        Requeued::Damaged(why) => return Err(Problem::of(ErrorCode::Conflict, why)),
        Requeued::Ask(_) => return Err(refused(Refusal::MayHaveArrived)),
    })
}

/// Refuses to send a row anew in the name of another session than the one that sent it.
async fn sender_is_here(shared: &Shared, row: u64, force: bool) -> Result<(), Problem> {
    let entry = shared.outbox.get(row).await?.ok_or_else(no_such_row)?;
    let mesh = entry.mesh.parse().map_err(|_| no_such_row())?;
    let here = shared.sessions.get(&mesh, &entry.sender).is_some();
    sender(here, force).map_err(refused)
}

/// Asks the broker what it knows of a row.
async fn look_up(shared: &Shared, row: u64) -> Result<Lookup, Problem> {
    let entry = shared.outbox.get(row).await?.ok_or_else(no_such_row)?;
    let mesh = entry.mesh.parse().map_err(|_| no_such_row())?;
    // By the session that sends it, if that is here: then the broker has dealt with everything that came before the
    // question. Of another session's socket it may have bytes that it has not read. Ids are the member's, so for a
    // session that is gone the daemon's own may ask.
    let sender = shared.sessions.get(&mesh, &entry.sender);
    let Some(local) = sender.or_else(|| shared.sessions.own(&mesh)) else { return Ok(Lookup::Unreachable) };
    // One that has just begun is about to be attached, or to know that it cannot be.
    let mut standing = local.standing.clone();
    let begun = standing.wait_for(|standing| !matches!(standing, Standing::Away(None)));
    if !tokio::time::timeout(BEGINNING, begun)
        .await
        .is_ok_and(|begun| begun.is_ok_and(|now| now.is_attached()))
    {
        return Ok(Lookup::Unreachable);
    }
    let id: ClientMessageId = entry.client_message_id.parse().map_err(|_| no_such_row())?;
    let params = SendStatusParams { client_message_ids: vec![id] };
    let answer = asking(shared, local.client.request(Method::SendStatus, params)).await;
    let answer: Result<SendStatusResult, _> = answer;
    let status = answer.ok().and_then(|answer| answer.statuses.into_iter().next());
    Ok(match status {
        None => Lookup::Unreachable,
        Some(status) if status.state == SendState::Unknown => Lookup::Unknown { attempts: entry.attempts },
        Some(SendStatus { id: Some(id), fingerprint_prefix: prefix, .. }) => {
            Lookup::Known { place: Place { id, seq: None }, prefix }
        }
        Some(_) => Lookup::Unreachable,
    })
}

/// Takes a dead or pending row back; its id is never free again.
#[utoipa::path(delete, path = "/v1/outbox/{id}", params(("id" = u64, Path, description = "The row")), responses(
    (status = 204, description = "Taken back"),
    Refusals))]
pub(crate) async fn withdraw(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let row = entry(&shared, &caller, number(&id)?).await?.id;
    match shared.outbox.withdraw(row, "http".to_owned(), shared.clock.wall()).await? {
        Withdrawn::Done => Ok(StatusCode::NO_CONTENT),
        Withdrawn::NoSuchRow => Err(no_such_row()),
        Withdrawn::Refused(refusal) => Err(refused(refusal)),
    }
}

/// A row that the caller may see. Whose it is never changes, so what is done to it next is done to the same.
async fn entry(shared: &Shared, caller: &Caller, row: u64) -> Result<Entry, Problem> {
    let entry = shared.outbox.get(row).await?.ok_or_else(no_such_row)?;
    match caller.confined() {
        Some(local) if (&local.key, local.mesh.as_str()) != (&entry.sender, &entry.mesh) => {
            Err(no_such_row())
        }
        _ => Ok(entry),
    }
}

fn number(text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| Problem::of(ErrorCode::NotFound, "a row is named by its number"))
}

fn no_such_row() -> Problem {
    Problem::of(ErrorCode::NotFound, "there is no such row")
}

fn refused(refusal: Refusal) -> Problem {
    Problem::of(ErrorCode::Conflict, refusal.to_string()).with("conflict", serde_json::json!(refusal.name()))
}
