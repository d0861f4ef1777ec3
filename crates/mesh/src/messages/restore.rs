//! A start: what the store remembers of messages is taken up where it was.
//!
//! Its cost follows logs, groups and what is open, never the number of messages.

use tenure_proto::ids::{SessionKey, SubId};
use tenure_proto::limits::STARTUP_GRACE_MS;
use tenure_proto::log::LogName;
use tenure_proto::subscribe::{AckMode, DEFAULT_PREFETCH};

use crate::Mesh;
use crate::messages::Messages;
use crate::messages::group::{Holder, OpenState};
use crate::messages::placing::Placed;
use crate::messages::subs::{INBOX, MEMBER, Source, Sub};
use crate::messages::subscribe::chosen;
use crate::store::record::{
    GroupState, LogRecord, OpenRecord, Reader, RestoredMessages, StoreWrite, SubRecord, TopicState,
};

impl Mesh {
    /// Takes up what the store remembers of messages, after the leases.
    pub(crate) fn restore_messages(&mut self, restored: RestoredMessages) {
        let RestoredMessages { topics, deleted, logs, groups, subs, left, runs, services } = restored;
        for log in deleted {
            self.messages.remember_tomb(log);
        }
        for record in topics {
            match record.state {
                TopicState::Living => {
                    let log = |partition| LogName::Topic(record.name.clone(), partition);
                    let used = |log: &LogRecord| log.lanes.iter().any(|lane| lane.end > 0);
                    let find = |name: &LogName| logs.binary_search_by(|log| log.log.cmp(name)).ok();
                    let was_used = (0..record.partitions)
                        .filter_map(|partition| logs.get(find(&log(partition))?))
                        .any(used);
                    let used_at = if was_used { self.clock.wall() } else { 0 };
                    self.messages.add_topic(record, used_at);
                }
                TopicState::Unused | TopicState::Deleted => self.restore_deleting(record),
            }
        }
        for record in &logs {
            self.messages.logs.restore(record);
        }
        for state in &groups {
            let gone = |session: &SessionKey| !self.sessions.is_leased(session);
            if matches!(&state.record.reader, Reader::Private(session) if gone(session)) {
                continue;
            }
            self.messages.open(state.record.clone(), state.cursor, state.used_at);
            if let Some(reading) = self.messages.readings.get_mut(&state.record.id) {
                reading.passed = state.passed;
                reading.restored_at = Some(state.cursor);
                reading.placed = Placed::Yes;
            }
        }
        // In the order in which they were made, as places were: two of a session may have one partition in common.
        let mut subs = subs;
        subs.sort_by(|a, b| (a.sub.as_str().len(), &a.sub).cmp(&(b.sub.as_str().len(), &b.sub)));
        for record in subs {
            if self.messages.deleting.contains_key(&record.topic) {
                // It ended with its topic; whoever comes back is told so.
                self.owe(self.clock.now(), StoreWrite::DropSub(record.session, record.sub));
            } else {
                self.restore_sub(record);
            }
        }
        let used = logs.iter().filter(|log| log.lanes.iter().any(|lane| lane.end > 0)).map(|log| &log.log);
        for log in used.chain(groups.iter().map(|state| &state.record.log)).filter(|log| log.is_inbox()) {
            self.ensure_inbox(log);
        }
        for state in groups {
            self.restore_open(state);
        }
        for log in &logs {
            self.messages.note_if_full(&log.log);
        }
        self.remember_left(left);
        self.restore_runs(runs);
        self.restore_services(services);
        let release_at = self.clock.now().plus(STARTUP_GRACE_MS.max(self.config.reconnect_grace_ms));
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.release_later(session, release_at);
            self.reschedule(session);
        }
    }

    fn restore_sub(&mut self, record: SubRecord) {
        let SubRecord { session, sub: id, topic, group, partition, ack_mode, prefetch } = record;
        let partitions = self.messages.topics.get(&topic).map_or(1, |topic| topic.record.partitions);
        let Some(lease) = self.sessions.lease_mut(&session) else { return };
        let source = Source::Topic { topic: topic.clone(), group: group.clone(), partition };
        let mut sub = Sub::new(source, ack_mode, prefetch);
        for partition in chosen(partition, partitions) {
            let log = LogName::Topic(topic.clone(), partition);
            let place = match &group {
                Some(name) => self.messages.crews.get(&log, name),
                None => self.messages.private_place(&log, &session),
            };
            let Some(place) = place else { continue };
            self.messages.join(place, Holder { session, sub: id.clone() });
            sub.groups.push(place);
        }
        lease.subs.insert(id, sub);
    }

    /// Entries that were in somebody's hand stay there if that session still has a lease.
    fn restore_open(&mut self, state: GroupState) {
        let id = state.record.id;
        for (record, origin) in state.open {
            let place = match (record.holder, record.ready_at) {
                (Some(session), None) => self.restore_hand(&state.record.log, id, session, &record),
                (_, Some(wall)) if wall > self.clock.wall() => {
                    OpenState::Delayed(self.clock.now().plus(wall - self.clock.wall()), wall)
                }
                _ => OpenState::Ready,
            };
            if let Some(reading) = self.messages.readings.get_mut(&id) {
                if matches!(reading.record.log, LogName::Session(_)) {
                    reading.restored_open.insert(record.seq);
                }
                reading.group.restore(&record, place, origin);
            }
        }
        if let Some(reading) = self.messages.readings.get_mut(&id) {
            state.settlers.into_iter().for_each(|record| reading.group.restore_settler(record));
        }
        self.messages.touch(id);
    }

    fn restore_hand(
        &mut self,
        log: &LogName,
        id: crate::store::record::GroupId,
        session: SessionKey,
        record: &OpenRecord,
    ) -> OpenState {
        let until = self.ack_deadline(self.clock.now(), id);
        let Some(lease) = self.sessions.lease_mut(&session) else { return OpenState::Ready };
        let name: Option<SubId> = match log {
            LogName::Session(_) => INBOX.parse().ok(),
            LogName::Member(_) => MEMBER.parse().ok(),
            LogName::Topic(..) => {
                lease.subs.iter().find(|(_, sub)| sub.groups.contains(&id)).map(|(name, _)| name.clone())
            }
        };
        let Some(name) = name else { return OpenState::Ready };
        if log.is_inbox() && lease.subs.get(&name).is_none() {
            // Which inboxes it reads it will say itself; until then what is in its hand stays there.
            let mut sub = Sub::new(Source::Inbox(log.clone()), AckMode::Manual, DEFAULT_PREFETCH);
            sub.groups = self.messages.places(log);
            for place in sub.groups.clone() {
                self.messages.join(place, Holder { session, sub: name.clone() });
            }
            lease.subs.insert(name.clone(), sub);
        }
        if let Some(sub) = lease.subs.get_mut(&name) {
            sub.hold_freely(id, record.seq);
        }
        OpenState::Held { holder: Holder { session, sub: name }, until }
    }
}

impl Messages {
    /// What a start took up was measured by a wall clock that is so far behind `wall`.
    pub(crate) fn restored_behind(&mut self, behind_ms: u64, wall: u64) {
        if behind_ms == 0 {
            return;
        }
        for topic in self.topics.values_mut().filter(|topic| topic.used_at > 0) {
            topic.used_at = wall;
        }
        let ids: Vec<_> = self.readings.keys().copied().collect();
        for id in ids {
            if let Some(reading) = self.readings.get_mut(&id) {
                reading.group.delays_are_shorter(behind_ms);
            }
            self.touch(id);
        }
    }
}
