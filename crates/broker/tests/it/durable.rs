//! Messages outlive the broker that accepted them: restarts on one store.

use std::path::Path;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config, StoreChoice};

use super::drain::sees_shutdown;
use crate::common::mail::{inbox_of, to_session};
use crate::common::sock::Past;
use crate::common::{LONG, Sock, Who};

pub(crate) async fn start(dir: &Path) -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.store = StoreChoice::Sqlite(dir.to_owned());
    Broker::start(config).await.expect("start")
}

pub(crate) async fn enter(broker: &Broker, who: &Who) -> Sock {
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(who).await;
    sock
}

/// Stops a broker whose only sockets these are; what each leaves to the next.
pub(crate) async fn stop(broker: Broker, socks: Vec<Sock>) -> Vec<Past> {
    let past = socks.iter().map(Sock::past).collect();
    let stopping = tokio::spawn(broker.stop("upgrade"));
    for mut sock in socks {
        sees_shutdown(&mut sock, "upgrade").await;
    }
    stopping.await.expect("stopped");
    past
}

pub(crate) async fn back(broker: &Broker, who: &Who, past: &Past) -> Sock {
    let mut sock = Sock::open(broker.addr()).await;
    let result = sock.resume(who, past).await;
    assert_eq!(result["resume"]["outcome"], "resumed");
    sock
}

#[tokio::test]
async fn what_was_accepted_is_there_after_a_restart_and_known_as_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who) = (Who::new("a"), Who::new("b"));
    let broker = start(dir.path()).await;
    let (mut a, mut b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    b.bye().await;
    let sent = a.post(&to_session(&b_who), "m1", "kept").await;
    a.post_many("topic:t", "n", 200).await;
    stop(broker, vec![a]).await;

    let broker = start(dir.path()).await;
    let (mut a, mut b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    let again = a.post(&to_session(&b_who), "m1", "kept").await;
    assert_eq!((&again["id"], &again["seq"], &again["duplicate"]), (&sent["id"], &sent["seq"], &json!(true)));
    let other = json!({"to": to_session(&b_who), "clientMessageId": "m1", "body": "another"});
    a.refuses("send", other, "idempotency_key_reused", "another message").await;
    let tag = b.reads("kept").await;
    b.ack(&tag).await;
    assert_eq!(a.until("receipt").await["id"], sent["id"]);
    assert_eq!(a.post("topic:t", "n201", "n201").await["seq"], 201, "numbers go on");
    b.call("subscribe", json!({"topic": "t", "from": "earliest"})).await;
    for n in 1..=201 {
        let tag = b.reads(&format!("n{n}")).await;
        b.ack(&tag).await;
    }
    let page = b.call("history", json!({"log": inbox_of(&b_who)})).await;
    assert_eq!(page["messages"][0]["id"], sent["id"]);
}

#[tokio::test]
async fn what_was_in_hand_is_still_in_that_hand_and_subscriptions_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who, c_who) = (Who::new("a"), Who::new("b"), Who::new("c"));
    let broker = start(dir.path()).await;
    let (mut a, mut b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    let mut c = enter(&broker, &c_who).await;
    let crew = b.call("subscribe", json!({"topic": "t", "group": "g", "prefetch": 3})).await["subId"].clone();
    let own = b.call("subscribe", json!({"topic": "own"})).await["subId"].clone();
    a.post_many("topic:t", "m", 5).await;
    a.post("topic:own", "o1", "o1").await;
    a.post(&to_session(&b_who), "i1", "i1").await;
    let got = b.deliveries(5).await;
    let of =
        |sub: &Value, all: &[Value]| all.iter().filter(|d| d["subId"] == *sub).cloned().collect::<Vec<_>>();
    let (in_crew, in_own, in_box) = (of(&crew, &got), of(&own, &got), of(&json!("inbox"), &got));
    assert_eq!((in_crew.len(), in_own.len(), in_box.len()), (3, 1, 1));
    b.ack(&in_crew[0]["tag"]).await;
    let next = b.delivery().await;
    assert_eq!(next["message"]["body"], "m4");
    c.call("subscribe", json!({"topic": "t", "group": "g", "prefetch": 1})).await;
    let taken = c.reads("m5").await;
    let past = stop(broker, vec![a, b, c]).await;

    let broker = start(dir.path()).await;
    let mut a = back(&broker, &a_who, &past[0]).await;
    // Nobody gets what another has in hand.
    let mut c = back(&broker, &c_who, &past[2]).await;
    assert_eq!(c.reads("m5").await, taken, "under its tag");
    c.ack(&taken).await;
    c.quiet().await;
    let mut b = back(&broker, &b_who, &past[1]).await;
    let listed: Vec<&Value> =
        b.result["snapshot"]["subscriptions"].as_array().unwrap().iter().map(|s| &s["subId"]).collect();
    assert!(listed.contains(&&crew) && listed.contains(&&own), "{listed:?}");
    let again = b.deliveries(5).await;
    let tags: Vec<Value> = of(&crew, &again).iter().map(|d| d["tag"].clone()).collect();
    assert_eq!(tags, [in_crew[1]["tag"].clone(), in_crew[2]["tag"].clone(), next["tag"].clone()]);
    assert_eq!(of(&json!("inbox"), &again)[0]["tag"], in_box[0]["tag"]);
    assert_eq!(of(&own, &again)[0]["message"]["body"], "o1");
    b.quiet().await;
    for delivery in &again {
        b.ack(&delivery["tag"]).await;
    }
    assert_eq!(a.until("receipt").await["clientMessageId"], "i1");
    a.post("topic:own", "o2", "o2").await;
    b.reads("o2").await;
    let list = a.call("topics.list", json!({})).await;
    let group =
        list["topics"].as_array().unwrap().iter().find(|t| t["name"] == "t").unwrap()["groups"][0].clone();
    assert_eq!((&group["depth"], &group["members"]), (&json!(0), &json!(2)), "{list}");
}

