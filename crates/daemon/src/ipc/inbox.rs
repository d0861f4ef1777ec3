//! What has come: lists, and marks of what was seen.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_proto::message::Message;
use tenure_proto::name::MeshName;
use tenure_proto::number::U53;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, Query, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::problem::Problem;
use crate::inbox::{Filter, Letter};
use crate::shared::Shared;

/// Entries of a page.
pub(crate) const PAGE: usize = 256;

/// How many entries are given to one who wants so many.
pub(crate) fn page(limit: Option<U53>) -> usize {
    limit.map_or(PAGE, |limit| usize::try_from(limit.get()).unwrap_or(PAGE).clamp(1, PAGE))
}

/// Which messages are wanted.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxQuery {
    /// The mesh; the daemon's first one if absent.
    #[param(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// After this number: the `next` of the page before.
    #[param(value_type = Option<document::Natural>)]
    after: Option<U53>,
    /// Not before this moment, Unix milliseconds.
    #[param(value_type = Option<document::Natural>)]
    since: Option<U53>,
    /// From this session key, member key or display name.
    from: Option<String>,
    /// Posted to this topic.
    topic: Option<String>,
    /// At most so many, up to 256.
    #[param(value_type = Option<document::Natural>)]
    limit: Option<U53>,
    /// Only what nobody has seen.
    unseen: Option<bool>,
}

/// A message that has come.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Arrived {
    /// Its number here: later ones came later.
    pub(crate) id: u64,
    /// Of which mesh.
    mesh: String,
    /// Whose it is: `session:<hex>` or `member:<hex>`.
    recipient: String,
    /// When it came, Unix milliseconds.
    received_at: u64,
    /// When it was seen, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen_at: Option<u64>,
    /// The message, as in the protocol.
    #[schema(value_type = document::Message)]
    message: Message,
}

impl From<Letter> for Arrived {
    fn from(letter: Letter) -> Arrived {
        Arrived {
            id: letter.id,
            mesh: letter.mesh,
            recipient: letter.recipient.to_string(),
            received_at: letter.received_at,
            seen_at: letter.seen_at,
            message: letter.message,
        }
    }
}

/// A page of messages.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxPage {
    /// In the order of their arrival.
    messages: Vec<Arrived>,
    /// What to pass as `after` to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    /// The newest number that was given to anybody here. Below one that was seen before, this is another inbox, which counts
    /// from the start: a damaged one was put aside.
    newest: u64,
}

/// What has come for the session that asks.
#[utoipa::path(get, path = "/v1/inbox", params(InboxQuery), responses(
    (status = 200, description = "A page", body = InboxPage),
    Refusals))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<InboxQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let filter = Filter {
        mesh: local.mesh.to_string(),
        recipients: local.recipients(),
        after: query.after.unwrap_or_default().get(),
        since: query.since.map(U53::get),
        from: query.from,
        topic: query.topic,
        unseen: query.unseen.unwrap_or(false),
        limit: page(query.limit),
    };
    let (letters, next) = shared.inbox.list(filter).await?;
    let newest = shared.inbox.newest().await?;
    let page = InboxPage { messages: letters.into_iter().map(Arrived::from).collect(), next, newest };
    Ok(answer(StatusCode::OK, &page))
}

/// Messages that were seen.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeenRequest {
    /// The mesh; the daemon's first one if absent.
    #[serde(default)]
    #[schema(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// Their numbers, at most 4,096.
    #[schema(max_items = 4096, value_type = Vec<document::Natural>)]
    ids: Vec<U53>,
}

/// How many were marked.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct SeenAnswer {
    /// Those that were not before, and are the caller's.
    marked: u64,
}

/// Marks messages as seen.
#[utoipa::path(post, path = "/v1/inbox/seen", request_body = SeenRequest, responses(
    (status = 200, description = "Marked", body = SeenAnswer),
    Refusals))]
pub(crate) async fn seen(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Json(request): Json<SeenRequest>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, request.mesh.as_ref(), None)?;
    if request.ids.len() > 4_096 {
        return Err(Problem::bad("/ids", "at most 4096 at once"));
    }
    let ids = request.ids.into_iter().map(U53::get).collect();
    let marked = shared.inbox.seen(local.mesh.clone(), local.recipients(), ids, shared.clock.wall()).await?;
    Ok(answer(StatusCode::OK, &SeenAnswer { marked }))
}
