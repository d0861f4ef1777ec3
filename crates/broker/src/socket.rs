//! The life of one connection: challenge, hello, then frames both ways until it ends.
//!
//! One task per socket, one loop: whatever is waiting to be written is written while frames are still read, so
//! a reader that is slow to read does not keep us from hearing that it lives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::{Sink, Stream};
use std::pin::Pin;
use tenure_core::Input;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::codec::Codec;
use tenure_proto::event::EventBody;
use tenure_proto::ids::ConnId;
use tenure_proto::limits::{CLOSE_FLUSH_MS, MAX_INFLIGHT};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::frames::{self, Incoming};
use crate::mailbox::{Mailbox, Out};
use crate::mesh_task::{MeshHandle, MeshMsg};
use crate::shared::Shared;

mod handshake;

/// What happened on the socket.
enum Io {
    /// A message came, or the socket ended.
    Received(Option<Result<Message, axum::Error>>),
    /// Everything that was queued has left.
    Flushed,
}

/// A socket with what waits to leave through it.
pub(super) struct Wire {
    ws: WebSocket,
    codec: Codec,
    conn: ConnId,
    shared: Arc<Shared>,
    queue: VecDeque<Message>,
    /// Bytes handed over since the last complete flush.
    unflushed: usize,
    flushing: bool,
    /// Requests that wait for their answer.
    unanswered: u32,
    /// Whether a batch of events is on its way, and the mesh wants to know when it has left.
    batch: bool,
}

/// Carries a socket from its upgrade to its end.
pub(crate) async fn run(
    ws: WebSocket,
    shared: Arc<Shared>,
    codec: Codec,
    host: String,
    permit: OwnedSemaphorePermit,
) {
    shared.metrics.sockets.inc();
    let conn = shared.next_conn();
    let mut wire = Wire {
        ws,
        codec,
        conn,
        shared,
        queue: VecDeque::new(),
        unflushed: 0,
        flushing: false,
        unanswered: 0,
        batch: false,
    };
    // The handshake's state is large and short-lived: it must not be part of ten thousand idle tasks.
    let greeted = Box::pin(handshake::greet(&mut wire, host)).await;
    drop(permit);
    if let Some((mesh, mailbox)) = greeted {
        wire.carry(&mesh, &mailbox).await;
    }
    wire.shared.metrics.sockets.dec();
}

impl Wire {
    /// Frames both ways until the socket ends.
    async fn carry(&mut self, mesh: &MeshHandle, mailbox: &Mailbox) {
        loop {
            // Both are cancel-safe: `io` keeps its state in the socket and the queue, `take` takes nothing
            // before it returns.
            let keep = tokio::select! {
                outs = mailbox.take() => self.obey(outs, mesh).await,
                io = self.io() => match io {
                    Io::Received(message) => self.received(message, mesh).await,
                    Io::Flushed => self.flushed(mesh).await,
                },
            };
            if !keep {
                return;
            }
        }
    }

    async fn obey(&mut self, outs: VecDeque<Out>, mesh: &MeshHandle) -> bool {
        for out in outs {
            match out {
                Out::Respond(request, outcome) => {
                    self.unanswered = self.unanswered.saturating_sub(1);
                    if let Err(error) = outcome.as_ref() {
                        self.shared.metrics.refusal(error.code.as_str());
                    }
                    let message = frames::response(self.codec, self.conn, request, *outcome, &self.shared);
                    self.push(message);
                }
                Out::Events(batch) => {
                    self.batch = true;
                    let mut events = VecDeque::new();
                    frames::events(self.codec, &batch, &mut events);
                    events.into_iter().for_each(|event| self.push(event));
                }
                Out::Ping => self.push(Message::Ping(Default::default())),
                Out::Close(closing) => {
                    self.close(&closing).await;
                    let at = self.shared.clock.at();
                    let gone = Input::Closed { conn: self.conn, at, by_client: false };
                    mesh.send(MeshMsg::Input(gone)).await;
                    return false;
                }
            }
        }
        true
    }

