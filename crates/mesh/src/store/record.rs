//! What a mesh asks its store to keep and to read, and what it gets back: the one vocabulary of both.

use std::sync::Arc;

use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{ClientMessageId, LeaseId, MemberKey, MessageId, RunId, SessionKey, SubId};
use tenure_proto::log::LogName;
use tenure_proto::message::SendState;
use tenure_proto::name::{GroupName, ServiceName, TopicName};
use tenure_proto::subscribe::{AckMode, From};

use crate::access::{AccessWrite, AuditEntry};
use crate::input::LeaseRecord;
use crate::messages::accept::{Accept, Accepted};
use crate::messages::envelope::{Entry, Lane};
use crate::services::service::Facts;

pub use crate::messages::settlers::SettlerChanges;
pub use crate::runs::record::{RunEnding, RunRecord};

/// Why an entry is a dead letter whose bytes do not match their checksum.
pub const DAMAGED: &str = "damaged";

/// A group: one reader's, or one crew's, place in one lane of a log. Unique across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// Whose place it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The owner of the inbox.
    Inbox,
    /// One session; gone with its lease.
    Private(SessionKey),
    /// A crew whose members compete.
    Shared(GroupName),
}

/// A group's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// Its number.
    pub id: GroupId,
    /// The log it reads.
    pub log: LogName,
    /// Which lane of it.
    pub lane: Lane,
    /// Whose it is.
    pub reader: Reader,
    /// The member that made it, of a shared one; not known of those that are older than this field.
    pub owner: Option<MemberKey>,
}

/// An entry that a group has read past and that is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRecord {
    /// The entry.
    pub seq: u64,
    /// How often it was handed out.
    pub attempt: u32,
    /// How often that failed.
    pub tries: u32,
    /// Who has it in hand, or had it last if there is a `ready_at`.
    pub holder: Option<SessionKey>,
    /// It was given back, or is new and delayed: before then nobody gets it, Unix milliseconds.
    pub ready_at: Option<u64>,
    /// Whether it is handed out although its time is over: somebody took it out of the dead letters.
    pub lasting: bool,
}

/// A change of a group: the row is made if it is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWrite {
    /// Which group.
    pub record: GroupRecord,
    /// Every entry up to here is settled, or open.
    pub cursor: u64,
    /// When it was last used, Unix milliseconds.
    pub used_at: u64,
    /// Whether `put` is all that is open; else it is what changed.
    pub replace: bool,
    /// Entries that are open, with what is known of them.
    pub put: Vec<OpenRecord>,
    /// Entries that are not open any more.
    pub del: Vec<u64>,
    /// Who settled entries that several had in hand; all of them, if `replace`.
    pub settlers: SettlerChanges,
}

/// Who settled an entry of a group that was handed out more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlerRecord {
    /// The entry.
    pub seq: u64,
    /// Under which attempt.
    pub attempt: u32,
    /// Who.
    pub session: SessionKey,
    /// Its place in the order in which the group's entries were settled.
    pub nth: u64,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// Its name.
    pub name: TopicName,
    /// How many logs it has.
    pub partitions: u32,
    /// How long settled entries stay, if it differs from the default.
    pub retention_ms: Option<u64>,
    /// When it was made, Unix milliseconds.
    pub created_at: u64,
    /// The member that made it; not known of those that are older than this field.
    pub owner: Option<MemberKey>,
    /// Whether it is there, or going.
    pub state: TopicState,
}

/// Whether a topic is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicState {
    /// It is.
    #[default]
    Living,
    /// It is going, because nobody used it.
    Unused,
    /// It is going, because somebody deleted it.
    Deleted,
}

/// Where a log of a deleted topic ends: if it is made again, its numbers go on from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedLog {
    /// The log, with nothing in it.
    pub record: LogRecord,
    /// Whether somebody deleted it; otherwise nobody used it.
    pub told: bool,
}

/// A subscription of a session to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubRecord {
    /// Whose.
    pub session: SessionKey,
    /// Its name there.
    pub sub: SubId,
    /// The topic.
    pub topic: TopicName,
    /// The crew, if it is shared.
    pub group: Option<GroupName>,
    /// The partition, if it is one.
    pub partition: Option<u32>,
    /// When a delivery counts as settled.
    pub ack_mode: AckMode,
    /// Deliveries that may be unsettled at once.
    pub prefetch: u32,
}

