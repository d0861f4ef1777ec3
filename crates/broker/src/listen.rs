//! The accept loop: TCP in, HTTP/1.1 with upgrades out.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::shared::Shared;

/// How long a client may take to send its request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 * 1024;
/// How long to leave the listener alone when the system has no more descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Accepts until told to stop.
pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    let stop = shared.stopping.clone();
    let service = TowerToHyperService::new(crate::http::router(shared, tasks.clone()));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .half_close(false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // One refused connection is its own problem; none at all is ours, and passes.
                tracing::warn!(event = "accept_failed", %error);
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let connection = http.serve_connection(TokioIo::new(stream), service.clone()).with_upgrades();
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                // A broken request concerns nobody but its sender.
                _ = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
