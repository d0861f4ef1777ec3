//! Reconciliation: after a break both sides compare the subscriptions they believe in, and neither is left with
//! one that the other has forgotten.
//!
//! A subscription is the same on both sides when topic, group and partition are; its settings are the ack mode and
//! the prefetch; its name is only a name.
//!
//! | who knows it | settings | verdict | reason |
//! |---|---|---|---|
//! | both | equal | `keep`, under the server's name | `same`, or `renamed` if the names differ |
//! | both | differ | `close_client_side`, and the server drops its own | `settings_differ` |
//! | client, `restore_client` | – | made again after the client's positions: `keep` | `restored` |
//! | client, resumed | – | `close_client_side`: it has ended, and the client was not told | `client_only` |
//! | client, not resumed | – | `recreate_client_side`: the lease it hung off is another one | `client_only` |
//! | server | – | dropped: `close_server_side` | `server_only` |
//! | listed twice | – | the first counts, the others `close_client_side` | `duplicate` |
//!
//! A lone reader's place is its subscription's own. If it was there at the start, and is known under another name, it is that of
//! another history, wherever that has got to: the server drops it, and the client's is one that only the client knows.
//!
//! A subscription that only the client knows and whose topic was deleted is `close_client_side`, reason `deleted`, whatever the
//! policy. What cannot be made again is closed: `invalid` when its numbers are none that `subscribe` would take, `too_many`
//! past the bound of a session. A lone reader with a place beyond the end of a log has read another history, and is told so before
//! it reads this one: `recreate_client_side`, reason `rewound`. `inbox` and `member` need no listing: listed they are kept (`implicit`), unlisted
//! they are kept without a word.

use std::collections::{BTreeMap, BTreeSet};

use tenure_proto::ids::SubId;
use tenure_proto::limits::{PARTITIONS_MAX, PREFETCH_MAX, SUBSCRIPTIONS_PER_SESSION};
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::reconcile::{
    ClientSubscription, ReconcileAction, ReconcileParams, ReconcilePolicy, SubscriptionVerdict,
};
use tenure_proto::subscribe::{AckMode, Subscription};

/// A subscription to a topic as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubView {
    /// Its name.
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
    /// Whether it was there at the start: then its history may be another one than the client's.
    pub restored: bool,
}

/// What is decided, and what the mesh has to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One for each subscription that either side knows: first the client's, in the order of its list, then those
    /// that only the server knows, in the order of its own.
    pub verdicts: Vec<SubscriptionVerdict>,
    /// Subscriptions that the server ends.
    pub drop: Vec<SubId>,
    /// Subscriptions that the server makes again.
    pub restore: Vec<Restore>,
}

/// A subscription to be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Its verdict in [`Plan::verdicts`], for a mesh that finds it cannot be made.
    pub verdict: usize,
    /// What to make. Its name is the client's where that is free.
    pub view: SubView,
    /// The last seq that the client has of each partition; what it names no position for begins at the log's end.
    /// A shared group that exists goes on where it stands, whatever one member's position is.
    pub positions: BTreeMap<u32, u64>,
}

/// Why a subscription was not made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade {
    /// It cannot be, for this reason: it is over.
    Closed(&'static str),
    /// The client has a place beyond the end of a log: it was there in another history, and its client has to know that before it
    /// reads this one.
    Rewound,
}

impl Plan {
    /// Turns the verdict of a subscription that was not made again into another one.
    pub fn give_up(&mut self, verdict: usize, instead: NotMade) {
        let Some(verdict) = self.verdicts.get_mut(verdict) else { return };
        (verdict.action, verdict.reason) = match instead {
            NotMade::Closed(reason) => (ReconcileAction::CloseClientSide, reason.to_owned()),
            NotMade::Rewound => (ReconcileAction::RecreateClientSide, "rewound".to_owned()),
        };
        if let Some(client) = &verdict.client {
            verdict.sub_id = client.clone();
        }
    }
}

impl Plan {
    /// The topic of a subscription that only the client knows was deleted: it is over, and is not made again.
    pub fn close_deleted(&mut self, client: &SubId) {
        let only = |verdict: &SubscriptionVerdict| {
            verdict.client.as_ref() == Some(client)
                && verdict.server.is_none()
                && verdict.reason == "client_only"
        };
        for verdict in self.verdicts.iter_mut().filter(|verdict| only(verdict)) {
            verdict.action = ReconcileAction::CloseClientSide;
            verdict.reason = "deleted".to_owned();
        }
    }
}

