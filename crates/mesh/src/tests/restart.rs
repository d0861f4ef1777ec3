//! A broker that starts again: nobody's lease is lost, nobody blinks, and those who stay away end in their time.

use tenure_proto::SessionKey;
use tenure_proto::hello::{LeaseFate, Replay, ResumeOutcome};
use tenure_proto::peer::{ProfilePatch, Status};

use crate::LEASES_PER_TICK;
use crate::effect::Note;
use crate::input::{Call, LeaseRecord};
use crate::tests::world::{Disk, World, knock, session};

#[test]
fn a_restored_lease_is_in_grace_and_its_token_still_good() {
    let mut world = World::new();
    let (one, two) = (world.join(1), world.join(2));
    world.advance(1_000_000);
    world.restart(0);
    assert_eq!((world.mesh.sessions(), world.mesh.online()), (2, 0));
    let watcher = world.enter(world.resume_all(one));
    let version = world.mesh.presence_version();
    let answer = world.answer(watcher);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::Kept, ResumeOutcome::Resumed));
    assert_eq!(answer.replay, Replay::Resync, "numbers do not outlive a start");
    assert_ne!(answer.epoch, world.answer(one).epoch);
    assert_eq!(answer.lease_id, world.answer(one).lease_id);
    let peers = &answer.snapshot.as_ref().unwrap().presence;
    assert_eq!(peers.iter().map(|p| p.get().session).collect::<Vec<_>>(), [session(1), session(2)]);
    world.enter(world.resume_all(two));
    assert!(world.seen(watcher).is_empty(), "no peer sees a blink");
    assert_eq!(world.mesh.presence_version(), version);
}

#[test]
fn what_peers_saw_survives() {
    let mut world = World::new();
    let conn = world.join(2);
    let patch = ProfilePatch { status: Some(Status::Dnd), ..ProfilePatch::default() };
    world.ask(conn, Call::ProfileSet(Box::new(patch)));
    world.advance(30_000);
    let before = world.answer(conn).snapshot.as_ref().unwrap().presence[0].get().joined_at;
    world.restart(0);
    let watcher = world.join(1);
    let peer = world.answer(watcher).snapshot.as_ref().unwrap().presence[1].get().clone();
    assert_eq!((peer.status, peer.name.as_str(), peer.joined_at), (Status::Dnd, "s2", before));
}

