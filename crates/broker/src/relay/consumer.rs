//! HTTP by name: the relay's own listener, HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tenure_proto::limits::{RELAY_HEAD_BYTES, RELAY_HEADERS};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::connections::Connection;
use crate::peer::Peer;
use crate::relay::forward;
use crate::relay::guard::{Guard, Seen};
use crate::shared::Shared;

/// Requests of one connection of HTTP/2 at once.
const REQUESTS: u32 = 128;
/// Bytes of a request's body that HTTP/2 takes before anybody asks for them.
pub(crate) const WINDOW_BYTES: usize = 256 * 1024;
/// How often a connection of HTTP/2 is asked for a sign of life, and how long that may take.
const ALIVE: Duration = Duration::from_secs(20);
/// How long answers that are on their way when the broker stops may take.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// How long to leave the listener alone when the system has no more descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Where services of HTTP are found, with `*` for the name, of a relay that listens at `listen`.
pub(crate) fn address(shared_domain: &str, listen: SocketAddr) -> String {
    match listen.port() {
        80 => format!("http://*.{shared_domain}/"),
        port => format!("http://*.{shared_domain}:{port}/"),
    }
}

/// Accepts until told to stop.
pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    let stop = shared.stopping.clone();
    let room = Arc::new(Semaphore::new(shared.config.relay.connections));
    loop {
        // Both are cancel-safe.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // One refused connection is its own problem; none at all is ours, and passes.
                tracing::warn!(event = "accept_failed", %error);
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let connection = Connection::enter(&shared, Peer(peer));
        let (Ok(connection), Ok(permit)) = (connection, room.clone().try_acquire_owned()) else {
            // One too many is closed before it has said anything.
            shared.metrics.refusal("busy");
            continue;
        };
        tasks.spawn(serve(shared.clone(), tasks.clone(), stream, peer, Arc::new(connection), permit));
    }
}

/// Carries one connection.
async fn serve(
    shared: Arc<Shared>,
    tasks: TaskTracker,
    stream: TcpStream,
    peer: SocketAddr,
    place: Arc<Connection>,
    _permit: OwnedSemaphorePermit,
) {
    let head = shared.config.relay.head;
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(RELAY_HEAD_BYTES)
        .max_headers(RELAY_HEADERS)
        .half_close(false);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .initial_stream_window_size(WINDOW_BYTES as u32)
        .max_send_buf_size(RELAY_HEAD_BYTES)
        .max_header_list_size(RELAY_HEAD_BYTES as u32)
        .keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE);
    let seen = Seen::default();
    let guarded = TokioIo::new(Guard::new(stream, seen.clone(), Some(place.clone())));
    let stop = shared.stopping.clone();
    let asked = seen.clone();
    let serving = shared.clone();
    let service = service_fn(move |request| {
        let (shared, tasks, seen) = (serving.clone(), tasks.clone(), asked.clone());
        async move { Ok::<_, Infallible>(forward::answer(&shared, &tasks, peer, &seen, request).await) }
    });
    let connection = http.serve_connection_with_upgrades(guarded, service);
    tokio::pin!(connection);
    // The first request has a time of its own: until it is there nobody knows which parser will watch the clock.
    // All are cancel-safe: the connection keeps its progress where it is, and the others only wait.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = seen.began() => {}
        () = place.cut() => return,
        () = tokio::time::sleep(head) => return,
        () = stop.cancelled() => return,
    }
    // From here on it may take as long as it likes; so there may be only so many.
    if !place.is_consumer() {
        shared.metrics.refusal("busy");
        return;
    }
    // Both are cancel-safe: the connection keeps its progress where it is, and goes on after a stop.
    tokio::select! {
        // A broken connection concerns nobody but its ends.
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(LAST_ANSWER, connection).await;
        }
    }
}
