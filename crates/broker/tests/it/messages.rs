//! Messages over real sockets: accepted once, delivered in order, settled, and told of.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::mail::{in_grace, inbox_of, to_member, to_session};
use crate::common::{LONG, Sock, Who, broker, join};

/// A session that has said hello with these params beside the usual ones.
async fn join_with(broker: &Broker, who: &Who, extra: Value) -> Sock {
    let mut sock = Sock::open(broker.addr()).await;
    let mut params = sock.hello_of(who);
    for (key, value) in extra.as_object().unwrap() {
        params[key] = value.clone();
    }
    sock.hello(params).await;
    sock
}

#[tokio::test]
async fn a_message_is_sent_delivered_and_acked_in_both_codecs() {
    let broker = broker(LONG).await;
    let (mut a, a_who) = join(broker.addr(), "a").await;
    for open in [Sock::open(broker.addr()).await, Sock::open_msgpack(broker.addr()).await] {
        let (mut b, b_who) = (open, Who::new("b"));
        b.join(&b_who).await;
        let params = json!({
            "to": to_session(&b_who), "body": "hello \u{0}☃", "clientMessageId": format!("to {}", b_who.id()),
            "meta": {"n": 1, "deep": {"x": [null, true, 1.5]}}, "replyTo": "earlier", "contentType": "text/plain",
            "priority": "now", "key": "k", "ttlMs": 60_000,
        });
        let sent = a.call("send", params.clone()).await;
        assert_eq!(
            (&sent["seq"], &sent["duplicate"], &sent["recipient"]),
            (&json!(1), &json!(false), &json!("online"))
        );
        assert_eq!(sent["log"], inbox_of(&b_who));
        assert!(sent.get("firstSeenAt").is_none() && sent.get("historyAvailable").is_none());
        let got = b.delivery().await;
        assert_eq!(
            (&got["subId"], &got["attempt"], &got["redelivered"]),
            (&json!("inbox"), &json!(1), &json!(false))
        );
        let message = &got["message"];
        for field in ["to", "body", "clientMessageId", "meta", "replyTo", "contentType", "priority", "key"] {
            assert_eq!(message[field], params[field], "{field}");
        }
        assert_eq!(
            (&message["id"], &message["log"], &message["seq"]),
            (&sent["id"], &sent["log"], &sent["seq"])
        );
        assert_eq!(
            (&message["from"]["session"], &message["from"]["name"]),
            (&json!(a_who.id()), &json!("a"))
        );
        assert_eq!(message["kind"], "message");
        let (sent_at, expires_at) =
            (message["sentAt"].as_u64().unwrap(), message["expiresAt"].as_u64().unwrap());
        assert_eq!(expires_at - sent_at, 60_000);
        b.ack(&got["tag"]).await;
        let receipt = a.until("receipt").await;
        assert_eq!(
            receipt,
            json!({"id": sent["id"], "clientMessageId": params["clientMessageId"], "state": "delivered"})
        );
        // A settle that is said again has taken effect already.
        b.ack(&got["tag"]).await;
        b.quiet().await;
    }
}

#[tokio::test]
async fn a_retry_is_known_and_another_message_under_the_same_id_refused() {
    let broker = broker(LONG).await;
    let (mut a, a_who) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let to = to_session(&b_who);
    let first = a.post(&to, "m1", "one").await;
    b.reads("one").await;
    let again = a.post(&to, "m1", "one").await;
    assert_eq!(
        (&again["id"], &again["seq"], &again["duplicate"]),
        (&first["id"], &first["seq"], &json!(true))
    );
    assert_eq!(again["historyAvailable"], true);
    assert!(again["firstSeenAt"].is_u64());
    // What does not make another message of it.
    let same = json!({
        "to": to, "clientMessageId": "m1", "body": "one", "priority": "next", "meta": {}, "key": "other", "ttlMs": 5,
        "delayMs": 1, "fallback": "fail", "contentType": "text/html",
    });
    assert_eq!(a.call("send", same).await["id"], first["id"]);
    // What does.
    let others = [
        json!({"body": "two"}),
        json!({"priority": "low"}),
        json!({"meta": {"x": 1}}),
        json!({"replyTo": "x"}),
        json!({"to": to_session(&a_who)}),
        json!({"to": "topic:jobs"}),
    ];
    for other in others {
        let mut params = json!({"to": to, "clientMessageId": "m1", "body": "one"});
        params.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let error = a.refuses("send", params, "idempotency_key_reused", "clientMessageId").await;
        let (accepted, presented) = (&error["details"]["accepted"], &error["details"]["presented"]);
        assert_eq!((accepted.as_str().unwrap().len(), presented.as_str().unwrap().len()), (16, 16));
        assert_ne!(accepted, presented);
    }
    // An id is its member's, whatever the session; another member's is another.
    let mut sibling = join_with(&broker, &Who::of(&a_who.member, "sibling"), json!({})).await;
    assert_eq!(sibling.post(&to, "m1", "one").await["id"], first["id"]);
    let (mut stranger, _) = join(broker.addr(), "stranger").await;
    let theirs = stranger.post(&to, "m1", "one").await;
    assert_eq!((&theirs["duplicate"], &theirs["seq"]), (&json!(false), &json!(2)));
    b.reads("one").await;
    b.quiet().await;
    // And it is known on the next socket too.
    let past = a.past();
    a.cut();
    let mut a = Sock::open(broker.addr()).await;
    a.resume(&a_who, &past).await;
    assert_eq!(a.post(&to, "m1", "one").await["duplicate"], true);
}

