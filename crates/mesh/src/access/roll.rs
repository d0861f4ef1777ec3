//! The roll of a mesh: who is on it, and who may be put on it.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{GrantId, MemberKey};
use tenure_proto::invite::{Invite, Role};
use tenure_proto::limits::{INVITE_AHEAD_MS, MEMBERS_MAX};
use tenure_proto::name::Cap;

use crate::access::{
    Change, InviteRecord, MemberRecord, Presented, RestoredAccess, Right, Rights, TokenRecord,
};

/// Invites that one mesh remembers; past it those that have ended are forgotten, and then one more is `busy`.
pub const INVITES_MAX: usize = 10_000;
/// Bearer tokens of one mesh; one more is `busy`.
pub const TOKENS_MAX: usize = 1_024;

/// Who may come in, and what for.
#[derive(Debug, Default)]
pub struct Roll {
    /// Since when not everybody may; `None` is an open mesh.
    pub founded: Option<u64>,
    /// At most [`MEMBERS_MAX`].
    pub members: BTreeMap<MemberKey, MemberRecord>,
    /// At most [`INVITES_MAX`].
    pub invites: BTreeMap<GrantId, InviteRecord>,
    /// At most [`TOKENS_MAX`].
    pub tokens: BTreeMap<GrantId, TokenRecord>,
    /// Tokens by what they are kept as.
    by_hash: BTreeMap<[u8; 32], GrantId>,
    /// Whether invites that have ended are remembered all the same: the wall clock is not believed.
    pub keep_ended: bool,
    /// Uses of invites that the store does not have yet; at most one for each hello that waits for it.
    pending: BTreeMap<GrantId, u32>,
    /// Members whose change is on its way to the disk; at most one for each operation under way.
    changing: BTreeSet<MemberKey>,
}

/// What an operator grants: it holds once it is on disk.
#[derive(Clone, Debug)]
pub enum Grant {
    /// A member as it shall be.
    Member(MemberRecord),
    /// A bearer token.
    Token(TokenRecord),
}

/// How somebody is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Anybody is.
    Open,
    /// It is a member.
    Member,
    /// It will be one, by this invite.
    Invited(Box<Invite>),
    /// By this token.
    Token(GrantId),
}

impl Roll {
    /// What a store remembers.
    pub fn new(restored: &RestoredAccess) -> Roll {
        let mut roll = Roll { founded: restored.founded, ..Roll::default() };
        roll.members.extend(restored.members.iter().map(|member| (member.member, member.clone())));
        roll.invites.extend(restored.invites.iter().map(|invite| (invite.id.clone(), invite.clone())));
        for token in &restored.tokens {
            roll.put_token(token.clone());
        }
        roll
    }

    /// Whether any key may join.
    pub fn is_open(&self) -> bool {
        self.founded.is_none()
    }

    /// How a hello of `member` is let in at this time of the wall clock.
    pub fn entry(&self, member: &MemberKey, presented: &Presented, wall: u64) -> Result<Entry, WireError> {
        if self.is_open() {
            return Ok(Entry::Open);
        }
        // Whoever was let in once needs nothing more: the same key may bring its invite again.
        if self.members.contains_key(member) {
            return Ok(Entry::Member);
        }
        match presented {
            Presented::Nothing => Err(unauthorized(
                "this key is no member of the mesh; join with an invite (`tenure join LINK`), or bring a token",
            )),
            Presented::Bad(error) => Err((**error).clone()),
            Presented::Token(hash) => self.token(hash, wall).map(|token| Entry::Token(token.id.clone())),
            Presented::Invite(invite) => {
                self.check_invite(invite, wall)?;
                Ok(Entry::Invited(invite.clone()))
            }
        }
    }

