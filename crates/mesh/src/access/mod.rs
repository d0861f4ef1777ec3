//! Who may do what in a mesh.
//!
//! What this is for: the rights that a session has (which of them a method needs stands in the table of methods,
//! [`tenure_proto::method`]); the records of members, invites and bearer tokens; and [`Roll`], the rules by which a hello is let in. A mesh that is *open* lets in any key; any other
//! lets in its members, whoever brings an invite that one of its operators has signed, and whoever brings a token.
//!
//! What it promises: rights only ever narrow. What a session may do is what its member may, less what its attestation
//! leaves out. A use of an invite is taken with the member's row, and given back if the store could not take that.
//!
//! Where to read next: `roll` for the rules, `record` for what is stored, `crate::access::admin` for what operators do.

pub mod admin;
pub(crate) mod bans;
pub(crate) mod configure;
pub(crate) mod listing;
pub(crate) mod members;
pub(crate) mod operating;
pub mod operator_auth;
pub mod pattern;
mod quota;
mod record;
mod roll;
pub mod setting;

use core::net::IpAddr;

use tenure_kit::census::Count;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::rate::ACCOUNTS;
use tenure_proto::error::WireError;
use tenure_proto::ids::{GrantId, MemberKey, SessionKey};
use tenure_proto::invite::{Invite, Role};
use tenure_proto::name::Cap;

pub use tenure_proto::right::Right;

pub use record::{
    AccessWrite, AuditEntry, AuditRecord, BanRecord, Change, InviteRecord, MemberRecord, RestoredAccess,
    TokenRecord,
};
pub use roll::{Entry, Grant, INVITES_MAX, Roll, TOKENS_MAX};

/// Who is let in, who is kept out, and how much members may ask for.
#[derive(Debug, Default)]
pub(crate) struct Access {
    bans: bans::Bans,
    roll: Roll,
    quota: quota::Quota,
}

impl Access {
    /// What a store remembers.
    pub(crate) fn recall(restored: RestoredAccess) -> Access {
        let mut access = Access { roll: Roll::new(&restored), ..Access::default() };
        if !mutant::on(Mutant::BanForgottenAtStart) {
            restored.bans.into_iter().for_each(|ban| access.bans.insert(ban));
        }
        access
    }

    /// Whether a ban keeps out somebody with these keys, from this address.
    pub(crate) fn is_banned(&self, session: &SessionKey, member: &MemberKey, from: Option<IpAddr>) -> bool {
        self.bans.hold(session, member, from)
    }

    /// Whether a ban keeps out this address.
    pub(crate) fn is_address_banned(&self, from: IpAddr) -> bool {
        self.bans.hold_address(from)
    }

    /// Whether anybody may join.
    pub(crate) fn is_open(&self) -> bool {
        self.roll.is_open()
    }

    /// The bearer token that somebody comes by who is no member.
    pub(crate) fn bearer(&self, member: &MemberKey, presented: &Presented) -> Option<GrantId> {
        self.roll.bearer(member, presented)
    }

    /// When a bearer token ends, if it does.
    pub(crate) fn token_end(&self, token: &GrantId) -> Option<u64> {
        self.roll.token_end(token)
    }

    /// The use of an invite is on disk.
    pub(crate) fn redeemed(&mut self, invite: &GrantId) {
        self.roll.redeemed(invite);
    }

    /// The store could not take a grant; says whether an earlier one of the same holds all the same.
    pub(crate) fn not_granted(&mut self, grant: &Grant) -> bool {
        self.roll.not_granted(grant)
    }

    /// Whether invites that are over are kept, because the wall clock is not believed.
    pub(crate) fn keep_ended(&mut self, keep: bool) {
        self.roll.keep_ended = keep;
    }

    /// How full everything here is; `leases` and `writes` are how many there are that wait for either.
    pub(crate) fn count(&self, counts: &mut Vec<Count>, leases: usize, writes: usize) {
        let count = |what, size, bound| Count { what, size, bound };
        counts.extend([
            count("bans", self.bans.len(), bans::BANS_MAX),
            count("members on the roll", self.roll.members.len(), tenure_proto::limits::MEMBERS_MAX),
            count("invites", self.roll.invites.len(), INVITES_MAX),
            count("tokens", self.roll.tokens.len(), TOKENS_MAX),
            count("uses of invites that wait", self.roll.pending(), leases + writes),
            count("changes of members that wait", self.roll.changing(), writes),
            count("rates of members", self.quota.accounts(), ACCOUNTS),
        ]);
    }
}

/// Some of the rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// All of them.
    pub const ALL: Rights = Rights(0b1_1111);
    /// None.
    pub const NONE: Rights = Rights(0);

    /// What a role may by itself.
    pub const fn of(role: Role) -> Rights {
        match role {
            Role::Member => Rights(0b0_1111),
            Role::Operator => Rights::ALL,
        }
    }

    /// Those that are in both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }

    /// Those of them that these caps leave; absent caps leave all. A cap that we do not know leaves nothing.
    pub fn narrowed(self, caps: Option<&[Cap]>) -> Rights {
        let Some(caps) = caps else { return self };
        let left = caps.iter().filter_map(|cap| Right::from_wire(cap.as_str()));
        self.and(left.fold(Rights::NONE, |rights, right| Rights(rights.0 | 1 << right as u8)))
    }

    /// Whether this one is among them.
    pub const fn allow(self, right: Right) -> bool {
        self.0 & (1 << right as u8) != 0
    }

    /// Their names, in the order of the contract.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Right::ALL.into_iter().filter(move |right| self.allow(*right)).map(Right::as_str)
    }
}

/// What a hello brings besides its proof, as far as its bytes tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Presented {
    /// Nothing.
    #[default]
    Nothing,
    /// An invite that is signed by whom it names.
    Invite(Box<Invite>),
    /// The hash of a bearer token.
    Token([u8; 32]),
    /// Something that is good for nothing, and why.
    Bad(Box<WireError>),
}

#[cfg(test)]
mod tests;