#[tokio::test]
async fn twins_in_flight_are_one_message() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let frame = |id: &str| {
        let params = json!({"to": "topic:t", "clientMessageId": "same", "body": "x"});
        json!({"type": "req", "id": id, "method": "send", "params": params})
    };
    let ids: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    a.send_all(&ids.iter().map(|id| frame(id)).collect::<Vec<_>>()).await;
    let (mut fresh, mut known) = (0, BTreeSet::new());
    for id in &ids {
        let answer = a.response(id).await;
        fresh += usize::from(answer["result"]["duplicate"] == false);
        known.insert(answer["result"]["id"].as_str().unwrap().to_owned());
    }
    assert_eq!((fresh, known.len()), (1, 1));
    assert_eq!(a.call("history", json!({"log": "topic/t/0"})).await["messages"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_inbox_waits_for_its_key_and_a_strangers_key_has_none() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    b.bye().await;
    let sent = a.post(&to_session(&b_who), "m1", "while you were away").await;
    assert_eq!(sent["recipient"], "gone");
    a.refuses(
        "send",
        json!({"to": to_session(&b_who), "clientMessageId": "m2", "body": "x", "fallback": "fail"}),
        "lease_expired",
        "gone",
    )
    .await;
    let mut b = Sock::open(broker.addr()).await;
    b.join(&b_who).await;
    let tag = b.reads("while you were away").await;
    b.ack(&tag).await;
    assert_eq!(a.until("receipt").await["state"], "delivered");
    let nobody = Who::new("nobody");
    a.refuses(
        "send",
        json!({"to": to_session(&nobody), "clientMessageId": "m3", "body": "x"}),
        "no_such_session",
        "ever",
    )
    .await;
    a.refuses(
        "send",
        json!({"to": to_member(&nobody), "clientMessageId": "m3", "body": "x"}),
        "no_such_session",
        "member",
    )
    .await;
    // A refusal leaves the id free.
    assert_eq!(a.post(&to_session(&b_who), "m3", "x").await["duplicate"], false);
}

#[tokio::test]
async fn sessions_of_a_member_compete_for_its_inbox() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let first = Who::new("first");
    let second = Who::of(&first.member, "second");
    let third = Who::of(&first.member, "third");
    let mut one = join_with(&broker, &first, json!({"inbox": "member"})).await;
    let mut two = join_with(&broker, &second, json!({"inbox": "both"})).await;
    let mut none = join_with(&broker, &third, json!({"inbox": "none"})).await;
    for n in 0..20 {
        a.post(&to_member(&first), &format!("m{n}"), &format!("{n}")).await;
    }
    a.post(&to_session(&third), "unread", "x").await;
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        for sock in [&mut one, &mut two] {
            for delivery in sock.stray().await {
                assert_eq!(delivery["subId"], "member");
                assert!(seen.insert(delivery["message"]["seq"].as_u64().unwrap()), "{delivery}");
            }
        }
    }
    a.post(&to_session(&second), "own", "own").await;
    assert_eq!(two.delivery().await["subId"], "inbox");
    none.quiet().await;
}

#[tokio::test]
async fn everybody_reads_a_topic_privately_and_a_crew_shares_it() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let mut private = Vec::new();
    for codec in ["tenure.v1.json", "tenure.v1.msgpack"] {
        let mut sock = crate::common::Dial::to(broker.addr()).offering(codec).open().await.unwrap();
        sock.join(&Who::new("reader")).await;
        let sub = sock.call("subscribe", json!({"topic": "news"})).await;
        assert_eq!(sub["startSeq"], json!({"0": 1}));
        assert_eq!(sock.call("subscribe", json!({"topic": "news"})).await, sub, "idempotent");
        private.push((sock, sub["subId"].clone()));
    }
    let mut crew = Vec::new();
    for _ in 0..3 {
        let (mut sock, _) = join(broker.addr(), "worker").await;
        sock.call("subscribe", json!({"topic": "news", "group": "crew", "prefetch": 4})).await;
        crew.push(sock);
    }
    a.post_many("topic:news", "n", 30).await;
    for (sock, sub) in &mut private {
        for n in 1..=30 {
            let delivery = sock.delivery().await;
            assert_eq!((&delivery["subId"], &delivery["message"]["body"]), (&*sub, &json!(format!("n{n}"))));
            sock.ack(&delivery["tag"]).await;
        }
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 30 {
        for sock in &mut crew {
            let strays = sock.stray().await;
            assert!(strays.len() <= 4, "at most prefetch in hand");
            for delivery in strays {
                assert!(seen.insert(delivery["message"]["seq"].as_u64().unwrap()), "{delivery}");
                sock.ack(&delivery["tag"]).await;
            }
        }
    }
    let list = a.call("topics.list", json!({})).await;
    let topic = &list["topics"][0];
    assert_eq!(
        (&topic["name"], &topic["partitions"], &topic["entries"]),
        (&json!("news"), &json!(1), &json!(30))
    );
    let group = &topic["groups"][0];
    assert_eq!((&group["name"], &group["depth"], &group["members"]), (&json!("crew"), &json!(0), &json!(3)));
}

