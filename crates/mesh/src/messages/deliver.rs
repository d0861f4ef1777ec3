//! Deliveries: who is handed what, when its socket can take it.
//!
//! Readers pull. When a log grows or something is given back, its readers are roused; when a reader's turn comes
//! it takes what its credit allows, so that a slow one holds back only itself.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::event::EventBody;
use tenure_proto::ids::{SessionKey, SubId};
use tenure_proto::number::U53;
use tenure_proto::subscribe::{SubscriptionEvent, SubscriptionEventKind};

use crate::Mesh;
use crate::effect::{Answer, Effect, Note};
use crate::messages::group::Holder;
use crate::messages::placing::Placed;
use crate::messages::pull::{PUSHES, Pull};
use crate::messages::reads::Purpose;
use crate::messages::{Gap, Moment};
use crate::sessions::lease::State;
use crate::store::pending::Awaiting;
use crate::store::record::{GroupId, GroupWrite, Reader, SettlerChanges, StoreRead, StoreWrite};

/// How long a change of a group that nobody waits for may wait for company.
const LAZY_MS: u64 = 25;
/// How often the store is told where private readers are.
const FLOORS_MS: u64 = 5_000;
/// How long what the store could not take, or not read, waits before it is tried again.
pub(crate) const RETRY_MS: u64 = 1_000;

impl Mesh {
    /// Rouses the readers of groups that have something to hand out.
    pub(crate) fn rouse_readers(&mut self) {
        for id in std::mem::take(&mut self.messages.wakes) {
            self.rouse_group(id);
        }
    }

    fn rouse_group(&mut self, id: GroupId) {
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        self.messages.visits += 1;
        let lane = self.messages.logs.lane(&reading.record.log, reading.record.lane);
        let behind = lane.map_or(0, |lane| lane.count.saturating_sub(reading.passed.0)) as usize;
        let behind = behind.max(usize::from(lane.is_some_and(|lane| lane.end > reading.group.cursor())));
        let mut left = behind + reading.group.ready().take(PUSHES).count();
        if left == 0
            && !mutant::on(Mutant::CaughtUpUnwoken)
            && let Some(lane) = self.messages.logs.lane_mut(&reading.record.log, reading.record.lane)
        {
            // What it was to read is gone: no reader comes to the end of the log and asks to be told of what follows.
            lane.waiting.insert(id);
        }
        let (mut roused, mut able_ones, mut looked) = (Vec::new(), 0, 0);
        for _ in 0..reading.members.len() {
            let Some(holder) = reading.members.pop_front() else { break };
            looked += 1;
            let lease = self.sessions.lease_mut(&holder.session);
            if let Some(lease) = lease
                && let Some(sub) = lease.subs.get_mut(&holder.sub)
            {
                let unread = sub.unread.range((id, 0)..=(id, u64::MAX)).next().is_some();
                let fetching = !sub.fetches.is_empty();
                let able = sub.credit(id) > 0 || unread || fetching;
                able_ones += usize::from(able);
                if able && (left > 0 || unread || fetching) {
                    lease.subs.eager.insert(holder.sub.clone());
                    let free = matches!(&lease.state, State::Online(c) if c.unflushed.is_none());
                    left -= usize::from(free && left > 0);
                    roused.push(holder.session);
                }
            }
            reading.members.push_back(holder);
            if left == 0 && reading.is_shared() {
                break;
            }
        }
        // None of them can take anything: a post need not look at this group until one can, which then reads on by itself.
        if reading.is_shared()
            && able_ones == 0
            && looked == reading.members.len()
            && let Some(lane) = self.messages.logs.lane_mut(&reading.record.log, reading.record.lane)
        {
            lane.waiting.remove(&id);
        }
        for session in roused {
            self.rouse(session);
        }
    }

    /// Rouses whoever has these entries in hand: they can be pushed again.
    pub(crate) fn rouse_holders(&mut self, id: GroupId, seqs: &[u64]) {
        let Some(reading) = self.messages.readings.get(&id) else { return };
        let holder = |seq: &u64| reading.group.open(*seq).and_then(|open| open.holder().cloned());
        let holders: Vec<Holder> = seqs.iter().filter_map(holder).collect();
        for Holder { session, sub } in holders {
            let Some(lease) = self.sessions.lease_mut(&session) else { continue };
            if lease.subs.get(&sub).is_some() {
                lease.subs.eager.insert(sub);
                self.rouse(session);
            }
        }
    }

    /// Lets go of entries that were only looked for: whoever has them in hand need not be handed them again.
    pub(crate) fn forget_bodies(&mut self, id: GroupId, seqs: &[u64]) {
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        for seq in seqs {
            let Some(holder) = reading.group.open(*seq).and_then(|open| open.holder()) else { continue };
            let sub = self.sessions.lease(&holder.session).and_then(|lease| lease.subs.get(&holder.sub));
            if sub.is_some_and(|sub| !sub.unread.contains(&(id, *seq))) {
                reading.again.remove(seq);
            }
        }
    }