#[tokio::test]
async fn settled_stays_settled_and_dead_stays_dead() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who) = (Who::new("a"), Who::new("b"));
    let broker = start(dir.path()).await;
    let (mut a, mut b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    b.call("subscribe", json!({"topic": "t"})).await;
    for n in 1..=3 {
        a.post(&to_session(&b_who), &format!("m{n}"), &format!("{n}")).await;
        a.post("topic:t", &format!("t{n}"), &format!("t{n}")).await;
    }
    let mut tags = Vec::new();
    for delivery in b.deliveries(6).await {
        if delivery["message"]["body"] == "2" {
            b.call("nack", json!({"tags": [delivery["tag"]], "dead": true, "reason": "poison"})).await;
        } else if delivery["message"]["body"] != "t3" {
            b.ack(&delivery["tag"]).await;
        }
        tags.push(delivery["tag"].clone());
    }
    let past = stop(broker, vec![a, b]).await;

    let broker = start(dir.path()).await;
    let mut a = back(&broker, &a_who, &past[0]).await;
    let mut b = back(&broker, &b_who, &past[1]).await;
    // A private reader's place is told to the store when the broker stops in good order.
    b.reads("t3").await;
    b.quiet().await;
    let ids = json!({"clientMessageIds": ["m1", "m2", "m3", "t1"]});
    let states: Vec<Value> = a.call("send.status", ids).await["statuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["state"].clone())
        .collect();
    assert_eq!(states, ["delivered", "dead", "delivered", "accepted"]);
    let result = b.call("ack", json!({"tags": tags})).await;
    assert_eq!(result["stale"], json!([]), "all were settled, then or now");
    assert_eq!(b.call("dead.list", json!({"log": inbox_of(&b_who)})).await["letters"][0]["reason"], "poison");
    b.call("dead.retry", json!({"log": inbox_of(&b_who), "seqs": [2]})).await;
    b.reads("2").await;
}

#[tokio::test]
async fn partitions_and_delays_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let (a_who, b_who) = (Who::new("a"), Who::new("b"));
    let broker = start(dir.path()).await;
    let (mut a, b) = (enter(&broker, &a_who).await, enter(&broker, &b_who).await);
    a.call("topics.create", json!({"name": "wide", "partitions": 3, "retentionMs": 86_400_000})).await;
    let late = json!({"to": to_session(&b_who), "clientMessageId": "late", "body": "late", "delayMs": 700});
    a.call("send", late).await;
    let home = a
        .call("send", json!({"to": "topic:wide", "clientMessageId": "k1", "body": "x", "key": "k"}))
        .await["log"]
        .clone();
    let past = stop(broker, vec![a, b]).await;

    let broker = start(dir.path()).await;
    let mut a = back(&broker, &a_who, &past[0]).await;
    let mut b = back(&broker, &b_who, &past[1]).await;
    let again =
        a.call("send", json!({"to": "topic:wide", "clientMessageId": "k2", "body": "x", "key": "k"})).await;
    assert_eq!((&again["log"], &again["seq"]), (&home, &json!(2)));
    a.refuses("topics.create", json!({"name": "wide", "partitions": 1}), "conflict", "other settings").await;
    let delivery = b.delivery().await;
    assert_eq!((&delivery["message"]["body"], &delivery["attempt"]), (&json!("late"), &json!(1)));
}