#[tokio::test]
async fn a_reader_begins_where_it_says() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    a.post_many("topic:t", "m", 600).await;
    let begins = [(json!("earliest"), 1), (json!(1), 1), (json!(0), 1), (json!(250), 250), (json!(600), 600)];
    for (from, first) in begins {
        let (mut sock, _) = join(broker.addr(), "reader").await;
        let sub = sock.call("subscribe", json!({"topic": "t", "from": from})).await;
        assert_eq!(sub["startSeq"]["0"], first, "{from}");
        for seq in first..=600 {
            let delivery = sock.delivery().await;
            assert_eq!(delivery["message"]["seq"], seq, "in order, page after page");
            if seq % 16 == 0 {
                sock.ack(&delivery["tag"]).await;
            } else {
                sock.request("ack", json!({"tags": [delivery["tag"]]})).await;
                loop {
                    let frame = sock.frame().await;
                    if frame["type"] == "res" {
                        break;
                    }
                    sock.keep(frame);
                }
            }
        }
        sock.bye().await;
    }
    for from in [json!("new"), json!(601), json!(null)] {
        let (mut sock, _) = join(broker.addr(), "reader").await;
        assert_eq!(sock.call("subscribe", json!({"topic": "t", "from": from})).await["startSeq"]["0"], 601);
        sock.quiet().await;
    }
}

#[tokio::test]
async fn what_is_given_back_comes_again_and_in_the_end_goes_to_the_dead_letters() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let (to, log) = (to_session(&b_who), inbox_of(&b_who));
    a.post(&to, "m1", "one").await;
    for attempt in 1..=16 {
        let delivery = b.delivery().await;
        assert_eq!((&delivery["attempt"], &delivery["redelivered"]), (&json!(attempt), &json!(attempt > 1)));
        let nacked = b.call("nack", json!({"tags": [delivery["tag"]], "reason": "not today"})).await;
        assert_eq!(nacked["settled"], json!([delivery["tag"]]));
    }
    let receipt = a.until("receipt").await;
    assert_eq!((&receipt["state"], &receipt["reason"]), (&json!("dead"), &json!("max_attempts")));
    let dead = b.call("dead.list", json!({"log": log})).await;
    let letter = &dead["letters"][0];
    assert_eq!((&letter["reason"], &letter["attempts"]), (&json!("max_attempts"), &json!(16)));
    assert_eq!(letter["message"]["body"], "one");
    let status = a.call("send.status", json!({"clientMessageIds": ["m1", "never"]})).await;
    assert_eq!(
        (&status["statuses"][0]["state"], &status["statuses"][0]["reason"]),
        (&json!("dead"), &json!("max_attempts"))
    );
    assert_eq!(status["statuses"][0]["fingerprintPrefix"].as_str().map(str::len), Some(16));
    assert_eq!(status["statuses"][1], json!({"clientMessageId": "never", "state": "unknown"}));
    // Taken out again it may fail as often as a new one.
    let retried = b.call("dead.retry", json!({"log": log, "seqs": [1, 7]})).await;
    assert_eq!(retried, json!({"retried": [1], "missing": [7]}));
    let delivery = b.delivery().await;
    assert_eq!((&delivery["attempt"], &delivery["redelivered"]), (&json!(17), &json!(true)));
    // A reader that knows better than to try again says so.
    b.call("nack", json!({"tags": [delivery["tag"]], "dead": true, "reason": "poison"})).await;
    assert_eq!(a.until("receipt").await["reason"], "poison");
    assert_eq!(b.call("dead.list", json!({"log": log})).await["letters"][0]["reason"], "poison");
    assert_eq!(b.call("dead.drop", json!({"log": log, "seqs": [1, 2]})).await["dropped"], 1);
    assert_eq!(b.call("dead.list", json!({"log": log})).await["letters"], json!([]));
    b.quiet().await;
}

#[tokio::test]
async fn a_delay_is_waited_for_and_nothing_else_waits_for_it() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let to = to_session(&b_who);
    a.call("send", json!({"to": to, "clientMessageId": "late", "body": "late", "delayMs": 300})).await;
    a.post(&to, "m1", "one").await;
    let tag = b.reads("one").await;
    b.call("nack", json!({"tags": [tag], "delayMs": 150})).await;
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let delivery = b.delivery().await;
        bodies.push((delivery["message"]["body"].clone(), delivery["attempt"].clone()));
    }
    assert_eq!(bodies, [(json!("one"), json!(2)), (json!("late"), json!(1))]);
}

