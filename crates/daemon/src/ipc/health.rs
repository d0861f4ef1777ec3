//! How the daemon is.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{Query, answer};
use super::document::Refusals;
use super::guard::Caller;
use super::mesh::MeshQuery;
use super::problem::Problem;
use crate::room::Cap;
use crate::shared::Shared;

/// How the daemon is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Whether the broker can be reached.
    connected: bool,
    /// Why not, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Hours that a message may wait for the broker before it is given up, from what the broker said last; absent until it has.
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
    /// The daemon's version.
    version: &'static str,
}

/// How the outbox is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct OutboxHealth {
    /// Rows that wait.
    pending: u64,
    /// Rows on their way.
    inflight: u64,
    /// Rows that a person must look at.
    dead: u64,
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
            dead: census.dead,
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
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(answer(StatusCode::OK, &health))
}

/// Which versions this is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    /// The daemon's.
    version: &'static str,
    /// The protocol's.
    protocol: u32,
    /// This interface's.
    api: &'static str,
}

/// Which versions this is.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, description = "Versions", body = Version),
    Refusals))]
pub(crate) async fn version() -> Response {
    let version =
        Version { version: env!("CARGO_PKG_VERSION"), protocol: tenure_proto::limits::PROTOCOL, api: "v1" };
    answer(StatusCode::OK, &version)
}

/// Counts, for a scraper.
#[utoipa::path(get, path = "/v1/metrics", responses(
    (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
    Refusals))]
pub(crate) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let (census, inbox) = (shared.outbox.census().await?, shared.inbox.bytes().await?);
    let sessions = shared.sessions.all();
    let attached = sessions.iter().filter(|local| local.standing.borrow().is_attached()).count();
    let mut registry = Registry::with_prefix("tenure_daemon");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("outbox_pending", "Rows that wait", census.pending);
    gauge("outbox_inflight", "Rows on their way to a broker", census.inflight);
    gauge("outbox_dead", "Rows that a person must look at", census.dead);
    gauge("outbox_bytes", "Bytes of the outbox in use", census.bytes);
    gauge("inbox_bytes", "Bytes of the inbox in use", inbox);
    let failed = [shared.outbox.fault(), shared.inbox.fault()].iter().flatten().count();
    gauge("disks_failed", "Files that nothing is written to any more", failed as u64);
    gauge("inbox_newest", "The number of the newest message that came", *shared.arrived.borrow());
    gauge("sessions", "Local sessions", sessions.len() as u64);
    gauge("sessions_attached", "Local sessions that a broker carries now", attached as u64);
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "no metrics"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
