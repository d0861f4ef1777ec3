//! What a mesh may ask of its shell. One closed list: whatever is not here cannot happen.

use std::sync::Arc;

use tenure_kit::cidr::Cidr;
use tenure_proto::LogName;
use tenure_proto::close::Closing;
use tenure_proto::error::WireError;
use tenure_proto::event::EventBody;
use tenure_proto::hello::{LeaseFate, Replay, ResumeOutcome, Snapshot, StateVersion};
use tenure_proto::ids::{ConnId, Epoch, GrantId, LeaseId, MemberKey, RequestId, RunId, SessionKey, SubId};
use tenure_proto::name::{MeshName, ServiceName, TopicName};
use tenure_proto::tag::TagParts;
use tenure_proto::wire::*;

use crate::access::admin::{OperateId, Operated};
use crate::config::MeshConfig;
use crate::conn::frames::Render;
use crate::input::Banned;
use crate::messages::envelope::Entry;
use crate::services::route::{RouteId, Target};
use crate::services::service;
use crate::sessions::presence::Delta;
use crate::store::record::{GroupId, StoreRead, StoreWrite};

/// The number of a write; rises by one, commits in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// The number of a read; answers come in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

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
        write: StoreWrite,
    },
    /// Read from the store, from what is committed, and say [`crate::Input::Found`].
    Read {
        /// Its number.
        id: ReadId,
        /// What.
        read: StoreRead,
    },
    /// Whom a stream goes to, or why it goes nowhere: the one answer to [`crate::Input::Route`].
    Routed {
        /// Which stream.
        route: RouteId,
        /// Whom to.
        outcome: Result<Target, WireError>,
    },
    /// Streams end now: those of a session, at either end, or those to one of its services.
    Cut {
        /// Whose.
        session: SessionKey,
        /// Only those to this service, if one is said.
        name: Option<ServiceName>,
        /// Why: `expired`, `bye`, `banned`, `kicked`, `forbidden`, `withdrawn`, `unrenewed` or `changed`.
        reason: &'static str,
    },
    /// Streams end now: those of whoever asks from there and is no session, because that is banned.
    CutFrom {
        /// Where.
        network: Cidr,
    },
    /// Answer an operator.
    Operated {
        /// Which question.
        id: OperateId,
        /// The answer.
        outcome: Result<Operated, WireError>,
    },
    /// Something worth a log line and a counter.
    Note(Note),
    /// Every socket is closed after a drain: the broker may stop.
    Drained,
}

/// Events for one socket: first the numbered direct ones, then deltas of presence and of services shared with other
/// sockets, then deliveries.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Events with their numbers.
    pub direct: Vec<(u64, Arc<EventBody>)>,
    /// A presence delta and the number of its first step.
    pub presence: Option<(u64, Arc<Delta>)>,
    /// A delta of services and the number of its first step.
    pub services: Option<(u64, Arc<service::Delta>)>,
    /// Deliveries and the number of the first; the others follow by ones.
    pub pushes: (u64, Vec<Push>),
}

/// A message in the hands of one reader.
#[derive(Clone, Debug)]
pub struct Push {
    /// The subscription it came through.
    pub sub: SubId,
    /// The group that handed it out.
    pub group: GroupId,
    /// Which hand-out this is.
    pub attempt: u32,
    /// To whom.
    pub session: SessionKey,
    /// Whether somebody may have seen it before.
    pub redelivered: bool,
    /// The message.
    pub entry: Arc<Entry>,
    /// Whether its claim need not, or does not any more, wait for the disk.
    pub cleared: bool,
}

impl Push {
    /// What settles it.
    pub fn tag(&self) -> TagParts {
        let Push { group, attempt, session, entry, .. } = self;
        let mark = entry.envelope.id.into();
        TagParts { group: group.0, seq: entry.seq, attempt: *attempt, session: *session, mark }
    }
}

/// How the result of a row is kept in an [`Answer`].
macro_rules! kept {
    ($result:ident) => { $result };
    ($result:ident boxed) => { Box<$result> };
    ($result:ident rendered) => { <$result as Render>::From };
}

