//! A start far from when the store last ran, and a clock that jumps: nothing expires, nothing is pruned, nothing is forgotten,
//! and what is accepted meanwhile has all its time.

use tenure_mesh::MeshConfig;
use tenure_mesh::access::admin::Act;
use tenure_mesh::effect::{Answer, Note};
use tenure_mesh::input::Call;
use tenure_proto::ConnId;
use tenure_proto::hello::HealthStatus;
use tenure_proto::message::{SendParams, SendState};
use tenure_proto::method::StoreHealth;
use tenure_proto::number::U53;
use tenure_proto::run::{RunStartParams, RunState};

use super::runs::ring;
use super::words::*;
use super::world::{Engine, World};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const UNREAD: usize = 20;

fn health(w: &mut World, conn: ConnId) -> (HealthStatus, Option<String>) {
    let store = StoreHealth { kind: "memory".into(), lag_ms: U53::default() };
    match w.call(conn, Call::Health(store)) {
        Ok(Answer::Health(health)) => (health.status, health.reason),
        other => panic!("{other:?}"),
    }
}

/// A world with unread messages, a topic that keeps nothing for long, and a crew of it that nobody is in.
fn filled(engine: Engine) -> World {
    let mut w = World::new(engine, MeshConfig::default());
    let (a, b) = (w.join(1), w.join(2));
    w.create(a, "news", 1, Some(HOUR));
    let sub = w.subscribe(b, subscription("news", Some("crew"))).sub_id;
    w.post(a, letter(topic("news"), "n0"));
    let pushes = w.pushes(b);
    w.ack_all(b, &pushes);
    w.call(b, Call::Unsubscribe(tenure_proto::subscribe::UnsubscribeParams { sub_id: sub })).unwrap();
    w.drop_socket(b);
    for n in 0..UNREAD {
        w.post(a, SendParams { ttl_ms: ms(6 * HOUR), ..letter(to(2), &format!("m{n}")) });
    }
    w.pass(30_000);
    w
}