#[tokio::test]
async fn what_nobody_reads_in_time_expires() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    b.call("profile.set", json!({"status": "dnd"})).await;
    let sent = a
        .call("send", json!({"to": to_session(&b_who), "clientMessageId": "m1", "body": "x", "ttlMs": 1}))
        .await;
    a.post(&to_session(&b_who), "m2", "y").await;
    let sent_at = crate::common::keys::unix_ms();
    while a.call("ping", json!({})).await["ts"].as_u64().unwrap() <= sent_at + 1 {}
    // Whoever asks for it later does not get it, and its sender is told.
    loop {
        let fetched = b.call("fetch", json!({"subId": "inbox", "limit": 10})).await;
        if let Some(delivery) = fetched["messages"].get(0) {
            assert_eq!(delivery["message"]["body"], "y");
            break;
        }
    }
    let receipt = a.until("receipt").await;
    assert_eq!(
        receipt,
        json!({"id": sent["id"], "clientMessageId": "m1", "state": "expired", "reason": "expired"})
    );
    assert_eq!(
        b.call("dead.list", json!({"log": inbox_of(&b_who)})).await["letters"][0]["reason"],
        "expired"
    );
    let status = a.call("send.status", json!({"clientMessageIds": ["m1"]})).await;
    assert_eq!(status["statuses"][0]["state"], "expired");
}

#[tokio::test]
async fn a_status_closes_lanes_and_fetch_reads_any() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    b.call("profile.set", json!({"status": "working"})).await;
    for priority in ["low", "next", "now"] {
        let params = json!({"to": to_session(&b_who), "clientMessageId": priority, "body": priority, "priority": priority});
        a.call("send", params).await;
    }
    b.reads("now").await;
    b.quiet().await;
    let fetched = b.call("fetch", json!({"subId": "inbox", "limit": 1})).await;
    assert_eq!(fetched["messages"][0]["message"]["body"], "next", "{fetched}");
    assert_eq!(fetched["messages"].as_array().unwrap().len(), 1);
    b.quiet().await;
    b.call("profile.set", json!({"status": "idle"})).await;
    b.reads("low").await;
    assert_eq!(b.call("fetch", json!({"subId": "inbox", "limit": 256})).await["messages"], json!([]));
    b.ack(&fetched["messages"][0]["tag"]).await;
    assert_eq!(a.until("receipt").await["clientMessageId"], "next");
}

#[tokio::test]
async fn at_most_prefetch_is_in_hand() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let sub = b.call("subscribe", json!({"topic": "t", "prefetch": 2})).await["subId"].clone();
    a.post_many("topic:t", "m", 5).await;
    let (first, second) = (b.reads("m1").await, b.reads("m2").await);
    b.quiet().await;
    b.ack(&second).await;
    let third = b.reads("m3").await;
    b.quiet().await;
    // Fetching goes beyond it, and counts.
    let fetched = b.call("fetch", json!({"subId": sub, "limit": 1})).await;
    assert_eq!(fetched["messages"][0]["message"]["body"], "m4");
    b.ack(&first).await;
    b.quiet().await;
    b.ack(&third).await;
    b.reads("m5").await;
    // Of an inbox it is 32 in each lane.
    a.post_many(&to_session(&b_who), "i", 40).await;
    let inbox = b.deliveries(32).await;
    b.quiet().await;
    let tags: Vec<&Value> = inbox.iter().map(|delivery| &delivery["tag"]).collect();
    assert_eq!(b.call("ack", json!({"tags": tags})).await["stale"], json!([]));
    assert_eq!(b.deliveries(8).await[7]["message"]["body"], "i40");
}

