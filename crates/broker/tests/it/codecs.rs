//! MessagePack beside JSON: the same objects, one mesh.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::common::sock::assert_closing;
use crate::common::{Codec, LONG, Sock, Who, broker, join, still_serves};

#[tokio::test]
async fn the_whole_handshake_in_messagepack() {
    let broker = broker(LONG).await;
    let who = Who::new("packed");
    let mut sock = Sock::open_msgpack(broker.addr()).await;
    assert_eq!(sock.codec, Codec::MsgPack);
    let hello = sock.join(&who).await;
    // The result is what a JSON socket of the same session gets, but for what differs with every hello.
    let mut json_sock = Sock::open(broker.addr()).await;
    let mut as_json = json_sock.join(&who).await;
    assert_closing(&sock.ended().await.closing, 1000, "session_replaced", false);
    for pointer in ["/connId", "/lease", "/resume/token", "/events/epoch", "/snapshot/uptimeMs"] {
        *as_json.pointer_mut(pointer).unwrap() = hello.pointer(pointer).unwrap().clone();
    }
    assert_eq!(hello, as_json);
    // A stream that began in one codec goes on in the other.
    let mut sock = Sock::open_msgpack(broker.addr()).await;
    let back = sock.resume(&who, &json_sock.past()).await;
    assert_eq!(
        (&back["resume"]["outcome"], &back["events"]["replay"]),
        (&json!("resumed"), &json!("complete"))
    );
    assert!(sock.call("ping", json!({})).await["ts"].is_u64());
    assert_eq!(sock.call("health", json!({})).await["store"]["kind"], "memory");
    assert_eq!(sock.fails("relay.shut", json!({"to": "x"})).await, "unknown_method");
    assert_eq!(sock.fails("presence.list", json!({"limit": -1})).await, "bad_request");
    sock.bye().await;
}

#[tokio::test]
async fn events_are_the_same_in_both_codecs() {
    let broker = broker(LONG).await;
    let (mut texts, _) = join(broker.addr(), "reads JSON").await;
    let packer = Who::new("reads MessagePack");
    let mut packed = Sock::open_msgpack(broker.addr()).await;
    packed.join(&packer).await;
    texts.sees("joined", &packer).await;
    let who = Who::new("seen by both");
    let mut sock = Sock::open(broker.addr()).await;
    sock.join(&who).await;
    let mut steps = vec!["joined"];
    for summary in ["plain", "ünïcödé ☃ \"quoted\" \\ 👩‍💻", ""] {
        sock.call(
            "profile.set",
            json!({"summary": summary, "tags": ["a", summary], "lastInputSeconds": 1u64 << 40}),
        )
        .await;
        steps.push("updated");
    }
    packed.call("profile.set", json!({"status": "dnd"})).await;
    let mut seen: Vec<Value> = Vec::new();
    while seen.last().is_none_or(|event| event["data"]["peer"]["status"] != "dnd") {
        let (a, b) = (texts.event().await, packed.event().await);
        assert_eq!(a["data"], b["data"]);
        seen.push(a);
    }
    assert_eq!(seen.len(), steps.len() + 1);
    // A peer who writes MessagePack is the same to those who read JSON.
    assert_eq!(texts.mirror.peers, packed.mirror.peers);
    texts.sees_all_of_it().await;
    packed.sees_all_of_it().await;
    packed.bye().await;
    texts.sees("left", &packer).await;
}

#[tokio::test]
async fn garbage_on_a_messagepack_socket() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let good = {
        let sock = Sock::open_msgpack(addr).await;
        let params = sock.hello_of(&Who::new("a"));
        json!({"type": "req", "id": "1", "method": "hello", "params": params})
    };
    let bytes = rmp_serde::to_vec_named(&good).unwrap();
    let mut trailing = bytes.clone();
    trailing.push(0xc0);
    let first: Vec<(&str, Message)> = vec![
        ("text", Message::text(good.to_string())),
        ("JSON in binary", Message::binary(good.to_string().into_bytes())),
        ("nothing", Message::binary(vec![])),
        ("truncated", Message::binary(bytes[..bytes.len() / 2].to_vec())),
        ("a byte too much", Message::binary(trailing)),
        ("an array", Message::binary(rmp_serde::to_vec(&json!([1, 2])).unwrap())),
        ("a number", Message::binary(vec![7])),
        ("nil", Message::binary(vec![0xc0])),
        ("a byte that means nothing", Message::binary(vec![0xc1])),
        ("fields by number", Message::binary(b"\x82\x00\xa3req\x01\xa11".to_vec())),
        ("a type by number", Message::binary(b"\x82\xa4type\x00\xa2id\xa11".to_vec())),
        ("an extension", Message::binary(b"\xd4\x01\x00".to_vec())),
        ("nested without end", Message::binary(vec![0x91; 60_000])),
    ];
    for (what, message) in first {
        let mut sock = Sock::open_msgpack(addr).await;
        sock.send_message(message).await;
        let ended = sock.ended().await;
        assert!(ended.frames.is_empty(), "{what}: {:?}", ended.frames);
        assert_closing(&ended.closing, 1008, "bad_first_frame", false);
    }
    // After the hello: a notice for what has no id, an answer for what has.
    let mut sock = Sock::open_msgpack(addr).await;
    sock.join(&Who::new("later garbage")).await;
    for garbage in [Message::text("{}"), Message::binary(vec![0xc1]), Message::binary(vec![])] {
        sock.send_message(garbage).await;
        assert_eq!(sock.expect("notice").await["code"], "bad_request");
    }
    for limit in [
        &b"\xcb\x7f\xf8\0\0\0\0\0\0"[..],
        b"\xcb\x7f\xf0\0\0\0\0\0\0",
        b"\xff",
        b"\xc4\x01\x05",
        b"\xcb\x3f\xe0\0\0\0\0\0\0",
    ] {
        let head = b"\x84\xa4type\xa3req\xa2id\xa1n\xa6method\xadpresence.list\xa6params\x81\xa5limit";
        sock.send_message(Message::binary([&head[..], limit].concat())).await;
        assert_eq!(sock.response("n").await["error"]["code"], "bad_request", "{limit:?}");
    }
    let twice =
        b"\x84\xa4type\xa3req\xa2id\xa1n\xa6method\xabprofile.set\xa6params\x82\xa4name\xa1a\xa4name\xa1b";
    sock.send_message(Message::binary(twice.to_vec())).await;
    assert_eq!(sock.response("n").await["error"]["code"], "bad_request", "a key twice");
    still_serves(addr).await;
}
