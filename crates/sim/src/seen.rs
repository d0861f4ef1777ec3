//! What an outside observer sees of a world: facts, in the order of their time, in words that the oracle judges.
//!
//! Nothing here is of the rules: applications say what they asked for and what they got, the world says what
//! it did to them, and the broker's own claims are marked as such.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A session: one key, for the whole run. Several processes may carry it one after the other, and a thief or a
/// twin at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u8);

/// One process that carries a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The session.
    pub slot: Slot,
    /// Which process of it, in the order of their births; twins count too.
    pub number: u32,
}

/// Who vouches for sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member(pub u8);

/// A message as its sender knows it: what makes a retry a retry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Who sent it.
    pub member: Member,
    /// Under which id.
    pub id: String,
}

/// To whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// A session's inbox.
    Session(Slot),
    /// A member's inbox, for whose entries its sessions compete.
    Member(Member),
    /// A topic.
    Topic(String),
}

/// Which lane of an inbox; topics have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Always open.
    Now,
    /// Open unless its reader is working, or does not want to be disturbed.
    Next,
    /// Open while its reader is idle.
    Low,
}

/// What becomes of a message whose receiver's lease is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fallback {
    /// It waits for the key.
    Hold,
    /// It goes to the member's inbox.
    Member,
    /// It goes to the dead letters, and a later send is refused.
    Fail,
}

/// Somebody who may be on the roll of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Person {
    /// A member of the cast.
    Cast(Member),
    /// A guest, by number.
    Guest(u8),
}

/// Something that an operator decides, and that holds until it is decided anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matter {
    /// Whether not everybody may join.
    Founded,
    /// Whether somebody is a member, and what they may do.
    Member(Person),
    /// Whether a session is banned.
    Ban(Slot),
    /// Whether the invite of this number is revoked.
    Revoked(u8),
    /// The settings.
    Settings,
    /// The end of a session's lease, which is over as soon as it is done.
    Kick(Slot),
}

/// A message as its sender meant it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// To whom.
    pub to: To,
    /// What it says; different for every message.
    pub body: String,
    /// Its lane.
    pub lane: Lane,
    /// What becomes of it when nobody is there.
    pub fallback: Fallback,
    /// After how many milliseconds it is worth nothing.
    pub ttl_ms: Option<u64>,
    /// Before how many milliseconds nobody gets it.
    pub delay_ms: Option<u64>,
}

/// Where a reader reads. Two lives with the same place and `group` compete; without a group the place is the
/// life's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The session's inbox.
    Inbox,
    /// Its member's inbox.
    MemberInbox,
    /// A topic, all its partitions or one.
    Topic {
        /// Which.
        topic: String,
        /// The crew, if it reads with others.
        group: Option<String>,
        /// The partition, if it reads only one.
        partition: Option<u32>,
        /// Whether entries are settled by being sent.
        auto: bool,
        /// How many it may have in hand.
        prefetch: u32,
    },
}

/// A place in a log, and what lies there: a store that was rewound gives the same places to other messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// The log, as the wire spells it: `inbox/s/<hex>`, `inbox/m/<hex>`, `topic/<name>/<partition>`.
    pub log: String,
    /// Its number there. Lanes of an inbox number on their own.
    pub seq: u64,
    /// The broker's id of the message.
    pub id: String,
}

/// A message as it was handed to an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Through which place.
    pub place: Place,
    /// Where it lies.
    pub spot: Spot,
    /// Its lane.
    pub lane: Lane,
    /// Who sent it, under which id.
    pub key: Key,
    /// The session that sent it.
    pub from: Slot,
    /// What it says.
    pub body: String,
    /// Which attempt the broker calls this.
    pub attempt: u32,
    /// Whether the broker says that somebody may have seen it before.
    pub redelivered: bool,
}

/// What an application does with a message in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It is done.
    Ack,
    /// It is to be tried again, after so many milliseconds.
    Retry(u64),
    /// It is hopeless.
    Dead,
    /// It takes longer.
    Progress,
}

/// What became of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It took effect.
    Yes,
    /// It is not this application's any more.
    Stale(String),
    /// It was refused, with this code.
    Refused(String),
    /// The session ended before there was an answer.
    Over,
}

/// What a reader's status lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Everything.
    Idle,
    /// Only `now`.
    Working,
    /// Only `now`.
    Dnd,
}

