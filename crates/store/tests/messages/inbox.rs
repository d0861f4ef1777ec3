//! Inboxes: lanes, bounds, times.

use std::sync::Arc;

use tenure_mesh::conn::admit::Admission;
use tenure_mesh::effect::{Answer, Note};
use tenure_mesh::input::Call;
use tenure_mesh::messages::accept::{Accept, Route};
use tenure_mesh::store::record::StoreWrite;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::ReceiptState;
use tenure_proto::hello::{HealthStatus, InboxChoice};
use tenure_proto::limits::{INBOX_ENTRIES, INBOX_TTL_MS};
use tenure_proto::log::LogName;
use tenure_proto::message::{Address, Priority, SendParams, SendState};
use tenure_proto::method::StoreHealth;
use tenure_proto::number::U53;
use tenure_proto::peer::Status;
use tenure_proto::reconcile::{ClientInflight, InflightResult, InflightState, ReconcileParams};
use tenure_proto::subscribe::FetchParams;
use tenure_store::Write;

use super::words::*;
use super::world::{CLOCK_STEADY_MS, Disk, World};

fn urgent(id: &str, priority: Priority) -> SendParams {
    SendParams { priority, ..letter(to(2), id) }
}

fn one_of_each(w: &mut World, conn: tenure_proto::ConnId, round: u8) {
    for (name, priority) in [("low", Priority::Low), ("next", Priority::Next), ("now", Priority::Now)] {
        w.post(conn, urgent(&format!("{name}{round}"), priority));
    }
}

#[test]
fn a_status_closes_lanes_and_fetch_reads_through() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_status(b, Status::Working);
    one_of_each(&mut w, a, 1);
    assert_eq!(bodies(&w.pushes(b)), ["now1"]);
    w.set_status(b, Status::Dnd);
    one_of_each(&mut w, a, 2);
    assert_eq!(bodies(&w.pushes(b)), ["now2"]);
    assert_eq!(bodies(&w.fetch(b, "inbox", 2)), ["next1", "next2"]);
    assert_eq!(bodies(&w.fetch(b, "inbox", 1)), ["low1"]);
    w.set_status(b, Status::Idle);
    assert_eq!(bodies(&w.pushes(b)), ["low2"]);
    assert!(w.fetch(b, "inbox", 10).is_empty());
}

#[test]
fn a_lane_holds_back_only_itself() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    for n in 0..40 {
        w.post(a, urgent(&format!("next{n}"), Priority::Next));
    }
    assert_eq!(w.pushes(b).len(), 32);
    w.post(a, urgent("now", Priority::Now));
    let pushes = w.pushes(b);
    assert_eq!(bodies(&pushes), ["now"]);
    assert_eq!(w.fetch(b, "inbox", 3).len(), 3, "a fetch asks for no credit");
    w.ack_all(b, &pushes);
    assert!(w.pushes(b).is_empty(), "and uses it up");
}

#[test]
fn every_lane_is_read_after_a_start() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    // The store hears of one lane only.
    w.post(a, urgent("next", Priority::Next));
    let pushes = w.pushes(b);
    w.ack_all(b, &pushes);
    w.drop_socket(b);
    w.post(a, urgent("low", Priority::Low));
    w.post(a, urgent("now", Priority::Now));
    w.restart();
    let b = w.resume(2, b);
    assert_eq!(bodies(&w.pushes(b)), ["now", "low"]);
}

#[test]
fn a_delay_is_waited_for_over_breaks_and_starts() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, SendParams { delay_ms: ms(20_000), ..letter(to(2), "later") });
    w.post(a, letter(to(2), "soon"));
    assert_eq!(bodies(&w.pushes(b)), ["soon"]);
    w.pass(5_000);
    w.restart();
    let b = w.resume(2, b);
    w.pushes(b);
    w.pass(14_000);
    assert!(w.pushes(b).is_empty());
    w.pass(2_000);
    assert_eq!(bodies(&w.pushes(b)), ["later"]);
}

#[test]
fn what_nobody_reads_in_time_is_a_dead_letter_with_a_receipt() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_status(b, Status::Dnd);
    w.post(a, SendParams { ttl_ms: ms(20_000), ..letter(to(2), "m1") });
    w.post(a, letter(to(2), "m2"));
    w.pass(40_000);
    let receipts = w.receipts(a);
    assert_eq!(receipts.len(), 1, "{receipts:?}");
    assert_eq!((receipts[0].state, receipts[0].reason.as_deref()), (ReceiptState::Expired, Some("expired")));
    assert_eq!(w.status(a, &["m1"]), [(SendState::Expired, Some("expired".into()))]);
    assert_eq!(w.dead(b, &inbox(2)).len(), 1);
    w.set_status(b, Status::Idle);
    assert_eq!(bodies(&w.pushes(b)), ["m2"]);
    assert_eq!(w.receipts(a).len(), 0, "told once");
}

