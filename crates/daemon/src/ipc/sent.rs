//! `GET /v1/sent/{clientMessageId}`: what became of one message, for a sender that waits.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::ClientMessageId;
use tenure_proto::message::{SendState, SendStatus, SendStatusParams, SendStatusResult};
use tenure_proto::method::Method;
use tenure_proto::name::MeshName;
use utoipa::{IntoParams, ToSchema};

use super::asking::asking;
use super::body::{Path, Query, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::problem::Problem;
use crate::sessions::Local;
use crate::shared::Shared;

/// How much is wanted.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentQuery {
    /// The mesh; the daemon's first one if absent.
    #[param(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// Whether the broker is asked what the receiver did with it, once it has it.
    delivery: Option<bool>,
}

/// What became of a message.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fate {
    /// The sender's id for it.
    client_message_id: String,
    /// Its row in the outbox.
    id: u64,
    /// `pending`, `inflight`, `done`, `dead` or `aborted`.
    status: &'static str,
    /// Why it was refused last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// The broker's id for it, once it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_message_id: Option<String>,
    /// Its number in its log, once the broker has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_seq: Option<u64>,
    /// `accepted`, `delivered`, `dead`, `expired` or `unknown`; absent unless it was asked for and the broker answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    delivery: Option<SendState>,
    /// Why it was not delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What became of a message, by its sender's id.
#[utoipa::path(get, path = "/v1/sent/{clientMessageId}",
    params(("clientMessageId" = document::MessageName, Path, description = "The sender's id for it"), SentQuery), responses(
    (status = 200, description = "What is known", body = Fate),
    Refusals))]
pub(crate) async fn sent(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<SentQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let unknown = || Problem::of(ErrorCode::NotFound, "nothing was handed over under this id");
    let id: ClientMessageId = id.parse().map_err(|_| unknown())?;
    let entry = shared.outbox.find(local.mesh.clone(), id.clone()).await?.ok_or_else(unknown)?;
    if caller.confined().is_some_and(|local| local.key != entry.sender) {
        return Err(unknown());
    }
    let asked = query.delivery.unwrap_or(false) && entry.place.is_some();
    let found = if asked { ask(&shared, &local, id).await } else { None };
    let (delivery, reason) = found.map_or((None, None), |found| (Some(found.state), found.reason));
    let fate = Fate {
        client_message_id: entry.client_message_id,
        id: entry.id,
        status: entry.status.as_str(),
        last_error: entry.last_error,
        broker_message_id: entry.place.as_ref().map(|place| place.id.to_string()),
        log_seq: entry.place.and_then(|place| place.seq),
        delivery,
        reason,
    };
    Ok(answer(StatusCode::OK, &fate))
}

/// Asks the broker about an id; ids are the member's, so any of its sessions may. Nothing while it cannot be reached.
async fn ask(shared: &Shared, local: &Local, id: ClientMessageId) -> Option<SendStatus> {
    if !local.standing.borrow().is_attached() {
        return None;
    }
    let params = SendStatusParams { client_message_ids: vec![id] };
    let answer = asking(shared, local.client.request(Method::SendStatus, params)).await;
    let answer: Option<SendStatusResult> = answer.ok();
    answer?.statuses.into_iter().next()
}
