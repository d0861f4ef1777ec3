//! Who may do what: changes and the row that tells of them, together.

use serde_json::json;
use tenure_mesh::access::setting::Values;
use tenure_mesh::access::{
    AccessWrite, AuditRecord, BanRecord, Change, InviteRecord, MemberRecord, RestoredAccess, TokenRecord,
};
use tenure_mesh::input::Banned;
use tenure_mesh::store::record::{StoreFound, StoreRead, StoreWrite};
use tenure_proto::MeshName;
use tenure_proto::invite::Role;

use super::Engine;
use super::messages::{apply, member, mesh, session};
use crate::{Store, Write};

fn write(changes: Vec<Change>) -> StoreWrite {
    StoreWrite::Access(Box::new(AccessWrite { changes, audit: None }))
}

fn row(n: u64) -> AuditRecord {
    AuditRecord {
        at: n,
        who: "operator".to_owned(),
        from: "127.0.0.1".to_owned(),
        act: "ban.set".to_owned(),
        subject: format!("subject {n}"),
        outcome: "ok".to_owned(),
        details: json!({"n": n, "text": "\u{0}é"}),
    }
}

fn member_row(n: u8) -> MemberRecord {
    MemberRecord {
        member: member(n),
        role: if n == 1 { Role::Operator } else { Role::Member },
        caps: (n > 1).then(|| vec!["send".parse().unwrap()]),
        name: format!("m{n}"),
        invite: (n > 1).then(|| "i1".parse().unwrap()),
        since: u64::from(n),
    }
}

fn invite_row(used: u32) -> InviteRecord {
    let by = (used > 0).then(|| member(1));
    InviteRecord { id: "i1".parse().unwrap(), by, used, uses: 3, expires_at: 99, revoked: used == 0 }
}

fn token_row(n: u8) -> TokenRecord {
    TokenRecord {
        id: format!("t{n}").parse().unwrap(),
        hash: [n; 32],
        caps: (n == 1).then(Vec::new),
        name: "ci".to_owned(),
        since: 5,
        expires_at: (n == 1).then_some(77),
    }
}

fn bans() -> Vec<BanRecord> {
    let network = |text: &str| Banned::Network(text.parse().unwrap());
    let subjects =
        [Banned::Member(member(3)), Banned::Session(session(4)), network("::/0"), network("10.0.0.0/8")];
    subjects.map(|subject| BanRecord { subject, reason: "spam".to_owned(), since: 8 }).to_vec()
}

pub(crate) fn access_reads_as_it_was_written<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    assert_eq!(store.access(&mesh()).unwrap(), RestoredAccess::default());
    assert_eq!(store.meshes().unwrap(), Vec::<MeshName>::new());
    let settings = Values::from([("sendRate".to_owned(), json!(7)), ("minClient".to_owned(), json!("1.2"))]);
    let mut changes = vec![Change::Found(4), Change::Found(9)];
    changes.extend([1, 2, 3].map(member_row).map(Change::PutMember));
    changes.push(Change::PutMember(MemberRecord { name: "renamed".to_owned(), ..member_row(2) }));
    changes.push(Change::DropMember(member(3)));
    changes.extend([0, 1, 2].map(invite_row).map(Change::PutInvite));
    changes.extend([1, 2].map(token_row).map(Change::PutToken));
    changes.push(Change::DropToken("t2".parse().unwrap()));
    changes.extend(bans().into_iter().map(Change::PutBan));
    changes.push(Change::DropBan(Banned::Session(session(4))));
    changes.push(Change::Settings { version: 1, values: Values::new() });
    changes.push(Change::Settings { version: 2, values: settings.clone() });
    apply(&mut store, write(changes));
    let mut kept = bans();
    kept.remove(1);
    let expected = RestoredAccess {
        founded: Some(4),
        members: vec![member_row(1), MemberRecord { name: "renamed".to_owned(), ..member_row(2) }],
        invites: vec![invite_row(2)],
        tokens: vec![token_row(1)],
        bans: kept,
        settings_version: 2,
        settings,
    };
    assert_eq!(store.access(&mesh()).unwrap(), expected);
    drop(store);
    let mut store = engine.open();
    assert_eq!(store.access(&mesh()).unwrap(), expected, "after a restart");
    assert_eq!(store.meshes().unwrap(), [mesh()]);
    let other: MeshName = "other".parse().unwrap();
    assert_eq!(store.access(&other).unwrap(), RestoredAccess::default(), "of its mesh alone");
    apply(&mut store, write(vec![Change::DropInvite("i1".parse().unwrap())]));
    assert_eq!(store.access(&mesh()).unwrap().invites, Vec::new());
    assert_eq!(store.check().unwrap(), Vec::<String>::new());
}

pub(crate) fn the_audit_log_is_read_by_pages_and_newest_first<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    let other: MeshName = "other".parse().unwrap();
    for n in 1..=5 {
        let audited = AccessWrite { changes: Vec::new(), audit: Some(row(n)) };
        let mesh = if n == 3 { other.clone() } else { mesh() };
        let write = StoreWrite::Access(Box::new(audited));
        store.apply(&[Write::Mesh { mesh, run: 1, write }]).unwrap();
    }
    drop(store);
    let store = engine.open();
    let page = |before, limit| match store
        .reader()
        .unwrap()
        .read(&mesh(), &StoreRead::Audit { before, limit })
        .unwrap()
    {
        StoreFound::Audit(rows, more) => (rows, more),
        other => panic!("{other:?}"),
    };
    let (newest, more) = page(None, 2);
    assert_eq!(newest.iter().map(|entry| entry.record.at).collect::<Vec<_>>(), [5, 4]);
    assert!(more && newest[0].seq > newest[1].seq);
    assert_eq!(newest[0].record, row(5));
    let (rest, more) = page(Some(newest[1].seq), 2);
    assert_eq!((rest.iter().map(|entry| entry.record.at).collect::<Vec<_>>(), more), (vec![2, 1], false));
    assert_eq!(page(Some(rest[1].seq), 2), (Vec::new(), false));
}

pub(crate) fn a_change_and_its_row_are_one<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    apply(&mut store, write(vec![Change::Found(1)]));
    E::starve(&mut store, true);
    let changes: Vec<Change> = (0..20_000u32)
        .map(|n| {
            let id = format!("i{n}").parse().unwrap();
            Change::PutInvite(InviteRecord { id, ..invite_row(1) })
        })
        .collect();
    let audited = AccessWrite { changes, audit: Some(row(1)) };
    let write = StoreWrite::Access(Box::new(audited));
    assert!(store.apply(&[Write::Mesh { mesh: mesh(), run: 1, write }]).is_err());
    E::starve(&mut store, false);
    assert_eq!(store.access(&mesh()).unwrap().invites, Vec::new());
    let found = store.reader().unwrap().read(&mesh(), &StoreRead::Audit { before: None, limit: 9 }).unwrap();
    assert_eq!(found, StoreFound::Audit(Vec::new(), false));
}
