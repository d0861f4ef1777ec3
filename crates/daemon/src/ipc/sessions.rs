//! Sessions of their own for shells and agents.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::SessionKey;
use tenure_proto::name::MeshName;
use tenure_proto::peer::Profile;
use utoipa::ToSchema;

use super::body::{Json, Path, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::problem::Problem;
use crate::shared::Shared;

/// Bytes of a file's name.
const FILE_NAME_BYTES: usize = 255;
/// Bytes of the name of a key's file besides the mesh and the session's name, which stands there in hex: dots, what sort of
/// file it is, and the process that writes it.
const AROUND_BYTES: usize = 24;

/// A session that is wanted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionRequest {
    /// The mesh; the daemon's first one if absent.
    #[serde(default)]
    #[schema(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// What peers see; the same name is the same session.
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
    )]
    name: String,
    /// A visit: a session that nobody else has, whatever its name, that ends when nobody has listened to its events for a
    /// minute, and leaves no trace.
    #[serde(default)]
    visit: bool,
}

/// A session.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct SessionAnswer {
    /// Its key: its address is `session:<key>`.
    session: String,
    /// The mesh that it is in.
    mesh: String,
    /// What to send as `Tenure-Session` to speak for it.
    token: String,
}

/// Gives a shell or an agent a session of its own; to whoever has a token already, none that is another's.
#[utoipa::path(post, path = "/v1/sessions", request_body = SessionRequest, responses(
    (status = 200, description = "The session, new or as it was", body = SessionAnswer),
    Refusals))]
pub(crate) async fn make(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Json(request): Json<SessionRequest>,
) -> Result<Response, Problem> {
    let mesh = request.mesh.as_ref().or_else(|| shared.sessions.default_mesh());
    let mesh = mesh.ok_or_else(|| Problem::of(ErrorCode::NotFound, "this daemon is in no mesh"))?.clone();
    Profile::named(&request.name).check().map_err(|error| Problem::bad("/name", error.message))?;
    if request.name.len() > 100 {
        return Err(Problem::bad("/name", "a session's name has at most 100 bytes"));
    }
    if !request.visit {
        own_or_new(&shared, &caller, &mesh, &request.name)?;
    }
    let local = if request.visit {
        shared.open_visit(&mesh, &request.name)?
    } else {
        shared.open_session(&mesh, &request.name)?
    };
    let (session, token) = (local.key.to_string(), local.token());
    Ok(answer(StatusCode::OK, &SessionAnswer { session, mesh: local.mesh.to_string(), token }))
}

/// Refuses a name whose session is another's than the caller's: its token would be the right to speak for it. The check is
/// of keys and not of sessions, because whoever has the key of one that was let go reads what came for it.
fn own_or_new(shared: &Shared, caller: &Caller, mesh: &MeshName, name: &str) -> Result<(), Problem> {
    let most = FILE_NAME_BYTES.saturating_sub(AROUND_BYTES + mesh.as_str().len()) / 2;
    if name.len() > most {
        let detail = format!("in the mesh {mesh} a session's name has at most {most} bytes");
        return Err(Problem::bad("/name", detail));
    }
    match caller.confined() {
        Some(local) if (local.mesh == *mesh && local.name == name) => Ok(()),
        Some(_) if shared.home.has_session_key(mesh.as_str(), name) => {
            let detail = "that session is another's; ask for it without a token, or take another name";
            Err(Problem::of(ErrorCode::Forbidden, detail).at("/name"))
        }
        _ => Ok(()),
    }
}

/// Lets a session go: nobody speaks for it any more, and it leaves the mesh when its last message has left.
#[utoipa::path(delete, path = "/v1/sessions/{session}", params(("session" = document::SessionKey, Path, description = "Its key")), responses(
    (status = 204, description = "Let go"),
    Refusals))]
pub(crate) async fn close(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(session): Path<String>,
) -> Result<StatusCode, Problem> {
    let unknown = || Problem::of(ErrorCode::NotFound, "there is no such session");
    let key: SessionKey = session.parse().map_err(|_| unknown())?;
    let local = shared.sessions.all().into_iter().find(|local| local.key == key).ok_or_else(unknown)?;
    if local.own {
        return Err(Problem::of(
            ErrorCode::Forbidden,
            "the daemon's own session stays while the daemon does",
        ));
    }
    // The token of the session is the right to let it go.
    caller.session(&shared, None, Some(&key))?;
    shared.sessions.close(&local.mesh, &key)?;
    // It leaves when it has nothing more to send, which may be now.
    local.queue.ring();
    Ok(StatusCode::NO_CONTENT)
}