#[tokio::test]
async fn history_is_the_log_itself_in_pages() {
    let broker = broker(LONG).await;
    let (mut a, a_who) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    a.post_many("topic:t", "m", 300).await;
    let (mut from, mut all) = (json!(null), Vec::new());
    loop {
        let page = b.call("history", json!({"log": "topic/t/0", "from": from})).await;
        all.extend(page["messages"].as_array().unwrap().clone());
        match page.get("next") {
            Some(next) => from = next.clone(),
            None => break,
        }
    }
    let seqs: Vec<u64> = all.iter().map(|message| message["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=300).collect::<Vec<_>>());
    assert_eq!(b.call("history", json!({"log": "topic/t/0", "from": 301})).await, json!({"messages": []}));
    let two = b.call("history", json!({"log": "topic/t/0", "from": 299, "limit": 1})).await;
    assert_eq!((&two["messages"][0]["body"], &two["next"]), (&json!("m299"), &json!(300)));
    // An inbox is its owner's, all lanes of it, settled or not.
    for priority in ["now", "low"] {
        a.call("send", json!({"to": to_session(&b_who), "clientMessageId": priority, "body": priority, "priority": priority})).await;
    }
    let tag = b.reads("now").await;
    b.ack(&tag).await;
    let own = b.call("history", json!({"log": inbox_of(&b_who)})).await;
    assert_eq!(own["messages"].as_array().unwrap().len(), 2);
    a.refuses("history", json!({"log": inbox_of(&b_who)}), "forbidden", "owner").await;
    assert_eq!(a.call("history", json!({"log": inbox_of(&a_who)})).await, json!({"messages": []}));
}

#[tokio::test]
async fn what_was_not_settled_when_the_socket_broke_comes_again_under_its_tag() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let sub = b.call("subscribe", json!({"topic": "t"})).await["subId"].clone();
    let crew = b.call("subscribe", json!({"topic": "t", "group": "g"})).await["subId"].clone();
    a.post(&to_session(&b_who), "m1", "one").await;
    a.post("topic:t", "m2", "two").await;
    let before = b.deliveries(3).await;
    let past = b.past();
    b.cut();
    in_grace(&mut a, &b_who).await;
    a.post("topic:t", "m3", "three").await;
    for round in 0..3 {
        let mut again = Sock::open(broker.addr()).await;
        let back = again.resume(&b_who, &past).await;
        assert_eq!(
            (&back["resume"]["outcome"], &back["events"]["replay"]),
            (&json!("resumed"), &json!("complete"))
        );
        let got = again.deliveries(5).await;
        let tag = |sub: &Value, seq: u64, all: &[Value]| {
            let found = all.iter().find(|d| d["subId"] == *sub && d["message"]["seq"] == seq);
            found.unwrap_or_else(|| panic!("{sub} {seq} in {all:?}")).clone()
        };
        for delivery in &before {
            let same = tag(&delivery["subId"], delivery["message"]["seq"].as_u64().unwrap(), &got);
            assert_eq!(
                (&same["tag"], &same["attempt"], &same["redelivered"]),
                (&delivery["tag"], &json!(1), &json!(true))
            );
        }
        for sub in [&sub, &crew] {
            let three =
                got.iter().position(|d| d["subId"] == *sub && d["message"]["body"] == "three").unwrap();
            let two = got.iter().position(|d| d["subId"] == *sub && d["message"]["body"] == "two").unwrap();
            assert!(two < three, "ahead of newer ones");
            assert_eq!(got[three]["redelivered"], round > 0);
        }
        again.quiet().await;
        if round == 2 {
            // Its old tag is good on any socket.
            again.ack(&before[0]["tag"]).await;
        }
    }
}

#[tokio::test]
async fn a_process_without_token_or_list_is_a_new_one() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    b.call("subscribe", json!({"topic": "t"})).await;
    b.call("subscribe", json!({"topic": "t", "group": "g"})).await;
    let (mut c, _) = join(broker.addr(), "c").await;
    a.post("topic:t", "m1", "one").await;
    a.post(&to_session(&b_who), "m2", "two").await;
    b.deliveries(3).await;
    c.call("subscribe", json!({"topic": "t", "group": "g"})).await;
    c.quiet().await;
    b.cut();
    let mut b = Sock::open(broker.addr()).await;
    let back = b.join(&b_who).await;
    assert_eq!((&back["lease"], &back["snapshot"]["subscriptions"]), (&json!("kept"), &json!([])));
    // The crew's entry is free at once; the inbox is still the session's own.
    let delivery = c.delivery().await;
    assert_eq!(
        (&delivery["message"]["body"], &delivery["attempt"], &delivery["redelivered"]),
        (&json!("one"), &json!(2), &json!(true))
    );
    b.reads("two").await;
    b.quiet().await;
}

#[tokio::test]
async fn after_a_break_both_sides_compare_what_they_have() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let kept = b.call("subscribe", json!({"topic": "kept"})).await["subId"].clone();
    let unknown = b.call("subscribe", json!({"topic": "unknown"})).await["subId"].clone();
    let differs = b.call("subscribe", json!({"topic": "differs", "prefetch": 7})).await["subId"].clone();
    for n in 1..=4 {
        a.post("topic:kept", &format!("m{n}"), &format!("{n}")).await;
    }
    let got = b.deliveries(4).await;
    let past = b.past();
    b.cut();
    let mut b = Sock::open(broker.addr()).await;
    let mut params = b.hello_of(&b_who);
    params["reconcile"] = json!({
        "subscriptions": [
            {"subId": "mine", "topic": "kept", "ackMode": "manual", "prefetch": 32, "positions": {"0": 4}},
            {"subId": differs, "topic": "differs", "ackMode": "manual", "prefetch": 8},
            {"subId": "lost", "topic": "lost"},
        ],
        "inflight": [
            {"tag": got[0]["tag"], "state": "settled", "settle": "ack"},
            {"tag": got[1]["tag"], "state": "processing"},
            {"tag": got[2]["tag"], "state": "settled", "settle": "nack"},
            {"tag": "nonsense", "state": "processing"},
        ],
    });
    let back = b.resume_with(params, &past).await;
    let verdicts = back["reconcile"]["results"].as_array().unwrap();
    let verdict = |name: &str, value: &Value| {
        verdicts
            .iter()
            .find(|v| v[name] == *value)
            .unwrap_or_else(|| panic!("{name} {value} in {verdicts:?}"))
    };
    assert_eq!(
        (&verdict("client", &json!("mine"))["action"], &verdict("client", &json!("mine"))["subId"]),
        (&json!("keep"), &kept)
    );
    assert_eq!(verdict("client", &differs)["action"], "close_client_side");
    assert_eq!(verdict("client", &json!("lost"))["action"], "close_client_side", "the token was good");
    assert_eq!(verdict("server", &unknown)["action"], "close_server_side");
    assert!(verdicts.iter().all(|v| v["reason"].is_string()));
    let results: Vec<&Value> =
        back["reconcile"]["inflight"].as_array().unwrap().iter().map(|v| &v["result"]).collect();
    assert_eq!(results, [&json!("settled"), &json!("kept"), &json!("settled"), &json!("requeued")]);
    // What was given back comes again as another attempt, what was not listed under its tag.
    let mut again = b.deliveries(2).await;
    again.sort_by_key(|delivery| delivery["message"]["seq"].as_u64());
    assert_eq!((&again[0]["message"]["body"], &again[0]["attempt"]), (&json!("3"), &json!(2)));
    assert_eq!((&again[1]["message"]["body"], &again[1]["tag"]), (&json!("4"), &got[3]["tag"]));
    b.quiet().await;
    b.ack(&got[1]["tag"]).await;
    a.post("topic:unknown", "u", "u").await;
    a.post("topic:differs", "d", "d").await;
    b.quiet().await;
}

