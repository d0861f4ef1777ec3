//! One connection of a broker, from its upgrade to its end, without the socket.
//!
//! What this is for: everything about a connection that is a rule. [`Conn`] sends the challenge, checks the hello
//! and hands it to the mesh, turns frames into what the mesh is told, encodes what the mesh asks for as the socket
//! has room, and knows what each end of a socket means.
//!
//! How to drive one: tell it what came ([`Conn::received`]), what the mesh asks ([`Conn::obey`]), that all of what
//! waited has left ([`Conn::flushed`]) or some of it ([`Conn::taken`]) and, at [`Conn::next_deadline`], that time has passed ([`Conn::tick`]). Each gives
//! at most one [`ConnEffect`] to carry out before the next; what leaves the socket goes to the [`Outlet`] at once.
//! Read from the socket only while [`Conn::may_read`], and let what has come be heard before time is.
//!
//! What it promises: a socket takes one batch of events at a time and is held to its bounds; a frame that follows a
//! hello takes effect after it; every close that we decide is told before it happens and takes at most
//! [`CLOSE_FLUSH_MS`]; the mesh hears once that a socket which it was given is gone.
//!
//! What it never does: wait, or know what carries the bytes.
//!
//! Where to read next: `greet` for the time before the hello, `due` for what a client may have us hold, `pace` for how
//! slowly it may read.

pub mod admit;
pub mod buffers;
mod due;
pub mod feature;
pub mod frames;
mod greet;
pub mod identity;
mod pace;
mod patience;
mod shell;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use tenure_kit::time::{Millis, Now};
use tenure_proto::close::{Closing, Reason};
use tenure_proto::codec::Codec;
use tenure_proto::event::EventBody;
use tenure_proto::ids::{ConnId, RequestId};
use tenure_proto::limits::{CLOSE_FLUSH_MS, FRAME_BEFORE_HELLO_BYTES, MESSAGE_MS};

use crate::conn::frames::{Incoming, Whence};
use crate::conn::identity::House;
use crate::effect::Push;
use crate::input::Input;
use due::Due;
use greet::Stranger;
use pace::Pace;
use patience::Patience;

pub use shell::{ConnEffect, ConnNote, Out, Outlet, Received};

/// Bytes of a delivery around its message, about.
const DELIVERY_BYTES: usize = 250;

/// A connection.
#[derive(Debug)]
pub struct Conn {
    id: ConnId,
    codec: Codec,
    phase: Phase,
    due: Due,
    /// Frames that wait to be written.
    frames: u32,
    /// Whether a batch of events is on its way, and the mesh wants to know when it has left.
    batch: bool,
    /// How it reads.
    pace: Pace,
    /// Where it came in, since its hello was admitted.
    whence: Option<Box<Whence>>,
    /// Runs while a message has begun and is not whole; boxed, because few sockets are in the middle of one.
    partial: Option<Box<Patience>>,
    /// The frame that came behind a hello before that was answered; nothing more is read meanwhile.
    held: Option<Box<Held>>,
    /// What is asked of the socket and has no room yet: at most one batch, and an answer per request.
    backlog: VecDeque<Out>,
}

/// Where a connection is. What is large is boxed: ten thousand idle ones are in session.
#[derive(Debug)]
enum Phase {
    /// It has not said hello.
    Stranger(Box<Stranger>),
    /// Its hello, this request, is not answered: what comes behind it takes effect after it.
    Knocking(Box<RequestId>),
    /// Its hello is answered.
    Session,
    /// It ends: what waits is written, and no more is said.
    Leaving(Leaving),
    /// It has ended.
    Over,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// When it ends whatever still waits.
    deadline: Millis,
    /// Whether we closed: then what still comes is read, so that closing with unread data does not reset what we
    /// have just written, until the client closes too.
    lingers: bool,
    flushed: bool,
    /// What the mesh hears of it, if it was given the socket.
    gone: Option<Gone>,
}

/// What a mesh hears of a socket's end.
#[derive(Clone, Copy, Debug)]
struct Gone {
    by_client: bool,
    /// When, if that was before the last of it was written.
    at: Option<Millis>,
}

#[derive(Debug)]
struct Held {
    binary: bool,
    bytes: Box<[u8]>,
}

