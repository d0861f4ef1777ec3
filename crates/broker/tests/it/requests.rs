//! Frames after the hello: every request is answered, nothing that is not one is, and nobody falls over.

use serde_json::{Value, json};
use tenure_broker::{Broker, Config};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, broker, join, still_serves};

#[tokio::test]
async fn methods_of_nobody_are_unknown() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    let nobodys = ["", "PING", "ping ", "presence", "presence.list.all", "constructor", "\u{0}", "☃"];
    let endless = "x".repeat(100_000);
    for method in nobodys.into_iter().chain([endless.as_str()]) {
        assert_eq!(sock.fails(method, json!({})).await, "unknown_method", "{method:.40}");
    }
    // Whatever their params, which nobody reads.
    for params in [json!(null), json!([1, 2]), json!("x"), json!({"to": 7})] {
        assert_eq!(sock.fails("relay.shut", params).await, "unknown_method");
    }
    sock.send(&json!({"type": "req", "id": "bare", "method": "relay.shut"})).await;
    assert_eq!(sock.response("bare").await["error"]["code"], "unknown_method");
    sock.send(&json!({"type": "req", "id": "blank"})).await;
    assert_eq!(sock.response("blank").await["error"]["code"], "bad_request");
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_second_hello_is_refused_and_changes_nothing() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "a").await;
    let again = sock.hello_of(&who);
    assert_eq!(sock.fails("hello", again).await, "bad_request");
    let other = sock.hello_of(&Who::new("somebody else"));
    assert_eq!(sock.fails("hello", other).await, "bad_request");
    assert_eq!(sock.fails("hello", json!(null)).await, "bad_request");
    let list = sock.call("presence.list", json!({})).await;
    assert_eq!(list["peers"].as_array().unwrap().len(), 1);
    assert_eq!(list["peers"][0]["session"], who.id());
}

