//! Checking the store while the broker runs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use tenure_mesh::access::admin::Act;
use utoipa::ToSchema;

use super::Asking;
use super::body::{answer, shown};
use super::problem::{Problem, Refusals};
use crate::checks::{Checked, Checks};
use crate::http::App;

/// How the last check of the store went, and whether one is under way.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreCheck {
    /// Whether one is under way.
    running: bool,
    /// Since when, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    running_since: Option<u64>,
    /// The last one that is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<LastCheck>,
}

/// A check that is over.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastCheck {
    /// When it began, Unix milliseconds.
    started_at: u64,
    /// When it ended, Unix milliseconds.
    finished_at: u64,
    /// What was found, in words: at most 100 of them, and how many more.
    findings: Vec<String>,
    /// Entries and dedupe records that were found without the other.
    violations: u64,
    /// Why it could not be done, if it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

impl StoreCheck {
    fn of(checks: &Checks) -> StoreCheck {
        let (running, running_since, last) = checks.look();
        let last = last.map(|Checked { started_at, finished_at, findings, violations, failed }| LastCheck {
            started_at,
            finished_at,
            findings,
            violations,
            failed,
        });
        StoreCheck { running, running_since, last }
    }
}

/// Says how the last check of the store went, and whether one is under way.
#[utoipa::path(get, path = "/v1/admin/check", responses((status = 200, description = "How it went", body = StoreCheck), Refusals))]
pub(crate) async fn checked(State(app): State<App>) -> Response {
    shown(&StoreCheck::of(&app.shared.checks))
}

/// Checks the store beside what the broker does; answers at once. One that is under way will do.
#[utoipa::path(post, path = "/v1/admin/check", responses(
    (status = 202, description = "It is begun", body = StoreCheck),
    (status = 200, description = "One was under way already", body = StoreCheck), Refusals))]
pub(crate) async fn check(asking: Asking) -> Result<Response, Problem> {
    let shared = &asking.app.shared;
    for mesh in shared.meshes.handles() {
        // What cannot be written must not keep the store from being checked.
        if let Err(problem) = asking.ask_of(&mesh, Act::Note("store.check", json!({}))).await {
            tracing::warn!(event = "check_not_audited", ?problem);
        }
    }
    let status = if shared.checks.ask() { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok(answer(status, &StoreCheck::of(&shared.checks)))
}