macro_rules! answers {
    (@enum [$($done:tt)*]) => {
        /// An answer.
        #[derive(Clone, Debug)]
        pub enum Answer {
            /// `{}`.
            Empty,
            /// To `hello`.
            Hello(Box<HelloAnswer>),
            /// To `ack`, `nack` and `progress`.
            Settle(SettleResult),
            $($done)*
        }
    };
    (@enum [$($done:tt)*] $variant:ident $name:literal $params:tt ($result:ident none) $right:ident $size:ident; $($rest:tt)*) => {
        answers!(@enum [$($done)*] $($rest)*);
    };
    (@enum [$($done:tt)*] $variant:ident $name:literal $params:tt ($result:ident shared) $right:ident $size:ident; $($rest:tt)*) => {
        answers!(@enum [$($done)*] $($rest)*);
    };
    (@enum [$($done:tt)*] $variant:ident $name:literal $params:tt ($($result:ident)*) $right:ident $size:ident; $($rest:tt)*) => {
        answers!(@enum [$($done)* #[doc = concat!("To `", $name, "`.")] $variant(kept!($($result)*)),] $($rest)*);
    };
    ($($row:tt)*) => {
        answers!(@enum [] $($row)*);
    };
}

tenure_proto::with_methods!(answers);

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
    /// What became of subscriptions and deliveries, when the hello asked.
    pub reconcile: Option<Box<ReconcileResult>>,
    /// Logs whose history is another one than the client has read.
    pub rewound: Vec<LogName>,
    /// The numbers that hold as of this hello: what its client is told.
    pub config: Arc<MeshConfig>,
}

/// What a reconciliation came to: subscriptions by what became of them, and deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// The session.
    pub session: SessionKey,
    /// Its socket.
    pub conn: ConnId,
    /// What the client asked for: `conservative` or `restore_client`.
    pub policy: &'static str,
    /// Subscriptions that go on.
    pub keep: usize,
    /// Subscriptions that the client closes.
    pub close_client_side: usize,
    /// Subscriptions that the server dropped.
    pub close_server_side: usize,
    /// Subscriptions that the client makes again.
    pub recreate_client_side: usize,
    /// Deliveries that are still the client's.
    pub inflight_kept: usize,
    /// Deliveries that are settled.
    pub inflight_settled: usize,
    /// Deliveries that are not the client's any more.
    pub inflight_requeued: usize,
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
        /// Its name and version.
        client: String,
        /// Whether the event stream went on without a gap.
        complete: bool,
    },
    /// A token did not.
    ResumeRejected {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Its name and version.
        client: String,
        /// Why.
        reason: &'static str,
        /// Whether the token was refused for what it is; otherwise it was good, and its lease is not found.
        known: bool,
    },
    /// A living lease was taken up by its key alone, without a token.
    AttachedByKey {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Its name and version.
        client: String,
    },
    /// A client has read another history of some logs than this store has.
    HistoryRewound {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// How many logs.
        logs: usize,
    },
    /// A lease lost its socket.
    GraceEntered {
        /// The session.
        session: SessionKey,
        /// The socket it lost.
        conn: ConnId,
        /// The client's name and version.
        client: String,
        /// Why.
        reason: &'static str,
        /// Subscriptions that wait with it, besides inboxes.
        subscriptions: usize,
        /// Deliveries that it has in hand.
        in_hand: usize,
    },
    /// Nobody came back for a lease.
    GraceExpired {
        /// The session.
        session: SessionKey,
        /// The last socket that carried it in this run.
        conn: Option<ConnId>,
        /// The client's name and version, if it was here in this run.
        client: String,
        /// Subscriptions that end with it, besides inboxes.
        subscriptions: usize,
        /// Deliveries that it had in hand.
        in_hand: usize,
    },
    /// A lease ended and everything that hung off it is gone.
    LeaseEvicted {
        /// The session.
        session: SessionKey,
        /// The last socket that carried it in this run.
        conn: Option<ConnId>,
        /// The client's name and version, if it was here in this run.
        client: String,
        /// Why: `expired`, `bye`, `banned` or `kicked`.
        reason: &'static str,
    },
    /// A newer socket took over.
    SessionReplaced {
        /// The session.
        session: SessionKey,
        /// The socket that lost.
        conn: ConnId,
        /// The name and version of the client that lost.
        client: String,
        /// Whether it was another process.
        other_process: bool,
    },
    /// A hello was turned away by the mesh.
    HelloRefused {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Its name and version.
        client: String,
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
    /// A session is back after a start of the broker, with deliveries that it had in hand before.
    StartupReclaimed {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// How many.
        count: usize,
    },
    /// Deliveries that a session had in hand before a start of the broker go back: it did not come in time.
    StartupReleased {
        /// The session.
        session: SessionKey,
        /// How many.
        count: usize,
    },
    /// Subscriptions and deliveries were reconciled.
    ReconcileDone(Reconciled),
    /// Entries went back to their groups because their reader was away too long or gone.
    Requeued {
        /// The session that had them.
        session: SessionKey,
        /// The last socket that carried it in this run.
        conn: Option<ConnId>,
        /// How many.
        count: usize,
    },
    /// Settles took effect of deliveries that were pushed through an earlier socket, or had gone back to their groups.
    LateSettleAccepted {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// How many.
        count: usize,
    },
    /// Settles came too late, or of nothing that is in hand.
    LateSettleRejected {
        /// The session.
        session: SessionKey,
        /// Its socket.
        conn: ConnId,
        /// Why.
        reason: &'static str,
        /// How many.
        count: usize,
    },
    /// A message had been accepted before.
    AcceptDuplicate {
        /// Who sent it.
        session: SessionKey,
    },
    /// An id was used for two messages.
    AcceptConflict {
        /// Who sent it.
        session: SessionKey,
    },
    /// A run was accepted.
    RunStarted {
        /// Who called.
        session: SessionKey,
        /// Which.
        run: RunId,
    },
    /// A run has ended.
    RunEnded {
        /// Which.
        run: RunId,
        /// How.
        status: &'static str,
        /// The code of its error, if it has one.
        reason: &'static str,
    },
    /// An entry went to the dead letters.
    Buried {
        /// From which log.
        log: LogName,
        /// Its number there.
        seq: u64,
        /// Why.
        reason: String,
    },
    /// An entry does not match its checksum. Said once of each, by the first read that comes to it.
    EntryDamaged {
        /// Its log.
        log: LogName,
        /// Its number there.
        seq: u64,
    },
    /// A start found the wall clock more than a day from when the store last ran: nothing expires and nothing is pruned until
    /// it has gone steadily for an hour, or an operator confirms it.
    ClockDoubted {
        /// How far, in milliseconds, forward or back.
        ms: u64,
    },
    /// A topic is gone with all that it held.
    TopicDeleted {
        /// Which.
        topic: TopicName,
        /// Whether nobody used it; otherwise somebody deleted it.
        unused: bool,
    },
    /// The wall clock jumped: nothing expires and nothing is pruned until it is back, or has gone steadily for an hour.
    ClockJumped {
        /// By how many milliseconds, forward or back.
        ms: u64,
    },
    /// The wall clock has gone steadily from where it jumped to, or an operator has confirmed it: it is believed again.
    ClockBelieved {
        /// How far it went, in milliseconds, forward or back.
        ms: u64,
    },
    /// The broker is about to stop: everybody is told.
    DrainStarted {
        /// Why, in a word.
        reason: String,
        /// How many sessions were told at once.
        sessions: usize,
        /// When a broker is expected to be back, if one is.
        restart_in_ms: Option<u64>,
        /// How long what is on its way may take.
        deadline_ms: u64,
    },
    /// Other numbers hold from here on.
    Configured,
    /// A start could not take up all that operators had set.
    ConfigRefused {
        /// Which, in a sentence.
        reason: String,
    },
    /// A ban holds from here on, or does not any more.
    BanSet {
        /// Whose.
        subject: Banned,
        /// Whether it holds.
        on: bool,
        /// How many leases it ends.
        leases: usize,
    },
    /// An operator did something, or was not let.
    Operated {
        /// What, as the audit log calls it.
        act: &'static str,
        /// To whom or what.
        subject: String,
        /// `ok`, or a code.
        outcome: &'static str,
    },
    /// Somebody became a member by an invite.
    Joined {
        /// Who.
        member: MemberKey,
        /// By which.
        invite: GrantId,
    },
    /// A service ended because its session was here and did not renew it.
    ServiceUnrenewed {
        /// The session.
        session: SessionKey,
        /// The service.
        name: ServiceName,
    },
    /// The broker itself was frozen; every deadline was shifted.
    Frozen {
        /// For how long.
        ms: u64,
    },
}
