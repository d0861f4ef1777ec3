//! One connection's socket: polls it, tells `tenure_mesh::conn` what came, carries out what that asks.
//!
//! One task per socket, one loop: whatever is waiting to be written is written while frames are still read, so
//! a reader that is slow to read does not keep us from hearing that it lives.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tenure_kit::Millis;
use tenure_mesh::conn::{Conn, ConnEffect, Received};
use tenure_mesh::{House, Input};
use tenure_proto::codec::Codec;
use tenure_proto::limits::{self, NONCE_BYTES, SLOW_CONSUMER_BYTES};
use tokio::io::{AsyncRead, ReadBuf};

use crate::clock::Clock;
use crate::connections::{Connection, Held};
use crate::mailbox::{Mailbox, Queue};
use crate::mesh_task::{MeshHandle, MeshMsg};
use crate::peer::Place;
use crate::shared::Shared;

mod echo;
mod inbound;
mod outlet;
mod pipe;
mod room;

pub(crate) use echo::echo;
use inbound::{Came, Fault, Inbound, close_answer};
use outlet::Way;
use pipe::{Kind, Pipe};
pub(crate) use room::Room;
use room::{SMALL_BYTES, Share};

/// Bytes of requests that are counted at once, and not when there is nothing more to do.
const HEAVY_BYTES: usize = 256 * 1024;

/// What the upgrade of a request leaves.
pub(crate) type Stream = TokioIo<Upgraded>;

/// What happened on the socket.
enum Io {
    /// Something came.
    Came(Came),
    /// A message has begun to come, and its rest is waited for.
    Began,
    /// Nothing more will come, for this reason if there is one.
    Failed(Option<Fault>),
    /// Everything that was queued has left.
    Flushed,
    /// So many bytes of it have.
    Taken(usize),
}

/// A socket and what is decided about it.
struct Wire {
    pipe: Pipe<Stream>,
    inbound: Inbound,
    conn: Conn,
    shared: Arc<Shared>,
    /// What the broker is to it: to anybody before its hello, to its mesh's after.
    house: Arc<House>,
    /// Its place among the connections of the broker.
    connection: Arc<Connection>,
    /// Its place among the sockets of its address.
    place: Arc<Place>,
    /// Since when its client has taken next to nothing of what waits, if something does; and what it took since.
    stuck: Option<Millis>,
    progress: usize,
    /// What it has of the room for large messages.
    share: Share,
    /// When something of a large message last came.
    heard: Millis,
    /// What it was last said to hold.
    held: Held,
    /// Whether something waits to be written.
    flushing: bool,
    /// Whether what still comes is of no interest.
    leaving: bool,
    /// Whether what comes makes no sense any more.
    deaf: bool,
}

/// Carries a socket from its upgrade to its end.
pub(crate) async fn run(
    stream: Stream,
    shared: Arc<Shared>,
    codec: Codec,
    host: String,
    connection: Arc<Connection>,
    place: Arc<Place>,
) {
    let Some(mut wire) = Wire::new(stream, shared, codec, host, connection, place) else { return };
    wire.shared.metrics.sockets.inc();
    // The handshake's state is large and short-lived: it must not be part of ten thousand idle tasks.
    if let Some((mesh, mailbox)) = Box::pin(wire.greet()).await {
        wire.carry(&mesh, &mailbox).await;
    }
    wire.shared.metrics.sockets.dec();
}

