//! What a shell may tell a mesh.

use std::fmt;

use tenure_kit::cidr::Cidr;
use tenure_kit::time::Millis;
use tenure_proto::error::WireError;
use tenure_proto::ids::{ConnId, InstanceId, LeaseId, MemberKey, RequestId, SessionKey};
use tenure_proto::name::{Cap, ServiceName};
use tenure_proto::peer::Profile;

use crate::access::RestoredAccess;
use crate::access::admin::{OperateId, Operation};
pub use crate::call::Call;
use crate::conn::admit::Admission;
use crate::effect::{ReadId, WriteId};
use crate::services::route::{By, RouteId, Want};
use crate::store::record::{RestoredMessages, StoreFound, StoreOutcome};

/// One start of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Its number, which the store counts: it repeats when a backup is restored.
    pub run: u64,
    /// Drawn at random at every start. It is part of every lease id and event epoch, so that none is ever used twice, whatever
    /// the store remembers.
    pub random: u64,
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.run, self.random)
    }
}

/// What a shell may tell a mesh. `at` is when it happened on the shell's clock, which may be a little before
/// the mesh gets to hear of it.
#[derive(Clone, Debug)]
pub enum Input {
    /// A hello was admitted.
    Hello {
        /// Its socket.
        conn: ConnId,
        /// Its request.
        request: RequestId,
        /// What it said.
        admission: Box<Admission>,
    },
    /// Any frame, ping or pong came from a socket that has said hello.
    Alive {
        /// The socket.
        conn: ConnId,
        /// When.
        at: Millis,
    },
    /// A request came.
    Request {
        /// The socket.
        conn: ConnId,
        /// When.
        at: Millis,
        /// Its id.
        request: RequestId,
        /// What it asks.
        call: Call,
    },
    /// A frame came that cannot be answered because it does not say what it is.
    Garbled {
        /// The socket.
        conn: ConnId,
        /// When.
        at: Millis,
        /// What is wrong with it, in a sentence.
        message: String,
    },
    /// All that was handed to a socket has left.
    Flushed {
        /// The socket.
        conn: ConnId,
    },
    /// A socket has taken as much of what waits for it as a reader that is slow, and not stuck.
    Taken {
        /// The socket.
        conn: ConnId,
    },
    /// A socket ended.
    Closed {
        /// The socket.
        conn: ConnId,
        /// When.
        at: Millis,
        /// Whether the client closed it, which proves that it lived.
        by_client: bool,
    },
    /// The store has committed every write up to this one.
    Committed {
        /// The last of them.
        through: WriteId,
        /// What those that have an answer came to, in order.
        outcomes: Vec<(WriteId, StoreOutcome)>,
    },
    /// The store could not commit the writes up to this one; nothing of them took effect. The shell sees to it that
    /// nothing else does that was asked for before this is heard, and fails it too: a group's later change without
    /// its earlier one would make entries in hand look settled.
    Failed {
        /// The last of them.
        through: WriteId,
    },
    /// The store has read what it was asked for.
    Found {
        /// Which read.
        id: ReadId,
        /// What it found.
        found: StoreFound,
    },
    /// The shell has checked the store, or its files.
    StoreChecked {
        /// What is wrong, in a sentence; nothing when nothing is.
        reason: Option<String>,
    },
    /// Somebody wants this broker to stop.
    Drain {
        /// Why, for `shutdown`.
        reason: String,
        /// When it will be back, if it will.
        restart_in_ms: Option<u64>,
        /// How long sockets may take to be flushed.
        deadline_ms: u64,
    },
    /// Whoever stops this broker is in a hurry: what is on its way is not waited for, but everybody is told.
    Hurry,
    /// Somebody wants a stream to a service now. Answered by [`crate::Effect::Routed`], once, and counted until
    /// [`Input::RouteGone`].
    Route {
        /// Which stream.
        route: RouteId,
        /// The service.
        name: ServiceName,
        /// How they want to speak.
        want: Want,
        /// Who they are.
        by: By,
    },
    /// A stream is over, or nobody waits for it any more. Said once of every [`Input::Route`].
    RouteGone {
        /// Which stream.
        route: RouteId,
    },
    /// An operator asks something. Answered by [`crate::Effect::Operated`].
    Operate {
        /// Its number.
        id: OperateId,
        /// What, and who asks.
        operation: Box<Operation>,
    },
}

/// Who is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Banned {
    /// A member, and with it every session that it vouches for.
    Member(MemberKey),
    /// One session.
    Session(SessionKey),
    /// Whoever comes from an address of this network.
    Network(Cidr),
}

impl std::fmt::Display for Banned {
    /// As an address is written: `member:<hex>` or `session:<hex>`; or `address:10.0.0.0/8`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Banned::Member(member) => write!(f, "member:{member}"),
            Banned::Session(session) => write!(f, "session:{session}"),
            Banned::Network(network) => write!(f, "address:{network}"),
        }
    }
}

impl std::str::FromStr for Banned {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Banned, WireError> {
        let bad = || {
            WireError::bad_request(
                "say who is meant as member:HEX, session:HEX, or address:10.0.0.7 (or a network, address:10.0.0.0/8)",
            )
        };
        match text.split_once(':').ok_or_else(bad)? {
            ("member", key) => key.parse().map(Banned::Member).map_err(|_| bad()),
            ("session", key) => key.parse().map(Banned::Session).map_err(|_| bad()),
            ("address", network) => network.parse().map(Banned::Network),
            _ => Err(bad()),
        }
    }
}

/// A lease as the store remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The session.
    pub session: SessionKey,
    /// The lease.
    pub lease: LeaseId,
    /// Who vouches.
    pub member: MemberKey,
    /// The process that carried it.
    pub instance: InstanceId,
    /// What peers saw.
    pub profile: Profile,
    /// What it may do.
    pub caps: Option<Vec<Cap>>,
    /// When it began, wall clock.
    pub joined_at: u64,
}

/// What a store remembers of a mesh at a start.
#[derive(Clone, Debug, Default)]
pub struct StoredMesh {
    /// Its leases.
    pub leases: Vec<Restored>,
    /// What readers have not settled, and runs and services.
    pub messages: RestoredMessages,
    /// Who may come in, and what operators have set.
    pub access: RestoredAccess,
}

/// A lease found in the store at a start, with how much of its time earlier starts have used up since it was
/// last attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The lease.
    pub record: LeaseRecord,
    /// Uptime since it was last attached.
    pub spent_ms: u64,
}
