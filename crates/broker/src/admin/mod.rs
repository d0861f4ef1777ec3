//! The admin API: what an operator may do, over HTTP, with the operator's token. A file for each kind of thing; one
//! document that says what there is.
//!
//! What it promises: no route here is reached without the token, through a door that is not ours, or with a token in
//! its URL, where logs and histories would keep it. Who may try how often is `tenure_mesh::access::operator_auth`'s to say; what an operator
//! may do and what comes of it, `tenure_mesh::access::admin`'s. Lists are pages. What changes something is in the audit log.

mod access;
mod body;
mod check;
mod clock;
mod document;
mod drain;
mod mesh;
mod messages;
mod problem;
mod session;
mod setting;
pub(crate) mod token;

use std::sync::{Arc, PoisonError};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde_json::Value;
use tenure_kit::secret;
use tenure_mesh::access::admin::{Act, Operated, Operation};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::name::MeshName;
use tokio::sync::SemaphorePermit;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, Info, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{App, check_door};
use crate::mesh_task::MeshHandle;
use crate::peer::Peer;
use problem::Problem;

/// Every route, with what the document says of it.
fn described() -> OpenApiRouter<App> {
    let mut info = Info::new("Tenure broker", env!("CARGO_PKG_VERSION"));
    info.description =
        Some("What an operator may do with a broker. Every change is in the audit log.".to_owned());
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("The operator's token."));
    let components = ComponentsBuilder::new()
        .security_scheme("operator", SecurityScheme::Http(bearer.build()))
        .schema_from::<Problem>()
        .build();
    let document = OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([SecurityRequirement::new("operator", Vec::<String>::new())]))
        .build();
    OpenApiRouter::with_openapi(document)
        .routes(routes!(mesh::list, mesh::create))
        .routes(routes!(mesh::show))
        .routes(routes!(access::members))
        .routes(routes!(access::put_member, access::remove_member))
        .routes(routes!(access::invites))
        .routes(routes!(access::revoke_invite))
        .routes(routes!(access::tokens, access::create_token))
        .routes(routes!(access::revoke_token))
        .routes(routes!(access::bans, access::ban, access::unban))
        .routes(routes!(session::list))
        .routes(routes!(session::show, session::kick))
        .routes(routes!(session::ends))
        .routes(routes!(messages::services))
        .routes(routes!(messages::topics))
        .routes(routes!(messages::groups))
        .routes(routes!(messages::groups_of))
        .routes(routes!(messages::delete_topic))
        .routes(routes!(messages::delete_group))
        .routes(routes!(messages::dead))
        .routes(routes!(messages::retry))
        .routes(routes!(messages::discard))
        .routes(routes!(setting::show, setting::change))
        .routes(routes!(setting::audit))
        .routes(routes!(clock::show))
        .routes(routes!(clock::confirm))
        .routes(routes!(check::checked, check::check))
        .routes(routes!(drain::draining, drain::drain))
}

/// The document that says what there is.
pub fn document() -> Value {
    serde_json::to_value(described().split_for_parts().1).unwrap_or_default()
}