#[tokio::test]
async fn without_a_good_token_the_client_makes_its_subscriptions_again_or_has_them_made() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    a.post_many("topic:t", "m", 5).await;
    let mine = json!([{"subId": "mine", "topic": "t", "positions": {"0": 3}}]);
    let who = Who::new("b");
    let asks = json!({"reconcile": {"subscriptions": mine}});
    let mut b = join_with(&broker, &who, asks).await;
    assert_eq!(b.result["reconcile"]["results"][0]["action"], "recreate_client_side");
    b.quiet().await;
    b.bye().await;
    let asks = json!({"reconcile": {"policy": "restore_client", "subscriptions": mine}});
    let mut b = join_with(&broker, &who, asks).await;
    let verdict = &b.result["reconcile"]["results"][0];
    assert_eq!((&verdict["action"], &verdict["subId"]), (&json!("keep"), &json!("mine")));
    let delivery = b.delivery().await;
    assert_eq!((&delivery["subId"], &delivery["message"]["body"]), (&json!("mine"), &json!("m4")));
    b.reads("m5").await;
}

#[tokio::test]
async fn deliveries_wait_for_a_list_that_was_promised() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    a.post(&to_session(&b_who), "m1", "one").await;
    a.post(&to_session(&b_who), "m2", "two").await;
    let got = b.deliveries(2).await;
    let past = b.past();
    b.cut();
    let mut b = Sock::open(broker.addr()).await;
    let mut params = b.hello_of(&b_who);
    params["reconcile"] = json!("later");
    let back = b.resume_with(params, &past).await;
    assert!(back.get("reconcile").is_none());
    b.quiet().await;
    let result =
        b.call("reconcile", json!({"inflight": [{"tag": got[0]["tag"], "state": "processing"}]})).await;
    assert_eq!(result["inflight"], json!([{"tag": got[0]["tag"], "result": "kept"}]));
    assert_eq!(b.reads("two").await, got[1]["tag"]);
    b.quiet().await;
}

#[tokio::test]
async fn without_grace_a_crews_entries_go_back_when_the_socket_breaks() {
    let mut config = Config::ephemeral(LONG);
    config.mesh.reconnect_grace_ms = 0;
    let broker = Broker::start(config).await.unwrap();
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    b.call("subscribe", json!({"topic": "t", "group": "g"})).await;
    a.post("topic:t", "m1", "one").await;
    let old = b.reads("one").await;
    let (mut c, _) = join(broker.addr(), "c").await;
    c.call("subscribe", json!({"topic": "t", "group": "g"})).await;
    c.quiet().await;
    let past = b.past();
    b.cut();
    let delivery = c.delivery().await;
    assert_eq!((&delivery["attempt"], &delivery["redelivered"]), (&json!(2), &json!(true)));
    let mut b = Sock::open(broker.addr()).await;
    b.resume(&b_who, &past).await;
    b.quiet().await;
    let late = b.call("ack", json!({"tags": [old]})).await;
    assert_eq!(late, json!({"settled": [], "stale": [{"tag": old, "reason": "requeued"}]}));
    c.ack(&delivery["tag"]).await;
}

