//! Everything but `send` and `run.start` is idempotent by what it names: done twice it has done what once does.
//!
//! Each row is done once in one world and twice in another; then both must look the same to everybody.

use serde_json::{Value, json};
use tenure_broker::Broker;

use crate::common::mail::{inbox_of, to_session};
use crate::common::{LONG, Sock, Who, broker, join};

/// A session with something of everything, and somebody who watches it.
struct World {
    _broker: Broker,
    sock: Sock,
    watcher: Sock,
    who: Who,
    /// Its part in a crew, and a subscription of its own.
    crew: Value,
    alone: Value,
    /// What it has in hand of its inbox, and of the crew.
    letter: Value,
    job: Value,
}

impl World {
    async fn new() -> World {
        let broker = broker(LONG).await;
        let (mut watcher, _) = join(broker.addr(), "watcher").await;
        let who = Who::new("session");
        let mut sock = Sock::open(broker.addr()).await;
        sock.join(&who).await;
        watcher.sees("joined", &who).await;
        let crew = sock.call("subscribe", json!({"topic": "jobs", "group": "crew", "prefetch": 1})).await;
        let alone = sock.call("subscribe", json!({"topic": "news"})).await;
        // A dead letter in its inbox, then a letter and a job in hand.
        watcher.post(&to_session(&who), "dead", "dead").await;
        let dead = sock.reads("dead").await;
        sock.call("nack", json!({"tags": [dead], "dead": true, "reason": "no"})).await;
        watcher.post(&to_session(&who), "letter", "letter").await;
        let letter = sock.reads("letter").await;
        watcher.post("topic:jobs", "job", "job").await;
        let job = sock.reads("job").await;
        let (crew, alone) = (crew["subId"].clone(), alone["subId"].clone());
        World { _broker: broker, sock, watcher, who, crew, alone, letter, job }
    }

    /// What everybody can see: topics, groups, letters, profiles, and what the session itself finds when it is back.
    async fn looks(mut self) -> Value {
        let inbox = inbox_of(&self.who);
        let mut topics = self.watcher.call("topics.list", json!({})).await;
        for topic in topics["topics"].as_array_mut().expect("topics") {
            for group in topic["groups"].as_array_mut().expect("groups") {
                group.as_object_mut().expect("a group").remove("oldestMs");
            }
        }
        let peers = self.watcher.call("presence.list", json!({})).await;
        let version = peers["stateVersion"]["presence"].clone();
        let peers = peers["peers"].as_array().expect("peers");
        let summary =
            peers.iter().find(|peer| peer["session"] == self.who.id()).map(|peer| peer["summary"].clone());
        let past = self.sock.past();
        self.sock.cut();
        let mut back = Sock::open(self._broker.addr()).await;
        let mut params = back.hello_of(&self.who);
        params["resume"] = json!({"token": past.token, "epoch": "another", "lastSeq": 0});
        let mut hello = back.hello(params).await;
        for queue in hello["snapshot"]["queues"].as_array_mut().expect("queues") {
            // Each broker has random bits of its own in the names that it gives.
            let name = queue["subId"].as_str().and_then(|name| name.rsplit('-').next()).map(str::to_owned);
            queue["subId"] = json!(name);
        }
        let again: Vec<Value> = (back.stray().await.iter())
            .map(|delivery| json!([delivery["message"]["body"], delivery["attempt"]]))
            .collect();
        let dead = back.call("dead.list", json!({"log": inbox})).await;
        let letters: Vec<&Value> =
            dead["letters"].as_array().expect("letters").iter().map(|l| &l["reason"]).collect();
        let count = |field: &str| hello["snapshot"][field].as_array().expect("a list").len();
        json!({
            "topics": topics["topics"], "presence": version, "summary": summary, "lease": hello["lease"],
            "subscriptions": count("subscriptions"), "queues": hello["snapshot"]["queues"], "again": again,
            "dead": letters,
        })
    }
}