/// The routes, all behind the token; none when there is no token.
pub(crate) fn routes(app: &App) -> Router<App> {
    if app.shared.operator.is_none() {
        return Router::new();
    }
    let document: Arc<str> = document().to_string().into();
    let served = move |State(app): State<App>, headers: HeaderMap| {
        let document = Arc::clone(&document);
        async move {
            match check_door(&app.shared, &headers) {
                Ok(_) => ([(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response(),
                Err(turned) => turned_away(turned),
            }
        }
    };
    let (router, _) = described().split_for_parts();
    router
        .method_not_allowed_fallback(wrong_method)
        .route_layer(middleware::from_fn_with_state(app.clone(), guard))
        .route("/v1/openapi.json", get(served))
        .layer(middleware::map_response(quiet))
}

/// What is answered is nobody's to keep, or to guess the kind of.
async fn quiet(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn wrong_method() -> Problem {
    let detail = "this route has no such method; see /v1/openapi.json";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::BadRequest, detail)
}

/// The answer to a request with a Host or Origin that is not ours.
fn turned_away((status, why): (StatusCode, String)) -> Response {
    let code = if status == StatusCode::FORBIDDEN { ErrorCode::Forbidden } else { ErrorCode::BadRequest };
    Problem::new(status, code, why).into_response()
}

/// Lets the operator through, and nobody else.
async fn guard(State(app): State<App>, peer: Extension<Peer>, request: Request, next: Next) -> Response {
    if let Err(turned) = check_door(&app.shared, request.headers()) {
        return turned_away(turned);
    }
    let in_url = || {
        let text =
            "a token in a URL ends up in logs: change it, and send it as `Authorization: Bearer TOKEN`";
        Problem::of(ErrorCode::BadRequest, text).into_response()
    };
    let query = request.uri().query().unwrap_or_default();
    if secret::in_query(query) {
        return in_url();
    }
    let Some(operator) = &app.shared.operator else { return StatusCode::NOT_FOUND.into_response() };
    let (now, token) = (app.shared.clock.at(), token::bearer(request.headers()));
    let peer = peer.0.behind(&app.shared.config.trusted_proxies, request.headers());
    let (checked, shown) = {
        let mut operator = operator.lock().unwrap_or_else(PoisonError::into_inner);
        (operator.check(now, peer.address(), token), operator.is_shown(query))
    };
    match checked {
        // Only who has the token anyway is told: nobody can guess it here, past the count of wrong ones.
        Ok(()) if shown => in_url(),
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let error = denied.error();
            app.shared.metrics.refusal(error.code.as_str());
            tracing::warn!(event = "admin_refused", from = %peer.0.ip(), code = error.code.as_str());
            Problem::from(error).into_response()
        }
    }
}

/// An operator who asks, from somewhere.
#[derive(Clone)]
pub(crate) struct Asking {
    app: App,
    from: String,
}

impl FromRequestParts<App> for Asking {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Asking, Problem> {
        let proxies = &app.shared.config.trusted_proxies;
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.behind(proxies, &parts.headers));
        let from = peer.map(|peer| peer.0.ip().to_canonical().to_string());
        Ok(Asking { app: app.clone(), from: from.unwrap_or_default() })
    }
}

impl Asking {
    /// The mesh of this name.
    fn mesh(&self, name: &str) -> Result<MeshHandle, Problem> {
        let name: MeshName = body::part("mesh", name)?;
        let missing = || Problem::of(ErrorCode::NotFound, format!("there is no mesh {name} on this broker"));
        self.app.shared.meshes.room(&name).map(|(handle, _)| handle).ok_or_else(missing)
    }

    /// Asks the mesh of this name.
    async fn ask(&self, mesh: &str, act: Act) -> Result<Operated, Problem> {
        let mesh = self.mesh(mesh)?;
        self.ask_of(&mesh, act).await
    }

    /// Asks a mesh.
    async fn ask_of(&self, mesh: &MeshHandle, act: Act) -> Result<Operated, Problem> {
        let _permit = self.permit()?;
        Ok(mesh.operate(self.operation(act)).await?)
    }

    /// One of the requests that may be worked on at a time.
    fn permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.app.shared.operating.try_acquire().map_err(|_| {
            let text = "as many requests are worked on as may be; try again";
            WireError::new(ErrorCode::Busy, text).retry_after(1_000).into()
        })
    }

    /// What is asked, and by whom.
    fn operation(&self, act: Act) -> Operation {
        Operation { who: "operator".to_owned(), from: self.from.clone(), act }
    }
}

/// An answer of another kind than was asked for: a bug, which must not look like an answer.
fn odd() -> Problem {
    Problem::of(ErrorCode::Internal, "the mesh answered something else; see the broker's log")
}
