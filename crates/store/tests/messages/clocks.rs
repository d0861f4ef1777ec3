//! A start far from when the store last ran: nothing expires, nothing is pruned, nothing is forgotten.

use tenure_core::effect::{Answer, Note};
use tenure_core::input::Call;
use tenure_core::operate::{Act, OperateId, Operation};
use tenure_core::{Input, MeshConfig};
use tenure_proto::ConnId;
use tenure_proto::hello::HealthStatus;
use tenure_proto::message::{SendParams, SendState};
use tenure_proto::method::StoreHealth;
use tenure_proto::number::U53;

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
        let operation = Operation { who: "operator".into(), from: "here".into(), act: Act::ConfirmClock };
        w.tell(Input::Operate { id: OperateId(1), operation: Box::new(operation) });
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
