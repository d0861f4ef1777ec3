//! What a person may do about a row: send it anew under another id, or let it go.
//!
//! A row that was ever attempted may be at the broker although nobody heard of it: sent anew, it would arrive twice. So
//! the broker is asked first.

use super::row::{Place, Status};

/// What is known at the broker of a row's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Nobody has asked.
    NotAsked,
    /// The broker cannot be asked now.
    Unreachable,
    /// The broker had never accepted it when it was asked, and before that the row had been sent so often.
    Unknown {
        /// How often.
        attempts: u32,
    },
    /// The broker has it.
    Known(Place),
}

/// What comes of the wish to send a row anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// The old row is aborted and a new one made, in one transaction.
    Replace,
    /// The broker must be asked first.
    Ask,
    /// The broker has it: the row is done, and nothing is sent.
    Finish(Place),
    /// It cannot be done.
    Refuse(Refusal),
}

/// Why a row stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is on its way: wait for the answer.
    #[error("it is on its way to the broker; wait until that is decided")]
    Inflight,
    /// It is done, or was taken back before.
    #[error("it is {} already", .0.as_str())]
    Final(Status),
    /// It was attempted, and the broker cannot say whether it has it.
    #[error(
        "it may be at the broker, which cannot be asked now; force it if you accept that it may arrive twice"
    )]
    MayHaveArrived,
    /// Its sender's session was let go: another would speak for it.
    #[error(
        "its session was let go, and another would send it; ask for that session again, or force it to be sent by the \
         daemon's own"
    )]
    SenderGone,
}

/// Whether a row may be sent anew whose sender's session is here, or not.
pub const fn sender(here: bool, force: bool) -> Result<(), Refusal> {
    if here || force { Ok(()) } else { Err(Refusal::SenderGone) }
}

/// Whether a row with `status`, sent `attempts` times, is sent anew.
pub fn requeue(status: Status, attempts: u32, lookup: &Lookup, force: bool) -> Requeue {
    if let Err(refusal) = withdraw(status) {
        return Requeue::Refuse(refusal);
    }
    match lookup {
        Lookup::Known(place) => Requeue::Finish(place.clone()),
        _ if attempts == 0 => Requeue::Replace,
        Lookup::Unknown { attempts: then } if *then == attempts => Requeue::Replace,
        // Sent once more meanwhile, it may be there by now.
        Lookup::Unknown { .. } | Lookup::NotAsked => Requeue::Ask,
        Lookup::Unreachable if force => Requeue::Replace,
        Lookup::Unreachable => Requeue::Refuse(Refusal::MayHaveArrived),
    }
}

/// Whether a row may be taken back.
pub const fn withdraw(status: Status) -> Result<(), Refusal> {
    match status {
        Status::Pending | Status::Dead => Ok(()),
        Status::Inflight => Err(Refusal::Inflight),
        Status::Done | Status::Aborted => Err(Refusal::Final(status)),
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::ids::MessageId;

    use super::*;
    use crate::outbox::row::Step;

    #[test]
    fn nobody_speaks_for_a_session_that_is_gone_unless_told_to() {
        assert_eq!(sender(false, false), Err(Refusal::SenderGone));
        assert_eq!([sender(true, false), sender(false, true), sender(true, true)], [Ok(()); 3]);
    }

    #[test]
    fn what_was_never_attempted_is_replaced_unasked() {
        for status in [Status::Pending, Status::Dead] {
            for lookup in [Lookup::NotAsked, Lookup::Unreachable, Lookup::Unknown { attempts: 0 }] {
                assert_eq!(requeue(status, 0, &lookup, false), Requeue::Replace);
            }
        }
    }

    #[test]
    fn what_was_attempted_is_looked_up_first() {
        let place = Place { id: MessageId::from_parts(1, 1), seq: None };
        for (status, force) in [(Status::Pending, false), (Status::Dead, false), (Status::Dead, true)] {
            assert_eq!(requeue(status, 1, &Lookup::NotAsked, force), Requeue::Ask);
            let unknown = Lookup::Unknown { attempts: 1 };
            assert_eq!(requeue(status, 1, &unknown, force), Requeue::Replace);
            assert_eq!(requeue(status, 2, &unknown, force), Requeue::Ask, "sent once more since");
            let known = requeue(status, 1, &Lookup::Known(place.clone()), force);
            assert_eq!(known, Requeue::Finish(place.clone()), "force does not double what is known");
        }
        let refused = Requeue::Refuse(Refusal::MayHaveArrived);
        assert_eq!(requeue(Status::Dead, 3, &Lookup::Unreachable, false), refused);
        assert_eq!(requeue(Status::Dead, 3, &Lookup::Unreachable, true), Requeue::Replace);
    }

    #[test]
    fn what_can_be_taken_back_is_what_the_table_of_rows_says() {
        for status in Status::ALL {
            assert_eq!(withdraw(status).is_ok(), status.after(Step::Withdrawn).is_some(), "{status:?}");
        }
        assert_eq!(
            requeue(Status::Inflight, 0, &Lookup::Unknown { attempts: 0 }, true),
            Requeue::Refuse(Refusal::Inflight)
        );
        assert_eq!(
            requeue(Status::Done, 0, &Lookup::NotAsked, true),
            Requeue::Refuse(Refusal::Final(Status::Done))
        );
    }
}