/// The numbers that promises are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// From the last proof of life to the end of a lease.
    pub lease_ttl_ms: u64,
    /// Between pings.
    pub ping_interval_ms: u64,
    /// How long a member of a crew may take to settle.
    pub ack_timeout_ms: u64,
    /// How long a crew's entries stay with a session that lost its socket.
    pub reconnect_grace_ms: u64,
    /// Freezes of the broker up to this long are not noticed.
    pub freeze_tolerance_ms: u64,
    /// How often an entry is tried before it is dead.
    pub max_attempts: u32,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Where it lay.
    pub spot: Spot,
    /// For which crew it died, if for one.
    pub group: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it is dead.
    pub reason: String,
}

/// What a sender is told about a message long after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It waits.
    Accepted,
    /// Its receiver settled it.
    Delivered,
    /// It is a dead letter.
    Dead,
    /// It outlived its time.
    Expired,
    /// Nobody knows it.
    Unknown,
}

/// How a run ended, or stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFate {
    /// Well, with this result.
    Ok(String),
    /// Not well, by this code.
    Error(String),
    /// It was stopped.
    Cancelled,
    /// It never began, or is not known: by this code.
    Refused(String),
    /// It has not ended: `queued` or `running`.
    Living(String),
}

/// A fact. Times are the world's, in milliseconds since its beginning.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The world begins, or an operator changed the numbers.
    Numbers(Numbers),
    /// In this world logs forget what everybody has settled.
    Forgets {
        /// When it is so old.
        after_ms: u64,
        /// Whether, past a size, they also forget what somebody has yet to read.
        unread: bool,
    },
    /// A session exists in this world, and who vouches for it.
    Cast {
        /// The session.
        slot: Slot,
        /// As the wire spells it: what `inbox/s/` and presence name.
        session: String,
        /// Who vouches.
        member: Member,
        /// As the wire spells it.
        member_key: String,
    },

    // What processes do.
    /// A process begins, with no memory but the sends that its application had not been answered, which it sends
    /// again under the same ids.
    Born(Life),
    /// A process is gone without a word.
    Killed(Life),
    /// A process says goodbye.
    Bye(Life),
    /// The SDK says that a socket carries the session; whether the broker kept the lease, whether the event stream
    /// is complete, and everybody in the snapshot, if there was one (and whether it was all of them).
    Attached {
        /// The process.
        life: Life,
        /// Whether the lease was there before.
        kept: bool,
        /// Whether events go on where they were.
        complete: bool,
        /// Everybody in the snapshot, by the wire's spelling of their session keys.
        snapshot: Option<(BTreeSet<String>, bool)>,
        /// The event numbering in force, and the first number on this socket.
        epoch: (String, u64),
    },
    /// The SDK says that the socket is lost.
    Detached(Life),
    /// The SDK says that the session is over, and why, in a word: `bye`, `replaced`, `stopped:<reason>`.
    Ended(Life, String),

    // Messages, as applications see them.
    /// An application sends; again under the same key if `again`.
    Sends {
        /// The process.
        life: Life,
        /// Its key.
        key: Key,
        /// What and to whom.
        letter: Letter,
        /// Whether the same was asked for before (a retry after a crash, or for its own sake).
        again: bool,
        /// Whether this is another letter under a key that was used: it must be refused.
        contradicts: bool,
    },
    /// The SDK answers a send: accepted (where, whether it was known before), or refused with a code.
    Answered {
        /// The process.
        life: Life,
        /// Its key.
        key: Key,
        /// Whether it answers a letter that contradicts another.
        contradicts: bool,
        /// The answer.
        outcome: Result<(Spot, bool), String>,
    },
    /// A receipt reached the sender: what it says.
    Receipt {
        /// The process.
        life: Life,
        /// Its key.
        key: Key,
        /// What it says, or with which code it was given up.
        outcome: Result<Fate, String>,
    },
    /// An application asks what became of a message, right behind it.
    Inquires(Life, Key),
    /// What it is told.
    Inquired(Life, Key, Fate),
    /// An application wants to read.
    Subscribes(Life, Place, /* from the log's beginning */ bool),
    /// The broker has the subscription: where it begins, by partition (the first seq that it will get).
    Opened(Life, Place, BTreeMap<u32, u64>),
    /// An application does not want to read any more.
    Unsubscribes(Life, Place),
    /// The SDK says that a subscription is over, and why.
    SubEnded(Life, Place, String),
    /// The SDK says that entries are missing.
    Gap(Life, Place, /* partition */ Option<u32>, /* from, to */ (u64, u64)),
    /// A message is in the hands of an application (and done, if its place is `auto`).
    Handed(Life, Handed),
    /// An application decides.
    Settles(Life, Place, Spot, Lane, Verb),
    /// The SDK says what became of that.
    Settled(Life, Place, Spot, Lane, Verb, Settled),
    /// An application says what it is up to; answered by the broker in the second case.
    Status(Life, Status),
    /// The broker has said yes to it.
    StatusTaken(Life, Status),

    // Presence, as applications see it.
    /// A presence event: `joined`, `left` or `updated`, of whom, and its base and version.
    Presence {
        /// The process that hears it.
        life: Life,
        /// The event's number.
        seq: u64,
        /// `joined`, `left` or `updated`.
        kind: &'static str,
        /// Of whom, as the wire spells it.
        session: String,
        /// The version that it follows, and its own.
        versions: (u64, u64),
    },
    // Services, as applications see them.
    /// An application offers a service of this name from here on.
    Offers(Life, String),
    /// It does not any more.
    Withdraws(Life, String),
    /// The SDK says what the broker says of it: that the name is the session's, or with which code it is not.
    OfferJudged(Life, String, Result<(), String>),
    /// A service event: `online`, `stale`, `gone` or `updated`, of which name and session, and its base and version.
    Service {
        /// The process that hears it.
        life: Life,
        /// The event's number.
        seq: u64,
        /// `online`, `stale`, `gone` or `updated`.
        kind: &'static str,
        /// The service.
        name: String,
        /// Whose, as the wire spells it.
        session: String,
        /// The version that it follows, and its own.
        versions: (u64, u64),
    },
    /// Another event of the broker, by name, with its number.
    Event(Life, u64, String),

    // What the world knows.
    /// Something of a session's current socket reached a broker that is awake: proof that it lives.
    Proof(Slot),
    /// The same of a socket that is none of its yet, whose it is, and which: if its hello is answered with yes, it was proof. A
    /// socket that breaks meanwhile hears no answer, and its hello counts all the same.
    Knocks(Life, /* socket */ u64),
    /// The broker has learnt that a socket of a session is gone.
    SocketLost(Slot),
    /// The broker answers a hello of this session with yes: to which life, whether the lease is new, and on which socket.
    Admitted(Life, /* new */ bool, /* socket */ u64),
    /// An operator keeps a session out, by a ban or because its member is none any more, or lets it in again.
    Banned(Slot, bool),
    /// An operator asks for a matter to be so; absent is not at all.
    Asks(Matter, Option<String>),
    /// The broker says that it is.
    Decided(Matter, Option<String>),
    /// How an operator finds a matter.
    Stands {
        /// Which.
        matter: Matter,
        /// How it is; absent is not at all.
        value: Option<String>,
        /// Whether nothing has changed it since the broker started.
        at_start: bool,
    },
    /// A guest says hello, with an invite or without: which, and what it gives.
    GuestKnocks {
        /// Who.
        guest: u8,
        /// Its number and what it gives.
        invite: Option<(u8, String)>,
    },
    /// A guest's hello is answered: yes, or with which code.
    GuestEnters {
        /// Who.
        guest: u8,
        /// The invite that it brought.
        invite: Option<u8>,
        /// How many keys that lets in.
        uses: u32,
        /// When it said hello.
        since: u64,
        /// The answer.
        outcome: Result<(), String>,
    },
    /// A guest has tried whether it has a right.
    GuestMay {
        /// Who.
        guest: u8,
        /// Which right.
        right: String,
        /// When it asked.
        since: u64,
        /// Whether it was let.
        allowed: bool,
    },
    /// A hello that must not be admitted (a stolen token, a forged proof) was; or was not.
    Impostor(Slot, /* admitted */ bool),
    /// A hostile client tried something that must not work; whether it did, in words.
    Attack(String, /* succeeded */ bool),
    /// The broker is frozen, or wakes.
    Frozen(bool),
    /// The wall clock of the machine of this member's daemon is so far from where it started.
    DaemonClockOff(Member, i64),
    /// A broker's wall clock is further off than an hour from where it started: nothing expires.
    BrokerClockOff(bool),
    /// The broker is gone: by a crash, or in good order.
    BrokerDown(/* in good order */ bool),
    /// A broker died while it started.
    StartFailed,
    /// A broker starts; what `check` found.
    BrokerUp(Vec<String>),
    /// While the broker was down its store went back to what it was at some time: what was written since is gone.
    Rewound {
        /// To when; the beginning, if it was wiped.
        copied_at: u64,
    },
    /// The broker's store has lost the end of its log, which was synced: its next start must say so.
    EndLost,
    /// A start was refused because the store had lost its end, and an operator accepts that.
    LossAccepted,
    /// The SDK says that the broker's logs are not those that it has read.
    HistoryRewound(Life, /* logs */ Vec<String>),
    /// The disk cannot be read for now.
    Blind,
    /// The disk takes nothing for now, or takes again.
    DiskFull(bool),
    /// A sync failed: this broker writes no more until it is started again.
    Poisoned,
    /// The sizes and bounds of everything bounded, from time to time: what, how many, at most.
    Census(Vec<(String, usize, usize)>),
    /// Every session that the broker knows, and its state: `online`, `grace`, or another word.
    States(Vec<(Slot, String)>),
    /// Faults are over; from here on everything has to come to rest.
    FaultsOver,
    /// Nothing is under way any more, or the time for that is over: requests without an answer by life, entries in
    /// hand, and who is alive.
    Rest {
        /// Whether it came to rest in time.
        quiet: bool,
        /// What is still under way, in words.
        waiting: Vec<String>,
        /// The lives that are up and attached.
        alive: Vec<Life>,
    },

    // Daemons, and the programs that use them.
    /// This process is a local session of a daemon.
    Desk(Life),
    /// A local program hands a message to a daemon, in the name of a session; another under a used id, if so.
    Posts {
        /// The session.
        slot: Slot,
        /// Its key.
        key: Key,
        /// What and to whom.
        letter: Letter,
        /// Whether this is another letter under a key that was used: it must be refused.
        contradicts: bool,
    },
    /// What was just handed to a daemon has lain in its outbox since before the world began.
    Aged {
        /// Its key.
        key: Key,
        /// For how long.
        age_ms: u64,
    },
    /// The daemon answers: a promise, or a refusal by name.
    PostAnswered {
        /// The session.
        slot: Slot,
        /// Its key.
        key: Key,
        /// Whether it answers a letter that contradicts another.
        contradicts: bool,
        /// The answer.
        outcome: Result<(), String>,
    },
    /// A daemon has kept a message in its inbox that was not there: for whom, as the wire spells it.
    Kept {
        /// Whose it is: `session:<hex>` or `member:<hex>`.
        recipient: String,
        /// The broker's id for it.
        id: String,
        /// What it says.
        body: String,
    },
    /// A person had a daemon send a dead row anew, under another id.
    Requeued {
        /// Its key.
        old: Key,
        /// The new one's.
        new: Key,
    },
    /// A daemon has given up a message because of its age.
    GivenUp {
        /// Its key.
        key: Key,
        /// For how long it waited, by the wall clock of its machine.
        waited_ms: u64,
        /// For how many days the broker remembers ids; `None` is for ever.
        days: Option<u32>,
    },
    /// At the end: every row of a daemon's outbox, with its state and what last went wrong.
    Outbox(Member, Vec<(Key, String, Option<String>)>),
    /// At the end: everything in a daemon's inbox, by recipient and the broker's id.
    Inbox(Member, BTreeSet<(String, String)>),

    // Runs.
    /// An application calls a session; once more, if so.
    Calls {
        /// Who.
        life: Life,
        /// Under which key.
        key: Key,
        /// Whom.
        to: Slot,
        /// For what: it says how the answer must look.
        input: String,
        /// How long it may take.
        timeout_ms: u64,
        /// Whether it did so before.
        again: bool,
    },
    /// The broker has the call, as this run.
    CallStarted(Life, Key, String),
    /// A piece of the answer came.
    CallChunk {
        /// To whom.
        life: Life,
        /// Of which call.
        key: Key,
        /// Its number.
        seq: u64,
        /// What it says.
        body: String,
        /// Whether pieces before it are gone.
        gap: bool,
    },
    /// A call is over.
    CallEnded {
        /// For whom.
        life: Life,
        /// Which.
        key: Key,
        /// How.
        fate: RunFate,
        /// Whether pieces before the end are gone.
        gap: bool,
    },
    /// An application wants a call stopped.
    Cancels(Life, Key),
    /// A session is called: with this run, for this.
    RunCame(Life, String, String),
    /// It is told that nobody wants it any more.
    RunUnwanted(Life, String),
    /// It says that it ended so.
    RunEnds(Life, String, RunFate),
    /// The broker has that end.
    RunEndTaken(Life, String, RunFate),
    /// The run is over without it, and why.
    RunOver(Life, String, String),
    /// What `run.get` says at the end.
    RunIs(Key, RunFate),

    // The last look, over the wire.
    /// What `send.status` says of a message.
    Fate(Key, Option<String>, Fate),
    /// One page of a topic's log from this seq on, as `history` gives it: seq, id and body.
    History(/* log */ String, /* from */ u64, Vec<(u64, String, String)>),
    /// All dead letters of a log.
    DeadLetters(String, Vec<DeadLetter>),
    /// All services, as `services.list` gives them to this life: name, session, and whether it is online.
    Services(Life, Vec<(String, String, bool)>),
    /// Everybody, as `presence.list` gives them to this life.
    Present(Life, BTreeSet<String>),
    /// The end: every promise is to be judged now.
    Over,
}
