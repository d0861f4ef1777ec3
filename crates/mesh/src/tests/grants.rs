//! What an operator gives holds when it is on disk; what it takes away, at once.

use tenure_proto::{Cap, ErrorCode, MemberKey, WireError};

use crate::access::admin::{Act, Operated};
use crate::access::{Presented, TokenRecord};
use crate::conn::admit::Admission;
use crate::input::Call;
use crate::tests::world::{Disk, WALL, World, knock};

fn member(n: u8) -> MemberKey {
    MemberKey([n; 32])
}

fn caps(names: &[&str]) -> Option<Option<Vec<Cap>>> {
    Some(Some(names.iter().map(|name| name.parse().unwrap()).collect()))
}

fn put(n: u8, names: &[&str]) -> Act {
    Act::PutMember { member: member(n), role: None, caps: caps(names), name: None }
}

/// A mesh of member 1's, with a member 2 that may only send.
fn founded() -> World {
    let mut world = World::new();
    for act in [Act::Found(member(1)), put(2, &["send"])] {
        assert!(matches!(world.operate(act), Some(Ok(_))));
    }
    world
}

/// Whether the session on this socket may read.
fn may_read(world: &mut World, conn: tenure_proto::ids::ConnId) -> bool {
    let asked = world.ask(conn, Call::TopicsList(Default::default())).unwrap().unwrap_err();
    // The store of these tests reads nothing, which is how a question that was allowed is known here.
    asked.code == ErrorCode::Unavailable
}

#[test]
fn more_rights_hold_after_their_commit_and_fewer_before_it() {
    let mut world = founded();
    let conn = world.join(2);
    world.disk(Disk::Holds);
    assert!(world.operate(put(2, &["send", "read"])).is_none(), "not answered before it is on disk");
    assert!(!may_read(&mut world, conn), "nor does it hold");
    world.disk(Disk::Commits);
    assert!(matches!(world.operated.values().last(), Some(Ok(Operated::Member(_)))));
    assert!(may_read(&mut world, conn));
    world.disk(Disk::Holds);
    assert!(world.operate(put(2, &["send"])).is_none());
    assert!(!may_read(&mut world, conn), "what is taken away is gone at once");
}

#[test]
fn rights_that_the_disk_did_not_take_were_never_given() {
    let mut world = founded();
    let conn = world.join(2);
    world.disk(Disk::Fails);
    let told = world.operate(put(2, &["send", "read"])).unwrap().unwrap_err();
    assert_eq!(told.code, ErrorCode::Unavailable);
    world.disk(Disk::Commits);
    assert!(!may_read(&mut world, conn));
    // It may be asked again.
    assert!(matches!(world.operate(put(2, &["send", "read"])), Some(Ok(_))));
    assert!(may_read(&mut world, conn));
}

#[test]
fn a_key_is_let_in_when_its_row_is_on_disk() {
    let mut world = founded();
    world.disk(Disk::Holds);
    assert!(world.operate(put(3, &["send"])).is_none());
    let early = world.hello(knock(3));
    assert_eq!(world.refusal(early).0, ErrorCode::Unauthorized);
    assert!(world.operate(put(3, &["read"])).is_none(), "a refusal is told when its row is written");
    world.disk(Disk::Commits);
    let is_busy = |outcome: &Result<Operated, WireError>| {
        outcome.as_ref().is_err_and(|error| error.code == ErrorCode::Busy)
    };
    assert!(world.operated.values().any(is_busy), "one change of a member at a time");
    world.enter(knock(3));
}

#[test]
fn a_member_that_is_removed_while_its_change_waits_stays_removed() {
    let mut world = founded();
    world.disk(Disk::Holds);
    assert!(world.operate(put(2, &["send", "read"])).is_none());
    assert!(world.operate(Act::DropMember(member(2))).is_none());
    world.disk(Disk::Commits);
    let conn = world.hello(knock(2));
    assert_eq!(world.refusal(conn).0, ErrorCode::Unauthorized);
}

#[test]
fn a_token_lets_in_when_it_is_on_disk() {
    let mut world = founded();
    let token = TokenRecord {
        id: "t1".parse().unwrap(),
        hash: [7; 32],
        caps: None,
        name: String::new(),
        since: WALL,
        expires_at: None,
    };
    let bringing = || Admission { presented: Presented::Token([7; 32]), ..knock(5) };
    world.disk(Disk::Holds);
    assert!(world.operate(Act::PutToken(token)).is_none());
    let early = world.hello(bringing());
    assert_eq!(world.refusal(early).0, ErrorCode::Unauthorized);
    world.disk(Disk::Commits);
    world.enter(bringing());
}
