//! What happens to messages by the clock alone: expiry, retention, and what a gone session leaves behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::event::{EventBody, Notice, ReceiptState};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::{DEAD_LETTER_MS, GROUP_UNUSED_MS, RUN_KEPT_MS};
use tenure_proto::log::LogName;
use tenure_proto::message::Fallback;
use tenure_proto::name::TopicName;

use crate::Mesh;
use crate::effect::{Effect, Note};
use crate::messages::envelope::{Entry, Lane};
use crate::messages::group::Open;
use crate::messages::origin;
use crate::messages::reading::Reading;
use crate::messages::reads::Purpose;
use crate::store::pending::Awaiting;
use crate::store::record::{Burial, GroupId, Moved, StoreRead, StoreWrite};

/// How often it is looked at all.
const UPKEEP_MS: u64 = 10_000;
/// Entries that one look at expiry takes.
const EXPIRED_PER_LOOK: u32 = 256;
/// Logs that one look at retention takes.
const LOGS_PER_LOOK: usize = 64;
/// Groups without a reader that one look takes.
const UNUSED_PER_LOOK: usize = 256;
/// Groups that one look at expiry asks, all entries together: each that has not settled an entry gets a dead letter of it.
const ASKED_PER_LOOK: usize = 4_096;
/// Entries that one slice of pruning deletes: a few milliseconds of the writer.
const PRUNED_PER_SLICE: u32 = 512;
/// Remembered ids that one slice of the sweep looks at.
const SWEPT_PER_SLICE: u32 = 1_024;
/// Entries that one slice of an evacuation looks at.
const MOVED_PER_SLICE: u32 = 128;
const HOUR_MS: u64 = 3_600_000;

/// What upkeep remembers between looks.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    due: Option<Millis>,
    sweep_due: Option<Millis>,
    /// The log that was pruned last.
    last_log: Option<LogName>,
    /// The topic that was last looked at for whether anybody uses it.
    pub(crate) last_topic: Option<TopicName>,
    /// How often the next look at expiry is doubled: the last ones found only what somebody has in hand.
    expire_shift: u32,
    /// Whether a look at expiry is under way.
    expiring: bool,
    /// Inboxes that are being cleared.
    evacuations: BTreeMap<SessionKey, Evacuation>,
}

/// An inbox that is being cleared: nothing of it is handed out until that is done.
#[derive(Clone, Copy, Debug)]
struct Evacuation {
    member: MemberKey,
    /// Where it goes on.
    after: (Lane, u64),
    /// The last seq that was there when the lease ended: what came later is meant for who is here now.
    through: u64,
    /// Whether the store is at it.
    running: bool,
}

impl Upkeep {
    /// Inboxes that are being cleared.
    pub(crate) fn evacuations(&self) -> usize {
        self.evacuations.len()
    }

    pub(crate) fn due(&self) -> Option<Millis> {
        self.due
    }
}

impl Mesh {
    pub(crate) fn begin_upkeep(&mut self) {
        let interrupted = !self.messages.upkeep.evacuations.is_empty() || !self.messages.deleting.is_empty();
        let first = if interrupted { 0 } else { self.upkeep_ms() };
        self.messages.upkeep.due = Some(self.clock.now().plus(first));
    }

    /// Looks no later than the numbers that hold now ask for.
    pub(crate) fn upkeep_soon(&mut self) {
        let soon = self.clock.now().plus(self.upkeep_ms());
        let due = &mut self.messages.upkeep.due;
        *due = due.map(|due| due.min(soon));
    }

    fn upkeep_ms(&self) -> u64 {
        UPKEEP_MS.min(self.config.lease_ttl_ms)
    }

