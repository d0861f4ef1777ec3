//! What a session reads: its subscriptions, and what each has in hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::ids::SubId;
use tenure_proto::log::LogName;
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::subscribe::{AckMode, Subscription};

use crate::effect::Push;
use crate::reply::ReplyTo;
use crate::store::record::GroupId;

/// The name of the implicit subscription to a session's own inbox.
pub const INBOX: &str = "inbox";
/// The name of the implicit subscription to its member's inbox.
pub const MEMBER: &str = "member";

/// What a subscription reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An inbox: a lane per priority, each with its own credit.
    Inbox(LogName),
    /// A topic.
    Topic {
        /// Which.
        topic: TopicName,
        /// The crew, if it is shared.
        group: Option<GroupName>,
        /// The partition, if it is one.
        partition: Option<u32>,
    },
}

/// A `fetch` that waits for entries to be read from disk.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Where its answer goes.
    pub to: ReplyTo,
    /// How many it wants.
    pub limit: usize,
}

/// A subscription.
#[derive(Clone, Debug)]
pub struct Sub {
    /// What it reads.
    pub source: Source,
    /// When a delivery counts as settled.
    pub ack_mode: AckMode,
    /// Deliveries that may be unsettled at once; of an inbox in each lane.
    pub prefetch: u32,
    /// Its places: one per partition, or per lane.
    pub groups: Vec<GroupId>,
    /// Entries in hand, and whether each was pushed by credit: those are at most `prefetch`. The others were fetched,
    /// or found in hand by a start or a reconciliation.
    held: BTreeMap<(GroupId, u64), bool>,
    counts: BTreeMap<GroupId, u32>,
    /// Entries in hand that must be pushed again because they may never have been read.
    pub unread: BTreeSet<(GroupId, u64)>,
    /// Entries in hand that have not been pushed, because their claims are on their way to the disk.
    pub claiming: BTreeSet<(GroupId, u64)>,
    /// Entries in hand that were pushed through an earlier socket: settled now, they are settled late.
    pub carried: BTreeSet<(GroupId, u64)>,
    /// Who waits for the store to know it; `None` once it does.
    pub opening: Option<Vec<ReplyTo>>,
    /// Fetches that wait, oldest first; bounded by the requests of a socket.
    pub fetches: VecDeque<Fetch>,
    /// Which place has the next turn.
    pub turn: usize,
}

impl Sub {
    /// A subscription that has nothing in hand.
    pub fn new(source: Source, ack_mode: AckMode, prefetch: u32) -> Sub {
        Sub {
            source,
            ack_mode,
            prefetch,
            groups: Vec::new(),
            held: BTreeMap::new(),
            counts: BTreeMap::new(),
            unread: BTreeSet::new(),
            claiming: BTreeSet::new(),
            carried: BTreeSet::new(),
            opening: None,
            fetches: VecDeque::new(),
            turn: 0,
        }
    }

    /// Whether it is one of the implicit ones.
    pub fn is_inbox(&self) -> bool {
        matches!(self.source, Source::Inbox(_))
    }

    /// Whether it reads a topic alone, so that its places are its own.
    pub(crate) fn is_lone(&self) -> bool {
        matches!(self.source, Source::Topic { group: None, .. })
    }

    /// How many more entries of `group` may be pushed.
    pub fn credit(&self, group: GroupId) -> usize {
        let used = match self.source {
            Source::Inbox(_) => self.counts.get(&group).copied().unwrap_or(0) as usize,
            Source::Topic { .. } => self.held.len(),
        };
        let most = if mutant::on(Mutant::NoCredit) { usize::MAX } else { self.prefetch as usize };
        most.saturating_sub(used)
    }

    /// How much is in hand.
    pub fn in_hand(&self) -> usize {
        self.held.len()
    }

    /// What is in hand.
    pub fn held(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.held.keys().copied()
    }

    /// How much in hand was pushed by credit; of an inbox in the fullest lane.
    pub(crate) fn pushed(&self) -> usize {
        let by_credit = |group: Option<&GroupId>| {
            let of = |id: &GroupId| group.is_none_or(|group| group == id);
            self.held.iter().filter(|((id, _), by_credit)| **by_credit && of(id)).count()
        };
        match self.source {
            Source::Topic { .. } => by_credit(None),
            Source::Inbox(_) => self.counts.keys().map(|group| by_credit(Some(group))).max().unwrap_or(0),
        }
    }

    /// Whether an entry is in hand.
    pub fn holds(&self, group: GroupId, seq: u64) -> bool {
        self.held.contains_key(&(group, seq))
    }

