//! The life of one connection: challenge, hello, then frames both ways until it ends.
//!
//! One task per socket, one loop: whatever is waiting to be written is written while frames are still read, so
//! a reader that is slow to read does not keep us from hearing that it lives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, Stream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use tenure_core::effect::Push;
use tenure_core::frames::{self, Incoming};
use tenure_core::{Input, Now};
use tenure_proto::close::{Closing, Reason};
use tenure_proto::codec::Codec;
use tenure_proto::event::EventBody;
use tenure_proto::ids::{ConnId, RequestId};
use tenure_proto::limits::{CLOSE_FLUSH_MS, FRAME_BEFORE_HELLO_BYTES, MAX_INFLIGHT};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tungstenite::error::ProtocolError;
use tungstenite::protocol::CloseFrame;
use tungstenite::{Error, Message};

use crate::mailbox::{Mailbox, Out};
use crate::mesh_task::{MeshHandle, MeshMsg};
use crate::shared::Shared;

mod handshake;
mod pipe;

pub(crate) use pipe::Pipe;

/// A WebSocket as the upgrade leaves it.
pub(crate) type Ws = WebSocketStream<Pipe<TokioIo<Upgraded>>>;

/// Bytes of a delivery around its message, about.
const DELIVERY_BYTES: usize = 250;

/// What happened on the socket.
enum Io {
    /// A message came, or the socket ended.
    Received(Option<Result<Message, Error>>),
    /// Everything that was queued has left.
    Flushed,
}

/// A socket with what waits to leave through it.
pub(super) struct Wire {
    ws: Ws,
    codec: Codec,
    conn: ConnId,
    shared: Arc<Shared>,
    flushing: bool,
    /// Requests that wait for their answer.
    unanswered: u32,
    /// Those of them that hold memory meanwhile, and how much; answers mostly come in their order.
    heavy: VecDeque<(RequestId, usize)>,
    heavy_bytes: usize,
    /// Frames that wait to be written.
    frames: u32,
    /// Whether the hello is among them: what comes behind it takes effect after it.
    knocking: bool,
    /// The frame that came behind a hello before that was answered; nothing more is read meanwhile.
    held: Option<Message>,
    /// Whether a batch of events is on its way, and the mesh wants to know when it has left.
    batch: bool,
    /// What is asked of the socket and has no room yet: at most one batch, and an answer per request.
    backlog: VecDeque<Out>,
}

