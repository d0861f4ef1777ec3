//! What becomes of a message whose receiver goes.

use tenure_mesh::MeshConfig;
use tenure_mesh::conn::admit::Admission;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::ReceiptState;
use tenure_proto::hello::{HelloReconcile, InboxChoice};
use tenure_proto::ids::ConnId;
use tenure_proto::limits::INBOX_ENTRIES;
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Fallback, Priority, SendParams, SendState};
use tenure_proto::peer::Status;
use tenure_proto::reconcile::{ClientInflight, InflightResult, InflightState, ReconcileParams, Settle};

use super::inbox::fill;
use super::words::*;
use super::world::{Disk, Engine, World};

fn with(fallback: Fallback, id: &str) -> SendParams {
    SendParams { fallback, ..letter(to(2), id) }
}

/// Session 3, of the same member as 2, who reads the member's inbox.
fn colleague(w: &mut World) -> ConnId {
    w.dial(Admission { inbox: InboxChoice::Both, ..knock(3) })
}

/// One of each kind is in 2's hand when its lease ends.
fn one_of_each(end: impl FnOnce(&mut World, ConnId)) -> (World, ConnId) {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    for (id, fallback) in [("hold", Fallback::Hold), ("move", Fallback::Member), ("fail", Fallback::Fail)] {
        w.post(a, with(fallback, id));
    }
    assert_eq!(w.pushes(b).len(), 3);
    end(&mut w, b);
    (w, a)
}

fn check_fates(mut w: World, a: ConnId) {
    let receipts = w.receipts(a);
    assert_eq!(receipts.len(), 1, "{receipts:?}");
    assert_eq!(
        (receipts[0].state, receipts[0].reason.as_deref()),
        (ReceiptState::Dead, Some("lease_expired"))
    );
    let c = colleague(&mut w);
    let pushes = w.pushes(c);
    assert_eq!(bodies(&pushes), ["move"]);
    w.ack_all(c, &pushes);
    assert_eq!(w.status(a, &["move"])[0].0, SendState::Delivered);
    assert_eq!(w.status(a, &["fail"]), [(SendState::Dead, Some("lease_expired".into()))]);
    assert!(w.post(a, with(Fallback::Member, "move")).duplicate);
    let b = w.join(2);
    let pushes = w.pushes(b);
    assert_eq!(bodies(&pushes), ["hold"], "the others have left");
    w.ack_all(b, &pushes);
    assert_eq!(w.dead(b, &inbox(2)).len(), 1);
}

#[test]
fn a_lease_that_ends_by_bye_moves_fails_and_holds() {
    let (w, a) = one_of_each(|w, b| w.bye(b));
    check_fates(w, a);
}

#[test]
fn a_lease_that_runs_out_moves_fails_and_holds() {
    let (w, a) = one_of_each(|w, b| {
        w.drop_socket(b);
        w.pass(100_000);
    });
    check_fates(w, a);
}

#[test]
fn what_has_moved_on_or_failed_cannot_be_settled_by_who_had_it_in_hand() {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    for (id, fallback) in [("hold", Fallback::Hold), ("move", Fallback::Member), ("fail", Fallback::Fail)] {
        w.post(a, with(fallback, id));
    }
    let pushes = w.pushes(b);
    let (ack, state) = (Some(Settle::Ack), InflightState::Settled);
    let inflight = pushes.iter().map(|push| ClientInflight { tag: tag(push), state, settle: ack }).collect();
    let listed = ReconcileParams { inflight, ..ReconcileParams::default() };
    w.drop_socket(b);
    w.pass(100_000);
    w.restart();
    let reconcile = Some(HelloReconcile::Now(Box::new(listed)));
    let b = w.dial(Admission { reconcile, ..knock(2) });
    let told = w.hello(b).reconcile.as_ref().unwrap().inflight.clone();
    let told: Vec<_> = told.iter().map(|verdict| verdict.result).collect();
    assert_ne!(told[1], InflightResult::Settled, "it waits for its member");
    assert_ne!(told[2], InflightResult::Settled, "it is dead");
    let c = colleague(&mut w);
    assert_eq!(bodies(&w.pushes(c)), ["move"]);
}

#[test]
fn what_was_never_pushed_moves_too() {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    w.drop_socket(b);
    for n in 0..300 {
        w.post(a, with(Fallback::Member, &format!("m{n}")));
    }
    let c = colleague(&mut w);
    w.pass(100_000);
    let got = w.drain(c);
    assert_eq!(got, (0..300).map(|n| format!("m{n}")).collect::<Vec<_>>());
    let b = w.join(2);
    assert!(w.pushes(b).is_empty());
}

