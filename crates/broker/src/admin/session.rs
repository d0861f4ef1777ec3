//! Sessions: who is here, and ending one.

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_mesh::access::admin::{Act, Operated, SessionInfo};
use tenure_mesh::store::record::{LeaseEnd, LeaseEndEntry};
use tenure_proto::ids::SessionKey;
use utoipa::{IntoParams, ToSchema};

use super::body::{Paged, Path, Query, object, part, shown};
use super::document::{Key, Label, MeshPart};
use super::problem::{Problem, Refusals};
use super::setting::AuditOf;
use super::{Asking, odd};

/// A session as an operator sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Session {
    /// What everybody sees, with the state of its socket and the end of its lease.
    #[serde(flatten)]
    #[schema(additional_properties)]
    peer: Map<String, Value>,
    /// The address that its last hello came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// What it may do.
    caps: Vec<&'static str>,
    /// Subscriptions, besides its inboxes.
    subscriptions: usize,
    /// Deliveries that it has in hand.
    in_hand: usize,
}

impl Session {
    fn of(info: &SessionInfo) -> Session {
        Session {
            peer: object(&info.peer),
            from: info.from.map(|from| from.to_string()),
            caps: info.rights.names().collect(),
            subscriptions: info.subscriptions,
            in_hand: info.in_hand,
        }
    }
}

/// Sessions, by key.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Sessions {
    /// One page of them.
    sessions: Vec<Session>,
    /// What to pass as `after`, when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Why a session is ended.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Why {
    /// For the audit log.
    #[serde(default)]
    #[param(value_type = Label, inline)]
    reason: String,
}

/// Lists who is here.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/sessions", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<SessionKey>),
    responses((status = 200, description = "A page of them", body = Sessions), Refusals))]
pub(crate) async fn list(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<SessionKey>>,
) -> Result<Response, Problem> {
    let Operated::Sessions(rows, more) = asking.ask(&mesh, Act::Sessions(paged.page()?)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.peer.session.to_string());
    Ok(shown(&Sessions { sessions: rows.iter().map(Session::of).collect(), next }))
}

/// Shows one session.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/sessions/{session}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("session" = inline(Key), Path, description = "Its public key")),
    responses((status = 200, description = "The session", body = Session), Refusals))]
pub(crate) async fn show(
    asking: Asking,
    Path((mesh, session)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let session: SessionKey = part("session", &session)?;
    match asking.ask(&mesh, Act::Session(session)).await? {
        Operated::Session(info) => Ok(shown(&Session::of(&info))),
        _ => Err(odd()),
    }
}

/// Ends a session now: its lease, and all that hangs off it. It may come back; to keep it out, ban it.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/sessions/{session}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("session" = inline(Key), Path, description = "Its public key"), Why),
    responses((status = 204, description = "It is gone"), Refusals))]
pub(crate) async fn kick(
    asking: Asking,
    Path((mesh, session)): Path<(String, String)>,
    Query(why): Query<Why>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::Kick(part("session", &session)?, why.reason)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The end of a lease.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct End {
    /// Its number.
    seq: u64,
    /// When, Unix milliseconds.
    at: u64,
    /// The session.
    session: String,
    /// What it was called.
    name: String,
    /// The member that vouched for it.
    member: String,
    /// The lease.
    lease: String,
    /// Why: `expired`, `bye`, `banned` or `kicked`.
    why: String,
}

/// Ends of leases, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Ends {
    /// One page of them.
    ends: Vec<End>,
    /// What to pass as `before`, when there are older ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// Lists leases that ended: who, why and when. Kept for 30 days, and at most 100,000 of a broker.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/lease-ends", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), AuditOf),
    responses((status = 200, description = "A page of them", body = Ends), Refusals))]
pub(crate) async fn ends(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(of): Query<AuditOf>,
) -> Result<Response, Problem> {
    let page = of.page()?;
    let Operated::LeaseEnds(ends, more) = asking.ask(&mesh, Act::LeaseEnds(page)).await? else {
        return Err(odd());
    };
    let next = ends.last().filter(|_| more).map(|end| end.seq);
    let shape = |LeaseEndEntry { seq, end }: LeaseEndEntry| {
        let LeaseEnd { session, lease, member, name, why, at } = end;
        let (session, member, lease) = (session.to_string(), member.to_string(), lease.to_string());
        End { seq, at, session, name, member, lease, why }
    };
    Ok(shown(&Ends { ends: ends.into_iter().map(shape).collect(), next }))
}
