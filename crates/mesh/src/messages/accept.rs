//! Accepting a message: what one transaction of the store decides.
//!
//! The order is the contract's. B0: look the id up, before any limit, so that a retry of something accepted is
//! always answered. B1: the refusal that the mesh has worked out beforehand. B2: claim the id and append, both
//! or neither. B3, committing and answering, is the store's and the mesh's.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::message::Fallback;

use crate::messages::envelope::{Envelope, Lane};

/// Within what an id that `sender` gives is one message's alone: everything that this member sends.
pub fn scope(sender: MemberKey) -> MemberKey {
    if mutant::on(Mutant::DedupeWithoutSender) { MemberKey([0; 32]) } else { sender }
}

/// A message that wants to be accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Accept {
    /// The message.
    pub envelope: Arc<Envelope>,
    /// What makes it the same request as another.
    pub fingerprint: Fingerprint,
    /// Where it goes.
    pub route: Route,
    /// Why it is refused unless it is known already: the mesh's verdict on limits and rights.
    pub refusal: Option<WireError>,
    /// Until when its id is remembered, Unix milliseconds; `None` is for ever.
    pub remember_until: Option<u64>,
    /// Members whose inbox holds as much as it may: it does not fall back to one of them.
    pub full: Vec<MemberKey>,
    /// Until when it must be answered, Unix milliseconds, if it is a run: then its row is a third one.
    pub run: Option<u64>,
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this log.
    Log(LogName),
    /// To a session that has no lease now: what that means depends on whether it ever had one.
    Absent(SessionKey),
    /// To a member of whom nobody is here and nothing is kept: a mistake, unless it was ever seen.
    AbsentMember(MemberKey),
}

/// What is remembered of an accepted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The broker's id.
    pub id: MessageId,
    /// What it was.
    pub fingerprint: Fingerprint,
    /// Where it went.
    pub log: LogName,
    /// Its number there.
    pub seq: u64,
    /// When it was accepted, Unix milliseconds.
    pub first_seen_at: u64,
    /// Whether the entry still exists.
    pub available: bool,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Accepted {
    /// It is in the log.
    Fresh {
        /// Which log.
        log: LogName,
        /// Which part of it.
        lane: Lane,
        /// Its number there.
        seq: u64,
    },
    /// It was accepted before; nothing was written.
    Duplicate(Remembered),
    /// Its id was used for another message, with this fingerprint; nothing was written.
    Reused(Fingerprint),
    /// It may not be accepted; nothing was written, and its id is free.
    Refused(WireError),
}

/// What the transaction has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Claim the id and append to this log.
    Append(LogName),
    /// Write nothing.
    Answer(Accepted),
}

/// Decides about `accept`, given what is remembered under its id. `member_of` looks up who vouched for a
/// session when it last had a lease: `None` when it was never seen in this mesh. `was_seen` looks up whether
/// that member ever vouched for one.
pub fn decide<E>(
    accept: &Accept,
    found: Option<Remembered>,
    member_of: impl FnOnce(&SessionKey) -> Result<Option<MemberKey>, E>,
    was_seen: impl FnOnce(&MemberKey) -> Result<bool, E>,
) -> Result<Decision, E> {
    if let Some(found) = found {
        let same = found.fingerprint == accept.fingerprint || mutant::on(Mutant::ReusedIdAccepted);
        let answer = if same { Accepted::Duplicate(found) } else { Accepted::Reused(found.fingerprint) };
        return Ok(Decision::Answer(answer));
    }
    if let Some(refusal) = &accept.refusal {
        return Ok(Decision::Answer(Accepted::Refused(refusal.clone())));
    }
    let session = match &accept.route {
        Route::Log(log) => return Ok(Decision::Append(log.clone())),
        Route::AbsentMember(member) if was_seen(member)? => {
            return Ok(Decision::Append(LogName::Member(*member)));
        }
        Route::AbsentMember(_) => {
            return Ok(refuse(ErrorCode::NoSuchSession, "no session of that member was ever in this mesh"));
        }
        Route::Absent(session) => session,
    };
    Ok(match (member_of(session)?, accept.envelope.fallback) {
        (None, _) => refuse(ErrorCode::NoSuchSession, "nobody with that session key was ever in this mesh"),
        (Some(_), Fallback::Hold) => Decision::Append(LogName::Session(*session)),
        (Some(member), Fallback::Member) if accept.full.contains(&member) => {
            Decision::Answer(Accepted::Refused(inbox_is_full()))
        }
        (Some(member), Fallback::Member) => Decision::Append(LogName::Member(member)),
        (Some(_), Fallback::Fail) => {
            refuse(ErrorCode::LeaseExpired, "the session is gone, and the message was not to wait for it")
        }
    })
}