/// An entry that goes to the dead letters of one reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Burial {
    /// The log.
    pub log: LogName,
    /// Its lane.
    pub lane: Lane,
    /// The entry.
    pub seq: u64,
    /// Who could not settle it: a group's name, or nothing for an inbox, a private reader or everybody.
    pub group: Option<GroupName>,
    /// How often it was handed out.
    pub attempts: u32,
    /// Why: `max_attempts`, `expired`, `lease_expired`, `retention`, `damaged`, or what the reader said.
    pub reason: String,
    /// When, Unix milliseconds.
    pub at: u64,
    /// Whether the entry leaves the log as well.
    pub remove: bool,
}

/// The end of a lease, as it is kept: for 30 days, and at most
/// [`LEASE_ENDS_MAX`](tenure_proto::limits::LEASE_ENDS_MAX) of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEnd {
    /// Whose.
    pub session: SessionKey,
    /// Which.
    pub lease: LeaseId,
    /// Who vouched.
    pub member: MemberKey,
    /// What the session was called.
    pub name: String,
    /// Why: `expired`, `bye`, `banned` or `kicked`.
    pub why: String,
    /// When, Unix milliseconds.
    pub at: u64,
}

/// The end of a lease with its place among all of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEndEntry {
    /// Its number: rises, in all meshes of a store together.
    pub seq: u64,
    /// What it says.
    pub end: LeaseEnd,
}

/// A service as the store remembers it; it goes with its session's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Its name: no two of a mesh have the same.
    pub name: ServiceName,
    /// Who holds it.
    pub session: SessionKey,
    /// Since when, Unix milliseconds.
    pub since: u64,
    /// What it is.
    pub facts: Facts,
}

