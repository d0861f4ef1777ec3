//! Leases begin and end through the store: nothing is so for anybody before it is on disk.

use tenure_proto::hello::{HealthStatus, LeaseFate, ResumeOutcome};
use tenure_proto::method::StoreHealth;
use tenure_proto::name::Cap;
use tenure_proto::number::U53;
use tenure_proto::peer::{ProfilePatch, Status};
use tenure_proto::{ErrorCode, SessionKey};

use crate::access::admin::{Act, OperateId, Operation};
use crate::conn::admit::{Admission, Voucher};
use crate::effect::{Answer, Note};
use crate::input::{Banned, Call, Input};
use crate::tests::world::{Disk, World, knock, process, session};

#[test]
fn a_lease_begins_when_the_store_has_it() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.disk(Disk::Holds);
    let conn = world.hello(knock(2));
    assert!(world.socket(conn).answer.is_none() && world.is_open(conn));
    assert!(world.seen(watcher).is_empty());
    world.disk(Disk::Commits);
    assert_eq!(world.answer(conn).lease, LeaseFate::New);
    assert_eq!(world.seen(watcher), ["1 joined s2"]);
}

#[test]
fn a_lease_that_the_store_refuses_never_was() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.disk(Disk::Fails);
    let conn = world.hello(knock(2));
    assert_eq!(world.refusal(conn), (ErrorCode::Unavailable, "busy", Some(1_000)));
    assert!(ErrorCode::Unavailable.retryable());
    assert_eq!(world.seen(watcher), ["1 health"], "no joined");
    assert_eq!((world.mesh.sessions(), world.mesh.presence_version()), (1, 1));
    world.disk(Disk::Commits);
    world.join(2);
    assert_eq!(world.seen(watcher), ["2 health", "3 joined s2"], "exactly once, when it is true");
}

#[test]
fn a_store_that_cannot_write_is_part_of_health_until_it_can() {
    let mut world = World::new();
    let watcher = world.join(1);
    let status = |world: &mut World| {
        let store = StoreHealth { kind: "memory".into(), lag_ms: U53::default() };
        match world.ask(watcher, Call::Health(store)) {
            Some(Ok(Answer::Health(health))) => health.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(status(&mut world), HealthStatus::Ok);
    world.disk(Disk::Fails);
    world.hello(knock(2));
    assert_eq!(status(&mut world), HealthStatus::Degraded);
    world.disk(Disk::Commits);
    world.join(3);
    assert_eq!(status(&mut world), HealthStatus::Ok);
}

#[test]
fn a_socket_that_breaks_while_its_hello_waits_leaves_a_lease_in_grace() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.disk(Disk::Holds);
    let conn = world.hello(knock(2));
    world.close(conn, false);
    world.disk(Disk::Commits);
    assert_eq!(world.seen(watcher), ["1 joined s2"]);
    assert_eq!((world.mesh.sessions(), world.mesh.online()), (2, 1));
    let again = world.enter(knock(2));
    assert_eq!(world.answer(again).lease, LeaseFate::Kept);
    world.close(again, false);
    world.advance(90_000);
    assert!(world.seen(watcher).iter().any(|event| event.ends_with("left s2")), "it ends like any other");
}

#[test]
fn the_newest_of_several_waiting_hellos_is_let_in() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.disk(Disk::Holds);
    let first = world.hello(knock(2));
    let second = world.hello(process(2, "second"));
    assert_eq!(world.closed(first), Some(("session_replaced", None)));
    let newcomer = world.socket(first).closing.as_ref().unwrap().instance_id.clone().unwrap();
    assert_eq!(newcomer.as_str(), "second");
    world.disk(Disk::Commits);
    assert_eq!(world.answer(second).lease, LeaseFate::New);
    assert!(world.seen(watcher)[0].ends_with("joined s2"));
    let snapshot = world.answer(second).snapshot.as_ref().unwrap();
    let instance = snapshot.presence[1].get().instance_id.as_str();
    assert_eq!(instance, "second", "peers see the process that is here");
}

#[test]
fn left_follows_its_commit() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.seen(watcher);
    world.disk(Disk::Holds);
    world.advance(200_000);
    assert!(world.seen(watcher).iter().all(|event| event.ends_with("tick")));
    assert_eq!(world.mesh.sessions(), 2);
    world.disk(Disk::Commits);
    assert!(world.seen(watcher)[0].ends_with("left s2"));
    assert_eq!(world.mesh.sessions(), 1);
}

