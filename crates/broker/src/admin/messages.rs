//! What there is of messages: services, topics, groups, dead letters.

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tenure_mesh::access::admin::{Act, Operated, Page};
use tenure_mesh::conn::frames;
use tenure_mesh::effect::Answer;
use tenure_proto::limits::{PAGE, SERVICES_PAGE};
use tenure_proto::number::U53;
use tenure_proto::topic::TopicsListResult;
use tenure_proto::{GroupName, ServiceName, TopicName, WireError};
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, Paged, Path, Query, limit, object, shown};
use super::document::{Log, MeshPart, TopicPart, Whole};
use super::problem::{Problem, Refusals};
use super::{Asking, odd};

/// Which dead letters.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadOf {
    /// The log: `inbox/s/HEX`, `inbox/m/HEX` or `topic/NAME/PARTITION`.
    #[param(value_type = Log, inline)]
    log: String,
    /// Go on after this seq.
    #[serde(default)]
    #[param(value_type = Option<Whole>, inline)]
    after: Option<U53>,
    /// How many, at most 256; absent is 256.
    #[serde(default)]
    #[param(value_type = Option<u64>, minimum = 1, maximum = 256)]
    limit: Option<U53>,
}

/// Dead letters to do something about.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Letters {
    /// The log: `inbox/s/HEX`, `inbox/m/HEX` or `topic/NAME/PARTITION`.
    #[schema(value_type = Log)]
    log: String,
    /// Which of its dead letters, by seq.
    #[schema(value_type = Vec<Whole>, min_items = 1, max_items = 256)]
    seqs: Vec<U53>,
}

/// A list of things as sessions see them too.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Listed {
    /// The things, under the name of their kind.
    #[serde(flatten)]
    #[schema(additional_properties)]
    rows: Map<String, Value>,
}

/// Lists services, those that hide as well, at most 500 in a page.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/services", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<ServiceName>),
    responses((status = 200, description = "A page of them", body = Listed), Refusals))]
pub(crate) async fn services(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<ServiceName>>,
) -> Result<Response, Problem> {
    let mut page = paged.page()?;
    page.limit = page.limit.min(SERVICES_PAGE);
    match asking.ask(&mesh, Act::Services(page)).await? {
        Operated::Answer(answer) => match *answer {
            Answer::ServicesList(list) => {
                let rows = object(&json!({"services": list.services, "next": list.next}));
                Ok(shown(&Listed { rows }))
            }
            _ => Err(odd()),
        },
        _ => Err(odd()),
    }
}

async fn page_of_topics(
    asking: &Asking,
    mesh: &str,
    paged: Paged<TopicName>,
) -> Result<TopicsListResult, Problem> {
    let mut page = paged.page()?;
    page.limit = page.limit.min(PAGE);
    match asking.ask(mesh, Act::Topics(page)).await? {
        Operated::Answer(answer) => match *answer {
            Answer::TopicsList(list) => Ok(list),
            _ => Err(odd()),
        },
        _ => Err(odd()),
    }
}

/// Lists topics with their groups, at most 256 in a page.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/topics", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<TopicName>),
    responses((status = 200, description = "A page of them", body = Listed), Refusals))]
pub(crate) async fn topics(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<TopicName>>,
) -> Result<Response, Problem> {
    let list = page_of_topics(&asking, &mesh, paged).await?;
    Ok(shown(&Listed { rows: object(&list) }))
}

/// Lists shared groups and how far behind they are; `after` and `next` are topics. `more` names topics that have more groups
/// than are listed here: ask for those of one topic.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/groups", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<TopicName>),
    responses((status = 200, description = "Those of a page of topics", body = Listed), Refusals))]
pub(crate) async fn groups(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<TopicName>>,
) -> Result<Response, Problem> {
    let list = page_of_topics(&asking, &mesh, paged).await?;
    let mut groups = Vec::new();
    for topic in &list.topics {
        for group in &topic.groups {
            let mut row = serde_json::to_value(group).unwrap_or_default();
            row["topic"] = json!(topic.name);
            groups.push(row);
        }
    }
    let mut rows = json!({"groups": groups});
    let more: Vec<_> =
        list.topics.iter().filter(|topic| topic.groups_next.is_some()).map(|t| &t.name).collect();
    if !more.is_empty() {
        rows["more"] = json!(more);
    }
    if let Some(next) = list.next {
        rows["next"] = json!(next);
    }
    Ok(shown(&Listed { rows: object(&rows) }))
}

