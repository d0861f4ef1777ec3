//! The network: connections as pairs of pipes that keep their order, take their time, and break in every way that
//! a connection can break.

use std::collections::{BTreeMap, VecDeque};

use tenure_link::SockId;
use tenure_proto::ids::ConnId;

/// Bytes that are under way in one direction before its sender has to wait.
pub(crate) const WINDOW: usize = 16 * 1024;

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WireId(pub(crate) u64);

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// To the broker.
    Up,
    /// To the client.
    Down,
}

/// A WebSocket message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message of ours.
    Data(Vec<u8>),
    /// A ping, numbered so that its pong can be told from others.
    Ping(u64),
    /// The answer to it.
    Pong(u64),
    /// A close, with its code.
    Close(u16),
    /// The connection is gone, and this end learns it.
    Eof,
}

impl Frame {
    pub(crate) fn weight(&self) -> usize {
        match self {
            Frame::Data(bytes) => bytes.len() + 8,
            _ => 8,
        }
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    /// Under way: what, and when it arrives.
    queue: VecDeque<(u64, Frame)>,
    /// Arrived, and not read.
    pub(crate) unread: VecDeque<Frame>,
    bytes: usize,
    last_arrival: u64,
    /// Nothing arrives before this.
    pub(crate) stalled_until: u64,
    /// Nothing arrives any more, and nobody says so.
    pub(crate) black: bool,
    /// Its reader does not read before this.
    pub(crate) lazy_until: u64,
    /// The next message loses its end on the way, and the connection with it.
    pub(crate) cut_next: bool,
}

impl Pipe {
    /// Puts a frame on its way; says when it arrives, if it does.
    pub(crate) fn send(&mut self, now: u64, latency: u64, frame: Frame) -> Option<u64> {
        if self.black {
            // It fills the sender's buffers, and that is all that happens.
            self.bytes += frame.weight();
            return None;
        }
        self.bytes += frame.weight();
        let at = (now + latency).max(self.last_arrival).max(self.stalled_until);
        self.last_arrival = at;
        self.queue.push_back((at, frame));
        Some(at)
    }

    /// Moves what has arrived by `now` to the reader's end.
    pub(crate) fn arrive(&mut self, now: u64) {
        while self.queue.front().is_some_and(|(at, _)| *at <= now && !self.black && self.stalled_until <= now)
        {
            if let Some((_, frame)) = self.queue.pop_front() {
                self.unread.push_back(frame);
            }
        }
    }

    /// When something that is under way arrives next.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        let (at, _) = self.queue.front()?;
        (!self.black).then(|| (*at).max(self.stalled_until))
    }

    pub(crate) fn read(&mut self) -> Option<Frame> {
        let frame = self.unread.pop_front()?;
        self.bytes = self.bytes.saturating_sub(frame.weight());
        Some(frame)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.bytes < WINDOW
    }

    /// Everything under way is lost.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = self.unread.iter().map(Frame::weight).sum();
        self.last_arrival = 0;
    }
}

/// A connection and its two ends.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) process: usize,
    /// Which process of that place: a later one knows nothing of it.
    pub(crate) life: u32,
    pub(crate) sock: SockId,
    pub(crate) conn: ConnId,
    /// Which start of the broker accepted it.
    pub(crate) boot: u64,
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    /// Whether each end believes in it.
    pub(crate) client_open: bool,
    pub(crate) broker_open: bool,
    /// The number of the client's last ping.
    pub(crate) pinged: u64,
}

impl Wire {
    pub(crate) fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

/// A host's way to the broker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// Milliseconds, at least and at most.
    pub(crate) latency: (u64, u64),
    /// More than that, until then.
    pub(crate) spike: (u64, u64),
    /// Hellos are held up so long, until then.
    pub(crate) race: (u64, u64),
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) wires: BTreeMap<WireId, Wire>,
    pub(crate) by_conn: BTreeMap<ConnId, WireId>,
    last: u64,
}

impl Net {
    pub(crate) fn open(&mut self, process: usize, life: u32, sock: SockId, boot: u64) -> (WireId, ConnId) {
        self.last += 1;
        let (id, conn) = (WireId(self.last), ConnId(self.last));
        let wire = Wire {
            process,
            life,
            sock,
            conn,
            boot,
            up: Pipe::default(),
            down: Pipe::default(),
            client_open: true,
            broker_open: true,
            pinged: 0,
        };
        self.wires.insert(id, wire);
        self.by_conn.insert(conn, id);
        (id, conn)
    }

    pub(crate) fn get(&mut self, id: WireId) -> Option<&mut Wire> {
        self.wires.get_mut(&id)
    }

    pub(crate) fn of(&self, conn: ConnId) -> Option<WireId> {
        self.by_conn.get(&conn).copied()
    }

    /// Forgets connections that nobody believes in any more.
    pub(crate) fn sweep(&mut self) {
        self.wires.retain(|_, wire| wire.client_open || wire.broker_open);
        let wires = &self.wires;
        self.by_conn.retain(|_, id| wires.contains_key(id));
    }
}
