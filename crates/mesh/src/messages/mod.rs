//! All that a mesh knows of messages: logs, who reads them and where, and what waits to be told to the store.

pub mod accept;
pub(crate) mod backlog;
mod census;
pub(crate) mod claims;
pub(crate) mod deleting;
pub(crate) mod deliver;
pub mod envelope;
pub(crate) mod gaps;
pub mod group;
pub(crate) mod groups;
pub mod log;
pub(crate) mod of_runs;
pub(crate) mod pages;
pub(crate) mod placing;
pub mod prepare;
pub(crate) mod proof;
pub(crate) mod pull;
pub(crate) mod reading;
pub(crate) mod reads;
pub(crate) mod reconcile;
pub mod reconcile_plan;
pub(crate) mod restore;
pub(crate) mod send;
pub(crate) mod settle;
pub mod settlers;
pub mod subs;
pub(crate) mod subscribe;
pub(crate) mod topics;
pub(crate) mod upkeep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::event::ReceiptState;
use tenure_proto::ids::{ConnId, MemberKey, MessageId, SessionKey};
use tenure_proto::limits::{INBOX_BYTES, INBOX_ENTRIES};
use tenure_proto::log::LogName;
use tenure_proto::name::TopicName;
use tenure_proto::tag::{IdMark, TagParts};

use crate::effect::Push;
use crate::messages::backlog::Backlog;
use crate::messages::deleting::{Deleting, Tomb};
use crate::messages::envelope::{Entry, Lane};
use crate::messages::group::{Holder, OPEN_MAX, Open};
use crate::messages::groups::Crews;
use crate::messages::log::Logs;
use crate::messages::proof::Behind;
use crate::messages::reading::{Reading, UNTOLD};
use crate::store::record::{Burial, GroupId, GroupRecord, Origin, Reader, TopicRecord};

/// How far beyond what the store knew its lone reader is believed after a crash: more cannot have been handed out between
/// two writes.
const AHEAD: u64 = 16_384;

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) record: TopicRecord,
    /// Whose turn it is among partitions, for messages without a key.
    pub(crate) turn: u32,
    /// When a reader of it last left, or the start of the broker if it was used before, Unix milliseconds.
    pub(crate) used_at: u64,
    /// Before when it is not asked whether it is empty, Unix milliseconds.
    pub(crate) ask_at: u64,
}

/// What a session is to be told about a subscription of its.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) holder: Holder,
    pub(crate) partition: Option<u32>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// All that a mesh knows of messages.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Bounded by `TOPICS_MAX`.
    topics: BTreeMap<TopicName, Topic>,
    /// How many of them each member has made, at most `max_topics_per_member`.
    makers: BTreeMap<MemberKey, usize>,
    /// Topics that are going.
    deleting: BTreeMap<TopicName, Deleting>,
    /// Logs of deleted topics; bounded by [`TOMBS_MAX`](crate::messages::deleting::TOMBS_MAX).
    tombs: BTreeMap<LogName, Tomb>,
    logs: Logs,
    readings: BTreeMap<GroupId, Reading>,
    crews: Crews,
    /// How often a group was looked at because its lane grew or somebody listed it, for those who count work.
    visits: u64,
    /// What groups have to read, all together.
    backlog: Backlog,
    /// The last group that `health` looked at.
    health_at: Option<GroupId>,
    /// Members whose inbox was full when something was last put into it; it may have room again.
    full: BTreeSet<MemberKey>,
    /// Sessions that read their member's inbox.
    member_readers: BTreeMap<MemberKey, BTreeSet<SessionKey>>,
    /// Delays and ack timeouts.
    deadlines: Deadlines<GroupId>,
    /// Groups that the store does not know as they are; private ones wait longer.
    dirty: BTreeSet<GroupId>,
    lagging: BTreeSet<GroupId>,
    /// Whether somebody waits for the dirty ones.
    urgent: bool,
    lazy_due: Option<Millis>,
    floors_due: Option<Millis>,
    /// Groups whose reads came to nothing, and when they are tried again.
    starved: BTreeSet<GroupId>,
    reads_due: Option<Millis>,
    /// Groups that have something to hand out.
    wakes: BTreeSet<GroupId>,
    /// Groups that need entries from disk.
    hungry: BTreeSet<GroupId>,
    /// Groups that a page came for, the latest last; at most [`PAGES`](crate::messages::pages::PAGES).
    paged: VecDeque<GroupId>,
    /// Messages at places that the store was asked about for the call that is being carried out.
    proven: BTreeMap<(LogName, u64), MessageId>,
    last_group: u64,
    /// Deliveries whose claims are on their way to the disk, and through which socket each was to go.
    parked: Vec<(ConnId, Push)>,
    /// Late settles of the request that is being carried out.
    lates: crate::messages::settle::Lates,
    burials: Vec<Burial>,
    /// Dead letters that the store is about to bring back.
    reviving: usize,
    gaps: Vec<Gap>,
    upkeep: crate::messages::upkeep::Upkeep,
    /// Sockets with a call that waits for the store to prove its tags, and what came behind it.
    proving: BTreeMap<ConnId, VecDeque<Behind>>,
}

