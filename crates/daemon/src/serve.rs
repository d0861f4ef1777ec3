//! How connections are served: so many at once, each with so long to say what it wants.
//!
//! One that has no request under way keeps nobody out: when there is no room, the oldest of those is let go for the
//! next (`tenure_kit::crowd`). So clients that connect and say nothing, however many, cost the others nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tenure_kit::address::Address;
use tenure_kit::crowd::{Crowd, CrowdLimits, Entry, GuestId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client may take for a request's head, and then for its body. Whoever says nothing for so long is let go.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that one listener serves at once: more than requests and streams, which are refused with a word. When
/// all have a request under way, the next ones wait.
const CONNECTIONS: usize = 256;
/// Connections at which those without a request begin to be let go.
const SPARE: usize = 16;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 * 1024;

/// Serves until told to stop, and then until every request that was begun is answered.
pub(crate) async fn run<L: Listener>(
    mut listener: L,
    router: Router,
    patience: Duration,
    stopping: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(HEAD_BYTES);
    let (places, open) = (Places::new(), TaskTracker::new());
    loop {
        let next = async {
            let socket = listener.accept().await.0;
            (socket, places.enter().await)
        };
        // Cancel-safe in this: what loses is not served any more.
        let (socket, place) = tokio::select! {
            next = next => next,
            () = stopping.cancelled() => break,
        };
        let (router, serving) = (TowerToHyperService::new(router.clone()), place.clone());
        let service = service_fn(move |request: Request<Incoming>| answer(&router, &serving, request));
        let connection = http.serve_connection(TokioIo::new(socket), service);
        let stopping = stopping.clone();
        open.spawn(async move {
            let mut connection = pin!(connection);
            // A broken request concerns nobody but its sender.
            // All are cancel-safe: the connection keeps its progress where it is, and the others only wait.
            let _ = tokio::select! {
                done = connection.as_mut() => done,
                () = place.cut.cancelled() => return,
                () = stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
        });
    }
    drop(listener);
    open.close();
    open.wait().await;
}

/// Answers a request, which is under way until its answer has left.
fn answer(
    router: &TowerToHyperService<Router>,
    place: &Arc<Place>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Answer>, Infallible>> + use<> {
    let (under_way, answer) = (UnderWay::new(place.clone()), router.call(request));
    async move { Ok(answer.await?.map(|body| Answer { body, _under_way: under_way })) }
}

/// The connections of one listener.
#[derive(Debug)]
struct Places {
    /// Held for a moment, never across an await.
    inner: Mutex<(Crowd, HashMap<GuestId, CancellationToken>)>,
    /// Rung when one is gone.
    freed: Notify,
}

impl Places {
    fn new() -> Arc<Places> {
        let limits =
            CrowdLimits { total: CONNECTIONS, reserve: SPARE, unproved: CONNECTIONS, consumers: CONNECTIONS };
        Arc::new(Places { inner: Mutex::new((Crowd::new(limits), HashMap::new())), freed: Notify::new() })
    }

    fn inner(&self) -> MutexGuard<'_, (Crowd, HashMap<GuestId, CancellationToken>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place; somebody without a request is let go for it if need be. Waits while all have one. Cancel-safe: a
    /// place that is not given is not taken.
    async fn enter(self: &Arc<Places>) -> Arc<Place> {
        loop {
            let freed = self.freed.notified();
            if let Some(place) = self.try_enter() {
                return place;
            }
            freed.await;
        }
    }

    fn try_enter(self: &Arc<Places>) -> Option<Arc<Place>> {
        let (crowd, cuts) = &mut *self.inner();
        let Entry::Stays(id, goes) = crowd.enter(here()) else { return None };
        if let Some(goes) = goes.and_then(|goes| cuts.get(&goes)) {
            goes.cancel();
        }
        let cut = CancellationToken::new();
        cuts.insert(id, cut.clone());
        Some(Arc::new(Place { all: Arc::clone(self), id, cut }))
    }
}

/// All clients are on this machine.
fn here() -> Address {
    Address::new(1)
}

/// A connection's place; free again when this is dropped.
#[derive(Debug)]
struct Place {
    all: Arc<Places>,
    id: GuestId,
    /// Set when it is to go.
    cut: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (crowd, cuts) = &mut *self.all.inner();
        crowd.leave(self.id);
        cuts.remove(&self.id);
        self.all.freed.notify_one();
    }
}

/// A request under way: its connection is not let go.
#[derive(Debug)]
struct UnderWay(Arc<Place>);

impl UnderWay {
    fn new(place: Arc<Place>) -> UnderWay {
        // One that was told to go a moment ago goes: its client asks again.
        place.all.inner().0.is_session(place.id);
        UnderWay(place)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.all.inner().0.rests(self.0.id, here());
    }
}

/// An answer on its way.
struct Answer {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    async fn ask(client: &mut TcpStream) -> String {
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 1024];
        let count = tokio::time::timeout(Duration::from_secs(20), client.read(&mut answer)).await;
        String::from_utf8_lossy(&answer[..count.expect("in time").unwrap()]).into_owned()
    }

    #[tokio::test]
    async fn slow_clients_keep_nobody_out_and_end_no_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (started, start) = tokio::sync::mpsc::unbounded_channel::<()>();
        let (finish, finished) = tokio::sync::watch::channel(false);
        let start = Arc::new(tokio::sync::Mutex::new(start));
        let long = move || {
            let (started, mut finished) = (started.clone(), finished.clone());
            async move {
                let _ = started.send(());
                let _ = finished.wait_for(|done| *done).await;
                "done"
            }
        };
        let router = Router::new().route("/", get(|| async { "here" })).route("/long", get(long));
        let stopping = CancellationToken::new();
        let served = tokio::spawn(run(listener, router, HOUR, stopping.clone()));
        // A request that takes its time, and more slow clients than there are places: some say nothing, some a little.
        let mut long = TcpStream::connect(addr).await.unwrap();
        long.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        start.lock().await.recv().await.unwrap();
        let mut slow = Vec::new();
        for n in 0..CONNECTIONS + 50 {
            let mut client = TcpStream::connect(addr).await.unwrap();
            if n % 2 == 0 {
                client.write_all(b"GET / HT").await.unwrap();
            }
            slow.push(client);
        }
        let mut client = TcpStream::connect(addr).await.unwrap();
        assert!(ask(&mut client).await.contains("here"));
        // The oldest were let go for it.
        assert_eq!(slow[0].read(&mut [0; 16]).await.unwrap_or(0), 0);
        finish.send_replace(true);
        let mut answer = [0; 1024];
        let count = long.read(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..count]).contains("done"), "a request is not let go");
        assert!(ask(&mut client).await.contains("here"), "nor is a client that asks again");
        stopping.cancel();
        drop((slow, client, long));
        served.await.unwrap();
    }
}
