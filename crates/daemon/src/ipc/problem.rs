//! What a request is told that was not done: RFC 9457, with our codes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tenure_outbox::Conflict;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::pointer;
use utoipa::ToSchema;

use crate::db::DbError;
use crate::sessions::SessionError;

/// Why a request was not done (`application/problem+json`).
#[derive(Clone, Debug, Serialize, ToSchema)]
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
    /// The field that is wrong, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pointer: Option<Box<str>>,
    /// Facts that belong to the code.
    #[serde(flatten)]
    #[schema(additional_properties)]
    more: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Unknown"),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            retryable: false,
            pointer: None,
            more: Map::new(),
        }
    }

    pub(crate) fn of(code: ErrorCode, detail: impl Into<String>) -> Problem {
        let problem = Problem::new(status(code), code.as_str(), detail);
        Problem { retryable: code.retryable(), ..problem }
    }

    pub(crate) fn bad(pointer: &str, detail: impl Into<String>) -> Problem {
        Problem::of(ErrorCode::BadRequest, detail).at(pointer)
    }

    /// A request that was not said in time.
    pub(crate) fn late(detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail);
        Problem { retryable: true, ..problem }
    }

    /// The same about this field.
    pub(crate) fn at(mut self, pointer: &str) -> Problem {
        self.pointer = Some(pointer.into());
        self
    }

    /// The same in other words.
    pub(crate) fn saying(mut self, detail: impl Into<String>) -> Problem {
        self.detail = detail.into();
        self
    }

    /// The same with a fact.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Problem {
        self.more.insert(key.to_owned(), value);
        self
    }

    /// An id that cannot be used.
    pub(crate) fn conflict(conflict: &Conflict, request: &Fingerprint) -> Problem {
        let code = ErrorCode::IdempotencyKeyReused;
        let mut problem =
            Problem::of(code, "this id stands for another request, or is used up; take a new one")
                .with("conflict", json!(conflict.name()))
                .with("daemonFingerprintPrefix", json!(conflict.held.prefix()))
                .with("requestFingerprintPrefix", json!(request.prefix()));
        if let Some(reason) = &conflict.reason {
            problem = problem.with("reason", json!(reason));
        }
        if let Some(place) = &conflict.place {
            problem = problem.with("brokerMessageId", json!(place.id));
        }
        problem
    }
}

/// The HTTP status of a code.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Problem {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Problem::new(status, error.code.as_str(), error.message);
        problem.retryable = error.retryable;
        if let Some(details) = error.details {
            if let Some(field) = details.get("field").and_then(Value::as_str) {
                problem.pointer = Some(pointer::of_key(field).into());
            }
            problem = problem.with("details", *details);
        }
        if let Some(ms) = error.retry_after_ms {
            problem = problem.with("retryAfterMs", json!(ms));
        }
        problem
    }
}

impl From<DbError> for Problem {
    fn from(error: DbError) -> Problem {
        let (status, code, retryable) = match &error {
            DbError::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", true),
            DbError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", true),
            DbError::Poisoned(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", false),
            DbError::Corrupt(_) | DbError::Newer { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "damaged", false)
            }
        };
        Problem { retryable, ..Problem::new(status, code, error.to_string()) }
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Problem {
        let code = match &error {
            SessionError::NoSuchMesh(_) => {
                return Problem::of(ErrorCode::NotFound, error.to_string()).at("/mesh");
            }
            SessionError::TooMany => ErrorCode::Busy,
            SessionError::Options(_) => return Problem::bad("/name", error.to_string()),
            SessionError::Home(_) => ErrorCode::Unavailable,
        };
        Problem::of(code, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        let wait = self.more.get("retryAfterMs").and_then(Value::as_u64).map(|ms| ms.div_ceil(1_000));
        if status == StatusCode::TOO_MANY_REQUESTS || wait.is_some() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.unwrap_or(1)));
        }
        response
    }
}