/// Carries a socket from its upgrade to its end.
pub(crate) async fn run(
    ws: Ws,
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
        flushing: false,
        unanswered: 0,
        heavy: VecDeque::new(),
        heavy_bytes: 0,
        frames: 0,
        knocking: false,
        held: None,
        batch: false,
        backlog: VecDeque::new(),
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
            if let Out::Close(closing) = out {
                // What the socket can still take goes before the close; what it cannot is lost with it.
                self.pump();
                self.close(&closing).await;
                let at = self.shared.clock.at();
                let gone = Input::Closed { conn: self.conn, at, by_client: false };
                mesh.send(MeshMsg::Input(gone)).await;
                return false;
            }
            self.backlog.push_back(out);
        }
        self.pump();
        match self.held.take_if(|_| !self.knocking) {
            Some(message) => self.received(Some(Ok(message)), mesh).await,
            None => true,
        }
    }

    /// Encodes what is asked of the socket for as long as it has room. What waits in the backlog shares its
    /// contents with the mesh and weighs little; what is encoded is held to `max_buffered_bytes` and
    /// `max_buffered_messages`, and one answer or batch.
    fn pump(&mut self) {
        while self.has_room() {
            match self.backlog.pop_front() {
                Some(out) => self.emit(out),
                // An idle socket holds no queue.
                None => return self.backlog = VecDeque::new(),
            }
        }
    }

    fn emit(&mut self, out: Out) {
        match out {
            Out::Respond(request, outcome) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.knocking = false;
                self.lighten(&request);
                self.shared.metrics.answered(&outcome);
                let wall = self.shared.clock.now().wall;
                let message =
                    frames::response(self.codec, self.conn, request, *outcome, wall, &self.shared.house);
                self.push(&message);
            }
            Out::Events(batch) => {
                self.batch = true;
                frames::events(self.codec, &batch, |event| self.push(event));
                self.deliver(&batch.pushes);
            }
            Out::Ping => self.push_as(pipe::Kind::Ping, &[]),
            // Closes are carried out when they come, never from the backlog.
            Out::Close(_) => {}
        }
    }

    /// Encodes deliveries straight into what waits for the socket.
    fn deliver(&mut self, (first, pushes): &(u64, Vec<Push>)) {
        if pushes.is_empty() {
            return;
        }
        let again = pushes.iter().filter(|push| push.redelivered).count();
        self.shared.metrics.deliveries.inc_by(pushes.len() as u64);
        self.shared.metrics.redeliveries.inc_by(again as u64);
        let codec = self.codec;
        let sizes = pushes.iter().map(|push| push.entry.encoded(codec).len() + DELIVERY_BYTES);
        self.ws.get_mut().reserve(sizes.sum());
        for (seq, push) in (*first..).zip(pushes) {
            let size = push.entry.encoded(codec).len() + DELIVERY_BYTES;
            self.count_frame();
            let kind = self.kind();
            self.ws.get_mut().push_with(kind, size, |out| frames::delivery(codec, out, seq, push));
        }
    }

    /// A request is answered: what it held is free.
    fn lighten(&mut self, request: &RequestId) {
        if let Some(place) = self.heavy.iter().position(|(id, _)| id == request)
            && let Some((_, bytes)) = self.heavy.remove(place)
        {
            self.heavy_bytes -= bytes;
        }
        if self.heavy.is_empty() {
            // An idle socket holds no queue.
            self.heavy = VecDeque::new();
        }
    }

    async fn received(&mut self, message: Option<Result<Message, Error>>, mesh: &MeshHandle) -> bool {
        let (conn, Now { at, wall }) = (self.conn, self.shared.clock.now());
        let input = match message {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) if self.knocking => {
                self.held = Some(message);
                return true;
            }
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                self.shared.metrics.frames_in.inc();
                let house = &self.shared.house;
                let (binary, bytes) = (message.is_binary(), frame_bytes(&message));
                match frames::read(self.codec, binary, bytes, wall, house, &mut &*self.shared) {
                    Incoming::Call(request, call) => {
                        self.unanswered += 1;
                        let bytes = frames::weight(&call, self.shared.house.config.max_payload);
                        if bytes > 0 {
                            self.heavy.push_back((request.clone(), bytes));
                            self.heavy_bytes += bytes;
                        }
                        Input::Request { conn, at, request, call }
                    }
                    Incoming::Refused(request, error) => {
                        self.shared.metrics.refusal(error.code.as_str());
                        let refusal = frames::response(self.codec, conn, request, Err(error), wall, house);
                        self.push(&refusal);
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
            Some(Ok(Message::Pong(_) | Message::Frame(_))) => Input::Alive { conn, at },
            Some(Ok(Message::Close(_))) => {
                self.finish().await;
                mesh.send(MeshMsg::Input(Input::Closed { conn, at, by_client: true })).await;
                return false;
            }
            Some(Err(Error::Capacity(_))) => {
                self.close(&Closing::new(Reason::TooLarge)).await;
                mesh.send(MeshMsg::Input(Input::Closed { conn, at, by_client: true })).await;
                return false;
            }
            Some(Err(error)) if breaks_websocket(&error) => {
                self.close(&Closing::new(Reason::BadFrame)).await;
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
        let batch = std::mem::take(&mut self.batch);
        self.pump();
        !batch || mesh.send(MeshMsg::Input(Input::Flushed { conn: self.conn })).await
    }

    /// Lets a message leave.
    fn push(&mut self, message: &[u8]) {
        self.push_as(self.kind(), message);
    }

    fn push_as(&mut self, kind: pipe::Kind, payload: &[u8]) {
        self.count_frame();
        self.ws.get_mut().push(kind, payload);
    }

    fn kind(&self) -> pipe::Kind {
        if self.codec.is_binary() { pipe::Kind::Binary } else { pipe::Kind::Text }
    }

    fn count_frame(&mut self) {
        self.shared.metrics.frames_out.inc();
        self.frames += 1;
        self.flushing = true;
    }

    /// Whether another request may be read: not while too many wait for their answer, hold too much meanwhile, or
    /// too much waits for the socket. What is not read waits in the client's own buffers.
    fn may_read(&self) -> bool {
        self.unanswered < MAX_INFLIGHT
            && self.heavy_bytes < self.shared.house.config.max_buffered_bytes
            && self.has_room()
            && self.held.is_none()
    }

    /// Whether the socket has room for more; a stranger's has little.
    fn has_room(&self) -> bool {
        let pipe = self.ws.get_ref();
        let bound = if pipe.is_trusted() {
            self.shared.house.config.max_buffered_bytes
        } else {
            FRAME_BEFORE_HELLO_BYTES
        };
        pipe.waiting() < bound && self.frames < self.shared.house.config.max_buffered_messages
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
                    self.frames = 0;
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

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // First what the library has to say, then whatever waits: after the last close it flushes no more.
        std::task::ready!(Pin::new(&mut self.ws).poll_flush(cx))?;
        Pin::new(self.ws.get_mut()).poll_flush(cx).map_err(Error::Io)
    }

    /// Writes what is queued, until `deadline`.
    async fn flush_until(&mut self, deadline: Instant) -> bool {
        let flush = std::future::poll_fn(|cx| self.poll_out(cx));
        matches!(timeout_at(deadline, flush).await, Ok(Ok(())))
    }

    /// Says why, flushes, closes, and waits a moment for the client to have read it.
    async fn close(&mut self, closing: &Closing) {
        self.ws.get_mut().trust();
        let deadline = Instant::now() + Duration::from_millis(CLOSE_FLUSH_MS);
        let event = EventBody::Closing(closing.clone());
        self.push(&frames::unnumbered(self.codec, &event));
        let frame = CloseFrame { code: closing.code.into(), reason: closing.reason.clone().into() };
        self.shared.metrics.frames_out.inc();
        // A socket that takes no close frame has closed already.
        let _ = Pin::new(&mut self.ws).start_send(Message::Close(Some(frame)));
        if self.flush_until(deadline).await {
            self.linger(deadline).await;
        }
    }

    /// Reads what still comes, so that closing with unread data does not reset what we have just written.
    async fn linger(&mut self, deadline: Instant) {
        let ended = async {
            while let Some(Ok(message)) =
                std::future::poll_fn(|cx| Pin::new(&mut self.ws).poll_next(cx)).await
            {
                if message.is_close() {
                    return;
                }
            }
            // After an error the library reads no more, but the rest of what was wrong still comes.
            let mut rest = vec![0; 4096];
            while self.ws.get_mut().read(&mut rest).await.is_ok_and(|count| count > 0) {}
        };
        let _ = timeout_at(deadline, ended).await;
    }

    /// Answers a client's close.
    async fn finish(&mut self) {
        self.flush_until(Instant::now() + Duration::from_millis(CLOSE_FLUSH_MS)).await;
    }
}

/// The bytes of a message that carries a frame.
fn frame_bytes(message: &Message) -> &[u8] {
    match message {
        Message::Text(text) => text.as_bytes(),
        Message::Binary(bytes) => bytes,
        _ => &[],
    }
}

/// Whether the client sent something that is no WebSocket. Silence and a reset are not something it sent.
fn breaks_websocket(error: &Error) -> bool {
    match error {
        Error::Utf8(_) => true,
        Error::Protocol(error) => !matches!(error, ProtocolError::ResetWithoutClosingHandshake),
        _ => false,
    }
}