impl Conn {
    /// Its number.
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// What happened on the socket.
    pub fn received(
        &mut self,
        now: Now,
        what: Received<'_>,
        house: &House,
        out: &mut impl Outlet,
    ) -> Option<ConnEffect> {
        match self.phase {
            Phase::Stranger(_) => self.greeted(now, what, house, out),
            Phase::Knocking(_) | Phase::Session => self.heard(now, what, house, out),
            Phase::Leaving(_) => match what {
                Received::Data { .. } | Received::Ping | Received::Pong => None,
                // Nothing more can be said, or need be.
                _ => Some(self.end(now.at)),
            },
            Phase::Over => None,
        }
    }

    /// What the mesh asks of the socket, in order, as much as there is.
    pub fn obey(
        &mut self,
        now: Now,
        outs: impl IntoIterator<Item = Out>,
        house: &House,
        out: &mut impl Outlet,
    ) -> Option<ConnEffect> {
        if !matches!(self.phase, Phase::Knocking(_) | Phase::Session) {
            return None;
        }
        let mut came = 0;
        for asked in outs {
            came += 1;
            if matches!(asked, Out::LetGo) {
                return self.let_go(now, out);
            }
            if let Out::Close(closing) = asked {
                if closing.reason == Reason::SlowConsumer.as_str() {
                    // Why it is closed comes before what it would not read; that is replayed, or asked for again.
                    out.skip();
                } else {
                    // What the socket can still take goes before the close; what it cannot is lost with it.
                    self.pump(now, house, out);
                }
                let gone = Gone { by_client: false, at: None };
                return Some(self.close(now, &closing, Some(gone), out));
            }
            self.backlog.push_back(asked);
        }
        self.pump(now, house, out);
        // What the client does not take is not ours to hurry.
        let left = self.backlog.len();
        for asked in self.backlog.iter().skip(left - left.min(came)) {
            if let Out::Respond(request, _) = asked {
                self.due.answered(request);
            }
        }
        self.release(now, house, out)
    }

    /// Everything that was handed to the outlet has left.
    pub fn flushed(&mut self, now: Now, house: &House, out: &mut impl Outlet) -> Option<ConnEffect> {
        self.frames = 0;
        self.pace.rest();
        match &mut self.phase {
            Phase::Leaving(leaving) if leaving.lingers => {
                leaving.flushed = true;
                return None;
            }
            Phase::Leaving(_) => return Some(self.end(now.at)),
            Phase::Over => return None,
            Phase::Stranger(_) | Phase::Knocking(_) | Phase::Session => {}
        }
        let batch = std::mem::take(&mut self.batch);
        self.pump(now, house, out);
        if batch {
            return Some(ConnEffect::Tell(Input::Flushed { conn: self.id }));
        }
        self.release(now, house, out)
    }

    /// The socket has taken so many bytes, and more wait.
    pub fn taken(&mut self, now: Now, bytes: usize, house: &House) -> Option<ConnEffect> {
        if !matches!(self.phase, Phase::Knocking(_) | Phase::Session) {
            return None;
        }
        let reads = self.pace.took(now.at, bytes, house.config.slow_consumer_ms);
        reads.then_some(ConnEffect::Tell(Input::Taken { conn: self.id }))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now, out: &mut impl Outlet) -> Option<ConnEffect> {
        match &mut self.phase {
            Phase::Stranger(stranger) => {
                let late = stranger.is_late(now.at);
                late.then(|| self.close(now, &Closing::new(Reason::HelloTimeout), None, out))
            }
            Phase::Leaving(leaving) if now.at >= leaving.deadline => Some(self.end(now.at)),
            Phase::Knocking(_) | Phase::Session
                if self.partial.as_mut().is_some_and(|partial| partial.is_over(now.at)) =>
            {
                // It sends, so it lives; but what it sends would never be a message.
                let gone = Gone { by_client: true, at: Some(now.at) };
                Some(self.close(now, &Closing::new(Reason::Stale), Some(gone), out))
            }
            _ => None,
        }
    }

    /// When [`Conn::tick`] is due; while a session is carried only if a message has begun, as all else is the mesh's.
    pub fn next_deadline(&self) -> Option<Millis> {
        match &self.phase {
            Phase::Stranger(stranger) => Some(stranger.next_deadline()),
            Phase::Leaving(leaving) => Some(leaving.deadline),
            Phase::Knocking(_) | Phase::Session => {
                self.partial.as_ref().map(|partial| partial.next_deadline())
            }
            Phase::Over => None,
        }
    }

