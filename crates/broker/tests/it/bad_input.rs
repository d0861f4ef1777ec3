//! Nonsense about messages: each piece is answered with its code and a sentence that helps, in both codecs, and the
//! broker serves the next.

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};

use crate::common::mail::{inbox_of, to_session};
use crate::common::{Dial, LONG, Sock, Who, broker, join, still_serves};

/// A session in each codec.
async fn both(broker: &Broker) -> Vec<(Sock, Who)> {
    let mut socks = Vec::new();
    for codec in ["tenure.v1.json", "tenure.v1.msgpack"] {
        let who = Who::new(codec);
        let mut sock = Dial::to(broker.addr()).offering(codec).open().await.expect("upgrade");
        sock.join(&who).await;
        socks.push((sock, who));
    }
    socks
}

/// A good send, with some fields in place of others.
fn but(to: &str, other: Value) -> Value {
    let mut params = json!({"to": to, "clientMessageId": "m", "body": "x"});
    for (key, value) in other.as_object().expect("an object") {
        match value {
            Value::String(text) if text == "absent" => {
                drop(params.as_object_mut().expect("an object").remove(key))
            }
            value => params[key] = value.clone(),
        }
    }
    params
}

#[tokio::test]
async fn a_send_that_says_nothing_or_two_things() {
    let broker = broker(LONG).await;
    for (mut sock, who) in both(&broker).await {
        let to = to_session(&who);
        let bad = [
            (json!({"body": "absent"}), "exactly one"),
            (json!({"bodyB64": "eA=="}), "exactly one"),
            (json!({"body": null}), "exactly one"),
            (json!({"body": "absent", "bodyB64": "not base64!"}), "base64"),
            (json!({"body": "absent", "bodyB64": "eA"}), "base64"),
            (json!({"body": 7}), "string"),
            (json!({"clientMessageId": "absent"}), "clientMessageId"),
            (json!({"clientMessageId": ""}), "1"),
            (json!({"clientMessageId": "x".repeat(129)}), "128"),
            (json!({"clientMessageId": "tab\there"}), "ASCII"),
            (json!({"clientMessageId": "run:1"}), "run:"),
            (json!({"clientMessageId": "☃"}), "ASCII"),
            (json!({"to": "absent"}), "to"),
            (json!({"to": ""}), "session:<hex>"),
            (json!({"to": "session:"}), "session:<hex>"),
            (json!({"to": "session:zz"}), "session:<hex>"),
            (json!({"to": format!("session:{}", who.id().to_uppercase())}), "session:<hex>"),
            (json!({"to": format!("peer:{}", who.id())}), "session:<hex>"),
            (json!({"priority": "urgent"}), "now"),
            (json!({"fallback": "retry"}), "hold"),
            (json!({"meta": [1]}), "object"),
            (json!({"replyTo": "a\u{0}b"}), "NUL"),
            (json!({"meta": {"n": 9_007_199_254_740_993_u64}}), "2^53"),
            (json!({"fingerprint": "abc"}), "hex"),
            (json!({"fingerprint": "0".repeat(64)}), "fingerprint"),
        ];
        for (other, words) in bad {
            sock.refuses("send", but(&to, other), "bad_request", words).await;
        }
        for params in [json!(null), json!([]), json!("x"), json!(7), json!({})] {
            assert_eq!(sock.fails("send", params).await, "bad_request");
        }
        // None of it has used its id.
        assert_eq!(sock.call("send", but(&to, json!({}))).await["duplicate"], false);
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn names_that_are_none_are_told_the_rule() {
    let broker = broker(LONG).await;
    let long = "x".repeat(65);
    for (mut sock, _) in both(&broker).await {
        for name in ["", "A", "Jobs", "a b", "a/b", "-a", ".a", "_a", "ä", "a\u{0}", "dead", &long] {
            let rule = if name == "dead" { "not 'dead'" } else { "a-z, 0-9" };
            sock.refuses("send", but(&format!("topic:{name}"), json!({})), "bad_request", rule).await;
            sock.refuses("subscribe", json!({"topic": name}), "bad_request", rule).await;
            sock.refuses("subscribe", json!({"topic": "ok", "group": name}), "bad_request", rule).await;
            sock.refuses("topics.create", json!({"name": name, "partitions": 1}), "bad_request", rule).await;
        }
        for log in [
            "",
            "topic",
            "topic/t",
            "topic/t/",
            "topic/t/-1",
            "topic/t/01",
            "topic/t/0/0",
            "inbox/s/",
            "inbox/x/1",
            "/",
        ] {
            for method in ["history", "dead.list"] {
                sock.refuses(method, json!({"log": log}), "bad_request", "").await;
            }
        }
        for (method, more) in
            [("history", json!({})), ("dead.list", json!({})), ("dead.retry", json!({"seqs": [1]}))]
        {
            for log in ["topic/never/0", "topic/never/7"] {
                let mut params = more.clone();
                params["log"] = json!(log);
                sock.refuses(method, params, "not_found", "no log").await;
            }
        }
    }
    // Nothing was made by asking.
    let (mut sock, _) = join(broker.addr(), "a").await;
    assert_eq!(sock.call("topics.list", json!({})).await["topics"], json!([]));
}

#[tokio::test]
async fn what_is_too_large_is_told_the_limit() {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_payload = 64 * 1024;
    let broker = Broker::start(config).await.unwrap();
    for (mut sock, who) in both(&broker).await {
        let to = to_session(&who);
        let error = sock
            .refuses("send", but(&to, json!({"body": "x".repeat(64 * 1024 + 1)})), "too_large", "65536")
            .await;
        assert_eq!(error["details"], json!({"limit": 65_536, "size": 65_537}));
        assert_eq!(error["retryable"], false);
        for (field, size) in [("key", 257), ("replyTo", 129), ("contentType", 129)] {
            let limit = (size - 1).to_string();
            sock.refuses("send", but(&to, json!({field: "x".repeat(size)})), "bad_request", &limit).await;
        }
        sock.refuses("send", but(&to, json!({"meta": {"x": "y".repeat(64 * 1024)}})), "bad_request", "meta")
            .await;
        // The id is free, and the largest that may be sent arrives.
        sock.call("send", but(&to, json!({"body": "x".repeat(64 * 1024)}))).await;
        assert_eq!(sock.delivery().await["message"]["body"].as_str().unwrap().len(), 64 * 1024);
        // A retry is known before any limit is looked at: its fingerprint has none of these.
        let again = but(&to, json!({"body": "x".repeat(64 * 1024), "key": "k".repeat(1000), "ttlMs": 0}));
        assert_eq!(sock.call("send", again).await["duplicate"], true);
        let ids: Vec<String> = (0..257).map(|n| format!("m{n}")).collect();
        sock.refuses("send.status", json!({"clientMessageIds": ids}), "bad_request", "256").await;
        let seqs: Vec<u64> = (0..257).collect();
        for method in ["dead.retry", "dead.drop"] {
            for seqs in [json!(seqs), json!([])] {
                sock.refuses(method, json!({"log": inbox_of(&who), "seqs": seqs}), "bad_request", "256")
                    .await;
            }
        }
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn numbers_that_are_none_or_enormous() {
    let broker = broker(LONG).await;
    for (mut sock, who) in both(&broker).await {
        let (to, own) = (to_session(&who), inbox_of(&who));
        let (most, beyond) = (json!(9_007_199_254_740_991_u64), json!(9_007_199_254_740_992_u64));
        let no_numbers = [
            json!(-1),
            json!(1.5),
            json!("1"),
            json!([1]),
            json!(true),
            beyond,
            json!(u64::MAX),
            json!(1e300),
        ];
        for bad in &no_numbers {
            for field in ["ttlMs", "delayMs"] {
                sock.refuses("send", but(&to, json!({field: bad})), "bad_request", "").await;
            }
            for (method, params) in [
                ("subscribe", json!({"topic": "t", "prefetch": bad})),
                ("subscribe", json!({"topic": "t", "partition": bad})),
                ("subscribe", json!({"topic": "t", "from": bad})),
                ("fetch", json!({"subId": "inbox", "limit": bad})),
                ("history", json!({"log": own, "from": bad})),
                ("history", json!({"log": own, "limit": bad})),
                ("dead.list", json!({"log": own, "after": bad})),
                ("dead.retry", json!({"log": own, "seqs": [bad]})),
                ("topics.create", json!({"name": "t", "partitions": bad})),
                ("topics.list", json!({"limit": bad})),
                ("nack", json!({"tags": [], "delayMs": bad})),
            ] {
                sock.refuses(method, params, "bad_request", "").await;
            }
        }
        for (method, params, words) in [
            ("send", but(&to, json!({"ttlMs": 0})), "30 days"),
            ("send", but(&to, json!({"ttlMs": most})), "30 days"),
            ("send", but(&to, json!({"delayMs": most})), "30 days"),
            ("send", but(&to, json!({"ttlMs": 5, "delayMs": 5})), "below"),
            ("send", but("topic:t", json!({"fallback": "fail"})), "fallback"),
            ("subscribe", json!({"topic": "t", "prefetch": 0}), "4096"),
            ("subscribe", json!({"topic": "t", "prefetch": 4097}), "4096"),
            ("subscribe", json!({"topic": "t", "partition": 1}), "partitions"),
            ("subscribe", json!({"topic": "t", "from": 2}), "past the end"),
            ("subscribe", json!({"topic": "t", "from": most}), "past the end"),
            ("subscribe", json!({"topic": "t", "from": "newest"}), "earliest"),
            ("subscribe", json!({"topic": "t", "ackMode": "later"}), "manual"),
            ("fetch", json!({"subId": "inbox", "limit": 0}), "256"),
            ("fetch", json!({"subId": "inbox", "limit": 257}), "256"),
            ("history", json!({"log": own, "limit": 0}), "256"),
            ("history", json!({"log": own, "limit": 257}), "256"),
            ("history", json!({"log": own, "from": 2}), "past the end"),
            ("history", json!({"log": own, "from": most}), "past the end"),
            ("topics.create", json!({"name": "t", "partitions": 0}), "256"),
            ("topics.create", json!({"name": "t", "partitions": 257}), "256"),
            ("topics.list", json!({"limit": 0}), "256"),
            ("nack", json!({"tags": [], "delayMs": most}), "30 days"),
            ("nack", json!({"tags": [], "reason": "x".repeat(257)}), "256"),
            ("unsubscribe", json!({"subId": "inbox"}), "hello"),
        ] {
            sock.refuses(method, params, "bad_request", words).await;
        }
        // The extremes that are numbers.
        assert_eq!(sock.call("history", json!({"log": own, "from": 0})).await["messages"], json!([]));
        assert_eq!(sock.call("dead.list", json!({"log": own, "after": most})).await["letters"], json!([]));
        assert_eq!(
            sock.call("dead.retry", json!({"log": own, "seqs": [most, 0]})).await["retried"],
            json!([])
        );
        sock.refuses("fetch", json!({"subId": "nobody", "limit": 1}), "not_found", "subscription").await;
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_tag_of_another_brokers_message_settles_nothing() {
    let who = Who::new("reader");
    let mut tags = Vec::new();
    let mut last = None;
    for body in ["first", "second"] {
        let broker = broker(LONG).await;
        let mut reader = Sock::open(broker.addr()).await;
        reader.join(&who).await;
        let (mut sender, _) = join(broker.addr(), "sender").await;
        sender.post(&to_session(&who), body, body).await;
        tags.push(reader.delivery().await["tag"].as_str().unwrap().to_owned());
        last = Some((broker, reader));
    }
    let (_broker, mut reader) = last.unwrap();
    let place = |tag: &str| tag.rsplit_once('.').unwrap().0.to_owned();
    assert_eq!(place(&tags[0]), place(&tags[1]), "both brokers are new: the places are the same");
    assert_ne!(tags[0], tags[1]);
    for method in ["ack", "nack", "progress"] {
        let result = reader.call(method, json!({"tags": [tags[0]]})).await;
        let stale = json!([{"tag": tags[0], "reason": "unknown_tag"}]);
        assert_eq!(result, json!({"settled": [], "stale": stale}), "{method}");
    }
    let listed = json!([{"tag": tags[0], "state": "settled", "settle": "ack"}]);
    let verdicts = reader.call("reconcile", json!({"inflight": listed})).await["inflight"].clone();
    assert_eq!(verdicts[0]["result"], "requeued");
    let own = reader.call("ack", json!({"tags": [tags[1]]})).await;
    assert_eq!(own["settled"], json!([tags[1]]), "its own message waits for its own tag");
    let result = reader.call("ack", json!({"tags": [tags[0]]})).await;
    assert_eq!(result["stale"][0]["reason"], "unknown_tag", "also when that is settled");
}

#[tokio::test]
async fn tags_that_were_never_issued_or_are_anothers() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    let mut socks = both(&broker).await;
    let mut tags = Vec::new();
    for (sock, who) in &mut socks {
        a.post(&to_session(who), &who.id(), "x").await;
        tags.push(sock.delivery().await["tag"].clone());
    }
    for (n, (sock, _)) in socks.iter_mut().enumerate() {
        let own = tags[n].as_str().unwrap().to_owned();
        let parts: Vec<&str> = own.split('.').collect();
        let rest = format!("{}.{}", parts[3], parts[4]);
        let spelled = |group: &str, seq: &str, attempt: &str| format!("{group}.{seq}.{attempt}.{rest}");
        let made_up = [
            (json!("nonsense"), "unknown_tag"),
            (json!("\"'{}<>&;"), "unknown_tag"),
            (json!("0".repeat(128)), "unknown_tag"),
            (json!(format!("{own}x")), "unknown_tag"),
            (json!(own.to_uppercase()), "unknown_tag"),
            (json!(format!("{}.00000000", own.rsplit_once('.').unwrap().0)), "unknown_tag"),
            (tags[1 - n].clone(), "not_owner"),
            (json!(spelled("zzz", "1", "1")), "no_such_group"),
            (json!(spelled(parts[0], "zz", "1")), "never_delivered"),
            (json!(spelled(parts[0], "1", "2")), "requeued"),
            (json!(spelled(parts[0], "1", "0")), "never_delivered"),
            (json!(spelled("3w5e11264sgsf", "3w5e11264sgsf", "1z141z3")), "no_such_group"),
        ];
        for method in ["ack", "nack", "progress"] {
            for (tag, reason) in &made_up {
                let result = sock.call(method, json!({"tags": [tag]})).await;
                let stale = json!([{"tag": tag, "reason": reason}]);
                let sent_nothing = result["settled"] == json!([]);
                assert!(sent_nothing && result["stale"] == stale, "{method} {tag}: {result}");
            }
            assert_eq!(sock.call(method, json!({"tags": []})).await, json!({"settled": [], "stale": []}));
            let many: Vec<&str> = std::iter::repeat_n("x", 4_097).collect();
            sock.refuses(method, json!({"tags": many}), "bad_request", "4096").await;
            for bad in [
                json!(["x".repeat(129)]),
                json!([""]),
                json!(["☃ \u{0}"]),
                json!([7]),
                json!("x"),
                json!(null),
            ] {
                sock.refuses(method, json!({"tags": bad}), "bad_request", "").await;
            }
        }
        // The same good one many times over settles once, and the rest of the list counts as well.
        let list = json!({"tags": [own, "nonsense", own]});
        let result = sock.call("ack", list).await;
        assert_eq!(
            result,
            json!({"settled": [own, own], "stale": [{"tag": "nonsense", "reason": "unknown_tag"}]})
        );
        let inflight =
            json!([{"tag": "nonsense", "state": "settled"}, {"tag": tags[1 - n], "state": "processing"}]);
        let verdicts = sock.call("reconcile", json!({"inflight": inflight})).await["inflight"].clone();
        assert!(verdicts.as_array().unwrap().iter().all(|v| v["result"] == "requeued"), "{verdicts}");
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn ten_thousand_subscriptions_are_a_thousand() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "greedy").await;
    let (mut made, mut refused) = (0, 0);
    for chunk in 0..10 {
        let frames: Vec<Value> = (chunk * 1000..(chunk + 1) * 1000)
            .map(|n| json!({"type": "req", "id": format!("s{n}"), "method": "subscribe", "params": {"topic": format!("t{n}")}}))
            .collect();
        sock.send_all(&frames).await;
        for _ in 0..1000 {
            let answer = loop {
                let frame = sock.frame().await;
                if frame["type"] == "res" {
                    break frame;
                }
            };
            if answer["ok"] == true {
                made += 1;
            } else {
                refused += 1;
                assert_eq!(answer["error"]["code"], "busy", "{answer}");
                assert!(answer["error"]["message"].as_str().unwrap().contains("unsubscribe"), "{answer}");
            }
        }
    }
    assert_eq!((made, refused), (1_024, 8_976));
    // A topic that nobody may read was not made for it either.
    let mut topics = 0;
    let mut after = json!(null);
    loop {
        let page = sock.call("topics.list", json!({"after": after})).await;
        topics += page["topics"].as_array().unwrap().len();
        match page.get("next") {
            Some(next) => after = next.clone(),
            None => break,
        }
    }
    assert_eq!(topics, 1_024);
    let other = json!({"topic": "t1", "prefetch": 5});
    sock.refuses("subscribe", other, "bad_request", "other settings").await;
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn who_may_not_may_not() {
    let broker = broker(LONG).await;
    let (mut a, _) = join(broker.addr(), "a").await;
    a.post("topic:t", "m1", "x").await;
    for (caps, refused, allowed) in [("read", "send", "subscribe"), ("send", "subscribe", "send")] {
        let who = Who::new("narrow");
        let mut sock = Sock::open(broker.addr()).await;
        let mut params = sock.hello_of(&who);
        let expires_at = params["attestation"]["expiresAt"].as_u64().unwrap();
        params["attestation"] =
            json!({"expiresAt": expires_at, "caps": [caps], "signature": who.attested(expires_at, caps)});
        sock.hello(params).await;
        let params = |method: &str| match method {
            "send" => but("topic:t", json!({})),
            _ => json!({"topic": "t"}),
        };
        sock.refuses(
            refused,
            params(refused),
            "forbidden",
            refused.strip_prefix("sub").map_or("send", |_| "read"),
        )
        .await;
        sock.call(allowed, params(allowed)).await;
        if caps == "send" {
            for (method, params) in [
                ("history", json!({"log": "topic/t/0"})),
                ("fetch", json!({"subId": "inbox", "limit": 1})),
                ("dead.list", json!({"log": "topic/t/0"})),
            ] {
                sock.refuses(method, params, "forbidden", "read").await;
            }
        }
    }
}