    /// Looks after messages, if it is time.
    pub(crate) fn look_after(&mut self, now: Millis) {
        if self.messages.upkeep.due.is_none_or(|due| now < due) {
            return;
        }
        self.messages.upkeep.due = Some(now.plus(self.upkeep_ms()));
        for (session, evacuation) in self.messages.upkeep.evacuations.clone() {
            if !evacuation.running {
                let Evacuation { member, after, through, .. } = evacuation;
                self.evacuate(session, member, after, through);
            }
        }
        if self.store.is_sound() {
            self.clear_interrupted();
        }
        if self.clock.is_doubted() || !self.store.is_sound() {
            return;
        }
        self.drop_unused_topics();
        self.sweep(now);
        if self.messages.logs.iter().next().is_none() {
            return;
        }
        let expires = !mutant::on(Mutant::TtlIgnored);
        if expires && !std::mem::replace(&mut self.messages.upkeep.expiring, true) {
            let limit = EXPIRED_PER_LOOK << self.messages.upkeep.expire_shift;
            let read = StoreRead::Expired { now: self.clock.wall(), limit };
            self.read(Purpose::Expired, read);
        }
        // For its readers what is to be buried is settled: it must be a dead letter before it may leave its log.
        self.write_burials();
        if !self.store.retries.is_due() {
            self.prune_some();
        }
        self.drop_unused();
    }

    /// Lets the store forget a slice of what has outlived its time; rarely, while there are no messages at all.
    fn sweep(&mut self, now: Millis) {
        if self.messages.upkeep.sweep_due.is_some_and(|due| now < due) {
            return;
        }
        let first = self.messages.upkeep.sweep_due.is_none();
        let idle = self.messages.logs.iter().next().is_none();
        let pause = if idle { HOUR_MS } else { self.upkeep_ms() };
        self.messages.upkeep.sweep_due = Some(now.plus(pause));
        if first && idle {
            return;
        }
        let (now, dead_before) = (self.clock.wall(), self.clock.wall().saturating_sub(DEAD_LETTER_MS));
        let (runs_before, limit) = (self.clock.wall().saturating_sub(RUN_KEPT_MS), SWEPT_PER_SLICE);
        self.write(StoreWrite::Sweep { now, dead_before, runs_before, limit });
    }

    /// Entries whose time is over: whoever has not settled one does not get it any more.
    pub(crate) fn expired(&mut self, entries: Vec<Arc<Entry>>) {
        self.messages.upkeep.expiring = false;
        let (found, asked) = (entries.len(), EXPIRED_PER_LOOK << self.messages.upkeep.expire_shift);
        let (mut done, mut asked_groups) = (0, 0);
        for entry in entries {
            // The others are found again at the next look.
            if asked_groups >= ASKED_PER_LOOK {
                break;
            }
            asked_groups +=
                self.messages.logs.lane(&entry.log, entry.lane).map_or(0, |lane| lane.groups.len());
            done += usize::from(self.expire_entry(&entry));
        }
        // What is in hand is found again each time: look further, so that it does not hide the others.
        let hidden = done == 0 && found >= asked as usize;
        let shift = &mut self.messages.upkeep.expire_shift;
        *shift = if hidden {
            (*shift + 1).min(8)
        } else if done > 0 {
            *shift
        } else {
            0
        };
    }

    /// Says whether it is done with: not while somebody is at work on it.
    fn expire_entry(&mut self, entry: &Arc<Entry>) -> bool {
        let (log, lane, seq) = (entry.log.clone(), entry.lane, entry.seq);
        let Some(groups) = self.messages.logs.lane(&log, lane).map(|lane| lane.groups.clone()) else {
            return true;
        };
        let readings = || groups.iter().filter_map(|id| self.messages.readings.get(id));
        let open = |reading: &Reading| seq > reading.group.cursor() || reading.group.open(seq).is_some();
        let held = |open: &Open| open.holder().is_some() || open.lasting;
        if readings().any(|r| r.group.open(seq).is_some_and(held) || r.spared.contains(&seq)) {
            // Somebody is at work on it, or brought it back: it is looked at again when it comes back.
            return false;
        }
        let unsettled = (groups.is_empty() && log.is_inbox()) || readings().any(open);
        if !unsettled {
            let seqs = vec![seq];
            self.write(StoreWrite::Unexpire { log, lane, seqs });
            return true;
        }
        // Each crew that has not settled it may try it again.
        let attempts = |r: &Reading| r.group.open(seq).map_or(0, |open| open.attempt);
        let crews: Vec<_> =
            readings().filter(|r| open(r)).filter_map(|r| Some((r.crew()?.clone(), attempts(r)))).collect();
        let attempts = readings().filter(|_| log.is_inbox()).map(attempts).max().unwrap_or(0);
        self.messages.entry_left(entry);
        let (group, reason) = (None, "expired".to_owned());
        let at = self.clock.wall();
        self.effects.push_back(Effect::Note(Note::Buried { log: log.clone(), seq, reason: reason.clone() }));
        let burial = Burial { log, lane, seq, group, attempts, reason, at, remove: true };
        match groups.first() {
            Some(id) if entry.log.is_inbox() => {
                // The sender hears of it when the store knows.
                self.write_surely(StoreWrite::Bury(Box::new(burial)));
                if let Some(reading) = self.messages.readings.get_mut(id) {
                    let reason = Some("expired".to_owned());
                    reading.receipt(Some(origin(entry)), ReceiptState::Expired, reason);
                }
                self.messages.dirty.insert(*id);
                self.messages.urgent = true;
            }
            _ => {
                for (crew, attempts) in crews {
                    let letter = Burial { group: Some(crew), attempts, remove: false, ..burial.clone() };
                    self.write_surely(StoreWrite::Bury(Box::new(letter)));
                }
                self.write_surely(StoreWrite::Bury(Box::new(burial)));
            }
        }
        true
    }

