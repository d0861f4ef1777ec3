//! What a mesh may ask of its shell. One closed list: whatever is not here cannot happen.

use std::sync::Arc;

use tenure_proto::close::Closing;
use tenure_proto::error::WireError;
use tenure_proto::event::EventBody;
use tenure_proto::hello::{LeaseFate, Replay, ResumeOutcome, Snapshot, StateVersion};
use tenure_proto::ids::{ConnId, Epoch, LeaseId, RequestId, SessionKey};
use tenure_proto::method::{HealthResult, PingResult, PresenceListResult};
use tenure_proto::name::MeshName;

use crate::input::LeaseRecord;
use crate::presence::Delta;

/// The number of a write; rises by one, commits in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What a mesh may ask of its shell.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Answer a request.
    Respond {
        /// The socket.
        conn: ConnId,
        /// The request.
        request: RequestId,
        /// The answer.
        outcome: Result<Answer, WireError>,
    },
    /// Hand events to a socket and say [`crate::Input::Flushed`] when they have left.
    Events {
        /// The socket.
        conn: ConnId,
        /// The events.
        batch: Batch,
    },
    /// Send a WebSocket ping.
    Ping {
        /// The socket.
        conn: ConnId,
    },
    /// Send `closing`, flush, close. The mesh has already forgotten this socket.
    Close {
        /// The socket.
        conn: ConnId,
        /// Why.
        closing: Closing,
    },
    /// Write to the store, in order.
    Write {
        /// Its number.
        id: WriteId,
        /// What.
        write: LeaseWrite,
    },
    /// Something worth a log line and a counter.
    Note(Note),
    /// Every socket is closed after a drain: the broker may stop.
    Drained,
}

/// Events for one socket: first the numbered direct ones, then a presence delta shared with other sockets.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Events with their numbers.
    pub direct: Vec<(u64, Arc<EventBody>)>,
    /// A presence delta and the number of its first step.
    pub presence: Option<(u64, Arc<Delta>)>,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// `{}`.
    Empty,
    /// To `hello`.
    Hello(Box<HelloAnswer>),
    /// To `ping`.
    Ping(PingResult),
    /// To `presence.list`.
    PresenceList(Box<PresenceListResult>),
    /// To `health`.
    Health(Box<HealthResult>),
}

/// What the mesh knows for the result of `hello`; the shell adds what it knows and signs the token.
#[derive(Clone, Debug)]
pub struct HelloAnswer {
    /// The session.
    pub session: SessionKey,
    /// The mesh, for the token.
    pub mesh: MeshName,
    /// The lease, for the token.
    pub lease_id: LeaseId,
    /// Whether it existed before.
    pub lease: LeaseFate,
    /// What became of the token.
    pub outcome: ResumeOutcome,
    /// Why, when it was not accepted.
    pub reason: Option<&'static str>,
    /// The numbering in force.
    pub epoch: Epoch,
    /// The first number on this socket.
    pub next_seq: u64,
    /// Whether the stream goes on where it was.
    pub replay: Replay,
    /// Enough to draw a screen, unless replay is complete.
    pub snapshot: Option<Box<Snapshot>>,
    /// Versions of the maps.
    pub state_version: StateVersion,
}

/// A write to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseWrite {
    /// A lease began, or its particulars changed; it was attached in this run.
    Put(Box<LeaseRecord>),
    /// A lease was attached for the first time in this run.
    Touch(SessionKey, LeaseId),
    /// A lease ended.
    End(SessionKey, LeaseId),
}

/// Something worth a log line: the named events of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A lease began.
    IdentityIssued {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Who is calling.
        client: String,
    },
    /// A token selected its lease.
    ResumeAccepted {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Whether the event stream went on without a gap.
        complete: bool,
    },
    /// A token did not.
    ResumeRejected {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Why.
        reason: &'static str,
    },
    /// A lease lost its socket.
    GraceEntered {
        /// The session.
        session: SessionKey,
        /// The socket it lost.
        conn: ConnId,
        /// Why.
        reason: &'static str,
    },
    /// Nobody came back for a lease.
    GraceExpired {
        /// The session.
        session: SessionKey,
    },
    /// A lease ended and everything that hung off it is gone.
    LeaseEvicted {
        /// The session.
        session: SessionKey,
        /// Why: `expired` or `bye`.
        reason: &'static str,
    },
    /// A newer socket took over.
    SessionReplaced {
        /// The session.
        session: SessionKey,
        /// The socket that lost.
        conn: ConnId,
        /// Whether it was another process.
        other_process: bool,
    },
    /// A hello was turned away by the mesh.
    HelloRefused {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// With which code.
        code: &'static str,
    },
    /// Leases were found at a start and wait for their sessions.
    StartupGraceStarted {
        /// How many.
        leases: usize,
    },
    /// All of them are back or gone.
    StartupGraceEnded {
        /// How many came back.
        resumed: usize,
        /// How many did not.
        expired: usize,
    },
    /// The broker itself was frozen; every deadline was shifted.
    Frozen {
        /// For how long.
        ms: u64,
    },
}
