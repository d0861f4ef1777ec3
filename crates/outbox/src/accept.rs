//! Whether a daemon takes a message: the table, as one function of what the outbox holds under its id.
//!
//! | row | same fingerprint | different |
//! |---|---|---|
//! | none | [`Answer::Insert`] | – |
//! | pending | [`Answer::Queued`] | `outbox_pending_fingerprint_mismatch` |
//! | inflight | [`Answer::Inflight`] | `outbox_inflight_fingerprint_mismatch` |
//! | done | [`Answer::Done`] | `outbox_done_fingerprint_mismatch`, with the broker's id |
//! | dead | `outbox_dead_fingerprint_match`, with the reason | `outbox_dead_fingerprint_mismatch` |
//! | aborted | `outbox_aborted_fingerprint_match` | `outbox_aborted_fingerprint_mismatch` |
//!
//! Only the first writes. A request that was refused before it came here has consumed nothing.
//!
//! A request that names its receiver is resolved once. Under an id that is held, the same name means whom it meant then
//! ([`meant`]): a retry is the same request also when the name is somebody else's by now, or nobody can be asked.

use tenure_proto::fingerprint::Fingerprint;

use crate::row::{Place, Status};

/// What the outbox holds under the id of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where the row stands.
    pub status: Status,
    /// What was asked for under this id.
    pub fingerprint: Fingerprint,
    /// Where the broker put it, of a row that is done.
    pub place: Option<Place>,
    /// Why it failed, of a row that is dead; why it last did, of others.
    pub last_error: Option<String>,
}

/// What a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is new: to be inserted as pending, and answered as queued when that is on disk.
    Insert,
    /// It waits already.
    Queued,
    /// It is on its way already.
    Inflight,
    /// The broker has it already.
    Done(Option<Place>),
    /// Its id is another request's, or is used up.
    Conflict(Conflict),
}

/// Why an id cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Where the row stands that has it.
    pub status: Status,
    /// Whether that row is another request.
    pub mismatch: Mismatch,
    /// What the daemon holds under the id.
    pub held: Fingerprint,
    /// Where the broker put what it holds.
    pub place: Option<Place>,
    /// Why the very same request failed before.
    pub reason: Option<String>,
}

/// Whether two requests under one id are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// They are the same, and the id is used up.
    Match,
    /// They are not.
    Mismatch,
}

impl Conflict {
    /// The name of the conflict, one for each cell of the table. The three that match and are not used up occur only
    /// where an id must be new ([`free`]).
    pub const fn name(&self) -> &'static str {
        match (self.status, self.mismatch) {
            (Status::Pending, Mismatch::Match) => "outbox_pending_fingerprint_match",
            (Status::Pending, Mismatch::Mismatch) => "outbox_pending_fingerprint_mismatch",
            (Status::Inflight, Mismatch::Match) => "outbox_inflight_fingerprint_match",
            (Status::Inflight, Mismatch::Mismatch) => "outbox_inflight_fingerprint_mismatch",
            (Status::Done, Mismatch::Match) => "outbox_done_fingerprint_match",
            (Status::Done, Mismatch::Mismatch) => "outbox_done_fingerprint_mismatch",
            (Status::Dead, Mismatch::Match) => "outbox_dead_fingerprint_match",
            (Status::Dead, Mismatch::Mismatch) => "outbox_dead_fingerprint_mismatch",
            (Status::Aborted, Mismatch::Match) => "outbox_aborted_fingerprint_match",
            (Status::Aborted, Mismatch::Mismatch) => "outbox_aborted_fingerprint_mismatch",
        }
    }
}

/// Whom the name `written` means under an id whose row was sent to a name, if that is the same name.
pub fn meant<'a>(held: Option<(&str, &'a str)>, written: &str) -> Option<&'a str> {
    held.filter(|(name, _)| *name == written).map(|(_, target)| target)
}

/// What a request with `fingerprint` is answered, given what is `held` under its id.
pub fn decide(held: Option<&Held>, fingerprint: &Fingerprint) -> Answer {
    let Some(held) = held else { return Answer::Insert };
    match (held.status, held.fingerprint == *fingerprint) {
        (Status::Pending, true) => Answer::Queued,
        (Status::Inflight, true) => Answer::Inflight,
        (Status::Done, true) => Answer::Done(held.place.clone()),
        _ => Answer::Conflict(conflict(held, fingerprint)),
    }
}

/// Whether an id is free for a message that must be new under it: a row that is sent anew is no retry of another row,
/// not even of an equal one.
pub fn free(held: Option<&Held>, fingerprint: &Fingerprint) -> Result<(), Conflict> {
    held.map_or(Ok(()), |held| Err(conflict(held, fingerprint)))
}

