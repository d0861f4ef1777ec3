//! Bans: who is kept out, from this moment on; and ending a session now.
//!
//! A ban ends what its subject has by the usual teardown, closes its sockets, and refuses its hellos, also one that
//! waits for the store. A session that is banned is to others one that is gone. A kick does the same to one session,
//! once: it may come back.

use core::net::IpAddr;
use std::collections::BTreeMap;

use tenure_kit::cidr::Cidr;
use tenure_proto::close::Reason;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};

use crate::Mesh;
use crate::access::BanRecord;
use crate::conn::admit::Refusal;
use crate::effect::{Effect, Note};
use crate::input::Banned;
use crate::sessions::lease::{Lease, State};

/// Bans that one mesh holds; one more is refused.
pub const BANS_MAX: usize = 10_000;

/// The bans of a mesh; at most [`BANS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Bans {
    all: BTreeMap<Banned, BanRecord>,
    /// How many networks of each length there are: an address is looked up once for each length, not for each ban.
    lengths: BTreeMap<u8, usize>,
}

impl Bans {
    /// Whether a session that `member` vouches for, and that is at `from`, is kept out. The key of a banned member is kept out
    /// as a session's key too, whoever vouches for it.
    pub(crate) fn hold(&self, session: &SessionKey, member: &MemberKey, from: Option<IpAddr>) -> bool {
        let banned = |subject: Banned| self.all.contains_key(&subject);
        !self.all.is_empty()
            && (banned(Banned::Session(*session))
                || banned(Banned::Member(*member))
                || banned(Banned::Member(MemberKey(session.0)))
                || from.is_some_and(|from| self.hold_address(from)))
    }

    /// Whether whoever is at `from` is kept out.
    pub(crate) fn hold_address(&self, from: IpAddr) -> bool {
        let banned = |length: &u8| self.all.contains_key(&Banned::Network(Cidr::around(from, *length)));
        self.lengths.keys().any(banned)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Those after `after`, in order.
    pub(crate) fn after(&self, after: Option<Banned>) -> impl Iterator<Item = &BanRecord> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.all.range((from, std::ops::Bound::Unbounded)).map(|(_, record)| record)
    }

    pub(crate) fn contains(&self, subject: &Banned) -> bool {
        self.all.contains_key(subject)
    }

    /// Whether there is room for it.
    pub(crate) fn has_room(&self, subject: &Banned) -> bool {
        self.all.len() < BANS_MAX || self.all.contains_key(subject)
    }

    /// Keeps a ban for which there is room.
    pub(crate) fn insert(&mut self, record: BanRecord) {
        let subject = record.subject;
        if self.all.insert(subject, record).is_none()
            && let Banned::Network(network) = subject
        {
            *self.lengths.entry(network.len()).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, subject: &Banned) -> Option<BanRecord> {
        let gone = self.all.remove(subject);
        if let (Some(_), Banned::Network(network)) = (&gone, subject)
            && let Some(count) = self.lengths.get_mut(&network.len())
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&network.len());
            }
        }
        gone
    }
}

impl Banned {
    /// Whether it means this session.
    fn means(&self, session: &SessionKey, member: &MemberKey, from: Option<IpAddr>) -> bool {
        match self {
            Banned::Member(banned) => banned == member || banned.0 == session.0,
            Banned::Session(banned) => banned == session,
            Banned::Network(network) => from.is_some_and(|from| network.holds(from)),
        }
    }
}

impl Mesh {
    /// Whom this mesh keeps out, in order.
    pub fn bans(&self) -> impl Iterator<Item = Banned> + '_ {
        self.access.bans.all.keys().copied()
    }

    /// Keeps somebody out from here on. Looks at every lease once: it is a person's doing.
    pub(crate) fn ban(&mut self, record: BanRecord) {
        let subject = record.subject;
        self.access.bans.insert(record);
        let means = |session: &SessionKey, lease: &Lease| subject.means(session, &lease.member, lease.from);
        let (ends, rest): (Vec<_>, Vec<_>) =
            self.sessions.leases().partition(|(key, lease)| means(key, lease));
        // Somebody may come back for a lease from where nobody may.
        let knocks = |lease: &Lease| {
            let knock = lease.waiting();
            knock.is_some_and(|knock| {
                subject.means(&knock.admission.session, &lease.member, knock.admission.from)
            })
        };
        let waits: Vec<SessionKey> =
            rest.into_iter().filter(|(_, lease)| knocks(lease)).map(|(key, _)| *key).collect();
        let ends: Vec<SessionKey> = ends.into_iter().map(|(key, _)| *key).collect();
        self.effects.push_back(Effect::Note(Note::BanSet { subject, on: true, leases: ends.len() }));
        if let Banned::Network(network) = subject {
            self.effects.push_back(Effect::CutFrom { network });
        }
        for session in waits {
            self.turn_away(session, refusal);
        }
        for session in ends {
            self.evict(session, Reason::Banned);
        }
    }

    pub(crate) fn unban(&mut self, subject: Banned) {
        self.access.bans.remove(&subject);
        self.effects.push_back(Effect::Note(Note::BanSet { subject, on: false, leases: 0 }));
    }

    /// Whether the lease of `session` is of somebody who is kept out.
    pub(crate) fn is_banned(&self, session: &SessionKey) -> bool {
        self.sessions
            .lease(session)
            .is_some_and(|lease| self.access.bans.hold(session, &lease.member, lease.from))
    }

    /// Whether the lease of `session` is one that is to end.
    pub(crate) fn is_doomed(&self, session: &SessionKey) -> bool {
        self.is_banned(session) || self.sessions.lease(session).is_some_and(|lease| lease.kicked)
    }

    /// Ends a lease wherever it stands, because of a ban or a kick.
    pub(crate) fn evict(&mut self, session: SessionKey, reason: Reason) {
        let kicked = reason == Reason::Kicked;
        if let Some(lease) = self.sessions.lease_mut(&session) {
            lease.kicked |= kicked;
        }
        self.turn_away(session, if kicked { kick } else { refusal });
        // Not when the disk has the end of its lease: now.
        let why = if kicked { "kicked" } else { "banned" };
        self.effects.push_back(Effect::Cut { session, name: None, reason: why });
        if let Some(conn) = self.sessions.lease(&session).and_then(|lease| lease.conn()) {
            self.hang_up_for(conn, reason);
        }
        // One that begins ends when the store has it; one that ends already needs no help.
        if matches!(self.sessions.lease(&session).map(|lease| &lease.state), Some(State::Grace)) {
            self.expire(session);
        }
    }
}

/// What a hello of somebody who is kept out is told.
pub(crate) fn refusal() -> Refusal {
    let text = "an operator has banned this session, its member or its address";
    Refusal::new(WireError::new(ErrorCode::Banned, text), Reason::Banned)
}

/// What a hello is told that waited when its session was ended.
fn kick() -> Refusal {
    let error = WireError::new(ErrorCode::Forbidden, "an operator has ended this session");
    Refusal::new(error, Reason::Kicked)
}
