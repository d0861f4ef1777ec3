//! What a person may do about a row: send it anew under another id, or let it go.
//!
//! A row that was ever attempted may be at the broker although nobody heard of it: sent anew, it would arrive twice. So
//! the broker is asked first.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::fingerprint::Fingerprint;

use crate::row::{Place, Status};

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
    /// The broker has accepted something under its id.
    Known {
        /// Where that is.
        place: Place,
        /// The first bytes of its fingerprint ([`Fingerprint::prefix`]), unless the broker is too old to say.
        prefix: Option<String>,
    },
}

/// What is known of a row that is to be sent anew.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Where it stands.
    pub status: Status,
    /// How often it was sent.
    pub attempts: u32,
    /// What was asked for under its id.
    pub fingerprint: &'a Fingerprint,
    /// Whether it is to be sent with another body.
    pub patched: bool,
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
        "it may be at the broker, which cannot say so now; try again when that is reachable, or force it if you accept \
         that it may arrive twice"
    )]
    MayHaveArrived,
    /// The broker has it as it was, and it was to be sent with another body.
    #[error(
        "the broker has it with its old body, and that cannot be changed any more; requeue it without a new body to \
         mark it done, and send the new one as a message of its own"
    )]
    AlreadyThere,
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

impl Refusal {
    /// The name of the conflict, as programs read it.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Inflight => "outbox_inflight",
            Refusal::Final(Status::Aborted) => "outbox_aborted",
            Refusal::Final(_) => "outbox_done",
            Refusal::MayHaveArrived => "outbox_may_have_arrived",
            Refusal::AlreadyThere => "outbox_already_there",
            Refusal::SenderGone => "outbox_sender_gone",
        }
    }
}

/// Whether a row is sent anew.
///
/// The broker having *something* under the row's id does not mean that it has the row: another program may have sent
/// another message under it. Only an equal fingerprint says so; a different one says that the row never was there, nor
/// can come to be.
pub fn requeue(row: Candidate<'_>, lookup: &Lookup, force: bool) -> Requeue {
    let Candidate { status, attempts, fingerprint, patched } = row;
    if let Err(refusal) = withdraw(status) {
        return Requeue::Refuse(refusal);
    }
    let same = |prefix: &str| prefix == fingerprint.prefix() || mutant::on(Mutant::RequeueByIdAlone);
    match lookup {
        Lookup::Known { prefix: Some(prefix), .. } if !same(prefix) => Requeue::Replace,
        Lookup::Known { prefix: Some(_), .. } if patched => Requeue::Refuse(Refusal::AlreadyThere),
        Lookup::Known { prefix: Some(_), place } => Requeue::Finish(place.clone()),
        _ if attempts == 0 => Requeue::Replace,
        Lookup::Unknown { attempts: then } if *then == attempts => Requeue::Replace,
        // Sent once more meanwhile, it may be there by now.
        Lookup::Unknown { .. } | Lookup::NotAsked => Requeue::Ask,
        // A broker that has something and does not say what cannot be asked either.
        Lookup::Unreachable | Lookup::Known { prefix: None, .. } if force => Requeue::Replace,
        Lookup::Unreachable | Lookup::Known { prefix: None, .. } => Requeue::Refuse(Refusal::MayHaveArrived),
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
    use crate::row::Step;

    const MINE: Fingerprint = Fingerprint([1; 32]);
    const OTHER: Fingerprint = Fingerprint([2; 32]);

    fn row(status: Status, attempts: u32) -> Candidate<'static> {
        Candidate { status, attempts, fingerprint: &MINE, patched: false }
    }

    fn patched(status: Status, attempts: u32) -> Candidate<'static> {
        Candidate { patched: true, ..row(status, attempts) }
    }

    fn place() -> Place {
        Place { id: MessageId::from_parts(1, 1), seq: None }
    }

    fn known(fingerprint: &Fingerprint) -> Lookup {
        Lookup::Known { place: place(), prefix: Some(fingerprint.prefix()) }
    }

    #[test]
    fn nobody_speaks_for_a_session_that_is_gone_unless_told_to() {
        assert_eq!(sender(false, false), Err(Refusal::SenderGone));
        assert_eq!([sender(true, false), sender(false, true), sender(true, true)], [Ok(()); 3]);
    }

    #[test]
    fn what_was_never_attempted_is_replaced_unasked() {
        for status in [Status::Pending, Status::Dead] {
            for lookup in [Lookup::NotAsked, Lookup::Unreachable, Lookup::Unknown { attempts: 0 }] {
                assert_eq!(requeue(row(status, 0), &lookup, false), Requeue::Replace);
            }
        }
    }

    #[test]
    fn what_was_attempted_is_looked_up_first() {
        for (status, force) in [(Status::Pending, false), (Status::Dead, false), (Status::Dead, true)] {
            assert_eq!(requeue(row(status, 1), &Lookup::NotAsked, force), Requeue::Ask);
            let unknown = Lookup::Unknown { attempts: 1 };
            assert_eq!(requeue(row(status, 1), &unknown, force), Requeue::Replace);
            assert_eq!(requeue(row(status, 2), &unknown, force), Requeue::Ask, "sent once more since");
            let known = requeue(row(status, 1), &known(&MINE), force);
            assert_eq!(known, Requeue::Finish(place()), "force does not double what is known");
        }
        let refused = Requeue::Refuse(Refusal::MayHaveArrived);
        assert_eq!(requeue(row(Status::Dead, 3), &Lookup::Unreachable, false), refused);
        assert_eq!(requeue(row(Status::Dead, 3), &Lookup::Unreachable, true), Requeue::Replace);
    }

    /// Another program's message under the same id once made the row done, and its body was gone.
    #[test]
    fn another_message_under_the_same_id_is_not_this_one() {
        for status in [Status::Pending, Status::Dead] {
            for (attempts, force) in [(1, false), (1, true), (7, false)] {
                assert_eq!(requeue(row(status, attempts), &known(&OTHER), force), Requeue::Replace);
                assert_eq!(requeue(patched(status, attempts), &known(&OTHER), force), Requeue::Replace);
            }
        }
    }

    #[test]
    fn what_is_there_already_cannot_be_patched() {
        for force in [false, true] {
            let refused = Requeue::Refuse(Refusal::AlreadyThere);
            assert_eq!(requeue(patched(Status::Dead, 1), &known(&MINE), force), refused);
        }
        assert_eq!(
            requeue(patched(Status::Dead, 1), &Lookup::Unknown { attempts: 1 }, false),
            Requeue::Replace
        );
    }

    #[test]
    fn a_broker_that_does_not_say_what_it_has_is_as_good_as_out_of_reach() {
        let silent = Lookup::Known { place: place(), prefix: None };
        let refused = Requeue::Refuse(Refusal::MayHaveArrived);
        assert_eq!(requeue(row(Status::Dead, 1), &silent, false), refused);
        assert_eq!(requeue(row(Status::Dead, 1), &silent, true), Requeue::Replace);
    }

    #[test]
    fn what_can_be_taken_back_is_what_the_table_of_rows_says() {
        for status in Status::ALL {
            assert_eq!(withdraw(status).is_ok(), status.after(Step::Withdrawn).is_some(), "{status:?}");
        }
        assert_eq!(
            requeue(row(Status::Inflight, 0), &Lookup::Unknown { attempts: 0 }, true),
            Requeue::Refuse(Refusal::Inflight)
        );
        assert_eq!(
            requeue(row(Status::Done, 0), &Lookup::NotAsked, true),
            Requeue::Refuse(Refusal::Final(Status::Done))
        );
    }
}
