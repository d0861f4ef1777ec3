//! Deleting topics and groups, and topics that nobody uses.
//!
//! A delete is one write that marks the topic ([`StoreWrite::EndTopic`]); from then on it is gone for everybody. Its
//! subscriptions end with the reason `deleted`, and what it holds goes in slices, so that neither the mesh nor the writer is
//! held up. A start goes on with what a crash has interrupted. Until the last slice is on disk the name is `busy`.
//!
//! What stays is a tombstone for each log: where its numbers end, so that a topic that is made again goes on from there.

use std::collections::BTreeSet;

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::ids::{MemberKey, SessionKey, SubId};
use tenure_proto::limits::{TOPIC_MADE_UNUSED_MS, TOPIC_UNUSED_MS};
use tenure_proto::log::LogName;
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::subscribe::{SubscriptionEvent, SubscriptionEventKind};

use crate::Mesh;
use crate::access::{AccessWrite, AuditRecord, Right};
use crate::effect::{Answer, Effect, Note};
use crate::messages::envelope::Lane;
use crate::messages::{Messages, Topic};
use crate::reply::{Caller, Reply, ReplyTo, lease_ended};
use crate::store::pending::Awaiting;
use crate::store::record::{DeletedLog, GroupId, StoreWrite, TopicRecord, TopicState};

/// Rows that one slice of a delete takes from the store: a few milliseconds of the writer.
const CLEARED_PER_SLICE: u32 = 512;
/// Subscriptions that one slice ends.
const ENDED_PER_SLICE: usize = 256;
/// Groups that one slice closes.
const CLOSED_PER_SLICE: usize = 4_096;
/// Topics that one look at unused ones takes.
const TOPICS_PER_LOOK: usize = 256;
/// Topics that may go at once because nobody uses them.
const UNUSED_AT_ONCE: usize = 64;
/// When a topic is asked about again that nobody uses and that holds something.
const ASK_AGAIN_MS: u64 = 3_600_000;
/// Logs of deleted topics that are remembered here. Past it one is forgotten: its numbers go on all the same, by what is on
/// disk, but until it is made again no `from` beyond its beginning is taken.
pub(crate) const TOMBS_MAX: usize = 100_000;

/// A topic that is going.
#[derive(Debug)]
pub(crate) struct Deleting {
    record: TopicRecord,
    /// Who is to be told when it is gone; bounded by unanswered requests.
    waiting: Vec<ReplyTo>,
    /// Whether it is marked on disk.
    marked: bool,
    /// Whether the store is at it.
    running: bool,
}

/// What is remembered of a log of a deleted topic.
#[derive(Clone, Debug)]
pub(crate) struct Tomb {
    pub(crate) log: DeletedLog,
}

impl Messages {
    /// Whether a topic was deleted by somebody, and has not been made again.
    pub(crate) fn was_deleted(&self, topic: &TopicName) -> bool {
        let going = self
            .deleting
            .get(topic)
            .is_some_and(|going| going.marked && going.record.state == TopicState::Deleted);
        let tomb = || self.tombs.get(&LogName::Topic(topic.clone(), 0)).is_some_and(|tomb| tomb.log.told);
        going || (!self.topics.contains_key(topic) && tomb())
    }

    /// Keeps a topic, and counts it for the member that made it.
    pub(crate) fn add_topic(&mut self, record: TopicRecord, used_at: u64) {
        if let Some(owner) = record.owner {
            *self.makers.entry(owner).or_default() += 1;
        }
        self.topics.insert(record.name.clone(), Topic { record, turn: 0, used_at, ask_at: 0 });
    }

    /// Forgets a topic.
    pub(crate) fn remove_topic(&mut self, name: &TopicName) -> Option<TopicRecord> {
        let record = self.topics.remove(name)?.record;
        if let Some(owner) = &record.owner
            && let Some(made) = self.makers.get_mut(owner)
        {
            *made = made.saturating_sub(1);
            if *made == 0 {
                self.makers.remove(owner);
            }
        }
        Some(record)
    }

