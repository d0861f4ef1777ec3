//! How the daemon is, and what it is.

use std::env::consts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tenure_outbox::window::DEDUPE_VERSION;
use tenure_proto::limits::PROTOCOL;
use utoipa::ToSchema;

use super::body::{Query, answer};
use super::document::Refusals;
use super::guard::Caller;
use super::mesh::MeshQuery;
use super::problem::Problem;
use crate::room::Cap;
use crate::shared::Shared;
use crate::{inbox, outbox};

/// How the daemon is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    /// Whether the broker can be reached.
    connected: bool,
    /// Why not, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Hours that a message may wait for the broker before it is given up: what the operator wants, else from what the broker said
    /// last, also before the daemon began; absent until it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_age_hours: Option<u64>,
    /// The mesh.
    mesh: String,
    /// The member.
    member: String,
    /// The session that asks.
    session: String,
    /// Local sessions, the daemon's own included.
    sessions: usize,
    /// What waits.
    outbox: OutboxHealth,
    /// What has come.
    inbox: InboxHealth,
    /// That the disk is full, and what to do; absent while it has room.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_full: Option<String>,
    /// Lines that could not be written to the log since the daemon began: of those nobody will read.
    log_lines_lost: u64,
    /// The daemon's version.
    version: &'static str,
}

/// How the outbox is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutboxHealth {
    /// Rows that wait.
    pending: u64,
    /// Rows on their way.
    inflight: u64,
    /// Rows that the broker has.
    done: u64,
    /// Rows that a person must look at.
    dead: u64,
    /// Rows that were taken back.
    aborted: u64,
    /// How long the oldest row that waits or is on its way has been here, in milliseconds; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_lag_ms: Option<u64>,
    /// Bytes in use.
    bytes: u64,
    /// `ok`; `warn` from 80 % of the cap; `full` from 95 %, or while the disk is full, and then nothing new is taken.
    space: &'static str,
    /// Why nothing is written any more until the daemon is started again, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

/// How the inbox is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InboxHealth {
    /// Bytes in use.
    bytes: u64,
    /// As the outbox's; while it is full the broker keeps what comes.
    space: &'static str,
    /// Why nothing is written any more until the daemon is started again, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

/// How the daemon is, and its way to the broker.
#[utoipa::path(get, path = "/v1/health", params(MeshQuery), responses(
    (status = 200, description = "How it is", body = Health),
    Refusals))]
pub(crate) async fn health(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let census = shared.outbox.census().await?;
    let inbox = shared.inbox.bytes().await?;
    let standing = local.standing.borrow().clone();
    let disk_full = shared.outbox.disk_full();
    let space = |cap: Cap, bytes| if disk_full.is_some() { "full" } else { cap.space(bytes) };
    let health = Health {
        connected: standing.is_attached(),
        reason: standing.why_not(),
        max_age_hours: *local.max_age_hours.borrow(),
        mesh: local.mesh.to_string(),
        member: local.member.to_string(),
        session: local.key.to_string(),
        sessions: shared.sessions.all().len(),
        outbox: OutboxHealth {
            pending: census.pending,
            inflight: census.inflight,
            done: census.done,
            dead: census.dead,
            aborted: census.aborted,
            drain_lag_ms: census.oldest_open.map(|at| shared.clock.wall().saturating_sub(at)),
            bytes: census.bytes,
            space: space(shared.outbox.cap(), census.bytes),
            fault: shared.outbox.fault(),
        },
        inbox: InboxHealth {
            bytes: inbox,
            space: space(shared.inbox.cap(), inbox),
            fault: shared.inbox.fault(),
        },
        disk_full,
        log_lines_lost: shared.config.log_lines_lost.load(Ordering::Relaxed),
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(answer(StatusCode::OK, &health))
}

/// What this is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Version {
    /// The daemon's version.
    version: &'static str,
    /// What it was built for.
    build: Build,
    /// The newest version of the protocol that it speaks.
    protocol: u32,
    /// All that it speaks.
    protocol_range: Range,
    /// The version of each file's schema.
    schema: Schemas,
    /// What it requires of a broker: feature bits and their least version.
    requires: Requires,
    /// This interface's version.
    api: &'static str,
}

/// What a program was built for.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct Build {
    os: &'static str,
    arch: &'static str,
    /// `release` or `debug`.
    profile: &'static str,
}

/// From the oldest to the newest version.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = VersionRange)]
struct Range {
    min: u32,
    max: u32,
}

/// The versions of the files' schemas.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct Schemas {
    outbox: usize,
    inbox: usize,
}

/// What is required of a broker.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct Requires {
    dedupe: u64,
}

/// What the program was built for, as metrics and `/v1/version` say it.
pub(super) const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// What this is: its build, what it speaks, its files.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, description = "Versions", body = Version),
    Refusals))]
pub(crate) async fn version() -> Response {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        build: Build { os: consts::OS, arch: consts::ARCH, profile: PROFILE },
        protocol: PROTOCOL,
        // There has been one so far.
        protocol_range: Range { min: PROTOCOL, max: PROTOCOL },
        schema: Schemas { outbox: outbox::schema_version(), inbox: inbox::schema_version() },
        requires: Requires { dedupe: DEDUPE_VERSION },
        api: "v1",
    };
    answer(StatusCode::OK, &version)
}