#[test]
fn an_inbox_forgets_after_a_week_what_nobody_came_for() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.bye(b);
    w.post(a, letter(to(2), "m1"));
    w.sleep(INBOX_TTL_MS + 1_000);
    w.pass(CLOCK_STEADY_MS + 30_000);
    let b = w.join(2);
    assert!(w.pushes(b).is_empty());
    assert_eq!(w.dead(b, &inbox(2))[0].reason, "expired");
}

#[test]
fn what_is_in_hand_does_not_expire_until_it_comes_back() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, SendParams { ttl_ms: ms(5_000), ..letter(to(2), "m1") });
    let pushes = w.pushes(b);
    w.pass(40_000);
    w.ack_all(b, &pushes);
    assert_eq!(w.status(a, &["m1"]), [(SendState::Delivered, None)]);
    w.post(a, SendParams { ttl_ms: ms(5_000), ..letter(to(2), "m2") });
    let pushes = w.pushes(b);
    w.pass(40_000);
    w.nack(b, &pushes[0]);
    w.pass(20_000);
    assert!(w.pushes(b).is_empty());
    assert_eq!(w.status(a, &["m2"])[0].0, SendState::Expired);
}

/// Fills an inbox behind the broker's back, then starts it again.
pub(crate) fn fill(w: &mut World, log: &LogName, count: u64) {
    let mut batch = Vec::new();
    for n in 0..count {
        let params = letter(to(2), &format!("fill{n}"));
        let id = w.next_message();
        let mut prepared = tenure_mesh::messages::prepare::prepare(params, id, w.wall, 1_000).unwrap();
        prepared.envelope.from.member = member(1);
        let accept = Accept {
            envelope: Arc::new(prepared.envelope),
            fingerprint: prepared.fingerprint,
            route: Route::Log(log.clone()),
            refusal: None,
            remember_until: None,
            full: Vec::new(),
            run: None,
        };
        let write = StoreWrite::Accept(Arc::new(accept));
        batch.push(Write::Mesh { mesh: w.name.clone(), run: w.run, write });
    }
    w.store().apply(&batch).unwrap();
    w.restart();
}

#[test]
fn a_full_inbox_is_busy_but_knows_what_it_has() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.drop_socket(b);
    fill(&mut w, &inbox(2), INBOX_ENTRIES - 1);
    assert!(w.reads.is_empty(), "a start reads no messages");
    let a = w.resume(1, a);
    w.post(a, letter(to(2), "last"));
    let refused = w.send(a, letter(to(2), "more"));
    assert_eq!(code(&refused), ErrorCode::Busy);
    assert!(refused.unwrap_err().retry_after_ms.is_some());
    assert!(w.post(a, letter(to(2), "last")).duplicate);
    let conflict = w.send(a, SendParams { body: Some("other".into()), ..letter(to(2), "last") });
    assert_eq!(code(&conflict), ErrorCode::IdempotencyKeyReused);
    let b = w.resume(2, b);
    assert!(w.reads.len() <= 2, "a page at a time: {:?}", w.reads);
    let pushes = w.pushes(b);
    w.ack_all(b, &pushes);
    assert!(!w.post(a, letter(to(2), "more")).duplicate);
}

#[test]
fn a_full_inbox_is_free_again_when_its_messages_expire() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.drop_socket(b);
    fill(&mut w, &inbox(2), INBOX_ENTRIES - 300);
    let a = w.resume(1, a);
    for n in 0..300 {
        w.post(a, SendParams { ttl_ms: ms(5_000), ..letter(to(2), &format!("short{n}")) });
    }
    assert_eq!(code(&w.send(a, letter(to(2), "more"))), ErrorCode::Busy);
    w.pass(40_000);
    w.post(a, letter(to(2), "more"));
}