/// A write, in order with all others; one batch of them is one transaction.
#[derive(Clone, Debug)]
pub enum StoreWrite {
    /// A lease began, or its particulars changed; it was attached in this run.
    PutLease(Box<LeaseRecord>),
    /// A lease was attached for the first time in this run.
    TouchLease(SessionKey, LeaseId),
    /// A lease ended; with it its subscriptions, private groups and services. Who, why and when is kept.
    EndLease(Box<LeaseEnd>),
    /// Keep services, each in place of what its name stood for.
    PutServices(Vec<ServiceRecord>),
    /// Forget services of a session.
    DropServices(SessionKey, Vec<ServiceName>),
    /// Decide about a message and keep it. Answered by [`StoreOutcome::Accepted`].
    Accept(Arc<Accept>),
    /// Keep a topic, in place of what it was.
    PutTopic(TopicRecord),
    /// Mark a topic as going, as its record says; if `if_empty`, only when its logs hold neither entries nor dead letters.
    /// Answered by [`StoreOutcome::Ended`].
    EndTopic {
        /// The topic.
        record: Box<TopicRecord>,
        /// Whether it must be empty.
        if_empty: bool,
    },
    /// Delete a slice of what a topic holds that was marked, partition by partition: groups with what is open in them,
    /// entries, dead letters; in the order of their numbers. When the slice is not full the topic itself goes and its logs
    /// are hidden: they keep their numbers for when it is made again. Answered by [`StoreOutcome::Count`].
    ClearTopic {
        /// The topic.
        record: Box<TopicRecord>,
        /// At most so many rows; at least one.
        limit: u32,
    },
    /// Make a group that begins at `from`. Answered by [`StoreOutcome::Opened`].
    OpenGroup {
        /// The group.
        record: GroupRecord,
        /// Where it begins.
        from: From,
        /// Now, Unix milliseconds.
        used_at: u64,
    },
    /// Change a group.
    Group(Box<GroupWrite>),
    /// Forget a group and what is open in it.
    DropGroup(GroupId),
    /// Keep a subscription, in place of what its name stood for.
    PutSub(Box<SubRecord>),
    /// Forget a subscription.
    DropSub(SessionKey, SubId),
    /// Copy an entry to the dead letters. An entry that is not there is nothing to bury; one that leaves the log
    /// is not open in any group any more.
    Bury(Box<Burial>),
    /// Take dead letters out again: the entry is put back at its place in the log if it has left it, and is open
    /// again, with no try counted, in the group whose dead letter it was if that has read past it.
    /// Answered by [`StoreOutcome::Revived`].
    Revive {
        /// The log.
        log: LogName,
        /// Which of its dead letters.
        seqs: Vec<u64>,
        /// Only those of these groups, if said.
        crews: Option<Vec<GroupName>>,
    },
    /// Forget dead letters. Answered by [`StoreOutcome::Count`].
    DropDead {
        /// The log.
        log: LogName,
        /// Which of its dead letters.
        seqs: Vec<u64>,
    },
    /// A slice of what a session left unsettled when its lease ended: `fallback: member` moves to the member's
    /// inbox, `fallback: fail` to the dead letters (reason `lease_expired`), both out of the session's inbox.
    /// Answered by [`StoreOutcome::Evacuated`].
    Evacuate {
        /// Whose inbox.
        session: SessionKey,
        /// Where entries move.
        member: MemberKey,
        /// At most so many entries are looked at, and at most so many moved.
        limit: u32,
        /// Go on after this place.
        after: (Lane, u64),
        /// The last seq that is meant.
        through: u64,
        /// Now, Unix milliseconds.
        at: u64,
    },
    /// Delete a slice of the oldest entries of a lane: those up to `through` that were sent before `before`, and
    /// those that are followed by `keep_bytes` of newer ones. Of the latter what comes after `through` was not
    /// settled by everybody: it goes to the dead letters (reason `retention`). Their ids stay known.
    /// Answered by [`StoreOutcome::Pruned`].
    Prune {
        /// The log.
        log: LogName,
        /// Its lane.
        lane: Lane,
        /// The last seq that everybody has settled.
        through: u64,
        /// Unix milliseconds.
        before: u64,
        /// Bytes of bodies that the lane may hold, if there is a cap.
        keep_bytes: Option<u64>,
        /// Now, Unix milliseconds.
        at: u64,
        /// At most so many.
        limit: u32,
    },
    /// Entries that are settled although their time is over: they are not looked for any more.
    Unexpire {
        /// The log.
        log: LogName,
        /// Its lane.
        lane: Lane,
        /// Which.
        seqs: Vec<u64>,
    },
    /// Somebody has taken a run that nobody had: it answers, for good.
    ClaimRun {
        /// Which.
        run: RunId,
        /// Who.
        callee: SessionKey,
        /// Who vouches for it.
        member: MemberKey,
    },
    /// A run's caller wants it stopped.
    CancelRun(RunId),
    /// A run has ended. One that has ended before stays as it is.
    EndRun(Box<RunEnding>),
    /// Change who may do what, with the row that tells of it.
    Access(Box<AccessWrite>),
    /// Delete a slice of what has outlived its time, in all meshes of the store: remembered ids past theirs, dead
    /// letters and ends of leases older than `dead_before`, ended sessions older than that with nothing in their inbox, runs
    /// that ended before `runs_before`. Answered by [`StoreOutcome::Count`].
    Sweep {
        /// Now, Unix milliseconds.
        now: u64,
        /// Dead letters, ends of leases and ended sessions from before this moment go.
        dead_before: u64,
        /// Runs that ended before this moment go.
        runs_before: u64,
        /// At most so many rows are looked at.
        limit: u32,
    },
}

/// Where a group stands that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its cursor.
    pub cursor: u64,
    /// What it has passed, as in [`GroupState::passed`].
    pub passed: (u64, u64),
}

/// An entry that moved from a session's inbox to its member's.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// Its seq in the session's inbox, in the same lane.
    pub from: u64,
    /// The entry at its new place.
    pub entry: Arc<Entry>,
}

/// What a write that has an answer came to.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreOutcome {
    /// Nothing to say.
    Done,
    /// Of an accept.
    Accepted(Accepted),
    /// Of a group that was to be made: where it stands, or where the log ends when that is before the seq it was
    /// to begin at (and then nothing was made).
    Opened(Result<Placed, u64>),
    /// Of a topic that was to be marked as going: whether it is.
    Ended(bool),
    /// The dead letters that were taken out: lane, seq, group, attempts.
    Revived(Vec<(Lane, u64, Option<GroupName>, u32)>),
    /// A slice of an inbox was cleared.
    Evacuated {
        /// Entries that moved to the member's inbox.
        moved: Vec<Moved>,
        /// What went to the dead letters.
        failed: Vec<Arc<Entry>>,
        /// Where to go on, if there is more.
        next: Option<(Lane, u64)>,
    },
    /// A slice of a lane was pruned.
    Pruned {
        /// Entries up to here are gone; 0 when none went.
        through: u64,
        /// Whether the slice was full.
        more: bool,
    },
    /// How many rows went, and whether there may be more.
    Count {
        /// Rows.
        rows: u64,
        /// Whether the slice was full.
        more: bool,
    },
}

