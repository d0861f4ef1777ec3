//! A connection whose requests are looked at before they are read: what `tenure_mesh::relay::framing` refuses never reaches the
//! parser of HTTP.

use std::io::{ErrorKind, Result};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tenure_mesh::relay::Refusal;
use tenure_mesh::relay::framing::{Framing, Read};
use tenure_proto::limits::RELAY_HEAD_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::connections::Connection;

/// Bytes that are read at once.
const PIECE: usize = 16 * 1024;
/// The Host of what takes the place of a refused request: nobody's, by RFC 2606.
pub(crate) const REFUSED_HOST: &str = "refused.invalid";
/// What the parser reads in place of what was refused, so that it can be answered in its turn.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n\r\n";

/// What is known of a connection by its guard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Why its last request was refused.
    refusal: Arc<OnceLock<Refusal>>,
    /// Set when its first request is complete.
    began: CancellationToken,
    /// Set when another protocol was granted.
    switched: CancellationToken,
}

impl Seen {
    /// Why its last request was refused, if it was.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.get()
    }

    /// Another protocol is granted: what follows is none of HTTP.
    pub(crate) fn switch(&self) {
        self.switched.cancel();
    }

    /// Waits until its first request is complete. Cancel-safe.
    pub(crate) async fn began(&self) {
        self.began.cancelled().await;
    }
}

/// How long what a consumer still sends is read and dropped behind the last answer: a connection that is closed with something
/// unread in it is reset, and takes an answer with it that is on its way.
const LINGER: Duration = Duration::from_secs(2);

/// How long a consumer may take nothing of what waits for it. Its stream counts, and others may need the place.
pub(crate) const STALL: Duration = Duration::from_secs(120);

/// What a consumer that takes nothing counts for: what its parser may have written, which does not say how much that is.
const STUCK_BYTES: usize = RELAY_HEAD_BYTES;

/// Ends when a consumer has taken nothing for too long, or is let go.
type Stalled = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn stalls(stall: Duration, place: Option<Arc<Connection>>) {
    let cut = async {
        match &place {
            Some(place) => place.cut().await,
            None => std::future::pending().await,
        }
    };
    // Both are cancel-safe.
    tokio::select! {
        () = tokio::time::sleep(stall) => {}
        () = cut => {}
    }
}

/// A connection whose requests are looked at before they are read.
pub(crate) struct Guard<S> {
    inner: S,
    framing: Framing,
    seen: Seen,
    /// What came and is not judged: less than a head, and a piece.
    held: Vec<u8>,
    /// What was judged good and is not read: at most as much again.
    good: Vec<u8>,
    /// How much of that is read.
    read: usize,
    /// Waits for the other protocol that was asked for.
    switching: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    stall: Duration,
    /// Runs while the consumer takes nothing.
    stalled: Option<Stalled>,
    /// Its place among the connections of the broker.
    place: Option<Arc<Connection>>,
    /// Runs from when the last answer has left.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S> Guard<S> {
    pub(crate) fn new(inner: S, seen: Seen, place: Option<Arc<Connection>>) -> Guard<S> {
        let (held, good) = (Vec::new(), Vec::new());
        let (framing, stall) = (Framing::default(), STALL);
        let (switching, stalled, lingering) = (None, None, None);
        Guard { inner, framing, seen, held, good, read: 0, switching, stall, stalled, place, lingering }
    }

