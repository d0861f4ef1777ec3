//! Shared consumer groups: by topic and name, which member made how many, and which of them have no reader.
//!
//! A group has one place in each partition that it reads. A topic's bound counts names, a member's bound counts places,
//! because places are what a group costs. Both are checked before a subscription makes anything.
//!
//! A group without a reader costs a post nothing: only groups with a reader that could take something wait for their lane
//! to grow. How deep a group is, is what its lane has counted less what the group has passed; nothing is updated by a post.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use tenure_kit::census::Count;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey, SubId};
use tenure_proto::log::LogName;
use tenure_proto::name::{GroupName, TopicName};

use crate::Mesh;
use crate::messages::Messages;
use crate::messages::group::Holder;
use crate::messages::subscribe::chosen;
use crate::store::record::{GroupId, GroupRecord, Reader};

/// Deleted groups that a mesh remembers, in memory: their members may have slept through it.
const DELETED_MAX: usize = 10_000;

/// The places of one group, by partition.
pub(crate) type Places = Vec<(u32, GroupId)>;

/// The shared consumer groups of a mesh.
#[derive(Debug, Default)]
pub(crate) struct Crews {
    /// By topic and name. A topic has at most `max_groups_per_topic`.
    topics: BTreeMap<TopicName, BTreeMap<GroupName, Places>>,
    /// How many places each member has made, at most `max_groups_per_member`.
    members: BTreeMap<MemberKey, usize>,
    /// Places without a reader, by when each was used last. That time may be older than what the group says, never newer.
    idle: BTreeSet<(u64, GroupId)>,
    /// Groups that were deleted and not made again since, at most [`DELETED_MAX`]. A member that comes back from a longer sleep is told so,
    /// and does not make its group again where it had begun.
    deleted: BTreeSet<(TopicName, GroupName)>,
}

impl Crews {
    /// Whether a group was deleted since this start of the broker, and has not been made again.
    pub(crate) fn was_deleted(&self, topic: &TopicName, name: Option<&GroupName>) -> bool {
        name.is_some_and(|name| self.deleted.contains(&(topic.clone(), name.clone())))
    }

    /// Remembers that a group was deleted. Past the bound one that was deleted before is forgotten.
    pub(crate) fn note_deleted(&mut self, record: &GroupRecord) {
        let (LogName::Topic(topic, _), Reader::Shared(name)) = (&record.log, &record.reader) else { return };
        if self.deleted.len() >= DELETED_MAX {
            self.deleted.pop_first();
        }
        self.deleted.insert((topic.clone(), name.clone()));
    }

    /// The place of a group in a log.
    pub(crate) fn get(&self, log: &LogName, name: &GroupName) -> Option<GroupId> {
        let LogName::Topic(topic, partition) = log else { return None };
        let places = self.places(topic, name)?;
        places.iter().find(|(of, _)| of == partition).map(|(_, id)| *id)
    }

    /// The places of a group, by partition.
    pub(crate) fn places(&self, topic: &TopicName, name: &GroupName) -> Option<&Places> {
        self.topics.get(topic)?.get(name)
    }

    /// How many groups a topic has.
    pub(crate) fn of_topic(&self, topic: &TopicName) -> usize {
        self.topics.get(topic).map_or(0, BTreeMap::len)
    }

