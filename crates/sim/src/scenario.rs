//! What a seed means: who is there, with which habits, and what goes wrong when. A list, so that parts of it can
//! be left out.

use serde::{Deserialize, Serialize};
use tenure_proto::codec::Codec;
use tenure_proto::hello::InboxChoice;
use tenure_proto::reconcile::ReconcilePolicy;
use tenure_proto::subscribe::{AckMode, From, SubscribeParams};

use crate::fault::Fault;
use crate::rng::Rng;
use crate::seen::{Member, Slot};

/// The topics of every world and how many partitions each has.
pub const TOPICS: [(&str, u32); 3] = [("jobs", 1), ("parts", 3), ("news", 1)];

/// The services that sessions offer.
const SERVICES: [&str; 3] = ["db", "web", "agent"];

/// The ordinal of a program that does without the daemon of its member.
pub(crate) const RIVAL: u8 = 99;

/// A world before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// Where everything random comes from.
    pub seed: u64,
    /// For how long things go wrong, in virtual milliseconds.
    pub span_ms: u64,
    /// The broker's lease; everything else is scaled from it.
    pub lease_ttl_ms: u64,
    /// How long a crew's entries stay with a session that lost its socket.
    pub reconnect_grace_ms: u64,
    /// How long a member of a crew may take to settle.
    pub ack_timeout_ms: u64,
    /// Whether the store is SQLite on a disk that can tear; else the model.
    pub sqlite: bool,
    /// What logs keep, in worlds that forget; else everything.
    #[serde(default)]
    pub keeps: Option<Keeps>,
    /// Whether applications ask what became of a message right behind it.
    #[serde(default)]
    pub inquires: bool,
    /// Whether local programs use ids that another program has used without their daemon, and persons send anew what came
    /// to nothing because of that.
    #[serde(default)]
    pub requeues: bool,
    /// Whether not everybody may join: an operator says who.
    #[serde(default)]
    pub owned: bool,
    /// Who is there.
    pub cast: Vec<Role>,
    /// What goes wrong, in the order of time.
    pub faults: Vec<Planned>,
}

/// What logs keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// For how long, of what everybody has settled.
    pub retention_ms: u64,
    /// How many bytes of a partition, settled or not.
    pub topic_bytes: Option<u64>,
}

/// A fault that is to come.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Planned {
    /// When.
    pub at: u64,
    /// What.
    pub fault: Fault,
    /// Which victim, how hard, how long.
    pub dice: u64,
}

/// A session and the habits of its application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// The session.
    pub slot: Slot,
    /// Who vouches for it.
    pub member: Member,
    /// Which of that member's sessions it is: part of the ids that it sends under.
    pub ordinal: u8,
    /// The machine it runs on.
    pub host: u8,
    /// Which inboxes it reads.
    pub inbox: InboxChoice,
    /// What else it reads.
    pub reads: Vec<SubscribeParams>,
    /// Milliseconds between two sends, about; zero is never.
    pub sends_every_ms: u64,
    /// How long it works on a message, about.
    pub work_ms: u64,
    /// Whether its status changes now and then.
    pub moody: bool,
    /// Whether it spells frames in MessagePack; else in JSON.
    pub msgpack: bool,
    /// What it wants to become of subscriptions that the broker forgot.
    pub policy: ReconcilePolicy,
    /// Milliseconds between two calls of others, about; zero is never.
    #[serde(default)]
    pub calls_every_ms: u64,
    /// Whether it answers when it is called.
    #[serde(default)]
    pub serves: bool,
    /// Names of services that it offers.
    #[serde(default)]
    pub offers: Vec<String>,
    /// The daemon whose local session it is, if it is one's: then its application is the daemon's.
    #[serde(default)]
    pub daemon: Option<u8>,
}

impl Role {
    /// How it spells frames.
    pub fn codec(&self) -> Codec {
        if self.msgpack { Codec::MsgPack } else { Codec::Json }
    }
}

impl Scenario {
    /// Whether the broker's store goes back in it.
    pub fn rewinds(&self) -> bool {
        self.faults.iter().any(|planned| Fault::REWINDS.contains(&planned.fault))
    }