/// What of all that is still there.
fn left(w: &mut World, conn: ConnId) -> (usize, usize, u64, u64) {
    let ids: Vec<String> = (0..UNREAD).map(|n| format!("m{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let found = w.status(conn, &ids);
    let unread = found.iter().filter(|(state, _)| *state == SendState::Accepted).count();
    let known = found.iter().filter(|(state, _)| *state != SendState::Unknown).count();
    let name = w.name.clone();
    let restored = w.store().restore(&name).unwrap();
    let crews = restored.groups.iter().filter(|group| group.record.log.to_string().contains("news")).count();
    let pruned = restored.logs.iter().map(|log| log.lanes.iter().map(|lane| lane.pruned).sum::<u64>()).sum();
    (unread, known, crews as u64, pruned)
}

fn both(check: impl Fn(World)) {
    check(filled(Engine::memory()));
    check(filled(Engine::sqlite()));
}

#[test]
fn a_start_sixty_days_ahead_loses_nothing_until_the_clock_was_steady_for_an_hour() {
    both(|mut w| {
        w.away = 60 * DAY as i64;
        w.restart();
        let a = w.join(1);
        assert!(w.mesh.startup_notes().iter().any(|note| matches!(note, Note::ClockDoubted { .. })));
        w.pass(50 * MINUTE);
        let (status, reason) = health(&mut w, a);
        assert_eq!(status, HealthStatus::Degraded);
        let reason = reason.unwrap();
        assert!(reason.contains("60 days ahead of when this store last ran"), "{reason}");
        assert!(reason.contains("tenure clock confirm"), "{reason}");
        assert_eq!(left(&mut w, a), (UNREAD, UNREAD, 1, 0));
        // A restart meanwhile is in the same doubt, and its hour begins anew.
        w.restart();
        let a = w.join(1);
        w.pass(50 * MINUTE);
        assert_eq!(left(&mut w, a), (UNREAD, UNREAD, 1, 0));
        w.pass(20 * MINUTE);
        assert_eq!(health(&mut w, a), (HealthStatus::Ok, None));
        let (unread, known, crews, pruned) = left(&mut w, a);
        assert_eq!((unread, known, crews), (0, 0, 0), "what is past its time goes then");
        assert!(pruned > 0);
    });
}

#[test]
fn an_operator_who_confirms_the_clock_ends_the_doubt_at_once() {
    both(|mut w| {
        w.away = 60 * DAY as i64;
        w.restart();
        let a = w.join(1);
        w.pass(MINUTE);
        assert_eq!(left(&mut w, a), (UNREAD, UNREAD, 1, 0));
        w.operate(Act::ConfirmClock);
        assert_eq!(health(&mut w, a), (HealthStatus::Ok, None));
        w.pass(5 * MINUTE);
        assert_eq!(left(&mut w, a).0, 0);
        // And the next start believes it.
        w.restart();
        let a = w.join(1);
        assert_eq!(health(&mut w, a), (HealthStatus::Ok, None));
    });
}

#[test]
fn a_start_far_behind_is_in_doubt_too_and_one_within_a_day_is_not() {
    both(|mut w| {
        w.away = -2 * DAY as i64;
        w.restart();
        let a = w.join(1);
        assert!(health(&mut w, a).1.is_some_and(|reason| reason.contains("behind when this store last ran")));
        w.wall += 3 * DAY - HOUR;
        w.pass(1_000);
        assert_eq!(health(&mut w, a).0, HealthStatus::Ok, "it was set right");
        w.away = 20 * HOUR as i64;
        w.restart();
        let a = w.join(1);
        assert_eq!(health(&mut w, a), (HealthStatus::Ok, None));
    });
}

/// How a doubt ends.
#[derive(Clone, Copy, Debug)]
enum End {
    SetRight,
    Confirmed,
    Steady,
}

/// A world whose clock is `by` off, at a start or while it runs, and nobody at the inbox of session 2; and session 1.
fn doubted(engine: Engine, by: i64, at_start: bool) -> (World, ConnId) {
    let mut w = World::new(engine, MeshConfig::default());
    let (mut a, b) = (w.join(1), w.join(2));
    w.drop_socket(b);
    w.pass(30_000);
    if at_start {
        w.away = by;
        w.restart();
        a = w.resume(1, a);
    } else {
        w.wall = w.wall.saturating_add_signed(by);
        w.pass(1_000);
    }
    assert_eq!(health(&mut w, a).0, HealthStatus::Degraded);
    (w, a)
}

fn end_doubt(w: &mut World, conn: ConnId, by: i64, end: End) {
    match end {
        End::SetRight => w.wall = w.wall.saturating_add_signed(-by),
        End::Confirmed => {
            w.operate(Act::ConfirmClock);
        }
        End::Steady => w.pass(HOUR + MINUTE),
    }
    assert_eq!(health(w, conn), (HealthStatus::Ok, None), "{end:?}");
}

/// Both engines, both directions, at a start and while it runs.
fn every_doubt(check: impl Fn(World, ConnId, i64)) {
    for by in [-60 * DAY as i64, 60 * DAY as i64] {
        for at_start in [true, false] {
            for engine in [Engine::memory(), Engine::sqlite()] {
                let (w, a) = doubted(engine, by, at_start);
                check(w, a, by);
            }
        }
    }
}

#[test]
fn what_is_accepted_in_doubt_outlives_it_however_it_ends() {
    const IDS: [&str; 4] = ["t0", "t1", "t2", "plain"];
    let letters =
        || IDS.map(|id| SendParams { ttl_ms: ms(7 * DAY).filter(|_| id != "plain"), ..letter(to(2), id) });
    for end in [End::SetRight, End::Confirmed, End::Steady] {
        every_doubt(|mut w, a, by| {
            for letter in letters() {
                assert!(!w.post(a, letter).duplicate);
            }
            w.pass(MINUTE);
            end_doubt(&mut w, a, by, end);
            // Time enough for every look at what has expired or is to be forgotten.
            w.pass(5 * MINUTE);
            let states: Vec<_> = w.status(a, &IDS).into_iter().map(|(state, _)| state).collect();
            assert_eq!(states, [SendState::Accepted; 4], "{by} {end:?}");
            for letter in letters() {
                assert!(w.post(a, letter).duplicate, "its id is known: {by} {end:?}");
            }
            let b = w.join(2);
            let pushes = w.pushes(b);
            assert_eq!(bodies(&pushes), IDS, "{by} {end:?}");
            for push in &pushes {
                let envelope = &push.entry.envelope;
                assert_eq!(envelope.id.unix_ms(), envelope.sent_at, "its id is of the same time");
                let ttl = envelope.expires_at.map(|at| at - envelope.sent_at);
                assert!(ttl.is_none_or(|ttl| ttl == 7 * DAY), "and its end counts from there");
            }
        });
    }
}

#[test]
fn a_stamp_in_doubt_is_not_behind_what_was_believed() {
    every_doubt(|mut w, a, by| {
        let right = w.wall.saturating_add_signed(-by);
        w.post(a, letter(to(2), "m"));
        let b = w.join(2);
        let sent_at = w.pushes(b)[0].entry.envelope.sent_at;
        let meant = if by < 0 { right } else { w.wall };
        assert!(sent_at.abs_diff(meant) <= MINUTE, "{sent_at} is not {meant}");
    });
}

#[test]
fn a_delay_in_doubt_is_as_long_as_it_was_to_be() {
    every_doubt(|mut w, a, by| {
        let b = w.join(2);
        w.post(a, SendParams { delay_ms: ms(20_000), ..letter(to(2), "seen") });
        w.pass(19_000);
        assert!(w.pushes(b).is_empty());
        w.pass(2_000);
        let pushes = w.pushes(b);
        assert_eq!(bodies(&pushes), ["seen"], "{by}");
        w.ack_all(b, &pushes);
        w.drop_socket(b);
        // One that its reader meets when the clock was set right.
        w.post(a, SendParams { delay_ms: ms(20_000), ..letter(to(2), "met") });
        end_doubt(&mut w, a, by, End::SetRight);
        let b = w.join(2);
        assert!(w.pushes(b).is_empty(), "{by}");
        w.pass(21_000);
        assert_eq!(bodies(&w.pushes(b)), ["met"], "{by}");
    });
}

#[test]
fn a_start_far_behind_waits_for_a_delay_no_longer_than_was_left() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(1), w.join(2));
        w.post(a, SendParams { delay_ms: ms(20_000), ..letter(to(2), "later") });
        w.pass(5_000);
        w.away = -60 * DAY as i64;
        w.restart();
        let b = w.resume(2, b);
        w.pass(14_000);
        assert!(w.pushes(b).is_empty());
        w.pass(2_000);
        assert_eq!(bodies(&w.pushes(b)), ["later"]);
    }
}