    /// Remembers where the logs of a topic end, in place of the logs.
    pub(crate) fn entomb(&mut self, topic: &TopicName, partitions: u32, told: bool) {
        for partition in 0..partitions {
            let log = LogName::Topic(topic.clone(), partition);
            if let Some(record) = self.logs.take(&log) {
                self.remember_tomb(DeletedLog { record, told });
            }
        }
    }

    /// Remembers a log of a deleted topic.
    pub(crate) fn remember_tomb(&mut self, log: DeletedLog) {
        if self.tombs.len() >= TOMBS_MAX {
            self.tombs.pop_first();
        }
        self.tombs.insert(log.record.log.clone(), Tomb { log });
    }

    /// Takes up the logs of a topic that is made again, where they ended. Says whether it had been deleted by somebody.
    pub(crate) fn unearth(&mut self, topic: &TopicName, partitions: u32) -> bool {
        let mut told = false;
        for partition in 0..partitions {
            if let Some(tomb) = self.tombs.remove(&LogName::Topic(topic.clone(), partition)) {
                self.logs.restore(&tomb.log.record);
                told |= tomb.log.told;
            }
        }
        told
    }

    /// The groups that read a topic, of all partitions.
    fn readers_of<'a>(&'a self, record: &'a TopicRecord) -> impl Iterator<Item = GroupId> + 'a {
        (0..record.partitions).flat_map(move |partition| {
            let lane = self.logs.lane(&LogName::Topic(record.name.clone(), partition), Lane(0));
            lane.into_iter().flat_map(|lane| lane.groups.iter().copied())
        })
    }
}

impl Mesh {
    /// `topics.delete`: by its owner when it is empty and no other member reads it, by an operator in any case.
    pub(crate) fn topics_delete(&mut self, caller: &Caller, name: &TopicName) -> Result<Reply, WireError> {
        let session = caller.session;
        let lease = self.sessions.lease(&session).ok_or_else(lease_ended)?;
        let (member, from) = (lease.member, lease.from);
        if self.operates(session) {
            self.audit_act(member, from, "topic.delete", format!("topic:{name}"));
            return self.delete_topic(caller.reply_to(), name);
        }
        let known = self.messages.topics.get(name).map(|topic| &topic.record);
        if let Some(record) = known {
            if record.owner != Some(member) {
                let text = "another member made this topic; its owner deletes it while it is empty, an operator at any time";
                return Err(WireError::new(ErrorCode::Forbidden, text));
            }
            if self.messages.readers_of(record).any(|id| !self.is_read_by(id, &member)) {
                let text = "other members read this topic, or have groups of it; an operator may delete it all the same";
                return Err(WireError::new(ErrorCode::Conflict, text));
            }
        }
        self.begin_delete(Some(caller.reply_to()), name, TopicState::Deleted, true)
    }

    /// Whether a group is of this member, and nobody else's session reads it.
    fn is_read_by(&self, id: GroupId, member: &MemberKey) -> bool {
        let Some(reading) = self.messages.readings.get(&id) else { return true };
        let own =
            |session: &SessionKey| self.sessions.lease(session).is_none_or(|lease| lease.member == *member);
        let made = !reading.is_shared() || reading.record.owner == Some(*member);
        made && reading.members.iter().all(|holder| own(&holder.session))
    }

    /// Deletes a topic for somebody who may, whatever it holds.
    pub(crate) fn delete_topic(&mut self, to: ReplyTo, name: &TopicName) -> Result<Reply, WireError> {
        self.begin_delete(Some(to), name, TopicState::Deleted, false)
    }

    /// Refuses a topic that is not there.
    pub(crate) fn check_topic(&self, name: &TopicName) -> Result<(), WireError> {
        match self.messages.topics.contains_key(name) || self.messages.deleting.contains_key(name) {
            true => Ok(()),
            false => Err(no_topic(name)),
        }
    }