    /// What was asked for has come from disk, or is not there: fetches that waited for it are answered.
    pub(crate) fn rouse_fetches(&mut self, id: GroupId) {
        let Some(reading) = self.messages.readings.get(&id) else { return };
        let mut roused = Vec::new();
        for Holder { session, sub } in &reading.members {
            let Some(lease) = self.sessions.lease_mut(session) else { continue };
            if lease.subs.get(sub).is_some_and(|sub| !sub.fetches.is_empty()) {
                lease.subs.eager.insert(sub.clone());
                roused.push(*session);
            }
        }
        for session in roused {
            self.rouse(session);
        }
    }

    /// Reads that came to nothing are tried again.
    pub(crate) fn read_again(&mut self, now: Millis) {
        if self.messages.reads_due.is_some_and(|due| now >= due) {
            self.messages.reads_due = None;
            let starved = std::mem::take(&mut self.messages.starved);
            for id in &starved {
                self.rouse_fetches(*id);
            }
            self.messages.wakes.extend(starved);
        }
    }

    /// Lets a session's turn come, if its socket can take anything.
    pub(crate) fn rouse(&mut self, session: SessionKey) {
        self.sessions.mark_ready(session);
    }

    /// Answers fetches that waited for entries from disk.
    pub(crate) fn serve_fetches(&mut self, session: SessionKey) {
        let moment = self.moment();
        let Some(lease) = self.sessions.lease(&session) else { return };
        let waits = |id: &&SubId| lease.subs.get(id).is_some_and(|sub| !sub.fetches.is_empty());
        let waiting: Vec<SubId> = lease.subs.eager.iter().filter(waits).cloned().collect();
        for id in waiting {
            let claiming = self.is_claiming(session, &id);
            let Some(lease) = self.sessions.lease_mut(&session) else { return };
            while let Some(fetch) = lease.subs.get_mut(&id).and_then(|sub| sub.fetches.pop_front()) {
                let Some(sub) = lease.subs.get_mut(&id) else { break };
                let (pushes, loading) = Pull { messages: &mut self.messages, runs: &mut self.runs, moment }
                    .fetch(session, &id, sub, fetch.limit);
                if pushes.is_empty() && (loading || claiming) {
                    sub.fetches.push_front(fetch);
                    break;
                }
                if self.messages.is_contended(&pushes) {
                    self.messages.urgent = true;
                    let fetched = Box::new(Answer::Fetch(pushes));
                    self.store.wait_for_round(Awaiting::Answer(fetch.to, fetched));
                } else {
                    self.effects.push_back(fetch.to.answer(Ok(Answer::Fetch(pushes))));
                }
            }
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            now: self.clock.now(),
            wall: self.clock.wall(),
            ack_timeout_ms: self.config.ack_timeout_ms,
            retries_full: self.store.retries.is_full(),
            expires: !self.clock.is_doubted() && !mutant::on(Mutant::TtlIgnored),
        }
    }

    /// Tells the store what goes to the dead letters.
    pub(crate) fn write_burials(&mut self) {
        for burial in std::mem::take(&mut self.messages.burials) {
            let (log, seq, reason) = (burial.log.clone(), burial.seq, burial.reason.clone());
            self.effects.push_back(Effect::Note(Note::Buried { log, seq, reason }));
            self.write_surely(StoreWrite::Bury(Box::new(burial)));
        }
    }

    /// Ends a round: tells the store, its readers and sessions what the inputs and the handing out of this round have
    /// caused. The order of the steps is the order of the writes, and that is what makes a crash between any two harmless.
    ///
    /// 1. Reads that readers need go out.
    /// 2. Runs that came to a session which may not answer them are ended.
    /// 3. What failed goes to the dead letters: before its group is written as done with it.
    /// 4. Groups that changed are written, with the claims of what was handed out: at once if a caller waits or something
    ///    else was written anyway, together after a moment otherwise.
    /// 5. Who has taken which run is written, behind the claim of its message.
    /// 6. The ends of runs are written, behind what became of their messages.
    /// 7. Callers whose settles this round has written now wait for all of it to be on disk
    ///    ([`StoreQueue`](crate::store::queue::StoreQueue) holds both kinds of waiting).
    /// 8. Deliveries whose claims are on their way to the disk wait for those; they are pushed afterwards.
    /// 9. Readers are told what was gone before they could read it.
    pub(crate) fn finish_round(&mut self) {
        let now = self.clock.now();
        for (id, read) in self.messages.wanted_reads() {
            let purpose = match &read {
                StoreRead::Entries { seqs, .. } => Purpose::Again(id, seqs.clone()),
                _ => Purpose::Page(id),
            };
            self.read(purpose, read);
        }
        self.end_unanswerable();
        self.write_burials();
        let wrote = self.effects.iter().any(|effect| matches!(effect, Effect::Write { .. }));
        self.messages.urgent |= !self.messages.parked.is_empty() && self.store.is_sound();
        self.write_groups(now, wrote);
        self.write_run_claims();
        self.write_run_ends();
        self.await_round(now);
        self.await_claims(now);
        for gap in std::mem::take(&mut self.messages.gaps) {
            self.tell_gap(gap);
        }
    }

