//! The rule by which a message's fate is told.

use tenure_proto::message::SendState;

/// The reason of a dead letter that nobody settled in time.
pub(crate) const EXPIRED: &str = "expired";
/// The reason of a dead letter whose session went before it was read.
pub(crate) const LEASE_EXPIRED: &str = "lease_expired";

/// The reason of a dead letter that had to make room.
pub(crate) const RETENTION: &str = "retention";

/// The fate of a message that is, or was, a dead letter for `reason`, or else was settled, or else waits. A message
/// to a topic has any number of readers: that some of them settled it, or gave it up, is not its fate.
pub(crate) fn of(reason: Option<String>, inbox: bool, settled: bool) -> (SendState, Option<String>) {
    match reason {
        Some(reason) if reason == EXPIRED => (SendState::Expired, Some(reason)),
        Some(reason) if inbox => (SendState::Dead, Some(reason)),
        None if inbox && settled => (SendState::Delivered, None),
        _ => (SendState::Accepted, None),
    }
}