    /// A part of a message is here, and the rest is waited for: it has [`MESSAGE_MS`] from its first part on.
    pub fn began(&mut self, now: Now, house: &House) {
        let patience = || Box::new(Patience::new(now.at, MESSAGE_MS, house.config.lease_ttl_ms));
        self.partial.get_or_insert_with(patience);
    }

    /// What had begun is whole; or the socket is not read for now, and then it is not the client that is late.
    pub fn unbegun(&mut self) {
        self.partial = None;
    }

    /// Since when the rest of a message is waited for, if one has begun.
    pub fn begun(&self) -> Option<Millis> {
        self.partial.as_ref().map(|partial| partial.since())
    }

    /// Bytes that its requests hold until the mesh answers them.
    pub fn owed(&self) -> usize {
        self.due.owed() + self.held.as_ref().map_or(0, |held| held.bytes.len())
    }

    /// Bytes of events and answers that have no room in the socket yet. They may be shared with other sockets.
    pub fn unsent(&self) -> usize {
        let bytes = |push: &Push| push.entry.envelope.weight();
        let of = |out: &Out| match out {
            Out::Events(batch) => batch.pushes.1.iter().map(bytes).sum(),
            _ => 0,
        };
        self.due.answered_bytes() + self.backlog.iter().map(of).sum::<usize>()
    }

    /// Whether another request may be read while so many bytes wait to be written: not while too many wait for their
    /// answer, hold too much meanwhile, or too much waits for the socket. What is not read waits in the client's own
    /// buffers.
    pub fn may_read(&self, house: &House, waiting: usize) -> bool {
        match &self.phase {
            Phase::Leaving(leaving) => leaving.flushed,
            Phase::Over => false,
            Phase::Stranger(_) | Phase::Knocking(_) | Phase::Session => {
                self.due.has_room(house.config.max_buffered_bytes)
                    && self.has_room(house, waiting)
                    && self.held.is_none()
            }
        }
    }

    /// Whether the socket has room for more; a stranger's has little.
    fn has_room(&self, house: &House, waiting: usize) -> bool {
        let bound = match self.phase {
            Phase::Stranger(_) => FRAME_BEFORE_HELLO_BYTES,
            _ => house.config.max_buffered_bytes,
        };
        waiting < bound && self.frames < house.config.max_buffered_messages
    }

    /// What came on a socket that has said hello.
    fn heard(
        &mut self,
        now: Now,
        what: Received<'_>,
        house: &House,
        out: &mut impl Outlet,
    ) -> Option<ConnEffect> {
        let (conn, at) = (self.id, now.at);
        // Whoever breaks a rule lived to break it.
        let by_client = Gone { by_client: true, at: Some(at) };
        match what {
            Received::Data { binary, bytes } if matches!(self.phase, Phase::Knocking(_)) => {
                self.held = Some(Box::new(Held { binary, bytes: bytes.into() }));
                None
            }
            Received::Data { binary, bytes } => Some(self.read(now, binary, bytes, house, out)),
            Received::Ping | Received::Pong => Some(ConnEffect::Tell(Input::Alive { conn, at })),
            Received::Close => Some(self.finish(now, Some(by_client))),
            Received::TooLarge => {
                Some(self.close(now, &Closing::new(Reason::TooLarge), Some(by_client), out))
            }
            Received::BadWebSocket => {
                Some(self.close(now, &Closing::new(Reason::BadFrame), Some(by_client), out))
            }
            Received::Gone => {
                self.phase = Phase::Over;
                Some(ConnEffect::End(Some(Input::Closed { conn, at, by_client: false })))
            }
        }
    }

    /// Reads a frame of a session.
    fn read(
        &mut self,
        now: Now,
        binary: bool,
        bytes: &[u8],
        house: &House,
        out: &mut impl Outlet,
    ) -> ConnEffect {
        out.noted(ConnNote::Read);
        let (conn, at) = (self.id, now.at);
        ConnEffect::Tell(match frames::read(self.codec, binary, bytes, now.wall, house, out) {
            Incoming::Call(request, call) => {
                self.due.add(&request, call.weight(house.config.max_payload));
                Input::Request { conn, at, request, call }
            }
            Incoming::Refused(request, error) => {
                out.noted(ConnNote::Refused(&error));
                let refusal = frames::response(self.codec, conn, request, Err(error), now.wall, house, None);
                self.send(&refusal, out);
                Input::Alive { conn, at }
            }
            Incoming::Garbled(message) => Input::Garbled { conn, at, message },
        })
    }

