//! Settling: what becomes of entries in hand, by their reader's word or without it.

use std::collections::BTreeMap;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::ReceiptState;
use tenure_proto::ids::{ConnId, SessionKey, SubId, Tag};
use tenure_proto::limits::{DELAY_MAX_MS, MAX_ATTEMPTS, REASON_BYTES, TAGS_PER_SETTLE};
use tenure_proto::message::{NackParams, SettleResult, StaleTag};
use tenure_proto::tag::TagParts;

use crate::Mesh;
use crate::effect::{Answer, Effect, Note};
use crate::messages::group::{Claim, Fired, Holder, Verdict};
use crate::reply::{Caller, Reply};
use crate::store::pending::Awaiting;
use crate::store::record::GroupId;

/// How long somebody waits who settles what may be on its way elsewhere.
const CLEARING_RETRY_MS: u64 = 100;

/// How a delivery is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How<'a> {
    Ack,
    Nack(&'a NackParams),
    Progress,
}

/// Late settles of one request.
#[derive(Debug, Default)]
pub(crate) struct Lates {
    /// Those that took effect.
    accepted: usize,
    /// Those that did not, by reason; at most as many as there are reasons.
    rejected: BTreeMap<&'static str, usize>,
}

impl Lates {
    /// One did not take effect.
    pub(crate) fn reject(&mut self, reason: &'static str) {
        *self.rejected.entry(reason).or_default() += 1;
    }
}

impl Mesh {
    pub(crate) fn settle(&mut self, caller: &Caller, tags: &[Tag], how: How<'_>) -> Result<Reply, WireError> {
        let session = caller.session;
        check(tags, how)?;
        if matches!(how, How::Nack(_)) {
            self.may_owe()?;
        }
        if tags.iter().any(|tag| self.is_being_cleared(tag.as_str())) {
            // What is said now of what is on its way elsewhere would be said to nobody.
            return Err(clearing());
        }
        let now = self.clock.now();
        let mut result = SettleResult::default();
        let mut durable = false;
        for tag in tags {
            match self.settle_one(now, session, tag.as_str(), how) {
                Ok(waits) => {
                    durable |= waits;
                    result.settled.push(tag.clone());
                }
                Err(reason) => {
                    self.messages.lates.reject(reason);
                    result.stale.push(StaleTag { tag: tag.clone(), reason: reason.to_owned() });
                }
            }
        }
        self.note_lates(session, caller.conn);
        Ok(self.after_round(caller, durable, Answer::Settle(result)))
    }

    /// Answers at the end of the round, when the store knows what it settled; at once if the store need not know.
    pub(crate) fn after_round(&mut self, caller: &Caller, waits: bool, answer: Answer) -> Reply {
        if !waits {
            return Reply::Now(answer);
        }
        self.store.wait_for_round(Awaiting::Answer(caller.reply_to(), Box::new(answer)));
        Reply::Later
    }

    /// Whether a tag is of an inbox that the store is clearing after the end of a lease.
    pub(crate) fn is_being_cleared(&self, tag: &str) -> bool {
        let Some(parts) = TagParts::parse(tag) else { return false };
        let reading = self.messages.readings.get(&GroupId(parts.group));
        let log = reading.and_then(|reading| self.messages.logs.get(&reading.record.log));
        log.is_some_and(|log| log.evacuating)
    }

