//! Keys of a world and what to call them.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use tenure_proto::canonical::{member_key, session_key};
use tenure_proto::ids::{MemberKey, SessionKey};

use crate::rng::Rng;
use crate::scenario::Role;
use crate::seen::{Member, Slot};

/// Every key of a world, by name and by its public half.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    sessions: BTreeMap<Slot, SigningKey>,
    members: BTreeMap<Member, SigningKey>,
    slots: BTreeMap<SessionKey, Slot>,
    vouchers: BTreeMap<MemberKey, Member>,
    /// Who answers when it is called.
    servers: Vec<Slot>,
}

impl Names {
    pub(crate) fn of(seed: u64, cast: &[Role]) -> Names {
        let root = Rng::new(seed);
        let mut names = Names::default();
        for role in cast {
            let key = SigningKey::from_bytes(&root.fork(1_000 + u64::from(role.slot.0)).bytes());
            names.slots.insert(session_key(&key), role.slot);
            names.servers.extend(role.serves.then_some(role.slot));
            names.sessions.insert(role.slot, key);
            let key = SigningKey::from_bytes(&root.fork(2_000 + u64::from(role.member.0)).bytes());
            names.vouchers.insert(member_key(&key), role.member);
            names.members.insert(role.member, key);
        }
        names
    }

    /// How many sessions there are, counting those that were left out of a shrunk scenario.
    pub(crate) fn slots(&self) -> u64 {
        self.sessions.last_key_value().map_or(0, |(slot, _)| u64::from(slot.0) + 1)
    }

    /// How many members there are.
    pub(crate) fn members(&self) -> u64 {
        self.members.last_key_value().map_or(0, |(member, _)| u64::from(member.0) + 1)
    }

    /// Who answers when it is called.
    pub(crate) fn servers(&self) -> &[Slot] {
        &self.servers
    }

    pub(crate) fn session(&self, slot: Slot) -> Option<&SigningKey> {
        self.sessions.get(&slot)
    }

    pub(crate) fn member(&self, member: Member) -> Option<&SigningKey> {
        self.members.get(&member)
    }

    pub(crate) fn session_key(&self, slot: Slot) -> Option<SessionKey> {
        self.session(slot).map(session_key)
    }

    pub(crate) fn member_key(&self, member: Member) -> Option<MemberKey> {
        self.member(member).map(member_key)
    }

    pub(crate) fn slot(&self, session: &SessionKey) -> Option<Slot> {
        self.slots.get(session).copied()
    }

    pub(crate) fn voucher(&self, member: &MemberKey) -> Option<Member> {
        self.vouchers.get(member).copied()
    }
}