    /// Deletes a slice of what every reader has settled and is older than its log keeps it.
    fn prune_some(&mut self) {
        for _ in 0..LOGS_PER_LOOK {
            let Some(log) = self.messages.logs.after(self.messages.upkeep.last_log.as_ref()).cloned() else {
                return;
            };
            self.messages.upkeep.last_log = Some(log.clone());
            for lane in Lane::of_log(&log) {
                self.prune(&log, *lane);
            }
        }
    }

    fn prune(&mut self, log: &LogName, lane: Lane) {
        let retention = self.retention_ms(log);
        let capped = self.config.topic_bytes.is_some() && !log.is_inbox();
        let wall = self.clock.wall();
        let floor = |id: &GroupId| self.messages.readings.get(id).map(Reading::kept_floor);
        let Some(state) = self.messages.logs.lane(log, lane) else { return };
        if state.end == 0 || state.next_prune > wall {
            return;
        }
        // An inbox that nobody has read yet keeps everything; a topic without readers keeps nothing for them.
        let unread = if log.is_inbox() { 0 } else { state.end };
        let through = state.groups.iter().filter_map(floor).min().unwrap_or(unread);
        if let Some(state) = self.messages.logs.lane_mut(log, lane) {
            // Until the answer says that there is more.
            let pause = if capped { UPKEEP_MS } else { (retention / 24).clamp(60_000, HOUR_MS) };
            state.next_prune = wall.saturating_add(pause);
        }
        let keep_bytes = self.config.topic_bytes.filter(|_| !log.is_inbox());
        if through == 0 && keep_bytes.is_none() {
            return;
        }
        let before = wall.saturating_sub(retention);
        let write = StoreWrite::Prune {
            log: log.clone(),
            lane,
            through,
            before,
            keep_bytes,
            at: wall,
            limit: PRUNED_PER_SLICE,
        };
        self.write_for(Awaiting::Prune(log.clone(), lane), write);
    }

    fn retention_ms(&self, log: &LogName) -> u64 {
        let topic = match log {
            LogName::Topic(name, _) => self.messages.topics.get(name),
            _ => None,
        };
        topic.and_then(|topic| topic.record.retention_ms).unwrap_or(self.config.retention_ms)
    }

    /// A slice is gone; a full one has more behind it.
    pub(crate) fn pruned(&mut self, log: &LogName, lane: Lane, through: u64, more: bool) {
        let Some(state) = self.messages.logs.lane_mut(log, lane) else { return };
        state.pruned = state.pruned.max(through);
        if more {
            state.next_prune = 0;
        }
        // Readers that are behind that are told so.
        let readings = &self.messages.readings;
        let is_read = |id: &&GroupId| readings.get(id).is_some_and(|reading| !reading.members.is_empty());
        self.messages.wakes.extend(state.groups.iter().filter(is_read).copied());
    }