    /// The scenario of a seed: `minutes` of trouble.
    pub fn of(seed: u64, minutes: u64) -> Scenario {
        let root = Rng::new(seed);
        let mut rng = root.fork(1);
        let lease_ttl_ms = [9_000, 30_000, 90_000][rng.below(3) as usize];
        let reconnect_grace_ms = [0, 2_000, 5_000][rng.below(3) as usize];
        let ack_timeout_ms = [20_000, 60_000][rng.below(2) as usize];
        let sqlite = rng.chance(400);
        let mut cast = cast(&mut rng);
        agents(&mut root.fork(8), &mut cast);
        publishers(&mut root.fork(9), &mut cast);
        let local = local_sessions(&mut root.fork(6), &cast);
        let span_ms = minutes * 60_000;
        let mut faults = faults(&root, span_ms, !local.is_empty());
        let keeps = keeps(&mut root.fork(7));
        let requeues = !local.is_empty() && root.fork(12).chance(400);
        cast.extend(local);
        cast.extend(requeues.then(|| rival(&mut root.fork(12).fork(1), &cast)).flatten());
        let inquires = root.fork(11).chance(250);
        let owned = root.fork(13).chance(350);
        if owned {
            faults.extend(spread(&Fault::OPERATORS, 800, &root.fork(13), span_ms));
            faults.sort_by_key(|planned| planned.at);
        }
        Scenario {
            seed,
            span_ms,
            lease_ttl_ms,
            reconnect_grace_ms,
            ack_timeout_ms,
            sqlite,
            keeps,
            inquires,
            requeues,
            owned,
            cast,
            faults,
        }
    }
}

/// One world in four forgets, half of those also what somebody has yet to read.
fn keeps(rng: &mut Rng) -> Option<Keeps> {
    let retention_ms = [5_000, 30_000][rng.below(2) as usize];
    let topic_bytes = rng.chance(500).then(|| rng.between(500, 4_000));
    rng.chance(250).then_some(Keeps { retention_ms, topic_bytes })
}

fn cast(rng: &mut Rng) -> Vec<Role> {
    let (count, members) = (rng.between(3, 7) as u8, rng.between(2, 3) as u8);
    (0..count)
        .map(|n| {
            // Everybody can be reached.
            let inbox = if rng.chance(500) { InboxChoice::Session } else { InboxChoice::Both };
            Role {
                slot: Slot(n),
                member: Member(n % members),
                ordinal: n / members,
                host: rng.below(3) as u8,
                inbox,
                reads: reads(rng),
                sends_every_ms: [0, 400, 1_500, 6_000][rng.below(4) as usize],
                work_ms: [5, 200, 3_000][rng.below(3) as usize],
                moody: rng.chance(400),
                msgpack: rng.chance(500),
                policy: if rng.chance(500) {
                    ReconcilePolicy::Conservative
                } else {
                    ReconcilePolicy::RestoreClient
                },
                calls_every_ms: 0,
                serves: false,
                offers: Vec::new(),
                daemon: None,
            }
        })
        .collect()
}

/// Who calls and who answers, in worlds that have agents.
fn agents(rng: &mut Rng, cast: &mut [Role]) {
    if !rng.chance(600) {
        return;
    }
    for role in cast {
        role.serves = rng.chance(600);
        role.calls_every_ms = [0, 3_000, 10_000][rng.below(3) as usize];
    }
}

/// Who offers what, in worlds that have services: names that others may want too.
fn publishers(rng: &mut Rng, cast: &mut [Role]) {
    if !rng.chance(500) {
        return;
    }
    for role in cast {
        role.offers = SERVICES.iter().filter(|_| rng.chance(400)).map(|name| (*name).to_owned()).collect();
    }
}

/// The local sessions of daemons, in worlds that have one. Drawn from a stream of their own, so that the others are
/// what they would be without.
fn local_sessions(rng: &mut Rng, cast: &[Role]) -> Vec<Role> {
    if !rng.chance(400) {
        return Vec::new();
    }
    let slots = cast.iter().map(|role| role.slot.0 + 1).max().unwrap_or(0);
    let members = cast.iter().map(|role| role.member.0 + 1).max().unwrap_or(0);
    let host = rng.below(3) as u8;
    (0..rng.between(1, 3) as u8)
        .map(|n| {
            let slot = Slot(slots + n);
            // A daemon reads a topic for each session in a group of its own.
            let reads = rng.chance(500).then(|| SubscribeParams {
                topic: TOPICS[0].0.parse().unwrap_or_else(|_| unreachable!("a topic's name")),
                group: format!("d{}", slot.0).parse().ok(),
                partition: None,
                prefetch: 32,
                ack_mode: AckMode::Manual,
                from: From::New,
            });
            Role {
                slot,
                member: Member(members),
                ordinal: n,
                host,
                // The daemon's own session reads the member's inbox.
                inbox: if n == 0 { InboxChoice::Both } else { InboxChoice::Session },
                reads: reads.into_iter().collect(),
                sends_every_ms: 0,
                work_ms: 0,
                moody: false,
                msgpack: rng.chance(500),
                policy: ReconcilePolicy::RestoreClient,
                calls_every_ms: 0,
                serves: false,
                offers: Vec::new(),
                daemon: Some(0),
            }
        })
        .collect()
}