#[test]
fn a_hello_while_its_lease_ends_waits_for_that_and_begins_anew() {
    for by_bye in [true, false] {
        let mut world = World::new();
        let (watcher, conn) = (world.join(1), world.join(2));
        world.disk(Disk::Holds);
        if by_bye {
            assert!(world.bye(conn).is_none(), "bye is answered when it is true");
        } else {
            world.close(conn, false);
            world.advance(90_000);
        }
        world.seen(watcher);
        let again = world.hello(world.resume(conn, 0));
        assert!(world.socket(again).answer.is_none());
        world.commit(1);
        assert!(world.seen(watcher)[0].ends_with("left s2"));
        assert!(world.socket(again).answer.is_none(), "now its own beginning waits");
        assert_eq!(world.closed(conn).map(|c| c.0), by_bye.then_some("bye"));
        world.disk(Disk::Commits);
        let answer = world.answer(again);
        assert_eq!((answer.lease, answer.outcome), (LeaseFate::New, ResumeOutcome::ResumeNotFound));
        assert!(world.seen(watcher)[0].ends_with("joined s2"));
    }
}

#[test]
fn a_hello_that_waits_for_an_end_may_break_off() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.disk(Disk::Holds);
    world.bye(conn);
    let again = world.hello(knock(2));
    world.close(again, true);
    world.disk(Disk::Commits);
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 left s2"]);
    assert_eq!(world.mesh.sessions(), 1);
}

#[test]
fn a_token_alone_does_not_outlive_the_lease_it_waits_for() {
    let mut world = World::new();
    let conn = world.join(2);
    world.disk(Disk::Holds);
    world.bye(conn);
    let resume = Admission { voucher: Voucher::TokenOnly, ..world.resume(conn, 0) };
    let again = world.hello(resume);
    assert!(world.is_open(again), "the lease still lives");
    world.disk(Disk::Commits);
    assert_eq!(world.refusal(again), (ErrorCode::Unauthorized, "unauthorized", None));
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn while_the_store_fails_no_lease_ends_and_who_comes_back_has_lost_nothing() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.disk(Disk::Fails);
    world.advance(600_000);
    assert_eq!((world.mesh.sessions(), world.mesh.presence_version()), (2, 2));
    let again = world.enter(world.resume_all(conn));
    assert_eq!(
        (world.answer(again).lease, world.answer(again).outcome),
        (LeaseFate::Kept, ResumeOutcome::Resumed)
    );
    world.disk(Disk::Commits);
    world.advance(600_000);
    assert_eq!(world.mesh.online(), 2, "it lives on");
    assert!(!world.seen(watcher).iter().any(|event| event.contains("left")));
}

#[test]
fn a_lease_whose_end_failed_ends_once_the_store_can_write() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.disk(Disk::Fails);
    world.advance(100_000);
    world.disk(Disk::Commits);
    world.advance(1_000);
    assert_eq!(world.mesh.sessions(), 1);
    assert_eq!(world.seen(watcher).iter().filter(|event| event.ends_with("left s2")).count(), 1);
}

#[test]
fn a_hello_that_waits_for_an_end_that_fails_finds_its_lease_alive() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.close(conn, false);
    world.disk(Disk::Holds);
    world.advance(90_000);
    let again = world.hello(world.resume_all(conn));
    world.seen(watcher);
    world.disk(Disk::Fails);
    let answer = world.answer(again);
    assert_eq!((answer.lease, &answer.lease_id), (LeaseFate::Kept, &world.answer(conn).lease_id));
    assert!(world.seen(watcher).iter().all(|event| event.ends_with("health")), "neither left nor joined");
}

#[test]
fn a_bye_that_the_store_cannot_take_says_so_and_the_lease_lives_on() {
    let mut world = World::new();
    let (watcher, conn) = (world.join(1), world.join(2));
    world.disk(Disk::Fails);
    let error = world.bye(conn).unwrap().unwrap_err();
    assert_eq!((error.code, error.retryable), (ErrorCode::Unavailable, true));
    assert_eq!(world.closed(conn), Some(("busy", Some(1_000))));
    world.disk(Disk::Commits);
    world.advance(60_000);
    let again = world.enter(world.resume_all(conn));
    assert_eq!(world.answer(again).lease, LeaseFate::Kept, "nothing was done, so nothing ended");
    assert!(!world.seen(watcher).iter().any(|event| event.contains("left")));
}

#[test]
fn the_store_hears_of_a_changed_profile_within_a_third_of_the_lease() {
    let mut world = World::new();
    let conn = world.join(2);
    for _ in 0..10 {
        for status in [Status::Working, Status::Idle, Status::Dnd] {
            let patch = ProfilePatch { status: Some(status), ..ProfilePatch::default() };
            world.ask(conn, Call::ProfileSet(Box::new(patch))).unwrap().unwrap();
        }
    }
    assert_eq!(world.store.leases[&session(2)].0.profile.status, Status::Idle, "sparsely");
    world.advance(30_000);
    assert_eq!(world.store.leases[&session(2)].0.profile.status, Status::Dnd);
}

#[test]
fn the_store_hears_of_changed_caps() {
    let mut world = World::new();
    let caps = |names: &[&str]| Some(names.iter().map(|name| name.parse().unwrap()).collect::<Vec<Cap>>());
    let conn = world.enter(Admission { voucher: Voucher::Attested(caps(&["read", "send"])), ..knock(2) });
    let narrow = Voucher::Attested(caps(&["read"]));
    world.enter(Admission { voucher: narrow, ..world.resume(conn, 0) });
    world.advance(30_000);
    assert_eq!(
        world.store.leases[&session(2)].0.caps,
        caps(&["read"]),
        "or a restart would widen them again"
    );
}