/// What makes two subscriptions the same one.
type Identity<'a> = (&'a TopicName, Option<&'a GroupName>, Option<u32>);

/// Whether `sub` is a subscription that every session has without asking.
pub fn is_implicit(sub: &SubId) -> bool {
    matches!(sub.as_str(), "inbox" | "member")
}

/// Compares what the client lists with what the server knows. `resumed` is whether the outcome of its hello was; `fresh` makes
/// up names, each once.
pub fn reconcile(
    params: &ReconcileParams,
    server: &[SubView],
    resumed: bool,
    fresh: &mut dyn FnMut() -> Option<SubId>,
) -> Plan {
    let server: Vec<&SubView> = server.iter().filter(|view| !is_implicit(&view.sub)).collect();
    let mut work = Work::new(params, &server, resumed, fresh);
    for listed in &params.subscriptions {
        work.judge(listed);
    }
    for view in server {
        work.judge_unlisted(view);
    }
    work.plan
}

struct Work<'a> {
    policy: ReconcilePolicy,
    resumed: bool,
    /// The server's, by identity.
    known: BTreeMap<Identity<'a>, &'a SubView>,
    /// What the client has listed, each under a name of its own.
    seen: BTreeSet<Identity<'a>>,
    /// The names so far.
    names: BTreeSet<&'a SubId>,
    /// All names in its list.
    listed: BTreeSet<&'a SubId>,
    /// Names that nothing new may take.
    taken: BTreeSet<SubId>,
    /// Makes up a name that was none before.
    fresh: &'a mut dyn FnMut() -> Option<SubId>,
    /// Names of the server's that have their verdict.
    judged: BTreeSet<&'a SubId>,
    /// How many subscriptions there will be.
    living: usize,
    plan: Plan,
}

impl<'a> Work<'a> {
    fn new(
        params: &'a ReconcileParams,
        server: &[&'a SubView],
        resumed: bool,
        fresh: &'a mut dyn FnMut() -> Option<SubId>,
    ) -> Work<'a> {
        let mut known = BTreeMap::new();
        for &view in server {
            known.entry((&view.topic, view.group.as_ref(), view.partition)).or_insert(view);
        }
        Work {
            policy: params.policy,
            resumed,
            known,
            seen: BTreeSet::new(),
            names: BTreeSet::new(),
            listed: params.subscriptions.iter().map(|listed| &listed.sub_id).collect(),
            taken: server.iter().map(|view| view.sub.clone()).collect(),
            fresh,
            judged: BTreeSet::new(),
            living: 0,
            plan: Plan::default(),
        }
    }

    fn judge(&mut self, listed: &'a ClientSubscription) {
        if is_implicit(&listed.sub_id) {
            // The server knows it under no other name, and without settings.
            self.say(ReconcileAction::Keep, &listed.sub_id, Some(listed), None, "implicit");
            if let Some(verdict) = self.plan.verdicts.last_mut() {
                verdict.server = Some(listed.sub_id.clone());
            }
            return;
        }
        let identity = (&listed.topic, listed.group.as_ref(), listed.partition);
        if !self.names.insert(&listed.sub_id) || !self.seen.insert(identity) {
            return self.close(listed, None, "duplicate");
        }
        let Some(view) = self.known.get(&identity).copied() else { return self.judge_client_only(listed) };
        self.judged.insert(&view.sub);
        if (view.ack_mode, view.prefetch) != (listed.ack_mode, listed.prefetch) {
            self.plan.drop.push(view.sub.clone());
            return self.close(listed, Some(view), "settings_differ");
        }
        let same = view.sub == listed.sub_id;
        if !same && view.group.is_none() && view.restored {
            self.plan.drop.push(view.sub.clone());
            return self.judge_client_only(listed);
        }
        self.living += 1;
        let reason = if same { "same" } else { "renamed" };
        self.say(ReconcileAction::Keep, &view.sub, Some(listed), Some(view), reason);
    }

