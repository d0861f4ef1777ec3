//! What the log is told of readers that go and come back: which socket, and how much it is about.

use tenure_mesh::MeshConfig;
use tenure_mesh::effect::Note;
use tenure_mesh::input::Call;
use tenure_proto::message::TagsParams;
use tenure_proto::reconcile::{ClientInflight, InflightState, ReconcileParams};
use tenure_proto::subscribe::SubscribeParams;

use super::words::*;
use super::world::{Engine, World};

/// A reader with three deliveries of a crew in hand.
fn busy(
    engine: Engine,
) -> (World, tenure_proto::ConnId, tenure_proto::ConnId, Vec<tenure_mesh::effect::Push>) {
    let mut w = World::new(engine, MeshConfig::default());
    let (a, b) = (w.join(1), w.join(12));
    w.subscribe(b, SubscribeParams { prefetch: 3, ..subscription("jobs", Some("crew")) });
    for n in 0..5 {
        w.post(a, letter(topic("jobs"), &format!("m{n}")));
    }
    let pushes = w.pushes(b);
    assert_eq!(pushes.len(), 3);
    w.notes.clear();
    (w, a, b, pushes)
}

#[test]
fn a_break_and_its_end_are_told_with_their_socket_and_what_waits() {
    let (mut w, _, b, _) = busy(Engine::memory());
    w.drop_socket(b);
    let (client, reason, conn) = ("test/1".to_owned(), "closed", b);
    let session = session(12);
    let entered = Note::GraceEntered { session, conn, client, reason, subscriptions: 1, in_hand: 3 };
    assert!(w.notes.contains(&entered), "{:?}", w.notes);
    w.pass(6_000);
    assert!(w.notes.contains(&Note::Requeued { session, conn: Some(b), count: 3 }), "{:?}", w.notes);
    w.pass(100_000);
    let client = "test/1".to_owned();
    let expired = Note::GraceExpired { session, conn: Some(b), client, subscriptions: 1, in_hand: 0 };
    assert!(w.notes.contains(&expired), "{:?}", w.notes);
}

#[test]
fn what_is_settled_after_a_resume_is_told_apart_from_what_is_not() {
    let (mut w, _, b, pushes) = busy(Engine::memory());
    w.drop_socket(b);
    let listed = |push: &tenure_mesh::effect::Push| ClientInflight {
        tag: tag(push),
        state: InflightState::Processing,
        settle: None,
    };
    let inflight = pushes.iter().map(listed).collect();
    let (b, _) = w.resume_with(12, b, ReconcileParams { inflight, ..ReconcileParams::default() });
    // Its subscription was not listed, so that is gone; what it had in hand went back, and may still be settled.
    w.notes.clear();
    let tags = pushes.iter().map(tag).collect();
    let result = w.settle(b, Call::Ack(TagsParams { tags }));
    let (settled, stale) = (result.settled.len(), result.stale.len());
    let session = session(12);
    if settled > 0 {
        let note = Note::LateSettleAccepted { session, conn: b, count: settled };
        assert!(w.notes.contains(&note), "{:?}", w.notes);
    }
    let rejected: usize = w
        .notes
        .iter()
        .map(|note| match note {
            Note::LateSettleRejected { conn, count, .. } if *conn == b => *count,
            _ => 0,
        })
        .sum();
    assert_eq!((settled + stale, rejected), (3, stale), "{:?}", w.notes);
}

#[test]
fn what_is_in_hand_over_a_start_is_reclaimed_or_released() {
    for (back, engine) in [(true, Engine::memory()), (false, Engine::memory())] {
        let (mut w, _, b, _) = busy(engine);
        w.restart();
        w.notes.clear();
        let session = session(12);
        if back {
            let b = w.resume(12, b);
            let note = Note::StartupReclaimed { session, conn: b, count: 3 };
            assert!(w.notes.contains(&note), "{:?}", w.notes);
        } else {
            w.pass(60_000);
            assert!(w.notes.contains(&Note::StartupReleased { session, count: 3 }), "{:?}", w.notes);
        }
    }
}

#[test]
fn who_comes_back_without_a_token_is_told_of() {
    let mut w = world();
    let a = w.join(1);
    w.drop_socket(a);
    w.notes.clear();
    let a = w.join(1);
    let note = Note::AttachedByKey { session: session(1), conn: a, client: "test/1".to_owned() };
    assert!(w.notes.contains(&note), "{:?}", w.notes);
}
