//! How full everything about messages is.

use tenure_kit::census::Count;
use tenure_proto::limits::TOPICS_MAX;

use crate::config::MeshConfig;
use crate::messages::Messages;
use crate::messages::deleting::TOMBS_MAX;
use crate::messages::group::OPEN_MAX;
use crate::messages::log::{TAIL_BYTES, TAIL_ENTRIES};
use crate::messages::pages::{PAGE_ENTRIES, PAGES};

impl Messages {
    /// How full everything is.
    pub(crate) fn count(&self, counts: &mut Vec<Count>, config: &MeshConfig, base: &MeshConfig) {
        debug_assert_eq!(self.backlog.depth(), self.counted_backlog());
        let (entries, bytes) = self.logs.tail_sizes();
        let count = |what, size, bound| Count { what, size, bound };
        let readings = || self.readings.values();
        counts.extend([
            count("topics", self.topics.len(), TOPICS_MAX),
            count("deadlines of groups", self.deadlines.len(), self.readings.len()),
            count(
                "groups that the store does not know",
                self.dirty.len() + self.lagging.len(),
                self.readings.len(),
            ),
            count("entries of tails", entries, TAIL_ENTRIES),
            count("bytes of tails", bytes, TAIL_BYTES),
            count("inboxes that are being cleared", self.upkeep.evacuations(), self.logs.iter().count()),
            Count::fullest("open entries of a group", readings().map(|r| (r.group.open_len(), OPEN_MAX))),
            Count::fullest("dead letters that are back", readings().map(|r| (r.spared.len(), OPEN_MAX))),
            count("pages", readings().filter(|r| !r.page.is_empty()).count(), PAGES),
            Count::fullest("entries of a page", readings().map(|r| (r.page.len(), PAGE_ENTRIES as usize))),
            Count::fullest(
                "entries that are read again",
                readings().map(|r| (r.again.len(), r.group.open_len())),
            ),
            Count::fullest("entries to be read again", readings().map(|r| (r.wanted.len(), OPEN_MAX))),
        ]);
        let (going, tombs) = (self.deleting.len(), self.tombs.len());
        counts.push(count("topics that are going", going + self.topics.len(), TOPICS_MAX));
        counts.push(count("logs of deleted topics", tombs, TOMBS_MAX));
        // Lowered while it runs, a bound holds for what is made from then on.
        let per_member = config.max_topics_per_member.max(base.max_topics_per_member);
        counts
            .push(Count::fullest("topics of a member", self.makers.values().map(|made| (*made, per_member))));
        let per_topic = config.max_groups_per_topic.max(base.max_groups_per_topic);
        let per_member = config.max_groups_per_member.max(base.max_groups_per_member);
        self.crews.count(per_topic, per_member, counts);
    }

    /// How many groups there are, sockets whose tags are proven, and deliveries that wait for their claims.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (self.readings.len(), self.proving.len(), self.parked.len())
    }

    /// How often a group was looked at because its lane grew or somebody listed it.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }
}
