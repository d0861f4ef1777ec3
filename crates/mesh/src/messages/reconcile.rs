//! Carrying out a reconciliation: subscriptions and deliveries after a break, so that both sides believe the same.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::WireError;
use tenure_proto::hello::HelloReconcile;
use tenure_proto::ids::{ConnId, RequestId, SessionKey, SubId};
use tenure_proto::limits::RECONCILE_WAIT_MS;
use tenure_proto::log::LogName;
use tenure_proto::message::NackParams;
use tenure_proto::number::U53;
use tenure_proto::reconcile::{
    ClientInflight, ClientSubscription, InflightResult, InflightState, InflightVerdict, ReconcileAction,
    ReconcileParams, ReconcilePolicy, ReconcileResult, Settle, SubscriptionVerdict,
};
use tenure_proto::subscribe::From;
use tenure_proto::tag::TagParts;

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect, HelloAnswer, Note, Reconciled};
use crate::messages::envelope::Lane;
use crate::messages::group::{Claim, Holder};
use crate::messages::reconcile_plan::{NotMade, Restore, SubView, is_implicit, reconcile};
use crate::messages::subs::{Source, Sub};
use crate::reply::{Caller, Reply, lease_ended};
use crate::sessions::lease::{Announced, Carrier, Muted, SharedHistory, State};
use crate::store::record::GroupId;

impl Mesh {
    /// A socket carries the session again: what becomes of what it read. Gives what the hello is answered.
    pub(crate) fn take_up_deliveries(
        &mut self,
        now: Millis,
        session: SessionKey,
        conn: ConnId,
        asked: Option<&HelloReconcile>,
        resumed: bool,
    ) -> Option<(Box<ReconcileResult>, bool)> {
        match asked {
            Some(HelloReconcile::Now(params)) => {
                let (result, durable) = self.reconcile(now, session, conn, params, resumed);
                return Some((Box::new(result), durable));
            }
            Some(HelloReconcile::Later(_)) => {
                let until = now.plus(RECONCILE_WAIT_MS);
                self.announce_list(session, until, resumed);
            }
            None => {
                let subs = self.asked_for(session);
                self.nothing_listed(session, resumed, subs);
            }
        }
        None
    }

    /// A client that lists nothing of what there was when it said hello: after a good token everything in hand was never read;
    /// without one it is a new process that knows of no subscription.
    fn nothing_listed(&mut self, session: SessionKey, resumed: bool, subs: Vec<SubId>) {
        if !resumed {
            for id in subs {
                self.drop_subscription(session, &id);
            }
        }
        self.doubt_all(session);
        self.wake_all(session);
    }

    /// The subscriptions of a session, without its implicit ones.
    fn asked_for(&self, session: SessionKey) -> Vec<SubId> {
        let subs = self.sessions.lease(&session).map(|lease| lease.subs.ids()).unwrap_or_default();
        subs.into_iter().filter(|id| !is_implicit(id)).collect()
    }

    /// The announced `reconcile` request did not come in time. One that comes later is judged by how its hello was answered.
    pub(crate) fn list_is_late(&mut self, session: SessionKey) {
        let (resumed, subs) = match self.sessions.lease_mut(&session).map(|lease| &mut lease.state) {
            Some(State::Online(Carrier { announced: Some(announced), .. })) => {
                (announced.resumed, std::mem::take(&mut announced.subs))
            }
            _ => return,
        };
        self.nothing_listed(session, resumed, subs);
    }

    /// `reconcile` as a request of its own.
    pub(crate) fn reconcile_call(
        &mut self,
        now: Millis,
        caller: &Caller,
        params: &ReconcileParams,
    ) -> Result<Reply, WireError> {
        let session = caller.session;
        let resumed = match self.sessions.lease_mut(&session).map(|lease| &mut lease.state) {
            Some(State::Online(carrier)) => carrier.announced.take().is_none_or(|hello| hello.resumed),
            _ => return Err(lease_ended()),
        };
        let (result, durable) = self.reconcile(now, session, caller.conn, params, resumed);
        self.mute(session, Muted::No);
        self.rouse(session);
        Ok(self.after_round(caller, durable, Answer::Reconcile(Box::new(result))))
    }

