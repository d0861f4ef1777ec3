//! What a request is told that was not done: RFC 9457, with our codes.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::pointer;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{IntoResponses, ToSchema};

/// Why a request was not done (`application/problem+json`).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Problem {
    /// Always `about:blank`: `code` tells problems apart.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The meaning of the status.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What to act on.
    code: &'static str,
    /// One sentence for a person.
    detail: String,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// How long to wait before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The field that is wrong, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pointer: Option<Box<str>>,
    /// Facts that belong to the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    details: Option<Box<Value>>,
}

impl Problem {
    /// With a status of HTTP's own.
    pub(super) fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Unknown"),
            status: status.as_u16(),
            code: code.as_str(),
            detail: detail.into(),
            retryable: code.retryable(),
            retry_after_ms: None,
            pointer: None,
            details: None,
        }
    }

    /// Whether it is of this code.
    pub(super) fn is(&self, code: ErrorCode) -> bool {
        self.code == code.as_str()
    }

    pub(super) fn of(code: ErrorCode, detail: impl Into<String>) -> Problem {
        Problem::new(status(code), code, detail)
    }

    /// The same, about a field that stands in this object of the body.
    pub(super) fn within(self, object: &str) -> Problem {
        Problem { pointer: self.pointer.map(|field| format!("{object}{field}").into()), ..self }
    }

    /// The same about this field.
    pub(super) fn at(self, pointer: impl Into<Box<str>>) -> Problem {
        Problem { pointer: Some(pointer.into()), ..self }
    }
}

fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Problem {
        let field = error.details.as_ref().and_then(|details| details.get("field")?.as_str());
        let pointer = field.map(|field| pointer::of_key(field).into());
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Problem {
            pointer,
            retry_after_ms: error.retry_after_ms.map(|ms| ms.get()),
            details: error.details,
            ..Problem::new(status, error.code, error.message)
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        let headers = response.headers_mut();
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What any request may be told instead of being done: the statuses of all codes, and those of HTTP itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let http = [
            StatusCode::METHOD_NOT_ALLOWED,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::UNPROCESSABLE_ENTITY,
        ];
        let all: BTreeSet<StatusCode> = ErrorCode::ALL.iter().map(|code| status(*code)).chain(http).collect();
        let response = |status: StatusCode| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            let reason = status.canonical_reason().unwrap_or("Refused");
            let response = ResponseBuilder::new()
                .description(reason)
                .content("application/problem+json", content)
                .build();
            (status.as_str().to_owned(), RefOr::T(response))
        };
        all.into_iter().map(response).collect()
    }
}
