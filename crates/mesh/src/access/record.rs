//! What a store keeps of who may do what, and of what operators did.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure_proto::error::WireError;
use tenure_proto::ids::{GrantId, MemberKey};
use tenure_proto::invite::Role;
use tenure_proto::name::Cap;

use crate::access::Rights;
use crate::input::Banned;

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its key.
    pub member: MemberKey,
    /// What it is.
    pub role: Role,
    /// What it may do; `None` is whatever its role may.
    pub caps: Option<Vec<Cap>>,
    /// What operators call it; may be empty.
    pub name: String,
    /// The invite that it came by, if it came by one.
    pub invite: Option<GrantId>,
    /// When it was let in, Unix milliseconds.
    pub since: u64,
}

impl MemberRecord {
    /// What it may do.
    pub fn rights(&self) -> Rights {
        Rights::of(self.role).narrowed(self.caps.as_deref())
    }
}

/// An invite that was used or revoked; of others nothing is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteRecord {
    /// Its name.
    pub id: GrantId,
    /// Who invited; nobody when one was revoked that has not been seen.
    pub by: Option<MemberKey>,
    /// How many keys it has let in.
    pub used: u32,
    /// How many it may; 0 when that was not seen.
    pub uses: u32,
    /// When it ends, Unix milliseconds; after that nothing need be kept of it.
    pub expires_at: u64,
    /// Whether it lets nobody in any more.
    pub revoked: bool,
}

/// A bearer token, without the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its name.
    pub id: GrantId,
    /// The hash of the secret.
    pub hash: [u8; 32],
    /// What whoever brings it may do; `None` is whatever a member may.
    pub caps: Option<Vec<Cap>>,
    /// What operators call it; may be empty.
    pub name: String,
    /// When it was made, Unix milliseconds.
    pub since: u64,
    /// When it ends, Unix milliseconds; `None` is never.
    pub expires_at: Option<u64>,
}

impl TokenRecord {
    /// Milliseconds that a token lasts at least: a shorter one would end before anybody could bring it.
    pub const SHORTEST_MS: u64 = 1_000;
    /// Ten years, which it lasts at most: beyond it, say that it is for ever.
    pub const LONGEST_MS: u64 = 315_360_000_000;

    /// When one ends that is made at `wall` for so long.
    pub fn end(wall: u64, lasts_ms: Option<u64>) -> Result<Option<u64>, WireError> {
        match lasts_ms {
            Some(ms) if !(Self::SHORTEST_MS..=Self::LONGEST_MS).contains(&ms) => {
                let (least, most) = (Self::SHORTEST_MS, Self::LONGEST_MS);
                let text = format!("expiresInMs is between {least} and {most}, which is ten years");
                Err(WireError::bad_request(text).about("expiresInMs"))
            }
            lasts => Ok(lasts.map(|ms| wall.saturating_add(ms))),
        }
    }

    /// What whoever brings it may do.
    pub fn rights(&self) -> Rights {
        Rights::of(Role::Member).narrowed(self.caps.as_deref())
    }
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanRecord {
    /// Who is kept out.
    pub subject: Banned,
    /// Why, in an operator's words; may be empty.
    pub reason: String,
    /// Since when, Unix milliseconds.
    pub since: u64,
}

/// One row of the audit log: what an operator did, or somebody by an operator's leave.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRecord {
    /// When, Unix milliseconds.
    pub at: u64,
    /// Who: `operator`, or `member:<hex>`.
    pub who: String,
    /// From which address, if that is known.
    pub from: String,
    /// What, such as `ban.set`.
    pub act: String,
    /// To whom or what.
    pub subject: String,
    /// `ok`, or the code it was refused with.
    pub outcome: String,
    /// What else belongs to it. Never a secret.
    pub details: Value,
}

/// A row of the audit log with its place in it.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Its number: rises, in all meshes of a store together.
    pub seq: u64,
    /// What it says.
    pub record: AuditRecord,
}

/// One change of what a store keeps of access.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The mesh exists, and is not open, since this Unix millisecond.
    Found(u64),
    /// Keep a member, in place of what its key was.
    PutMember(MemberRecord),
    /// Forget a member.
    DropMember(MemberKey),
    /// Keep an invite, in place of what its name stood for.
    PutInvite(InviteRecord),
    /// Forget an invite.
    DropInvite(GrantId),
    /// Keep a token, in place of what its name stood for.
    PutToken(TokenRecord),
    /// Forget a token.
    DropToken(GrantId),
    /// Keep a ban, in place of what its subject had.
    PutBan(BanRecord),
    /// Forget a ban.
    DropBan(Banned),
    /// Keep these settings, in place of all others.
    Settings {
        /// How often they were changed, with this.
        version: u64,
        /// Those that differ from what the broker was started with.
        values: BTreeMap<String, Value>,
    },
}

/// Changes of access and the row that tells of them: all or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessWrite {
    /// What changes, in order.
    pub changes: Vec<Change>,
    /// What the audit log says of it.
    pub audit: Option<AuditRecord>,
}

/// All that a mesh's store remembers of access.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestoredAccess {
    /// Since when it is a mesh that not everybody may join, Unix milliseconds; `None` is that it is open.
    pub founded: Option<u64>,
    /// Members, by key.
    pub members: Vec<MemberRecord>,
    /// Invites, by name.
    pub invites: Vec<InviteRecord>,
    /// Tokens, by name.
    pub tokens: Vec<TokenRecord>,
    /// Bans, in order.
    pub bans: Vec<BanRecord>,
    /// How often settings were changed.
    pub settings_version: u64,
    /// Settings that differ from what the broker is started with.
    pub settings: BTreeMap<String, Value>,
}