    /// Crews that nobody has been in for a month are forgotten.
    fn drop_unused(&mut self) {
        let before = self.clock.wall().saturating_sub(GROUP_UNUSED_MS);
        for _ in 0..UNUSED_PER_LOOK {
            let Some(id) = self.messages.crews.pop_idle(before) else { return };
            let Some(reading) = self.messages.readings.get_mut(&id) else { continue };
            reading.idle = None;
            if reading.used_at >= before {
                // It was written to since it was listed.
                self.messages.set_idle(id);
                continue;
            }
            let Some(reading) = self.messages.close(id) else { continue };
            self.write_surely(StoreWrite::DropGroup(id));
            let name = reading.crew().map_or_else(String::new, |name| name.to_string());
            let message =
                format!("group {name} of {} was unused for 30 days and is forgotten", reading.record.log);
            for session in self.sessions.all_online() {
                let notice = Notice { code: "group_forgotten".to_owned(), message: message.clone() };
                self.tell(session, EventBody::Notice(notice), 192);
            }
        }
    }

    /// Takes up what a crash has interrupted.
    pub(crate) fn remember_left(&mut self, left: Vec<(SessionKey, MemberKey)>) {
        for (session, member) in left {
            if !self.sessions.is_leased(&session) && self.messages.waiting(&LogName::Session(session)).0 > 0 {
                let through = self.messages.end_of(&LogName::Session(session));
                let evacuation = Evacuation { member, after: (Lane(0), 0), through, running: false };
                self.messages.upkeep.evacuations.insert(session, evacuation);
                self.messages.logs.ensure(&LogName::Session(session)).evacuating = true;
            }
        }
    }

    /// A lease has ended: what was to move on or to fail then does, in slices. Nothing of that inbox is handed
    /// out meanwhile.
    pub(crate) fn begin_evacuation(&mut self, session: SessionKey, member: MemberKey) {
        let log = LogName::Session(session);
        if self.messages.waiting(&log).0 > 0 {
            let through = self.messages.end_of(&log);
            self.evacuate(session, member, (Lane(0), 0), through);
        }
    }

    fn evacuate(&mut self, session: SessionKey, member: MemberKey, after: (Lane, u64), through: u64) {
        let inbox = LogName::Session(session);
        // What the store has not heard of this inbox yet it hears first: behind the slice it would open entries that
        // have left.
        for id in self.messages.places(&inbox) {
            if self.messages.dirty.remove(&id) {
                self.write_group(id);
            }
        }
        if let Some(log) = self.messages.logs.get_mut(&inbox) {
            log.evacuating = true;
        }
        self.messages
            .upkeep
            .evacuations
            .insert(session, Evacuation { member, after, through, running: true });
        let (limit, at) = (MOVED_PER_SLICE, self.clock.wall());
        let write = StoreWrite::Evacuate { session, member, limit, after, through, at };
        self.write_for(Awaiting::Evacuate(session, member), write);
    }

    /// A slice has moved.
    pub(crate) fn evacuated(
        &mut self,
        session: SessionKey,
        member: MemberKey,
        moved: Vec<Moved>,
        failed: Vec<Arc<Entry>>,
        next: Option<(Lane, u64)>,
    ) {
        let gone = moved.iter().map(|moved| (moved.from, &moved.entry));
        let gone = gone.chain(failed.iter().map(|entry| (entry.seq, entry)));
        self.messages.entries_left(&LogName::Session(session), gone);
        for Moved { entry, .. } in &moved {
            self.appended(entry);
        }
        for entry in &failed {
            let reason = Some("lease_expired".to_owned());
            let origin = origin(entry);
            let Ok(client_message_id) = origin.client_message_id.parse() else { continue };
            let receipt = tenure_proto::event::Receipt {
                id: origin.id,
                client_message_id,
                state: ReceiptState::Dead,
                reason,
            };
            self.tell_receipt(origin.session, receipt);
        }
        debug_assert!(moved.iter().all(|moved| moved.entry.envelope.fallback == Fallback::Member));
        if let Some(next) = next {
            let through =
                self.messages.upkeep.evacuations.get(&session).map_or(0, |evacuation| evacuation.through);
            return self.evacuate(session, member, next, through);
        }
        self.messages.upkeep.evacuations.remove(&session);
        let log = LogName::Session(session);
        if let Some(found) = self.messages.logs.get_mut(&log) {
            found.evacuating = false;
        }
        self.messages.wakes.extend(self.messages.places(&log));
    }

    /// A slice could not move: it is tried again at the next look.
    pub(crate) fn evacuate_again(&mut self, session: SessionKey) {
        if let Some(evacuation) = self.messages.upkeep.evacuations.get_mut(&session) {
            evacuation.running = false;
        }
    }
}
