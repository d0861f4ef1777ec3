//! What a client that comes back is told: the rest, all of it, once; or plainly that it must start over.

use tenure_proto::MemberKey;
use tenure_proto::event::{EventBody, ResyncWhat};
use tenure_proto::hello::{HealthStatus, Replay, ResumeOutcome};
use tenure_proto::peer::{Peer, Profile, ProfilePatch};

use crate::conn::admit::{Admission, TokenVerdict};
use crate::effect::Note;
use crate::input::Call;
use crate::sessions::presence::DEPARTURES;
use crate::tests::world::{Disk, Frame, World, knock, process, session};

/// Session 1 watches; sessions 2, 3 and 4 join and session 3 leaves: events 1 to 4.
fn busy_world() -> (World, tenure_proto::ConnId) {
    let mut world = World::new();
    let watcher = world.join(1);
    world.join(2);
    let third = world.join(3);
    world.join(4);
    world.bye(third);
    assert_eq!(world.seen(watcher), ["1 joined s2", "2 joined s3", "3 joined s4", "4 left s3"]);
    (world, watcher)
}

#[test]
fn events_lost_on_a_half_open_socket_come_again_renumbered() {
    let expected: [&[&str]; 5] = [
        // Session 3 came and went unseen, or was seen and must be seen to leave.
        &["1 joined s2", "2 joined s3", "3 joined s4", "4 left s3"],
        &["2 joined s3", "3 joined s4", "4 left s3"],
        &["3 joined s4", "4 left s3"],
        &["4 left s3"],
        &[],
    ];
    for (last_seq, rest) in expected.into_iter().enumerate() {
        let (mut world, watcher) = busy_world();
        let again = world.enter(world.resume(watcher, last_seq as u64));
        let answer = world.answer(again);
        assert_eq!((answer.outcome, answer.replay), (ResumeOutcome::Resumed, Replay::Complete));
        assert_eq!(answer.next_seq, last_seq as u64 + 1);
        assert_eq!(answer.epoch, world.answer(watcher).epoch);
        assert_eq!(world.seen(again), rest, "with {last_seq}");
        world.join(5);
        let next = last_seq + rest.len() + 1;
        assert_eq!(world.seen(again), [format!("{next} joined s5")], "and then it goes on");
        assert!(world.has_note(|n| matches!(n, Note::ResumeAccepted { complete: true, .. })));
    }
}

#[test]
fn the_hello_tells_the_versions_from_which_the_replay_goes_on() {
    for last_seq in 0..=4 {
        let (mut world, watcher) = busy_world();
        let again = world.enter(world.resume(watcher, last_seq));
        // It joined at version 1, and each event was one version. It replaces the client's own: anything higher
        // would make the client drop the replay as old news.
        assert_eq!(world.answer(again).state_version.presence.get(), 1 + last_seq);
    }
}

#[test]
fn the_same_loss_twice_is_made_good_twice() {
    let (mut world, watcher) = busy_world();
    let again = world.enter(world.resume(watcher, 1));
    let again = world.enter(world.resume(again, 2));
    let again = world.enter(world.resume(again, 2));
    assert_eq!(world.seen(again), ["3 joined s4", "4 left s3"]);
}

/// Between two flushes: 4 and 5 join, 4 changes, 2 leaves, 3 changes and leaves, 6 comes and goes.
fn crowded_world() -> (World, tenure_proto::ConnId) {
    let mut world = World::new();
    let watcher = world.join(1);
    let (second, third) = (world.join(2), world.join(3));
    world.seen(watcher);
    world.batching = true;
    let fourth = world.join(4);
    world.join(5);
    for conn in [fourth, third] {
        let patch = ProfilePatch { summary: Some("new".into()), ..ProfilePatch::default() };
        world.ask(conn, Call::ProfileSet(Box::new(patch)));
    }
    world.bye(second);
    world.bye(third);
    let sixth = world.join(6);
    world.bye(sixth);
    world.batching = false;
    world.alive(watcher);
    (world, watcher)
}

/// Follows a story in which 1, 2 and 3 are known: nobody joins twice, nobody leaves or changes unseen.
fn known_after(story: &[String]) -> Vec<&str> {
    let mut known = vec!["s1", "s2", "s3"];
    for event in story {
        let words: Vec<&str> = event.split(' ').collect();
        let (kind, who) = (words[1], words[2]);
        assert_eq!(known.contains(&who), kind != "joined", "{event} in {story:?}");
        match kind {
            "joined" => known.push(who),
            "left" => known.retain(|other| *other != who),
            _ => {}
        }
    }
    known
}