/// Something to read from what is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRead {
    /// Entries of a lane after a seq, in order. Answered by [`StoreFound::Page`].
    Page {
        /// The log.
        log: LogName,
        /// Its lane.
        lane: Lane,
        /// Begin after this seq.
        after: u64,
        /// At most so many entries.
        limit: u32,
        /// At most so many bytes of bodies, but at least one entry.
        bytes: usize,
    },
    /// Certain entries of a lane, in the order of their seqs. Answered by [`StoreFound::Page`].
    Entries {
        /// The log.
        log: LogName,
        /// Its lane.
        lane: Lane,
        /// Which.
        seqs: Vec<u64>,
    },
    /// Entries of all lanes from a seq on, in order. Answered by [`StoreFound::History`].
    History {
        /// The log.
        log: LogName,
        /// Begin at this seq.
        from: u64,
        /// At most so many entries.
        limit: u32,
        /// At most so many bytes of bodies, but at least one entry.
        bytes: usize,
    },
    /// The fates of messages that a member sent. Answered by [`StoreFound::Fates`].
    Fates {
        /// The sender.
        member: MemberKey,
        /// The sender's ids.
        ids: Vec<ClientMessageId>,
    },
    /// Dead letters of a log. Answered by [`StoreFound::Dead`].
    Dead {
        /// The log.
        log: LogName,
        /// After this seq.
        after: u64,
        /// At most so many.
        limit: u32,
        /// At most so many bytes of bodies, but at least one entry.
        bytes: usize,
    },
    /// Entries whose time has run out, but not those of an inbox that its owner has settled. One is found until
    /// it leaves its log. Answered by [`StoreFound::Expired`].
    Expired {
        /// Now, Unix milliseconds.
        now: u64,
        /// At most so many.
        limit: u32,
    },
    /// When the entry after a group's cursor was sent. Answered by [`StoreFound::Oldest`].
    Oldest {
        /// The lanes and the seqs after which to look.
        places: Vec<(LogName, Lane, u64)>,
    },
    /// The ids of the messages at certain places. Answered by [`StoreFound::Ids`].
    Ids {
        /// The logs and seqs, in whatever lane they lie.
        places: Vec<(LogName, u64)>,
    },
    /// A run. Answered by [`StoreFound::Run`].
    Run(RunId),
    /// Ends of leases in the mesh, newest first. Answered by [`StoreFound::LeaseEnds`].
    LeaseEnds {
        /// Before this one, or from the newest on.
        before: Option<u64>,
        /// At most so many.
        limit: u32,
    },
    /// The audit log of the mesh, newest first. Answered by [`StoreFound::Audit`].
    Audit {
        /// Before this row, or from the newest on.
        before: Option<u64>,
        /// At most so many.
        limit: u32,
    },
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadEntry {
    /// The entry; of one whose bytes are damaged what is still known of it, with an empty body.
    pub entry: Arc<Entry>,
    /// Which group could not settle it.
    pub group: Option<GroupName>,
    /// How often it was handed out.
    pub attempts: u32,
    /// Why.
    pub reason: String,
    /// When, Unix milliseconds.
    pub at: u64,
}

/// What became of a message, by its sender's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The broker's id and the fingerprint of what was accepted, if something was.
    pub accepted: Option<(MessageId, Fingerprint)>,
    /// Where it stands.
    pub state: SendState,
    /// Why, when it was not delivered.
    pub reason: Option<String>,
}

impl Fate {
    /// The fate of an id under which nothing was accepted, or nothing is remembered.
    pub const UNKNOWN: Fate = Fate { accepted: None, state: SendState::Unknown, reason: None };
}

