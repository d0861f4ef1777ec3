//! JSON in and out: what is wrong with a request is told with the field that is.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_proto::error::ErrorCode;
use tenure_proto::pointer;

use super::problem::Problem;
use crate::shared::Shared;

/// Bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 1024 * 1024;

/// A body that is JSON of a type.
#[derive(Clone, Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Json<T>, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
        // A web page can send anything else without asking first.
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request", detail));
        }
        let patience = shared.config.patience;
        let body = tokio::time::timeout(patience, to_bytes(request.into_body(), REQUEST_BYTES)).await;
        let late = |_| {
            let detail = format!("the body did not come within {} ms", patience.as_millis());
            Problem::late(detail)
        };
        let body = body.map_err(late)?.map_err(|_| {
            let detail = format!(
                "a request has at most {REQUEST_BYTES} bytes, and bytes in base64 are a third more; send more \
                 straight to the broker"
            );
            Problem::of(ErrorCode::TooLarge, detail)
        })?;
        parse(&body).map(Json)
    }
}

/// Reads JSON; an error names the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    pointer::read_object(bytes).map_err(|bad| Problem::bad(&bad.pointer, bad.message))
}

/// The parts of a path.
#[derive(Clone, Debug)]
pub(crate) struct Path<T>(pub(crate) T);

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
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Query(value)),
            Err(rejection) => Err(Problem::of(ErrorCode::BadRequest, rejection.body_text())),
        }
    }
}

/// An answer in JSON.
pub(crate) fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let kind = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Err(error) => {
            tracing::error!(event = "answer_unspeakable", %error);
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the answer has no JSON")
                .into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_list_is_no_object() {
        #[derive(serde::Deserialize)]
        struct Pair {
            #[serde(default)]
            _a: Option<u8>,
        }
        assert!(parse::<Pair>(b" {}").is_ok());
        assert!(parse::<Pair>(b"[null]").is_err());
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        let told = |text: &str| {
            let problem = parse::<BTreeMap<String, Vec<u8>>>(text.as_bytes()).unwrap_err();
            serde_json::to_value(problem).unwrap()["pointer"].clone()
        };
        assert_eq!(told(r#"{"a/b":[1,"x"]}"#), "/a~1b/1");
        assert_eq!(told(r#"{"a":7}"#), "/a");
        assert_eq!(told("[]"), "");
        assert_eq!(told(""), "");
        assert_eq!(told("{} {}"), "");
    }

    #[test]
    fn a_field_that_is_missing_or_stands_twice_is_named_too() {
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            #[serde(rename = "a/b")]
            _b: u8,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[serde(rename = "inner")]
            _inner: Inner,
        }
        let told = |text: &str| {
            let problem = parse::<Outer>(text.as_bytes()).unwrap_err();
            serde_json::to_value(problem).unwrap()["pointer"].clone()
        };
        assert_eq!(told("{}"), "/inner");
        assert_eq!(told(r#"{"inner":{}}"#), "/inner/a~1b");
        assert_eq!(told(r#"{"inner":{"a/b":1},"inner":{"a/b":1}}"#), "/inner");
    }
}
