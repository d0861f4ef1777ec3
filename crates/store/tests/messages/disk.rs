//! A disk that takes nothing for a while: nothing is promised that is not kept, nothing kept is lost.

use tenure_mesh::MeshConfig;
use tenure_mesh::effect::Answer;
use tenure_mesh::input::Call;
use tenure_mesh::store::record::{StoreFound, StoreRead};
use tenure_proto::error::ErrorCode;
use tenure_proto::fingerprint::fingerprint;
use tenure_proto::ids::ConnId;
use tenure_proto::log::LogName;
use tenure_proto::message::{HistoryParams, Priority, SendParams, SendState, SendStatusParams, TagsParams};
use tenure_proto::peer::Status;
use tenure_proto::subscribe::{FetchParams, UnsubscribeParams};

use super::words::*;
use super::world::{Disk, Engine, World};

fn two() -> (World, ConnId, ConnId) {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    (w, a, b)
}

#[test]
fn sends_are_unavailable_and_work_again_later() {
    let (mut w, a, b) = two();
    w.set_disk(Disk::Fails);
    let refused = w.send(a, letter(to(2), "m1"));
    assert_eq!(code(&refused), ErrorCode::Unavailable);
    let error = refused.unwrap_err();
    assert!(error.retryable && error.retry_after_ms.is_some());
    assert!(w.pushes(b).is_empty());
    let refused = w.call(a, Call::Subscribe(subscription("t", None)));
    assert_eq!(code(&refused), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    assert!(!w.post(a, letter(to(2), "m1")).duplicate);
    assert_eq!(bodies(&w.pushes(b)), ["m1"]);
    w.subscribe(a, subscription("t", None));
    w.post(b, letter(topic("t"), "t1"));
    assert_eq!(bodies(&w.pushes(a)), ["t1"]);
}

/// A question about a send that was on its way to the disk was answered `unknown`.
#[test]
fn a_status_waits_for_what_is_on_its_way_to_the_disk() {
    let (mut w, a, b) = two();
    let asking =
        |id: &str| Call::SendStatus(SendStatusParams { client_message_ids: vec![id.parse().unwrap()] });
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(to(2), "m1"));
    let questions = [w.ask(a, asking("m1")), w.ask(b, asking("m1"))];
    for (conn, question) in [a, b].into_iter().zip(&questions) {
        assert!(w.answered(conn, question).is_none(), "the store has not decided");
    }
    w.commit(usize::MAX);
    let print = fingerprint(&to(2), None, Priority::default(), None, b"m1").unwrap();
    for (conn, question) in [a, b].into_iter().zip(&questions) {
        let Some(Ok(Answer::SendStatus(told))) = w.answered(conn, question) else { panic!("no answer") };
        let status = &told.statuses[0];
        assert_eq!((status.state, status.id.is_some()), (SendState::Accepted, true), "from any socket");
        assert_eq!(status.fingerprint_prefix, Some(print.prefix()));
    }
    // What failed was not accepted, and the question is answered all the same.
    w.ask_send(a, letter(to(2), "m2"));
    let question = w.ask(b, asking("m2"));
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    let Some(Ok(Answer::SendStatus(told))) = w.answered(b, &question) else { panic!("no answer") };
    assert_eq!((told.statuses[0].state, &told.statuses[0].fingerprint_prefix), (SendState::Unknown, &None));
}