#[test]
fn a_crash_in_the_middle_of_a_move_ends_with_everything_moved() {
    for landed in 0..8 {
        let mut w = world();
        let (a, b) = (w.join(11), w.join(2));
        for n in 0..150 {
            w.post(a, with(Fallback::Member, &format!("m{n}")));
        }
        w.pushes(b);
        w.pass(1_000);
        w.set_disk(Disk::Holds);
        w.ask(b, tenure_mesh::input::Call::Bye);
        for _ in 0..landed {
            w.commit(1);
        }
        w.crash(0);
        w.pass(150_000);
        let c = colleague(&mut w);
        let got = w.drain(c);
        assert_eq!(got.len(), 150, "with {landed} writes on disk");
    }
}

#[test]
fn at_send_the_fallback_decides_for_whoever_is_gone() {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    w.bye(b);
    assert_eq!(w.post(a, with(Fallback::Hold, "hold")).log, inbox(2).to_string());
    assert_eq!(w.post(a, with(Fallback::Member, "move")).log, LogName::Member(member(2)).to_string());
    assert_eq!(code(&w.send(a, with(Fallback::Fail, "fail"))), ErrorCode::LeaseExpired);
    assert_eq!(w.status(a, &["fail"])[0].0, SendState::Unknown, "its id is free");
    assert_eq!(code(&w.send(a, letter(to(99), "nobody"))), ErrorCode::NoSuchSession);
    let c = colleague(&mut w);
    assert_eq!(bodies(&w.pushes(c)), ["move"]);
    let stranger = Address::Member(member(90));
    assert_eq!(code(&w.send(a, letter(stranger, "nobody"))), ErrorCode::NoSuchSession);
    w.post(a, letter(Address::Member(member(2)), "all"));
    assert_eq!(bodies(&w.pushes(c)), ["all"]);
}

#[test]
fn readers_of_a_member_compete() {
    let mut w = world();
    let a = w.join(11);
    let readers: Vec<ConnId> =
        [2, 3].map(|n| w.dial(Admission { inbox: InboxChoice::Member, ..knock(n) })).to_vec();
    for n in 0..100 {
        w.post(a, letter(Address::Member(member(2)), &format!("m{n}")));
    }
    let held: Vec<usize> = readers.iter().map(|conn| w.socket(*conn).pushes.len()).collect();
    assert_eq!(held, [32, 32]);
    w.drop_socket(readers[0]);
    let mut got = w.drain(readers[1]);
    assert_eq!(got.len(), 68, "the first keeps what it has in hand");
    w.pass(100_000);
    got.extend(w.drain(readers[1]));
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 100, "until its lease ends");
}

#[test]
fn nothing_falls_back_to_a_members_inbox_that_is_full() {
    let mut w = world();
    let (a, b) = (w.join(11), w.join(2));
    w.bye(b);
    fill(&mut w, &LogName::Member(member(2)), INBOX_ENTRIES - 1);
    let a = w.resume(11, a);
    w.post(a, with(Fallback::Member, "last"));
    assert_eq!(code(&w.send(a, with(Fallback::Member, "more"))), ErrorCode::Busy);
    assert!(w.post(a, with(Fallback::Member, "last")).duplicate, "what it has it knows");
    w.post(a, with(Fallback::Hold, "held"));
    let c = colleague(&mut w);
    let pushes = w.pushes(c);
    w.ack_all(c, &pushes);
    assert!(!w.post(a, with(Fallback::Member, "more")).duplicate, "there is room again");
}

#[test]
fn what_was_settled_in_another_lane_does_not_move() {
    for engine in [Engine::memory(), Engine::sqlite()] {
        let mut w = World::new(engine, MeshConfig::default());
        let (a, b) = (w.join(11), w.join(2));
        w.post(a, SendParams { priority: Priority::Low, ..with(Fallback::Member, "done") });
        let pushes = w.pushes(b);
        w.ack_all(b, &pushes);
        w.set_disk(Disk::Holds);
        w.ask_send(a, with(Fallback::Member, "move"));
        w.commit(usize::MAX);
        let pushes = w.pushes(b);
        w.crash(0);
        // Its reader is believed to have read its lane up to there; nothing of that lane is looked at while it is busy.
        let inflight =
            ClientInflight { tag: tag(&pushes[0]), state: InflightState::Processing, settle: None };
        let mut hello = w.resuming(2, b);
        hello.profile.status = Status::Dnd;
        let params = ReconcileParams { inflight: vec![inflight], ..Default::default() };
        let (b, result) = w.reconciling(hello, params);
        assert_eq!(result.inflight[0].result, InflightResult::Kept);
        w.pass(1_000);
        w.bye(b);
        let c = colleague(&mut w);
        assert_eq!(bodies(&w.pushes(c)), ["move"]);
    }
}