/// A method, what it is asked in a world, and what the second answer is if it is not the first.
type Row = (&'static str, fn(&World) -> Value, Option<fn(&World) -> Value>);

const ROWS: &[Row] = &[
    ("ping", |_| json!({}), Some(|_| json!("later"))),
    ("health", |_| json!({}), Some(|_| json!("later"))),
    ("presence.list", |_| json!({"debug": true}), Some(|_| json!("later"))),
    ("services.list", |_| json!({}), None),
    ("runs.list", |_| json!({}), None),
    ("service.renew", |_| json!({"services": [{"name": "db", "kind": "tcp"}]}), None),
    ("service.withdraw", |_| json!({"names": ["db"]}), None),
    ("profile.set", |_| json!({"summary": "once"}), None),
    ("send.status", |_| json!({"clientMessageIds": ["letter", "nothing"]}), None),
    ("subscribe", |_| json!({"topic": "jobs", "group": "crew", "prefetch": 1}), None),
    ("subscribe", |_| json!({"topic": "news"}), None),
    ("subscribe", |_| json!({"topic": "more", "group": "others"}), None),
    ("unsubscribe", |world| json!({"subId": world.crew}), None),
    ("unsubscribe", |world| json!({"subId": world.alone}), None),
    ("unsubscribe", |_| json!({"subId": "nobody"}), None),
    ("ack", |world| json!({"tags": [world.letter, world.job]}), None),
    ("nack", |world| json!({"tags": [world.letter], "delayMs": 60_000}), None),
    ("nack", |world| json!({"tags": [world.letter, world.job], "dead": true, "reason": "bad"}), None),
    ("progress", |world| json!({"tags": [world.letter, world.job]}), None),
    ("history", |world| json!({"log": inbox_of(&world.who)}), None),
    ("topics.list", |_| json!({}), Some(|_| json!("later"))),
    ("topics.create", |_| json!({"name": "new", "partitions": 3}), None),
    ("groups.list", |_| json!({"topic": "jobs"}), Some(|_| json!("later"))),
    ("dead.list", |world| json!({"log": inbox_of(&world.who)}), None),
    (
        "dead.retry",
        |world| json!({"log": inbox_of(&world.who), "seqs": [1]}),
        Some(|_| json!({"retried": [], "missing": [1]})),
    ),
    ("dead.drop", |world| json!({"log": inbox_of(&world.who), "seqs": [1]}), Some(|_| json!({"dropped": 0}))),
    (
        "reconcile",
        |world| {
            let jobs = json!({"subId": world.crew, "topic": "jobs", "group": "crew", "ackMode": "manual",
                "prefetch": 1, "positions": {}});
            let news = json!({"subId": world.alone, "topic": "news", "ackMode": "manual", "prefetch": 32,
                "positions": {}});
            let inflight = json!([{"tag": world.letter, "state": "processing"},
                {"tag": world.job, "state": "settled", "settle": "ack"}]);
            json!({"subscriptions": [jobs, news], "inflight": inflight})
        },
        None,
    ),
];

#[tokio::test]
async fn whatever_is_done_twice_is_done_once() {
    for (method, params, second) in ROWS {
        let mut looks = Vec::new();
        for times in [1, 2] {
            let mut world = World::new().await;
            let asked = params(&world);
            let mut answers = Vec::new();
            for _ in 0..times {
                answers.push(world.sock.call(method, asked.clone()).await);
            }
            if let [first, again] = &answers[..] {
                let expected = second.map_or(first.clone(), |second| second(&world));
                // Clocks and ages go on; what they tell of changes nothing.
                assert!(expected == "later" || *again == expected, "{method} {asked}: {first} then {again}");
            }
            looks.push(world.looks().await);
        }
        assert_eq!(looks[0], looks[1], "{method}");
    }
}

#[tokio::test]
async fn a_goodbye_is_said_once_however_often() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let (mut sock, who) = join(broker.addr(), "leaver").await;
    watcher.sees("joined", &who).await;
    let bye = |id: &str| json!({"type": "req", "id": id, "method": "bye", "params": {}});
    sock.send_all(&[bye("1"), bye("2")]).await;
    let ended = sock.ended().await;
    assert_eq!(ended.closing["reason"], "bye");
    assert!(ended.frames.iter().any(|frame| frame["id"] == "1" && frame["ok"] == true), "{:?}", ended.frames);
    watcher.sees("left", &who).await;
    // Nothing else happened until somebody else comes.
    let (_other, other) = join(broker.addr(), "other").await;
    watcher.sees("joined", &other).await;
}
