//! The SDK's shell against a scripted broker on a real socket: what is sent, read and settled goes through breaks,
//! and nobody who does not read holds up the others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use common::Broker;
use serde_json::{Value, json};
use tenure_client::proto::message::Priority;
use tenure_client::{
    InboxChoice, InboxError, Item, Options, Received, Session, SubEnd, Subscription, To, Unsettled,
    random_key,
};

/// A session that reads these inboxes, in front of a broker that the test plays.
async fn connect(inbox: InboxChoice) -> (Broker, Session) {
    common::connect(|options| options.inbox(inbox)).await
}

async fn subscribe(broker: &mut Broker, session: &Session, topic: &str, sub: &str) -> Subscription {
    let (subscription, _) =
        tokio::join!(async { session.subscribe(topic).await.unwrap() }, broker.subscribed(sub));
    subscription
}

async fn message(subscription: &mut Subscription) -> Received {
    match subscription.next().await {
        Ok(Item::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// Whether a future has nothing to say yet.
async fn pending(future: impl Future) -> bool {
    let mut future = Box::pin(future);
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test]
async fn a_message_is_read_and_acked_across_a_break() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    assert_eq!(broker.hello["inbox"], "none");
    let mut jobs = subscribe(&mut broker, &session, "jobs", "s1").await;
    assert_eq!(jobs.start().unwrap().sub_id.as_str(), "s1");
    broker.deliver("s1", "topic/jobs/0", 1).await;
    let first = message(&mut jobs).await;
    assert_eq!((first.text(), first.seq.get(), first.attempt()), (Some("1"), 1, 1));
    session.sever().await;
    let settling = first.ack();
    let keep = json!({"action": "keep", "subId": "s2", "client": "s1", "reason": "matched"});
    let settled = json!([{"tag": "s1.1", "result": "settled"}]);
    broker.accept(json!({"results": [keep], "inflight": settled})).await;
    let listed = &broker.hello["reconcile"]["inflight"];
    assert_eq!(listed, &json!([{"tag": "s1.1", "state": "settled", "settle": "ack"}]));
    settling.await.unwrap();
    broker.deliver("s2", "topic/jobs/0", 2).await;
    assert_eq!(message(&mut jobs).await.seq.get(), 2, "the same stream, whatever it is called now");
}

#[tokio::test]
async fn acks_of_one_turn_share_a_request_and_leave_without_being_awaited() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let mut jobs = subscribe(&mut broker, &session, "jobs", "s1").await;
    let mut waiting = Vec::new();
    for seq in 1..=20 {
        broker.deliver("s1", "topic/jobs/0", seq).await;
    }
    let mut received = Vec::new();
    for _ in 1..=20 {
        received.push(message(&mut jobs).await);
    }
    for message in received {
        waiting.push(message.ack());
    }
    drop(waiting.split_off(10));
    let (id, params) = broker.expect("ack").await;
    assert_eq!(params["tags"].as_array().unwrap().len(), 20);
    broker.reply(id, json!({"settled": params["tags"], "stale": []})).await;
    for settling in waiting {
        settling.await.unwrap();
    }
}

#[tokio::test]
async fn a_stale_settlement_says_so_and_what_is_dropped_comes_again() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let mut jobs = subscribe(&mut broker, &session, "jobs", "s1").await;
    broker.deliver("s1", "topic/jobs/0", 1).await;
    let retried = message(&mut jobs).await.retry(Duration::from_millis(250));
    let (id, params) = broker.expect("nack").await;
    assert_eq!(params, json!({"tags": ["s1.1"], "delayMs": 250, "dead": false}));
    broker.reply(id, json!({"settled": [], "stale": [{"tag": "s1.1", "reason": "expired"}]})).await;
    assert_eq!(retried.await, Err(Unsettled::Stale { reason: "expired".into() }));
    broker.deliver("s1", "topic/jobs/0", 1).await;
    drop(message(&mut jobs).await);
    // What is said of messages in hand is heard in order.
    broker.deliver("s1", "topic/jobs/0", 2).await;
    let second = message(&mut jobs).await;
    let progress = second.progress();
    let (id, params) = broker.expect("progress").await;
    broker.reply(id, json!({"settled": params["tags"], "stale": []})).await;
    progress.await.unwrap();
    broker.deliver("s1", "topic/jobs/0", 1).await;
    let again = message(&mut jobs).await.dead("broken");
    let (_, params) = broker.expect("nack").await;
    assert_eq!(params, json!({"tags": ["s1.1"], "dead": true, "reason": "broken"}));
    drop((again, second));
}

