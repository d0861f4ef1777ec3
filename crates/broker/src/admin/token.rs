//! The admin API: what an operator may do, over HTTP, with the operator's token.
//!
//! What it promises: no route here is reached without the token, through a door that is not ours, or with a token in
//! its URL, where logs and histories would keep it. Who may try how often is `core::operator`'s to say.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::PoisonError;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::operator::Operator;
use tenure_core::secret;
use tenure_proto::error::{ErrorCode, WireError};

use crate::config::{Config, StoreChoice};
use crate::http::{App, check_door};
use crate::peer::Peer;
use crate::stop::Stop;

/// Bytes of a request's body.
const BODY_BYTES: usize = 16 * 1024;
/// Where the token is kept, in the data directory.
const TOKEN_FILE: &str = "admin.token";

/// The routes, all behind the token; none when there is no token.
pub(crate) fn routes(app: &App) -> Router<App> {
    if app.shared.operator.is_none() {
        return Router::new();
    }
    Router::new()
        .route("/v1/admin/drain", get(draining).post(drain))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .route_layer(middleware::from_fn_with_state(app.clone(), guard))
}

/// Lets the operator through, and nobody else.
async fn guard(State(app): State<App>, peer: Extension<Peer>, request: Request, next: Next) -> Response {
    if let Err((status, why)) = check_door(&app.shared, request.headers()) {
        let code = if status == StatusCode::FORBIDDEN { ErrorCode::Forbidden } else { ErrorCode::BadRequest };
        return problem(status, &WireError::new(code, why));
    }
    if secret::in_query(request.uri().query().unwrap_or_default()) {
        let text =
            "a token in a URL ends up in logs: change it, and send it as `Authorization: Bearer TOKEN`";
        return problem(StatusCode::BAD_REQUEST, &WireError::bad_request(text));
    }
    let Some(operator) = &app.shared.operator else { return StatusCode::NOT_FOUND.into_response() };
    let (now, token) = (app.shared.clock.at(), bearer(request.headers()));
    let checked = operator.lock().unwrap_or_else(PoisonError::into_inner).check(now, peer.0.address(), token);
    match checked {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let error = denied.error();
            app.shared.metrics.refusal(error.code.as_str());
            tracing::warn!(event = "admin_refused", from = %peer.0.0.ip(), code = error.code.as_str());
            let locked = error.code == ErrorCode::RateLimited;
            problem(if locked { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::UNAUTHORIZED }, &error)
        }
    }
}

/// The token of a request; two of them are none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// How a broker is to be drained.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DrainParams {
    reason: Option<String>,
    restart_in_ms: Option<u64>,
    deadline_ms: Option<u64>,
}

/// Whether the broker stops, and how.
async fn draining(State(app): State<App>) -> Response {
    let stopping = app.shared.stop.borrow().clone();
    let mut body = json!({"draining": stopping.is_some()});
    if let (Some(body), Ok(Value::Object(facts))) = (body.as_object_mut(), serde_json::to_value(stopping)) {
        body.extend(facts);
    }
    answer(StatusCode::OK, &body)
}

/// Stops the broker in good order; answers as soon as everybody is being told.
async fn drain(State(app): State<App>, body: Bytes) -> Response {
    let params = match body.is_empty() {
        true => DrainParams::default(),
        false => match serde_json::from_slice(&body) {
            Ok(params) => params,
            Err(error) => {
                return problem(StatusCode::BAD_REQUEST, &WireError::bad_request(error.to_string()));
            }
        },
    };
    let usual = Stop::default();
    let stop = Stop {
        reason: params.reason.unwrap_or(usual.reason),
        restart_in_ms: params.restart_in_ms,
        deadline_ms: params.deadline_ms.unwrap_or(usual.deadline_ms),
    };
    if let Some(text) = stop.problem() {
        return problem(StatusCode::BAD_REQUEST, &WireError::bad_request(text));
    }
    let Some((stopping, begun)) = app.shared.begin_stop(stop).await else {
        let error = WireError::new(ErrorCode::Draining, "this broker has stopped but for its last words");
        return problem(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    let mut body = json!({"draining": true, "begun": begun});
    if let (Some(body), Ok(Value::Object(facts))) = (body.as_object_mut(), serde_json::to_value(stopping)) {
        body.extend(facts);
    }
    answer(if begun { StatusCode::ACCEPTED } else { StatusCode::OK }, &body)
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// What a request is told that was not done: RFC 9457, with our codes.
fn problem(status: StatusCode, error: &WireError) -> Response {
    let mut body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Unknown"),
        "status": status.as_u16(),
        "code": error.code.as_str(),
        "detail": error.message,
        "retryable": error.retryable,
    });
    let wait = error.retry_after_ms.map(|ms| ms.get());
    if let Some(ms) = wait {
        body["retryAfterMs"] = json!(ms);
    }
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    let mut response = (status, kind, body.to_string()).into_response();
    let headers = response.headers_mut();
    if let Some(ms) = wait {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Who may administer: whoever has the configured token, or the one in the data directory, which is made on first
/// start. Without either there is nobody.
pub(crate) fn operator(config: &Config) -> io::Result<Option<Operator>> {
    let token = match (&config.admin_token, &config.store) {
        (Some(token), _) => Some(token.clone()),
        (None, StoreChoice::Sqlite(dir)) => Some(token_in(dir)?),
        (None, StoreChoice::Memory) => None,
    };
    Ok(token.map(Operator::new))
}

/// The token that is kept in `dir`; the store's lock keeps two brokers from making one at once.
fn token_in(dir: &Path) -> io::Result<String> {
    let path = dir.join(TOKEN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) if Operator::is_token(text.trim()) => return Ok(text.trim().to_owned()),
        // Half of one, from a start that was cut short, or something else that opens nothing.
        Ok(_) => tracing::warn!(event = "admin_token_replaced", "admin.token held no token"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let token = tenure_proto::text::hex(&secret);
    let aside = dir.join(format!("{TOKEN_FILE}.new"));
    let _ = std::fs::remove_file(&aside);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    std::fs::rename(&aside, &path)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let token = token_in(dir.path()).unwrap();
        assert!(Operator::is_token(&token));
        assert_eq!(token_in(dir.path()).unwrap(), token);
        let path = dir.path().join(TOKEN_FILE);
        #[cfg(unix)]
        {
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        std::fs::write(&path, "torn").unwrap();
        assert_ne!(token_in(dir.path()).unwrap(), "torn");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_bearer_is_one_token() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer  abc "]).as_deref(), Some("abc"));
        for none in [&[][..], &["Basic abc"], &["abc"], &["Bearer a", "Bearer b"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
