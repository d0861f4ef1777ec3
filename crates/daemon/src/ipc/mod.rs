//! The daemon's HTTP: a file for each kind of thing, one document that says what there is.

mod asking;
mod body;
mod document;
mod events;
mod guard;
mod health;
mod inbox;
mod mesh;
mod metrics;
mod outbox;
mod problem;
mod send;
mod sent;
mod sessions;
mod status;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use problem::Problem;
use serde_json::Value;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, Info, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use guard::Door;
pub(crate) use inbox::Arrived;

use crate::shared::Shared;

/// Every route, with what the document says of it.
fn routes() -> OpenApiRouter<Arc<Shared>> {
    let mut info = Info::new("Tenure daemon", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "HTTP/1.1 over the daemon's Unix socket. A 2xx to /v1/send means that the message is on this machine's disk."
            .to_owned(),
    );
    let session = ApiKeyValue::with_description(
        guard::SESSION_HEADER,
        "The token of the session that is calling; without it the daemon's own session is.",
    );
    let scheme = SecurityScheme::ApiKey(ApiKey::Header(session));
    let components =
        ComponentsBuilder::new().security_scheme("session", scheme).schema_from::<Problem>().build();
    let optional =
        [SecurityRequirement::default(), SecurityRequirement::new("session", Vec::<String>::new())];
    let document =
        OpenApiBuilder::new().info(info).components(Some(components)).security(Some(optional)).build();
    OpenApiRouter::with_openapi(document)
        .routes(routes!(send::send))
        .routes(routes!(sent::sent))
        .routes(routes!(inbox::list))
        .routes(routes!(inbox::seen))
        .routes(routes!(outbox::list))
        .routes(routes!(outbox::get, outbox::withdraw))
        .routes(routes!(outbox::requeue))
        .routes(routes!(mesh::peers))
        .routes(routes!(mesh::profile))
        .routes(routes!(mesh::subscribe))
        .routes(routes!(mesh::unsubscribe))
        .routes(routes!(mesh::history))
        .routes(routes!(mesh::runs))
        .routes(routes!(mesh::services, mesh::renew))
        .routes(routes!(events::events))
        .routes(routes!(sessions::make))
        .routes(routes!(sessions::close))
        .routes(routes!(health::health))
        .routes(routes!(status::status))
        .routes(routes!(health::version))
        .routes(routes!(metrics::metrics))
}

/// The document that says what there is.
pub fn document() -> Value {
    let mut document = serde_json::to_value(routes().split_for_parts().1).unwrap_or_default();
    document::complete(&mut document);
    document
}

/// Every route, for those who can open the socket.
pub(crate) fn router(shared: &Arc<Shared>) -> Router {
    let (router, _) = routes().split_for_parts();
    let document = document();
    let known = Arc::new(guard::QueryNames::of(&document));
    let document: Arc<str> = document.to_string().into();
    let served = move || {
        let document = Arc::clone(&document);
        async move { ([("content-type", "application/json")], document.to_string()).into_response() }
    };
    router
        .route("/v1/openapi.json", get(served))
        .fallback(guard::not_found)
        .method_not_allowed_fallback(guard::wrong_method)
        .layer(from_fn_with_state((Arc::clone(shared), known), guard::bounded))
        .layer(map_response(quiet))
        .with_state(Arc::clone(shared))
}

/// The same for those who come over TCP.
pub(crate) fn router_over_tcp(shared: &Arc<Shared>, door: Door) -> Router {
    router(shared).layer(from_fn_with_state(door, guard::over_tcp))
}

/// What is answered is nobody's to keep, or to guess the kind of.
async fn quiet(mut response: Response) -> Response {
    use axum::http::{HeaderValue, header};
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