#[test]
fn particulars_that_could_not_be_written_are_written_later() {
    let mut world = World::new();
    let conn = world.join(2);
    let patch = ProfilePatch { status: Some(Status::Working), ..ProfilePatch::default() };
    world.ask(conn, Call::ProfileSet(Box::new(patch))).unwrap().unwrap();
    world.disk(Disk::Fails);
    world.advance(40_000);
    assert_eq!(world.store.leases[&session(2)].0.profile.status, Status::Idle);
    world.disk(Disk::Commits);
    world.advance(30_000);
    assert_eq!(world.store.leases[&session(2)].0.profile.status, Status::Working);
}

#[test]
fn the_end_of_a_lease_is_the_last_that_the_store_hears_of_it() {
    let mut world = World::new();
    let conn = world.join(2);
    let patch = ProfilePatch { status: Some(Status::Working), ..ProfilePatch::default() };
    world.ask(conn, Call::ProfileSet(Box::new(patch))).unwrap().unwrap();
    world.disk(Disk::Holds);
    world.bye(conn);
    world.drain(Some(1_000), 5_000);
    world.advance(6_000);
    world.disk(Disk::Commits);
    assert!(world.store.leases.is_empty(), "a profile written after the end would bring it back");
}

#[test]
fn notes_of_a_failing_store_are_counted_by_lease_not_by_attempt() {
    let mut world = World::new();
    let conn = world.join(2);
    world.close(conn, false);
    world.disk(Disk::Fails);
    world.advance(150_000);
    world.disk(Disk::Commits);
    world.advance(1_000);
    let expired = world.notes.iter().filter(|n| matches!(n, Note::GraceExpired { .. })).count();
    assert_eq!(expired, 1, "nobody came back once");
}

#[test]
fn every_end_of_a_lease_says_who_and_why() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    world.join(3);
    let four = world.join(4);
    world.bye(one);
    world.close(two, false);
    world.ban(Banned::Session(session(3)));
    let operation =
        Operation { who: "operator".into(), from: "here".into(), act: Act::Kick(session(4), String::new()) };
    world.input(Input::Operate { id: OperateId(1), operation: Box::new(operation) });
    assert!(!world.is_open(four));
    world.advance(90_001);
    let ends: Vec<(SessionKey, &str, &str)> =
        world.store.ends.iter().map(|(who, name, why)| (*who, name.as_str(), why.as_str())).collect();
    let wanted = [(1, "s1", "bye"), (3, "s3", "banned"), (4, "s4", "kicked"), (2, "s2", "expired")];
    assert_eq!(ends, wanted.map(|(n, name, why)| (session(n), name, why)));
}

#[test]
fn what_a_check_found_is_why_health_is_degraded_until_one_finds_nothing() {
    let mut world = World::new();
    let watcher = world.join(1);
    let health = |world: &mut World| {
        let store = StoreHealth { kind: "memory".to_owned(), lag_ms: U53::default() };
        match world.ask(watcher, Call::Health(store)) {
            Some(Ok(Answer::Health(health))) => (health.status, health.reason, health.state_version.health),
            other => panic!("{other:?}"),
        }
    };
    let (status, reason, version) = health(&mut world);
    assert_eq!((status, reason), (HealthStatus::Ok, None));
    world.input(Input::StoreChecked { reason: Some("a hole".to_owned()) });
    let (status, reason, found) = health(&mut world);
    assert_eq!((status, reason.as_deref()), (HealthStatus::Degraded, Some("a hole")));
    world.input(Input::StoreChecked { reason: Some("a hole".to_owned()) });
    assert_eq!(health(&mut world).2, found, "the same again is no news");
    assert!(found > version);
    world.input(Input::StoreChecked { reason: Some("ä".repeat(1_000)) });
    assert_eq!(health(&mut world).1, Some("ä".repeat(256)), "at most 512 bytes of it");
    world.input(Input::StoreChecked { reason: None });
    assert_eq!(health(&mut world).0, HealthStatus::Ok);
}

#[test]
fn who_is_refused_because_the_store_writes_no_more_is_told_why() {
    let mut world = World::new();
    world.disk(Disk::Fails);
    let told = |world: &mut World, n| {
        let conn = world.hello(knock(n));
        assert_eq!(world.refusal(conn).0, ErrorCode::Unavailable);
        match &world.socket(conn).answer {
            Some(Err(error)) => error.message.clone(),
            _ => panic!("it was let in"),
        }
    };
    assert_eq!(told(&mut world, 1), "the store cannot write now; try again in a moment");
    world.input(Input::StoreChecked { reason: Some("tenure.db was removed".to_owned()) });
    assert_eq!(told(&mut world, 2), "the store cannot write: tenure.db was removed");
}