    /// The groups of a topic in the order of their names, after one of them.
    pub(crate) fn after<'a>(
        &'a self,
        topic: &TopicName,
        after: Option<&'a GroupName>,
    ) -> impl Iterator<Item = (&'a GroupName, &'a Places)> {
        let from = after.map_or(Unbounded, Excluded);
        let groups = self.topics.get(topic).into_iter();
        groups.flat_map(move |groups| groups.range::<GroupName, _>((from, Unbounded)))
    }

    /// Places that a member has made.
    fn of_member(&self, member: &MemberKey) -> usize {
        self.members.get(member).copied().unwrap_or(0)
    }

    fn insert(&mut self, record: &GroupRecord) {
        let (LogName::Topic(topic, partition), Reader::Shared(name)) = (&record.log, &record.reader) else {
            return;
        };
        let places = self.topics.entry(topic.clone()).or_default().entry(name.clone()).or_default();
        let at = places.partition_point(|(of, _)| of < partition);
        places.insert(at, (*partition, record.id));
        self.deleted.remove(&(topic.clone(), name.clone()));
        if let Some(owner) = record.owner {
            *self.members.entry(owner).or_default() += 1;
        }
    }

    fn remove(&mut self, record: &GroupRecord) {
        let (LogName::Topic(topic, _), Reader::Shared(name)) = (&record.log, &record.reader) else { return };
        let Some(groups) = self.topics.get_mut(topic) else { return };
        let Some(places) = groups.get_mut(name) else { return };
        places.retain(|(_, id)| *id != record.id);
        if places.is_empty() {
            groups.remove(name);
        }
        if groups.is_empty() {
            self.topics.remove(topic);
        }
        if let Some(owner) = &record.owner
            && let Some(made) = self.members.get_mut(owner)
        {
            *made = made.saturating_sub(1);
            if *made == 0 {
                self.members.remove(owner);
            }
        }
    }

    /// Takes out the place that has been without a reader for longest, if that is since before `before`.
    pub(crate) fn pop_idle(&mut self, before: u64) -> Option<GroupId> {
        let (since, id) = *self.idle.first()?;
        (since < before && self.idle.remove(&(since, id))).then_some(id)
    }

    /// How full everything is.
    pub(crate) fn count(&self, per_topic: usize, per_member: usize, counts: &mut Vec<Count>) {
        let places = self.topics.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        counts.push(Count { what: "crews without a reader", size: self.idle.len(), bound: places });
        counts.push(Count { what: "deleted groups", size: self.deleted.len(), bound: DELETED_MAX });
        counts
            .push(Count::fullest("groups of a topic", self.topics.values().map(|of| (of.len(), per_topic))));
        counts.push(Count::fullest("groups of a member", self.members.values().map(|n| (*n, per_member))));
    }
}

impl Messages {
    /// A group was made or found: it is listed, and has no reader yet.
    pub(crate) fn list_crew(&mut self, id: GroupId) {
        let Some(reading) = self.readings.get(&id).filter(|reading| reading.is_shared()) else { return };
        self.crews.insert(&reading.record);
        self.set_idle(id);
    }

    /// A group is forgotten.
    pub(crate) fn unlist_crew(&mut self, id: GroupId, record: &GroupRecord, idle: Option<u64>) {
        self.crews.remove(record);
        if let Some(since) = idle {
            self.crews.idle.remove(&(since, id));
        }
    }

    /// Nobody reads a group: it does not wait for its lane to grow.
    pub(crate) fn set_idle(&mut self, id: GroupId) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        if reading.is_shared() && reading.members.is_empty() && reading.idle.is_none() {
            reading.idle = Some(reading.used_at);
            self.crews.idle.insert((reading.used_at, id));
            if let Some(lane) = self.logs.lane_mut(&reading.record.log, reading.record.lane) {
                lane.waiting.remove(&id);
            }
        }
    }

    /// Lets a session read a place: it is woken when its lane grows.
    pub(crate) fn join(&mut self, id: GroupId, holder: Holder) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        reading.members.push_back(holder);
        if let Some(since) = reading.idle.take() {
            self.crews.idle.remove(&(since, id));
        }
        if let Some(lane) = self.logs.lane_mut(&reading.record.log, reading.record.lane) {
            lane.waiting.insert(id);
        }
    }

    /// Takes a reader out of a place.
    pub(crate) fn leave(&mut self, id: GroupId, session: &SessionKey, sub: &SubId) {
        if let Some(reading) = self.readings.get_mut(&id) {
            reading.members.retain(|holder| holder.session != *session || holder.sub != *sub);
        }
        self.set_idle(id);
    }
}

impl Mesh {
    /// Refuses a subscription that would make more groups than its topic or its member may have.
    pub(crate) fn check_groups(
        &self,
        session: SessionKey,
        topic: &TopicName,
        group: Option<&GroupName>,
        partition: Option<u32>,
    ) -> Result<(), WireError> {
        let (Some(name), Some(lease)) = (group, self.sessions.lease(&session)) else { return Ok(()) };
        let crews = &self.messages.crews;
        let partitions = self.messages.topics.get(topic).map_or(1, |topic| topic.record.partitions);
        let has = |partition: &u32| crews.get(&LogName::Topic(topic.clone(), *partition), name).is_some();
        let fresh = chosen(partition, partitions).filter(|partition| !has(partition)).count();
        let most = self.config.max_groups_per_topic;
        if crews.places(topic, name).is_none() && crews.of_topic(topic) >= most {
            let text =
                format!("topic {topic} has {most} groups, which is as many as it may; join one of them");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let most = self.config.max_groups_per_member;
        if fresh > 0 && crews.of_member(&lease.member) + fresh > most {
            let text =
                format!("this member has made {most} groups, counted by partition; it may not make more");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        Ok(())
    }
}