    fn token(&self, hash: &[u8; 32], wall: u64) -> Result<&TokenRecord, WireError> {
        let found = self.by_hash.get(hash).and_then(|id| self.tokens.get(id));
        let token =
            found.ok_or_else(|| unauthorized("no such token, or it was revoked; ask for a new one"))?;
        match token.expires_at {
            Some(end) if end <= wall => Err(unauthorized("this token has expired; ask for a new one")),
            _ => Ok(token),
        }
    }

    fn check_invite(&self, invite: &Invite, wall: u64) -> Result<(), WireError> {
        let by = self.members.get(&invite.by);
        let may = by.map(|by| by.rights()).is_some_and(|rights| rights.allow(Right::Admin));
        if !may {
            return Err(unauthorized(
                "whoever signed this invite is no operator of the mesh; ask one of them",
            ));
        }
        let end = invite.exp.get();
        if end <= wall {
            return Err(unauthorized("this invite has expired; ask for a new one"));
        }
        if end > wall.saturating_add(INVITE_AHEAD_MS) {
            return Err(unauthorized("an invite may expire at most a year ahead; ask for another"));
        }
        let known = self.invites.get(&invite.id);
        if known.is_some_and(|known| known.revoked) {
            return Err(unauthorized("this invite was revoked; ask for a new one"));
        }
        let used = known.map_or(0, |known| known.used);
        if used >= invite.uses {
            // Whether the last use holds is the store's to say.
            return Err(match self.pending.contains_key(&invite.id) {
                true => busy("somebody is just using this invite; try again in a moment"),
                false => unauthorized("this invite has been used as often as it may; ask for a new one"),
            });
        }
        if self.members.len() >= MEMBERS_MAX {
            return Err(busy("this mesh has as many members as it may; let some go"));
        }
        if known.is_none() && self.invites.len() >= INVITES_MAX && !self.has_ended(wall) {
            return Err(busy(
                "this mesh remembers as many invites as it may; revoke some, or wait for their ends",
            ));
        }
        Ok(())
    }

    fn has_ended(&self, wall: u64) -> bool {
        !self.keep_ended && self.invites.values().any(|invite| invite.expires_at <= wall)
    }

    /// Puts a member on the roll who was let in by an invite; what the store is to be told, all or nothing. It holds from
    /// here on, unless [`Roll::unredeem`] is called because the store could not.
    pub fn redeem(&mut self, member: MemberKey, invite: &Invite, wall: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.invites.len() >= INVITES_MAX && !self.invites.contains_key(&invite.id) {
            let ended = |record: &&InviteRecord| record.expires_at <= wall && !self.keep_ended;
            let ended: Vec<GrantId> = self.invites.values().filter(ended).map(|i| i.id.clone()).collect();
            for id in ended {
                self.invites.remove(&id);
                changes.push(Change::DropInvite(id));
            }
        }
        let record = self.invites.entry(invite.id.clone()).or_insert_with(|| InviteRecord {
            id: invite.id.clone(),
            by: Some(invite.by),
            used: 0,
            uses: invite.uses,
            expires_at: invite.exp.get(),
            revoked: false,
        });
        record.used += u32::from(!mutant::on(Mutant::UsesUncounted));
        changes.push(Change::PutInvite(record.clone()));
        *self.pending.entry(invite.id.clone()).or_default() += 1;
        let record = MemberRecord {
            member,
            role: invite.role,
            caps: self.passed_on(invite),
            name: String::new(),
            invite: Some(invite.id.clone()),
            since: wall,
        };
        self.members.insert(member, record.clone());
        changes.push(Change::PutMember(record));
        changes
    }

    /// The caps that an invite gives: what it says, less what whoever signed it may not do now. Nobody hands on more than
    /// they have.
    fn passed_on(&self, invite: &Invite) -> Option<Vec<Cap>> {
        let meant = Rights::of(invite.role).narrowed(invite.caps.as_deref());
        let given = self.members.get(&invite.by).map_or(Rights::NONE, MemberRecord::rights).and(meant);
        match given == meant {
            true => invite.caps.clone(),
            false => Some(given.names().filter_map(|name| name.parse().ok()).collect()),
        }
    }

