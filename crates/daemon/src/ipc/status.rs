//! `GET /v1/status`: everything about the daemon at once, for whoever sits in front of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{Query, answer};
use super::document::Refusals;
use super::problem::Problem;
use crate::link::Standing;
use crate::sessions::Local;
use crate::shared::Shared;
use crate::stranded;

/// Everything about the daemon.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DaemonStatus)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// Its process.
    pid: u32,
    /// Its version.
    version: &'static str,
    /// Since when it runs, in milliseconds.
    uptime_ms: u64,
    /// Its directory.
    home: String,
    /// Its socket.
    socket: String,
    /// The meshes it is in; the first is meant when a request names none.
    meshes: Vec<MeshStatus>,
    /// Local sessions, the daemon's own included.
    sessions: Vec<SessionStatus>,
    /// That the disk is full, and what to do; absent while it has room.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_full: Option<String>,
    /// What it was given to send, unless that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox: Option<OutboxStatus>,
    /// What has come, unless that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<InboxStatus>,
}

/// What to leave out.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusQuery {
    /// `false` leaves out the inbox and the outbox, whose rows are counted each time: a command that only asks where it is need not
    /// wait for that.
    counts: Option<bool>,
}

/// How the daemon stands in a mesh.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct MeshStatus {
    /// The mesh.
    name: String,
    /// Its broker.
    broker: String,
    /// Whether that can be reached.
    connected: bool,
    /// Why not, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Hours that a message may wait for this broker before it is given up: what the operator wants, else from what the broker said
    /// last, also before the daemon began; absent until it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_age_hours: Option<u64>,
}

/// A local session.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct SessionStatus {
    /// Its mesh.
    mesh: String,
    /// What peers see.
    name: String,
    /// Its key.
    session: String,
    /// The member it belongs to.
    member: String,
    /// Whether it is the daemon's own.
    own: bool,
    /// Whether a broker carries it now.
    connected: bool,
    /// Why not, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// How the outbox is.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct OutboxStatus {
    /// Rows that wait.
    pending: u64,
    /// Rows on their way.
    inflight: u64,
    /// Rows that a broker has.
    done: u64,
    /// Rows that a person must look at.
    dead: u64,
    /// Rows that were taken back.
    aborted: u64,
    /// Bytes in use.
    bytes: u64,
    /// Bytes that it may hold.
    cap: u64,
    /// Meshes whose rows nobody sends, because the daemon is not in them any more.
    stranded: BTreeSet<String>,
    /// Why nothing is written any more until the daemon is started again, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

/// How the inbox is.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct InboxStatus {
    /// Bytes in use.
    bytes: u64,
    /// Bytes that it may hold.
    cap: u64,
    /// Why nothing is written any more until the daemon is started again, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

/// Everything about the daemon: its process, meshes, sessions and outbox.
#[utoipa::path(get, path = "/v1/status", params(StatusQuery), responses(
    (status = 200, description = "How it is", body = Status),
    Refusals))]
pub(crate) async fn status(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<StatusQuery>,
) -> Result<Response, Problem> {
    let counted = match query.counts {
        Some(false) => None,
        _ => {
            let stranded = stranded::meshes(&shared).await?;
            Some((shared.outbox.census().await?, shared.inbox.bytes().await?, stranded))
        }
    };
    let meshes = shared.config.meshes.iter().map(|choice| {
        let own = shared.sessions.own(&choice.name);
        let standing = own.as_ref().map(|local| local.standing.borrow().clone());
        MeshStatus {
            name: choice.name.to_string(),
            broker: choice.broker.clone(),
            connected: standing.as_ref().is_some_and(Standing::is_attached),
            reason: standing.and_then(|standing| standing.why_not()),
            max_age_hours: own.and_then(|local| *local.max_age_hours.borrow()),
        }
    });
    let session = |local: &Arc<Local>| SessionStatus {
        mesh: local.mesh.to_string(),
        name: local.name.clone(),
        session: local.key.to_string(),
        member: local.member.to_string(),
        own: local.own,
        connected: local.standing.borrow().is_attached(),
        reason: local.standing.borrow().why_not(),
    };
    let open = shared.sessions.all().into_iter().filter(|local| !local.is_closing());
    let status = Status {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: shared.clock.at().0,
        home: shared.home.path().display().to_string(),
        socket: shared.home.socket().display().to_string(),
        meshes: meshes.collect(),
        sessions: open.map(|local| session(&local)).collect(),
        disk_full: shared.outbox.disk_full(),
        inbox: counted.as_ref().map(|(_, bytes, _)| InboxStatus {
            bytes: *bytes,
            cap: shared.inbox.cap().bytes,
            fault: shared.inbox.fault(),
        }),
        outbox: counted.map(|(census, _, stranded)| OutboxStatus {
            pending: census.pending,
            inflight: census.inflight,
            done: census.done,
            dead: census.dead,
            aborted: census.aborted,
            bytes: census.bytes,
            cap: shared.outbox.cap().bytes,
            stranded,
            fault: shared.outbox.fault(),
        }),
    };
    Ok(answer(StatusCode::OK, &status))
}
