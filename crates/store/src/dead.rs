//! Dead letters, as far as both engines agree on them.

use tenure_proto::name::GroupName;

/// Whether a dead letter of `group` is meant when those of `crews` are, or all.
pub(crate) fn is_of(crews: Option<&[GroupName]>, group: Option<&GroupName>) -> bool {
    crews.is_none_or(|crews| group.is_some_and(|group| crews.contains(group)))
}
