//! JSON in and out, and the parts of a URL.

use std::marker::PhantomData;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_mesh::access::admin::{LIST_PAGE, Page};
use tenure_mesh::input::Banned;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::{GrantId, MemberKey, SessionKey};
use tenure_proto::name::MeshName;
use tenure_proto::number::U53;
use tenure_proto::pointer;
use tenure_proto::{GroupName, ServiceName, TopicName};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, Type};

use super::document::{ANY_GRANT, KEY, NAME, SUBJECT};
use super::problem::Problem;

/// Bytes of a request's body.
pub(super) const BODY_BYTES: usize = 64 * 1024;

/// A body that is JSON of a type.
#[derive(Clone, Debug)]
pub(crate) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Json<T>, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
        // A web page can send anything else without asking first.
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::BadRequest, detail));
        }
        parse(&bytes(request).await?).map(Json)
    }
}

/// The body of a request.
pub(super) async fn bytes(request: Request) -> Result<Bytes, Problem> {
    let body = to_bytes(request.into_body(), BODY_BYTES).await;
    let large = || Problem::of(ErrorCode::TooLarge, format!("a request has at most {BODY_BYTES} bytes"));
    body.map_err(|_| large())
}

/// Reads JSON; an error names the field.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    pointer::read_object(bytes).map_err(|bad| Problem::of(ErrorCode::BadRequest, bad.message).at(bad.pointer))
}

/// The parts of a path.
#[derive(Clone, Debug)]
pub(crate) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Path(value)),
            Err(rejection) => Err(Problem::of(ErrorCode::BadRequest, rejection.body_text())),
        }
    }
}

/// The parameters of a query string.
#[derive(Clone, Debug)]
pub(crate) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Query(value)),
            Err(rejection) => Err(Problem::of(ErrorCode::BadRequest, rejection.body_text())),
        }
    }
}

/// Where a list goes on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paged<T> {
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    limit: Option<U53>,
    #[serde(skip)]
    place: PhantomData<T>,
}

/// Something that a list is in the order of, as it stands in a URL.
pub(crate) trait Place: Sized {
    /// What it looks like, as the document says it.
    const PATTERN: &'static str;

    /// The one that a text means.
    fn read(text: &str) -> Option<Self>;
}

/// Names those that are read as they are written everywhere.
macro_rules! places {
    ($($place:ty: $pattern:expr;)*) => {
        $(impl Place for $place {
            const PATTERN: &'static str = $pattern;

            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        })*
    };
}

places! {
    SessionKey: KEY;
    MemberKey: KEY;
    ServiceName: NAME;
    TopicName: NAME;
    GroupName: NAME;
    MeshName: NAME;
    GrantId: ANY_GRANT;
    Banned: SUBJECT;
}

impl<T: Place> IntoParams for Paged<T> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let parameter = |name: &str, about: &str, schema: ObjectBuilder| {
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Query)
                .required(Required::False)
                .description(Some(about))
                .schema(Some(schema))
                .build()
        };
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(T::PATTERN));
        let number =
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(LIST_PAGE));
        vec![
            parameter("after", "Go on after this one: what the page before said as `next`.", text),
            parameter("limit", "How many, at most 500; absent is 500.", number),
        ]
    }
}

impl<T: Place> Paged<T> {
    /// The page that is meant.
    pub(super) fn page(self) -> Result<Page<T>, Problem> {
        let bad = || Problem::of(ErrorCode::BadRequest, "after is what `next` said").at("/after");
        let after = self.after.map(|after| T::read(&after).ok_or_else(bad)).transpose()?;
        Ok(Page { after, limit: limit(self.limit, LIST_PAGE)? })
    }
}

/// How many rows a page has, of a list whose pages have at most `most`.
pub(super) fn limit(asked: Option<U53>, most: usize) -> Result<usize, Problem> {
    let fits = match asked {
        None => Some(most),
        Some(asked) => usize::try_from(asked.get()).ok().filter(|limit| (1..=most).contains(limit)),
    };
    fits.ok_or_else(|| {
        Problem::of(ErrorCode::BadRequest, format!("limit is between 1 and {most}")).at("/limit")
    })
}

/// A part of a URL that must read.
pub(super) fn part<T: Place>(what: &str, text: &str) -> Result<T, Problem> {
    let bad = || Problem::of(ErrorCode::BadRequest, format!("this is no {what}")).at(format!("/{what}"));
    T::read(text).ok_or_else(bad)
}

/// Something as the fields of an object.
pub(super) fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// An answer in JSON.
pub(super) fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    let kind = HeaderValue::from_static("application/json");
    match serde_json::to_vec(value) {
        Ok(body) => (status, [(header::CONTENT_TYPE, kind)], body).into_response(),
        Err(error) => {
            tracing::error!(event = "answer_unspeakable", %error);
            Problem::of(ErrorCode::Internal, "the answer has no JSON").into_response()
        }
    }
}

/// `200` with this.
pub(super) fn shown(value: &impl Serialize) -> Response {
    answer(StatusCode::OK, value)
}