    /// The store has the member that this invite let in.
    pub fn redeemed(&mut self, invite: &GrantId) {
        if let Some(count) = self.pending.get_mut(invite) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(invite);
            }
        }
    }

    /// The store could not take the member: the use of the invite is given back.
    pub fn unredeem(&mut self, member: &MemberKey, invite: &GrantId) {
        self.redeemed(invite);
        if self.members.get(member).is_some_and(|record| record.invite.as_ref() == Some(invite)) {
            self.members.remove(member);
        }
        if let Some(record) = self.invites.get_mut(invite) {
            record.used = record.used.saturating_sub(1);
        }
    }

    /// What a session may do that `member` vouches for, and that came by `token` if it came by one.
    pub fn rights(&self, member: &MemberKey, token: Option<&GrantId>) -> Rights {
        if self.is_open() {
            return Rights::ALL;
        }
        match (self.members.get(member), token.and_then(|id| self.tokens.get(id))) {
            (Some(member), _) => member.rights(),
            (None, Some(token)) => token.rights(),
            (None, None) => Rights::NONE,
        }
    }

    /// The token that lets a hello in, whether or not it has expired while the hello waited.
    pub fn bearer(&self, member: &MemberKey, presented: &Presented) -> Option<GrantId> {
        match presented {
            Presented::Token(hash) if !self.is_open() && !self.members.contains_key(member) => {
                self.by_hash.get(hash).cloned()
            }
            _ => None,
        }
    }

    /// When this token ends, Unix milliseconds; nothing if it does not.
    pub fn token_end(&self, id: &GrantId) -> Option<u64> {
        self.tokens.get(id)?.expires_at
    }

    /// Keeps a member; the refusal if there is no room.
    pub fn put_member(&mut self, record: MemberRecord) -> Result<(), WireError> {
        self.check_member(&record)?;
        self.members.insert(record.member, record);
        Ok(())
    }

    /// Refuses a member for whom there is no room, or a change that leaves no operator. Members on their way to the disk
    /// count: the bound holds with them.
    fn check_member(&self, record: &MemberRecord) -> Result<(), WireError> {
        let new = self.changing.iter().filter(|member| !self.members.contains_key(member)).count();
        if self.members.len() + new >= MEMBERS_MAX && !self.members.contains_key(&record.member) {
            return Err(busy("this mesh has as many members as it may; let some go"));
        }
        self.keep_an_operator(&record.member, Some(record.rights()))
    }

    /// Begins to change a member, or to let one in: what the change takes away is gone at once, what it gives comes with
    /// [`Roll::grant`].
    pub fn change_member(&mut self, record: &MemberRecord) -> Result<(), WireError> {
        if self.changing.contains(&record.member) {
            return Err(busy("another change of this member is on its way to the disk; ask again"));
        }
        self.check_member(record)?;
        self.changing.insert(record.member);
        if let Some(old) = self.members.get_mut(&record.member) {
            let (had, left) = (old.rights(), old.rights().and(record.rights()));
            if left != had {
                old.caps = Some(left.names().filter_map(|name| name.parse().ok()).collect());
            }
        }
        Ok(())
    }

    /// A grant is on disk: it holds.
    pub fn grant(&mut self, grant: Grant) {
        match grant {
            // Who was removed meanwhile stays removed: that was said later.
            Grant::Member(record) => {
                if self.changing.remove(&record.member) {
                    self.members.insert(record.member, record);
                }
            }
            Grant::Token(token) => self.put_token(token),
        }
    }

    /// A grant could not be written: nothing that it gives holds. Whether what it takes away does, which a restart would
    /// undo.
    pub fn not_granted(&mut self, grant: &Grant) -> bool {
        match grant {
            Grant::Member(record) => {
                self.changing.remove(&record.member);
                self.members.contains_key(&record.member)
            }
            Grant::Token(_) => false,
        }
    }

    /// Forgets a member.
    pub fn drop_member(&mut self, member: &MemberKey) -> Result<MemberRecord, WireError> {
        if !self.members.contains_key(member) {
            return Err(WireError::new(ErrorCode::NotFound, "no such member"));
        }
        self.keep_an_operator(member, None)?;
        self.changing.remove(member);
        self.members.remove(member).ok_or_else(|| WireError::new(ErrorCode::NotFound, "no such member"))
    }

    /// Refuses to leave a mesh without anybody who could invite.
    fn keep_an_operator(&self, member: &MemberKey, becomes: Option<Rights>) -> Result<(), WireError> {
        let invites = |rights: Rights| rights.allow(Right::Admin);
        let was = self.members.get(member).is_some_and(|record| invites(record.rights()));
        let others = || self.members.values().filter(|other| other.member != *member);
        if was && !becomes.is_some_and(invites) && !others().any(|other| invites(other.rights())) {
            let text = "this is the last operator of the mesh; make another member one first";
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        Ok(())
    }

    /// Whether there is room for one more token, or one of this name is there to be replaced.
    pub fn check_token(&self, id: &GrantId) -> Result<(), WireError> {
        match self.tokens.len() >= TOKENS_MAX && !self.tokens.contains_key(id) {
            true => Err(busy("this mesh has as many tokens as it may; revoke some")),
            false => Ok(()),
        }
    }

    /// Keeps a token, in place of what its name stood for.
    pub fn put_token(&mut self, token: TokenRecord) {
        self.drop_token(&token.id);
        self.by_hash.insert(token.hash, token.id.clone());
        self.tokens.insert(token.id.clone(), token);
    }

    /// Forgets a token; whether there was one.
    pub fn drop_token(&mut self, id: &GrantId) -> bool {
        let Some(old) = self.tokens.remove(id) else { return false };
        self.by_hash.remove(&old.hash);
        true
    }

    /// Lets nobody in by this invite any more; what is to be kept of that.
    pub fn revoke(&mut self, id: &GrantId, wall: u64) -> Result<InviteRecord, WireError> {
        if self.invites.len() >= INVITES_MAX && !self.invites.contains_key(id) {
            return Err(busy("this mesh remembers as many invites as it may; wait for their ends"));
        }
        let unseen = || InviteRecord {
            id: id.clone(),
            by: None,
            used: 0,
            uses: 0,
            // It ends by then, whenever it was made.
            expires_at: wall.saturating_add(INVITE_AHEAD_MS),
            revoked: true,
        };
        let record = self.invites.entry(id.clone()).or_insert_with(unseen);
        record.revoked = true;
        Ok(record.clone())
    }

    /// How many changes of members wait for the store.
    pub fn changing(&self) -> usize {
        self.changing.len()
    }

    /// How many uses of invites wait for the store.
    pub fn pending(&self) -> usize {
        self.pending.values().map(|count| *count as usize).sum()
    }

    /// What makes a mesh its owner's, all or nothing.
    pub fn founding(owner: MemberKey, wall: u64) -> Vec<Change> {
        vec![Change::Found(wall), Change::PutMember(Roll::owner(owner, wall))]
    }

    /// What whoever makes a mesh is told that somebody has made.
    pub fn taken() -> WireError {
        WireError::new(ErrorCode::Conflict, "there is a mesh of this name already")
    }

    /// The member that a new mesh begins with.
    pub fn owner(member: MemberKey, wall: u64) -> MemberRecord {
        let (role, caps, invite) = (Role::Operator, None, None);
        MemberRecord { member, role, caps, name: "owner".to_owned(), invite, since: wall }
    }
}

fn unauthorized(text: &str) -> WireError {
    WireError::new(ErrorCode::Unauthorized, text)
}

fn busy(text: &str) -> WireError {
    WireError::new(ErrorCode::Busy, text).retry_after(1_000)
}
