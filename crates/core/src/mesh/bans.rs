//! Bans: who is kept out, from this moment on.
//!
//! A ban ends what its subject has by the usual teardown, closes its sockets, and refuses its hellos, also one that
//! waits for the store. A session that is banned is to others one that is gone.

use std::collections::BTreeSet;

use tenure_proto::close::Reason;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};

use crate::admit::Refusal;
use crate::effect::{Effect, Note};
use crate::input::Banned;
use crate::lease::State;

use super::Mesh;

/// Bans that one mesh holds; one more is refused.
pub const BANS_MAX: usize = 10_000;

/// The bans of a mesh; at most [`BANS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Bans(BTreeSet<Banned>);

impl Bans {
    /// Whether a session that `member` vouches for is kept out.
    pub(super) fn hold(&self, session: &SessionKey, member: &MemberKey) -> bool {
        !self.0.is_empty()
            && (self.0.contains(&Banned::Session(*session)) || self.0.contains(&Banned::Member(*member)))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there was room for it.
    fn insert(&mut self, subject: Banned) -> bool {
        let room = self.0.len() < BANS_MAX || self.0.contains(&subject);
        if room {
            self.0.insert(subject);
        }
        room
    }
}

impl Mesh {
    /// Whom this mesh keeps out, in order.
    pub fn bans(&self) -> impl Iterator<Item = Banned> + '_ {
        self.bans.0.iter().copied()
    }

    /// Keeps somebody out from here on. Looks at every lease once: it is a person's doing.
    pub(super) fn ban(&mut self, subject: Banned, effects: &mut Vec<Effect>) {
        if !self.bans.insert(subject) {
            return effects.push(Effect::Note(Note::BanRefused { subject }));
        }
        let ends: Vec<SessionKey> = match subject {
            Banned::Session(session) => {
                self.leases.contains_key(&session).then_some(session).into_iter().collect()
            }
            Banned::Member(member) => {
                self.leases.iter().filter(|(_, lease)| lease.member == member).map(|(key, _)| *key).collect()
            }
        };
        effects.push(Effect::Note(Note::BanSet { subject, on: true, leases: ends.len() }));
        for session in ends {
            self.evict(session, effects);
        }
    }

    pub(super) fn unban(&mut self, subject: Banned, effects: &mut Vec<Effect>) {
        self.bans.0.remove(&subject);
        effects.push(Effect::Note(Note::BanSet { subject, on: false, leases: 0 }));
    }

    /// Whether the lease of `session` is one that is to end.
    pub(super) fn is_banned(&self, session: &SessionKey) -> bool {
        self.leases.get(session).is_some_and(|lease| self.bans.hold(session, &lease.member))
    }

    /// Ends a lease wherever it stands.
    fn evict(&mut self, session: SessionKey, effects: &mut Vec<Effect>) {
        self.turn_away(session, refusal, effects);
        // Not when the disk has the end of its lease: now.
        effects.push(Effect::Cut { session, name: None, reason: "banned" });
        if let Some(conn) = self.leases.get(&session).and_then(|lease| lease.conn()) {
            self.hang_up_for(conn, Reason::Banned, effects);
        }
        // One that begins ends when the store has it; one that ends already needs no help.
        if matches!(self.leases.get(&session).map(|lease| &lease.state), Some(State::Grace)) {
            self.expire(session, effects);
        }
    }
}

/// What a hello of somebody who is kept out is told.
pub(super) fn refusal() -> Refusal {
    let error = WireError::new(ErrorCode::Banned, "an operator has banned this session or its member");
    Refusal::new(error, Reason::Banned)
}
