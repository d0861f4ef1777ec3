//! Bans take effect now, once, and for as long as they hold.

use tenure_proto::hello::{HealthStatus, LeaseFate};
use tenure_proto::{ErrorCode, MemberKey};

use crate::access::bans::BANS_MAX;
use crate::conn::admit::Admission;
use crate::effect::Note;
use crate::input::Banned;
use crate::tests::world::{Disk, World, knock, session};

const BANNED: (ErrorCode, &str, Option<u64>) = (ErrorCode::Banned, "banned", None);

/// Session `n`, for whom member 9 vouches.
fn guest(n: u8) -> Admission {
    Admission { member: MemberKey([9; 32]), ..knock(n) }
}

#[test]
fn a_banned_session_is_gone_at_once_and_stays_out_until_that_is_lifted() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.ban(Banned::Session(session(2)));
    assert_eq!(world.closed(conn), Some(("banned", None)));
    assert_eq!(world.socket(conn).closing.as_ref().unwrap().code, 4004);
    assert_eq!(world.seen(watcher), ["2 left s2"], "exactly once");
    assert_eq!(world.mesh.sessions(), 1);
    assert!(world.has_note(|note| matches!(note, Note::LeaseEvicted { reason: "banned", .. })));
    for hello in [knock(2), world.resume(conn, 0)] {
        let again = world.hello(hello);
        assert_eq!(world.refusal(again), BANNED);
    }
    world.advance(600_000);
    assert!(world.seen(watcher).iter().all(|event| event.ends_with("tick")));
    world.unban(Banned::Session(session(2)));
    let again = world.join(2);
    assert_eq!(world.answer(again).lease, LeaseFate::New);
}

#[test]
fn a_banned_member_takes_its_sessions_along_wherever_they_stand() {
    let mut world = World::new();
    let watcher = world.join(1);
    let (here, away) = (world.enter(guest(2)), world.enter(guest(3)));
    world.close(away, true);
    world.seen(watcher);
    world.ban(Banned::Member(MemberKey([9; 32])));
    assert_eq!(world.closed(here), Some(("banned", None)));
    assert_eq!(world.seen(watcher), ["3 left s2", "4 left s3"]);
    let again = world.hello(guest(4));
    assert_eq!(world.refusal(again), BANNED);
    assert!(world.is_open(watcher));
    let own = world.hello(Admission { member: MemberKey([9; 32]), ..knock(9) });
    assert_eq!(world.refusal(own), BANNED, "the member's own session too");
    world.enter(knock(2));
    assert_eq!(world.mesh.sessions(), 2, "another member may vouch for the same key");
}

#[test]
fn a_hello_that_waits_for_the_store_is_refused_at_once_and_its_lease_ends() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.disk(Disk::Holds);
    let conn = world.hello(knock(2));
    world.ban(Banned::Session(session(2)));
    assert_eq!(world.refusal(conn), BANNED, "before the store has said anything");
    world.disk(Disk::Commits);
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 left s2"]);
    assert_eq!((world.mesh.sessions(), world.store.leases.len()), (1, 1));
}

#[test]
fn a_hello_that_waits_for_the_end_of_its_lease_is_refused_at_once() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.disk(Disk::Holds);
    world.bye(conn);
    let again = world.hello(knock(2));
    world.ban(Banned::Session(session(2)));
    assert_eq!(world.refusal(again), BANNED);
    world.disk(Disk::Commits);
    assert_eq!(world.closed(conn), Some(("bye", None)), "who had said goodbye is answered");
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 left s2"]);
}

#[test]
fn while_the_store_fails_a_banned_session_stays_out_and_its_lease_ends_when_it_can() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.seen(watcher);
    world.disk(Disk::Fails);
    world.ban(Banned::Session(session(2)));
    assert_eq!(world.closed(conn), Some(("banned", None)), "what needs no disk happens at once");
    let again = world.hello(world.resume(conn, 0));
    assert_eq!(world.refusal(again), BANNED);
    assert_eq!(world.mesh.sessions(), 2);
    assert_eq!(world.answer(watcher).snapshot.as_ref().unwrap().health, HealthStatus::Ok);
    world.advance(5_000);
    world.disk(Disk::Commits);
    world.advance(1_000);
    let events = world.seen(watcher);
    assert_eq!(events.iter().filter(|event| event.ends_with("left s2")).count(), 1, "{events:?}");
    assert_eq!(world.mesh.sessions(), 1);
}

#[test]
fn a_ban_that_is_said_again_after_a_start_ends_what_the_store_still_had() {
    let mut world = World::new();
    world.join(1);
    world.join(2);
    world.disk(Disk::Holds);
    world.ban(Banned::Session(session(2)));
    world.restart(0);
    world.disk(Disk::Commits);
    assert_eq!(world.mesh.sessions(), 2, "the end never reached the disk");
    world.ban(Banned::Session(session(2)));
    assert_eq!((world.mesh.sessions(), world.store.leases.len()), (1, 1));
    let again = world.hello(knock(2));
    assert_eq!(world.refusal(again), BANNED);
}

#[test]
fn bans_are_bounded_and_the_same_one_counts_once() {
    let mut world = World::new();
    let subject = |n: usize| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(n as u64).to_be_bytes());
        Banned::Member(MemberKey(key))
    };
    for n in 0..BANS_MAX {
        world.ban(subject(n));
    }
    let refused = world.ban(subject(BANS_MAX)).unwrap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Busy);
    world.ban(subject(0)).unwrap().unwrap();
    assert_eq!(world.mesh.bans().count(), BANS_MAX);
    world.unban(subject(0));
    world.ban(subject(BANS_MAX));
    assert_eq!(world.mesh.bans().count(), BANS_MAX);
}

#[test]
fn the_key_of_a_banned_member_is_no_session_key_of_another() {
    let mut world = World::new();
    let inside = world.enter(guest(2));
    world.ban(Banned::Member(MemberKey(session(2).0)));
    assert_eq!(world.closed(inside), Some(("banned", None)), "here already");
    for hello in [guest(2), Admission { member: MemberKey([8; 32]), ..knock(2) }] {
        let again = world.hello(hello);
        assert_eq!(world.refusal(again), BANNED);
    }
    world.enter(guest(3));
    world.unban(Banned::Member(MemberKey(session(2).0)));
    world.enter(guest(2));
}
