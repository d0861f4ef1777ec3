//! Reconciliation from the client's side: say what we have, hear what is left of it.
//!
//! It goes into the hello, or right after it when it would make the hello too large. The verdicts are carried out
//! without the application: only a stream that cannot go on hears of it.

use std::collections::BTreeMap;

use tenure_kit::time::Millis;
use tenure_proto::hello::{
    HelloParams, HelloReconcile, Later, LeaseFate, LogPosition, ResumeOutcome, ResumeResult,
};
use tenure_proto::ids::{SubId, Tag};
use tenure_proto::limits::{FRAME_BEFORE_HELLO_BYTES, POSITIONS_PER_HELLO};
use tenure_proto::method::Method;
use tenure_proto::reconcile::{
    InflightResult, ReconcileAction, ReconcileParams, ReconcileResult, SubscriptionVerdict,
};

use crate::delivery::{SubEnd, SubHandle};
use crate::inflight::Listed;
use crate::requests::{frame, outcome};
use crate::subs::Stage;
use crate::{Link, LinkEffect, SessionEvent, SockId};

/// The id of the request that follows a hello which said `later`.
pub(super) const REQUEST: &str = "reconcile";

/// What the broker was told, until it has answered.
#[derive(Debug)]
pub(super) struct Told {
    subs: BTreeMap<SubId, SubHandle>,
    inflight: Listed,
    /// All of it, when the hello only announced it.
    later: Option<ReconcileParams>,
    /// Whether the lease turned out to be a new one.
    fresh: bool,
}

impl Link {
    /// The hello's frame, with what we have inside if it fits.
    pub(super) fn hello_frame(&mut self, mut hello: HelloParams) -> Vec<u8> {
        let bytes = self.hello_bytes(&mut hello);
        self.listed = hello.positions.into_iter().map(|position| position.log).collect();
        bytes
    }

    fn hello_bytes(&mut self, hello: &mut HelloParams) -> Vec<u8> {
        let views = self.subs.views();
        self.told = None;
        if hello.resume.is_none() && views.is_empty() {
            return self.fit(hello);
        }
        let subs = views.iter().map(|(handle, view)| (view.sub_id.clone(), *handle)).collect();
        let (inflight, listed) = self.hands.listed(|sub| self.subs.contains(sub));
        let subscriptions = views.into_iter().map(|(_, view)| view).collect();
        let params = ReconcileParams { policy: self.config.reconcile, subscriptions, inflight };
        hello.reconcile = Some(HelloReconcile::Now(Box::new(params)));
        let mut bytes = frame(self.config.codec, "hello", Method::Hello, hello);
        let mut later = None;
        if bytes.len() > FRAME_BEFORE_HELLO_BYTES
            && let Some(HelloReconcile::Now(params)) = hello.reconcile.take()
        {
            later = Some(*params);
            hello.reconcile = Some(HelloReconcile::Later(Later::Later));
            bytes = self.fit(hello);
        }
        self.told = Some(Told { subs, inflight: listed, later, fresh: false });
        bytes
    }

    /// The hello's frame, with as many of its positions as fit: the newest stand first.
    fn fit(&self, hello: &mut HelloParams) -> Vec<u8> {
        loop {
            let bytes = frame(self.config.codec, "hello", Method::Hello, hello);
            if bytes.len() <= FRAME_BEFORE_HELLO_BYTES || hello.positions.is_empty() {
                return bytes;
            }
            hello.positions.truncate(hello.positions.len() / 2);
        }
    }

    /// The newest entries that we have, as many as a hello may list, and of each log before a second of any. What is newest tells
    /// most: a store that has it has all that was accepted before.
    pub(super) fn positions(&self) -> Vec<LogPosition> {
        let mut positions = self.subs.positions();
        positions.truncate(POSITIONS_PER_HELLO);
        positions
    }

    /// The broker has compared our positions with its store. What is not like ours is read again: also what could not be
    /// listed beside it, and what we know no entry of when the store is a strange one altogether.
    pub(super) fn rewind(&mut self, rewound: &[String], resume: &ResumeResult) {
        let strange = resume.outcome == ResumeOutcome::ResumeRejected
            && matches!(resume.reason.as_deref(), Some("bad_signature" | "other_cluster"));
        if rewound.is_empty() && !strange {
            return;
        }
        let (listed, any) = (&self.listed, !rewound.is_empty());
        let wall = self.broker_wall();
        let logs = self.subs.rewind(wall, |log, book| match listed.contains(log) {
            true => rewound.iter().any(|rewound| rewound == log),
            false => book.is_begun() && (any || book.witnesses().is_empty()),
        });
        if let Some(later) = self.told.as_mut().and_then(|told| told.later.as_mut()) {
            for subscription in &mut later.subscriptions {
                let topic = &subscription.topic;
                let gone = |partition: &String| logs.contains(&format!("topic/{topic}/{partition}"));
                subscription.positions.retain(|partition, _| !gone(partition));
            }
        }
        if !logs.is_empty() {
            let logs = logs.into_iter().collect();
            self.effects.push_back(LinkEffect::Deliver(SessionEvent::HistoryRewound { logs }));
        }
    }

