//! One connection's socket: polls it, tells `core::conn` what came, carries out what that asks.
//!
//! One task per socket, one loop: whatever is waiting to be written is written while frames are still read, so
//! a reader that is slow to read does not keep us from hearing that it lives.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, Stream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tenure_core::conn::{Conn, ConnEffect, Received};
use tenure_core::{House, Input};
use tenure_proto::codec::Codec;
use tenure_proto::limits::NONCE_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_tungstenite::WebSocketStream;
use tungstenite::error::ProtocolError;
use tungstenite::protocol::CloseFrame;
use tungstenite::{Error, Message};

use crate::mailbox::Mailbox;
use crate::mesh_task::{MeshHandle, MeshMsg};
use crate::peer::Place;
use crate::shared::Shared;

mod outlet;
mod pipe;

use outlet::Way;
pub(crate) use pipe::Pipe;

/// A WebSocket as the upgrade leaves it.
pub(crate) type Ws = WebSocketStream<Pipe<TokioIo<Upgraded>>>;

/// What happened on the socket.
enum Io {
    /// A message came.
    Received(Message),
    /// No more will: the socket ended, for this reason if there is one.
    Failed(Option<Error>),
    /// Everything that was queued has left.
    Flushed,
    /// So many bytes of it have.
    Taken(usize),
}

/// A socket and what is decided about it.
struct Wire {
    ws: Ws,
    conn: Conn,
    shared: Arc<Shared>,
    /// What the broker is to it: to anybody before its hello, to its mesh's after.
    house: Arc<House>,
    /// Its place among the sockets of its address.
    place: Place,
    /// Whether something waits to be written.
    flushing: bool,
    /// Whether what still comes is of no interest.
    leaving: bool,
    /// Whether the library reads no more.
    deaf: bool,
}

/// Carries a socket from its upgrade to its end.
pub(crate) async fn run(
    ws: Ws,
    shared: Arc<Shared>,
    codec: Codec,
    host: String,
    permit: OwnedSemaphorePermit,
    place: Place,
) {
    let Some(mut wire) = Wire::new(ws, shared, codec, host, place) else { return };
    wire.shared.metrics.sockets.inc();
    // The handshake's state is large and short-lived: it must not be part of ten thousand idle tasks.
    let greeted = Box::pin(wire.greet()).await;
    drop(permit);
    if let Some((mesh, mailbox)) = greeted {
        wire.carry(&mesh, &mailbox).await;
    }
    wire.shared.metrics.sockets.dec();
}

impl Wire {
    /// A socket whose client is about to be challenged. `None` when the system gives no randomness.
    fn new(mut ws: Ws, shared: Arc<Shared>, codec: Codec, host: String, place: Place) -> Option<Wire> {
        let mut nonce = [0u8; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let mut flushing = false;
        let address = place.address();
        let from = Some(place.ip());
        let mut way = Way { pipe: ws.get_mut(), shared: &shared, flushing: &mut flushing, address, from };
        let (id, now, house) = (shared.next_conn(), shared.clock.now(), shared.meshes.lobby());
        let conn = Conn::new(id, codec, host, nonce, now, &house, &mut way);
        Some(Wire { ws, conn, shared, house, place, flushing, leaving: false, deaf: false })
    }

    /// Waits for the hello and hands it to the mesh, which will answer through the mailbox. `None` when the socket is
    /// done.
    async fn greet(&mut self) -> Option<(MeshHandle, Mailbox)> {
        let (clock, stop) = (self.shared.clock, self.shared.stopping.clone());
        loop {
            let due = self.conn.next_deadline().unwrap_or_default();
            // All are cancel-safe: `io` keeps its state in the socket, the others have none. In this order: a hello
            // that has arrived counts, however late we come to read it.
            let effect = tokio::select! {
                biased;
                io = self.io() => self.happened(io),
                () = stop.cancelled() => self.stop(),
                () = tokio::time::sleep_until(clock.instant(due)) => self.tick(),
            };
            match effect {
                None => {}
                Some(ConnEffect::Enter(input)) => match self.room(&input) {
                    Some((mesh, house)) => {
                        self.house = house;
                        self.ws.get_mut().trust();
                        let (id, mailbox) = (self.conn.id(), Mailbox::default());
                        let hello = MeshMsg::Hello(input, id, mailbox.clone());
                        return mesh.send(hello).await.then_some((mesh, mailbox));
                    }
                    None => {
                        let effect = self.stop()?;
                        self.leave(effect).await;
                        return None;
                    }
                },
                Some(effect) => {
                    self.leave(effect).await;
                    return None;
                }
            }
        }
    }

    /// The mesh that a hello is for, and what the broker is to those who are in it.
    fn room(&self, input: &Input) -> Option<(MeshHandle, Arc<House>)> {
        let Input::Hello { admission, .. } = input else { return None };
        self.shared.meshes.room(&admission.mesh)
    }

    /// Frames both ways until the socket ends.
    async fn carry(&mut self, mesh: &MeshHandle, mailbox: &Mailbox) {
        loop {
            // Both are cancel-safe: `io` keeps its state in the socket and the queue, `take` takes nothing
            // before it returns.
            let effect = tokio::select! {
                outs = mailbox.take() => {
                    self.with(|conn, shared, house, way| conn.obey(shared.clock.now(), outs, house, way))
                }
                io = self.io() => self.happened(io),
            };
            let (input, done) = match effect {
                None => continue,
                Some(ConnEffect::Tell(input)) => (Some(input), false),
                Some(effect) => (Box::pin(self.leave(effect)).await, true),
            };
            let heard = match input {
                Some(input) => mesh.send(MeshMsg::Input(input)).await,
                None => true,
            };
            if done || !heard {
                return;
            }
        }
    }

    /// Carries the socket from the decision that it ends to its end; gives what the mesh is to hear of that.
    async fn leave(&mut self, effect: ConnEffect) -> Option<Input> {
        match effect {
            ConnEffect::End(last) => return last,
            ConnEffect::Close { code, reason } => {
                let frame = CloseFrame { code: code.into(), reason: reason.into() };
                self.shared.metrics.frames_out.inc();
                // A socket that takes no close frame has closed already.
                let _ = Pin::new(&mut self.ws).start_send(Message::Close(Some(frame)));
            }
            ConnEffect::Finish | ConnEffect::Enter(_) | ConnEffect::Tell(_) => {}
        }
        self.ws.get_mut().trust();
        (self.leaving, self.flushing) = (true, true);
        loop {
            let due = self.shared.clock.instant(self.conn.next_deadline()?);
            // Both are cancel-safe: `io` keeps its state in the socket. Time first, whatever still comes.
            let effect = tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => self.tick(),
                io = self.io() => self.happened(io),
            };
            if let Some(ConnEffect::End(last)) = effect {
                return last;
            }
        }
    }

