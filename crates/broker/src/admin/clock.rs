//! The broker's wall clock: whether it is believed, and saying that it is right.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tenure_mesh::access::admin::Act;
use tenure_proto::error::ErrorCode;
use utoipa::ToSchema;

use super::Asking;
use super::body::shown;
use super::problem::{Problem, Refusals};
use crate::http::App;
use crate::shared::Shared;

/// The wall clock of the broker.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Clock {
    /// What it shows, Unix milliseconds.
    now: u64,
    /// Whether it is believed. While it is not, nothing expires and nothing is pruned.
    believed: bool,
    /// Why it is not believed, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How far it is from where it should be, in milliseconds; below zero if it is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart_ms: Option<i64>,
    /// When it is believed again if it goes on steadily, in milliseconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    steady_in_ms: Option<u64>,
}

impl Clock {
    fn of(shared: &Shared) -> Clock {
        let (now, clocks) = shared.clocks();
        let doubt = clocks.doubt(now);
        let apart = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        Clock {
            now: now.wall,
            believed: doubt.is_none(),
            reason: doubt.map(|doubt| doubt.to_string()),
            apart_ms: doubt
                .map(|doubt| if doubt.ahead { apart(doubt.apart_ms) } else { -apart(doubt.apart_ms) }),
            steady_in_ms: doubt.map(|doubt| doubt.steady_in_ms),
        }
    }
}

/// Says whether the broker's wall clock is believed.
#[utoipa::path(get, path = "/v1/admin/clock", responses((status = 200, description = "The clock", body = Clock), Refusals))]
pub(crate) async fn show(State(app): State<App>) -> Response {
    shown(&Clock::of(&app.shared))
}

/// Says that the broker's wall clock is right: what is past its time goes from now on. In the audit log of every mesh.
#[utoipa::path(post, path = "/v1/admin/clock/confirm", responses(
    (status = 200, description = "It is believed", body = Clock), Refusals))]
pub(crate) async fn confirm(asking: Asking) -> Result<Response, Problem> {
    let shared = &asking.app.shared;
    let mut confirmed = 0;
    for mesh in shared.meshes.handles() {
        match asking.ask_of(&mesh, Act::ConfirmClock).await {
            Ok(_) => confirmed += 1,
            // Another mesh may have begun since the doubt, or have seen its end a moment ago.
            Err(problem) if problem.is(ErrorCode::Conflict) => {}
            Err(problem) => return Err(problem),
        }
    }
    if confirmed == 0 {
        let text = "the wall clock is believed; there is nothing to confirm";
        return Err(Problem::of(ErrorCode::Conflict, text));
    }
    shared.confirm_clock();
    Ok(shown(&Clock::of(shared)))
}