#[test]
fn twins_in_one_batch_are_one_message() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_disk(Disk::Holds);
    let first = w.ask_send(a, letter(to(2), "m1"));
    let twin = w.ask_send(a, letter(to(2), "m1"));
    let other = w.ask_send(a, SendParams { body: Some("else".into()), ..letter(to(2), "m1") });
    assert!(w.answered(a, &first).is_none() && w.answered(a, &twin).is_none());
    w.commit(usize::MAX);
    let result = |outcome| match outcome {
        Some(Ok(tenure_mesh::effect::Answer::Send(result))) => result,
        other => panic!("{other:?}"),
    };
    let (first, twin) = (result(w.answered(a, &first)), result(w.answered(a, &twin)));
    assert_eq!((first.duplicate, twin.duplicate), (false, true));
    assert_eq!((first.id, first.seq), (twin.id, twin.seq));
    let error = w.answered(a, &other).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::IdempotencyKeyReused);
    let details = error.details.unwrap();
    for side in ["accepted", "presented"] {
        assert_eq!(details[side].as_str().unwrap().len(), 16, "{details}");
    }
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(b)), ["m1"]);
}

#[test]
fn a_receipt_says_only_what_is_on_disk() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    w.set_disk(Disk::Holds);
    let ack = w.ask(
        b,
        tenure_mesh::input::Call::Ack(tenure_proto::message::TagsParams { tags: vec![tag(&pushes[0])] }),
    );
    assert!(w.answered(b, &ack).is_none() && w.receipts(a).is_empty());
    w.commit(usize::MAX);
    assert!(w.answered(b, &ack).is_some());
    assert_eq!(w.receipts(a).len(), 1);
}

#[test]
fn a_clock_that_jumped_expires_nothing_until_it_has_been_steady() {
    const HOUR: u64 = 3_600_000;
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.drop_socket(b);
    w.post(a, SendParams { ttl_ms: ms(6 * HOUR), ..letter(to(2), "m1") });
    w.wall += 24 * HOUR;
    let status = |w: &mut World| {
        let store = StoreHealth { kind: "memory".into(), lag_ms: U53::default() };
        match w.call(a, Call::Health(store)) {
            Ok(Answer::Health(health)) => health.status,
            other => panic!("{other:?}"),
        }
    };
    w.pass(HOUR - 1_000);
    assert_eq!(status(&mut w), HealthStatus::Degraded);
    assert_eq!(w.status(a, &["m1"])[0].0, SendState::Accepted);
    w.pass(20_000);
    assert_eq!(status(&mut w), HealthStatus::Ok);
    assert!(w.notes.iter().any(|note| matches!(note, Note::ClockBelieved { .. })));
    assert_eq!(w.status(a, &["m1"])[0].0, SendState::Expired);
}

#[test]
fn a_fetch_that_finds_nothing_is_answered_after_what_was_handed_out_before() {
    let mut w = world();
    let b = w.join(2);
    w.join(1);
    w.post(b, letter(Address::Member(member(1)), "m1"));
    // The claim of what the member's inbox pushes is on its way to the disk when the fetch comes.
    w.set_disk(Disk::Holds);
    let a = w.dial(Admission { inbox: InboxChoice::Both, ..knock(1) });
    let fetch = Call::Fetch(FetchParams { sub_id: "member".parse().unwrap(), limit: ms(8).unwrap() });
    let request = w.ask(a, fetch);
    assert!(w.answered(a, &request).is_none(), "something waits");
    w.set_disk(Disk::Commits);
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(a)), ["m1"]);
    assert!(w.answered(a, &request).is_some());
}

#[test]
fn the_first_letter_of_an_inbox_stays_in_hand_over_a_crash() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(to(2), "m1"));
    w.commit(usize::MAX);
    let pushes = w.pushes(b);
    assert_eq!(bodies(&pushes), ["m1"], "its place has come to the disk with it");
    w.crash(0);
    let inflight = ClientInflight { tag: tag(&pushes[0]), state: InflightState::Processing, settle: None };
    let (b, result) = w.resume_with(2, b, ReconcileParams { inflight: vec![inflight], ..Default::default() });
    assert_eq!(result.inflight[0].result, InflightResult::Kept);
    assert!(w.pushes(b).is_empty(), "it has it");
    w.ack_all(b, &pushes);
}

#[test]
fn nothing_is_handed_out_from_a_place_that_is_not_on_disk() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.bye(b);
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(to(2), "m1"));
    let b = w.dial(knock(2));
    w.commit(usize::MAX);
    w.hello(b);
    let fetch =
        w.ask(b, Call::Fetch(FetchParams { sub_id: "inbox".parse().unwrap(), limit: U53::saturating(9) }));
    assert!(w.pushes(b).is_empty(), "a crash now would forget whose it is");
    assert!(w.answered(b, &fetch).is_none(), "something waits");
    w.commit(usize::MAX);
    let Some(Ok(Answer::Fetch(fetched))) = w.answered(b, &fetch) else { panic!("not fetched") };
    assert_eq!(bodies(&fetched).len() + w.pushes(b).len(), 1);
}
