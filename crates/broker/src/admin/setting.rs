//! Settings, and the audit log.

use std::collections::BTreeMap;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_mesh::access::admin::{Act, LIST_PAGE, Operated, Page};
use tenure_mesh::access::{AuditEntry, AuditRecord};
use tenure_proto::number::U53;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, Path, Query, limit, shown};
use super::document::{MeshPart, SettingValues, Whole};
use super::problem::{Problem, Refusals};
use super::{Asking, odd};

/// The settings of a mesh.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Settings {
    /// How often they were changed: what to say when changing them.
    version: u64,
    /// What each of them is.
    values: BTreeMap<String, Value>,
    /// Those that differ from what the broker was started with.
    changed: Vec<String>,
}

/// A change of settings.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingsChange {
    /// The version that you have seen: a change that somebody made since is a conflict, not lost.
    #[schema(value_type = Whole)]
    version: U53,
    /// What is to change; `null` takes one back to what the broker was started with.
    #[schema(value_type = SettingValues)]
    values: BTreeMap<String, Value>,
}

fn settings(answer: Operated) -> Result<Response, Problem> {
    match answer {
        Operated::Settings { version, values, changed } => Ok(shown(&Settings { version, values, changed })),
        _ => Err(odd()),
    }
}

/// Shows the settings of a mesh.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/settings", params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 200, description = "All of them", body = Settings), Refusals))]
pub(crate) async fn show(asking: Asking, Path(mesh): Path<String>) -> Result<Response, Problem> {
    settings(asking.ask(&mesh, Act::Settings).await?)
}

/// Changes settings while the mesh runs, if they are still at the version that was seen.
#[utoipa::path(patch, path = "/v1/admin/meshes/{mesh}/settings", request_body = SettingsChange, params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 200, description = "As they are from now on", body = Settings), Refusals))]
pub(crate) async fn change(
    asking: Asking,
    Path(mesh): Path<String>,
    Json(change): Json<SettingsChange>,
) -> Result<Response, Problem> {
    let SettingsChange { version, values } = change;
    let set = asking.ask(&mesh, Act::Set { version: version.get(), values }).await;
    settings(set.map_err(|problem| problem.within("/values"))?)
}

/// Which rows of a list that is read from its newest on.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditOf {
    /// Older than this row: what the page before said as `next`.
    #[serde(default)]
    #[param(value_type = Option<Whole>, inline)]
    before: Option<U53>,
    /// How many, at most 500; absent is 500.
    #[serde(default)]
    #[param(value_type = Option<u64>, minimum = 1, maximum = 500)]
    limit: Option<U53>,
}

impl AuditOf {
    /// The page that is asked for.
    pub(super) fn page(&self) -> Result<Page<u64>, Problem> {
        Ok(Page { after: self.before.map(U53::get), limit: limit(self.limit, LIST_PAGE)? })
    }
}

/// A row of the audit log.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AuditRow {
    /// Its number.
    seq: u64,
    /// When, Unix milliseconds.
    at: u64,
    /// Who: `operator`, or `member:HEX`.
    who: String,
    /// From which address.
    from: String,
    /// What.
    act: String,
    /// To whom or what.
    subject: String,
    /// `ok`, or the code that it was refused with.
    outcome: String,
    /// What else belongs to it.
    details: Value,
}

/// Rows of the audit log, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Audit {
    /// One page of them.
    rows: Vec<AuditRow>,
    /// What to pass as `before`, when there are older ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// Reads the audit log of a mesh: what operators did, and who came by their leave.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/audit", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), AuditOf),
    responses((status = 200, description = "A page of it", body = Audit), Refusals))]
pub(crate) async fn audit(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(of): Query<AuditOf>,
) -> Result<Response, Problem> {
    let page = of.page()?;
    let Operated::Audit(rows, more) = asking.ask(&mesh, Act::Audit(page)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.seq);
    let shape = |AuditEntry { seq, record }: AuditEntry| {
        let AuditRecord { at, who, from, act, subject, outcome, details } = record;
        let details = if details.is_null() { serde_json::json!({}) } else { details };
        AuditRow { seq, at, who, from, act, subject, outcome, details }
    };
    Ok(shown(&Audit { rows: rows.into_iter().map(shape).collect(), next }))
}