    /// Settles one delivery. `Ok`: it took effect, now or before, and whether the store must know first.
    pub(crate) fn settle_one(
        &mut self,
        now: Millis,
        session: SessionKey,
        tag: &str,
        how: How<'_>,
    ) -> Result<bool, &'static str> {
        let parts = TagParts::parse(tag).ok_or("unknown_tag")?;
        if parts.session != session {
            return Err("not_owner");
        }
        if parts.attempt == 0 {
            return Err("never_delivered");
        }
        let id = GroupId(parts.group);
        let reading = self.messages.readings.get(&id).ok_or("no_such_group")?;
        let durable = !reading.is_private();
        if self.messages.fits(id, &parts) == Some(false) || self.messages.needs_proof(id, &parts) {
            return Err("unknown_tag");
        }
        self.messages.believe(id, &parts);
        let claim = self.claim(id, &parts, &session);
        let reading = self.messages.readings.get(&id).ok_or("no_such_group")?;
        match claim {
            Claim::Stale(reason) => return Err(reason),
            // There is nothing to prolong, and whoever works on it may stop.
            Claim::Done | Claim::DoneByOther if matches!(how, How::Progress) => return Err("settled"),
            Claim::DoneByOther => return Err("requeued"),
            // Said before; the store may still be about to hear of it.
            Claim::Done => {
                self.messages.urgent |= self.messages.dirty.contains(&id) || self.store.retries.is_due();
                return Ok(durable);
            }
            Claim::Good => {}
        }
        let late = reading.group.open(parts.seq).is_some_and(|open| open.holder().is_none());
        if late && matches!(how, How::Progress) {
            // There is no claim to prolong.
            return Err("requeued");
        }
        if !matches!(how, How::Progress) && (late || self.was_carried(id, parts.seq)) {
            self.messages.lates.accepted += 1;
        }
        match how {
            How::Ack => self.ack(id, parts.seq, parts.attempt, &session),
            How::Nack(params) => self.nack(now, id, &parts, params),
            How::Progress => {
                let until = self.ack_deadline(now, id);
                if let Some(reading) = self.messages.readings.get_mut(&id) {
                    reading.group.progress(parts.seq, until);
                }
                self.messages.touch(id);
                return Ok(false);
            }
        }
        self.messages.urgent |= durable;
        Ok(durable)
    }

    /// What a tag is worth.
    pub(crate) fn claim(&self, id: GroupId, parts: &TagParts, session: &SessionKey) -> Claim {
        let Some(reading) = self.messages.readings.get(&id) else { return Claim::Stale("no_such_group") };
        let claim = reading.claim(parts.seq, parts.attempt, session);
        // It was handed to an earlier lease, and may have moved on when that ended.
        let is_new = || self.sessions.lease(session).is_some_and(|lease| !lease.restored);
        if claim == Claim::Done && reading.was_lost_track_of(parts.seq) && is_new() {
            return Claim::Stale("requeued");
        }
        claim
    }

    /// Whether an entry in hand was pushed through an earlier socket than its session has now.
    fn was_carried(&self, id: GroupId, seq: u64) -> bool {
        let open = self.messages.readings.get(&id).and_then(|reading| reading.group.open(seq));
        let Some(Holder { session, sub }) = open.and_then(|open| open.holder()) else { return false };
        let sub = self.sessions.lease(session).and_then(|lease| lease.subs.get(sub));
        sub.is_some_and(|sub| sub.carried.contains(&(id, seq)))
    }

    /// Says how many late settles of a request took effect, and how many did not and why.
    pub(crate) fn note_lates(&mut self, session: SessionKey, conn: ConnId) {
        let Lates { accepted, rejected } = std::mem::take(&mut self.messages.lates);
        if accepted > 0 {
            self.effects.push_back(Effect::Note(Note::LateSettleAccepted { session, conn, count: accepted }));
        }
        for (reason, count) in rejected {
            self.effects.push_back(Effect::Note(Note::LateSettleRejected { session, conn, reason, count }));
        }
    }

    /// Deliveries that count as settled because they were written.
    pub(crate) fn settle_written(&mut self, session: SessionKey, written: Vec<(GroupId, u64, u32)>) {
        for (group, seq, attempt) in written {
            self.ack(group, seq, attempt, &session);
        }
    }

    fn ack(&mut self, id: GroupId, seq: u64, attempt: u32, session: &SessionKey) {
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        if let Verdict::Settled(open, holder) = reading.group.settle(seq, attempt, session) {
            reading.note_settler(seq, attempt, *session);
            reading.receipt(open.origin, ReceiptState::Delivered, None);
            self.messages.touch(id);
            self.released(id, seq, holder);
        }
    }

    /// Gives an entry back, or sends it to the dead letters when it has failed often enough.
    fn nack(&mut self, now: Millis, id: GroupId, parts: &TagParts, params: &NackParams) {
        let seq = parts.seq;
        let delay_ms = params.delay_ms.map_or(0, |ms| ms.get());
        let delay = (delay_ms > 0).then(|| (now.plus(delay_ms), self.clock.wall().saturating_add(delay_ms)));
        let Some(open) = self.messages.readings.get(&id).and_then(|reading| reading.group.open(seq)) else {
            return;
        };
        let (put_off, failed, tries) = (open.is_put_off(), open.has_failed(), open.tries);
        if let Some(run) = self.run_at(id, seq) {
            return self.refuse_run(run, params.reason.as_deref());
        }
        if put_off && !params.dead {
            // Said again: it waits already.
            return;
        }
        let worn_out = tries + u32::from(!failed) >= MAX_ATTEMPTS;
        if params.dead || worn_out {
            let given = params.reason.as_deref().filter(|_| params.dead);
            let reason = given.unwrap_or(if params.dead { "rejected" } else { "max_attempts" });
            self.kill(id, parts, reason);
            return;
        }
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        let holder = reading.group.give_back(seq, delay, true);
        self.messages.touch(id);
        self.messages.wakes.insert(id);
        self.released(id, seq, holder);
    }

    /// Sends an open entry to the dead letters, by the word of who has it in hand.
    fn kill(&mut self, id: GroupId, parts: &TagParts, reason: &str) {
        let seq = parts.seq;
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        let Some(open) = reading.group.remove(seq) else { return };
        reading.note_settler(parts.seq, parts.attempt, parts.session);
        let holder = open.holder().cloned();
        self.messages.bury(id, seq, Some(open), reason, ReceiptState::Dead, self.clock.wall(), None);
        self.released(id, seq, holder);
    }

    /// An entry has left its holder's hand: there is room for another.
    pub(crate) fn released(&mut self, id: GroupId, seq: u64, holder: Option<Holder>) {
        let Some(Holder { session, sub }) = holder else { return };
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        if let Some(found) = lease.subs.get_mut(&sub) {
            found.release(id, seq);
            lease.subs.eager.insert(sub);
            self.rouse(session);
        }
    }

    /// Gives an entry back without its reader's word, if it is in that session's hand. A crew counts a reader that
    /// was `lost` with it as a failure, so that what kills every reader ends among the dead letters.
    pub(crate) fn return_to(&mut self, id: GroupId, seq: u64, session: &SessionKey, lost: bool) -> bool {
        let Some(reading) = self.messages.readings.get_mut(&id) else { return false };
        let held = reading.group.open(seq).and_then(|open| open.holder());
        if held.is_none_or(|holder| holder.session != *session) {
            return false;
        }
        let counts = lost && reading.is_shared();
        reading.group.give_back(seq, None, counts);
        let worn_out = reading.group.open(seq).is_some_and(|open| open.tries >= MAX_ATTEMPTS);
        // What may not be owed yet is buried when it fails again.
        if counts && worn_out && !self.store.retries.is_full() {
            let wall = self.clock.wall();
            self.messages.bury(id, seq, None, "max_attempts", ReceiptState::Dead, wall, None);
        }
        self.messages.touch(id);
        self.messages.wakes.insert(id);
        true
    }

    /// A session's socket is gone: what it has in hand stays its own, for a while that crews keep short.
    pub(crate) fn set_aside(&mut self, session: SessionKey) {
        let grace_ms = self.config.reconnect_grace_ms;
        let until = self.clock.now().plus(grace_ms);
        self.forget_fetches(session);
        // What it was about to be handed is for others now.
        let lease = self.sessions.lease(&session);
        let places = lease.into_iter().flat_map(|lease| lease.subs.iter()).flat_map(|(_, sub)| &sub.groups);
        self.messages.wakes.extend(places.copied());
        if grace_ms == 0 || mutant::on(Mutant::RequeueAtClose) {
            self.release_crews(session);
        } else {
            self.release_later(session, until);
        }
    }

    /// A session's socket is gone, and with it whoever waited for fetched entries there.
    pub(crate) fn forget_fetches(&mut self, session: SessionKey) {
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        for (_, sub) in lease.subs.iter_mut() {
            sub.lose_socket();
        }
        lease.subs.cleared.clear();
    }

    /// What crews have in a session's hand goes back at `until`, unless it is here again by then.
    pub(crate) fn release_later(&mut self, session: SessionKey, until: Millis) {
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        let shared = |id: &GroupId| self.messages.readings.get(id).is_some_and(|reading| reading.is_shared());
        let holds = lease.subs.iter().any(|(_, sub)| sub.held().any(|(id, _)| shared(&id)));
        lease.subs.release_at = holds.then_some(until);
    }

    /// What crews have in a session's hand goes back: it was away too long.
    pub(crate) fn release_crews(&mut self, session: SessionKey) {
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        lease.subs.release_at = None;
        let mut requeued = 0;
        for sub in lease.subs.ids() {
            let held: Vec<(GroupId, u64)> =
                match self.sessions.lease(&session).and_then(|lease| lease.subs.get(&sub)) {
                    Some(found) => found.held().collect(),
                    None => continue,
                };
            for (id, seq) in held {
                if self.messages.readings.get(&id).is_some_and(|reading| reading.is_shared()) {
                    let lost = self.was_pushed(&session, &sub, id, seq);
                    requeued += usize::from(self.return_to(id, seq, &session, lost));
                    if let Some(found) = self.sessions.lease_mut(&session).and_then(|l| l.subs.get_mut(&sub))
                    {
                        found.release(id, seq);
                    }
                }
            }
        }
        if requeued > 0 && self.sessions.is_restored(&session) {
            self.effects.push_back(Effect::Note(Note::StartupReleased { session, count: requeued }));
        }
        self.note_requeued(session, self.last_conn(&session), requeued);
    }

    /// Whether an entry was pushed to who has it in hand. What was not is no try: nobody can have read it.
    fn was_pushed(&self, session: &SessionKey, sub: &SubId, id: GroupId, seq: u64) -> bool {
        let sub = self.sessions.lease(session).and_then(|lease| lease.subs.get(sub));
        sub.is_some_and(|sub| sub.was_pushed(id, seq))
    }

    /// Says how many entries went back from a session whose last socket was this.
    pub(crate) fn note_requeued(&mut self, session: SessionKey, conn: Option<ConnId>, count: usize) {
        if count > 0 {
            self.effects.push_back(Effect::Note(Note::Requeued { session, conn, count }));
        }
    }

    /// The last socket that carried a session in this run, if its lease lives.
    pub(crate) fn last_conn(&self, session: &SessionKey) -> Option<ConnId> {
        self.sessions.lease(session).and_then(|lease| lease.latest)
    }

    /// Delays that are over and holders that are late.
    pub(crate) fn fire_groups(&mut self, now: Millis) {
        // Bounded: each due group fires at most this often in one tick, and is due again at once.
        const FIRED_PER_TICK: usize = 4_096;
        let mut left = FIRED_PER_TICK;
        while left > 0
            && let Some(id) = self.messages.deadlines.pop_due(now)
        {
            while left > 0
                && let Some(fired) = self.messages.readings.get_mut(&id).and_then(|r| r.group.fire(now))
            {
                left -= 1;
                if let Fired::TimedOut(seq, _) = fired {
                    let holder = self
                        .messages
                        .readings
                        .get(&id)
                        .and_then(|reading| reading.group.open(seq))
                        .and_then(|open| open.holder().cloned());
                    if let Some(holder) = &holder {
                        let lost = self.was_pushed(&holder.session, &holder.sub, id, seq);
                        self.return_to(id, seq, &holder.session, lost);
                        self.note_requeued(holder.session, self.last_conn(&holder.session), 1);
                    }
                    self.released(id, seq, holder);
                }
            }
            self.messages.touch(id);
            self.messages.wakes.insert(id);
        }
    }

    /// When an entry that is handed out now must be settled.
    pub(crate) fn ack_deadline(&self, now: Millis, id: GroupId) -> Option<Millis> {
        let shared = self.messages.readings.get(&id).is_some_and(|reading| reading.is_shared());
        shared.then(|| now.plus(self.config.ack_timeout_ms))
    }

    /// Who waited for this round to be written waits for it to be on disk.
    pub(crate) fn await_round(&mut self, now: Millis) {
        for who in self.store.take_round() {
            self.await_all(who, now);
        }
    }
}

/// What somebody is told who settles what may be on its way elsewhere.
fn clearing() -> WireError {
    let text = "the end of an earlier lease of this session is still being carried out; try again";
    WireError::new(ErrorCode::Unavailable, text).retry_after(CLEARING_RETRY_MS)
}

fn check(tags: &[Tag], how: How<'_>) -> Result<(), WireError> {
    if tags.len() > TAGS_PER_SETTLE {
        return Err(WireError::bad_request(format!("at most {TAGS_PER_SETTLE} tags in one request")));
    }
    let How::Nack(params) = how else { return Ok(()) };
    if params.delay_ms.is_some_and(|ms| ms.get() > DELAY_MAX_MS) {
        return Err(WireError::bad_request(format!(
            "delayMs must be at most {DELAY_MAX_MS}, which is 30 days"
        )));
    }
    if params.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES) {
        return Err(WireError::bad_request(format!("reason must be at most {REASON_BYTES} bytes")));
    }
    Ok(())
}
