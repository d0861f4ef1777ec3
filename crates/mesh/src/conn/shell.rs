//! Between a connection and its shell: what each may say to the other.

use tenure_kit::time::Millis;
use tenure_proto::close::Closing;
use tenure_proto::error::WireError;
use tenure_proto::ids::{ConnId, RequestId};

use crate::conn::admit::{Refusal, Wait};
use crate::conn::frames::Supply;
use crate::effect::{Answer, Batch, Push};
use crate::input::Input;

/// What happened on a socket.
#[derive(Clone, Copy, Debug)]
pub enum Received<'a> {
    /// A message came.
    Data {
        /// Whether it is a binary message rather than a text.
        binary: bool,
        /// What it says.
        bytes: &'a [u8],
    },
    /// A ping came; the socket answers it by itself.
    Ping,
    /// A pong came.
    Pong,
    /// The client closes.
    Close,
    /// A message was too large to be read.
    TooLarge,
    /// What came is no WebSocket.
    BadWebSocket,
    /// The socket broke, or ended without a close.
    Gone,
}

/// What the mesh asks of a socket.
#[derive(Debug)]
pub enum Out {
    /// Answer a request.
    Respond(RequestId, Box<Result<Answer, WireError>>),
    /// Send events, and say when they have left.
    Events(Box<Batch>),
    /// Send a ping.
    Ping,
    /// Say why, flush, close.
    Close(Box<Closing>),
    /// Close as [`crate::conn::Conn::let_go`] does.
    LetGo,
}

/// What a connection asks of its shell, besides taking what leaves.
#[derive(Debug)]
pub enum ConnEffect {
    /// Hand the admitted hello to its mesh, which answers through [`crate::conn::Conn::obey`]; if it takes none any more,
    /// [`crate::conn::Conn::stop`]. From here on the client is no stranger.
    Enter(Input),
    /// Tell the mesh.
    Tell(Input),
    /// Send a close frame behind what waits, and go on; the mesh is not listened to any more.
    Close {
        /// The WebSocket close code.
        code: u16,
        /// The reason beside it.
        reason: String,
    },
    /// Answer the client's close behind what waits, and go on; the mesh is not listened to any more.
    Finish,
    /// Let the socket go, and tell the mesh this, if anything. Nothing follows.
    End(Option<Input>),
}

/// Something to count or to log, with no bearing on what happens.
#[derive(Clone, Copy, Debug)]
pub enum ConnNote<'a> {
    /// A frame is read.
    Read,
    /// A hello is turned away before any mesh hears of it; with the client's name and version, if it has said them.
    HelloRefused(ConnId, &'a str, &'a Refusal),
    /// A request is refused before the mesh hears of it.
    Refused(&'a WireError),
    /// A request is answered by the mesh.
    Answered(&'a Result<Answer, WireError>),
    /// Deliveries leave.
    Delivering(&'a [Push]),
}

/// Where a connection puts what leaves its socket, in order. It takes whatever it is given: the connection looks at
/// what waits before it gives more.
pub trait Outlet: Supply {
    /// Lets a message leave that `write` appends to the bytes it is given, of about `guess` bytes.
    fn frame(&mut self, binary: bool, guess: usize, write: impl FnOnce(&mut Vec<u8>));

    /// Lets a ping leave.
    fn ping(&mut self);

    /// Bytes that have not left yet.
    fn waiting(&self) -> usize;

    /// Whether all sockets together hold so much that nothing more is encoded for one in which something waits.
    fn is_crowded(&self) -> bool {
        false
    }

    /// What waits and has not begun to leave need not leave. A shell that cannot take it back keeps it.
    fn skip(&mut self) {}

    /// So many bytes come at once.
    fn reserve(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Counts a hello from where the client is; else says why only a session that was here before may come in. A shell
    /// whose clients are nowhere counts none.
    fn greets(&mut self, now: Millis) -> Result<(), Wait> {
        let _ = now;
        Ok(())
    }

    /// That hello was by somebody who was here before: it does not count.
    fn was_here(&mut self) {}

    /// Whether what this client does is counted at all.
    fn is_counted(&self) -> bool {
        false
    }

    /// Where the client is, if that is known.
    fn from(&self) -> Option<core::net::IpAddr> {
        None
    }

    /// Something to count or to log.
    fn noted(&mut self, note: ConnNote<'_>) {
        let _ = note;
    }
}