    fn judge_client_only(&mut self, listed: &'a ClientSubscription) {
        match self.policy {
            ReconcilePolicy::RestoreClient => self.restore(listed),
            ReconcilePolicy::Conservative if self.resumed => self.close(listed, None, "client_only"),
            ReconcilePolicy::Conservative => {
                let action = ReconcileAction::RecreateClientSide;
                self.say(action, &listed.sub_id, Some(listed), None, "client_only");
            }
        }
    }

    fn restore(&mut self, listed: &'a ClientSubscription) {
        let Some(positions) = positions(listed) else { return self.close(listed, None, "invalid") };
        // Those the server knows are counted as if all stayed: what one listing gets must not hang on later ones.
        let known = self.known.len().saturating_sub(self.judged.len());
        if self.living + known >= SUBSCRIPTIONS_PER_SESSION {
            return self.close(listed, None, "too_many");
        }
        let Some(sub) = self.free_name(&listed.sub_id) else { return self.close(listed, None, "too_many") };
        self.living += 1;
        let view = SubView {
            sub: sub.clone(),
            topic: listed.topic.clone(),
            group: listed.group.clone(),
            partition: listed.partition,
            ack_mode: listed.ack_mode,
            prefetch: listed.prefetch,
            restored: false,
        };
        self.plan.restore.push(Restore { verdict: self.plan.verdicts.len(), view, positions });
        self.say(ReconcileAction::Keep, &sub, Some(listed), None, "restored");
    }

    fn judge_unlisted(&mut self, view: &'a SubView) {
        if self.judged.insert(&view.sub) {
            self.plan.drop.push(view.sub.clone());
            self.say(ReconcileAction::CloseServerSide, &view.sub, None, Some(view), "server_only");
        }
    }

    /// The client's name if it is free, else a fresh one.
    fn free_name(&mut self, wanted: &SubId) -> Option<SubId> {
        let mut name = wanted.clone();
        while self.taken.contains(&name) || (name != *wanted && self.listed.contains(&name)) {
            // Not a name of the client's either: it would have to rename one of its own first.
            name = (self.fresh)()?;
        }
        self.taken.insert(name.clone());
        Some(name)
    }

    fn close(&mut self, listed: &ClientSubscription, server: Option<&SubView>, reason: &str) {
        self.say(ReconcileAction::CloseClientSide, &listed.sub_id, Some(listed), server, reason);
    }

    fn say(
        &mut self,
        action: ReconcileAction,
        sub: &SubId,
        client: Option<&ClientSubscription>,
        server: Option<&SubView>,
        reason: &str,
    ) {
        self.plan.verdicts.push(SubscriptionVerdict {
            action,
            sub_id: sub.clone(),
            client: client.map(|listed| listed.sub_id.clone()),
            server: server.map(|view| view.sub.clone()),
            reason: reason.to_owned(),
            client_view: client.map(|listed| Box::new(as_listed(listed))),
            server_view: server.map(|view| Box::new(view.shown())),
            start_seq: BTreeMap::new(),
        });
    }
}

/// A subscription as the client described it.
fn as_listed(listed: &ClientSubscription) -> Subscription {
    Subscription {
        sub_id: listed.sub_id.clone(),
        topic: listed.topic.clone(),
        group: listed.group.clone(),
        partition: listed.partition,
        ack_mode: listed.ack_mode,
        prefetch: listed.prefetch,
    }
}

impl SubView {
    /// What a client is shown of it.
    fn shown(&self) -> Subscription {
        Subscription {
            sub_id: self.sub.clone(),
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: self.partition,
            ack_mode: self.ack_mode,
            prefetch: self.prefetch,
        }
    }
}

/// The positions as numbers, if all that is listed are numbers that `subscribe` would take.
fn positions(listed: &ClientSubscription) -> Option<BTreeMap<u32, u64>> {
    let legal = |partition: &u32| *partition < PARTITIONS_MAX;
    if !(1..=PREFETCH_MAX).contains(&listed.prefetch) || listed.partition.is_some_and(|p| !legal(&p)) {
        return None;
    }
    let number = |text: &str| {
        let number = text.parse().ok().filter(legal)?;
        // One value, one spelling: no sign, no leading zeros.
        (number.to_string() == text).then_some(number)
    };
    listed.positions.iter().map(|(text, seq)| Some((number(text)?, seq.get()))).collect()
}

#[cfg(test)]
#[path = "reconcile_plan_tests.rs"]
mod tests;
