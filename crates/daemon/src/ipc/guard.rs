//! Who may call, and how many at once.
//!
//! Whoever can open the Unix socket may call: it is its owner's alone. Over TCP a bearer token is needed, the Host must
//! be a loopback name with our port, and any Origin is refused unless allow-listed: a web page must not speak for its
//! reader. Tokens in query strings are refused everywhere, because those are logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tenure_kit::host::Doors;
use tenure_kit::secret;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::SessionKey;
use tenure_proto::name::MeshName;

use super::asking::stopping;
use super::problem::Problem;
use crate::sessions::Local;
use crate::shared::Shared;

/// The query parameters of each route, by its path and method, as the OpenAPI document has them. Any other is a mistake, and might be a
/// secret.
#[derive(Debug, Default)]
pub(super) struct QueryNames(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl QueryNames {
    /// Those of a document.
    pub(super) fn of(document: &Value) -> QueryNames {
        let each = |value: &Value| value.as_object().cloned().unwrap_or_default().into_iter();
        let names = |operation: &Value| {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let query = parameters.into_iter().filter(|parameter| parameter["in"] == "query");
            query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect()
        };
        let methods =
            |path: &Value| each(path).map(|(method, operation)| (method, names(&operation))).collect();
        QueryNames(each(&document["paths"]).map(|(path, item)| (path, methods(&item))).collect())
    }

    /// The first parameter of `query` that a route does not have. A route that does not exist says so itself.
    fn unknown(&self, path: &str, method: &Method, query: &str) -> Option<String> {
        let method = if method == Method::HEAD { "get".to_owned() } else { method.as_str().to_lowercase() };
        let known = self.0.get(path)?.get(&method)?;
        names(query).find(|name| !known.contains(name))
    }
}

/// What says which session is calling.
pub(crate) const SESSION_HEADER: &str = "tenure-session";

/// Who may call over TCP.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) doors: Arc<Doors>,
    /// Origins that may call, lower case.
    pub(crate) origins: Arc<[String]>,
    pub(crate) token: Arc<str>,
}

/// Lets a request over TCP pass, or not.
pub(crate) async fn over_tcp(State(door): State<Door>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if secret::shown_in_query(&door.token, request.uri().query().unwrap_or_default()) {
        return token_in_query().into_response();
    }
    if [header::HOST, header::ORIGIN].iter().any(|name| headers.get_all(name).iter().count() > 1) {
        return Problem::of(ErrorCode::BadRequest, "one Host and one Origin at most").into_response();
    }
    if door.doors.check(text(headers, &header::HOST), None).is_err() {
        return Problem::of(ErrorCode::Forbidden, "the Host header does not name this daemon")
            .into_response();
    }
    // Same-origin is no exception: no page is served here.
    let origin = text(headers, &header::ORIGIN).map(str::to_ascii_lowercase);
    if origin.is_some_and(|origin| !door.origins.contains(&origin)) {
        return Problem::of(ErrorCode::Forbidden, "this Origin may not call").into_response();
    }
    let bearer = text(headers, &header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if !bearer.is_some_and(|bearer| secret::same(&door.token, bearer)) {
        let problem =
            Problem::of(ErrorCode::Unauthorized, "send the daemon's token: Authorization: Bearer TOKEN");
        let challenge = (header::WWW_AUTHENTICATE, "Bearer");
        return ([challenge], problem).into_response();
    }
    next.run(request).await
}

/// Bounds how many requests are worked on, and refuses tokens where they would be logged.
pub(crate) async fn bounded(
    State((shared, known)): State<(Arc<Shared>, Arc<QueryNames>)>,
    request: Request,
    next: Next,
) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if !query.is_empty() {
        if secret::in_query(query) || shared.token_in(query) {
            return token_in_query().into_response();
        }
        let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if let Some(name) = known.unknown(path, request.method(), query) {
            let detail = format!("there is no query parameter {name:?} here; see /v1/openapi.json");
            return Problem::of(ErrorCode::BadRequest, detail).into_response();
        }
    }
    let Ok(_permit) = shared.requests.try_acquire() else {
        let detail = "as many requests are worked on as may be; try again";
        return Problem::of(ErrorCode::Busy, detail).into_response();
    };
    if shared.stopping.is_cancelled() {
        return stopping().into_response();
    }
    next.run(request).await
}

fn token_in_query() -> Problem {
    let detail = "a token does not belong in a query string: it would be logged; send it as a header";
    Problem::of(ErrorCode::BadRequest, detail)
}

/// What the parameters of a query are called, at most as long as the longest that there is and a little.
fn names(query: &str) -> impl Iterator<Item = String> + '_ {
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().chars().take(64).collect();
    query.split('&').filter(|pair| !pair.is_empty()).map(name)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
}

/// The session that is calling, if it said so.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Option<Arc<Local>>);

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Caller, Problem> {
        let Some(token) = parts.headers.get(SESSION_HEADER) else { return Ok(Caller(None)) };
        let local = token.to_str().ok().and_then(|token| shared.sessions.by_token(token));
        let refused = || Problem::of(ErrorCode::Unauthorized, "no session has that token");
        local.map(|local| Caller(Some(local))).ok_or_else(refused)
    }
}

impl Caller {
    /// The session to whose things the caller is confined: the one whose token it has. Whoever comes without one is the
    /// owner of them all.
    pub(crate) fn confined(&self) -> Option<&Local> {
        self.0.as_deref()
    }

    /// The session that is meant: the one that is calling; without a token the daemon's own in `mesh`, or in the first
    /// one. What the request says besides must agree.
    pub(crate) fn session(
        &self,
        shared: &Shared,
        mesh: Option<&MeshName>,
        session: Option<&SessionKey>,
    ) -> Result<Arc<Local>, Problem> {
        let local = match (&self.0, mesh.or_else(|| shared.sessions.default_mesh())) {
            (Some(local), _) => Arc::clone(local),
            (None, Some(mesh)) => shared.sessions.own(mesh).ok_or_else(|| {
                Problem::of(ErrorCode::NotFound, format!("this daemon is not in the mesh {mesh}")).at("/mesh")
            })?,
            (None, None) => return Err(Problem::of(ErrorCode::NotFound, "this daemon is in no mesh")),
        };
        if mesh.is_some_and(|mesh| *mesh != local.mesh) {
            return Err(Problem::of(ErrorCode::Forbidden, "the session is in another mesh").at("/mesh"));
        }
        if session.is_some_and(|session| *session != local.key) {
            let detail = format!("to speak for a session send its token as {SESSION_HEADER}");
            return Err(Problem::of(ErrorCode::Forbidden, detail).at("/session"));
        }
        Ok(local)
    }
}

/// A path that is not there.
pub(crate) async fn not_found() -> Problem {
    Problem::of(ErrorCode::NotFound, "there is no such path; see /v1/openapi.json")
}

/// A path that is, asked in a way that it is not.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", "not with this method; see /v1/openapi.json")
}
