//! The life of a lease: the table of states, written once.
//!
//! | state | event | next |
//! |---|---|---|
//! | – | hello admitted | beginning, then online when the store has it |
//! | online | socket ends, or is stale | grace |
//! | grace | hello admitted | online; the first time after a start returning, then online when the store has it |
//! | online | another hello admitted | online; the old socket is replaced |
//! | grace | `lease_until` passes | ending, then gone when the store has it |
//! | online | `bye` | ending, then gone |
//! | online or grace | its session, member or address is banned, or it is kicked | ending, then gone |
//! | online or grace | the bearer token that it came by is revoked, or expires | ending, then gone |
//!
//! What hangs off a lease lives in [`Lease`] itself or is keyed by its session: nothing is keyed by a socket.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, GrantId, InstanceId, LeaseId, MemberKey, MessageId, RequestId, SubId};
use tenure_proto::limits::{CONTEST_REPLACEMENTS, CONTEST_WINDOW_MS};
use tenure_proto::log::LogName;
use tenure_proto::name::Cap;

use crate::access::Rights;
use crate::config::{MeshConfig, Terms};
use crate::conn::admit::Admission;
use crate::messages::subs::Subs;
use crate::sessions::stream::Stream;
use crate::store::record::GroupId;

/// What a start counts at least towards the time of a lease that is not attached in it.
pub const START_MS: u64 = 1_000;

/// What an earlier run of the broker, with this uptime on record, takes from the time of a lease that was not attached in it.
/// The last second of a run is on no record, and a run that was killed in its first second has no record at all: both count
/// as a whole second, so that a crash loop uses up a lease.
pub fn unattended_ms(uptime_ms: u64) -> u64 {
    uptime_ms.saturating_add(START_MS)
}

/// A hello that waits for the store.
#[derive(Clone, Debug)]
pub struct Knock {
    /// Its socket.
    pub conn: ConnId,
    /// Its request.
    pub request: RequestId,
    /// What it said.
    pub admission: Box<Admission>,
    /// What the store has told about it; `None` until it was asked.
    pub compared: Option<Compared>,
}

/// What the store has told about a hello.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// The logs whose history is another one than the client has read.
    pub rewound: Vec<LogName>,
    /// The messages at the places of what it says is in its hands.
    pub proven: BTreeMap<(LogName, u64), MessageId>,
}

/// Why a lease is ending.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Nobody came back in time.
    Expired,
    /// The client said goodbye on this socket, with this request.
    Bye(ConnId, RequestId),
    /// An operator banned the session, its member or where it came from.
    Banned,
    /// An operator ended it.
    Kicked,
}

impl Ending {
    /// In a word, as peers' streams, the log and the store say it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Ending::Expired => "expired",
            Ending::Bye(..) => "bye",
            Ending::Banned => "banned",
            Ending::Kicked => "kicked",
        }
    }
}

/// Where a lease stands. Bounded: at most one hello waits; a newer one takes its place.
#[derive(Clone, Debug)]
pub enum State {
    /// The store is being told of it; peers are not yet. The hello is gone if its socket broke meanwhile.
    Beginning(Option<Knock>),
    /// A socket carries it.
    Online(Carrier),
    /// No socket now; it lives until the end of its time.
    Grace,
    /// Somebody is back for the first time since the broker started, and the store is being told: otherwise a further
    /// start would count the time before. The hello is gone if its socket broke meanwhile.
    Returning(Option<Knock>),
    /// The store is being told of its end. A hello that comes now waits for that.
    Ending(Ending, Option<Knock>),
}

/// The socket that carries a lease, and what the watchdogs know of it.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// The socket.
    pub conn: ConnId,
    /// When it was last pinged.
    pub pinged: Millis,
    /// When an event last left for it.
    pub sent: Millis,
    /// Since when a batch is on its way without the socket's taking a fair part of what waits for it; `None` when it
    /// can take another.
    pub unflushed: Option<Millis>,
    /// What is held back from it.
    pub muted: Muted,
    /// Set while a `reconcile` request that the hello announced has not come.
    pub announced: Option<Announced>,
    /// Requests of this socket that are not answered, its hello among them.
    pub unanswered: u32,
    /// Whether what its client does is counted against its member's rates.
    pub counted: bool,
    /// Deliveries in that batch that count as settled once it has left.
    pub auto: Vec<(GroupId, u64, u32)>,
    /// The logs in which the client's positions are valid here.
    pub shared: SharedHistory,
}

/// The state of a session at a hello that announced a `reconcile` request.
#[derive(Clone, Debug)]
pub struct Announced {
    /// Whether the hello was answered `resumed`.
    pub resumed: bool,
    /// The subscriptions that existed then. Later ones were made on this socket, and are not dropped with them.
    pub subs: Vec<SubId>,
}

/// The logs whose history the client and the store share, as the comparison at the hello found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedHistory {
    /// All of them.
    All,
    /// Another history was found in one of its logs: only those that were compared and are equal. At most as many as a hello
    /// may list.
    Only(BTreeSet<LogName>),
    /// None: it came with the token of another store.
    None,
}

impl SharedHistory {
    /// Whether a position of the client in `log` is valid here.
    pub fn has(&self, log: &LogName) -> bool {
        match self {
            SharedHistory::All => true,
            SharedHistory::Only(equal) => mutant::on(Mutant::PlaceBelieved) || equal.contains(log),
            SharedHistory::None => false,
        }
    }
}

/// What is held back from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Muted {
    /// Nothing.
    No,
    /// Deliveries, until the client has said what it knows or this moment comes.
    Deliveries {
        /// When.
        until: Millis,
    },
    /// Everything: its hello waits for the store.
    All,
}