#[test]
fn an_ack_that_was_not_kept_is_kept_in_the_end() {
    let (mut w, a, b) = two();
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    w.set_disk(Disk::Fails);
    let refused = w.call(b, Call::Ack(TagsParams { tags: vec![tag(&pushes[0])] }));
    assert_eq!(code(&refused), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    w.ack_all(b, &pushes);
    w.crash(0);
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    assert!(w.pushes(b).is_empty());
    assert_eq!(w.status(a, &["m1"])[0].0, SendState::Delivered);
}

#[test]
fn what_died_while_the_disk_was_full_is_a_dead_letter_all_the_same() {
    let (mut w, a, b) = two();
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    w.set_disk(Disk::Fails);
    let mut params = nacked(vec![tag(&pushes[0])]);
    (params.dead, params.reason) = (true, Some("broken".into()));
    let refused = w.call(b, Call::Nack(params.clone()));
    assert_eq!(code(&refused), ErrorCode::Unavailable);
    w.pass(3_000);
    w.set_disk(Disk::Commits);
    w.pass(3_000);
    assert_eq!(w.settle(b, Call::Nack(params)).settled.len(), 1);
    let letters = w.dead(b, &inbox(2));
    assert_eq!(letters.iter().map(|letter| letter.reason.as_str()).collect::<Vec<_>>(), ["broken"]);
    assert_eq!(w.status(a, &["m1"]), [(SendState::Dead, Some("broken".into()))]);
    assert_eq!(w.receipts(a).len(), 1);
}

#[test]
fn a_settle_is_not_confirmed_on_the_strength_of_a_write_that_fails_meanwhile() {
    let (mut w, a, b) = two();
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    w.set_disk(Disk::Holds);
    let mut params = nacked(vec![tag(&pushes[0])]);
    params.dead = true;
    let first = w.ask(b, Call::Nack(params.clone()));
    // It asks again while the write is under way, and both are heard of in one turn: first that it asks, then that
    // the write is lost.
    w.set_disk(Disk::Fails);
    let (again, second) = w.request(b, Call::Nack(params.clone()));
    let failed = w.write_some(usize::MAX).unwrap();
    w.tell_all(vec![again, failed]);
    for request in [first, second] {
        assert_eq!(code(&w.answered(b, &request).unwrap()), ErrorCode::Unavailable);
    }
    w.set_disk(Disk::Commits);
    assert_eq!(w.settle(b, Call::Nack(params)).settled.len(), 1);
    w.crash(0);
    let b = w.resume(2, b);
    assert_eq!(w.dead(b, &inbox(2)).len(), 1);
}

#[test]
fn what_expired_while_the_disk_was_full_is_a_dead_letter_all_the_same() {
    let (mut w, a, b) = two();
    w.post(a, SendParams { ttl_ms: ms(8_000), ..letter(to(2), "m1") });
    let pushes = w.pushes(b);
    w.nack(b, &pushes[0]);
    let pushes = w.pushes(b);
    w.drop_socket(b);
    // In nobody's hand, but behind the cursor, when its time is over and the disk is full.
    w.pass(4_000);
    let b = w.resume(2, b);
    w.set_status(b, Status::Dnd);
    w.nack(b, &pushes[0]);
    w.pass(5_500);
    w.set_disk(Disk::Fails);
    // The look at expiry happens only while the store is thought to be sound: so let it fail on the way.
    w.pass(30_000);
    w.set_disk(Disk::Commits);
    w.pass(30_000);
    assert_eq!(w.status(a, &["m1"])[0].0, SendState::Expired);
    assert_eq!(w.dead(b, &inbox(2)).len(), 1);
}

#[test]
fn a_topic_that_was_made_while_the_disk_was_full_keeps_its_partitions() {
    let (mut w, a, b) = two();
    w.set_disk(Disk::Fails);
    let create = tenure_proto::topic::TopicCreateParams {
        name: "jobs".parse().unwrap(),
        partitions: 4,
        retention_ms: None,
    };
    w.set_disk(Disk::Holds);
    let requests = w.ask_all(
        a,
        vec![Call::TopicsCreate(create.clone()), Call::Subscribe(subscription("jobs", Some("crew")))],
    );
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    for request in &requests {
        assert_eq!(code(&w.answered(a, request).unwrap()), ErrorCode::Unavailable);
    }
    w.set_disk(Disk::Commits);
    w.pass(3_000);
    w.call(a, Call::TopicsCreate(create.clone())).unwrap();
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.restart();
    let a = w.resume(1, a);
    w.call(a, Call::TopicsCreate(create)).unwrap();
    let b = w.resume(2, b);
    for n in 0..8 {
        w.post(a, letter(topic("jobs"), &format!("m{n}")));
    }
    assert_eq!(w.drain(b).len(), 8);
}

#[test]
fn an_unsubscribe_is_answered_when_it_is_kept() {
    let (mut w, a, b) = two();
    let sub = w.subscribe(b, subscription("t", None)).sub_id;
    w.set_disk(Disk::Holds);
    let call = Call::Unsubscribe(UnsubscribeParams { sub_id: sub.clone() });
    let request = w.ask(b, call.clone());
    assert!(w.answered(b, &request).is_none());
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    assert_eq!(code(&w.answered(b, &request).unwrap()), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    w.call(b, call).unwrap();
    w.crash(0);
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    assert_eq!(w.hello(b).snapshot.as_ref().unwrap().subscriptions.len(), 0);
    w.post(a, letter(topic("t"), "m1"));
    assert!(w.pushes(b).is_empty());
}

#[test]
fn private_places_are_told_again_after_a_failure() {
    let (mut w, a, b) = two();
    w.subscribe(b, subscription("t", None));
    w.post(a, letter(topic("t"), "m1"));
    let pushes = w.pushes(b);
    w.ack_all(b, &pushes);
    w.set_disk(Disk::Fails);
    w.pass(8_000);
    w.set_disk(Disk::Commits);
    w.pass(8_000);
    w.restart();
    let b = w.resume(2, b);
    assert!(w.pushes(b).is_empty(), "it was settled long ago");
}

#[test]
fn reads_that_fail_are_tried_again() {
    let (mut w, a, b) = two();
    w.drop_socket(b);
    for n in 0..3 {
        w.post(a, letter(to(2), &format!("m{n}")));
    }
    w.restart();
    w.blind = true;
    let b = w.resume(2, b);
    w.set_status(b, Status::Dnd);
    let fetch =
        w.ask(b, Call::Fetch(FetchParams { sub_id: "inbox".parse().unwrap(), limit: ms(2).unwrap() }));
    assert!(w.answered(b, &fetch).is_none());
    w.pass(10_000);
    assert!(w.reads.len() < 50, "but not all the time: {}", w.reads.len());
    w.blind = false;
    w.pass(10_000);
    match w.answered(b, &fetch) {
        Some(Ok(Answer::Fetch(pushes))) => assert_eq!(bodies(&pushes), ["m0", "m1"]),
        other => panic!("{other:?}"),
    }
    w.set_status(b, Status::Idle);
    assert_eq!(bodies(&w.pushes(b)), ["m2"]);
}

#[test]
fn expiry_goes_on_after_a_read_that_failed() {
    let (mut w, a, b) = two();
    w.drop_socket(b);
    w.post(a, SendParams { ttl_ms: ms(5_000), ..letter(to(2), "m1") });
    w.blind = true;
    w.pass(20_000);
    w.blind = false;
    w.pass(30_000);
    assert_eq!(w.status(a, &["m1"])[0].0, SendState::Expired);
}

#[test]
fn dead_letters_that_are_tried_again_outlive_a_crash_at_any_instant() {
    for landed in 0..3 {
        let (mut w, a, b) = two();
        w.post(a, letter(to(2), "m1"));
        let pushes = w.pushes(b);
        let mut params = nacked(vec![tag(&pushes[0])]);
        params.dead = true;
        w.settle(b, Call::Nack(params));
        w.post(a, letter(to(2), "m2"));
        w.pass(1_000);
        w.set_disk(Disk::Holds);
        let retry =
            tenure_proto::dead::DeadRetryParams { log: inbox(2).to_string(), seqs: vec![ms(1).unwrap()] };
        w.ask(b, Call::DeadRetry(retry));
        w.commit(landed);
        w.crash(0);
        let b = w.resume(2, b);
        let waiting = w.drain(b);
        let dead = w.dead(b, &LogName::Session(session(2))).len();
        let found = waiting.iter().filter(|body| *body == "m1").count() + dead;
        assert_eq!(found, 1, "with {landed} writes: {waiting:?} and {dead} dead");
        let StoreFound::Dead { .. } =
            w.read(&StoreRead::Dead { log: inbox(2), after: 0, limit: 9, bytes: 999 })
        else {
            panic!()
        };
    }
}

#[test]
fn a_claim_that_never_reached_the_disk_and_timed_out_is_pushed_once() {
    let mut w = World::new(Engine::memory(), MeshConfig { ack_timeout_ms: 700, ..MeshConfig::default() });
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(topic("jobs"), "j1"));
    w.commit(2);
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    w.pass(800);
    w.set_disk(Disk::Commits);
    w.pass(300);
    let attempts: Vec<u32> = w.pushes(b).iter().map(|push| push.attempt).collect();
    assert_eq!(attempts, [2], "the first hand-out is nobody's any more");
}

#[test]
fn a_refusal_says_what_is_true() {
    let (mut w, a, b) = two();
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    w.set_disk(Disk::Fails);
    let sent = w.send(a, letter(to(2), "m2")).unwrap_err();
    assert!(sent.message.contains("nothing was done"), "{sent}");
    let ack = Call::Ack(TagsParams { tags: vec![tag(&pushes[0])] });
    let settled = w.call(b, ack.clone()).unwrap_err();
    assert!(settled.message.contains("not on disk") && !settled.message.contains("nothing was"), "{settled}");
    w.pass(5_000);
    assert!(w.pushes(b).is_empty(), "it was done all the same");
    w.blind = true;
    let history = HistoryParams { log: inbox(2).to_string(), from: None, limit: None };
    let read = w.call(b, Call::History(history)).unwrap_err();
    assert!(read.message.contains("cannot read"), "{read}");
    w.set_disk(Disk::Commits);
    assert_eq!(w.settle(b, ack).settled.len(), 1);
}

#[test]
fn what_the_store_must_be_told_has_a_bound() {
    let mut w = world();
    let mut a = w.join(1);
    w.create(a, "wide", 256, None);
    w.set_disk(Disk::Holds);
    let refused = loop {
        let asked = w.ask(a, Call::Subscribe(subscription("wide", None)));
        if let Some(outcome) = w.answered(a, &asked) {
            break outcome;
        }
        // A new process knows of no subscription: the store must hear that it ends, and all its places.
        a = w.dial(knock(1));
        assert!(w.pending.len() < 1_000_000, "without end");
    };
    assert_eq!(code(&refused), ErrorCode::Unavailable);
    w.set_disk(Disk::Commits);
    w.commit(usize::MAX);
    w.subscribe(a, subscription("wide", None));
}
