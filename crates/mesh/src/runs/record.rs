//! A run on disk: what a mesh and its store say to each other about one.

use serde_json::Value;
use tenure_proto::error::WireError;
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::limits::RUN_TIMEOUT_MAX_MS;
use tenure_proto::log::LogName;
use tenure_proto::run::RunState;

use crate::messages::envelope::Lane;

/// A run as the store remembers it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// Which: the number of its message.
    pub id: RunId,
    /// Who called.
    pub caller: MemberKey,
    /// Which of its sessions did.
    pub caller_session: SessionKey,
    /// Who answers, and who vouched for it, once somebody does.
    pub callee: Option<(SessionKey, MemberKey)>,
    /// The inbox that its message is in.
    pub log: LogName,
    /// Its lane there.
    pub lane: Lane,
    /// Its number there.
    pub seq: u64,
    /// Bytes of its message's body; 0 when that has left its inbox.
    pub size: u64,
    /// Where it stands.
    pub state: RunState,
    /// Whether its caller wants it stopped.
    pub cancelled: bool,
    /// The last chunk's number, of one that has ended.
    pub last_seq: u64,
    /// The answer.
    pub result: Option<Value>,
    /// What went wrong.
    pub error: Option<WireError>,
    /// Until when it must be answered, Unix milliseconds.
    pub deadline: u64,
    /// When it was accepted, Unix milliseconds.
    pub started_at: u64,
    /// When it ended, Unix milliseconds.
    pub ended_at: Option<u64>,
}

impl RunRecord {
    /// The time that it was given.
    pub fn span(&self) -> RunSpan {
        RunSpan { started_at: self.started_at, deadline: self.deadline }
    }
}

/// The time that a run was given, by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpan {
    started_at: u64,
    deadline: u64,
}

impl RunSpan {
    /// Milliseconds that are left at this time of the wall clock: never more than there were at first, however far the clock
    /// went back since.
    pub fn left_ms(self, wall: u64) -> u64 {
        let whole = self.deadline.saturating_sub(self.started_at);
        self.deadline.saturating_sub(wall).min(whole).min(RUN_TIMEOUT_MAX_MS)
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnding {
    /// Which.
    pub id: RunId,
    /// `ok`, `error` or `cancelled`.
    pub state: RunState,
    /// The last chunk's number.
    pub last_seq: u64,
    /// The answer.
    pub result: Option<Value>,
    /// What went wrong.
    pub error: Option<WireError>,
    /// When, Unix milliseconds.
    pub at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_never_more_time_left_than_it_was_given() {
        let span = RunSpan { started_at: 10_000, deadline: 15_000 };
        let left: Vec<u64> = [0, 9_000, 10_000, 12_000, 15_000, 99_000].map(|wall| span.left_ms(wall)).into();
        assert_eq!(left, [5_000, 5_000, 5_000, 3_000, 0, 0]);
    }
}