#[tokio::test]
async fn who_does_not_read_holds_up_nobody() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let mut unread = subscribe(&mut broker, &session, "unread", "s1").await;
    let mut jobs = subscribe(&mut broker, &session, "jobs", "s2").await;
    // More than the broker ought to send: what is beyond the bound is not taken.
    for seq in 1..=2_000 {
        broker.deliver("s1", "topic/unread/0", seq).await;
    }
    for seq in 1..=100 {
        broker.deliver("s2", "topic/jobs/0", seq).await;
        let read = message(&mut jobs).await;
        let (settled, _) = tokio::join!(read.ack(), broker.acked(1));
        settled.unwrap();
    }
    for seq in 1..=128 {
        assert_eq!(message(&mut unread).await.seq.get(), seq);
    }
    assert!(pending(unread.next()).await, "four times its prefetch, and no more");
}

#[tokio::test]
async fn a_reader_that_settles_by_being_sent_to_is_told_what_it_missed() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let (jobs, params) =
        tokio::join!(async { session.subscribe("jobs").auto_ack().await.unwrap() }, broker.subscribed("s1"));
    assert_eq!(params["ackMode"], "auto");
    let mut jobs = jobs;
    for seq in 1..=1_500 {
        broker.deliver("s1", "topic/jobs/0", seq).await;
    }
    // An answer comes after everything that was said before it.
    let (answered, ()) = tokio::join!(session.ping(), async {
        let (id, _) = broker.expect("ping").await;
        broker.reply(id, json!({"ts": 1})).await;
    });
    answered.unwrap();
    for seq in 1..=1_024 {
        let read = message(&mut jobs).await;
        assert_eq!(read.seq.get(), seq);
        read.ack().await.unwrap();
    }
    broker.deliver("s1", "topic/jobs/0", 1_501).await;
    let Ok(Item::Gap { partition, from, to }) = jobs.next().await else { panic!("no gap") };
    assert_eq!((partition, from, to), (Some(0), 1_025, 1_500));
    assert_eq!(message(&mut jobs).await.seq.get(), 1_501);
}

#[tokio::test]
async fn an_inbox_is_there_when_asked_for_and_has_one_reader_at_a_time() {
    let (_, session) = connect(InboxChoice::None).await;
    assert_eq!(session.inbox().unwrap_err(), InboxError::NotAsked);
    let (mut broker, session) = connect(InboxChoice::Session).await;
    assert_eq!(broker.hello["inbox"], "session");
    assert_eq!(session.member_inbox().unwrap_err(), InboxError::NotAsked);
    let inbox = session.inbox().unwrap();
    assert_eq!(session.inbox().unwrap_err(), InboxError::Taken);
    broker.deliver("inbox", "inbox/s/x", 1).await;
    drop(inbox);
    let mut inbox = session.inbox().unwrap();
    let read = message(&mut inbox).await;
    let (settled, tags) = tokio::join!(read.ack(), broker.acked(1));
    settled.unwrap();
    assert_eq!(tags, ["inbox.1"]);
    let (fetched, ()) = tokio::join!(inbox.fetch(10), async {
        let (id, params) = broker.expect("fetch").await;
        assert_eq!(params, json!({"subId": "inbox", "limit": 10}));
        broker.reply(id, json!({"messages": []})).await;
    });
    assert!(fetched.unwrap().is_empty());
}

#[tokio::test]
async fn a_send_says_what_it_was_told_to_and_is_the_same_after_a_break() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let send = session
        .send(session.key(), "hi")
        .priority(Priority::Now)
        .reply_to("m0")
        .content_type("text/plain")
        .ttl(Duration::from_secs(60))
        .delay(Duration::from_millis(5));
    let id = send.message_id().unwrap().to_string();
    let sending = send.enqueue().await.unwrap();
    let first = broker.hear().await;
    let expected = json!({
        "to": format!("session:{}", session.key()), "body": "hi", "clientMessageId": id, "priority": "now",
        "replyTo": "m0", "contentType": "text/plain", "ttlMs": 60_000, "delayMs": 5, "fallback": "hold",
    });
    assert_eq!(first["params"], expected);
    session.sever().await;
    broker.accept(json!({"results": [], "inflight": []})).await;
    assert_eq!(broker.hear().await, first);
    let accepted = json!({"id": "01HZY0000000000000000000AA", "log": "l", "seq": 7, "duplicate": true});
    broker.reply(first["id"].clone(), accepted).await;
    assert_eq!(sending.await.unwrap().seq.get(), 7);
    let bad = session.send(To::topic("jobs").unwrap(), vec![0u8, 1]).id("run:no").await;
    assert_eq!(bad.unwrap_err().code.as_str(), "bad_request");
}

