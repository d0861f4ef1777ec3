//! `/v1/relay`: the door for sockets of sessions, at either end of streams. A ticket opens it, once.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tenure_mux::Side;
use tenure_proto::service::RelayRole;
use tenure_proto::ticket::RelayTicket;
use tokio_tungstenite::WebSocketStream;
use tungstenite::protocol::Role;

use crate::connections::Connection;
use crate::http::{App, check_door, switching};
use crate::relay::streams::Streams;
use crate::relay::tcp;
use crate::shared::Shared;

/// Turns a request with a good ticket into a socket of the relay.
pub(crate) async fn enter(
    State(app): State<App>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
    on_upgrade: Option<Extension<OnUpgrade>>,
    _upgrade: WebSocketUpgrade,
) -> Response {
    let say = |status: StatusCode, why: &str| (status, format!("{why}\n")).into_response();
    if let Err((status, why)) = check_door(&app.shared, &headers) {
        return say(status, &why);
    }
    let Some(place) = connection.place(&headers) else {
        return say(StatusCode::SERVICE_UNAVAILABLE, "this address has as many connections as it may");
    };
    let ticket = match ticket(&app.shared, &headers) {
        Ok(ticket) => ticket,
        Err(why) => {
            app.shared.metrics.refusal("bad_ticket");
            return say(StatusCode::UNAUTHORIZED, why);
        }
    };
    let (Some(Extension(on_upgrade)), Some(response)) = (on_upgrade, switching(&headers)) else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    // A session vouches for it: the ticket was given to one.
    if !connection.is_session() {
        return say(StatusCode::SERVICE_UNAVAILABLE, "too many connections wait; try again");
    }
    let App { shared, tasks } = app;
    tasks.spawn(async move {
        // A client that leaves during the switch has nothing to be told.
        let Ok(upgraded) = on_upgrade.await else { return };
        let config = Some(tenure_mux::socket_config());
        let ws = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, config).await;
        carry(shared, ws, ticket).await;
        drop((place, connection));
    });
    response
}

/// What the ticket of a request says, if it is good and was not shown before.
fn ticket(shared: &Shared, headers: &HeaderMap) -> Result<RelayTicket, &'static str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(text) = bearer.and_then(|value| value.strip_prefix("Bearer ")) else {
        return Err("show the ticket of relay.open as `Authorization: Bearer …`");
    };
    let (key, wall) = (shared.house.key.verifying_key().to_bytes(), shared.clock.now().wall);
    let again = "this ticket is not good; ask for another with relay.open";
    let ticket = RelayTicket::verify(text.trim(), &key, shared.run, wall).map_err(|_| again)?;
    if shared.meshes.room(&ticket.mesh).is_none() {
        return Err(again);
    }
    match shared.relay.tickets.take(&ticket, wall) {
        true => Ok(ticket),
        false => Err("this ticket was used; ask for another with relay.open"),
    }
}

/// Carries the streams of a socket until it ends.
async fn carry<S>(shared: Arc<Shared>, ws: WebSocketStream<S>, ticket: RelayTicket)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let stop = shared.stopping.child_token();
    let tally = shared.connections.relayed();
    let (mux, incoming, carrying) = tenure_mux::start_counted(ws, Side::Answered, stop.clone(), tally);
    let RelayTicket { mesh, session, member, role, name, .. } = ticket;
    let Some(_attached) = Streams::attach(&shared, (mesh.clone(), session), role, mux, stop) else {
        shared.metrics.refusal("busy");
        return;
    };
    let end = match (role, name) {
        (RelayRole::Connect, Some(name)) => {
            let serving = tcp::serve(shared.clone(), (mesh, name), (session, member), incoming);
            // Neither is needed without the other. Neither is resumed, so neither needs to be cancel-safe.
            tokio::select! {
                end = carrying => Some(end),
                () = serving => None,
            }
        }
        // A publisher opens no streams: with nobody to take them they are cut.
        _ => {
            drop(incoming);
            Some(carrying.await)
        }
    };
    if let Some(end) = end {
        tracing::debug!(event = "relay_socket_ended", %session, why = %end);
    }
}
