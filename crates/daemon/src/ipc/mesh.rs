//! What only the broker knows: peers, profiles, topics, histories, runs and services. While it cannot be reached these
//! are `unavailable`; nothing of them is queued.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_proto::error::ErrorCode;
use tenure_proto::message::HistoryParams;
use tenure_proto::method::Method;
use tenure_proto::name::{MeshName, TopicName};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, ProfilePatch};
use tenure_proto::run::RunStartParams;
use tenure_proto::service::{ServiceRenewParams, ServicesListParams};
use utoipa::{IntoParams, ToSchema};

use super::asking::asking;
use super::body::{Json, Path, Query, answer};
use super::document::{self, Refusals};
use super::guard::Caller;
use super::problem::Problem;
use crate::link::Standing;
use crate::sessions::Local;
use crate::shared::Shared;

/// Which mesh.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeshQuery {
    /// The mesh; the daemon's first one if absent.
    #[param(value_type = Option<document::MeshName>)]
    pub(crate) mesh: Option<MeshName>,
}

/// The session that asks, if its broker can be reached.
fn attached(shared: &Shared, caller: &Caller, mesh: Option<&MeshName>) -> Result<Arc<Local>, Problem> {
    let local = caller.session(shared, mesh, None)?;
    let standing = local.standing.borrow().clone();
    match standing {
        Standing::Attached { .. } => Ok(local),
        Standing::Away(why) => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            Err(Problem::of(ErrorCode::Unavailable, format!("the broker cannot be reached now{why}")))
        }
        Standing::Ended => Err(Problem::of(ErrorCode::LeaseExpired, "the session is over")),
        Standing::TakenOver if local.own => {
            Err(Problem::of(ErrorCode::LeaseExpired, "another process took the daemon's own session over"))
        }
        Standing::TakenOver => {
            // It is used: reason enough to take it up again.
            local.queue.ring();
            let detail = "another process took this session over; it is taken up again, so try again";
            Err(Problem::of(ErrorCode::Unavailable, detail))
        }
        Standing::Failed(why) => Err(Problem::of(ErrorCode::LeaseExpired, why)),
    }
}

/// Everybody who is here.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Peers {
    /// As in the protocol.
    #[schema(value_type = Vec<document::Peer>)]
    peers: Vec<Peer>,
}

/// Who is here.
#[utoipa::path(get, path = "/v1/peers", params(MeshQuery), responses(
    (status = 200, description = "Everybody", body = Peers),
    Refusals))]
pub(crate) async fn peers(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let local = attached(&shared, &caller, query.mesh.as_ref())?;
    Ok(answer(StatusCode::OK, &Peers { peers: asking(&shared, local.client.peers(false)).await? }))
}

/// Changes what peers see of the session that asks.
#[utoipa::path(post, path = "/v1/profile", params(MeshQuery), request_body(content = document::ProfilePatch, description = "Any of the fields of a profile"), responses(
    (status = 204, description = "Changed"),
    Refusals))]
pub(crate) async fn profile(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
    Json(patch): Json<ProfilePatch>,
) -> Result<StatusCode, Problem> {
    let local = attached(&shared, &caller, query.mesh.as_ref())?;
    asking(&shared, local.client.set_profile(patch)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn topic(text: &str) -> Result<TopicName, Problem> {
    text.parse().map_err(|error: tenure_proto::WireError| Problem::of(ErrorCode::BadRequest, error.message))
}

/// Whether a session follows a topic from here on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Following {
    /// Whether it does.
    following: bool,
    /// Whether that is new.
    changed: bool,
    /// Whether the broker knows: of what is posted from here on, all comes.
    #[serde(rename = "inForce")]
    in_force: bool,
}

/// How long the broker may take to hear that a topic is followed before the answer says that it does not know.
const IN_FORCE: Duration = Duration::from_secs(5);

/// Waits until the broker knows that a topic is followed, if it can be reached.
async fn in_force(shared: &Shared, local: &Local, topic: &TopicName) -> bool {
    let Ok(_place) = shared.asking.try_acquire() else { return false };
    // A session that has just been opened is away without a reason, and may be there in a moment.
    if matches!(&*local.standing.borrow(), Standing::Away(Some(_)) | Standing::Ended | Standing::Failed(_)) {
        return false;
    }
    let mut topics = local.in_force.subscribe();
    let known = topics.wait_for(|topics| topics.contains(topic));
    // All of these are cancel-safe.
    tokio::select! {
        known = known => known.is_ok(),
        () = tokio::time::sleep(IN_FORCE) => false,
        () = shared.stopping.cancelled() => false,
    }
}

/// Follows a topic: what is posted once the broker knows (`inForce`) comes to the inbox, also what is posted while the daemon
/// is away. While the broker does not know, the wish is on the disk, and what is posted meanwhile may not come.
#[utoipa::path(post, path = "/v1/topics/{topic}/subscribe", params(("topic" = document::TopicName, Path, description = "The topic"), MeshQuery), responses(
    (status = 200, description = "It is followed from `inForce` on: now, or when the broker hears of it", body = Following),
    Refusals))]