    /// Lets the connection act on the socket.
    fn with<T>(&mut self, act: impl FnOnce(&mut Conn, &Shared, &House, &mut Way<'_>) -> T) -> T {
        let Wire { ws, conn, shared, house, place, flushing, .. } = self;
        let shared: &Shared = shared;
        let (address, from) = (place.address(), Some(place.ip()));
        act(conn, shared, house, &mut Way { pipe: ws.get_mut(), shared, flushing, address, from })
    }

    fn stop(&mut self) -> Option<ConnEffect> {
        self.with(|conn, shared, house, way| conn.stop(shared.clock.now(), house, way))
    }

    fn tick(&mut self) -> Option<ConnEffect> {
        self.with(|conn, shared, _, way| conn.tick(shared.clock.now(), way))
    }

    /// Tells the connection what happened.
    fn happened(&mut self, io: Io) -> Option<ConnEffect> {
        let what = match &io {
            Io::Flushed => {
                return self.with(|conn, shared, house, way| conn.flushed(shared.clock.now(), house, way));
            }
            Io::Taken(bytes) => {
                let bytes = *bytes;
                return self.with(|conn, shared, house, _| conn.taken(shared.clock.now(), bytes, house));
            }
            Io::Received(Message::Text(text)) => Received::Data { binary: false, bytes: text.as_bytes() },
            Io::Received(Message::Binary(bytes)) => Received::Data { binary: true, bytes },
            Io::Received(Message::Ping(_)) => {
                // The library has queued the pong; it leaves with the next flush.
                self.flushing |= !self.leaving;
                Received::Ping
            }
            Io::Received(Message::Pong(_) | Message::Frame(_)) => Received::Pong,
            Io::Received(Message::Close(_)) => Received::Close,
            Io::Failed(error) => failure(error.as_ref()),
        };
        self.with(|conn, shared, house, way| conn.received(shared.clock.now(), what, house, way))
    }

    /// The next thing that happens on the socket. Cancel-safe: all progress is kept in `self`.
    async fn io(&mut self) -> Io {
        std::future::poll_fn(|cx| self.poll_io(cx)).await
    }

    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<Io> {
        if self.flushing {
            match self.poll_out(cx) {
                Poll::Ready(Ok(())) => {
                    self.flushing = false;
                    return Poll::Ready(Io::Flushed);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Io::Failed(Some(error))),
                Poll::Pending => match self.ws.get_mut().taken() {
                    0 => {}
                    bytes => return Poll::Ready(Io::Taken(bytes)),
                },
            }
        }
        if self.conn.may_read(&self.house, self.ws.get_ref().waiting()) {
            return self.poll_in(cx);
        }
        Poll::Pending
    }

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // First what the library has to say, then whatever waits: after the last close it flushes no more.
        ready!(Pin::new(&mut self.ws).poll_flush(cx))?;
        Pin::new(self.ws.get_mut()).poll_flush(cx).map_err(Error::Io)
    }

    fn poll_in(&mut self, cx: &mut Context<'_>) -> Poll<Io> {
        while !self.deaf {
            match ready!(Pin::new(&mut self.ws).poll_next(cx)) {
                Some(Ok(message)) => return Poll::Ready(Io::Received(message)),
                // The library reads no more, but the rest of what was wrong still comes.
                _ if self.leaving => self.deaf = true,
                Some(Err(error)) => return Poll::Ready(Io::Failed(Some(error))),
                None => return Poll::Ready(Io::Failed(None)),
            }
        }
        let mut rest = [0; 4096];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(self.ws.get_mut()).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(Io::Failed(None));
            }
        }
    }
}

/// What it means that a socket failed. Silence and a reset are not something that the client sent.
fn failure(error: Option<&Error>) -> Received<'static> {
    match error {
        Some(Error::Capacity(_)) => Received::TooLarge,
        Some(Error::Io(error)) if error.kind() == ErrorKind::FileTooLarge => Received::TooLarge,
        Some(Error::Utf8(_)) => Received::BadWebSocket,
        Some(Error::Protocol(error)) if !matches!(error, ProtocolError::ResetWithoutClosingHandshake) => {
            Received::BadWebSocket
        }
        _ => Received::Gone,
    }
}
