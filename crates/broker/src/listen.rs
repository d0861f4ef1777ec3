//! The accept loop: TCP in, HTTP/1.1 with upgrades out.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::util::MapRequest;

use crate::connections::{Connection, TurnedAway};
use crate::peer::Peer;
use crate::shared::Shared;
use crate::tls::Tls;

/// How long a client may take to send its request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to shake hands where connections are encrypted.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 * 1024;
/// How long an answer that is on its way when the broker stops may take.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// How long a connection may be used for requests: then it ends when its last request is answered. A socket is not one.
const PLAIN_LIFE: Duration = Duration::from_secs(60);
/// How long that last request may take.
const LAST_REQUEST: Duration = Duration::from_secs(30);
/// Connections that are being told why they are turned away; one more is closed without a word.
const TURNING_AWAY: usize = 64;
/// How long that may take.
const TURN_AWAY: Duration = Duration::from_secs(1);
/// How long to leave the listener alone when the system has no more descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Connections that the system may hold for us until we accept them; it may allow fewer. When everybody comes
/// back at once, one that finds no place is tried again by its system after a second, and then after three.
const BACKLOG: u32 = 16_384;
/// Connections that are accepted before other tasks get their turn. Many, for the same reason.
const ACCEPTS_PER_TURN: u32 = 1_024;

/// Bytes that the system may hold for a socket and has not sent. Left to itself it holds megabytes, and asks for more
/// when a third of them has gone: a reader at a megabit a second would seem to read nothing for ten seconds on end.
/// What waits with us is also fresher, because presence waits as a place and not as bytes.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 32 * 1024;

/// Listens on `addr`.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A broker that starts again takes the port of the one before it, whose sockets the system still remembers.
    socket.set_reuseaddr(true)?;
    // Accepted sockets have what their listener has.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Accepts until told to stop, and gives the listener back: whoever waits for the end of the broker waits for it to be
/// gone. To be run unconstrained: it gives way to other tasks by its own count.
pub(crate) async fn run(
    listener: TcpListener,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
    tasks: TaskTracker,
) -> TcpListener {
    let stop = shared.stopping.clone();
    let router = crate::http::router(shared.clone(), tasks.clone());
    let mut http = Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .half_close(false);
    let turning = Arc::new(Semaphore::new(TURNING_AWAY));
    let mut accepts = 0;
    loop {
        accepts += 1;
        if accepts == ACCEPTS_PER_TURN {
            accepts = 0;
            tokio::task::yield_now().await;
        }
        // Both are cancel-safe: a connection that is not accepted now waits in the listener.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return listener,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, Peer(peer)),
            Err(error) => {
                // One refused connection is its own problem; none at all is ours, and passes.
                tracing::warn!(event = "accept_failed", %error);
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let connection = match Connection::enter(&shared, peer) {
            Ok(connection) => Arc::new(connection),
            Err(why) => {
                accepts = ACCEPTS_PER_TURN - 1;
                shared.metrics.refusal("busy");
                // Who has not shaken hands cannot be told anything.
                if let (None, Ok(turn)) = (&tls, turning.clone().try_acquire_owned()) {
                    tasks.spawn(turn_away(http.clone(), stream, why, turn));
                }
                continue;
            }
        };
        if connection.displaced() {
            // Whoever was let go for it needs a turn to go.
            accepts = ACCEPTS_PER_TURN - 1;
        }
        let accepted = connection.clone();
        let with_peer = move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(accepted.clone());
            request
        };
        let service = TowerToHyperService::new(MapRequest::new(router.clone(), with_peer));
        let (http, stop) = (http.clone(), stop.clone());
        match tls.as_ref().map(|tls| tls.acceptor()) {
            None => _ = tasks.spawn(serve(http, stream, service, stop, connection)),
            Some(acceptor) => {
                tasks.spawn(async move {
                    // Whoever does not shake hands in time, or not as we do, has no answer coming.
                    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                    // Cancel-safe in this: what loses is given up.
                    let stream = tokio::select! {
                        shaken = shaken => shaken,
                        () = connection.cut() => return,
                        () = stop.cancelled() => return,
                    };
                    if let Ok(Ok(stream)) = stream {
                        serve(http, stream, service, stop, connection).await;
                    }
                });
            }
        }
    }
}

/// Answers the requests of one connection until it ends, or becomes a socket.
async fn serve<I, S, B>(http: Builder, stream: I, service: S, stop: CancellationToken, place: Arc<Connection>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = B> + Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    // All are cancel-safe in this: what loses is given up.
    let last = tokio::select! {
        // A broken request concerns nobody but its sender. Nor is a socket our concern any more.
        _ = connection.as_mut() => return,
        () = place.cut() => return,
        () = stop.cancelled() => LAST_ANSWER,
        () = tokio::time::sleep(PLAIN_LIFE) => LAST_REQUEST,
    };
    connection.as_mut().graceful_shutdown();
    // The connection is dropped after this and not resumed, so it need not be cancel-safe.
    tokio::select! {
        _ = tokio::time::timeout(last, connection) => {}
        () = place.cut() => {}
    }
}

/// Tells a client why its connection is turned away, whatever it asks for.
async fn turn_away(http: Builder, stream: TcpStream, why: TurnedAway, _turn: OwnedSemaphorePermit) {
    let why = match why {
        TurnedAway::Address => "this address has as many connections as it may\n",
        TurnedAway::Full => "this broker has as many connections as it may\n",
    };
    let service = service_fn(move |_: hyper::Request<Incoming>| async move {
        let answer = (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")],
            why,
        );
        Ok::<_, Infallible>(answer.into_response())
    });
    let _ = tokio::time::timeout(TURN_AWAY, http.serve_connection(TokioIo::new(stream), service)).await;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_holds_little_for_a_socket() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (accepted, _client) = tokio::join!(listener.accept(), tokio::net::TcpStream::connect(addr));
        let (stream, _) = accepted.unwrap();
        assert_eq!(socket2::SockRef::from(&stream).tcp_notsent_lowat().unwrap(), UNSENT_BYTES);
    }
}
