//! The end of a topic, as the model has it.

use tenure_mesh::store::record::{GroupId, StoreOutcome, TopicRecord, TopicState};
use tenure_proto::log::LogName;

use super::messages::Messages;

impl Messages {
    /// Whether the logs of a topic hold neither entries nor dead letters.
    pub(super) fn is_empty(&self, topic: &TopicRecord) -> bool {
        logs(topic).all(|name| {
            let entries = self.logs.get(&name).is_some_and(|log| !log.entries.is_empty());
            !entries && !self.dead.keys().any(|(log, ..)| *log == name)
        })
    }

    /// Deletes a slice of what a topic holds; when that was not a full one, the topic is gone and its logs are hidden.
    pub(super) fn clear(&mut self, topic: &TopicRecord, limit: usize) -> StoreOutcome {
        let mut left = limit;
        for name in logs(topic).filter(|name| self.logs.contains_key(name)).collect::<Vec<_>>() {
            self.clear_groups(&name, &mut left);
            self.clear_entries(&name, &mut left);
            let letters = self.dead.keys().filter(|(log, ..)| *log == name).take(left).cloned();
            for key in letters.collect::<Vec<_>>() {
                if let Some(letter) = self.dead.remove(&key) {
                    self.note_loss(&letter);
                }
                left -= 1;
            }
            if left == 0 {
                return StoreOutcome::Count { rows: limit as u64, more: true };
            }
        }
        for name in logs(topic) {
            if let Some(log) = self.logs.get_mut(&name) {
                (log.hidden, log.told) = (true, topic.state == TopicState::Deleted);
            }
        }
        self.topics.remove(&topic.name);
        StoreOutcome::Count { rows: (limit - left) as u64, more: false }
    }

    fn clear_groups(&mut self, name: &LogName, left: &mut usize) {
        let of_log = self.groups.iter().filter(|(_, group)| group.record.log == *name);
        for id in of_log.map(|(id, _)| *id).collect::<Vec<GroupId>>() {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            while *left > 0 && group.open.pop_first().is_some() {
                *left -= 1;
            }
            if *left == 0 {
                return;
            }
            self.groups.remove(&id);
            *left -= 1;
        }
    }

    fn clear_entries(&mut self, name: &LogName, left: &mut usize) {
        let Some(log) = self.logs.get_mut(name) else { return };
        let mut last = 0;
        while *left > 0
            && let Some((seq, _)) = log.entries.pop_first()
        {
            (last, *left) = (seq, *left - 1);
        }
        let lane = &mut log.lanes[0];
        lane.pruned = lane.pruned.max(if *left > 0 { lane.end } else { last });
    }
}

fn logs(topic: &TopicRecord) -> impl Iterator<Item = LogName> + '_ {
    (0..topic.partitions).map(|partition| LogName::Topic(topic.name.clone(), partition))
}