/// An entry whose bytes do not match their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedEntry {
    /// The entry.
    pub seq: u64,
    /// Who sent it, if its dedupe record says so too.
    pub origin: Option<Origin>,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreFound {
    /// Entries, and those whose bytes are damaged.
    Page {
        /// What reads.
        entries: Vec<Arc<Entry>>,
        /// What does not.
        damaged: Vec<DamagedEntry>,
    },
    /// Entries, and where to go on if there are more.
    History {
        /// The entries.
        entries: Vec<Arc<Entry>>,
        /// The seqs among them whose bytes are damaged.
        damaged: Vec<u64>,
        /// The next seq.
        next: Option<u64>,
    },
    /// One for each id asked for.
    Fates(Vec<Fate>),
    /// Dead letters, and where to go on if there are more.
    Dead {
        /// The dead letters.
        letters: Vec<DeadEntry>,
        /// After which seq to go on.
        next: Option<u64>,
    },
    /// Entries whose time has run out.
    Expired(Vec<Arc<Entry>>),
    /// For each place when its entry was sent, if there is one.
    Oldest(Vec<Option<u64>>),
    /// For each place the id of the message there; `None` where there is none, or none that reads.
    Ids(Vec<Option<MessageId>>),
    /// The run, if it is remembered.
    Run(Option<Box<RunRecord>>),
    /// Ends of leases, and whether there are older ones.
    LeaseEnds(Vec<LeaseEndEntry>, bool),
    /// Rows of the audit log, and whether there are older ones.
    Audit(Vec<AuditEntry>, bool),
    /// The store cannot read now.
    Unavailable,
}

impl StoreFound {
    /// Roughly the memory that its messages take, for bounds.
    pub fn weight(&self) -> usize {
        let of = |entry: &Arc<Entry>| entry.envelope.weight();
        match self {
            StoreFound::Page { entries, .. }
            | StoreFound::History { entries, .. }
            | StoreFound::Expired(entries) => entries.iter().map(of).sum(),
            StoreFound::Dead { letters, .. } => letters.iter().map(|letter| of(&letter.entry)).sum(),
            _ => 0,
        }
    }
}

impl StoreRead {
    /// Whether it is answered with messages, whose bodies take memory.
    pub fn brings_messages(&self) -> bool {
        match self {
            StoreRead::Page { .. }
            | StoreRead::Entries { .. }
            | StoreRead::History { .. }
            | StoreRead::Dead { .. }
            | StoreRead::Expired { .. } => true,
            StoreRead::Fates { .. }
            | StoreRead::Oldest { .. }
            | StoreRead::Ids { .. }
            | StoreRead::Run(_)
            | StoreRead::LeaseEnds { .. }
            | StoreRead::Audit { .. } => false,
        }
    }
}

/// A lane of a log as the store remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneRecord {
    /// The last seq in this lane; 0 when there never was one.
    pub end: u64,
    /// Entries ever appended to it.
    pub count: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// Every entry up to here may be missing because it was pruned.
    pub pruned: u64,
}

/// A log as the store remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its name.
    pub log: LogName,
    /// Its lanes; a topic uses only the first.
    pub lanes: [LaneRecord; 3],
}

/// A group as the store remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Which.
    pub record: GroupRecord,
    /// Every entry up to here is settled, or open.
    pub cursor: u64,
    /// When it was last used, Unix milliseconds.
    pub used_at: u64,
    /// Entries appended before the first that is there after the cursor, and the bytes of their bodies: what is
    /// left of the lane's counts waits.
    pub passed: (u64, u64),
    /// What is open; of an inbox with who sent it.
    pub open: Vec<(OpenRecord, Option<Origin>)>,
    /// Who settled entries that several had in hand, ordered by seq.
    pub settlers: Vec<SettlerRecord>,
}

/// Who is to be told of an entry's fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The session that sent it.
    pub session: SessionKey,
    /// The broker's id.
    pub id: MessageId,
    /// The sender's id.
    pub client_message_id: Arc<str>,
}

/// All that a mesh's store remembers of messages; its size follows logs, groups and what is open, never the
/// number of messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestoredMessages {
    /// Topics, those that are going as well.
    pub topics: Vec<TopicRecord>,
    /// Logs of deleted topics, ordered by name; of very many only some.
    pub deleted: Vec<DeletedLog>,
    /// Logs.
    pub logs: Vec<LogRecord>,
    /// Groups.
    pub groups: Vec<GroupState>,
    /// Subscriptions.
    pub subs: Vec<SubRecord>,
    /// Sessions whose lease ended before what they left had moved on, and who vouched for them.
    pub left: Vec<(SessionKey, MemberKey)>,
    /// Runs that have not ended.
    pub runs: Vec<RunRecord>,
    /// Services, ordered by name.
    pub services: Vec<ServiceRecord>,
}