#[test]
fn a_start_gives_a_full_lease_whenever_the_last_frame_was() {
    let mut world = World::new();
    let conn = world.join(2);
    world.socket_mut(conn).lively = false;
    world.advance(89_000);
    world.restart(0);
    world.advance(89_999);
    assert_eq!(world.mesh.sessions(), 1);
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn a_further_start_gives_what_uptime_had_left() {
    let mut world = World::new();
    world.join(2);
    world.restart(0);
    world.advance(30_000);
    world.restart(0);
    world.advance(40_000);
    world.restart(0);
    world.advance(17_999);
    assert_eq!(world.mesh.sessions(), 1, "30 + 40 s of 90 are spent, and a second for each of these starts");
    world.advance(1);
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn a_lease_that_spent_everything_ends_at_the_start_and_is_still_told_once() {
    let mut world = World::new();
    let conn = world.join(1);
    world.join(2);
    world.restart(0);
    world.enter(world.resume_all(conn));
    world.disk(Disk::Fails);
    world.advance(200_000);
    world.restart(0);
    world.disk(Disk::Commits);
    let watcher = world.enter(world.resume_all(conn));
    assert_eq!(world.mesh.sessions(), 2);
    world.advance(10);
    assert_eq!(world.mesh.sessions(), 1);
    assert_eq!(world.seen(watcher), ["1 left s2"]);
}

#[test]
fn an_attach_gives_the_next_start_a_full_lease_again() {
    let mut world = World::new();
    let conn = world.join(2);
    for _ in 0..5 {
        world.restart(0);
        world.advance(80_000);
        assert_eq!(world.mesh.sessions(), 1);
        world.enter(world.resume_all(conn));
    }
}

#[test]
fn an_attach_that_the_store_could_not_note_is_noted_later() {
    let mut world = World::new();
    let conn = world.join(2);
    world.restart(0);
    world.disk(Disk::Fails);
    world.enter(world.resume_all(conn));
    world.advance(10_000);
    world.disk(Disk::Commits);
    world.advance(200_000);
    world.restart(0);
    world.advance(80_000);
    assert_eq!(world.mesh.sessions(), 1, "it was here all the time");
}

#[test]
fn so_is_one_that_was_over_again_before_the_store_could_write() {
    let mut world = World::new();
    let conn = world.join(2);
    world.restart(0);
    world.disk(Disk::Fails);
    let again = world.enter(world.resume_all(conn));
    world.close(again, true);
    world.disk(Disk::Commits);
    world.advance(30_000);
    assert_eq!(world.store.leases[&session(2)].1, world.run());
}

#[test]
fn the_ends_of_those_who_stay_away_are_spread() {
    let mut world = World::new();
    for n in 1..=100 {
        world.join(n);
    }
    world.restart(0);
    let mut left = 100;
    world.advance(89_999);
    assert_eq!(world.mesh.sessions(), left, "nobody gets less than a full lease");
    for _ in 0..100 {
        world.advance(1);
        let now = world.mesh.sessions();
        assert!(left - now <= 1, "{} at once", left - now);
        left = now;
    }
    assert_eq!(left, 0);
}

#[test]
fn thousands_of_ends_at_once_do_not_stall_the_broker() {
    let mut world = World::new();
    world.join(0);
    let (record, run) = world.store.leases[&session(0)].clone();
    for n in 0..2_000u16 {
        let mut key = [0xff; 32];
        key[..2].copy_from_slice(&n.to_be_bytes());
        let (session, lease) = (SessionKey(key), format!("l0-{n}").parse().unwrap());
        world.store.leases.insert(session, (LeaseRecord { session, lease, ..record.clone() }, run));
    }
    world.restart(0);
    world.advance(89_000);
    // Late, but not so late that it was frozen: the spread of the ends is lost.
    world.freeze(4_000);
    assert_eq!(world.mesh.sessions(), 2_001 - LEASES_PER_TICK, "one look, so many leases");
    assert!(world.mesh.next_deadline() <= world.now().at, "the rest are due at once");
    world.advance(0);
    assert_eq!(world.mesh.sessions(), 0);
}

#[test]
fn the_log_says_how_a_start_went() {
    let mut world = World::new();
    let conns: Vec<_> = (1..=3).map(|n| world.join(n)).collect();
    assert!(world.mesh.startup_notes().is_empty(), "nobody to wait for");
    world.restart(0);
    assert_eq!(world.mesh.startup_notes(), [Note::StartupGraceStarted { leases: 3 }]);
    world.notes.clear();
    world.enter(world.resume_all(conns[0]));
    world.join(2);
    world.join(4);
    assert!(!world.has_note(|n| matches!(n, Note::StartupGraceEnded { .. })));
    world.advance(100_000);
    let ended: Vec<_> = world.notes.iter().filter(|n| matches!(n, Note::StartupGraceEnded { .. })).collect();
    assert_eq!(ended, [&Note::StartupGraceEnded { resumed: 2, expired: 1 }]);
}

#[test]
fn a_lease_that_never_reached_the_disk_is_gone_and_one_that_did_is_not() {
    let mut world = World::new();
    world.disk(Disk::Holds);
    let (two, three) = (world.hello(knock(2)), world.hello(knock(3)));
    world.restart(1);
    assert_eq!(world.mesh.sessions(), 1);
    world.disk(Disk::Commits);
    let (two_again, three_again) = (world.enter(knock(2)), world.enter(knock(3)));
    assert_eq!(world.answer(two_again).lease, LeaseFate::Kept);
    assert_eq!(world.answer(three_again).lease, LeaseFate::New);
    assert!(world.socket(two).answer.is_none() && world.socket(three).answer.is_none());
}

#[test]
fn lease_ids_and_epochs_are_never_used_again() {
    let mut world = World::new();
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..4 {
        for n in 1..=3 {
            let conn = world.join(n);
            let answer = world.answer(conn);
            let fresh = ids.insert(answer.epoch.to_string());
            assert!(fresh, "{}", answer.epoch);
            if answer.lease == LeaseFate::New {
                assert!(ids.insert(answer.lease_id.to_string()), "{}", answer.lease_id);
            }
            if (n + round) % 2 == 0 {
                world.bye(conn);
            }
        }
        world.restart(0);
    }
}

#[test]
fn a_store_that_was_restored_gives_no_lease_id_and_no_epoch_a_second_time() {
    let mut world = World::new();
    let conn = world.join(2);
    let (lease, epoch) = (world.answer(conn).lease_id.clone(), world.answer(conn).epoch.clone());
    let hello = world.resume_all(conn);
    // A backup from before that lease: this start has the same number as the last.
    world.start_with(Default::default());
    assert_eq!(world.run(), 1);
    let again = world.enter(hello);
    let answer = world.answer(again);
    assert_eq!((answer.lease, answer.outcome), (LeaseFate::New, ResumeOutcome::ResumeNotFound));
    assert_eq!((answer.replay, answer.reason), (Replay::Resync, Some("lease_ended")));
    assert!(answer.lease_id != lease && answer.epoch != epoch);
}
