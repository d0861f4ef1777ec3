//! The sockets of a relay: asked for with `relay.open`, dialled with the ticket, carrying many streams.

use std::time::Duration;

use tenure_mux::{End, Incoming, Mux, Side};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::method::Method;
use tenure_proto::name::ServiceName;
use tenure_proto::service::{RelayOpenParams, RelayOpenResult, RelayRole};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_util::sync::CancellationToken;

use crate::Session;

/// How long a dial may take, with everything that belongs to it.
const DIAL: Duration = Duration::from_secs(10);

/// A socket of a relay: opens streams, hears of those that come, and the task that carries them.
pub(crate) struct RelaySocket {
    pub(crate) mux: Mux,
    pub(crate) incoming: Incoming,
    pub(crate) carrying: tokio::task::JoinHandle<End>,
    /// What the broker said of it.
    pub(crate) opened: RelayOpenResult,
    /// Ends the task with this value.
    _stop: tokio_util::sync::DropGuard,
}

fn unavailable(why: impl std::fmt::Display) -> WireError {
    WireError::new(ErrorCode::Unavailable, format!("dial the relay: {why}"))
}

/// Asks the broker for a socket and dials it.
pub(crate) async fn open(
    session: &Session,
    role: RelayRole,
    name: Option<ServiceName>,
) -> Result<RelaySocket, WireError> {
    let params = RelayOpenParams { role, name };
    let opened: RelayOpenResult = session.request(Method::RelayOpen, params).await?;
    let dial = dial(&opened.url, &opened.ticket);
    let ws = tokio::time::timeout(DIAL, dial).await.map_err(|_| unavailable("no answer in time"))??;
    let stop = CancellationToken::new();
    let (mux, incoming, carrying) = tenure_mux::start(ws, Side::Dialled, stop.clone());
    let carrying = tokio::spawn(carrying);
    Ok(RelaySocket { mux, incoming, carrying, opened, _stop: stop.drop_guard() })
}

async fn dial(url: &str, ticket: &str) -> Result<tokio_tungstenite::WebSocketStream<TcpStream>, WireError> {
    // The Host is the one that our session goes to, and it goes there in plain: so do we, whatever a proxy does for others.
    let url = url.replacen("wss://", "ws://", 1);
    let address = address_of(&url).ok_or_else(|| unavailable(format!("{url:?} is not ws://HOST:PORT/…")))?;
    let mut request = url.into_client_request().map_err(unavailable)?;
    let bearer = HeaderValue::from_str(&format!("Bearer {ticket}")).map_err(unavailable)?;
    request.headers_mut().insert(AUTHORIZATION, bearer);
    let stream = TcpStream::connect(&address).await.map_err(unavailable)?;
    stream.set_nodelay(true).map_err(unavailable)?;
    let config = Some(tenure_mux::socket_config());
    match tokio_tungstenite::client_async_with_config(request, stream, config).await {
        Ok((ws, _)) => Ok(ws),
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
            let status = response.status();
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let line = body.trim().lines().next().unwrap_or_default();
            Err(unavailable(format!("HTTP {}: {line}", status.as_u16())))
        }
        Err(error) => Err(unavailable(error)),
    }
}

/// `HOST:PORT` of an address that we can dial.
fn address_of(url: &str) -> Option<String> {
    let host = url.strip_prefix("ws://")?.split('/').next().filter(|host| !host.is_empty())?;
    let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if port { host.to_owned() } else { format!("{host}:80") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(address_of("ws://127.0.0.1:7400/v1/relay").as_deref(), Some("127.0.0.1:7400"));
        assert_eq!(address_of("ws://mesh.example/v1/relay").as_deref(), Some("mesh.example:80"));
        assert_eq!(address_of("ws://[::1]/v1/relay").as_deref(), Some("[::1]:80"));
        assert_eq!(address_of("http://x/"), None);
        assert_eq!(address_of("ws:///"), None);
    }
}