    /// Compares and carries out; says whether the store must know before anybody is told.
    fn reconcile(
        &mut self,
        now: Millis,
        session: SessionKey,
        conn: ConnId,
        params: &ReconcileParams,
        resumed: bool,
    ) -> (ReconcileResult, bool) {
        let Some(lease) = self.sessions.lease(&session) else { return (ReconcileResult::default(), false) };
        let views = lease.subs.iter().filter_map(|(id, sub)| view(id, sub, self.is_restored(sub)));
        let views: Vec<SubView> = views.collect();
        let mut plan = reconcile(params, &views, resumed, &mut || self.new_sub_id(session));
        let messages = &self.messages;
        let is_deleted = |sub: &&ClientSubscription| {
            messages.was_deleted(&sub.topic) || messages.crews.was_deleted(&sub.topic, sub.group.as_ref())
        };
        for listed in params.subscriptions.iter().filter(is_deleted) {
            plan.close_deleted(&listed.sub_id);
        }
        self.doubt_all(session);
        let mut durable = false;
        let requeued = |listed: &ClientInflight| InflightVerdict {
            tag: listed.tag.clone(),
            result: InflightResult::Requeued,
        };
        let mut inflight: Vec<InflightVerdict> = params.inflight.iter().map(requeued).collect();
        // First what is settled, then what ends, then what is kept: nothing is kept of what has ended.
        for stage in [InflightState::Settled, InflightState::Processing] {
            for (listed, verdict) in params.inflight.iter().zip(&mut inflight) {
                if listed.state == stage {
                    let (result, waits) = self.reconcile_delivery(now, session, listed, resumed);
                    (verdict.result, durable) = (result, durable | waits);
                }
            }
            if stage == InflightState::Settled {
                for id in &plan.drop {
                    self.drop_subscription(session, id);
                }
            }
        }
        for restore in std::mem::take(&mut plan.restore) {
            let verdict = restore.verdict;
            if let Err(instead) = self.restore_subscription(session, restore) {
                plan.give_up(verdict, instead);
            }
        }
        self.tell_gaps_again(session, params);
        self.tell_starts(session, &mut plan.verdicts);
        let results = plan.verdicts;
        self.note_lates(session, conn);
        let count = |action: ReconcileAction| results.iter().filter(|v| v.action == action).count();
        let fared = |result: InflightResult| inflight.iter().filter(|v| v.result == result).count();
        self.effects.push_back(Effect::Note(Note::ReconcileDone(Reconciled {
            session,
            conn,
            policy: match params.policy {
                ReconcilePolicy::Conservative => "conservative",
                ReconcilePolicy::RestoreClient => "restore_client",
            },
            keep: count(ReconcileAction::Keep),
            close_client_side: count(ReconcileAction::CloseClientSide),
            close_server_side: count(ReconcileAction::CloseServerSide),
            recreate_client_side: count(ReconcileAction::RecreateClientSide),
            inflight_kept: fared(InflightResult::Kept),
            inflight_settled: fared(InflightResult::Settled),
            inflight_requeued: fared(InflightResult::Requeued),
        })));
        self.wake_all(session);
        (ReconcileResult { results, inflight }, durable)
    }

