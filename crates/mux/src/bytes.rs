//! A WebSocket as a stream of bytes: binary messages one after the other, whatever their ends.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::io::{AsyncRead, AsyncWrite};
use futures_util::{Sink, Stream};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Bytes, Error as WsError, Message};

use crate::load::{Loads, Meter};

/// Bytes that are gathered into one message before they leave.
const MESSAGE_BYTES: usize = 32 * 1024;
/// Bytes of a message that the other end may send.
const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the library's own buffers.
const BUFFER: usize = 16 * 1024;

/// How a WebSocket of a relay is to be set up.
pub fn socket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * MESSAGE_BYTES_MAX)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
}

/// When something last came, in milliseconds since the socket was made.
#[derive(Clone, Debug)]
pub(crate) struct Heard(Arc<(Instant, AtomicU64)>);

impl Heard {
    fn now() -> Heard {
        Heard(Arc::new((Instant::now(), AtomicU64::new(0))))
    }

    fn note(&self) {
        let (made, last) = &*self.0;
        last.store(u64::try_from(made.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long nothing has come.
    pub(crate) fn silence(&self) -> Duration {
        let (made, last) = &*self.0;
        made.elapsed().saturating_sub(Duration::from_millis(last.load(Ordering::Relaxed)))
    }
}

/// A WebSocket as a stream of bytes.
#[derive(Debug)]
pub struct WsBytes<S> {
    ws: WebSocketStream<S>,
    /// What came and is not read yet: at most one message.
    incoming: Bytes,
    /// What waits to leave as one message: at most [`MESSAGE_BYTES`].
    outgoing: Vec<u8>,
    heard: Heard,
    /// What comes and what leaves, counted for their streams.
    meters: Option<Box<(Meter, Meter)>>,
}

impl<S> WsBytes<S> {
    /// Carries bytes through `ws`.
    pub fn new(ws: WebSocketStream<S>) -> WsBytes<S> {
        WsBytes { ws, incoming: Bytes::new(), outgoing: Vec::new(), heard: Heard::now(), meters: None }
    }

    /// The same, with what passes counted.
    pub(crate) fn counted(self, loads: &Loads) -> WsBytes<S> {
        let meters = Some(Box::new((Meter::new(loads.clone()), Meter::new(loads.clone()))));
        WsBytes { meters, ..self }
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.clone()
    }
}

fn broken(error: WsError) -> Error {
    match error {
        WsError::Io(error) => error,
        WsError::ConnectionClosed | WsError::AlreadyClosed => ErrorKind::BrokenPipe.into(),
        error => Error::new(ErrorKind::InvalidData, error),
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> WsBytes<S> {
    /// Hands what waits to the library.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.outgoing.is_empty() {
            ready!(Pin::new(&mut self.ws).poll_ready(cx)).map_err(broken)?;
            let message = Message::Binary(std::mem::take(&mut self.outgoing).into());
            Pin::new(&mut self.ws).start_send(message).map_err(broken)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> AsyncRead for WsBytes<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize>> {
        if let Some(meters) = &self.meters {
            // The other end waits in its own buffers; it is not silent, we do not listen.
            if meters.0.poll_open(cx).is_pending() {
                self.heard.note();
                return Poll::Pending;
            }
        }
        while self.incoming.is_empty() {
            match ready!(Pin::new(&mut self.ws).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => {
                    self.heard.note();
                    self.incoming = bytes;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => self.heard.note(),
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(Error::new(
                        ErrorKind::InvalidData,
                        "a relay's messages are binary",
                    )));
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(0)),
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let taken = buf.len().min(self.incoming.len());
        buf[..taken].copy_from_slice(&self.incoming.split_to(taken));
        if let Some(meters) = &mut self.meters {
            meters.0.comes(&buf[..taken]);
        }
        Poll::Ready(Ok(taken))
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> AsyncWrite for WsBytes<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        if self.outgoing.len() >= MESSAGE_BYTES {
            ready!(self.poll_message(cx))?;
        }
        let taken = buf.len().min(MESSAGE_BYTES - self.outgoing.len());
        self.outgoing.extend_from_slice(&buf[..taken]);
        if let Some(meters) = &mut self.meters {
            meters.1.leaves(&buf[..taken]);
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_message(cx))?;
        Pin::new(&mut self.ws).poll_flush(cx).map_err(broken)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_message(cx))?;
        Pin::new(&mut self.ws).poll_close(cx).map_err(broken)
    }
}