    /// What a write came to, unless the consumer has taken nothing for too long.
    fn moved<T>(&mut self, cx: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        let was_stuck = self.stalled.is_some();
        let is_stuck = |bytes| self.place.iter().for_each(|place| place.is_stuck(bytes));
        if written.is_ready() {
            if was_stuck {
                is_stuck(0);
            }
            self.stalled = None;
            return written;
        }
        if !was_stuck {
            is_stuck(STUCK_BYTES);
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(stalls(self.stall, self.place.clone())));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Judges what is held, of which `fresh` bytes are new.
    fn judge(&mut self, fresh: usize) {
        let new = &self.held[self.held.len() - fresh..];
        // A line that is not complete was judged before, and cannot have become worse without an end.
        let line_end = new.iter().any(|byte| matches!(byte, b'\n' | 0));
        if self.framing.waits_for_line() && !line_end && self.held.len() <= Framing::LINE_BYTES {
            return;
        }
        match self.framing.read(&self.held) {
            Read::Good(good) => {
                self.good = self.held.drain(..good).collect();
                self.read = 0;
            }
            Read::Bad(good, refusal) => {
                self.held.truncate(good);
                self.good = std::mem::take(&mut self.held);
                self.good.extend_from_slice(REFUSED);
                self.read = 0;
                let _ = self.seen.refusal.set(refusal);
            }
        }
        if !self.good.is_empty() {
            self.seen.began.cancel();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        loop {
            if this.read < this.good.len() {
                let taken = buf.remaining().min(this.good.len() - this.read);
                buf.put_slice(&this.good[this.read..this.read + taken]);
                this.read += taken;
                return Poll::Ready(Ok(()));
            }
            this.good = Vec::new();
            if this.seen.refusal.get().is_some() {
                // Nothing behind a refused request is read; an end would end it before it is answered.
                return Poll::Pending;
            }
            if this.framing.awaits_switch() {
                let switched = &this.seen.switched;
                let switching =
                    this.switching.get_or_insert_with(|| Box::pin(switched.clone().cancelled_owned()));
                ready!(switching.as_mut().poll(cx));
                this.framing.switch();
                this.judge(0);
                continue;
            }
            if this.framing.is_beyond() && this.held.is_empty() {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            }
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut piece))?;
            let fresh = piece.filled();
            if fresh.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.held.extend_from_slice(fresh);
            let fresh = fresh.len();
            this.judge(fresh);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.moved(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.lingering = Some(Box::pin(tokio::time::sleep(LINGER)));
        }
        let this = &mut *self;
        let mut piece = [0; PIECE];
        while this.lingering.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_pending()) {
            let mut piece = ReadBuf::new(&mut piece);
            match ready!(Pin::new(&mut this.inner).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => {}
                // The other end is done as well, or gone.
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.moved(cx, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn through(bytes: &[u8]) -> (Vec<u8>, Seen) {
        let seen = Seen::default();
        let (mut near, far) = tokio::io::duplex(64);
        let mut guard = Guard::new(far, seen.clone(), None);
        let sent = bytes.to_vec();
        let sending = tokio::spawn(async move {
            // A guard that has seen enough reads no more.
            let _ = near.write_all(&sent).await;
        });
        let mut heard = Vec::new();
        let mut piece = [0; 100];
        loop {
            // A refused request is the last, and no end follows it.
            if heard.ends_with(REFUSED) {
                assert!(guard.read(&mut piece).now_or_never().is_none());
                break;
            }
            match guard.read(&mut piece).await.unwrap() {
                0 => break,
                read => heard.extend_from_slice(&piece[..read]),
            }
        }
        drop(guard);
        sending.await.unwrap();
        (heard, seen)
    }

    #[tokio::test]
    async fn what_is_good_passes_as_it_is() {
        let one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        let many = one.repeat(40);
        let (heard, seen) = through(&many).await;
        assert_eq!(heard, many);
        assert!(seen.refusal().is_none());
        let h2 = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 1, 2, 10, 13].repeat(100)].concat();
        assert_eq!(through(&h2).await.0, h2);
    }

    #[tokio::test]
    async fn what_is_refused_is_replaced_and_nothing_follows() {
        let good = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let bad =
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let (heard, seen) = through(&[&good[..], bad, good].concat()).await;
        assert_eq!(heard, [&good[..], REFUSED].concat());
        assert!(seen.refusal().unwrap().message.contains("not both"));
    }

    #[tokio::test]
    async fn a_consumer_that_takes_nothing_is_given_up() {
        let (mut near, far) = tokio::io::duplex(64);
        let mut guard = Guard { stall: Duration::from_millis(20), ..Guard::new(far, Seen::default(), None) };
        let (written, taken) =
            tokio::join!(guard.write_all(&[0; 192]), async { near.read_exact(&mut [0; 192]).await });
        assert!(written.is_ok() && taken.is_ok(), "what is taken is not given up");
        let error = guard.write_all(&[0; 192]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