fn conflict(held: &Held, fingerprint: &Fingerprint) -> Conflict {
    let status = held.status;
    let mismatch = if held.fingerprint == *fingerprint { Mismatch::Match } else { Mismatch::Mismatch };
    let place = held.place.clone().filter(|_| status == Status::Done);
    let dead = status == Status::Dead && mismatch == Mismatch::Match;
    let reason = held.last_error.clone().filter(|_| dead);
    Conflict { status, mismatch, held: held.fingerprint, place, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_proto::ids::MessageId;

    use super::*;

    const SAME: Fingerprint = Fingerprint([1; 32]);
    const OTHER: Fingerprint = Fingerprint([2; 32]);

    fn place() -> Place {
        Place { id: MessageId::from_parts(1, 2), seq: Some(7) }
    }

    fn held(status: Status) -> Held {
        let place = (status == Status::Done).then(place);
        Held { status, fingerprint: SAME, place, last_error: Some("no_such_session".into()) }
    }

    fn answer(status: Status, fingerprint: Fingerprint) -> Answer {
        decide(Some(&held(status)), &fingerprint)
    }

    fn conflict(answer: Answer) -> (&'static str, Option<Place>, Option<String>) {
        match answer {
            Answer::Conflict(conflict) => {
                assert_eq!(conflict.held, SAME, "the daemon says what it holds");
                (conflict.name(), conflict.place, conflict.reason)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_means_whom_it_meant_and_another_nobody() {
        let held = Some(("bob", "session:b"));
        assert_eq!(meant(held, "bob"), Some("session:b"));
        assert_eq!(meant(held, "Bob"), None);
        assert_eq!(meant(None, "bob"), None);
    }

    #[test]
    fn a_new_id_is_inserted() {
        assert_eq!(decide(None, &SAME), Answer::Insert);
    }

    #[test]
    fn pending() {
        assert_eq!(answer(Status::Pending, SAME), Answer::Queued);
        let other = conflict(answer(Status::Pending, OTHER));
        assert_eq!(other, ("outbox_pending_fingerprint_mismatch", None, None));
    }

    #[test]
    fn inflight() {
        assert_eq!(answer(Status::Inflight, SAME), Answer::Inflight);
        let other = conflict(answer(Status::Inflight, OTHER));
        assert_eq!(other, ("outbox_inflight_fingerprint_mismatch", None, None));
    }

    #[test]
    fn done() {
        assert_eq!(answer(Status::Done, SAME), Answer::Done(Some(place())));
        let other = conflict(answer(Status::Done, OTHER));
        assert_eq!(other, ("outbox_done_fingerprint_mismatch", Some(place()), None));
    }

    #[test]
    fn dead() {
        let same = conflict(answer(Status::Dead, SAME));
        assert_eq!(same, ("outbox_dead_fingerprint_match", None, Some("no_such_session".into())));
        let other = conflict(answer(Status::Dead, OTHER));
        assert_eq!(other, ("outbox_dead_fingerprint_mismatch", None, None));
    }

    #[test]
    fn aborted() {
        let same = conflict(answer(Status::Aborted, SAME));
        assert_eq!(same, ("outbox_aborted_fingerprint_match", None, None));
        let other = conflict(answer(Status::Aborted, OTHER));
        assert_eq!(other, ("outbox_aborted_fingerprint_mismatch", None, None));
    }

    #[test]
    fn an_id_that_must_be_new_is_free_only_when_nothing_is_held_under_it() {
        assert_eq!(free(None, &SAME), Ok(()));
        for status in Status::ALL {
            for (print, suffix) in [(SAME, "match"), (OTHER, "mismatch")] {
                let conflict = free(Some(&held(status)), &print).unwrap_err();
                assert_eq!(conflict.name(), format!("outbox_{}_fingerprint_{suffix}", status.as_str()));
                assert_eq!(conflict.held, SAME);
            }
        }
    }

    proptest! {
        /// Whatever is held: only an empty place is written to, another request never passes, and the same request
        /// passes exactly while its row may still reach the broker or has.
        #[test]
        fn an_id_belongs_to_its_first_request(status in 0..5usize, print in any::<[u8; 32]>(), mine in any::<[u8; 32]>(), same: bool) {
            let status = Status::ALL[status];
            let mine = Fingerprint(if same { print } else { mine });
            let row = Held { fingerprint: Fingerprint(print), ..held(status) };
            let same = mine == row.fingerprint;
            let answer = decide(Some(&row), &mine);
            prop_assert_ne!(&answer, &Answer::Insert);
            let passes = !matches!(answer, Answer::Conflict(_));
            let alive = matches!(status, Status::Pending | Status::Inflight | Status::Done);
            prop_assert_eq!(passes, same && alive);
            if let Answer::Conflict(conflict) = answer {
                let suffix = if same { "_match" } else { "_mismatch" };
                prop_assert!(conflict.name().ends_with(suffix) && conflict.name().contains(status.as_str()));
            }
        }
    }
}