    fn begin_delete(
        &mut self,
        to: Option<ReplyTo>,
        name: &TopicName,
        state: TopicState,
        if_empty: bool,
    ) -> Result<Reply, WireError> {
        if let Some(going) = self.messages.deleting.get_mut(name) {
            going.waiting.extend(to);
            return Ok(Reply::Later);
        }
        self.may_owe()?;
        let topic = self.messages.topics.get(name).ok_or_else(|| no_topic(name))?;
        let record = TopicRecord { state, ..topic.record.clone() };
        let waiting = to.into_iter().collect();
        let going = Deleting { record: record.clone(), waiting, marked: false, running: true };
        self.messages.deleting.insert(name.clone(), going);
        let write = StoreWrite::EndTopic { record: Box::new(record), if_empty };
        self.write_for(Awaiting::TopicEnd(name.clone()), write);
        Ok(Reply::Later)
    }

    /// The store has marked a topic, or has not because it holds something.
    pub(crate) fn topic_ended(&mut self, name: &TopicName, done: bool) {
        if !done {
            let text = "the topic holds messages or dead letters; an operator may delete it all the same";
            return self.not_deleted(name, &WireError::new(ErrorCode::Conflict, text));
        }
        if let Some(going) = self.messages.deleting.get_mut(name) {
            going.marked = true;
            self.messages.remove_topic(name);
        }
        self.clear_topic(name);
    }

    /// A topic stays: the store could not mark it, or would not.
    pub(crate) fn not_deleted(&mut self, name: &TopicName, error: &WireError) {
        let Some(going) = self.messages.deleting.remove(name) else { return };
        if let Some(topic) = self.messages.topics.get_mut(name) {
            topic.ask_at = self.clock.wall().saturating_add(ASK_AGAIN_MS);
        }
        for to in going.waiting {
            self.answer(to, Err(error.clone()));
        }
    }

    /// Goes on with a topic that is going: first its subscriptions end, then its groups, then the store clears it.
    fn clear_topic(&mut self, name: &TopicName) {
        let Some(going) = self.messages.deleting.get_mut(name).filter(|going| going.marked) else { return };
        going.running = true;
        let record = going.record.clone();
        let mut subs: BTreeSet<(SessionKey, SubId, GroupId)> = BTreeSet::new();
        for id in self.messages.readers_of(&record) {
            let members = self.messages.readings.get(&id).into_iter().flat_map(|reading| &reading.members);
            let members = members.take(ENDED_PER_SLICE);
            subs.extend(members.map(|holder| (holder.session, holder.sub.clone(), id)));
            if subs.len() >= ENDED_PER_SLICE {
                break;
            }
        }
        let again = Awaiting::TopicCleared(name.clone());
        if !subs.is_empty() {
            for (session, sub, place) in &subs {
                self.end_subscription(*session, sub, "deleted");
                self.messages.leave(*place, session, sub);
            }
            let now = self.clock.now();
            return self.await_all(again, now);
        }
        let groups: Vec<GroupId> = self.messages.readers_of(&record).take(CLOSED_PER_SLICE + 1).collect();
        for id in groups.iter().take(CLOSED_PER_SLICE) {
            self.messages.close(*id);
        }
        let write = StoreWrite::ClearTopic { record: Box::new(record), limit: CLEARED_PER_SLICE };
        self.write_for(again, write);
    }

    /// A slice of a topic is gone, or its subscriptions are.
    pub(crate) fn topic_cleared(&mut self, name: &TopicName, done: bool) {
        let Some(going) = self.messages.deleting.get(name) else { return };
        if !done || self.messages.readers_of(&going.record).next().is_some() {
            return self.clear_topic(name);
        }
        let Some(Deleting { record, waiting, .. }) = self.messages.deleting.remove(name) else { return };
        let told = record.state == TopicState::Deleted;
        self.messages.entomb(name, record.partitions, told);
        self.effects.push_back(Effect::Note(Note::TopicDeleted { topic: name.clone(), unused: !told }));
        for to in waiting {
            self.answer(to, Ok(Answer::Empty));
        }
    }