/// What a pull needs to know of the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Millis,
    pub(crate) wall: u64,
    pub(crate) ack_timeout_ms: u64,
    /// Whether the wall clock can be trusted to expire anything.
    pub(crate) expires: bool,
    /// Whether as much waits to be asked of the store again as may: nothing is handed out that might add to it.
    pub(crate) retries_full: bool,
}

/// An entry that a group hands out.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) entry: Arc<Entry>,
    pub(crate) attempt: u32,
    /// Whether somebody may have seen it before.
    pub(crate) redelivered: bool,
}

impl Messages {
    /// When something here is due: a delay or an ack timeout, a write that may wait, a read that is tried again, upkeep.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        let due = [self.deadlines.next(), self.lazy_due, self.floors_due, self.reads_due, self.upkeep.due()];
        due.into_iter().flatten().min()
    }

    /// How many topics there are.
    pub(crate) fn topics(&self) -> usize {
        self.topics.len()
    }

    pub(crate) fn has_topic(&self, name: &TopicName) -> bool {
        self.topics.contains_key(name)
    }

    /// How many partitions a topic has; none if there is no such topic.
    pub(crate) fn partitions(&self, name: &TopicName) -> u32 {
        self.topics.get(name).map_or(0, |topic| topic.record.partitions)
    }

    /// The log that a group reads.
    pub(crate) fn log_of(&self, id: GroupId) -> Option<&LogName> {
        self.readings.get(&id).map(|reading| &reading.record.log)
    }

    /// An entry, if it is in memory.
    pub(crate) fn find(&self, log: &LogName, lane: Lane, seq: u64) -> Option<&Arc<Entry>> {
        self.logs.find(log, lane, seq)
    }

    /// Who has an open entry in hand.
    pub(crate) fn holder(&self, id: GroupId, seq: u64) -> Option<&Holder> {
        self.readings.get(&id)?.group.open(seq)?.holder()
    }

    /// Settles an open entry without its holder's word; says who had it in hand.
    pub(crate) fn take_out(&mut self, id: GroupId, seq: u64) -> Option<Option<Holder>> {
        let open = self.readings.get_mut(&id)?.group.remove(seq)?;
        self.touch(id);
        Some(open.holder().cloned())
    }

    /// How many entries wait in a group.
    pub(crate) fn depth_of(&self, id: GroupId) -> u64 {
        self.readings.get(&id).map_or(0, |reading| self.depth(reading).0)
    }

    /// Whether some groups have something to hand out.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// Somebody waits for the store to know the groups that changed.
    pub(crate) fn write_soon(&mut self) {
        self.urgent = true;
    }

    /// The store could not take something: it is asked again then.
    pub(crate) fn write_again_at(&mut self, due: Millis) {
        self.lazy_due = Some(due);
    }

    /// The store is told then where private readers are.
    pub(crate) fn write_floors_at(&mut self, due: Millis) {
        self.floors_due = Some(due);
    }

    /// The store did not take where a private reader is.
    pub(crate) fn floor_lost(&mut self, id: GroupId) {
        if let Some(reading) = self.readings.get_mut(&id) {
            reading.floor_told = UNTOLD;
            self.lagging.insert(id);
        }
    }

    /// Deliveries that wait for their claims.
    pub(crate) fn take_parked(&mut self) -> Vec<(ConnId, Push)> {
        std::mem::take(&mut self.parked)
    }

    /// The claims of deliveries are not on disk: they wait for another write.
    pub(crate) fn park_again(&mut self, pushes: Vec<(ConnId, Push)>) {
        self.parked.extend(pushes);
    }

    /// Dead letters that the store was to bring back did not come.
    pub(crate) fn not_revived(&mut self, count: usize) {
        self.reviving = self.reviving.saturating_sub(count);
    }

    /// What is kept how long has changed: all logs are looked at anew.
    pub(crate) fn prune_anew(&mut self) {
        self.logs.prune_anew();
    }

    /// Messages at places that the store was asked about for the call that is being carried out.
    pub(crate) fn know_proven(&mut self, proven: BTreeMap<(LogName, u64), MessageId>) {
        self.proven = proven;
    }

    /// What waits in groups, and the places of some that are behind, for health: at most so many of the next groups.
    pub(crate) fn behind(&mut self) -> (u64, Vec<(LogName, Lane, u64)>) {
        // The oldest of so many groups that are behind, among so many that are looked at: enough to see trouble.
        const BEHIND: usize = 256;
        const LOOKED_AT: usize = 4_096;
        let mut places = Vec::new();
        let from = self.health_at.take().map_or(Unbounded, Excluded);
        for (looked, (id, reading)) in (1..).zip(self.readings.range((from, Unbounded)).take(LOOKED_AT)) {
            if self.depth(reading).0 > 0 && places.len() < BEHIND {
                let record = &reading.record;
                places.push((record.log.clone(), record.lane, reading.group.floor()));
            }
            // Where there may be more, the next look goes on after this one.
            self.health_at = (looked == LOOKED_AT).then_some(*id);
        }
        (self.backlog.depth(), places)
    }

    /// Notes that a group changed.
    pub(crate) fn touch(&mut self, id: GroupId) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        if !reading.again.is_empty() {
            // Settled before it was handed out again.
            let Reading { again, group, .. } = reading;
            again.retain(|seq, _| group.open(*seq).is_some());
        }
        if !reading.spared.is_empty() {
            let Reading { spared, group, .. } = reading;
            spared.retain(|seq| *seq > group.cursor());
        }
        if reading.group.is_dirty() {
            if reading.is_private() {
                self.lagging.insert(id);
            } else {
                self.dirty.insert(id);
            }
        }
        self.backlog.counts(reading);
        match reading.group.next_deadline() {
            Some(due) => self.deadlines.set(id, due),
            None => self.deadlines.clear(&id),
        }
    }

    /// Entries that wait in a group, and their bytes, as far as running totals tell.
    pub(crate) fn depth(&self, reading: &Reading) -> (u64, u64) {
        let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane) else { return (0, 0) };
        let open = reading.group.open_len() as u64;
        (lane.count.saturating_sub(reading.passed.0) + open, lane.bytes.saturating_sub(reading.passed.1))
    }

    /// Entries that wait in a log for its one reader, and their bytes.
    pub(crate) fn waiting(&self, log: &LogName) -> (u64, u64) {
        let Some(found) = self.logs.get(log) else { return (0, 0) };
        found.lanes.iter().fold((0, 0), |(entries, bytes), lane| {
            let group = lane.groups.first().and_then(|id| self.readings.get(id));
            let (more, weight) = group.map_or((lane.count, lane.bytes), |reading| self.depth(reading));
            (entries + more, bytes + weight)
        })
    }

    /// Whether an inbox holds as much as it may.
    pub(crate) fn is_full(&self, log: &LogName) -> bool {
        let (entries, bytes) = self.waiting(log);
        entries >= INBOX_ENTRIES || bytes >= INBOX_BYTES
    }

    /// Remembers a member whose inbox has become full, for sends that fall back to it.
    pub(crate) fn note_if_full(&mut self, log: &LogName) {
        if let LogName::Member(member) = log
            && self.is_full(log)
        {
            self.full.insert(*member);
        }
    }

    /// Members whose inbox holds as much as it may.
    pub(crate) fn full_members(&mut self) -> Vec<MemberKey> {
        let mut full = std::mem::take(&mut self.full);
        full.retain(|member| self.is_full(&LogName::Member(*member)));
        self.full = full;
        self.full.iter().copied().collect()
    }

    /// Makes a place in a lane.
    pub(crate) fn open(&mut self, record: GroupRecord, cursor: u64, used_at: u64) {
        let id = record.id;
        let lane = &mut self.logs.ensure(&record.log).lanes[record.lane.index()];
        lane.groups.insert(id);
        if !matches!(record.reader, Reader::Shared(_)) {
            lane.waiting.insert(id);
        }
        let passed = if cursor >= lane.end { (lane.count, lane.bytes) } else { (0, 0) };
        self.backlog.opened(lane.count);
        let mut reading = Reading::new(record, cursor, used_at);
        reading.passed = passed;
        self.backlog.counts(&mut reading);
        self.readings.insert(id, reading);
        self.list_crew(id);
    }

    /// A lane has grown: whoever waits for that has something to read.
    pub(crate) fn grown(&mut self, log: &LogName, lane: Lane) {
        let Some(lane) = self.logs.lane_mut(log, lane) else { return };
        self.backlog.grown(lane.groups.len());
        self.wakes.extend(lane.waiting.iter().copied());
        let readings = &self.readings;
        lane.waiting.retain(|id| readings.get(id).is_some_and(|reading| !reading.is_private()));
    }

    /// Forgets a place.
    pub(crate) fn close(&mut self, id: GroupId) -> Option<Reading> {
        let reading = self.readings.remove(&id)?;
        let GroupRecord { log, lane, .. } = &reading.record;
        let mut counted = 0;
        if let Some(lane) = self.logs.lane_mut(log, *lane) {
            lane.groups.remove(&id);
            lane.waiting.remove(&id);
            counted = lane.count;
        }
        self.backlog.closed(counted, &reading);
        self.unlist_crew(id, &reading.record, reading.idle);
        self.deadlines.clear(&id);
        self.dirty.remove(&id);
        self.lagging.remove(&id);
        self.wakes.remove(&id);
        self.hungry.remove(&id);
        self.starved.remove(&id);
        Some(reading)
    }

    /// An entry that is in hand and must be pushed again.
    pub(crate) fn again(&mut self, id: GroupId, seq: u64) -> Option<Handed> {
        self.readings.get(&id)?.group.open(seq)?;
        let entry = self.body(id, seq)?;
        let group = &mut self.readings.get_mut(&id)?.group;
        if mutant::on(Mutant::UnreadCounts) {
            let holder = group.give_back(seq, None, true)?;
            group.take_ready(seq, holder, None);
        }
        let attempt = group.open(seq)?.attempt;
        group.know_mark(seq, entry.envelope.id.into());
        // The break may have come before its claim was on disk.
        Some(Handed { entry, attempt, redelivered: true })
    }

    /// Groups that have changed and may be written. Those of an inbox that is being cleared wait until it is: a slice may have
    /// moved an entry on that the group does not know to be gone.
    pub(crate) fn writable(&self) -> impl Iterator<Item = GroupId> + '_ {
        let waits = |reading: &Reading| self.logs.get(&reading.record.log).is_some_and(|log| log.evacuating);
        self.dirty.iter().copied().filter(move |id| !self.readings.get(id).is_some_and(waits))
    }

    /// Whether an entry may have been handed out before the broker started, although nothing is known of it: the store
    /// knows of a private reader only up to where it had settled everything, and that as of some seconds before a crash.
    /// What was in the log at the start and is not settled may be new to its reader, or not: it counts as seen.
    pub(super) fn was_maybe_handed(&self, id: GroupId, seq: u64) -> bool {
        let Some(reading) = self.readings.get(&id).filter(|reading| reading.is_private()) else {
            return false;
        };
        let lane = self.logs.lane(&reading.record.log, reading.record.lane);
        reading.restored_at.is_some() && lane.is_some_and(|lane| seq <= lane.restored_end)
    }

    /// Counts an entry as passed.
    pub(super) fn pass(&mut self, id: GroupId, entry: &Entry) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        reading.discount(entry);
        if let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane)
            && entry.seq >= lane.end
        {
            reading.passed = (lane.count, lane.bytes);
        }
    }

    /// An entry whose time is over goes to the dead letters instead of to anybody.
    pub(super) fn bury_if_expired(&mut self, id: GroupId, entry: &Arc<Entry>, moment: Moment) -> bool {
        let wall = moment.wall;
        let spared = self.readings.get(&id).is_some_and(|reading| reading.spared.contains(&entry.seq));
        if !moment.expires || spared || entry.expires_at().is_none_or(|expires_at| expires_at > wall) {
            return false;
        }
        self.pass_over(id, entry);
        self.bury(id, entry.seq, None, "expired", ReceiptState::Expired, wall, Some(origin(entry)));
        true
    }

    /// Reads past an entry without handing it out.
    pub(crate) fn pass_over(&mut self, id: GroupId, entry: &Entry) {
        if self.readings.get(&id).is_some_and(|reading| entry.seq > reading.group.cursor()) {
            self.pass(id, entry);
            if let Some(reading) = self.readings.get_mut(&id) {
                reading.group.skip_to(entry.seq);
            }
        }
    }

    /// Sends an entry to the dead letters of a group, and its sender the news. `open` is what was known of it,
    /// if it was taken out of the group already.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn bury(
        &mut self,
        id: GroupId,
        seq: u64,
        open: Option<Open>,
        reason: &str,
        state: ReceiptState,
        at: u64,
        known: Option<Origin>,
    ) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        let open = open.or_else(|| reading.leave(seq));
        let attempts = open.as_ref().map_or(0, |open| open.attempt);
        let origin = open.and_then(|open| open.origin).or(known);
        reading.receipt(origin, state, Some(reason.to_owned()));
        let GroupRecord { log, lane, .. } = reading.record.clone();
        let group = reading.crew().cloned();
        let remove = log.is_inbox();
        let reason = reason.to_owned();
        self.burials.push(Burial { log, lane, seq, group, attempts, reason, at, remove });
        self.touch(id);
    }

    /// A dead letter is back in its log: it is handed out next, or when its turn comes if that was yet to come.
    pub(crate) fn revive(&mut self, id: GroupId, seq: u64, attempts: u32) -> bool {
        let Some(reading) = self.readings.get_mut(&id) else { return false };
        reading.come_back(seq);
        if seq > reading.group.cursor() {
            reading.spared.insert(seq);
            self.logs.forget(&reading.record.log);
            reading.page.clear();
            reading.passed.0 = reading.passed.0.saturating_sub(1);
        } else {
            reading.group.revive(seq, attempts, None);
        }
        self.touch(id);
        self.wakes.insert(id);
        true
    }

    /// A reader that is behind what was pruned is told once, and goes on after it.
    pub(super) fn tell_gap(&mut self, id: GroupId, holder: &Holder) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        let LogName::Topic(_, partition) = &reading.record.log else { return };
        let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane) else { return };
        let (from, to) = (reading.group.cursor() + 1, lane.pruned);
        if from <= to {
            reading.group.skip_to(to);
        }
        if from <= to {
            self.gaps.push(Gap { holder: holder.clone(), partition: Some(*partition), from, to });
        }
    }

    /// Whether a tag may have been handed out before a crash without the store's knowing.
    fn is_believable(&self, id: GroupId, tag: &TagParts) -> bool {
        let Some(reading) = self.readings.get(&id) else { return false };
        let own = match (&reading.record.reader, &reading.record.log) {
            (Reader::Private(session), _) => *session == tag.session,
            (Reader::Inbox, LogName::Session(session)) => *session == tag.session,
            _ => false,
        };
        let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane) else { return false };
        let near = |at: u64| tag.seq - at.min(tag.seq) <= AHEAD;
        // What was written in this run was handed out in this run, and that is known.
        own && tag.seq <= lane.restored_end && reading.restored_at.is_some_and(near)
    }

    /// Whether a tag is of the message at its place; `None` when that is not in memory.
    pub(crate) fn fits(&self, id: GroupId, tag: &TagParts) -> Option<bool> {
        if mutant::on(Mutant::TagWithoutId) {
            return Some(true);
        }
        let reading = self.readings.get(&id)?;
        let GroupRecord { log, lane, .. } = &reading.record;
        let known = reading.group.open(tag.seq).and_then(Open::mark);
        let kept = || self.logs.find(log, *lane, tag.seq).map(|entry| entry.envelope.id.into());
        let read = || self.proven.get(&(log.clone(), tag.seq)).copied().map(IdMark::from);
        known.or_else(kept).or_else(read).map(|mark| mark == tag.mark)
    }

    /// Whether a tag would take effect on an entry whose message is not in memory: then the store is asked for its id first.
    pub(crate) fn needs_proof(&self, id: GroupId, tag: &TagParts) -> bool {
        let Some(reading) = self.readings.get(&id).filter(|_| self.fits(id, tag).is_none()) else {
            return false;
        };
        let beyond = tag.seq > reading.group.cursor() && self.is_believable(id, tag);
        tag.attempt > 0 && (reading.group.open(tag.seq).is_some() || beyond)
    }

    /// Whether the store is asked what the message of a tag is: also of a settled entry, which may be another history's.
    pub(crate) fn wants_proof(&self, id: GroupId, tag: &TagParts) -> bool {
        let is_settled = |reading: &Reading| {
            let group = &reading.group;
            tag.attempt > 0 && tag.seq <= group.cursor() && group.open(tag.seq).is_none()
        };
        let settled = self.readings.get(&id).is_some_and(is_settled) && self.fits(id, tag).is_none();
        settled || self.needs_proof(id, tag)
    }

    /// A tag beyond the cursor or of a later attempt, of a place that only its session reads: it was handed out before
    /// a crash, and the store did not get to know. Where several read, a claim is on disk before its tag is out.
    pub(crate) fn believe(&mut self, id: GroupId, tag: &TagParts) {
        if !self.is_believable(id, tag) {
            return;
        }
        let Some(reading) = self.readings.get_mut(&id) else { return };
        let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane) else { return };
        let (cursor, seq) = (reading.group.cursor(), tag.seq);
        let room = reading.group.open_len() as u64 + AHEAD <= OPEN_MAX as u64;
        if room && tag.attempt > 0 && seq > cursor {
            reading.assume_read(seq);
            reading.passed.0 = (reading.passed.0 + (seq - cursor)).min(lane.count);
        }
        if tag.attempt > 0 {
            // It had been given back, or its time had come, and it was handed out just before the crash.
            reading.group.assume_attempt(seq, tag.attempt, tag.session);
        }
        if reading.group.is_dirty() {
            self.touch(id);
        }
    }

    /// The last seq of a log.
    pub(crate) fn end_of(&self, log: &LogName) -> u64 {
        if let Some(tomb) = self.tombs.get(log) {
            return tomb.log.record.lanes.iter().map(|lane| lane.end).max().unwrap_or_default();
        }
        let lanes = self.logs.get(log).map(|log| log.lanes.iter().map(|lane| lane.end));
        lanes.and_then(Iterator::max).unwrap_or_default()
    }

    /// Whether some of these are of groups that several may read.
    pub(crate) fn is_contended(&self, pushes: &[Push]) -> bool {
        pushes.iter().any(|push| self.readings.get(&push.group).is_some_and(|r| r.is_contended()))
    }

    /// The next number of a group; unique across restarts.
    pub(crate) fn next_group(&mut self, run: u64) -> GroupId {
        self.last_group += 1;
        GroupId((run << 32) + self.last_group)
    }

    /// The names of the places of an inbox.
    pub(crate) fn places(&self, log: &LogName) -> Vec<GroupId> {
        let Some(found) = self.logs.get(log) else { return Vec::new() };
        Lane::of_log(log)
            .iter()
            .filter_map(|lane| found.lanes[lane.index()].groups.first().copied())
            .collect()
    }

    /// A session's own place in a log that none of its subscriptions has taken up yet.
    pub(crate) fn private_place(&self, log: &LogName, session: &SessionKey) -> Option<GroupId> {
        let lane = self.logs.lane(log, Lane(0))?;
        let own = |id: &&GroupId| {
            self.readings.get(id).is_some_and(|r| {
                matches!(&r.record.reader, Reader::Private(s) if s == session) && r.members.is_empty()
            })
        };
        lane.groups.iter().find(own).copied()
    }
}

pub(crate) fn origin(entry: &Entry) -> Origin {
    let envelope = &entry.envelope;
    Origin {
        session: envelope.from.session,
        id: envelope.id,
        client_message_id: envelope.client_message_id.clone(),
    }
}
