//! Stopping a broker in good order.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_mesh::access::admin::Act;
use tenure_proto::error::ErrorCode;
use utoipa::ToSchema;

use super::Asking;
use super::body::{answer, bytes, parse, shown};
use super::problem::{Problem, Refusals};
use crate::http::App;
use crate::stop::{Stop, Stopping};

/// How a broker is to be drained.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DrainParams {
    /// Why, as sessions are told.
    #[schema(max_length = 256)]
    reason: Option<String>,
    /// How soon another is here, if one will be.
    #[schema(maximum = 3600000)]
    restart_in_ms: Option<u64>,
    /// How long what is on its way may take.
    #[schema(maximum = 300000)]
    deadline_ms: Option<u64>,
}

/// Whether the broker stops, and how.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drain {
    /// Whether it stops.
    draining: bool,
    /// Whether this request began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    begun: Option<bool>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How many sessions were told at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<usize>,
    /// How soon another is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_in_ms: Option<u64>,
    /// How long what is on its way may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
}

impl Drain {
    fn of(stopping: Option<Stopping>, begun: Option<bool>) -> Drain {
        let draining = stopping.is_some();
        let (mut reason, mut sessions, mut restart_in_ms, mut deadline_ms) = (None, None, None, None);
        if let Some(stopping) = stopping {
            (reason, sessions) = (Some(stopping.reason), Some(stopping.sessions));
            (restart_in_ms, deadline_ms) = (stopping.restart_in_ms, Some(stopping.deadline_ms));
        }
        Drain { draining, begun, reason, sessions, restart_in_ms, deadline_ms }
    }
}

/// Says whether the broker stops, and how.
#[utoipa::path(get, path = "/v1/admin/drain", responses((status = 200, description = "Whether it stops", body = Drain), Refusals))]
pub(crate) async fn draining(State(app): State<App>) -> Response {
    let stopping = app.shared.stop.borrow().clone();
    shown(&Drain::of(stopping, None))
}

/// Stops the broker in good order; answers as soon as everybody is being told.
#[utoipa::path(post, path = "/v1/admin/drain", request_body = DrainParams, responses(
    (status = 202, description = "It stops from now on", body = Drain),
    (status = 200, description = "It was stopping already", body = Drain), Refusals))]
pub(crate) async fn drain(asking: Asking, request: Request) -> Result<Response, Problem> {
    let body = bytes(request).await?;
    let params = if body.is_empty() { DrainParams::default() } else { parse(&body)? };
    let usual = Stop::default();
    let stop = Stop {
        reason: params.reason.unwrap_or(usual.reason),
        restart_in_ms: params.restart_in_ms,
        deadline_ms: params.deadline_ms.unwrap_or(usual.deadline_ms),
    };
    if let Some((pointer, text)) = stop.problem() {
        return Err(Problem::of(ErrorCode::BadRequest, text).at(pointer));
    }
    let shared = &asking.app.shared;
    let details =
        json!({"reason": stop.reason, "restartInMs": stop.restart_in_ms, "deadlineMs": stop.deadline_ms});
    for mesh in shared.meshes.handles() {
        // What cannot be written must not keep the broker from being stopped.
        if let Err(problem) = asking.ask_of(&mesh, Act::Note("broker.drain", details.clone())).await {
            tracing::warn!(event = "drain_not_audited", ?problem);
        }
    }
    let Some((stopping, begun)) = shared.begin_stop(stop).await else {
        return Err(Problem::of(ErrorCode::Draining, "this broker has stopped but for its last words"));
    };
    let status = if begun { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok(answer(status, &Drain::of(Some(stopping), Some(begun))))
}
