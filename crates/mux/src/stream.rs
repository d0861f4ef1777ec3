//! One stream, as the rest of tokio reads and writes it.

use std::future::poll_fn;
use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

/// One stream of a socket. Dropped before both ends have said that they are done, it is cut off.
#[derive(Debug)]
pub struct MuxStream {
    inner: Compat<yamux::Stream>,
    /// Its place among the streams of its socket.
    _place: OwnedSemaphorePermit,
}

impl MuxStream {
    pub(crate) fn new(stream: yamux::Stream, place: OwnedSemaphorePermit) -> MuxStream {
        MuxStream { inner: stream.compat(), _place: place }
    }

    /// Lets the other end know of a stream that has nothing to say first: the library opens one with its first bytes.
    pub async fn announce(&mut self) -> Result<()> {
        // Zero bytes are a frame like any other, which carries the flag that opens the stream.
        poll_fn(|cx| Pin::new(&mut self.inner).poll_write(cx, &[])).await?;
        self.flush().await
    }
}

impl AsyncRead for MuxStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
