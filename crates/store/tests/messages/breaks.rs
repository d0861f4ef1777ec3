//! Sockets that end at a bad moment.

use tenure_mesh::effect::Answer;
use tenure_mesh::input::Call;
use tenure_proto::hello::HelloReconcile;
use tenure_proto::limits::{GROUP_UNUSED_MS, MAX_ATTEMPTS};
use tenure_proto::message::TagsParams;
use tenure_proto::peer::Status;
use tenure_proto::subscribe::{FetchParams, SubscribeParams};

use super::words::*;
use super::world::{CLOCK_STEADY_MS, Disk};

#[test]
fn a_takeover_takes_nothing_from_a_fetch_that_waited() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.drop_socket(b);
    w.post(a, letter(to(2), "m1"));
    w.restart();
    w.blind = true;
    let b = w.resume(2, b);
    w.set_status(b, Status::Dnd);
    let fetch = FetchParams { sub_id: "inbox".parse().unwrap(), limit: ms(1).unwrap() };
    w.ask(b, Call::Fetch(fetch));
    let newer = w.resume(2, b);
    assert!(!w.socket(b).open);
    w.blind = false;
    w.pass(5_000);
    assert_eq!(bodies(&w.pushes(newer)), ["m1"]);
}

#[test]
fn an_ack_before_a_bye_is_answered_before_it() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.post(a, letter(to(2), "m1"));
    let pushes = w.pushes(b);
    w.pass(1_000);
    let ack = Call::Ack(TagsParams { tags: vec![tag(&pushes[0])] });
    let requests = w.ask_all(b, vec![ack, Call::Bye]);
    assert!(matches!(w.answered(b, &requests[0]), Some(Ok(Answer::Settle(_)))));
    assert!(matches!(w.answered(b, &requests[1]), Some(Ok(Answer::Empty))));
    let b = w.join(2);
    assert!(w.pushes(b).is_empty());
}

#[test]
fn what_was_meant_for_a_reader_that_breaks_goes_to_the_next() {
    let mut w = world();
    let (a, b, c) = (w.join(1), w.join(2), w.join(3));
    for conn in [b, c] {
        w.subscribe(conn, subscription("jobs", Some("crew")));
    }
    // Both in turn, so that one of the two messages is for the one that hears nothing yet.
    w.drop_socket(b);
    let mut late = w.resuming(2, b);
    late.reconcile = Some(HelloReconcile::Later(tenure_proto::hello::Later::Later));
    let b = w.dial(late);
    w.post(a, letter(topic("jobs"), "j1"));
    w.post(a, letter(topic("jobs"), "j2"));
    w.drop_socket(b);
    assert_eq!(w.drain(c).len(), 2);
}

#[test]
fn a_progress_costs_no_memory() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.post(a, letter(topic("jobs"), "j1"));
    let pushes = w.pushes(b);
    for _ in 0..100 {
        w.pass(1_000);
        w.settle(b, Call::Progress(TagsParams { tags: vec![tag(&pushes[0])] }));
    }
    let debug = format!("{:?}", w.mesh);
    let timeouts = debug.split("timeouts: {").nth(1).unwrap().split('}').next().unwrap();
    assert_eq!(timeouts.matches("Millis").count(), 1, "{timeouts}");
}

#[test]
fn a_crew_is_forgotten_a_month_after_its_last_member_left() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, SubscribeParams { prefetch: 1, ..subscription("jobs", Some("crew")) });
    w.sleep(GROUP_UNUSED_MS + 1_000);
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    w.bye(b);
    w.pass(CLOCK_STEADY_MS + 30_000);
    w.post(a, letter(topic("jobs"), "j1"));
    w.restart();
    let (a, b) = (w.resume(1, a), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    assert_eq!(bodies(&w.pushes(b)), ["j1"], "it was in use until now");
    w.bye(b);
    w.sleep(GROUP_UNUSED_MS + 1_000);
    w.pass(CLOCK_STEADY_MS + 30_000);
    let (b, _) = (w.join(2), a);
    w.subscribe(b, subscription("jobs", Some("crew")));
    assert!(w.pushes(b).is_empty(), "a new one begins at the end");
}

