//! Meshes: which there are, and making one.

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tenure_mesh::access::admin::{Act, Operated, Operation, Overview};
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::MemberKey;
use tenure_proto::name::MeshName;
use utoipa::ToSchema;

use super::body::{Json, Path, answer, part, shown};
use super::document::{Key, MeshPart};
use super::problem::{Problem, Refusals};
use super::{Asking, odd};
use crate::meshes::Founding;

/// A mesh.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mesh {
    /// Its name.
    name: String,
    /// Whether any key may join.
    open: bool,
    /// Since when not, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    founded_at: Option<u64>,
    /// Living leases.
    sessions: usize,
    /// Those of them that a socket carries.
    online: usize,
    /// Members.
    members: usize,
    /// Topics.
    topics: usize,
    /// Runs that have not ended.
    runs: usize,
    /// Bans.
    bans: usize,
    /// Whether it stops.
    draining: bool,
}

impl Mesh {
    fn of(name: &MeshName, overview: Overview) -> Mesh {
        let Overview { founded, sessions, online, members, topics, runs, bans, draining } = overview;
        let (name, open) = (name.to_string(), founded.is_none());
        Mesh { name, open, founded_at: founded, sessions, online, members, topics, runs, bans, draining }
    }
}

/// All meshes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Meshes {
    /// By name; there are at most 256.
    meshes: Vec<Mesh>,
}

/// A mesh that is wanted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMesh {
    /// Its name.
    #[schema(value_type = MeshPart)]
    name: String,
    /// The public key of its first operator, who can invite others.
    #[schema(value_type = Key)]
    owner: String,
}

/// Lists the meshes of this broker.
#[utoipa::path(get, path = "/v1/admin/meshes", responses((status = 200, description = "All of them", body = Meshes), Refusals))]
pub(crate) async fn list(asking: Asking) -> Result<Response, Problem> {
    let mut meshes = Vec::new();
    for name in asking.app.shared.meshes.names() {
        let Operated::Overview(overview) = asking.ask(name.as_str(), Act::Overview).await? else {
            return Err(odd());
        };
        meshes.push(Mesh::of(&name, overview));
    }
    Ok(shown(&Meshes { meshes }))
}

/// Makes a mesh that lets in its members, and whoever they invite. The open mesh `default` can be made one: whoever is in it
/// and is not its owner is put out.
#[utoipa::path(post, path = "/v1/admin/meshes", request_body = NewMesh, responses(
    (status = 201, description = "Made, and on disk", body = Mesh), Refusals))]
pub(crate) async fn create(asking: Asking, Json(wanted): Json<NewMesh>) -> Result<Response, Problem> {
    let name: MeshName = wanted.name.parse().map_err(|error| Problem::from_field("/name", error))?;
    let owner: MemberKey = part("owner", &wanted.owner)?;
    let shared = &asking.app.shared;
    let mesh = match shared.meshes.room(&name) {
        Some((mesh, _)) => {
            asking.ask_of(&mesh, Act::Found(owner)).await?;
            mesh
        }
        None => {
            let (_permit, operation) = (asking.permit()?, asking.operation(Act::Found(owner)));
            let Operation { who, from, .. } = operation;
            shared.meshes.make(shared, &name, Founding { owner, who, from }).await?
        }
    };
    let Operated::Overview(overview) = asking.ask_of(&mesh, Act::Overview).await? else { return Err(odd()) };
    Ok(answer(StatusCode::CREATED, &Mesh::of(&name, overview)))
}

/// Shows one mesh.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}",
    params(("mesh" = inline(MeshPart), Path, description = "Its name")),
    responses((status = 200, description = "The mesh", body = Mesh), Refusals))]
pub(crate) async fn show(asking: Asking, Path(mesh): Path<String>) -> Result<Response, Problem> {
    let name: MeshName = part("mesh", &mesh)?;
    let Operated::Overview(overview) = asking.ask(&mesh, Act::Overview).await? else { return Err(odd()) };
    Ok(shown(&Mesh::of(&name, overview)))
}

impl Problem {
    /// A value that is no value of this field.
    pub(super) fn from_field(pointer: &str, error: tenure_proto::WireError) -> Problem {
        Problem::of(ErrorCode::BadRequest, error.message).at(pointer)
    }
}
