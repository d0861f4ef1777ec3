//! Rates and caps, each at its bound. Loopback is counted here because the configuration says so.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};
use tenure_kit::rate::Rate;

use crate::common::keys::{self, sign};
use crate::common::mail::to_session;
use crate::common::sock::assert_closing;
use crate::common::{Dial, LONG, Sock, Who, join, still_serves};

/// A rate so slow that nothing comes back while a test runs.
const fn once(burst: u32) -> Rate {
    Rate { burst, per_second: 1 }
}

/// A broker that counts what comes from this machine.
async fn counting(change: impl FnOnce(&mut Config)) -> Broker {
    let mut config = Config::ephemeral(LONG);
    config.addresses.loopback = true;
    change(&mut config);
    Broker::start(config).await.expect("start")
}

#[tokio::test]
async fn a_thousand_hellos_from_one_address() {
    const BURST: u32 = 100;
    let broker = counting(|config| config.addresses.hellos = once(BURST)).await;
    let addr = broker.addr();
    let (mut here, who) = join(addr, "here").await;
    let (mut admitted, mut refused) = (1, 0);
    while admitted + refused < 1_000 {
        let mut sock = Sock::open(addr).await;
        let mut params = sock.hello_of(&Who::new("new"));
        if admitted % 2 == 0 {
            // Whether the proof holds makes no difference to who is counted.
            params["proof"] = json!(sign(&keys::key(), "something else"));
        }
        sock.send(&json!({"type": "req", "id": "1", "method": "hello", "params": params})).await;
        let answer = sock.frame().await;
        match answer["error"]["code"].as_str() {
            None | Some("unauthorized") => admitted += 1,
            Some("rate_limited") => {
                refused += 1;
                assert!(answer["error"]["retryAfterMs"].as_u64().is_some_and(|ms| ms > 0), "{answer}");
                let ended = sock.ended().await;
                assert_closing(&ended.closing, 1013, "busy", true);
                assert_eq!(ended.closing["retryAfterMs"], answer["error"]["retryAfterMs"]);
            }
            Some(other) => panic!("{other}"),
        }
        sock.cut();
    }
    assert!(admitted >= BURST && refused > 500, "{admitted} and {refused}");
    // Whoever was here comes back as often as it must, and hears what it asks meanwhile.
    here.call("ping", json!({})).await;
    let past = here.past();
    for _ in 0..5 {
        let mut sock = Sock::open(addr).await;
        assert_eq!(sock.resume(&who, &past).await["resume"]["outcome"], "resumed");
        sock.cut();
    }
}

#[tokio::test]
async fn loopback_is_not_counted_unless_asked_for() {
    let change = |config: &mut Config| {
        config.addresses.loopback = false;
        config.addresses.sockets = 1;
        config.addresses.hellos = once(1);
        config.mesh.send_rate = once(1);
        config.mesh.request_rate = once(1);
    };
    let broker = counting(change).await;
    let (mut a, who) = join(broker.addr(), "a").await;
    let _b = join(broker.addr(), "b").await;
    for n in 0..3 {
        a.post(&to_session(&who), &n.to_string(), "x").await;
        a.call("health", json!({})).await;
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn sockets_of_one_address() {
    let broker = counting(|config| config.addresses.sockets = 3).await;
    let addr = broker.addr();
    let silent = Sock::open(addr).await;
    let (mut one, _) = join(addr, "one").await;
    let (_two, _) = join(addr, "two").await;
    assert_eq!(Dial::to(addr).open().await.err(), Some(503));
    one.call("ping", json!({})).await;
    // A place that is given up is free, whether it had said hello or not.
    silent.cut();
    one.bye().await;
    let mut both = Vec::new();
    while both.len() < 2 {
        both.extend(Dial::to(addr).open().await.ok());
    }
    assert_eq!(Dial::to(addr).open().await.err(), Some(503));
}

#[tokio::test]
async fn sessions_of_one_member() {
    let broker = counting(|config| config.mesh.max_sessions_per_member = 2).await;
    let addr = broker.addr();
    let member = keys::key();
    let (one, two, three) = (Who::of(&member, "1"), Who::of(&member, "2"), Who::of(&member, "3"));
    let mut first = Sock::open(addr).await;
    first.join(&one).await;
    let mut second = Sock::open(addr).await;
    second.join(&two).await;
    let mut sock = Sock::open(addr).await;
    let params = sock.hello_of(&three);
    let (error, closing) = sock.refused(params).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("busy"), &json!(true)));
    assert_closing(&closing, 1013, "busy", true);
    second.cut();
    assert_eq!(Sock::open(addr).await.join(&two).await["lease"], "kept");
    first.bye().await;
    assert_eq!(Sock::open(addr).await.join(&three).await["lease"], "new");
    still_serves(addr).await;
}

