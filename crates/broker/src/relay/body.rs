//! Bodies on their way: a request's, which has a bound and must move, and an answer's, which can be cut.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tenure_mesh::relay::Refusal;
use tenure_mux::Load;
use tenure_proto::limits::RELAY_HEAD_BYTES;
use tokio::time::{Instant, Sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::relay::guard::STALL;
use crate::relay::open::Held;

/// What parsers may hold of an answer's body: of what was read from the service, and of what waits for the consumer.
const DOWNLOAD_BYTES: usize = 2 * RELAY_HEAD_BYTES;

/// How a request's body fares, for whoever waits for the answer to it.
#[derive(Debug)]
pub(crate) struct Progress {
    last: Mutex<Instant>,
    failed: OnceLock<Refusal>,
}

impl Progress {
    fn new() -> Progress {
        Progress { last: Mutex::new(Instant::now()), failed: OnceLock::new() }
    }

    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When something of it last moved.
    pub(crate) fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it did not come to its end, if that was the consumer's doing.
    pub(crate) fn failed(&self) -> Option<&Refusal> {
        self.failed.get()
    }
}

/// What the parsers before and behind a body may hold of it while nobody asks for more. They do not say how much that is, so
/// it is counted with the most.
#[derive(Debug)]
struct Charge {
    load: Arc<Load>,
    bytes: usize,
    counts: bool,
}

impl Charge {
    fn new(load: &Arc<Load>, bytes: usize) -> Charge {
        Charge { load: load.clone(), bytes, counts: false }
    }

    /// Somebody has a piece, and asks for the next when it has left; or somebody waits for the next.
    fn set(&mut self, counts: bool) {
        match (std::mem::replace(&mut self.counts, counts), counts) {
            (false, true) => self.load.add(self.bytes),
            (true, false) => self.load.sub(self.bytes),
            // One left and the next is here.
            (true, true) => {
                self.load.sub(self.bytes);
                self.load.add(self.bytes);
            }
            (false, false) => {}
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The body of a request on its way to the service.
pub(crate) struct Upload {
    inner: Incoming,
    charge: Charge,
    /// Bytes that may still come; nothing is as many as like.
    left: Option<u64>,
    most: u64,
    idle: Duration,
    /// Runs while the next piece is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
    progress: Arc<Progress>,
}

impl Upload {
    /// A body of at most `most` bytes, each piece within `idle`. What it may hold, `bytes` at the most, counts in `load`.
    pub(crate) fn new(
        inner: Incoming,
        most: Option<u64>,
        idle: Duration,
        (load, bytes): (&Arc<Load>, usize),
    ) -> (Upload, Arc<Progress>) {
        let progress = Arc::new(Progress::new());
        let upload = Upload {
            inner,
            charge: Charge::new(load, bytes),
            left: most,
            most: most.unwrap_or(u64::MAX),
            idle,
            waiting: None,
            progress: progress.clone(),
        };
        (upload, progress)
    }

    fn fail(&self, refusal: Refusal) -> Poll<Option<Result<Frame<Bytes>, Broke>>> {
        let words = Broke(refusal.message.clone());
        let _ = self.progress.failed.set(refusal);
        Poll::Ready(Some(Err(words)))
    }
}

/// Why a body did not come to its end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broke(String);

impl Body for Upload {
    type Data = Bytes;
    type Error = Broke;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broke>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        self.charge.set(matches!(frame, Poll::Ready(Some(Ok(_)))));
        match frame {
            Poll::Ready(frame) => {
                self.waiting = None;
                self.progress.note();
                match frame {
                    None => Poll::Ready(None),
                    Some(Err(error)) => self.fail(Refusal::bad(format!("the body broke off: {error}"))),
                    Some(Ok(frame)) => {
                        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                        match self.left {
                            Some(left) if length > left => {
                                let most = self.most;
                                self.fail(Refusal::body_too_large(most))
                            }
                            _ => {
                                self.left = self.left.map(|left| left - length);
                                Poll::Ready(Some(Ok(frame)))
                            }
                        }
                    }
                }
            }
            Poll::Pending => {
                let idle = self.idle;
                let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
                match waiting.as_mut().poll(cx) {
                    Poll::Ready(()) => self.fail(Refusal::body_stalled()),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of what a consumer is answered.
pub(crate) enum Answer {
    /// Our own words.
    Own(Full<Bytes>),
    /// The service's.
    Passed(Download),
}

impl Answer {
    /// These words.
    pub(crate) fn own(words: impl Into<Bytes>) -> Answer {
        Answer::Own(Full::new(words.into()))
    }
}

/// The body of an answer on its way to the consumer. The stream counts until this is dropped, it is cut, or the consumer
/// has taken nothing for too long: a consumer that takes nothing does not ask for more either, so somebody else watches.
pub(crate) struct Download {
    inner: Incoming,
    taken: Arc<Taken>,
    charge: Charge,
    /// Holds on to the stream.
    _watching: AbortOnDropHandle<()>,
}

/// Since when the consumer has had something and has not asked for more; nothing while it waits for the service.
#[derive(Debug)]
struct Taken(Mutex<Option<Instant>>);

impl Taken {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until the consumer has taken nothing for [`STALL`].
    async fn stalled(&self) {
        loop {
            let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = since.map_or(STALL, |since| STALL.saturating_sub(since.elapsed()));
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }
}

impl Download {
    pub(crate) fn new(inner: Incoming, held: Held, carrying: AbortOnDropHandle<()>) -> Download {
        let taken = Arc::new(Taken(Mutex::new(Some(Instant::now()))));
        let watched = taken.clone();
        let charge = Charge::new(held.load(), DOWNLOAD_BYTES);
        let watching = tokio::spawn(async move {
            // Both are cancel-safe: they only wait.
            tokio::select! {
                _ = held.line().is_cut() => {}
                () = watched.stalled() => {}
            }
            // Both end here, whether or not anybody asks for the rest; whoever does finds that it broke off.
            drop((held, carrying));
        });
        let _watching = AbortOnDropHandle::new(watching);
        Download { inner, taken, charge, _watching }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Broke;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broke>>> {
        match &mut *self {
            Answer::Own(full) => Pin::new(full)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Answer::Passed(download) => {
                let frame = Pin::new(&mut download.inner).poll_frame(cx);
                download.taken.set(frame.is_ready().then(Instant::now));
                download.charge.set(matches!(frame, Poll::Ready(Some(Ok(_)))));
                frame.map(|frame| frame.map(|frame| frame.map_err(|error| Broke(error.to_string()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Own(full) => full.is_end_stream(),
            Answer::Passed(download) => download.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Own(full) => full.size_hint(),
            Answer::Passed(download) => download.inner.size_hint(),
        }
    }
}