    /// An entry is pushed, by credit: it is in hand.
    pub fn hold(&mut self, group: GroupId, seq: u64) {
        self.take(group, seq, true);
    }

    /// An entry is in hand, whatever the credit.
    pub fn hold_freely(&mut self, group: GroupId, seq: u64) {
        self.take(group, seq, false);
    }

    fn take(&mut self, group: GroupId, seq: u64, by_credit: bool) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.held.entry((group, seq)) {
            place.insert(by_credit);
            *self.counts.entry(group).or_default() += 1;
        }
    }

    /// An entry is not in hand any more.
    pub fn release(&mut self, group: GroupId, seq: u64) {
        self.unread.remove(&(group, seq));
        self.claiming.remove(&(group, seq));
        self.carried.remove(&(group, seq));
        if self.held.remove(&(group, seq)).is_some()
            && let Some(count) = self.counts.get_mut(&group)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&group);
            }
        }
    }

    /// Everything in hand may never have been read.
    pub fn doubt(&mut self) {
        self.unread = self.held.keys().copied().collect();
        self.claiming.clear();
    }

    /// The socket is gone: what was about to be pushed to it was not.
    pub fn lose_socket(&mut self) {
        self.fetches.clear();
        self.carried = self.pushed_entries().collect();
        self.unread.append(&mut self.claiming);
    }

    /// Whether its reader can have read an entry in hand: it was pushed, as far as we know.
    pub fn was_pushed(&self, group: GroupId, seq: u64) -> bool {
        !self.unread.contains(&(group, seq)) && !self.claiming.contains(&(group, seq))
    }

    /// What is in hand and its reader can have read.
    pub fn pushed_entries(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.held().filter(|(group, seq)| self.was_pushed(*group, *seq))
    }

    /// As its session sees it, if it is one that is listed.
    pub fn view(&self, id: &SubId) -> Option<Subscription> {
        let Source::Topic { topic, group, partition } = &self.source else { return None };
        Some(Subscription {
            sub_id: id.clone(),
            topic: topic.clone(),
            group: group.clone(),
            partition: *partition,
            ack_mode: self.ack_mode,
            prefetch: self.prefetch,
        })
    }
}

/// The subscriptions of a session.
#[derive(Clone, Debug, Default)]
pub struct Subs {
    /// By name; bounded by `SUBSCRIPTIONS_PER_SESSION` and the two implicit ones.
    by_id: BTreeMap<SubId, Sub>,
    /// Those for which something may be waiting.
    pub eager: BTreeSet<SubId>,
    /// Deliveries of crews whose claims are on disk: the next to be pushed.
    pub cleared: VecDeque<Push>,
    /// When what crews have in this session's hand goes back, while nobody carries it.
    pub release_at: Option<Millis>,
}

impl Subs {
    /// The subscription called `id`.
    pub fn get(&self, id: &SubId) -> Option<&Sub> {
        self.by_id.get(id)
    }

    /// The subscription called `id`.
    pub fn get_mut(&mut self, id: &SubId) -> Option<&mut Sub> {
        self.by_id.get_mut(id)
    }

    /// Keeps a subscription.
    pub fn insert(&mut self, id: SubId, sub: Sub) {
        self.by_id.insert(id, sub);
    }

    /// Forgets a subscription.
    pub fn remove(&mut self, id: &SubId) -> Option<Sub> {
        self.eager.remove(id);
        self.by_id.remove(id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&SubId, &Sub)> {
        self.by_id.iter()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&SubId, &mut Sub)> {
        self.by_id.iter_mut()
    }

    /// The names of all of them.
    pub fn ids(&self) -> Vec<SubId> {
        self.by_id.keys().cloned().collect()
    }

    /// How many there are besides inboxes, and how many deliveries are in hand of all.
    pub fn sizes(&self) -> (usize, usize) {
        (self.asked_for(), self.by_id.values().map(Sub::in_hand).sum())
    }

    /// How many were asked for.
    pub fn asked_for(&self) -> usize {
        self.by_id.values().filter(|sub| !sub.is_inbox()).count()
    }

    /// The subscription to the same thing.
    pub fn same(
        &self,
        topic: &TopicName,
        group: Option<&GroupName>,
        partition: Option<u32>,
    ) -> Option<(&SubId, &Sub)> {
        self.by_id.iter().find(|(_, sub)| match &sub.source {
            Source::Inbox(_) => false,
            Source::Topic { topic: t, group: g, partition: p } => {
                t == topic && g.as_ref() == group && *p == partition
            }
        })
    }
}