    /// A slice could not go: it is tried again at the next look.
    pub(crate) fn clear_later(&mut self, name: &TopicName) {
        if let Some(going) = self.messages.deleting.get_mut(name) {
            going.running = false;
        }
    }

    /// Goes on with topics that a crash, or a store that could not write, has interrupted.
    pub(crate) fn clear_interrupted(&mut self) {
        let idle = self.messages.deleting.iter().filter(|(_, going)| !going.running);
        for name in idle.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.clear_topic(&name);
        }
    }

    /// Takes up a topic that was going when the broker stopped.
    pub(crate) fn restore_deleting(&mut self, record: TopicRecord) {
        let going = Deleting { record: record.clone(), waiting: Vec::new(), marked: true, running: false };
        self.messages.deleting.insert(record.name, going);
    }

    /// Ends a subscription by another's doing: its reader is told why.
    pub(crate) fn end_subscription(&mut self, session: SessionKey, id: &SubId, reason: &str) {
        if self.sessions.lease(&session).is_none_or(|lease| lease.subs.get(id).is_none()) {
            return;
        }
        self.drop_subscription(session, id);
        let kind = SubscriptionEventKind::Closed;
        let (sub_id, reason) = (id.clone(), Some(reason.to_owned()));
        let event = SubscriptionEvent { sub_id, kind, partition: None, from: None, to: None, reason };
        self.tell(session, EventBody::Subscription(event), 128);
    }

    /// Lets go of topics that nobody has used for a while, if they are empty: some at each look.
    pub(crate) fn drop_unused_topics(&mut self) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.messages.upkeep.last_topic.take();
        let after = from.as_ref().map_or(Unbounded, Excluded);
        let looked: Vec<TopicName> = self
            .messages
            .topics
            .range::<TopicName, _>((after, Unbounded))
            .map(|(name, _)| name.clone())
            .take(TOPICS_PER_LOOK)
            .collect();
        for name in &looked {
            let unused =
                self.messages.deleting.values().filter(|going| going.record.state == TopicState::Unused);
            if unused.count() >= UNUSED_AT_ONCE {
                return;
            }
            self.messages.upkeep.last_topic = Some(name.clone());
            if self.is_unused(name) {
                let _ = self.begin_delete(None, name, TopicState::Unused, true);
            }
        }
        if looked.len() < TOPICS_PER_LOOK {
            self.messages.upkeep.last_topic = None;
        }
    }

    /// Whether a topic has had no reader, group or entry for as long as it is kept without.
    fn is_unused(&self, name: &TopicName) -> bool {
        let Some(topic) = self.messages.topics.get(name) else { return false };
        if self.messages.deleting.contains_key(name) || topic.ask_at > self.clock.wall() {
            return false;
        }
        // What was made with numbers of its own is somebody's plan.
        let plain = topic.record.partitions == 1 && topic.record.retention_ms.is_none();
        let kept_ms = if plain { TOPIC_UNUSED_MS } else { TOPIC_MADE_UNUSED_MS };
        let lanes = || {
            let logs = (0..topic.record.partitions).map(|partition| LogName::Topic(name.clone(), partition));
            logs.filter_map(|log| self.messages.logs.lane(&log, Lane(0)))
        };
        let grown_at = lanes().map(|lane| lane.grown_at).max().unwrap_or(0);
        let used_at = topic.used_at.max(topic.record.created_at).max(grown_at);
        lanes().all(|lane| lane.groups.is_empty()) && used_at.saturating_add(kept_ms) <= self.clock.wall()
    }

    /// `groups.delete`: by the member that made it, or an operator.
    pub(crate) fn groups_delete(
        &mut self,
        caller: &Caller,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Reply, WireError> {
        let session = caller.session;
        let lease = self.sessions.lease(&session).ok_or_else(lease_ended)?;
        let (member, from) = (lease.member, lease.from);
        let places = self.check_group(topic, group)?;
        if self.operates(session) {
            let subject = format!("group:{topic}/{group}");
            self.audit_act(member, from, "group.delete", subject);
        } else {
            let of = |id: &GroupId| self.messages.readings.get(id).and_then(|reading| reading.record.owner);
            if places.iter().any(|id| of(id) != Some(member)) {
                let text = "another member made this group; it or an operator may delete it";
                return Err(WireError::new(ErrorCode::Forbidden, text));
            }
        }
        self.delete_group(caller.reply_to(), &places)
    }

    /// The places of a group; refused if there is none.
    pub(crate) fn check_group(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Vec<GroupId>, WireError> {
        let places = self.messages.crews.places(topic, group);
        let ids = places.map(|places| places.iter().map(|(_, id)| *id).collect());
        ids.ok_or_else(|| {
            let text = format!("topic {topic} has no group {group}; groups.list tells which there are");
            WireError::new(ErrorCode::NotFound, text)
        })
    }

    /// Deletes a group for somebody who may: its subscriptions end, its place and what is open there are forgotten.
    pub(crate) fn delete_group(&mut self, to: ReplyTo, places: &[GroupId]) -> Result<Reply, WireError> {
        self.may_owe()?;
        let readings = || places.iter().filter_map(|id| self.messages.readings.get(id));
        if readings().any(|reading| !reading.is_made()) {
            let text = "the group is only just being made; try again";
            return Err(WireError::new(ErrorCode::Busy, text).retry_after(100));
        }
        let members = readings().flat_map(|reading| &reading.members);
        let subs: BTreeSet<(SessionKey, SubId)> =
            members.map(|holder| (holder.session, holder.sub.clone())).collect();
        for (session, sub) in &subs {
            self.end_subscription(*session, sub, "deleted");
        }
        for id in places {
            if let Some(reading) = self.messages.readings.get(id) {
                self.messages.crews.note_deleted(&reading.record);
            }
            self.messages.close(*id);
            self.write_surely(StoreWrite::DropGroup(*id));
        }
        let now = self.clock.now();
        self.await_all(Awaiting::Asked(to), now);
        Ok(Reply::Later)
    }

    /// Whether a session speaks for an operator. On a mesh that anybody may join nobody does.
    fn operates(&self, session: SessionKey) -> bool {
        !self.access.is_open() && self.may(session, Right::Admin).is_ok()
    }

    /// Writes the row that tells of what an operator does through a session.
    fn audit_act(
        &mut self,
        member: MemberKey,
        from: Option<core::net::IpAddr>,
        act: &'static str,
        subject: String,
    ) {
        self.effects.push_back(Effect::Note(Note::Operated { act, subject: subject.clone(), outcome: "ok" }));
        let audit = AuditRecord {
            at: self.clock.wall(),
            who: format!("member:{member}"),
            from: from.map(|from| from.to_string()).unwrap_or_default(),
            act: act.to_owned(),
            subject,
            outcome: "ok".to_owned(),
            details: serde_json::Value::Null,
        };
        let write = AccessWrite { changes: Vec::new(), audit: Some(audit) };
        self.write(StoreWrite::Access(Box::new(write)));
    }
}

/// What somebody is told who means a topic that is not there.
pub(crate) fn no_topic(name: &TopicName) -> WireError {
    let text = format!("there is no topic {name}; topics.list tells which there are");
    WireError::new(ErrorCode::NotFound, text)
}

/// What somebody is told who would use a topic that is going.
pub(crate) fn is_going(name: &TopicName) -> WireError {
    let text = format!("topic {name} is being deleted; try again in a moment to make it anew");
    WireError::new(ErrorCode::Busy, text).retry_after(1_000)
}