    /// Reads the frame that came behind the hello, now that this is answered.
    fn release(&mut self, now: Now, house: &House, out: &mut impl Outlet) -> Option<ConnEffect> {
        if matches!(self.phase, Phase::Knocking(_)) {
            return None;
        }
        let Held { binary, bytes } = *self.held.take()?;
        Some(self.read(now, binary, &bytes, house, out))
    }

    /// Encodes what is asked of the socket for as long as it has room. What waits in the backlog shares its contents
    /// with the mesh and weighs little; what is encoded is held to `max_buffered_bytes` and `max_buffered_messages`,
    /// and one answer or batch. While all sockets together hold too much, each is given one at a time.
    fn pump(&mut self, now: Now, house: &House, out: &mut impl Outlet) {
        while self.has_room(house, out.waiting()) && (out.waiting() == 0 || !out.is_crowded()) {
            match self.backlog.pop_front() {
                Some(asked) => self.emit(now, asked, house, out),
                // An idle socket holds no queue.
                None => return self.backlog = VecDeque::new(),
            }
        }
    }

    fn emit(&mut self, now: Now, asked: Out, house: &House, out: &mut impl Outlet) {
        match asked {
            Out::Respond(request, outcome) => {
                if let Phase::Knocking(_) = self.phase {
                    self.phase = Phase::Session;
                }
                self.due.remove(&request);
                out.noted(ConnNote::Answered(&outcome));
                let whence = self.whence.as_deref();
                let answer =
                    frames::response(self.codec, self.id, request, *outcome, now.wall, house, whence);
                self.send(&answer, out);
            }
            Out::Events(batch) => {
                self.batch = true;
                frames::events(self.codec, &batch, |event| self.send(event, out));
                self.deliver(&batch.pushes, out);
            }
            Out::Ping => {
                self.frames += 1;
                out.ping();
            }
            // Closes are carried out when they come, never from the backlog.
            Out::Close(_) | Out::LetGo => {}
        }
    }

    /// Encodes deliveries straight into what waits for the socket.
    fn deliver(&mut self, (first, pushes): &(u64, Vec<Push>), out: &mut impl Outlet) {
        if pushes.is_empty() {
            return;
        }
        out.noted(ConnNote::Delivering(pushes));
        let codec = self.codec;
        let size = |push: &Push| push.entry.encoded(codec).len() + DELIVERY_BYTES;
        out.reserve(pushes.iter().map(size).sum());
        for (seq, push) in (*first..).zip(pushes) {
            self.frames += 1;
            out.frame(codec.is_binary(), size(push), |bytes| frames::delivery(codec, bytes, seq, push));
        }
    }

    fn send(&mut self, frame: &[u8], out: &mut impl Outlet) {
        self.frames += 1;
        out.frame(self.codec.is_binary(), frame.len(), |bytes| bytes.extend_from_slice(frame));
    }

    /// Says why, and begins to end.
    fn close(
        &mut self,
        now: Now,
        closing: &Closing,
        gone: Option<Gone>,
        out: &mut impl Outlet,
    ) -> ConnEffect {
        self.send(&frames::unnumbered(self.codec, &EventBody::Closing(closing.clone())), out);
        self.leave(now, true, gone);
        ConnEffect::Close { code: closing.code, reason: closing.reason.clone() }
    }

    /// The client has closed: begins to end.
    fn finish(&mut self, now: Now, gone: Option<Gone>) -> ConnEffect {
        self.leave(now, false, gone);
        ConnEffect::Finish
    }

    fn leave(&mut self, now: Now, lingers: bool, gone: Option<Gone>) {
        let deadline = now.at.plus(CLOSE_FLUSH_MS);
        self.phase = Phase::Leaving(Leaving { deadline, lingers, flushed: false, gone });
        // What has no room in the socket by now never leaves, and is not held until the client has closed too.
        (self.backlog, self.due, self.held) = (VecDeque::new(), Due::default(), None);
    }

    fn end(&mut self, at: Millis) -> ConnEffect {
        let gone = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Leaving(Leaving { gone, .. }) => gone,
            _ => None,
        };
        let closed = |gone: Gone| Input::Closed {
            conn: self.id,
            at: gone.at.unwrap_or(at),
            by_client: gone.by_client,
        };
        ConnEffect::End(gone.map(closed))
    }
}
