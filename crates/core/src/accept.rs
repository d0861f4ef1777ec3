//! Accepting a message: what one transaction of the store decides.
//!
//! The order is the contract's. B0: look the id up, before any limit, so that a retry of something accepted is
//! always answered. B1: the refusal that the mesh has worked out beforehand. B2: claim the id and append, both
//! or neither. B3, committing and answering, is the store's and the mesh's.

use std::sync::Arc;

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{MemberKey, MessageId, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::message::Fallback;

use crate::envelope::{Envelope, Lane};

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
        let same = found.fingerprint == accept.fingerprint;
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
        (Some(member), Fallback::Member) => Decision::Append(LogName::Member(member)),
        (Some(_), Fallback::Fail) => {
            refuse(ErrorCode::LeaseExpired, "the session is gone, and the message was not to wait for it")
        }
    })
}

fn refuse(code: ErrorCode, message: &str) -> Decision {
    Decision::Answer(Accepted::Refused(WireError::new(code, message)))
}
