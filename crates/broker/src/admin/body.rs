//! JSON in and out, and the parts of a URL.

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::operate::{LIST_PAGE, Page};
use tenure_proto::error::ErrorCode;
use utoipa::IntoParams;

use super::problem::Problem;

/// Bytes of a request's body.
pub(super) const BODY_BYTES: usize = 16 * 1024;

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
    // A list would be read as the fields in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Problem::of(ErrorCode::BadRequest, "the body is one JSON object").at(""));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let place: String = error.path().iter().map(|segment| format!("/{segment}")).collect();
        Problem::of(ErrorCode::BadRequest, error.inner().to_string()).at(place)
    })?;
    deserializer.end().map_err(|error| Problem::of(ErrorCode::BadRequest, error.to_string()).at(""))?;
    Ok(value)
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
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paged {
    /// Go on after this one: what the page before said as `next`.
    #[serde(default)]
    #[param(max_length = 200, min_length = 1)]
    after: Option<String>,
    /// How many, at most 500; absent is 500.
    #[serde(default)]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

impl Paged {
    /// The page that is meant.
    pub(super) fn page<T: std::str::FromStr>(self) -> Result<Page<T>, Problem> {
        let bad = |field: &str, text: &str| Problem::of(ErrorCode::BadRequest, text).at(format!("/{field}"));
        let after =
            self.after.map(|after| after.parse().map_err(|_| bad("after", "after is what `next` said")));
        let limit = self.limit.unwrap_or(LIST_PAGE);
        if !(1..=LIST_PAGE).contains(&limit) {
            return Err(bad("limit", "limit is between 1 and 500"));
        }
        Ok(Page { after: after.transpose()?, limit })
    }
}

/// A part of a URL that must read.
pub(super) fn part<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|_| Problem::of(ErrorCode::BadRequest, format!("this is no {what}")).at(format!("/{what}")))
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