/// A program of the member of a daemon that does without it.
fn rival(rng: &mut Rng, cast: &[Role]) -> Option<Role> {
    let local = cast.iter().rev().find(|role| role.daemon.is_some())?;
    Some(Role {
        slot: Slot(local.slot.0 + 1),
        ordinal: RIVAL,
        host: rng.below(3) as u8,
        inbox: InboxChoice::Session,
        reads: Vec::new(),
        sends_every_ms: 1_500,
        work_ms: 5,
        msgpack: rng.chance(500),
        daemon: None,
        ..local.clone()
    })
}

fn reads(rng: &mut Rng) -> Vec<SubscribeParams> {
    let mut reads = Vec::new();
    for (topic, partitions) in TOPICS {
        if !rng.chance(600) {
            continue;
        }
        let shared = rng.chance(600);
        let auto = !shared && rng.chance(250);
        let one = partitions > 1 && rng.chance(250);
        let Ok(topic) = topic.parse() else { continue };
        reads.push(SubscribeParams {
            topic,
            group: if shared { "crew".parse().ok() } else { None },
            partition: one.then(|| rng.below(u64::from(partitions)) as u32),
            // The settings of a crew are its members' in common.
            prefetch: if shared { 4 } else { [1, 4, 32][rng.below(3) as usize] },
            ack_mode: if auto { AckMode::Auto } else { AckMode::Manual },
            from: if rng.chance(500) { From::Earliest } else { From::New },
        });
    }
    reads
}

fn faults(root: &Rng, span_ms: u64, daemons: bool) -> Vec<Planned> {
    let mut faults = Vec::new();
    let mut rng = root.fork(2);
    let newer = [&Fault::REWINDS[..], &Fault::OPERATORS[..]].concat();
    let old = |(_, fault): &(usize, Fault)| !newer.contains(fault);
    for (index, fault) in Fault::ALL.into_iter().enumerate().filter(old) {
        let mut own = root.fork(100 + index as u64);
        // A world has about two thirds of the kinds, some of them often: what hides behind a common fault shows
        // where that is absent.
        if !rng.chance(650) || (fault.is_daemons() && !daemons) {
            continue;
        }
        let mean = fault.every_s() * [500, 1_000, 1_000, 3_000][rng.below(4) as usize];
        let mut at = 5_000 + own.around(mean);
        while at < span_ms {
            faults.push(Planned { at, fault, dice: own.next() });
            at += own.around(mean);
        }
    }
    faults.extend(rewinds(&mut root.fork(10), span_ms));
    faults.sort_by_key(|planned| planned.at);
    faults
}

/// One world in four has stores that go back, drawn from a stream of their own: all others are what they would be
/// without.
fn rewinds(rng: &mut Rng, span_ms: u64) -> Vec<Planned> {
    if rng.chance(250) { spread(&Fault::REWINDS, 600, rng, span_ms) } else { Vec::new() }
}

/// Faults of these kinds, each of which comes to so many worlds out of a thousand.
fn spread(kinds: &[Fault], per_mille: u64, root: &Rng, span_ms: u64) -> Vec<Planned> {
    let (mut rng, mut faults) = (root.clone(), Vec::new());
    for (index, fault) in kinds.iter().copied().enumerate() {
        let wanted = rng.chance(per_mille);
        let mut own = rng.fork(1 + index as u64);
        let mut at = 5_000 + own.around(fault.every_s() * 1_000);
        while at < span_ms && wanted {
            faults.push(Planned { at, fault, dice: own.next() });
            at += own.around(fault.every_s() * 1_000);
        }
    }
    faults
}
