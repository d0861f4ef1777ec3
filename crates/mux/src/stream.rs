//! One stream, as the rest of tokio reads and writes it.

use std::future::poll_fn;
use std::io::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::load::{Load, Loads};

/// One stream of a socket. Dropped before both ends have said that they are done, it is cut off.
#[derive(Debug)]
pub struct MuxStream {
    inner: Compat<yamux::Stream>,
    number: u32,
    load: Arc<Load>,
    loads: Loads,
    /// Its place among the streams of its socket.
    _place: OwnedSemaphorePermit,
}

impl MuxStream {
    pub(crate) fn new(stream: yamux::Stream, loads: &Loads, place: OwnedSemaphorePermit) -> MuxStream {
        let number = stream.id().val();
        let load = loads.open(number);
        MuxStream { inner: stream.compat(), number, load, loads: loads.clone(), _place: place }
    }

    /// What it holds.
    pub fn load(&self) -> Arc<Load> {
        self.load.clone()
    }

    /// Lets the other end know of a stream that has nothing to say first: the library opens one with its first bytes.
    pub async fn announce(&mut self) -> Result<()> {
        // Zero bytes are a frame like any other, which carries the flag that opens the stream.
        poll_fn(|cx| Pin::new(&mut self.inner).poll_write(cx, &[])).await?;
        self.flush().await
    }
}

impl Drop for MuxStream {
    fn drop(&mut self) {
        self.loads.close(self.number);
    }
}

impl AsyncRead for MuxStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.load.sub(buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        // Counted before it is handed on: it may have left before we come back.
        self.load.add(buf.len());
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        let taken = match &written {
            Poll::Ready(Ok(taken)) => *taken,
            _ => 0,
        };
        self.load.drop_of(buf.len() - taken.min(buf.len()));
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
