//! What the broker answers over HTTP: health, metrics, and the door to its sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tenure_proto::codec::Codec;
use tenure_proto::limits;
use tokio_util::task::TaskTracker;
use tungstenite::handshake::derive_accept_key;

use crate::connections::Connection;
use crate::shared::Shared;
use crate::socket;

/// What requests are answered with.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: TaskTracker,
}

/// Every route of the broker.
pub(crate) fn router(shared: Arc<Shared>, tasks: TaskTracker) -> Router {
    let echo = shared.config.test_echo;
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/ws", get(upgrade))
        .route("/v1/relay", get(crate::relay::enter));
    let router = if echo { router.route("/test/echo", get(echo_upgrade)) } else { router };
    let app = App { shared, tasks };
    let admin = crate::admin::routes(&app);
    router.merge(admin).with_state(app)
}

/// Turns away who comes through the wrong door; gives the Host that it named.
pub(crate) fn check_door(shared: &Shared, headers: &HeaderMap) -> Result<String, (StatusCode, String)> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("\u{fffd}"));
    if [header::HOST, header::ORIGIN].iter().any(|name| headers.get_all(name).iter().count() > 1) {
        return Err((StatusCode::BAD_REQUEST, "one Host and one Origin at most".to_owned()));
    }
    let (host, origin) = (text(header::HOST), text(header::ORIGIN));
    if let Err(turned) = shared.house.doors.check(host, origin) {
        shared.metrics.refusal("wrong_door");
        return Err((StatusCode::FORBIDDEN, turned.to_string()));
    }
    Ok(host.unwrap_or_default().to_owned())
}

async fn readyz(State(app): State<App>) -> Response {
    let refuse = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if !app.shared.ready.load(Ordering::Acquire) {
        refuse("starting or stopping\n".to_owned())
    } else if !app.shared.store_sound.load(Ordering::Relaxed) {
        let why = app.shared.checks.lost().map(|why| format!(": {why}")).unwrap_or_default();
        refuse(format!("the store cannot write{why}\n"))
    } else {
        "ready\n".into_response()
    }
}

/// Numbers for Prometheus. A page of another site that makes its name mean this address must not read them.
async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Err((status, why)) = check_door(&app.shared, &headers) {
        return (status, format!("{why}\n")).into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let connections = &app.shared.connections;
    app.shared.metrics.connections.set(connections.len() as i64);
    app.shared.metrics.buffered.set(connections.buffered() as i64);
    match app.shared.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Turns a request into a session's socket, unless it comes through the wrong door. axum checks the request; the
/// switch is made here, because we read and write the socket's frames ourselves.
async fn upgrade(
    State(app): State<App>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
    on_upgrade: Option<Extension<OnUpgrade>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let host = match check_door(&app.shared, &headers) {
        Ok(host) => host,
        Err((status, why)) => return (status, format!("{why}\n")).into_response(),
    };
    let Some(codec) = choose_codec(&upgrade) else {
        let help = format!("offer {} or {}\n", limits::SUBPROTOCOL_JSON, limits::SUBPROTOCOL_MSGPACK);
        return (StatusCode::BAD_REQUEST, help).into_response();
    };
    let busy = |why: &'static str| {
        app.shared.metrics.refusal("busy");
        (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], why).into_response()
    };
    let Some(place) = connection.place(&headers) else {
        return busy("this address has as many connections as it may\n");
    };
    let (Some(Extension(on_upgrade)), Some(mut response)) = (on_upgrade, switching(&headers)) else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    let to = response.headers_mut();
    if let Some(protocol) = upgrade.protocols([codec.subprotocol()]).selected_protocol() {
        to.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.clone());
    }
    let App { shared, tasks } = app;
    tasks.spawn(async move {
        // A client that leaves during the switch has nothing to be told.
        let Ok(upgraded) = on_upgrade.await else { return };
        socket::run(TokioIo::new(upgraded), shared, codec, host, connection, place).await;
    });
    response
}

/// The answer that turns a request with these headers into a WebSocket; nothing when it has no key.
pub(crate) fn switching(headers: &HeaderMap) -> Option<Response> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let to = response.headers_mut();
    to.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    to.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?;
    to.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Some(response)
}

/// The codec that the client asked for: JSON when it asked for none, nothing when for none of ours.
fn choose_codec(upgrade: &WebSocketUpgrade) -> Option<Codec> {
    let mut offered = upgrade.requested_protocols().peekable();
    if offered.peek().is_none() {
        return Some(Codec::Json);
    }
    offered.find_map(|name| Codec::from_subprotocol(name.to_str().ok()?.trim()))
}

/// A plain echo for conformance suites; only with `--test-echo`.
async fn echo_upgrade(
    State(app): State<App>,
    headers: HeaderMap,
    on_upgrade: Option<Extension<OnUpgrade>>,
    _upgrade: WebSocketUpgrade,
) -> Response {
    let (Some(Extension(on_upgrade)), Some(response)) = (on_upgrade, switching(&headers)) else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    app.tasks.spawn(async move {
        if let Ok(upgraded) = on_upgrade.await {
            socket::echo(TokioIo::new(upgraded)).await;
        }
    });
    response
}
