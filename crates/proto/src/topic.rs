//! Topics: making them, and what there is to see of them.

use serde::{Deserialize, Serialize};

use crate::name::{GroupName, TopicName};
use crate::number::U53;

/// The params of `topics.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TopicCreateParams {
    /// The topic.
    pub name: TopicName,
    /// How many logs it has, 1 to 256.
    pub partitions: u32,
    /// How long settled entries stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<U53>,
}

/// The params of `topics.delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TopicDeleteParams {
    /// The topic.
    pub name: TopicName,
}

/// The params of `groups.delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GroupDeleteParams {
    /// The topic.
    pub topic: TopicName,
    /// The shared group.
    pub group: GroupName,
}

/// The params of `topics.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TopicsListParams {
    /// Go on after this topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TopicName>,
    /// How many, at most 256; absent is 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `topics.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TopicsListResult {
    /// Topics, ordered by name.
    pub topics: Vec<TopicInfo>,
    /// Present when there are more: where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<TopicName>,
}

/// A topic as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// How many logs it has.
    pub partitions: u32,
    /// How long settled entries stay, when it is not the broker's usual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<U53>,
    /// Entries ever appended to it, in all partitions.
    pub entries: U53,
    /// Its shared groups, ordered by name; the first of them when `groupsNext` is there.
    pub groups: Vec<GroupInfo>,
    /// How many shared groups it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_count: Option<U53>,
    /// Present when it has more groups than are listed here: after which one `groups.list` goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_next: Option<GroupName>,
}

/// The params of `groups.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GroupsListParams {
    /// The topic.
    pub topic: TopicName,
    /// Go on after this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<GroupName>,
    /// How many, at most 256; absent is 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<U53>,
}

/// The result of `groups.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GroupsListResult {
    /// Shared groups of the topic, ordered by name.
    pub groups: Vec<GroupInfo>,
    /// Present when there are more: where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<GroupName>,
}

/// A shared group as everybody may see it; numbers are of all partitions together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupInfo {
    /// Its name.
    pub name: GroupName,
    /// Entries that are not settled, in somebody's hands or not.
    pub depth: U53,
    /// Those of them that are in somebody's hands.
    pub unsettled: U53,
    /// Subscriptions that compete for them.
    pub members: U53,
    /// How long the oldest entry that is not settled has waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<U53>,
}