    fn write_groups(&mut self, now: Millis, wrote: bool) {
        let messages = &mut self.messages;
        if messages.floors_due.is_some_and(|due| now >= due) {
            messages.floors_due = None;
            self.write_floors();
        }
        let messages = &mut self.messages;
        if !messages.lagging.is_empty() && messages.floors_due.is_none() {
            messages.floors_due = Some(now.plus(FLOORS_MS));
        }
        if messages.writable().next().is_none() && !self.store.retries.is_due() {
            (messages.urgent, messages.lazy_due) = (false, None);
            return;
        }
        let lazy_over = messages.lazy_due.is_some_and(|due| now >= due);
        if !(messages.urgent || lazy_over || (wrote && self.store.is_sound())) {
            messages.lazy_due.get_or_insert(now.plus(LAZY_MS));
            return;
        }
        (messages.urgent, messages.lazy_due) = (false, None);
        self.write_owed();
        self.write_dirty();
    }

    fn write_dirty(&mut self) {
        for id in self.messages.writable().collect::<Vec<_>>() {
            self.messages.dirty.remove(&id);
            self.write_group(id);
        }
    }

    /// Tells the store all that it does not know: the broker stops.
    pub(crate) fn write_everything(&mut self) {
        self.write_owed();
        self.write_floors();
        self.write_dirty();
    }

    pub(crate) fn write_group(&mut self, id: GroupId) {
        let wall = self.clock.wall();
        let Some(reading) = self.messages.readings.get_mut(&id).filter(|reading| reading.is_made()) else {
            return;
        };
        reading.used_at = reading.used_at.max(wall);
        let changes = reading.group.take_changes();
        let write = GroupWrite {
            record: reading.record.clone(),
            cursor: reading.group.cursor(),
            used_at: reading.used_at,
            replace: changes.replace,
            put: changes.put,
            del: changes.del,
            settlers: changes.settlers,
        };
        if reading.placed == Placed::No {
            reading.placed = Placed::Asked;
        }
        let receipts = std::mem::take(&mut reading.receipts);
        self.write_for(Awaiting::Group(id, receipts), StoreWrite::Group(Box::new(write)));
    }

    /// Tells the store where private readers are: up to where each has settled everything.
    pub(crate) fn write_floors(&mut self) {
        for id in std::mem::take(&mut self.messages.lagging) {
            let wall = self.clock.wall();
            let Some(reading) = self.messages.readings.get_mut(&id).filter(|reading| reading.is_made())
            else {
                continue;
            };
            reading.group.take_changes();
            let cursor = reading.group.floor();
            let record = reading.record.clone();
            let Reader::Private(session) = &record.reader else { continue };
            let lease = self.sessions.lease(session).map(|lease| &lease.state);
            // The store drops the places of a lease that ends; they must not come up again behind that.
            let ending = lease.is_none_or(|state| matches!(state, State::Ending(..)));
            if cursor == reading.floor_told || ending {
                continue;
            }
            reading.floor_told = cursor;
            // Nobody but its one reader has its entries in hand.
            let settlers = SettlerChanges::default();
            let (put, del) = (Vec::new(), Vec::new());
            let write = GroupWrite { record, cursor, used_at: wall, replace: true, put, del, settlers };
            self.write_for(Awaiting::Floor(id), StoreWrite::Group(Box::new(write)));
        }
    }

    /// The store did not take a group: it is told all of it in a while.
    pub(crate) fn group_lost(
        &mut self,
        now: Millis,
        id: GroupId,
        receipts: Vec<(SessionKey, tenure_proto::event::Receipt)>,
    ) {
        let Some(reading) = self.messages.readings.get_mut(&id) else { return };
        reading.group.changes_lost();
        if reading.placed == Placed::Asked {
            reading.placed = Placed::No;
        }
        reading.receipts.splice(0..0, receipts);
        self.messages.dirty.insert(id);
        self.messages.lazy_due = Some(now.plus(RETRY_MS));
    }

    fn tell_gap(&mut self, gap: Gap) {
        let event = SubscriptionEvent {
            sub_id: gap.holder.sub,
            kind: SubscriptionEventKind::Gap,
            partition: gap.partition,
            from: Some(U53::saturating(gap.from)),
            to: Some(U53::saturating(gap.to)),
            reason: None,
        };
        self.tell(gap.holder.session, EventBody::Subscription(event), 128);
    }
}