/// Lists the shared groups of one topic, at most 256 in a page.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/topics/{topic}/groups", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("topic" = inline(TopicPart), Path, description = "The topic"), Paged<GroupName>),
    responses((status = 200, description = "A page of them", body = Listed), Refusals))]
pub(crate) async fn groups_of(
    asking: Asking,
    Path((mesh, topic)): Path<(String, String)>,
    Query(paged): Query<Paged<GroupName>>,
) -> Result<Response, Problem> {
    let mut page = paged.page()?;
    page.limit = page.limit.min(PAGE);
    match asking.ask(&mesh, Act::Groups(named(&topic)?, page)).await? {
        Operated::Answer(answer) => match *answer {
            Answer::GroupsList(list) => Ok(shown(&Listed { rows: object(&list) })),
            _ => Err(odd()),
        },
        _ => Err(odd()),
    }
}

/// Deletes a topic with all that it holds: messages, groups, dead letters. Whoever reads it is told. Answered when it is gone;
/// made again, its numbers go on.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/topics/{topic}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("topic" = inline(TopicPart), Path, description = "The topic")),
    responses((status = 204, description = "It is gone"), Refusals))]
pub(crate) async fn delete_topic(
    asking: Asking,
    Path((mesh, topic)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::DeleteTopic(named(&topic)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a shared group of a topic. Whoever reads with it is told.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/topics/{topic}/groups/{group}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("topic" = inline(TopicPart), Path, description = "The topic"),
        ("group" = inline(TopicPart), Path, description = "The group")),
    responses((status = 204, description = "It is gone"), Refusals))]
pub(crate) async fn delete_group(
    asking: Asking,
    Path((mesh, topic, group)): Path<(String, String, String)>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::DeleteGroup(named(&topic)?, named(&group)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The topic or group that a path names.
fn named<T: std::str::FromStr<Err = WireError>>(name: &str) -> Result<T, Problem> {
    name.parse().map_err(|error: WireError| Problem::of(error.code, error.message))
}

/// Lists dead letters of a log.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/dead", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), DeadOf),
    responses((status = 200, description = "A page of them", body = Listed), Refusals))]
pub(crate) async fn dead(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(of): Query<DeadOf>,
) -> Result<Response, Problem> {
    let page = Page { after: of.after.map(U53::get), limit: limit(of.limit, PAGE)? };
    let Operated::Answer(answer) = asking.ask(&mesh, Act::Dead { log: of.log, page }).await? else {
        return Err(odd());
    };
    match *answer {
        Answer::DeadList((letters, next)) => {
            let list = frames::dead_list(letters, next);
            Ok(shown(&Listed { rows: object(&list) }))
        }
        _ => Err(odd()),
    }
}

/// Puts dead letters back, to be handed out again.
#[utoipa::path(post, path = "/v1/admin/meshes/{mesh}/dead/retry", request_body = Letters, params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 200, description = "Which are back, and which were not there", body = Listed), Refusals))]
pub(crate) async fn retry(
    asking: Asking,
    Path(mesh): Path<String>,
    Json(letters): Json<Letters>,
) -> Result<Response, Problem> {
    match asking.ask(&mesh, Act::DeadRetry(letters.log, letters.seqs)).await? {
        Operated::Answer(answer) => match *answer {
            Answer::DeadRetry(done) => Ok(shown(&Listed { rows: object(&done) })),
            _ => Err(odd()),
        },
        _ => Err(odd()),
    }
}

/// Drops dead letters for good.
#[utoipa::path(post, path = "/v1/admin/meshes/{mesh}/dead/drop", request_body = Letters, params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 200, description = "How many are gone", body = Listed), Refusals))]
pub(crate) async fn discard(
    asking: Asking,
    Path(mesh): Path<String>,
    Json(letters): Json<Letters>,
) -> Result<Response, Problem> {
    match asking.ask(&mesh, Act::DeadDrop(letters.log, letters.seqs)).await? {
        Operated::Answer(answer) => match *answer {
            Answer::DeadDrop(done) => Ok(shown(&Listed { rows: object(&done) })),
            _ => Err(odd()),
        },
        _ => Err(odd()),
    }
}