pub(crate) async fn subscribe(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let topic = topic(&name)?;
    let changed = local.follow(topic.clone())?;
    let in_force = in_force(&shared, &local, &topic).await;
    Ok(answer(StatusCode::OK, &Following { following: true, changed, in_force }))
}

/// Follows a topic no more.
#[utoipa::path(post, path = "/v1/topics/{topic}/unsubscribe", params(("topic" = document::TopicName, Path, description = "The topic"), MeshQuery), responses(
    (status = 200, description = "It is not followed", body = Following),
    Refusals))]
pub(crate) async fn unsubscribe(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let changed = local.unfollow(&topic(&name)?)?;
    Ok(answer(StatusCode::OK, &Following { following: false, changed, in_force: false }))
}

/// Which part of a log.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// The mesh; the daemon's first one if absent.
    #[param(value_type = Option<document::MeshName>)]
    mesh: Option<MeshName>,
    /// The log: `topic/<name>/<partition>`, `inbox/s/<hex>` or `inbox/m/<hex>`.
    #[param(value_type = document::LogName)]
    log: String,
    /// Where to begin.
    #[param(value_type = Option<document::Natural>)]
    from: Option<U53>,
    /// At most so many, up to 256.
    #[param(value_type = Option<document::PageLimit>)]
    limit: Option<U53>,
}

/// What a log has, as the broker says it.
#[utoipa::path(get, path = "/v1/history", params(HistoryQuery), responses(
    (status = 200, description = "As `history` of the protocol", body = document::HistoryResult),
    Refusals))]
pub(crate) async fn history(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<HistoryQuery>,
) -> Result<Response, Problem> {
    let local = attached(&shared, &caller, query.mesh.as_ref())?;
    let params = HistoryParams { log: query.log, from: query.from, limit: query.limit };
    Ok(answer(StatusCode::OK, &asking(&shared, local.client.history(params)).await?))
}

/// Asks the broker, and gives its answer as it is.
async fn ask<P>(shared: &Shared, local: &Local, method: Method, params: P) -> Result<Response, Problem>
where
    P: Serialize + DeserializeOwned + Send + 'static,
{
    let result: Value = asking(shared, local.client.request(method, params)).await?;
    Ok(answer(StatusCode::OK, &result))
}

/// Starts a run, or finds the one with that key.
#[utoipa::path(post, path = "/v1/runs", params(MeshQuery), request_body(content = document::RunStartParams, description = "As `run.start` of the protocol"), responses(
    (status = 200, description = "As `run.start` of the protocol", body = document::RunStartResult),
    Refusals))]
pub(crate) async fn runs(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
    Json(params): Json<RunStartParams>,
) -> Result<Response, Problem> {
    ask(&shared, &*attached(&shared, &caller, query.mesh.as_ref())?, Method::RunStart, params).await
}

/// The services of a mesh.
#[utoipa::path(get, path = "/v1/services", params(MeshQuery), responses(
    (status = 200, description = "As `services.list` of the protocol", body = document::ServicesListResult),
    Refusals))]
pub(crate) async fn services(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let params: ServicesListParams = super::body::parse(b"{}")?;
    ask(&shared, &*attached(&shared, &caller, query.mesh.as_ref())?, Method::ServicesList, params).await
}

/// Takes and renews services for the session that asks.
#[utoipa::path(post, path = "/v1/services", params(MeshQuery), request_body(content = document::ServiceRenewParams, description = "As `service.renew` of the protocol"), responses(
    (status = 200, description = "As `service.renew` of the protocol", body = document::ServiceRenewResult),
    Refusals))]
pub(crate) async fn renew(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Query(query): Query<MeshQuery>,
    Json(params): Json<ServiceRenewParams>,
) -> Result<Response, Problem> {
    ask(&shared, &*attached(&shared, &caller, query.mesh.as_ref())?, Method::ServiceRenew, params).await
}