    /// Says where lone readers go on that the store has: a client whose history was rewound knows it by nothing else.
    fn tell_starts(&self, session: SessionKey, verdicts: &mut [SubscriptionVerdict]) {
        let Some(lease) = self.sessions.lease(&session) else { return };
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.action == ReconcileAction::Keep) {
            let sub = lease.subs.get(&verdict.sub_id).filter(|sub| sub.opening.is_none() && sub.is_lone());
            if let Some(sub) = sub
                && !mutant::on(Mutant::StartUntold)
            {
                verdict.start_seq = self.starts(sub);
            }
        }
    }

    /// What becomes of a delivery that the client has in hand.
    fn reconcile_delivery(
        &mut self,
        now: Millis,
        session: SessionKey,
        listed: &ClientInflight,
        resumed: bool,
    ) -> (InflightResult, bool) {
        use crate::messages::settle::How;
        let tag = listed.tag.as_str();
        if !resumed && self.is_lost_track_of(tag) {
            return (InflightResult::Requeued, false);
        }
        if self.is_being_cleared(tag) {
            // Whether it stays is known when that is done: what is settled is said again then.
            let said = listed.state == InflightState::Settled;
            return (if said { InflightResult::Kept } else { InflightResult::Requeued }, false);
        }
        let nacked = listed.settle == Some(Settle::Nack);
        if nacked && self.store.retries.is_full() {
            // It is said again when there is room for what may come of it.
            return (InflightResult::Kept, false);
        }
        let given_back = NackParams { tags: Vec::new(), delay_ms: None, dead: false, reason: None };
        let how = match (listed.state, listed.settle) {
            (InflightState::Settled, Some(Settle::Nack)) => How::Nack(&given_back),
            (InflightState::Settled, _) => How::Ack,
            (InflightState::Processing, _) => return (self.keep_in_hand(now, session, tag), false),
        };
        match self.settle_one(now, session, tag, how) {
            Ok(durable) => (InflightResult::Settled, durable),
            Err(reason) => {
                self.messages.lates.reject(reason);
                (InflightResult::Requeued, false)
            }
        }
    }

    /// Whether a delivery of an earlier lease is not here any more: nobody can say then that its reader settled it.
    fn is_lost_track_of(&self, tag: &str) -> bool {
        let Some(parts) = TagParts::parse(tag) else { return false };
        let reading = self.messages.readings.get(&GroupId(parts.group));
        reading.is_some_and(|reading| reading.is_lost_track_of(parts.seq))
    }

    /// A delivery that the client works on stays in its hand, or comes back to it if nobody has had it since.
    fn keep_in_hand(&mut self, now: Millis, session: SessionKey, tag: &str) -> InflightResult {
        let Some(parts) = TagParts::parse(tag).filter(|parts| parts.session == session) else {
            return InflightResult::Requeued;
        };
        let (id, seq) = (GroupId(parts.group), parts.seq);
        if self.messages.fits(id, &parts) == Some(false) || self.messages.needs_proof(id, &parts) {
            return InflightResult::Requeued;
        }
        self.messages.believe(id, &parts);
        let claim = self.claim(id, &parts, &session);
        let Some(reading) = self.messages.readings.get(&id) else { return InflightResult::Requeued };
        match claim {
            Claim::Done => return InflightResult::Settled,
            Claim::DoneByOther | Claim::Stale(_) => return InflightResult::Requeued,
            Claim::Good => {}
        }
        let held = reading.group.open(seq).is_some_and(|open| open.holder().is_some());
        let until = self.ack_deadline(now, id);
        let Some(lease) = self.sessions.lease_mut(&session) else { return InflightResult::Requeued };
        let Some((sub_id, sub)) = lease.subs.iter_mut().find(|(_, sub)| sub.groups.contains(&id)) else {
            return InflightResult::Requeued;
        };
        sub.hold_freely(id, seq);
        sub.unread.remove(&(id, seq));
        if let Some(reading) = self.messages.readings.get_mut(&id) {
            if held {
                reading.group.progress(seq, until);
            } else {
                reading.group.reclaim(seq, Holder { session, sub: sub_id.clone() }, until);
            }
            reading.group.know_mark(seq, parts.mark);
        }
        if let Some(run) = self.run_at(id, seq) {
            self.runs.claim(run, session);
        }
        if !held {
            self.messages.look_for_run(id, seq);
        }
        self.messages.touch(id);
        InflightResult::Kept
    }

    /// Whether a place of a subscription was there at the start.
    fn is_restored(&self, sub: &Sub) -> bool {
        let mut places = sub.groups.iter().filter_map(|place| self.messages.readings.get(place));
        places.any(|reading| reading.restored_at.is_some())
    }

    /// Makes a subscription again that only the client knows, after what it has.
    fn restore_subscription(&mut self, session: SessionKey, restore: Restore) -> Result<(), NotMade> {
        let closed = |reason| move |_| NotMade::Closed(reason);
        let Restore {
            view: SubView { sub: id, topic, group, partition, ack_mode, prefetch, .. },
            positions,
            ..
        } = restore;
        self.may(session, Right::Read).map_err(closed("forbidden"))?;
        self.may_owe().map_err(closed("too_many"))?;
        self.check_groups(session, &topic, group.as_ref(), partition).map_err(closed("too_many"))?;
        if self.messages.was_deleted(&topic) || self.messages.crews.was_deleted(&topic, group.as_ref()) {
            return Err(NotMade::Closed("deleted"));
        }
        self.ensure_topic(session, &topic).map_err(closed("too_many"))?;
        let partitions = self.messages.topics.get(&topic).map_or(1, |topic| topic.record.partitions);
        if partition.is_some_and(|partition| partition >= partitions) {
            return Err(NotMade::Closed("invalid"));
        }
        let shared = match self.sessions.lease(&session).map(|lease| &lease.state) {
            Some(State::Online(carrier)) => &carrier.shared,
            _ => &SharedHistory::All,
        };
        let starts: Vec<From> = (0..partitions)
            .map(|partition| {
                let log = LogName::Topic(topic.clone(), partition);
                let end = self.messages.logs.lane(&log, Lane(0)).map_or(0, |lane| lane.end);
                Ok(match positions.get(&partition) {
                    // The position is one of another history: all that is here may be new to the client.
                    _ if !shared.has(&log) => From::Earliest,
                    Some(seq) if *seq > end && group.is_none() => return Err(NotMade::Rewound),
                    Some(seq) if *seq > end => From::Earliest,
                    Some(seq) => From::Seq(U53::saturating(seq + 1)),
                    None => From::New,
                })
            })
            .collect::<Result<_, _>>()?;
        let from = |partition: u32| starts.get(partition as usize).copied().unwrap_or(From::New);
        let mut sub = Sub::new(Source::Topic { topic, group, partition }, ack_mode, prefetch);
        // Nobody waits for it, but until the store has it there is nothing to hand out.
        sub.opening = Some(Vec::new());
        self.add_subscription(session, Some(id), sub, from);
        Ok(())
    }

    fn doubt_all(&mut self, session: SessionKey) {
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        for (_, sub) in lease.subs.iter_mut() {
            sub.doubt();
        }
    }

    /// Every subscription of a session may have something coming.
    pub(crate) fn wake_all(&mut self, session: SessionKey) {
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        lease.subs.eager = lease.subs.ids().into_iter().collect();
        self.rouse(session);
    }

    /// A hello announces a `reconcile` request: nothing is delivered until that comes, or `until`.
    fn announce_list(&mut self, session: SessionKey, until: Millis, resumed: bool) {
        let subs = self.asked_for(session);
        if let Some(State::Online(carrier)) = self.sessions.lease_mut(&session).map(|lease| &mut lease.state)
        {
            carrier.muted = Muted::Deliveries { until };
            carrier.announced = Some(Announced { resumed, subs });
        }
    }

    pub(crate) fn mute(&mut self, session: SessionKey, muted: Muted) {
        if let Some(State::Online(carrier)) = self.sessions.lease_mut(&session).map(|lease| &mut lease.state)
        {
            carrier.muted = muted;
        }
    }

    /// Answers a hello that has waited for the store.
    pub(crate) fn welcome(&mut self, conn: ConnId, request: RequestId, answer: Box<HelloAnswer>) {
        let session = answer.session;
        self.effects.push_back(crate::respond(conn, request, Answer::Hello(answer)));
        if self.sessions.carried_by(conn) == Some(session) {
            self.mute(session, Muted::No);
            self.rouse(session);
        }
    }
}

fn view(id: &SubId, sub: &Sub, restored: bool) -> Option<SubView> {
    let Source::Topic { topic, group, partition } = &sub.source else { return None };
    Some(SubView {
        sub: id.clone(),
        topic: topic.clone(),
        group: group.clone(),
        partition: *partition,
        ack_mode: sub.ack_mode,
        prefetch: sub.prefetch,
        restored,
    })
}

/// The store did not take what was settled: the client still has it in hand, and will say so again.
pub(crate) fn unsettle(result: &mut ReconcileResult) {
    for verdict in &mut result.inflight {
        if verdict.result == InflightResult::Settled {
            verdict.result = InflightResult::Kept;
        }
    }
}