#[tokio::test]
async fn a_receipt_is_waited_for() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let (receipt, ()) = tokio::join!(
        session.send(session.member(), "hi").id("m1").send_and_wait_delivered(Duration::from_secs(20)),
        async {
            let (id, _) = broker.expect("send").await;
            let name = "01HZY0000000000000000000AA";
            broker.reply(id, json!({"id": name, "log": "l", "seq": 7, "duplicate": false})).await;
            let receipt = json!({"id": name, "clientMessageId": "m1", "state": "dead", "reason": "no"});
            broker.event("receipt", receipt).await;
        }
    );
    assert_eq!(receipt.unwrap().reason.as_deref(), Some("no"));
}

#[tokio::test]
async fn a_publisher_keeps_its_window_full_and_no_fuller() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let jobs = session.publisher("jobs").unwrap().window(4);
    let mut answers = Vec::new();
    for n in 0..4 {
        answers.push(jobs.publish(n.to_string()).enqueue().await.unwrap());
    }
    assert!(pending(jobs.publish("4").enqueue()).await, "the window is full");
    let (id, _) = broker.expect("send").await;
    let accepted = json!({"id": "01HZY0000000000000000000AA", "log": "l", "seq": 1, "duplicate": false});
    broker.reply(id, accepted.clone()).await;
    answers.push(jobs.clone().publish("4").enqueue().await.unwrap());
    for _ in 0..4 {
        let (id, _) = broker.expect("send").await;
        broker.reply(id, accepted.clone()).await;
    }
    for answer in answers {
        answer.await.unwrap();
    }
}

#[tokio::test]
async fn streams_and_settlements_end_with_the_session_although_nobody_reads_its_events() {
    let (mut broker, url) = Broker::start().await;
    let options = Options::new(&url, random_key().unwrap(), "me").unwrap();
    let (connected, ()) = tokio::join!(Session::connect(options), broker.accept(Value::Null));
    let (session, events) = connected.unwrap();
    let mut jobs = subscribe(&mut broker, &session, "jobs", "s1").await;
    broker.deliver("s1", "topic/jobs/0", 1).await;
    for _ in 0..100 {
        broker.event("tick", json!({"ts": 1})).await;
    }
    let read = message(&mut jobs).await;
    session.bye().await;
    broker.expect("bye").await;
    let closing = json!({"code": 1000, "reason": "bye", "retryable": false});
    broker.say(json!({"type": "event", "event": "closing", "data": closing})).await;
    assert_eq!(jobs.next().await.unwrap_err(), SubEnd::ClientShutdown);
    assert_eq!(jobs.next().await.unwrap_err(), SubEnd::ClientShutdown, "every time");
    assert_eq!(read.ack().await, Err(Unsettled::SessionOver));
    assert_eq!(session.ping().await.unwrap_err().code.as_str(), "lease_expired");
    assert!(session.subscribe("jobs").await.is_err());
    drop(events);
}

#[tokio::test]
async fn dropping_a_stream_unsubscribes_and_unsubscribing_waits_for_the_broker() {
    let (mut broker, session) = connect(InboxChoice::None).await;
    let jobs = subscribe(&mut broker, &session, "jobs", "s1").await;
    drop(jobs);
    let (id, params) = broker.expect("unsubscribe").await;
    assert_eq!(params, json!({"subId": "s1"}));
    broker.reply(id, json!({})).await;
    let jobs = subscribe(&mut broker, &session, "jobs", "s2").await;
    broker.deliver("s2", "topic/jobs/0", 1).await;
    let ((), ()) = tokio::join!(jobs.unsubscribe(), async {
        let (id, _) = broker.expect("unsubscribe").await;
        broker.reply(id, json!({})).await;
    });
    // Given up before it was open, it is undone as well.
    let mut opening = Box::pin(std::future::IntoFuture::into_future(session.subscribe("jobs")));
    let (id, _) = tokio::select! {
        asked = broker.expect("subscribe") => asked,
        _ = &mut opening => panic!("nobody has answered"),
    };
    drop(opening);
    broker.reply(id, json!({"subId": "s3", "startSeq": {"0": 1}})).await;
    assert_eq!(broker.expect("unsubscribe").await.1, json!({"subId": "s3"}));
}