#[tokio::test]
async fn who_has_left_a_topic_gets_nothing_more_of_it() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, _) = join(broker.addr(), "b").await;
    let (mut c, _) = join(broker.addr(), "c").await;
    let own = b.call("subscribe", json!({"topic": "t"})).await["subId"].clone();
    let crew = b.call("subscribe", json!({"topic": "t", "group": "g"})).await["subId"].clone();
    c.call("subscribe", json!({"topic": "t", "group": "g", "prefetch": 1})).await;
    a.post_many("topic:t", "m", 8).await;
    let in_hand = b.delivery().await;
    for sub in [&own, &crew, &crew] {
        assert_eq!(b.call("unsubscribe", json!({"subId": sub})).await, json!({}), "also when it is gone");
    }
    b.stray().await;
    a.post("topic:t", "last", "last").await;
    b.quiet().await;
    let stale = b.call("ack", json!({"tags": [in_hand["tag"]]})).await;
    if in_hand["subId"] == own {
        assert_eq!(stale["stale"][0]["reason"], "no_such_group");
    }
    // The others work on, through all of it.
    let mut seen = BTreeSet::new();
    while seen.len() < 9 {
        let delivery = c.delivery().await;
        seen.insert(delivery["message"]["seq"].as_u64().unwrap());
        c.ack(&delivery["tag"]).await;
        if in_hand["subId"] == crew && stale["settled"] == json!([in_hand["tag"]]) {
            seen.insert(in_hand["message"]["seq"].as_u64().unwrap());
        }
    }
}

#[tokio::test]
async fn an_automatic_ack_counts_what_was_written() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let sub = b
        .call("subscribe", json!({"topic": "t", "group": "g", "ackMode": "auto", "prefetch": 1}))
        .await["subId"]
        .clone();
    a.post_many("topic:t", "m", 10).await;
    for n in 1..=10 {
        b.reads(&format!("m{n}")).await;
    }
    b.refuses("fetch", json!({"subId": sub, "limit": 1}), "bad_request", "manual").await;
    loop {
        let list = a.call("topics.list", json!({})).await;
        if list["topics"][0]["groups"][0]["depth"] == 0 {
            break;
        }
    }
    let past = b.past();
    b.cut();
    let mut b = Sock::open(broker.addr()).await;
    b.resume(&b_who, &past).await;
    b.quiet().await;
}

#[tokio::test]
async fn a_topic_may_have_partitions_and_a_key_stays_in_its_own() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, _) = join(broker.addr(), "b").await;
    let make = json!({"name": "wide", "partitions": 4});
    assert_eq!(a.call("topics.create", make.clone()).await, json!({}));
    assert_eq!(a.call("topics.create", make).await, json!({}), "the same again");
    a.refuses("topics.create", json!({"name": "wide", "partitions": 5}), "conflict", "exists").await;
    let sub = b.call("subscribe", json!({"topic": "wide", "prefetch": 100})).await;
    assert_eq!(sub["startSeq"], json!({"0": 1, "1": 1, "2": 1, "3": 1}));
    let (mut c, _) = join(broker.addr(), "c").await;
    let one = c.call("subscribe", json!({"topic": "wide", "partition": 2})).await;
    assert_eq!(one["startSeq"], json!({"2": 1}));
    let mut homes = std::collections::BTreeMap::new();
    for n in 0..40 {
        let key = format!("k{}", n % 8);
        let sent = a
            .call(
                "send",
                json!({"to": "topic:wide", "clientMessageId": format!("m{n}"), "body": "x", "key": key}),
            )
            .await;
        let home = homes.entry(key).or_insert_with(|| sent["log"].clone());
        assert_eq!(sent["log"], *home);
    }
    let spread: BTreeSet<String> = homes.values().map(Value::to_string).collect();
    assert!(spread.len() > 1, "{spread:?}");
    let mut turns = BTreeSet::new();
    for n in 0..4 {
        let sent = a.post("topic:wide", &format!("turn{n}"), "x").await;
        turns.insert(sent["log"].as_str().unwrap().to_owned());
    }
    assert_eq!(turns.len(), 4, "without a key partitions take turns");
    let all = b.deliveries(44).await;
    let mut last = std::collections::BTreeMap::new();
    for delivery in &all {
        let (log, seq) =
            (delivery["message"]["log"].to_string(), delivery["message"]["seq"].as_u64().unwrap());
        assert_eq!(last.insert(log, seq).unwrap_or(0) + 1, seq, "in order within a partition");
    }
    assert_eq!(c.delivery().await["message"]["log"], "topic/wide/2");
}

#[tokio::test]
async fn what_a_gone_session_leaves_moves_to_its_member_or_fails() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let sibling = Who::of(&b_who.member, "sibling");
    let mut s = join_with(&broker, &sibling, json!({"inbox": "member"})).await;
    for fallback in ["hold", "member", "fail"] {
        let params = json!({"to": to_session(&b_who), "clientMessageId": fallback, "body": fallback, "fallback": fallback});
        a.call("send", params).await;
    }
    b.deliveries(3).await;
    b.bye().await;
    let moved = s.delivery().await;
    assert_eq!((&moved["subId"], &moved["message"]["body"]), (&json!("member"), &json!("member")));
    let receipt = a.until("receipt").await;
    assert_eq!(
        (&receipt["clientMessageId"], &receipt["state"], &receipt["reason"]),
        (&json!("fail"), &json!("dead"), &json!("lease_expired"))
    );
    // Later ones go straight there.
    let straight =
        json!({"to": to_session(&b_who), "clientMessageId": "m2", "body": "straight", "fallback": "member"});
    assert_eq!(a.call("send", straight).await["log"], moved["message"]["log"]);
    s.reads("straight").await;
    // Who comes back finds what was held, and only that.
    let mut b = Sock::open(broker.addr()).await;
    b.join(&b_who).await;
    let tag = b.reads("hold").await;
    b.quiet().await;
    b.ack(&tag).await;
    s.ack(&moved["tag"]).await;
    assert_eq!(
        a.call("send.status", json!({"clientMessageIds": ["hold", "member", "fail"]})).await["statuses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["state"].clone())
            .collect::<Vec<_>>(),
        ["delivered", "delivered", "dead"]
    );
}

