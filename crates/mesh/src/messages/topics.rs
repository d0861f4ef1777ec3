//! Topics: making them, and what there is to see of them and of their groups.
//!
//! A list is paged, and each of its pages has a cost of its own, however many topics and groups there are: an answer tells
//! of at most [`GROUPS_PER_ANSWER`] places of groups.

use std::ops::Bound::{Excluded, Unbounded};

use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::limits::{GROUPS_PER_ANSWER, PAGE, PARTITIONS_MAX};
use tenure_proto::log::LogName;
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::number::U53;
use tenure_proto::topic::{
    GroupInfo, GroupsListParams, GroupsListResult, TopicCreateParams, TopicInfo, TopicsListParams,
    TopicsListResult,
};

use crate::Mesh;
use crate::effect::Answer;
use crate::messages::deleting::{is_going, no_topic};
use crate::messages::envelope::Lane;
use crate::messages::groups::Places;
use crate::messages::reads::{Purpose, page};
use crate::reply::{Caller, Reply, ReplyTo};
use crate::store::pending::Awaiting;
use crate::store::record::StoreRead;

/// A part of the groups of a topic, as it is listed.
struct Listed {
    groups: Vec<GroupInfo>,
    /// Where each group's places stand, and which group of `groups` each is of.
    places: Vec<((LogName, Lane, u64), usize)>,
    /// The last group that is listed, when there are more.
    next: Option<GroupName>,
}

impl Mesh {
    pub(crate) fn topics_create(
        &mut self,
        now: Millis,
        caller: &Caller,
        params: TopicCreateParams,
    ) -> Result<Reply, WireError> {
        let TopicCreateParams { name, partitions, retention_ms } = params;
        let retention_ms = retention_ms.map(U53::get);
        if partitions == 0 || partitions > PARTITIONS_MAX {
            return Err(WireError::bad_request(format!("partitions must be between 1 and {PARTITIONS_MAX}")));
        }
        let remembered_ms = self.config.remember_until(0).unwrap_or(u64::MAX);
        if retention_ms.is_some_and(|ms| ms > remembered_ms) {
            let text = format!("retentionMs must be at most {remembered_ms}: ids are not remembered longer");
            return Err(WireError::bad_request(text));
        }
        if self.messages.deleting.contains_key(&name) {
            return Err(is_going(&name));
        }
        if let Some(known) = self.messages.topics.get(&name) {
            if known.record.partitions != partitions || known.record.retention_ms != retention_ms {
                let text = "a topic of that name exists with other settings";
                return Err(WireError::new(ErrorCode::Conflict, text));
            }
        } else {
            self.make_topic(caller.session, name, partitions, retention_ms)?;
        }
        self.await_all(Awaiting::Answer(caller.reply_to(), Box::new(Answer::Empty)), now);
        Ok(Reply::Later)
    }

    pub(crate) fn topics_list(&mut self, to: ReplyTo, params: &TopicsListParams) -> Result<Reply, WireError> {
        let limit = page(params.limit)? as usize;
        let after = params.after.as_ref().map_or(Unbounded, Excluded);
        let names = self.messages.topics.range::<TopicName, _>((after, Unbounded)).map(|(name, _)| name);
        let names: Vec<TopicName> = names.take(limit + 1).cloned().collect();
        let (mut topics, mut places, mut which) = (Vec::new(), Vec::new(), Vec::new());
        for name in names.iter().take(limit) {
            let left = GROUPS_PER_ANSWER.saturating_sub(places.len());
            if left == 0 {
                break;
            }
            let Some(record) = self.messages.topics.get(name).map(|topic| topic.record.clone()) else {
                continue;
            };
            let listed = self.list_groups(name, None, PAGE, left);
            for (place, group) in listed.places {
                places.push(place);
                which.push((topics.len(), group));
            }
            let logs = (0..record.partitions).map(|partition| LogName::Topic(name.clone(), partition));
            let count = |log: LogName| self.messages.logs.lane(&log, Lane(0)).map_or(0, |lane| lane.count);
            topics.push(TopicInfo {
                name: record.name,
                partitions: record.partitions,
                retention_ms: record.retention_ms.map(U53::saturating),
                entries: U53::saturating(logs.map(count).sum()),
                groups: listed.groups,
                group_count: Some(U53::saturating(self.messages.crews.of_topic(name) as u64)),
                groups_next: listed.next,
            });
        }
        let more = topics.len() < names.len();
        let next = topics.last().filter(|_| more).map(|topic| topic.name.clone());
        let purpose = Purpose::Topics(to, TopicsListResult { topics, next }, which);
        self.read(purpose, StoreRead::Oldest { places });
        Ok(Reply::Later)
    }

    pub(crate) fn groups_list(&mut self, to: ReplyTo, params: &GroupsListParams) -> Result<Reply, WireError> {
        let limit = page(params.limit)? as usize;
        if !self.messages.topics.contains_key(&params.topic) {
            return Err(no_topic(&params.topic));
        }
        let listed = self.list_groups(&params.topic, params.after.as_ref(), limit, GROUPS_PER_ANSWER);
        let (places, which) = listed.places.into_iter().unzip();
        let result = GroupsListResult { groups: listed.groups, next: listed.next };
        self.read(Purpose::Groups(to, result, which), StoreRead::Oldest { places });
        Ok(Reply::Later)
    }

    /// What there is to see of groups of a topic: at most `limit` of them, and at most so many places, but at least one.
    fn list_groups(
        &mut self,
        topic: &TopicName,
        after: Option<&GroupName>,
        limit: usize,
        most: usize,
    ) -> Listed {
        let mut listed = Listed { groups: Vec::new(), places: Vec::new(), next: None };
        let mut crews = self.messages.crews.after(topic, after);
        for (name, places) in crews.by_ref() {
            let full = listed.groups.len() >= limit || listed.places.len() + places.len() > most;
            if full && !listed.groups.is_empty() {
                listed.next = listed.groups.last().map(|group| group.name.clone());
                break;
            }
            let info = self.group_info(name, places);
            for (partition, id) in places {
                let floor = self.messages.readings.get(id).map_or(0, |reading| reading.group.floor());
                let log = LogName::Topic(topic.clone(), *partition);
                listed.places.push(((log, Lane(0), floor), listed.groups.len()));
            }
            listed.groups.push(info);
        }
        self.messages.visits += listed.places.len() as u64;
        listed
    }

    /// A group's figures, of all its places together.
    fn group_info(&self, name: &GroupName, places: &Places) -> GroupInfo {
        let (mut depth, mut held, mut members) = (0, 0, 0);
        for reading in places.iter().filter_map(|(_, id)| self.messages.readings.get(id)) {
            depth += self.messages.depth(reading).0;
            // Not what was given back and waits for the next.
            held += reading.group.held_len() as u64;
            members = members.max(reading.members.len() as u64);
        }
        let [depth, unsettled, members] = [depth, held, members].map(U53::saturating);
        GroupInfo { name: name.clone(), depth, unsettled, members, oldest_ms: None }
    }

    /// The store has told when the oldest entry of a group's place was sent.
    pub(crate) fn note_oldest(&self, group: Option<&mut GroupInfo>, sent: Option<u64>) {
        if let (Some(group), Some(sent)) = (group, sent) {
            let age = U53::saturating(self.clock.wall().saturating_sub(sent));
            group.oldest_ms = Some(group.oldest_ms.map_or(age, |other| other.max(age)));
        }
    }
}
