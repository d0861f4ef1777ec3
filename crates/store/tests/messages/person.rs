//! A client that follows the rules of an SDK: it remembers what it has in hand or has acked, whatever the socket.

use std::collections::{BTreeMap, BTreeSet};

use tenure_mesh::conn::admit::{Admission, TokenVerdict};
use tenure_mesh::effect::Push;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, LeaseId, RequestId, SubId, Tag};
use tenure_proto::log::LogName;
use tenure_proto::message::Priority;
use tenure_proto::name::GroupName;
use tenure_proto::number::U53;
use tenure_proto::reconcile::{
    ClientInflight, ClientSubscription, InflightState, ReconcileParams, ReconcilePolicy, Settle,
};
use tenure_proto::subscribe::{AckMode, SubscribeParams};

use super::words::{knock, session};

/// Whose place in a log it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reader {
    /// The owner of an inbox.
    Inbox,
    Crew(GroupName),
    /// A session's own, through the subscription to this partition or to all.
    Private(u8, Option<u32>),
}

/// An entry as a reader knows it.
pub(crate) type Key = (Reader, LogName, u64);

/// What the client remembers of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    Hand(Tag),
    /// Acked, and whether the broker has said so.
    Acked(Tag, bool),
}

/// A subscription that the client believes in.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub(crate) params: SubscribeParams,
    /// Where it began, by partition.
    pub(crate) start: BTreeMap<u32, u64>,
    /// The last seq it has, by partition.
    pub(crate) seen: BTreeMap<u32, u64>,
}

/// What an answer will be about.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Send(usize),
    Subscribe(SubscribeParams),
    Ack(Vec<Key>),
    Nack(Key, bool),
    Fetch(usize),
    Steal,
    Reconcile,
    Other,
}

/// How it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// With its token.
    Token,
    /// With its token and what it knows.
    Knowing(ReconcilePolicy),
    /// With its token, and says what it knows a moment later.
    Later,
    /// Another process: no token, no memory.
    Fresh,
}

#[derive(Debug)]
pub(crate) struct Person {
    pub(crate) n: u8,
    pub(crate) process: u32,
    pub(crate) conn: Option<ConnId>,
    pub(crate) greeted: bool,
    pub(crate) how: Return,
    /// Whether it hears nothing although its socket is open.
    pub(crate) deaf: bool,
    pub(crate) lease: Option<LeaseId>,
    pub(crate) subs: BTreeMap<SubId, Sub>,
    pub(crate) memory: BTreeMap<Key, Known>,
    pub(crate) asked: BTreeMap<RequestId, Asked>,
    /// What it gave back, for whose order nobody vouches.
    pub(crate) nacked: BTreeSet<Key>,
    /// What a socket took and never gave to a private place with auto acks, before a crash: it counts as settled,
    /// and comes again with the last moments before the crash, behind what was read since.
    pub(crate) swallowed: BTreeSet<Key>,
    /// Everything that reached the application of this process.
    pub(crate) received: BTreeSet<Key>,
    /// What it asked for beyond its credit.
    pub(crate) fetched: BTreeSet<Key>,
    /// What it may have fetched without hearing of it.
    pub(crate) slack: usize,
    /// The last entry in order, by reader, log and lane.
    pub(crate) last: BTreeMap<(Reader, LogName, u8), u64>,
    /// Pushes on this socket that are not settled, by subscription and lane, with their time.
    pub(crate) unsettled: BTreeMap<(SubId, u8), BTreeMap<Key, u64>>,
}

impl Person {
    pub(crate) fn new(n: u8) -> Person {
        Person {
            n,
            process: 0,
            conn: None,
            greeted: false,
            how: Return::Token,
            deaf: false,
            lease: None,
            subs: BTreeMap::new(),
            memory: BTreeMap::new(),
            asked: BTreeMap::new(),
            nacked: BTreeSet::new(),
            swallowed: BTreeSet::new(),
            received: BTreeSet::new(),
            fetched: BTreeSet::new(),
            slack: 0,
            last: BTreeMap::new(),
            unsettled: BTreeMap::new(),
        }
    }