#[tokio::test]
async fn what_cannot_be_answered_is_noticed() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    let frames = [
        "",
        "garbage",
        "[]",
        "7",
        "{",
        r#"{"type":"req","method":"ping"}"#,
        r#"{"type":"req","id":7,"method":"ping"}"#,
        r#"{"type":"req","id":null,"method":"ping"}"#,
        r#"{"type":"req","id":"","method":"ping"}"#,
        r#"{"type":"res","id":"1","ok":true,"result":{}}"#,
        r#"{"type":"event","event":"presence","seq":9,"data":{}}"#,
        r#"{"type":"req","id":"1","id":"2","method":"ping"}"#,
        r#"{"type":"req","id":"1","method":"ping","method":"bye"}"#,
        r#"{"type":"req","id":"1","method":"bye"}{}"#,
    ];
    for frame in frames {
        sock.send_text(frame).await;
        let notice = sock.expect("notice").await;
        assert_eq!(notice["code"], "bad_request", "{frame}");
        assert!(notice["message"].is_string(), "{frame}");
    }
    sock.send_message(Message::binary(vec![0x81, 0xa1, 0x61, 0x01])).await;
    assert_eq!(sock.expect("notice").await["code"], "bad_request");
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_notice_does_not_repeat_what_was_sent() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "a").await;
    // An answer must not be an amplifier, nor a log of secrets.
    let long = "s3cret".repeat(50_000);
    sock.send_text(format!(r#"{{"type":"{long}"}}"#)).await;
    let notice = sock.expect("notice").await;
    assert!(
        notice["message"].as_str().unwrap().len() < 2_000,
        "{} bytes",
        notice["message"].to_string().len()
    );
    sock.send_text(format!(
        r#"{{"type":"req","id":"x","method":"profile.set","params":{{"status":"{long}"}}}}"#
    ))
    .await;
    let answer = sock.response("x").await;
    assert_eq!(answer["error"]["code"], "bad_request");
    assert!(answer.to_string().len() < 2_000, "{} bytes", answer.to_string().len());
    // Nor before the hello.
    let mut sock = Sock::open(broker.addr()).await;
    let mut hello = sock.hello_of(&Who::new("verbose"));
    hello["inbox"] = json!(&long[..50_000]);
    let (error, _) = sock.refused(hello).await;
    assert!(error.to_string().len() < 2_000, "{} bytes", error.to_string().len());
}

#[tokio::test]
async fn bad_params_are_bad_requests() {
    let broker = broker(LONG).await;
    let (mut sock, who) = join(broker.addr(), "a").await;
    let bad_lists = [
        json!({"limit": -1}),
        json!({"limit": 0}),
        json!({"limit": 501}),
        json!({"limit": 2.5}),
        json!({"limit": 1e300}),
        json!({"limit": u64::MAX}),
        json!({"limit": "5"}),
        json!({"limit": [5]}),
        json!({"limit": true}),
        json!({"after": "zz"}),
        json!({"after": who.id().to_uppercase()}),
        json!({"after": ""}),
        json!({"after": 5}),
        json!({"after": who.id()[..62]}),
        json!({"debug": "yes"}),
        json!({"debug": 1}),
        json!([]),
        json!("x"),
        json!(5),
    ];
    for params in bad_lists {
        assert_eq!(sock.fails("presence.list", params.clone()).await, "bad_request", "{params}");
    }
    for text in ["1e999", "-0.5", "0x5", "5 5", "NaN"] {
        sock.send_text(format!(
            r#"{{"type":"req","id":"n","method":"presence.list","params":{{"limit":{text}}}}}"#
        ))
        .await;
        let frame = sock.frame().await;
        // Where it is not even JSON there is no id to answer to.
        let code = if frame["type"] == "res" { &frame["error"]["code"] } else { &frame["data"]["code"] };
        assert_eq!(code, "bad_request", "{text}: {frame}");
    }
    for good in [
        json!({}),
        json!(null),
        json!({"limit": 500}),
        json!({"limit": 5.0}),
        json!({"after": "f".repeat(64)}),
    ] {
        assert!(sock.call("presence.list", good).await["peers"].is_array());
    }
    let bad_profiles = [
        json!({"name": ""}),
        json!({"name": "x".repeat(129)}),
        json!({"name": 5}),
        json!({"status": "asleep"}),
        json!({"summary": "x".repeat(1_025)}),
        json!({"summary": "x".repeat(1_000_000)}),
        json!({"summary": {}}),
        json!({"host": "x".repeat(1_025)}),
        json!({"cwd": "x".repeat(1_025)}),
        json!({"role": "x".repeat(1_025)}),
        json!({"tags": vec!["t"; 33]}),
        json!({"tags": ["x".repeat(65)]}),
        json!({"tags": [1]}),
        json!({"tags": "t"}),
        json!({"lastInputSeconds": -1}),
        json!({"lastInputSeconds": 0.5}),
        json!({"lastInputSeconds": 1u64 << 53}),
        json!([]),
        json!("x"),
    ];
    for params in bad_profiles {
        assert_eq!(sock.fails("profile.set", params.clone()).await, "bad_request", "{params:.80}");
    }
    for twice in [
        r#"{"type":"req","id":"t","method":"profile.set","params":{"name":"x","name":"y"}}"#,
        r#"{"type":"req","id":"t","method":"presence.list","params":{"limit":1,"limit":2}}"#,
    ] {
        sock.send_text(twice).await;
        assert_eq!(sock.response("t").await["error"]["code"], "bad_request", "{twice}");
    }
    // Nothing of all that took effect.
    let list = sock.call("presence.list", json!({})).await;
    assert_eq!((&list["peers"][0]["name"], &list["peers"][0]["tags"]), (&json!("a"), &json!([])));
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn unknown_fields_are_ignored_everywhere() {
    let broker = broker(LONG).await;
    let who = Who::new("tolerant");
    let mut sock = Sock::open(broker.addr()).await;
    let extra = json!({"deep": [{"er": null}], "n": 1.5});
    let mut hello = sock.hello_of(&who);
    hello["future"] = extra.clone();
    for field in ["protocol", "client", "attestation", "profile"] {
        hello[field]["future"] = extra.clone();
    }
    hello["features"] = json!({"require": ["resume"], "optional": ["x"], "future": extra});
    hello["resume"] = json!({"token": "t", "epoch": "e", "lastSeq": 0, "future": extra});
    hello["auth"] = json!({"token": "unasked", "future": extra});
    hello["inbox"] = json!("none");
    let frame = json!({"type": "req", "id": "hello", "method": "hello", "params": hello, "future": extra, "trace": [1]});
    sock.send(&frame).await;
    let answer = sock.frame().await;
    assert_eq!(answer["ok"], true, "{answer}");
    sock.welcomed(&answer["result"]);
    for method in ["ping", "health", "presence.list", "profile.set"] {
        let frame = json!({"type": "req", "id": method, "method": method, "params": {"future": extra}, "future": extra});
        sock.send(&frame).await;
        assert_eq!(sock.response(method).await["ok"], true, "{method}");
    }
    sock.send(
        &json!({"type": "req", "id": "bye", "method": "bye", "params": {"future": extra}, "future": 1}),
    )
    .await;
    assert_eq!(sock.response("bye").await["ok"], true);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn nesting_without_end_is_survived() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "deep").await;
    let arrays = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    for deep in [&arrays, &objects] {
        for frame in [
            deep.clone(),
            format!(r#"{{"type":"req","id":"d","method":"ping","params":{deep}}}"#),
            format!(r#"{{"type":"req","id":"d","method":"profile.set","params":{{"summary":{deep}}}}}"#),
            format!(r#"{{"type":"req","id":"d","method":"presence.list","params":{{"future":{deep}}}}}"#),
            format!(r#"{{"type":"req","id":"d","method":"ping","future":{deep}}}"#),
            format!(r#"{{"type":{deep},"id":"d"}}"#),
            deep[..deep.len() / 2].to_owned(),
        ] {
            sock.send_text(frame.clone()).await;
            // Stepped over or refused: answered either way.
            let answer = sock.frame().await;
            let known = answer["id"] == "d" || answer["data"]["code"] == "bad_request";
            assert!(known, "{:.60}: {answer:.200}", frame);
        }
    }
    let mut packed = Sock::open_msgpack(broker.addr()).await;
    packed.join(&Who::new("deep in msgpack")).await;
    let head = b"\x84\xa4type\xa3req\xa2id\xa1d\xa6method\xa4ping\xa6params";
    for nest in [vec![0x91; 100_000], b"\x81\xa1a".repeat(100_000)] {
        packed.send_message(Message::binary([&head[..], &nest, b"\xc0"].concat())).await;
        let answer = packed.frame().await;
        assert!(answer["id"] == "d" || answer["data"]["code"] == "bad_request", "{answer}");
    }
    // A length that promises four billion entries, and one that promises them in bytes.
    for bomb in [
        &b"\x84\xa4type\xdd\xff\xff\xff\xff"[..],
        b"\x84\xa4type\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ] {
        packed.send_message(Message::binary(bomb.to_vec())).await;
        assert_eq!(packed.expect("notice").await["code"], "bad_request");
    }
    assert!(packed.call("ping", json!({})).await["ts"].is_u64());
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_frame_over_the_limit_closes_and_the_session_lives_on() {
    let mut config = Config::ephemeral(LONG);
    config.mesh.max_payload = 96 * 1024;
    let broker = Broker::start(config).await.unwrap();
    let limit = 96 * 1024 / 3 * 4 + 64 * 1024;
    let who = Who::new("large");
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    watcher.sees("joined", &who).await;
    let padded = |bytes: usize| {
        let mut frame = json!({"type": "req", "id": "big", "method": "ping", "params": {}, "pad": ""});
        frame["pad"] = json!("x".repeat(bytes - frame.to_string().len()));
        frame
    };
    sock.send(&padded(limit)).await;
    assert_eq!(sock.response("big").await["ok"], true, "exactly the limit is within it");
    for bytes in [limit + 64, 10 * 1024 * 1024] {
        sock.send(&padded(bytes)).await;
        let ended = sock.ended().await;
        assert!(ended.frames.is_empty(), "{:?}", ended.frames);
        assert_closing(&ended.closing, 1009, "too_large", true);
        let mut next = Sock::open(broker.addr()).await;
        let back = next.resume(&who, &sock.past()).await;
        assert_eq!((&back["lease"], &back["resume"]["outcome"]), (&json!("kept"), &json!("resumed")));
        sock = next;
    }
    // In pieces it is as large as in one.
    for (opcode, last) in [(Data::Text, false), (Data::Continue, false), (Data::Continue, true)] {
        let piece = Frame::message(vec![b' '; limit / 2], OpCode::Data(opcode), last);
        sock.send_message(Message::Frame(piece)).await;
    }
    assert_closing(&sock.ended().await.closing, 1009, "too_large", true);
    let mut sock = Sock::open(broker.addr()).await;
    assert_eq!(sock.join(&who).await["lease"], "kept");
    sock.call("profile.set", json!({"status": "working"})).await;
    let seen = watcher.sees("updated", &who).await;
    assert_eq!(seen["base"].as_u64().unwrap() + 1, seen["version"].as_u64().unwrap(), "nothing in between");
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn requests_behind_the_hello_take_effect_after_it() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let who = Who::new("in a hurry");
    let mut sock = Sock::open(broker.addr()).await;
    let hello = sock.hello_of(&who);
    let request = |id: &str, method: &str, params: Value| json!({"type": "req", "id": id, "method": method, "params": params});
    sock.send_all(&[
        request("hello", "hello", hello),
        request("1", "ping", json!({})),
        request("2", "profile.set", json!({"summary": "busy"})),
        request("3", "presence.list", json!({})),
        request("4", "bye", json!({})),
    ])
    .await;
    let answer = sock.frame().await;
    assert_eq!((&answer["id"], &answer["ok"]), (&json!("hello"), &json!(true)), "{answer}");
    sock.welcomed(&answer["result"]);
    for id in ["1", "2", "3", "4"] {
        let answer = sock.response(id).await;
        assert_eq!(answer["ok"], true, "{answer}");
        if id == "3" {
            let peers = answer["result"]["peers"].as_array().unwrap();
            let own = peers.iter().find(|peer| peer["session"] == who.id()).expect("self");
            assert_eq!(own["summary"], "busy");
        }
    }
    assert_closing(&sock.ended().await.closing, 1000, "bye", false);
    watcher.sees("joined", &who).await;
    // Told as two steps or as one: a delta may take the newest one's place.
    let mut step = watcher.expect("presence").await;
    if step["kind"] == "updated" {
        assert_eq!(step["peer"]["summary"], "busy");
        step = watcher.expect("presence").await;
    }
    assert_eq!((&step["kind"], &step["peer"]["session"]), (&json!("left"), &json!(who.id())));
}

#[tokio::test]
async fn more_requests_than_may_wait_are_all_answered() {
    let broker = broker(LONG).await;
    let (mut sock, _) = join(broker.addr(), "busy").await;
    const MANY: usize = 10_000;
    let request = |n: usize| json!({"type": "req", "id": n.to_string(), "method": "ping", "params": {}});
    let all: Vec<Value> = (0..MANY).map(request).collect();
    sock.send_all(&all).await;
    let mut answered = vec![false; MANY];
    for _ in 0..MANY {
        let answer = sock.frame().await;
        assert_eq!(answer["ok"], true, "{answer}");
        let n: usize = answer["id"].as_str().unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut answered[n], true), "{n} twice");
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn what_is_no_websocket_closes_the_socket_with_a_reason_and_costs_the_lease_nothing() {
    let broker = broker(LONG).await;
    let (mut watcher, _) = join(broker.addr(), "watcher").await;
    let reserved = Frame::message("x", OpCode::Data(Data::Reserved(3)), true);
    let not_text = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    for frame in [reserved, not_text] {
        let (mut sock, who) = join(broker.addr(), "a").await;
        watcher.sees("joined", &who).await;
        let past = sock.past();
        sock.send_message(Message::Frame(frame)).await;
        let ended = sock.ended().await;
        assert_closing(&ended.closing, 1002, "bad_frame", true);
        let mut sock = Sock::open(broker.addr()).await;
        assert_eq!(sock.resume(&who, &past).await["lease"], "kept");
        sock.bye().await;
        watcher.sees("left", &who).await;
    }
    still_serves(broker.addr()).await;
}
