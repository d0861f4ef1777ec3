//! What the broker's answer to a send means for its row.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::MessageId;
use tenure_proto::message::SendResult;

use crate::row::{Place, Step};

/// What becomes of a row that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The broker has it.
    Done(Place),
    /// To be sent again, not before so many milliseconds if the broker wished it.
    Again {
        /// Why.
        error: String,
        /// The broker's wish.
        wish_ms: Option<u64>,
    },
    /// Never to be sent again.
    Dead {
        /// Why: the code is its first word.
        error: String,
    },
    /// Never sent: the time that its sender gave it was over before.
    Lapsed,
}

/// What is written down of a row that was never sent because its time was over.
pub const LAPSED: &str = "expired: its time to live was over before it could be sent";

impl Verdict {
    /// The step that the row takes.
    pub const fn step(&self) -> Step {
        match self {
            Verdict::Done(_) => Step::Accepted,
            Verdict::Again { .. } => Step::RefusedForNow,
            Verdict::Dead { .. } | Verdict::Lapsed => Step::RefusedForGood,
        }
    }
}

/// Judges an answer. `over` says that the session that carried the request has ended: then the refusal was not the
/// message's.
pub fn judge(answer: Result<&SendResult, &WireError>, over: bool) -> Verdict {
    match answer {
        Ok(result) => Verdict::Done(Place { id: result.id, seq: Some(result.seq.get()) }),
        Err(error) if error.code == ErrorCode::Unavailable && mutant::on(Mutant::UnheardIsDone) => {
            Verdict::Done(Place { id: MessageId::from_parts(0, 0), seq: None })
        }
        Err(error) if error.retryable || (over && error.code == ErrorCode::LeaseExpired) => {
            let wish_ms = error.retry_after_ms.map(|ms| ms.get());
            Verdict::Again { error: error.to_string(), wish_ms }
        }
        Err(error) => Verdict::Dead { error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::number::U53;

    use super::*;

    #[test]
    fn an_accepted_message_is_done_also_when_it_was_before() {
        for duplicate in [false, true] {
            let id = MessageId::from_parts(1, 1);
            let result = SendResult {
                id,
                log: "inbox/m/x".into(),
                seq: U53::saturating(4),
                duplicate,
                recipient: None,
                first_seen_at: None,
                history_available: Some(!duplicate),
            };
            assert_eq!(judge(Ok(&result), false), Verdict::Done(Place { id, seq: Some(4) }));
        }
    }

    #[test]
    fn every_code_is_tried_again_if_the_table_says_that_it_can_help() {
        for code in ErrorCode::ALL {
            let error = WireError::new(*code, "why").retry_after(9);
            let verdict = judge(Err(&error), false);
            if code.retryable() {
                let text = format!("{code}: why");
                assert_eq!(verdict, Verdict::Again { error: text, wish_ms: Some(9) });
                assert_eq!(verdict.step(), Step::RefusedForNow);
            } else {
                assert_eq!(verdict, Verdict::Dead { error: format!("{code}: why") });
                assert_eq!(verdict.step(), Step::RefusedForGood);
            }
        }
    }

    #[test]
    fn an_ended_session_is_not_the_messages_fault() {
        let error = WireError::new(ErrorCode::LeaseExpired, "the session is over");
        assert_eq!(judge(Err(&error), true).step(), Step::RefusedForNow);
        assert_eq!(
            judge(Err(&error), false).step(),
            Step::RefusedForGood,
            "the receiver's, with fallback fail"
        );
        let other = WireError::new(ErrorCode::NoSuchSession, "never seen");
        assert_eq!(judge(Err(&other), true).step(), Step::RefusedForGood);
    }
}
