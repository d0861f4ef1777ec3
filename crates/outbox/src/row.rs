//! The life of a row of the outbox.
//!
//! | from | step | to |
//! |---|---|---|
//! | pending | taken | inflight |
//! | inflight | accepted | done |
//! | inflight | refused for now, not sent after all, restarted | pending |
//! | inflight | refused for good | dead |
//! | pending | expired | dead |
//! | pending, dead | known (the broker has it after all) | done |
//! | pending, dead | withdrawn (requeued or dropped by a person) | aborted |
//!
//! Every other step has no effect. `done` and `aborted` are final, and nothing frees an id.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::ids::MessageId;

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It waits for its turn.
    Pending,
    /// It is on its way to the broker, or may be.
    Inflight,
    /// The broker has it.
    Done,
    /// The broker will never have it: a person must look.
    Dead,
    /// A person took it back.
    Aborted,
}

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// It is about to be sent.
    Taken,
    /// The broker has accepted it, now or before.
    Accepted,
    /// The broker could not take it now, or did not answer.
    RefusedForNow,
    /// It was taken, and not sent after all.
    NotSent,
    /// The broker will not take it.
    RefusedForGood,
    /// The daemon starts, and nobody knows what became of what was on its way.
    Restarted,
    /// It has waited as long as it may.
    Expired,
    /// The broker says that it has had it all along.
    Known,
    /// A person takes it back.
    Withdrawn,
}

impl Status {
    /// Every state.
    pub const ALL: [Status; 5] =
        [Status::Pending, Status::Inflight, Status::Done, Status::Dead, Status::Aborted];

    /// As it stands in the database and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Inflight => "inflight",
            Status::Done => "done",
            Status::Dead => "dead",
            Status::Aborted => "aborted",
        }
    }

    /// The state spelled `text`.
    pub fn from_text(text: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Where `step` leads from here; `None` when it does not apply.
    pub fn after(self, step: Step) -> Option<Status> {
        Some(match (self, step) {
            (Status::Inflight, Step::Restarted) if mutant::on(Mutant::InflightForgotten) => return None,
            (Status::Pending, Step::Taken) => Status::Inflight,
            (Status::Inflight, Step::Accepted) => Status::Done,
            (Status::Inflight, Step::RefusedForNow | Step::NotSent | Step::Restarted) => Status::Pending,
            (Status::Inflight, Step::RefusedForGood) | (Status::Pending, Step::Expired) => Status::Dead,
            (Status::Pending | Status::Dead, Step::Known) => Status::Done,
            (Status::Pending | Status::Dead, Step::Withdrawn) => Status::Aborted,
            _ => return None,
        })
    }

    /// Whether nothing can happen to it any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Status::Done | Status::Aborted)
    }
}

impl Step {
    /// Every step.
    pub const ALL: [Step; 9] = [
        Step::Taken,
        Step::Accepted,
        Step::RefusedForNow,
        Step::NotSent,
        Step::RefusedForGood,
        Step::Restarted,
        Step::Expired,
        Step::Known,
        Step::Withdrawn,
    ];
}

/// Where the broker put a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The broker's id for it.
    pub id: MessageId,
    /// Its number in its log; unknown when only `send.status` told of it.
    pub seq: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_step_is_in_the_table_or_has_no_effect() {
        let table = [
            (Status::Pending, Step::Taken, Status::Inflight),
            (Status::Inflight, Step::Accepted, Status::Done),
            (Status::Inflight, Step::RefusedForNow, Status::Pending),
            (Status::Inflight, Step::NotSent, Status::Pending),
            (Status::Inflight, Step::Restarted, Status::Pending),
            (Status::Inflight, Step::RefusedForGood, Status::Dead),
            (Status::Pending, Step::Expired, Status::Dead),
            (Status::Pending, Step::Known, Status::Done),
            (Status::Dead, Step::Known, Status::Done),
            (Status::Pending, Step::Withdrawn, Status::Aborted),
            (Status::Dead, Step::Withdrawn, Status::Aborted),
        ];
        for from in Status::ALL {
            for step in Step::ALL {
                let row = table.iter().find(|row| (row.0, row.1) == (from, step));
                assert_eq!(from.after(step), row.map(|row| row.2), "{from:?} {step:?}");
            }
        }
    }

    #[test]
    fn what_is_final_goes_nowhere() {
        for status in Status::ALL {
            let goes = Step::ALL.into_iter().any(|step| status.after(step).is_some());
            assert_eq!(goes, !status.is_final(), "{status:?}");
            assert_eq!(Status::from_text(status.as_str()), Some(status));
        }
        assert_eq!(Status::from_text("Pending"), None);
    }

    #[test]
    fn what_may_be_at_the_broker_is_never_taken_back_or_given_up_by_the_clock() {
        assert_eq!(Status::Inflight.after(Step::Withdrawn), None);
        assert_eq!(Status::Inflight.after(Step::Expired), None);
    }
}