    async fn received(&mut self, message: Option<Result<Message, axum::Error>>, mesh: &MeshHandle) -> bool {
        let (conn, at) = (self.conn, self.shared.clock.at());
        let input = match message {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                self.shared.metrics.frames_in.inc();
                match frames::read(self.codec, &message, &self.shared) {
                    Incoming::Call(request, call) => {
                        self.unanswered += 1;
                        Input::Request { conn, at, request, call }
                    }
                    Incoming::Refused(request, error) => {
                        self.shared.metrics.refusal(error.code.as_str());
                        let refusal = frames::response(self.codec, conn, request, Err(error), &self.shared);
                        self.push(refusal);
                        Input::Alive { conn, at }
                    }
                    Incoming::Garbled(message) => Input::Garbled { conn, at, message },
                }
            }
            Some(Ok(Message::Ping(_))) => {
                // The library has queued the pong; it leaves with the next flush.
                self.flushing = true;
                Input::Alive { conn, at }
            }
            Some(Ok(Message::Pong(_))) => Input::Alive { conn, at },
            Some(Ok(Message::Close(_))) => {
                self.finish().await;
                mesh.send(MeshMsg::Input(Input::Closed { conn, at, by_client: true })).await;
                return false;
            }
            Some(Err(error)) if is_too_large(&error) => {
                self.close(&Closing::new(Reason::TooLarge)).await;
                mesh.send(MeshMsg::Input(Input::Closed { conn, at, by_client: true })).await;
                return false;
            }
            Some(Err(_)) | None => {
                mesh.send(MeshMsg::Input(Input::Closed { conn, at, by_client: false })).await;
                return false;
            }
        };
        mesh.send(MeshMsg::Input(input)).await
    }

    async fn flushed(&mut self, mesh: &MeshHandle) -> bool {
        if !std::mem::take(&mut self.batch) {
            return true;
        }
        mesh.send(MeshMsg::Input(Input::Flushed { conn: self.conn })).await
    }

    fn push(&mut self, message: Message) {
        self.shared.metrics.frames_out.inc();
        self.unflushed += size(&message);
        self.queue.push_back(message);
        self.flushing = true;
    }

    /// Whether another request may be read: not while too many wait for their answer, or too much for the
    /// socket. What is not read waits in the client's own buffers.
    fn may_read(&self) -> bool {
        self.unanswered < MAX_INFLIGHT && self.unflushed < self.shared.config.mesh.max_buffered_bytes
    }

    /// The next thing that happens on the socket. Cancel-safe: all progress is kept in `self`.
    async fn io(&mut self) -> Io {
        std::future::poll_fn(|cx| self.poll_io(cx)).await
    }

    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<Io> {
        if self.flushing {
            match self.poll_out(cx) {
                Poll::Ready(Ok(())) => {
                    (self.flushing, self.unflushed) = (false, 0);
                    // An idle socket holds no queue.
                    self.queue = VecDeque::new();
                    return Poll::Ready(Io::Flushed);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Io::Received(Some(Err(error)))),
                Poll::Pending => {}
            }
        }
        if self.may_read() {
            return Pin::new(&mut self.ws).poll_next(cx).map(Io::Received);
        }
        Poll::Pending
    }

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
        let mut ws = Pin::new(&mut self.ws);
        while !self.queue.is_empty() {
            std::task::ready!(ws.as_mut().poll_ready(cx))?;
            if let Some(message) = self.queue.pop_front() {
                ws.as_mut().start_send(message)?;
            }
        }
        ws.poll_flush(cx)
    }

    /// Writes what is queued, until `deadline`.
    async fn flush_until(&mut self, deadline: Instant) -> bool {
        let flush = std::future::poll_fn(|cx| self.poll_out(cx));
        matches!(timeout_at(deadline, flush).await, Ok(Ok(())))
    }

    /// Says why, flushes, closes, and waits a moment for the client to have read it.
    async fn close(&mut self, closing: &Closing) {
        let deadline = Instant::now() + Duration::from_millis(CLOSE_FLUSH_MS);
        let event = EventBody::Closing(closing.clone());
        self.push(frames::unnumbered(self.codec, &event));
        let reason = closing.reason.clone().into();
        self.push(Message::Close(Some(CloseFrame { code: closing.code, reason })));
        if self.flush_until(deadline).await {
            self.linger(deadline).await;
        }
    }

    /// Reads what still comes, so that closing with unread data does not reset what we have just written.
    async fn linger(&mut self, deadline: Instant) {
        let ended = async {
            while let Some(Ok(_)) = std::future::poll_fn(|cx| Pin::new(&mut self.ws).poll_next(cx)).await {}
        };
        let _ = timeout_at(deadline, ended).await;
    }

    /// Answers a client's close.
    async fn finish(&mut self) {
        self.flush_until(Instant::now() + Duration::from_millis(CLOSE_FLUSH_MS)).await;
    }
}

fn size(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}

/// Whether the library stopped reading because a message is over its limit.
fn is_too_large(error: &axum::Error) -> bool {
    use std::error::Error;
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<tungstenite::Error>() {
            return matches!(error, tungstenite::Error::Capacity(_));
        }
        source = inner.source();
    }
    false
}