/// A lease and everything that hangs off it.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// Whether it began in an earlier run of the broker.
    pub restored: bool,
    /// Who vouches.
    pub member: MemberKey,
    /// What its attestation leaves of what its member may; `None` is everything.
    pub caps: Option<Vec<Cap>>,
    /// What it may do, of all that was said.
    pub may: Rights,
    /// The bearer token that it came by, if it came by one in this run.
    pub token: Option<GrantId>,
    /// Where its last hello came from, if that is known.
    pub from: Option<IpAddr>,
    /// Whether an operator has ended it while the store was being told of it.
    pub kicked: bool,
    /// The name and version of the client that carried it last; empty after a start.
    pub client: String,
    /// The process that carries it.
    pub instance: InstanceId,
    /// The latest socket of that process whose hello was taken. One that was opened before it was given up for it.
    pub latest: Option<ConnId>,
    /// Where it stands.
    pub state: State,
    /// What its client was told when it last said hello.
    pub told: Terms,
    /// The last proof of life, in thawed time.
    pub proof: Millis,
    /// Until when it lives although nothing was heard of it: after a broker start, or when its end failed.
    pub granted_until: Option<Millis>,
    /// Its event stream.
    pub stream: Stream,
    /// When the store was last told of its particulars.
    pub stored: Millis,
    /// Whether they have changed since.
    pub dirty: bool,
    /// Whether the store knows that it was attached in this run.
    pub touched: bool,
    /// Which inboxes it reads.
    pub inbox: InboxChoice,
    /// What it reads, and has in hand.
    pub subs: Subs,
    /// When other processes took it over, newest last; at most [`CONTEST_REPLACEMENTS`].
    pub takeovers: VecDeque<Millis>,
}

/// What a watchdog found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was heard for too long.
    Stale,
    /// The socket has not taken what it was given for too long.
    Slow,
    /// All is well; these are due.
    Fine {
        /// A ping.
        ping: bool,
        /// A tick.
        tick: bool,
    },
}

impl Lease {
    /// Whether a hello comes on a socket that its own process has given up since, in favour of a later one. Such a
    /// hello was held up on its way; what it says of subscriptions is old, and nobody reads its answer.
    pub fn is_outrun(&self, hello: &Knock) -> bool {
        let waiting = self.waiting();
        let instance = &hello.admission.instance;
        let taken = self.latest.filter(|_| self.instance == *instance);
        let waits = waiting.filter(|knock| knock.admission.instance == *instance).map(|knock| knock.conn);
        taken.max(waits).is_some_and(|later| later > hello.conn)
    }

    /// Its times: what its client was told, or what holds now where that is kinder.
    pub fn terms(&self, config: &MeshConfig) -> Terms {
        self.told.kinder(config.terms())
    }

    /// The moment its time is over, if nothing more is heard.
    pub fn until(&self, config: &MeshConfig) -> Millis {
        self.granted_until.unwrap_or(self.proof.plus(self.terms(config).lease_ttl_ms))
    }

    /// The hello that waits for the store.
    pub fn waiting(&self) -> Option<&Knock> {
        match &self.state {
            State::Beginning(knock) | State::Returning(knock) | State::Ending(_, knock) => knock.as_ref(),
            State::Online(_) | State::Grace => None,
        }
    }

    /// The socket that carries it now.
    pub fn conn(&self) -> Option<ConnId> {
        match &self.state {
            State::Online(carrier) => Some(carrier.conn),
            _ => None,
        }
    }

    /// Something was heard from the client at `at`.
    pub fn heard(&mut self, at: Millis) {
        self.proof = self.proof.max(at);
    }

    /// Whether a takeover by another process at `now` is one too many; if not, it is counted.
    pub fn contested(&mut self, now: Millis) -> bool {
        while self.takeovers.front().is_some_and(|t| now.since(*t) >= CONTEST_WINDOW_MS) {
            self.takeovers.pop_front();
        }
        if self.takeovers.len() >= CONTEST_REPLACEMENTS {
            return true;
        }
        self.takeovers.push_back(now);
        false
    }

    /// What the watchdogs say of an online lease.
    pub fn watch(&self, carrier: &Carrier, config: &MeshConfig, now: Millis) -> Verdict {
        let terms = self.terms(config);
        if now.since(self.proof) >= terms.stale_after_ms {
            return Verdict::Stale;
        }
        if carrier.unflushed.is_some_and(|since| now.since(since) >= config.slow_consumer_ms) {
            return Verdict::Slow;
        }
        Verdict::Fine {
            ping: now.since(carrier.pinged) >= terms.ping_interval_ms,
            tick: carrier.unflushed.is_none() && now.since(carrier.sent) >= terms.tick_interval_ms,
        }
    }

    /// When a watchdog or the end of its time must look at it next; `None` while the store decides.
    pub fn due(&self, config: &MeshConfig) -> Option<Millis> {
        let due = match &self.state {
            State::Online(carrier) => {
                let terms = self.terms(config);
                let stale = self.proof.plus(terms.stale_after_ms);
                let ping = carrier.pinged.plus(terms.ping_interval_ms);
                let next = match carrier.unflushed {
                    Some(since) => since.plus(config.slow_consumer_ms),
                    None => carrier.sent.plus(terms.tick_interval_ms),
                };
                let due = stale.min(ping).min(next);
                match carrier.muted {
                    Muted::Deliveries { until } => due.min(until),
                    _ => due,
                }
            }
            State::Grace => self.until(config).min(self.subs.release_at.unwrap_or(Millis(u64::MAX))),
            State::Beginning(_) | State::Returning(_) | State::Ending(..) => return None,
        };
        let store = self.stored.plus(config.lease_ttl_ms / 3);
        Some(if self.dirty { due.min(store) } else { due })
    }
}