#[test]
fn a_run_that_is_started_in_doubt_has_its_time_over_a_start() {
    for at_start in [true, false] {
        for engine in [Engine::memory(), Engine::sqlite()] {
            let by = -60 * DAY as i64;
            let (mut w, a) = doubted(engine, by, at_start);
            let b = w.join(2);
            let call = RunStartParams { timeout_ms: ms(HOUR), ..ring(to(2), "k") };
            let run = w.start_run(a, call).run_id;
            assert_eq!(w.handed(b).0, run, "its message says which it is");
            end_doubt(&mut w, a, by, End::SetRight);
            w.restart();
            let (a, _) = (w.resume(1, a), w.resume(2, b));
            w.pass(50 * MINUTE);
            assert_eq!(w.run(a, run).state, RunState::Running);
            w.pass(15 * MINUTE);
            assert_ne!(w.run(a, run).state, RunState::Running, "and no more than that");
        }
    }
}

#[test]
fn a_message_that_was_read_before_the_clock_was_set_right_is_stamped_after_it() {
    let by = -60 * DAY as i64;
    let (mut w, a) = doubted(Engine::memory(), by, false);
    let call = w.sending(letter(to(2), "m")).unwrap();
    end_doubt(&mut w, a, by, End::SetRight);
    w.call(a, call).unwrap();
    w.pass(5 * MINUTE);
    assert_eq!(w.status(a, &["m"])[0].0, SendState::Accepted);
    let b = w.join(2);
    let sent_at = w.pushes(b)[0].entry.envelope.sent_at;
    assert!(sent_at.abs_diff(w.wall) <= 10 * MINUTE, "{sent_at} is not {}", w.wall);
}
