//! The sockets of a relay: asked for with `relay.open`, dialled with the ticket, carrying many streams.

use std::time::Duration;

use tenure_mux::{End, Incoming, Mux, Side};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::method::Method;
use tenure_proto::name::ServiceName;
use tenure_proto::service::{RelayOpenParams, RelayOpenResult, RelayRole};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_util::sync::CancellationToken;

use crate::Session;
use crate::endpoint::{Endpoint, Wire};

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
    let dial = dial(session.endpoint(), &opened.url, &opened.ticket);
    let ws = tokio::time::timeout(DIAL, dial).await.map_err(|_| unavailable("no answer in time"))??;
    let stop = CancellationToken::new();
    let (mux, incoming, carrying) = tenure_mux::start(ws, Side::Dialled, stop.clone());
    let carrying = tokio::spawn(carrying);
    Ok(RelaySocket { mux, incoming, carrying, opened, _stop: stop.drop_guard() })
}

async fn dial(session: &Endpoint, url: &str, ticket: &str) -> Result<WebSocketStream<Wire>, WireError> {
    let (host, path) = place(url).ok_or_else(|| unavailable(format!("{url:?} is no address of a relay")))?;
    // Encrypted if our session is: whatever a proxy does for others, that way leads to the broker.
    let endpoint = session.at(host);
    let mut request = endpoint.url(path).into_client_request().map_err(unavailable)?;
    let bearer = HeaderValue::from_str(&format!("Bearer {ticket}")).map_err(unavailable)?;
    request.headers_mut().insert(AUTHORIZATION, bearer);
    let stream = endpoint.dial().await.map_err(unavailable)?;
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

/// The authority and the path of a WebSocket's URL.
fn place(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("wss://"))?;
    let (host, path) = rest.split_at(rest.find('/')?);
    (!host.is_empty() && !host.contains('@')).then_some((host, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_at_an_authority_and_a_path() {
        assert_eq!(place("ws://127.0.0.1:7400/v1/relay"), Some(("127.0.0.1:7400", "/v1/relay")));
        assert_eq!(place("wss://mesh.example/v1/relay"), Some(("mesh.example", "/v1/relay")));
        for bad in ["http://x/", "ws:///", "ws://x", "ws://user@x/"] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }

    #[test]
    fn it_is_encrypted_as_the_session_is() {
        for (session, url) in [("ws://a:1", "ws://b:2/v1/relay"), ("wss://a:1", "wss://b:2/v1/relay")] {
            let endpoint = Endpoint::new(session).unwrap().at("b:2");
            assert_eq!(endpoint.url("/v1/relay"), url);
        }
    }
}