    /// The hello is answered: carries out its verdicts, or tells what it only announced.
    pub(super) fn reconcile(
        &mut self,
        sock: SockId,
        lease: LeaseFate,
        verdicts: Option<Box<ReconcileResult>>,
    ) {
        let Some(told) = &mut self.told else { return };
        told.fresh = lease == LeaseFate::New;
        let Some(mut params) = told.later.take() else {
            return self.verdicts(verdicts.map(|verdicts| *verdicts));
        };
        let mut bytes = frame(self.config.codec, REQUEST, Method::Reconcile, &params);
        while bytes.len() > self.policy.frame_bytes && !params.inflight.is_empty() {
            // What is not listed is delivered again, and recognised. What is settled stands first.
            params.inflight.truncate(params.inflight.len() / 2);
            bytes = frame(self.config.codec, REQUEST, Method::Reconcile, &params);
        }
        self.hands.holding = true;
        self.effects.push_back(LinkEffect::Send(sock, bytes));
    }

    /// The answer to what the hello only announced.
    pub(super) fn reconcile_answered(&mut self, now: Millis, bytes: &[u8]) {
        if !self.hands.holding {
            return;
        }
        self.hands.holding = false;
        let result = outcome::<ReconcileResult>(self.config.codec, bytes).ok();
        self.verdicts(result);
        self.settle_early();
        self.settle_all(now);
    }

    /// Carries out what the broker decided. Without a word from it we subscribe again, which is the same
    /// subscription if it still exists.
    fn verdicts(&mut self, result: Option<ReconcileResult>) {
        let Some(told) = self.told.take() else { return };
        let result = result.unwrap_or_default();
        let mut verdicts: BTreeMap<SubHandle, SubscriptionVerdict> = BTreeMap::new();
        for verdict in result.results {
            let named = verdict.client.as_ref().unwrap_or(&verdict.sub_id);
            if let Some(handle) = told.subs.get(named) {
                verdicts.insert(*handle, verdict);
            }
        }
        // Positions are read before anything in hand is given up: what is given up must come again.
        for handle in self.subs.at(Stage::Open) {
            match verdicts.remove(&handle) {
                Some(verdict) => self.verdict(handle, verdict),
                None => self.recreate(handle),
            }
        }
        for handle in self.subs.at(Stage::Leaving) {
            self.left(handle, verdicts.remove(&handle));
        }
        let judged: BTreeMap<Tag, InflightResult> =
            result.inflight.into_iter().map(|verdict| (verdict.tag, verdict.result)).collect();
        for (tag, (id, as_settled)) in told.inflight {
            let verdict = judged.get(&tag).copied();
            if verdict.is_some() || told.fresh {
                self.judged(id, as_settled, verdict);
            }
        }
    }

    fn verdict(&mut self, handle: SubHandle, verdict: SubscriptionVerdict) {
        match verdict.action {
            ReconcileAction::Keep => self.subs.keep(handle, verdict.sub_id, &verdict.start_seq),
            // The broker's log ends before the place that we have in it.
            ReconcileAction::RecreateClientSide if verdict.reason == "rewound" => {
                self.begin_again(handle);
            }
            ReconcileAction::RecreateClientSide => self.recreate(handle),
            ReconcileAction::CloseClientSide => {
                let end = match verdict.reason.as_str() {
                    "lease_expired" => SubEnd::LeaseExpired,
                    "deleted" => SubEnd::Deleted,
                    _ => SubEnd::ReconciledClosed { reason: verdict.reason },
                };
                self.end_sub(handle, end);
            }
            // Of one that we have: the broker dropped it all the same.
            ReconcileAction::CloseServerSide => self.recreate(handle),
        }
    }

    /// A subscription that was being left when the socket broke.
    fn left(&mut self, handle: SubHandle, verdict: Option<SubscriptionVerdict>) {
        match verdict {
            Some(verdict) if verdict.action == ReconcileAction::Keep => {
                self.subs.rename(handle, verdict.sub_id);
                self.leave(handle);
            }
            // Not listed, or not kept: the broker has dropped it.
            _ => self.end_sub(handle, SubEnd::Unsubscribed),
        }
    }
}