#[tokio::test]
async fn a_post_reaches_many_readers() {
    let broker = broker(LONG).await;
    let mut readers = Vec::new();
    for n in 0..60 {
        let codec = if n % 2 == 0 { "tenure.v1.json" } else { "tenure.v1.msgpack" };
        let mut sock = crate::common::Dial::to(broker.addr()).offering(codec).open().await.unwrap();
        sock.join(&Who::new("reader")).await;
        sock.call("subscribe", json!({"topic": "t"})).await;
        readers.push(sock);
    }
    let (mut a, _) = join(broker.addr(), "a").await;
    a.post_many("topic:t", "m", 100).await;
    for sock in &mut readers {
        for batch in 0..4 {
            let got = sock.deliveries(if batch < 3 { 32 } else { 4 }).await;
            let tags: Vec<&Value> = got.iter().map(|delivery| &delivery["tag"]).collect();
            assert_eq!(got[0]["message"]["body"], format!("m{}", batch * 32 + 1));
            assert_eq!(sock.call("ack", json!({"tags": tags})).await["stale"], json!([]));
        }
    }
}

#[tokio::test]
async fn progress_takes_effect_and_settles_nothing() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    a.post(&to_session(&b_who), "m1", "one").await;
    let tag = b.reads("one").await;
    assert_eq!(b.call("progress", json!({"tags": [tag]})).await, json!({"settled": [tag], "stale": []}));
    assert_eq!(
        a.call("send.status", json!({"clientMessageIds": ["m1"]})).await["statuses"][0]["state"],
        "accepted"
    );
    b.ack(&tag).await;
    assert_eq!(
        a.call("send.status", json!({"clientMessageIds": ["m1"]})).await["statuses"][0]["state"],
        "delivered"
    );
}

#[tokio::test]
async fn bytes_are_bytes_and_everything_is_counted() {
    let broker = broker(LONG).await;
    let mut a = Sock::open_msgpack(broker.addr()).await;
    a.join(&Who::new("a")).await;
    let (mut b, b_who) = join(broker.addr(), "b").await;
    let bytes = json!({"to": to_session(&b_who), "clientMessageId": "m1", "bodyB64": "AP/+gA=="});
    a.call("send", bytes.clone()).await;
    assert_eq!(a.call("send", bytes).await["duplicate"], true);
    assert_eq!(
        a.fails("send", json!({"to": "topic:t", "clientMessageId": "m1", "body": ""})).await,
        "idempotency_key_reused"
    );
    let delivery = b.delivery().await;
    assert_eq!(delivery["message"]["bodyB64"], "AP/+gA==");
    assert!(delivery["message"].get("body").is_none());
    b.ack(&delivery["tag"]).await;
    b.call("ack", json!({"tags": ["nonsense"]})).await;
    a.until("receipt").await;
    let metrics = crate::common::http::get(broker.addr(), "/metrics").await.body;
    for line in [
        "tenure_messages_accepted_total 1",
        "tenure_message_bodies_accepted_bytes_total 4",
        "tenure_messages_duplicate_total 1",
        "tenure_messages_conflicting_total 1",
        "tenure_deliveries_total 1",
        "tenure_redeliveries_total 0",
        "tenure_settles_total 1",
        "tenure_stale_settles_total 1",
        "tenure_events_total{kind=\"accept_conflict\"} 1",
        "tenure_events_total{kind=\"late_settle_rejected\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
    assert!(!metrics.contains(&b_who.id()), "no session is a label");
}

/// Of 200 questions right behind their sends, up to 121 were answered `unknown`.
#[tokio::test]
async fn a_status_behind_its_send_knows_of_it() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let mut frames = Vec::new();
    for n in 0..200 {
        let id = format!("m{n}");
        let send = json!({"to": "topic:t", "body": "x", "clientMessageId": id});
        frames.push(json!({"type": "req", "id": format!("s{n}"), "method": "send", "params": send}));
        let ask = json!({"clientMessageIds": [id]});
        frames.push(json!({"type": "req", "id": format!("q{n}"), "method": "send.status", "params": ask}));
    }
    a.send_all(&frames).await;
    // Answers come in any order.
    let mut asked = 200;
    while asked > 0 {
        let frame = a.frame().await;
        if frame["id"].as_str().is_some_and(|id| id.starts_with('q')) {
            asked -= 1;
            assert_eq!(frame["result"]["statuses"][0]["state"], "accepted", "{frame}");
        }
    }
}
