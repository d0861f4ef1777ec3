//! From `send` to `ack`, on good days and over a crash.

use tenure_mesh::effect::Push;
use tenure_proto::message::SendState;

use super::words::*;
use super::world::Disk;

#[test]
fn a_message_is_delivered_once_and_its_sender_hears_of_it() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    let sent = w.post(a, letter(to(2), "m1"));
    assert_eq!((sent.duplicate, sent.log, sent.seq.get()), (false, inbox(2).to_string(), 1));
    let pushes = w.pushes(b);
    assert_eq!(bodies(&pushes), ["m1"]);
    assert_eq!((pushes[0].attempt, pushes[0].redelivered), (1, false));
    assert_eq!(w.status(a, &["m1", "m2"]), [(SendState::Accepted, None), (SendState::Unknown, None)]);
    w.ack_all(b, &pushes);
    assert_eq!(w.receipts(a).len(), 1);
    assert_eq!(w.status(a, &["m1"]), [(SendState::Delivered, None)]);
    assert!(w.pushes(b).is_empty());
}

/// The store knows of a private reader only what it had settled some seconds ago: what it had settled since came again as
/// if it were new.
#[test]
fn what_a_private_reader_may_have_seen_before_a_crash_is_said_to_be_redelivered() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("t", None));
    for id in ["m1", "m2", "m3"] {
        w.post(a, letter(topic("t"), id));
    }
    let pushes = w.pushes(b);
    assert!(pushes.iter().all(|push| !push.redelivered));
    w.ack_all(b, &pushes[..1]);
    w.pass(6_000);
    w.ack_all(b, &pushes[1..2]);
    w.crash(0);
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    w.post(a, letter(topic("t"), "m4"));
    let told = |pushes: Vec<Push>| {
        let told = pushes.iter().map(|push| (body(push), push.attempt, push.redelivered));
        told.collect::<Vec<_>>()
    };
    let expected = [("m2".to_owned(), 1, true), ("m3".to_owned(), 1, true), ("m4".to_owned(), 1, false)];
    assert_eq!(told(w.pushes(b)), expected, "m2 was settled, and m3 was in its hand; m4 is new");
}

#[test]
fn an_accepted_message_outlives_a_crash_and_an_unanswered_one_may_not() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "kept"));
    w.set_disk(Disk::Holds);
    let lost = w.ask_send(a, letter(to(2), "lost"));
    assert!(w.answered(a, &lost).is_none(), "not before it is on disk");
    w.crash(0);
    let a = w.resume(1, a);
    assert_eq!(w.status(a, &["kept", "lost"])[1].0, SendState::Unknown);
    let b = w.resume(2, b);
    let pushes = w.pushes(b);
    assert_eq!(bodies(&pushes), ["kept"]);
    w.ack_all(b, &pushes);
    w.restart();
    let b = w.resume(2, b);
    assert!(w.pushes(b).is_empty(), "settled is settled");
}

#[test]
fn a_delivery_leaves_once_it_is_on_disk_whose_it_is() {
    let mut w = world();
    let (a, b, c) = (w.join(1), w.join(2), w.join(3));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.subscribe(c, subscription("jobs", None));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(to(2), "letter"));
    w.ask_send(a, letter(topic("jobs"), "job"));
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(b)), ["letter"], "after a crash now somebody else would get the job");
    assert_eq!(bodies(&w.pushes(c)), ["job"], "nobody else gets a private reader's");
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(b)), ["job"]);
}