impl Wire {
    /// A socket whose client is about to be challenged. `None` when the system gives no randomness.
    fn new(
        stream: Stream,
        shared: Arc<Shared>,
        codec: Codec,
        host: String,
        connection: Arc<Connection>,
        place: Arc<Place>,
    ) -> Option<Wire> {
        let mut nonce = [0u8; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let (mut pipe, mut flushing) = (Pipe::new(stream), false);
        let (address, from) = (place.address(), Some(place.ip()));
        let mut way = Way { pipe: &mut pipe, shared: &shared, flushing: &mut flushing, address, from };
        let (id, now, house) = (shared.next_conn(), shared.clock.now(), shared.meshes.lobby());
        let conn = Conn::new(id, codec, host, nonce, now, &house, &mut way);
        Some(Wire {
            pipe,
            inbound: Inbound::new(limits::frame_bytes(house.config.max_payload)),
            conn,
            shared,
            house,
            connection,
            place,
            stuck: None,
            progress: 0,
            share: Share::default(),
            heard: now.at,
            held: Held { waiting: 0, owed: 0, since: now.at, unfinished: 0, heard: now.at },
            flushing,
            leaving: false,
            deaf: false,
        })
    }

    /// Waits for the hello and hands it to the mesh, which will answer through the mailbox. `None` when the socket is
    /// done.
    async fn greet(&mut self) -> Option<(MeshHandle, Mailbox)> {
        let (clock, stop, connection) =
            (self.shared.clock, self.shared.stopping.clone(), self.connection.clone());
        loop {
            let due = self.conn.next_deadline().unwrap_or_default();
            // All are cancel-safe: `io` keeps its state in the socket, the others have none. In this order: a hello
            // that has arrived counts, however late we come to read it.
            let effect = tokio::select! {
                biased;
                io = self.io() => self.happened(io),
                () = connection.cut() => self.let_go(),
                () = stop.cancelled() => self.stop(),
                () = tokio::time::sleep_until(clock.instant(due)) => self.tick(),
            };
            match effect {
                None => {}
                Some(ConnEffect::Enter(input)) => match self.room(&input) {
                    Some((mesh, house)) => {
                        self.house = house;
                        self.pipe.trust();
                        let (id, mailbox) = (self.conn.id(), Mailbox::default());
                        self.connection.listens_to(&mailbox);
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

    /// The mesh that a hello is for, and what the broker is to those who are in it. Nothing when it was told to go just
    /// now.
    fn room(&self, input: &Input) -> Option<(MeshHandle, Arc<House>)> {
        let Input::Hello { admission, .. } = input else { return None };
        let room = self.shared.meshes.room(&admission.mesh)?;
        self.connection.is_session().then_some(room)
    }

    /// Frames both ways until the socket ends.
    async fn carry(&mut self, mesh: &MeshHandle, mailbox: &Mailbox) {
        let clock = self.shared.clock;
        loop {
            let due = self.conn.next_deadline();
            // All are cancel-safe: `io` keeps its state in the socket and the queue, `take` takes nothing before it
            // returns, and time has no state.
            let effect = tokio::select! {
                taken = mailbox.take() => self.obey(taken),
                io = self.io() => self.happened(io),
                // Few sockets are in the middle of a message: the others have no timer.
                () = at(clock, due), if due.is_some() => self.heard_or_late().await,
            };
            let (input, done) = match effect {
                None => continue,
                Some(ConnEffect::Tell(input)) => (Some(input), false),
                Some(effect) => {
                    mailbox.shut();
                    (Box::pin(self.leave(effect)).await, true)
                }
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

    /// Time has passed: what has come by now was in time.
    async fn heard_or_late(&mut self) -> Option<ConnEffect> {
        let io = std::future::poll_fn(|cx| match self.poll_io(cx) {
            Poll::Ready(io) => Poll::Ready(Some(io)),
            Poll::Pending => Poll::Ready(None),
        });
        match io.await {
            Some(io) => self.happened(io),
            None => self.tick(),
        }
    }

    /// Carries the socket from the decision that it ends to its end; gives what the mesh is to hear of that.
    async fn leave(&mut self, effect: ConnEffect) -> Option<Input> {
        match effect {
            ConnEffect::End(last) => return last,
            ConnEffect::Close { code, reason } => {
                self.shared.metrics.frames_out.inc();
                let mut payload = code.to_be_bytes().to_vec();
                payload.extend_from_slice(reason.as_bytes());
                self.pipe.push(Kind::Close, &payload);
            }
            ConnEffect::Finish | ConnEffect::Enter(_) | ConnEffect::Tell(_) => {}
        }
        self.pipe.trust();
        if self.inbound.is_partial() {
            // What would make it whole is not waited for, and not held.
            self.inbound.clear();
            self.deaf = true;
        }
        self.share.clear();
        (self.leaving, self.flushing) = (true, true);
        self.settle();
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
        let Wire { pipe, conn, shared, house, place, flushing, .. } = self;
        let shared: &Shared = shared;
        let (address, from) = (place.address(), Some(place.ip()));
        act(conn, shared, house, &mut Way { pipe, shared, flushing, address, from })
    }

    /// Carries out what the mesh asks.
    fn obey(&mut self, Queue { outs, read_ahead }: Queue) -> Option<ConnEffect> {
        let effect = self.with(|conn, shared, house, way| conn.obey(shared.clock.now(), outs, house, way));
        if !read_ahead.is_empty() {
            // Counted here before it is not counted as read ahead any more.
            self.settle();
        }
        effect
    }

    fn stop(&mut self) -> Option<ConnEffect> {
        self.with(|conn, shared, house, way| conn.stop(shared.clock.now(), house, way))
    }

    fn let_go(&mut self) -> Option<ConnEffect> {
        self.with(|conn, shared, _, way| conn.let_go(shared.clock.now(), way))
    }

    fn tick(&mut self) -> Option<ConnEffect> {
        self.with(|conn, shared, _, way| conn.tick(shared.clock.now(), way))
    }

    /// Tells the connection what happened.
    fn happened(&mut self, io: Io) -> Option<ConnEffect> {
        match io {
            Io::Flushed => {
                (self.stuck, self.progress) = (None, 0);
                self.with(|conn, shared, house, way| conn.flushed(shared.clock.now(), house, way))
            }
            Io::Taken(bytes) => {
                self.progress += bytes;
                if self.progress >= SLOW_CONSUMER_BYTES {
                    (self.stuck, self.progress) = (None, 0);
                }
                self.with(|conn, shared, house, _| conn.taken(shared.clock.now(), bytes, house))
            }
            Io::Began => {
                self.conn.began(self.shared.clock.now(), &self.house);
                None
            }
            Io::Failed(fault) => {
                let what = match fault {
                    Some(Fault::TooLarge) => Received::TooLarge,
                    Some(Fault::Bad) => Received::BadWebSocket,
                    None => Received::Gone,
                };
                self.with(|conn, shared, house, way| conn.received(shared.clock.now(), what, house, way))
            }
            Io::Came(came) => self.came(&came),
        }
    }

    /// Tells the connection what came.
    fn came(&mut self, came: &Came) -> Option<ConnEffect> {
        if !self.inbound.is_fragmented() {
            self.conn.unbegun();
        }
        let Wire { pipe, inbound, conn, shared, house, place, flushing, leaving, .. } = self;
        let what = match came {
            Came::Message { binary, bytes } => {
                Received::Data { binary: *binary, bytes: inbound.bytes(bytes) }
            }
            Came::Ping(payload) => {
                if !*leaving {
                    pipe.push(Kind::Pong, inbound.bytes(payload));
                    *flushing = true;
                }
                Received::Ping
            }
            Came::Pong => Received::Pong,
            Came::Close(payload) => {
                if !*leaving {
                    pipe.push(Kind::Close, &close_answer(inbound.bytes(payload)));
                }
                Received::Close
            }
        };
        let (shared, address, from): (&Shared, _, _) = (shared, place.address(), Some(place.ip()));
        let mut way = Way { pipe, shared, flushing, address, from };
        let effect = conn.received(shared.clock.now(), what, house, &mut way);
        // It is handed on: it must not wait here until the next is read, which may be when it is answered.
        self.inbound.release();
        if self.conn.owed().saturating_sub(self.held.owed) >= HEAVY_BYTES {
            self.settle();
        }
        effect
    }

    /// The next thing that happens on the socket. Cancel-safe: all progress is kept in `self`.
    async fn io(&mut self) -> Io {
        std::future::poll_fn(|cx| self.poll_io(cx)).await
    }

    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<Io> {
        if self.flushing {
            match self.pipe.poll_flush(cx) {
                Poll::Ready(Ok(())) => {
                    self.flushing = false;
                    return Poll::Ready(Io::Flushed);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Io::Failed(None)),
                Poll::Pending => match self.pipe.taken() {
                    0 => {}
                    bytes => return Poll::Ready(Io::Taken(bytes)),
                },
            }
        }
        if !self.may_read() {
            // Nothing is late that we do not read.
            self.conn.unbegun();
        } else if let Poll::Ready(io) = self.poll_in(cx) {
            return Poll::Ready(io);
        }
        self.settle();
        Poll::Pending
    }

    fn may_read(&self) -> bool {
        self.conn.may_read(&self.house, self.pipe.waiting())
            && (self.leaving || self.conn.owed() == 0 || !self.connection.holds_back())
    }

    fn poll_in(&mut self, cx: &mut Context<'_>) -> Poll<Io> {
        while !self.deaf {
            match self.inbound.next() {
                Ok(Some(came)) => return Poll::Ready(Io::Came(came)),
                Ok(None) => {}
                Err(fault) => {
                    // Nothing more can be read, but the rest of what was wrong still comes.
                    self.inbound.clear();
                    self.deaf = true;
                    if !self.leaving {
                        return Poll::Ready(Io::Failed(Some(fault)));
                    }
                    break;
                }
            }
            ready!(self.poll_room(cx));
            match self.inbound.poll_fill(cx, &mut self.pipe) {
                Poll::Ready(Ok(true)) => {
                    if self.inbound.wants() > SMALL_BYTES {
                        self.heard = self.shared.clock.at();
                    }
                }
                Poll::Ready(Ok(false)) => return Poll::Ready(Io::Failed(None)),
                Poll::Ready(Err(error)) => return Poll::Ready(Io::Failed(failure(&error))),
                Poll::Pending
                    if self.inbound.is_partial() && self.conn.begun().is_none() && !self.leaving =>
                {
                    return Poll::Ready(Io::Began);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let mut rest = [0; 4096];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(&mut self.pipe).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(Io::Failed(None));
            }
        }
    }

    /// Ready when there is room for the rest of what has begun to come.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let wants = self.inbound.wants();
        if wants <= SMALL_BYTES || self.leaving {
            return Poll::Ready(());
        }
        let have = self.share.poll_have(cx, wants + self.conn.owed(), &self.connection);
        if have.is_pending() {
            // Nothing is late that we do not read.
            self.conn.unbegun();
        }
        have
    }

    /// Says what the socket holds, if that has changed. Called whenever there is nothing more to do at once, so that
    /// what comes and goes in between costs nothing.
    fn settle(&mut self) {
        let out = self.pipe.held();
        self.stuck = match (out, self.stuck) {
            (0, _) => None,
            (_, None) => Some(self.shared.clock.at()),
            (_, since) => since,
        };
        let large = Some(self.inbound.wants()).filter(|wants| *wants > SMALL_BYTES).unwrap_or(0);
        self.share.keep(large + self.conn.owed());
        // Whoever waits for room keeps none from others, unless it came by it fragment by fragment.
        let keeps = self.share.bytes() > 0 && (!self.share.waits() || self.inbound.is_fragmented());
        let unfinished = if keeps { large } else { 0 };
        let waiting = out + self.inbound.held() + self.conn.unsent();
        // Whatever else waits here does not wait for its client: it is no slower than the next that holds something.
        let slow = [self.stuck, self.conn.begun()].into_iter().flatten().min();
        let same = (waiting, unfinished) == (self.held.waiting, self.held.unfinished);
        let since = slow.unwrap_or_else(|| if same { self.held.since } else { self.shared.clock.at() });
        let held = Held { waiting, owed: self.conn.owed(), since, unfinished, heard: self.heard };
        if held != self.held {
            self.held = held;
            self.connection.holds(held);
        }
    }
}

/// Waits for a moment.
async fn at(clock: Clock, due: Option<Millis>) {
    match due {
        Some(due) => tokio::time::sleep_until(clock.instant(due)).await,
        None => std::future::pending().await,
    }
}

/// What it means that a socket cannot be read. Silence and a reset are not something that the client sent.
fn failure(error: &Error) -> Option<Fault> {
    (error.kind() == ErrorKind::FileTooLarge).then_some(Fault::TooLarge)
}
