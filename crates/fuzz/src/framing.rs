//! Requests at the relay: what passes must be framed alike by hyper, which reads it next.
//!
//! Our own reader says where each request of a connection ends. Each is then given to hyper alone, with a request behind it
//! that is known. hyper must see that one request, and the known one behind it, or refuse; if it saw the end elsewhere, the
//! known request would be swallowed, or a part of the input would be taken for one more request.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tenure_core::relay::framing::{Framing, Read};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// The request that stands behind each.
const SENTINEL: &[u8] = b"GET /sentinel-behind-it HTTP/1.1\r\nHost: sentinel\r\n\r\n";
const SENTINEL_PATH: &str = "/sentinel-behind-it";
/// Requests of one input that are given to hyper.
const REQUESTS: usize = 4;

/// A connection of HTTP/1 to the relay.
pub(crate) fn run(bytes: &[u8]) {
    for request in requests(bytes).into_iter().take(REQUESTS) {
        let seen = by_hyper(&[request, SENTINEL].concat());
        let shown = String::from_utf8_lossy(request);
        assert!(seen.len() <= 2, "hyper sees {} requests in one: {shown:?}: {seen:?}", seen.len());
        if let [first, ..] = &seen[..] {
            assert_ne!(first.path, SENTINEL_PATH, "hyper does not see the request at all: {shown:?}");
            let body = String::from_utf8_lossy(&first.body);
            assert!(!body.contains(SENTINEL_PATH), "hyper takes the next request for a body: {shown:?}");
        }
        if let [_, second] = &seen[..] {
            assert_eq!(second.path, SENTINEL_PATH, "hyper sees a request inside another: {shown:?}");
        }
    }
}

/// The complete requests that our reader lets pass, each from its first byte to its last.
fn requests(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut framing, mut found) = (Framing::default(), Vec::new());
    // The first byte of the request, of what the reader has not taken, and of what it has not been shown.
    let (mut start, mut taken, mut shown) = (0, 0, 0);
    while shown < bytes.len() && !framing.is_beyond() && !framing.awaits_switch() {
        shown += 1;
        match framing.read(&bytes[taken..shown]) {
            Read::Good(0) => continue,
            Read::Good(good) => taken += good,
            Read::Bad(..) => break,
        }
        if framing.is_between_requests() {
            found.push(&bytes[start..taken]);
            start = taken;
        }
    }
    found
}

/// A request as hyper understood it.
#[derive(Debug)]
struct Seen {
    path: String,
    body: Vec<u8>,
}

/// What hyper makes of these bytes of a connection, which then ends.
fn by_hyper(bytes: &[u8]) -> Vec<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let note = note.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await;
            // A body that breaks off is a request that hyper refused.
            if let Ok(body) = body {
                let body = body.to_bytes().to_vec();
                note.lock().unwrap_or_else(PoisonError::into_inner).push(Seen { path, body });
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    runtime.block_on(async {
        let (near, mut far) = duplex(256 * 1024);
        let serving = http1::Builder::new().serve_connection(TokioIo::new(near), service);
        let asking = async {
            let _ = far.write_all(bytes).await;
            let _ = far.shutdown().await;
            let mut answers = Vec::new();
            let _ = far.read_to_end(&mut answers).await;
        };
        let both = async { tokio::join!(serving, asking) };
        let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
        assert!(ended.is_ok(), "hyper waits for more of {:?}", String::from_utf8_lossy(bytes));
    });
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *seen)
}