/// What the sender of a message for an inbox is told that holds as much as it may.
pub fn inbox_is_full() -> WireError {
    let text = "the inbox holds as many messages that nobody has settled as it may; try again later";
    WireError::new(ErrorCode::Busy, text).retry_after(5_000)
}

fn refuse(code: ErrorCode, message: &str) -> Decision {
    Decision::Answer(Accepted::Refused(WireError::new(code, message)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tenure_proto::message::{Address, MessageKind, Priority, Sender};

    use super::*;
    use crate::messages::envelope::Body;

    const SESSION: SessionKey = SessionKey([7; 32]);
    const MEMBER: MemberKey = MemberKey([8; 32]);

    fn accept(route: Route, fallback: Fallback) -> Accept {
        let envelope = Envelope {
            id: MessageId::from_parts(1, 1),
            client_message_id: "m1".into(),
            from: Sender { member: MemberKey([1; 32]), session: SessionKey([2; 32]), name: "n".into() },
            to: Address::Session(SESSION),
            key: None,
            priority: Priority::Next,
            reply_to: None,
            meta: None,
            body: Body::Text("x".into()),
            content_type: None,
            sent_at: 1,
            expires_at: None,
            not_before: None,
            fallback,
            kind: MessageKind::Message,
        };
        let fingerprint = Fingerprint([1; 32]);
        let (envelope, refusal, remember_until, full) = (Arc::new(envelope), None, Some(9), Vec::new());
        Accept { envelope, fingerprint, route, refusal, remember_until, full, run: None }
    }

    fn inbox() -> LogName {
        LogName::Session(SESSION)
    }

    fn known(fingerprint: u8) -> Remembered {
        Remembered {
            id: MessageId::from_parts(0, 5),
            fingerprint: Fingerprint([fingerprint; 32]),
            log: LogName::Member(MEMBER),
            seq: 3,
            first_seen_at: 0,
            available: false,
        }
    }

    fn decided(accept: &Accept, found: Option<Remembered>, seen: Option<MemberKey>) -> Decision {
        match decide(
            accept,
            found,
            |session| Ok::<_, Infallible>((*session == SESSION).then_some(seen).flatten()),
            |member| Ok(Some(*member) == seen),
        ) {
            Ok(decision) => decision,
        }
    }

    fn refused(decision: &Decision) -> Option<ErrorCode> {
        match decision {
            Decision::Answer(Accepted::Refused(error)) => Some(error.code),
            _ => None,
        }
    }

    /// Every way to be routed, with and without a refusal: what is remembered is answered before any of it counts.
    #[test]
    fn a_known_id_is_answered_whatever_else_is_wrong() {
        let routes = [Route::Log(inbox()), Route::Absent(SESSION), Route::Absent(SessionKey([9; 32]))];
        for route in routes {
            for fallback in [Fallback::Hold, Fallback::Member, Fallback::Fail] {
                for refusal in [None, Some(WireError::new(ErrorCode::RateLimited, "slow down"))] {
                    let accept = Accept { refusal, ..accept(route.clone(), fallback) };
                    let same = decided(&accept, Some(known(1)), None);
                    assert_eq!(same, Decision::Answer(Accepted::Duplicate(known(1))), "{accept:?}");
                    let other = decided(&accept, Some(known(2)), None);
                    let reused = Decision::Answer(Accepted::Reused(Fingerprint([2; 32])));
                    assert_eq!(other, reused, "{accept:?}");
                }
            }
        }
    }

    #[test]
    fn a_known_id_asks_nobody_about_the_receiver() {
        let absent = accept(Route::Absent(SESSION), Fallback::Fail);
        let decision = decide(&absent, Some(known(1)), |_| Err("asked"), |_| Err("asked"));
        assert_eq!(decision, Ok(Decision::Answer(Accepted::Duplicate(known(1)))));
        let refusal = Some(WireError::new(ErrorCode::Forbidden, "no"));
        let decision =
            decide(&Accept { refusal, ..absent.clone() }, None, |_| Err("asked"), |_| Err("asked"));
        assert_eq!(decision.as_ref().map(refused), Ok(Some(ErrorCode::Forbidden)));
        assert_eq!(decide(&absent, None, |_| Err("asked"), |_| Err("asked")), Err("asked"));
    }

    #[test]
    fn a_member_that_was_seen_has_an_inbox_and_another_has_none() {
        let to_member = accept(Route::AbsentMember(MEMBER), Fallback::Hold);
        assert_eq!(decided(&to_member, None, Some(MEMBER)), Decision::Append(LogName::Member(MEMBER)));
        assert_eq!(refused(&decided(&to_member, None, None)), Some(ErrorCode::NoSuchSession));
    }

    #[test]
    fn a_new_id_is_refused_for_what_the_mesh_has_found() {
        for route in [Route::Log(inbox()), Route::Absent(SESSION)] {
            let refusal = WireError::new(ErrorCode::Busy, "the inbox is full").retry_after(5);
            let accept = Accept { refusal: Some(refusal.clone()), ..accept(route, Fallback::Hold) };
            let answer = Decision::Answer(Accepted::Refused(refusal));
            assert_eq!(decided(&accept, None, Some(MEMBER)), answer);
        }
    }

    #[test]
    fn a_new_id_goes_where_it_is_routed() {
        let topic = LogName::Topic("jobs".parse().unwrap(), 3);
        for log in [inbox(), LogName::Member(MEMBER), topic] {
            for fallback in [Fallback::Hold, Fallback::Member, Fallback::Fail] {
                let accept = accept(Route::Log(log.clone()), fallback);
                assert_eq!(decided(&accept, None, None), Decision::Append(log.clone()));
            }
        }
    }

    #[test]
    fn without_a_lease_the_fallback_decides() {
        let absent = |fallback| decided(&accept(Route::Absent(SESSION), fallback), None, Some(MEMBER));
        assert_eq!(absent(Fallback::Hold), Decision::Append(inbox()));
        assert_eq!(absent(Fallback::Member), Decision::Append(LogName::Member(MEMBER)));
        assert_eq!(refused(&absent(Fallback::Fail)), Some(ErrorCode::LeaseExpired));
    }

    #[test]
    fn nothing_falls_back_to_an_inbox_that_is_full() {
        let full = |fallback| Accept { full: vec![MEMBER], ..accept(Route::Absent(SESSION), fallback) };
        let decision = decided(&full(Fallback::Member), None, Some(MEMBER));
        assert_eq!(refused(&decision), Some(ErrorCode::Busy));
        let known = decided(&full(Fallback::Member), Some(known(1)), Some(MEMBER));
        assert!(matches!(known, Decision::Answer(Accepted::Duplicate(_))));
        let other = decided(&full(Fallback::Member), None, Some(MemberKey([9; 32])));
        assert_eq!(other, Decision::Append(LogName::Member(MemberKey([9; 32]))));
        assert_eq!(decided(&full(Fallback::Hold), None, Some(MEMBER)), Decision::Append(inbox()));
    }

    #[test]
    fn a_key_never_seen_here_is_no_session() {
        for fallback in [Fallback::Hold, Fallback::Member, Fallback::Fail] {
            let decision = decided(&accept(Route::Absent(SESSION), fallback), None, None);
            assert_eq!(refused(&decision), Some(ErrorCode::NoSuchSession));
        }
    }
}