#[test]
fn a_batch_of_which_only_a_part_arrived_goes_on_in_its_middle() {
    let (world, watcher) = crowded_world();
    let sent = world.socket(watcher).last_seq;
    assert!(sent > 2);
    for last_seq in 2..=sent {
        let (mut world, watcher) = crowded_world();
        let mut story = world.seen(watcher);
        story.truncate(last_seq as usize - 2);
        let again = world.enter(world.resume(watcher, last_seq));
        assert_eq!(world.answer(again).replay, Replay::Complete);
        story.extend(world.seen(again));
        assert_eq!(known_after(&story), ["s1", "s4", "s5"], "resumed at {last_seq}: {story:?}");
    }
}

#[test]
fn what_changes_after_a_part_arrived_is_told_to_who_knows_that_part() {
    for last_seq in 2..=9 {
        let (mut world, watcher) = crowded_world();
        let mut story = world.seen(watcher);
        story.truncate(last_seq as usize - 2);
        let conns: Vec<_> = world.sockets.keys().copied().filter(|conn| world.is_open(*conn)).collect();
        for conn in conns.into_iter().filter(|conn| *conn != watcher) {
            world.bye(conn);
        }
        let again = world.enter(world.resume(watcher, last_seq));
        story.extend(world.seen(again));
        assert_eq!(known_after(&story), ["s1"], "resumed at {last_seq}: {story:?}");
    }
}

#[test]
fn whatever_does_not_fit_is_a_resync_with_a_new_epoch_and_a_snapshot() {
    let foreign = "e1-999".parse().unwrap();
    type Bend = Box<dyn Fn(Admission) -> Admission>;
    let position = move |admission: Admission| Admission { position: Some((foreign, 2)), ..admission };
    let rows: [(&str, ResumeOutcome, Bend); 5] = [
        ("no token", ResumeOutcome::New, Box::new(|_| knock(1))),
        (
            "a forged token",
            ResumeOutcome::ResumeRejected,
            Box::new(|a| Admission { token: TokenVerdict::Rejected("bad_signature"), ..a }),
        ),
        (
            "another lease's token",
            ResumeOutcome::ResumeNotFound,
            Box::new(|a| Admission { token: TokenVerdict::Selects("l1-77".parse().unwrap()), ..a }),
        ),
        ("an unknown epoch", ResumeOutcome::Resumed, Box::new(move |a| position.clone()(a))),
        (
            "more than was sent",
            ResumeOutcome::Resumed,
            Box::new(|a| Admission { position: a.position.map(|(epoch, _)| (epoch, 5)), ..a }),
        ),
    ];
    for (what, outcome, bend) in rows {
        let (mut world, watcher) = busy_world();
        let again = world.enter(bend(world.resume(watcher, 4)));
        let answer = world.answer(again);
        assert_eq!((answer.outcome, answer.replay), (outcome, Replay::Resync), "{what}");
        assert_ne!(answer.epoch, world.answer(watcher).epoch, "{what}");
        assert_eq!(answer.next_seq, 1, "{what}");
        let snapshot = answer.snapshot.as_ref().expect("a snapshot");
        let here: Vec<_> = snapshot.presence.iter().map(|peer| peer.get().session).collect();
        assert_eq!(here, [session(1), session(2), session(4)], "{what}");
        assert_eq!(answer.state_version.presence.get(), world.mesh.presence_version(), "{what}");
        assert_eq!(world.seen(again), [""; 0], "{what}: it is all in the snapshot");
        world.join(5);
        assert_eq!(world.seen(again), ["1 joined s5"], "{what}");
    }
}

#[test]
fn an_epoch_once_left_is_not_resumed() {
    let (mut world, watcher) = busy_world();
    let fresh = world.enter(process(1, "other"));
    let again = world.enter(world.resume(watcher, 4));
    assert_eq!(world.answer(again).replay, Replay::Resync, "the numbering has moved on");
    assert_ne!(world.answer(again).epoch, world.answer(fresh).epoch);
}

