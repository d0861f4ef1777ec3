//! Who may do what, and what operators did.

use std::collections::BTreeMap;

use tenure_mesh::access::setting::Values;
use tenure_mesh::access::{
    AuditEntry, AuditRecord, BanRecord, Change, InviteRecord, MemberRecord, RestoredAccess, TokenRecord,
};
use tenure_mesh::input::Banned;
use tenure_mesh::store::record::StoreFound;
use tenure_proto::MeshName;
use tenure_proto::ids::{GrantId, MemberKey};

/// All of one mesh.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    founded: Option<u64>,
    members: BTreeMap<MemberKey, MemberRecord>,
    invites: BTreeMap<GrantId, InviteRecord>,
    tokens: BTreeMap<GrantId, TokenRecord>,
    bans: BTreeMap<Banned, BanRecord>,
    settings_version: u64,
    settings: Values,
}

impl Access {
    pub(super) fn is_founded(&self) -> bool {
        self.founded.is_some()
    }

    pub(super) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.change(change.clone());
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Found(at) => self.founded = self.founded.or(Some(at)),
            Change::PutMember(record) => _ = self.members.insert(record.member, record),
            Change::DropMember(member) => _ = self.members.remove(&member),
            Change::PutInvite(record) => _ = self.invites.insert(record.id.clone(), record),
            Change::DropInvite(id) => _ = self.invites.remove(&id),
            Change::PutToken(record) => _ = self.tokens.insert(record.id.clone(), record),
            Change::DropToken(id) => _ = self.tokens.remove(&id),
            Change::PutBan(record) => _ = self.bans.insert(record.subject, record),
            Change::DropBan(subject) => _ = self.bans.remove(&subject),
            Change::Settings { version, values } => {
                (self.settings_version, self.settings) = (version, values);
            }
        }
    }

    pub(super) fn restore(&self) -> RestoredAccess {
        RestoredAccess {
            founded: self.founded,
            members: self.members.values().cloned().collect(),
            invites: self.invites.values().cloned().collect(),
            tokens: self.tokens.values().cloned().collect(),
            bans: self.bans.values().cloned().collect(),
            settings_version: self.settings_version,
            settings: self.settings.clone(),
        }
    }
}

/// What operators did, in all meshes.
#[derive(Clone, Debug, Default)]
pub(super) struct Audit(Vec<(MeshName, AuditRecord)>);

impl Audit {
    pub(super) fn append(&mut self, mesh: &MeshName, record: Option<&AuditRecord>) {
        self.0.extend(record.map(|record| (mesh.clone(), record.clone())));
    }

    pub(super) fn read(&self, mesh: &MeshName, before: Option<u64>, limit: u32) -> StoreFound {
        let rows = self.0.iter().enumerate().rev().map(|(index, row)| (index as u64 + 1, row));
        let rows = rows.filter(|(seq, (of, _))| of == mesh && before.is_none_or(|before| *seq < before));
        let mut rows = rows.map(|(seq, (_, record))| AuditEntry { seq, record: record.clone() });
        let page = rows.by_ref().take(limit as usize).collect();
        StoreFound::Audit(page, rows.next().is_some())
    }
}