    /// The process ends and another begins.
    pub(crate) fn reborn(&mut self) {
        *self = Person { process: self.process + 1, ..Person::new(self.n) };
    }

    pub(crate) fn inbox(n: u8) -> InboxChoice {
        if n == 1 { InboxChoice::Both } else { InboxChoice::Session }
    }

    /// Its next hello, without what it says about its subscriptions.
    pub(crate) fn hello(&self) -> Admission {
        let token = self.lease.clone().map_or(TokenVerdict::Absent, TokenVerdict::Selects);
        let instance = format!("i{}-{}", self.n, self.process).parse().unwrap();
        Admission { token, instance, inbox: Person::inbox(self.n), ..knock(self.n) }
    }

    /// All it knows, truthfully.
    pub(crate) fn knowledge(&self, policy: ReconcilePolicy) -> ReconcileParams {
        let subscriptions = self.subs.iter().map(|(id, sub)| {
            let position = |(p, start): (&u32, &u64)| {
                let last = sub.seen.get(p).copied().unwrap_or(start - 1);
                (p.to_string(), U53::saturating(last))
            };
            ClientSubscription {
                sub_id: id.clone(),
                topic: sub.params.topic.clone(),
                group: sub.params.group.clone(),
                partition: sub.params.partition,
                ack_mode: sub.params.ack_mode,
                prefetch: sub.params.prefetch,
                positions: sub.start.iter().map(position).collect(),
            }
        });
        let inflight = self.memory.values().filter_map(|known| match known {
            Known::Hand(tag) => {
                Some(ClientInflight { tag: tag.clone(), state: InflightState::Processing, settle: None })
            }
            Known::Acked(tag, false) => {
                let (tag, settle) = (tag.clone(), Some(Settle::Ack));
                Some(ClientInflight { tag, state: InflightState::Settled, settle })
            }
            Known::Acked(_, true) => None,
        });
        ReconcileParams { policy, subscriptions: subscriptions.collect(), inflight: inflight.collect() }
    }

    /// Whose place a delivery came from.
    pub(crate) fn reader(&self, push: &Push) -> Option<Reader> {
        if push.entry.log.is_inbox() {
            return Some(Reader::Inbox);
        }
        let sub = self.subs.get(&push.sub)?;
        Some(match &sub.params.group {
            Some(group) => Reader::Crew(group.clone()),
            None => Reader::Private(self.n, sub.params.partition),
        })
    }

    pub(crate) fn is_auto(&self, push: &Push) -> bool {
        self.subs.get(&push.sub).is_some_and(|sub| sub.params.ack_mode == AckMode::Auto)
    }

    /// The broker has died, and these were lost on the way, to whomever.
    pub(crate) fn swallow(&mut self, lost: &[Push]) {
        for push in lost.iter().filter(|push| push.session == session(self.n)) {
            if let (true, Some(reader @ Reader::Private(..))) = (self.is_auto(push), self.reader(push)) {
                self.swallowed.insert((reader, push.entry.log.clone(), push.entry.seq));
            }
        }
    }

    /// What it has in hand.
    pub(crate) fn hand(&self) -> Vec<(Key, Tag)> {
        let held = |(key, known): (&Key, &Known)| match known {
            Known::Hand(tag) => Some((key.clone(), tag.clone())),
            Known::Acked(..) => None,
        };
        self.memory.iter().filter_map(held).collect()
    }

    /// A delivery is settled as far as it is concerned.
    pub(crate) fn let_go(&mut self, key: &Key) {
        for pushed in self.unsettled.values_mut() {
            pushed.remove(key);
        }
    }

    /// Its socket is gone, or it is another one.
    pub(crate) fn cut(&mut self) {
        (self.conn, self.greeted, self.deaf) = (None, false, false);
        self.asked.clear();
        self.unsettled.clear();
    }
}

/// The lane of an entry.
pub(crate) fn lane(push: &Push) -> u8 {
    match (push.entry.log.is_inbox(), push.entry.envelope.priority) {
        (true, Priority::Next) => 1,
        (true, Priority::Low) => 2,
        _ => 0,
    }
}