/// Makes requests all at once; whether each was answered with yes, in their order, and the last refusal.
async fn at_once(sock: &mut Sock, method: &str, all: Vec<Value>) -> (Vec<bool>, Value) {
    let frame =
        |(n, params)| json!({"type": "req", "id": format!("many-{n}"), "method": method, "params": params});
    let frames: Vec<Value> = all.into_iter().enumerate().map(frame).collect();
    sock.send_all(&frames).await;
    let mut answers = BTreeMap::new();
    while answers.len() < frames.len() {
        let answer = sock.frame().await;
        match answer["id"].as_str().and_then(|id| id.strip_prefix("many-")) {
            Some(n) => _ = answers.insert(n.parse::<usize>().expect("a number"), answer.clone()),
            None => sock.keep(answer),
        }
    }
    let last = answers.values().next_back().expect("an answer").clone();
    (answers.values().map(|answer| answer["ok"] == true).collect(), last["error"].clone())
}

#[tokio::test]
async fn messages_of_one_member() {
    let broker = counting(|config| config.mesh.send_rate = once(3)).await;
    let (mut a, who) = join(broker.addr(), "a").await;
    let to = to_session(&who);
    let letter = |id: &str| json!({"to": to, "clientMessageId": id, "body": "x"});
    // A retry of what was accepted costs nothing.
    for n in 0..20 {
        assert_eq!(a.call("send", letter("1")).await["duplicate"], n > 0);
    }
    let mut burst: Vec<Value> = (2..12).map(|n| letter(&n.to_string())).collect();
    burst.push(json!({"to": "topic:new", "clientMessageId": "topic", "body": "x"}));
    let (accepted, error) = at_once(&mut a, "send", burst).await;
    assert!(accepted[0] && !accepted[9], "some, then no more: {accepted:?}");
    assert_eq!((&error["code"], &error["retryable"]), (&json!("rate_limited"), &json!(true)));
    assert!(error["retryAfterMs"].as_u64().is_some_and(|ms| (1..=1_000).contains(&ms)), "{error}");
    assert_eq!(
        a.call("topics.list", json!({})).await["topics"],
        json!([]),
        "a refused message makes no topic"
    );
    // What was accepted is answered again whatever the rate; so is another message under its id.
    assert_eq!(a.call("send", letter("1")).await["duplicate"], true);
    let other = json!({"to": to, "clientMessageId": "1", "body": "y"});
    a.refuses("send", other, "idempotency_key_reused", "clientMessageId").await;
    // What is in hand can be settled, and somebody else can send.
    let tag = a.delivery().await["tag"].clone();
    a.ack(&tag).await;
    let (mut b, _) = join(broker.addr(), "b").await;
    b.post(&to, "1", "x").await;
    // The id that was refused was not used up.
    loop {
        let id = a.request("send", letter("11")).await;
        let answer = a.response(&id).await;
        if answer["ok"] == true {
            assert_eq!(answer["result"]["duplicate"], false);
            break;
        }
    }
}

#[tokio::test]
async fn requests_of_one_member() {
    let broker = counting(|config| config.mesh.request_rate = once(4)).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    let (answered, error) = at_once(&mut sock, "presence.list", vec![json!({}); 12]).await;
    assert!(answered[..4].iter().all(|ok| *ok) && !answered[11], "{answered:?}");
    assert_eq!((&error["code"], &error["retryable"]), (&json!("rate_limited"), &json!(true)));
    assert!(error["retryAfterMs"].as_u64().is_some_and(|ms| (1..=1_000).contains(&ms)), "{error}");
    sock.call("ping", json!({})).await;
    sock.call("ack", json!({"tags": []})).await;
    sock.bye().await;
    still_serves(broker.addr()).await;
}