#[test]
fn every_request_on_an_open_socket_is_answered_whatever_the_disk_does() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(to(2), "m1"));
    w.ask(b, Call::Subscribe(subscription("t", None)));
    w.ask(b, Call::Subscribe(subscription("t", None)));
    w.ask(a, Call::Subscribe(subscription("t", Some("crew"))));
    w.ask(b, Call::Subscribe(subscription("t", Some("crew"))));
    w.set_disk(Disk::Fails);
    w.commit(usize::MAX);
    for conn in [a, b] {
        assert!(w.socket(conn).asked.is_empty(), "{:?}", w.socket(conn).asked);
        assert_eq!(
            w.socket(conn).answers.values().filter(|outcome| outcome.is_err()).count(),
            if conn == a { 2 } else { 3 }
        );
    }
    w.set_disk(Disk::Commits);
    w.subscribe(b, subscription("t", Some("crew")));
    w.post(a, letter(topic("t"), "t1"));
    assert_eq!(bodies(&w.pushes(b)), ["t1"]);
}

#[test]
fn a_crew_that_is_left_before_it_is_made_begins_where_it_should() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.set_disk(Disk::Holds);
    w.ask(b, Call::Subscribe(subscription("jobs", Some("crew"))));
    let mut knows_nothing = w.resuming(2, b);
    knows_nothing.reconcile = Some(HelloReconcile::Now(Box::default()));
    let b = w.dial(knows_nothing);
    w.set_disk(Disk::Commits);
    w.commit(usize::MAX);
    w.post(a, letter(topic("jobs"), "j1"));
    w.pass(1_000);
    w.restart();
    let b = w.resume(2, b);
    w.subscribe(b, subscription("jobs", Some("crew")));
    assert_eq!(bodies(&w.pushes(b)), ["j1"]);
}

#[test]
fn two_private_places_in_one_partition_are_two_after_a_start() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.create(a, "parts", 2, None);
    w.subscribe(b, subscription("parts", None));
    w.subscribe(b, SubscribeParams { partition: Some(1), ..subscription("parts", None) });
    w.restart();
    let (a, b) = (w.resume(1, a), w.resume(2, b));
    for n in 0..2 {
        w.post(a, letter(topic("parts"), &format!("m{n}")));
    }
    assert_eq!(w.drain(b).len(), 3, "one through all partitions, two through one of them");
}

#[test]
fn what_comes_back_goes_before_what_is_new() {
    let mut w = world();
    let (a, b, c) = (w.join(1), w.join(2), w.join(3));
    let crew = SubscribeParams { prefetch: 2, ..subscription("jobs", Some("crew")) };
    w.subscribe(b, crew.clone());
    for n in 1..=5 {
        w.post(a, letter(topic("jobs"), &format!("j{n}")));
    }
    assert_eq!(bodies(&w.pushes(b)), ["j1", "j2"]);
    w.drop_socket(b);
    w.pass(5_000);
    w.subscribe(c, crew);
    assert_eq!(w.drain(c), ["j1", "j2", "j3", "j4", "j5"]);
}

#[test]
fn what_was_never_pushed_is_no_try() {
    let mut w = world();
    let (a, mut b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(topic("jobs"), "j1"));
    w.commit(usize::MAX);
    for _ in 0..2 * MAX_ATTEMPTS {
        assert!(w.pushes(b).is_empty(), "its claim is not on disk");
        w.drop_socket(b);
        w.pass(w.config.reconnect_grace_ms + 1_000);
        b = w.resume(2, b);
    }
    w.set_disk(Disk::Commits);
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(b)), ["j1"], "nobody has ever read it");
}

#[test]
fn what_is_pushed_again_waits_for_its_claim_too() {
    let mut w = world();
    let (a, b) = (w.join(1), w.join(2));
    w.subscribe(b, subscription("jobs", Some("crew")));
    w.set_disk(Disk::Holds);
    w.ask_send(a, letter(topic("jobs"), "j1"));
    w.commit(usize::MAX);
    w.drop_socket(b);
    let b = w.resume(2, b);
    assert!(w.pushes(b).is_empty(), "after a crash now somebody else would get it");
    w.commit(usize::MAX);
    assert_eq!(bodies(&w.pushes(b)), ["j1"]);
}
