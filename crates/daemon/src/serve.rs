//! How connections are served: so many at once, each with so long to say what it wants.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client may take for a request's head, and then for its body. Whoever says nothing for so long is let go.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that one listener serves at once: more than requests and streams, which are refused with a word. The next
/// ones wait to be accepted.
const CONNECTIONS: usize = 256;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 * 1024;

/// Serves until told to stop, and then until every request that was begun is answered.
pub(crate) async fn run<L: Listener>(
    mut listener: L,
    router: Router,
    patience: Duration,
    stopping: CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(HEAD_BYTES);
    let (places, open) = (Arc::new(Semaphore::new(CONNECTIONS)), TaskTracker::new());
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((listener.accept().await.0, place))
        };
        // Cancel-safe: what is not accepted stays with the system.
        let (socket, place) = tokio::select! {
            Some(next) = next => next,
            () = stopping.cancelled() => break,
        };
        let connection = http.serve_connection(TokioIo::new(socket), service.clone());
        let stopping = stopping.clone();
        open.spawn(async move {
            let mut connection = pin!(connection);
            // A broken request concerns nobody but its sender.
            let _ = tokio::select! {
                done = connection.as_mut() => done,
                () = stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            drop(place);
        });
    }
    drop(listener);
    open.close();
    open.wait().await;
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// As many silent clients as anybody will have.
    #[derive(Default)]
    struct Crowd {
        accepted: Arc<AtomicUsize>,
        clients: Vec<DuplexStream>,
    }

    impl Listener for Crowd {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            let (client, server) = duplex(64);
            self.clients.push(client);
            tokio::task::yield_now().await;
            (server, ())
        }

        fn local_addr(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn so_many_are_served_and_no_more() {
        let (crowd, stopping) = (Crowd::default(), CancellationToken::new());
        let accepted = Arc::clone(&crowd.accepted);
        let served = tokio::spawn(run(crowd, Router::new(), HOUR, stopping.clone()));
        for _ in 0..CONNECTIONS * 8 {
            tokio::task::yield_now().await;
        }
        assert_eq!(accepted.load(Ordering::Relaxed), CONNECTIONS);
        stopping.cancel();
        served.await.unwrap();
    }
}