#[test]
fn a_watcher_beyond_what_departures_remember_is_told_to_read_again() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.close(watcher, false);
    let passer_by = Peer::new(session(9), MemberKey([9; 32]), "i".parse().unwrap(), 0, &Profile::named("p"));
    for _ in 0..DEPARTURES + 1 {
        world.mesh.sessions.presence_mut().join(passer_by.clone());
        world.mesh.sessions.presence_mut().leave(&session(9));
    }
    let again = world.enter(world.resume(watcher, 0));
    let frames = std::mem::take(&mut world.socket_mut(again).frames);
    let events: Vec<_> = frames
        .iter()
        .filter_map(|f| if let Frame::Event(seq, body) = f { Some((seq, body)) } else { None })
        .collect();
    let [(1, EventBody::Resync(resync))] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(resync.what, [ResyncWhat::Presence]);
    world.join(3);
    assert_eq!(world.seen(again), ["2 joined s3"]);
    assert_eq!(world.resume(again, 0).position, world.resume(watcher, 0).position, "the same epoch");
    let again = world.enter(world.resume(again, 0));
    assert_eq!(world.seen(again), ["1 resync", "2 joined s3"], "lost and told again");
}

#[test]
fn what_left_together_is_numbered_in_the_order_it_is_handed_out() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.batching = true;
    world.join(2);
    world.drain(None, 5_000);
    world.batching = false;
    world.alive(watcher);
    assert_eq!(world.seen(watcher), ["1 health", "2 shutdown", "3 joined s2"]);
}

#[test]
fn hundreds_of_changes_come_in_handfuls_and_all_of_them() {
    let mut world = World::new();
    let watcher = world.join(1);
    world.batching = true;
    let conns: Vec<_> = (2..=250).map(|n| world.join(n)).collect();
    for conn in conns.into_iter().step_by(2) {
        let patch = ProfilePatch { summary: Some("new".into()), ..ProfilePatch::default() };
        world.ask(conn, Call::ProfileSet(Box::new(patch)));
    }
    world.batching = false;
    world.alive(watcher);
    let events = world.seen(watcher);
    for n in 2..=250 {
        let about: Vec<&str> = events
            .iter()
            .filter_map(|e| e.split_once(' ').filter(|(_, what)| what.ends_with(&format!(" s{n}"))))
            .map(|(_, what)| what.split(' ').next().unwrap())
            .collect();
        assert_eq!(about.first(), Some(&"joined"), "s{n}: {about:?}");
        assert!(about[1..].iter().all(|kind| *kind == "updated"), "s{n}: {about:?}");
    }
}

fn events(world: &World, conn: tenure_proto::ConnId) -> Vec<(u64, EventBody)> {
    let frames = world.socket(conn).frames.iter();
    frames
        .filter_map(|frame| match frame {
            Frame::Event(seq, body) => Some((*seq, body.clone())),
            _ => None,
        })
        .collect()
}

#[test]
fn health_is_told_to_whoever_was_away_as_it_is_now_and_once() {
    let mut world = World::new();
    let conn = world.join(1);
    let version = |world: &World, conn| world.answer(conn).state_version.health.get();
    assert_eq!(
        (version(&world, conn), world.answer(conn).snapshot.as_ref().unwrap().health),
        (1, HealthStatus::Ok)
    );
    world.close(conn, false);
    // It turns bad, and good, and bad again while it is away.
    for (disk, n) in [(Disk::Fails, 2), (Disk::Commits, 2), (Disk::Fails, 3)] {
        world.disk(disk);
        let other = world.hello(knock(n));
        world.close(other, false);
    }
    let back = world.enter(world.resume(conn, 0));
    assert_eq!((world.answer(back).replay, version(&world, back)), (Replay::Complete, 1), "what it has");
    let told = events(&world, back);
    let healths: Vec<_> = told
        .iter()
        .filter_map(|(_, event)| match event {
            EventBody::Health(health) => Some((health.status, health.version.get())),
            _ => None,
        })
        .collect();
    assert_eq!(healths, [(HealthStatus::Degraded, 4)]);
    // Lost on a half-open socket, it is told again; read, it is not.
    let seq = told.iter().position(|(_, event)| matches!(event, EventBody::Health(_))).unwrap() as u64 + 1;
    let again = world.enter(world.resume(back, seq - 1));
    assert_eq!(version(&world, again), 1);
    assert!(world.seen(again).iter().any(|event| event.ends_with("health")));
    let once = world.enter(world.resume(again, seq));
    assert_eq!(version(&world, once), 4);
    assert!(!world.seen(once).iter().any(|event| event.ends_with("health")));
}
