//! What may come instead of a hello, and how it is turned away.

use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::common::sock::assert_closing;
use crate::common::{LONG, Sock, Who, broker, still_serves};

/// A first frame that cannot be answered: only `closing` tells.
async fn mute_refusal(addr: std::net::SocketAddr, what: &str, message: Message) {
    let mut sock = Sock::open(addr).await;
    sock.send_message(message).await;
    let ended = sock.ended().await;
    assert!(ended.frames.is_empty(), "{what}: {:?}", ended.frames);
    assert_closing(&ended.closing, 1008, "bad_first_frame", false);
}

#[tokio::test]
async fn garbage_is_closed_as_a_bad_first_frame() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let good = {
        let sock = Sock::open(addr).await;
        json!({"type": "req", "id": "1", "method": "hello", "params": sock.hello_of(&Who::new("a"))})
            .to_string()
    };
    let texts: Vec<(&str, String)> = vec![
        ("nothing", String::new()),
        ("a line of prose", "hello, is anybody there?".into()),
        ("truncated JSON", good[..good.len() / 2].into()),
        ("one byte short", good[..good.len() - 1].into()),
        ("two frames in one message", format!("{good}{good}")),
        ("an array", "[]".into()),
        (
            "the fields of a frame as an array",
            r#"["req","1","hello",null,null,null,{},null,null,null]"#.into(),
        ),
        ("a number", "42".into()),
        ("null", "null".into()),
        ("a text", "\"hello\"".into()),
        ("an object without a type", r#"{"id":"1","method":"hello"}"#.into()),
        ("an unknown type", r#"{"type":"request","id":"1","method":"hello"}"#.into()),
        ("a type in upper case", r#"{"type":"REQ","id":"1","method":"hello"}"#.into()),
        ("a hello without an id", r#"{"type":"req","method":"hello","params":{}}"#.into()),
        ("an id that is a number", r#"{"type":"req","id":1,"method":"hello","params":{}}"#.into()),
        ("an empty id", r#"{"type":"req","id":"","method":"hello","params":{}}"#.into()),
        ("an endless id", format!(r#"{{"type":"req","id":"{}","method":"hello"}}"#, "x".repeat(129))),
        ("an event", r#"{"type":"event","event":"challenge","data":{}}"#.into()),
        ("a response", r#"{"type":"res","id":"1","ok":true,"result":{}}"#.into()),
        ("type twice", good.replacen('{', r#"{"type":"req","#, 1)),
        ("id twice", good.replacen('{', r#"{"id":"0","#, 1)),
        ("method twice", good.replacen('{', r#"{"method":"ping","#, 1)),
        ("params twice", good.replacen('{', r#"{"params":{},"#, 1)),
        ("not a number", r#"{"type":"req","id":"1","method":"hello","params":NaN}"#.into()),
        ("a NUL", format!("{good}\0")),
        ("a byte order mark", format!("\u{feff}{good}")),
        ("arrays without an end", "[".repeat(60_000)),
    ];
    for (what, text) in texts {
        mute_refusal(addr, what, Message::text(text)).await;
    }
    mute_refusal(addr, "binary on a JSON socket", Message::binary(good.into_bytes())).await;
    still_serves(addr).await;
}

#[tokio::test]
async fn a_request_other_than_hello_is_answered_and_closed() {
    let broker = broker(LONG).await;
    for (method, params) in
        [("ping", json!({})), ("presence.list", json!({"limit": 5})), ("bye", json!({})), ("x", json!(1))]
    {
        let mut sock = Sock::open(broker.addr()).await;
        sock.send(&json!({"type": "req", "id": "7", "method": method, "params": params})).await;
        let ended = sock.ended().await;
        assert_eq!(ended.frames.len(), 1, "{:?}", ended.frames);
        assert_eq!(ended.frames[0]["id"], "7");
        assert_eq!(ended.frames[0]["error"]["code"], "bad_request");
        assert_eq!(ended.frames[0]["error"]["retryable"], false);
        assert_closing(&ended.closing, 1008, "bad_first_frame", false);
    }
    // A request without a method has an id, so it is answered too.
    let mut sock = Sock::open(broker.addr()).await;
    sock.send(&json!({"type": "req", "id": "8", "params": {}})).await;
    let ended = sock.ended().await;
    assert_eq!(ended.frames[0]["error"]["code"], "bad_request");
    assert_closing(&ended.closing, 1008, "bad_first_frame", false);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_hello_with_malformed_params_is_answered_and_closed() {
    let broker = broker(LONG).await;
    let addr = broker.addr();
    let who = Who::new("malformed");
    let good = Sock::open(addr).await.hello_of(&who);
    let text = good.to_string();
    let doubled = |object: &str, field: &str| {
        assert!(text.contains(object), "{object}");
        text.replacen(object, &format!("{object}{field},"), 1)
    };
    let mut cases: Vec<(String, String)> = vec![
        ("null params".into(), "null".into()),
        ("params as an array".into(), "[]".into()),
        ("params as a text".into(), "\"\"".into()),
        ("nothing in params".into(), "{}".into()),
        ("half a character".into(), text.replacen("malformed", r"\ud800", 1)),
        ("nothing but depth".into(), format!("{}{}", "[".repeat(30_000), "]".repeat(30_000))),
        ("a key of params twice".into(), doubled("{", r#""mesh":"default""#)),
        ("a key of profile twice".into(), doubled(r#""profile":{"#, r#""name":"other""#)),
        ("a key of client twice".into(), doubled(r#""client":{"#, r#""name":"other""#)),
        ("a key of attestation twice".into(), doubled(r#""attestation":{"#, r#""expiresAt":1"#)),
    ];
    for field in ["protocol", "client", "mesh", "member", "session", "proof", "profile"] {
        let mut hello = good.clone();
        hello.as_object_mut().unwrap().remove(field);
        cases.push((format!("no {field}"), hello.to_string()));
    }
    let hex = who.id();
    let spoiled = [
        ("/session", json!("zz".repeat(32))),
        ("/session", json!(hex.to_uppercase())),
        ("/session", json!(hex[..62])),
        ("/session", json!(format!("{hex}00"))),
        ("/session", json!(format!("0x{}", &hex[..62]))),
        ("/session", json!(7)),
        ("/member", json!(crate::common::keys::hex(&who.member).to_uppercase())),
        ("/member", json!("")),
        ("/mesh", json!("Default")),
        ("/mesh", json!("dead")),
        ("/mesh", json!("")),
        ("/mesh", json!("x".repeat(65))),
        ("/mesh", json!("a|b")),
        ("/protocol", json!({"min": 1})),
        ("/protocol", json!({"min": -1, "max": 1})),
        ("/protocol", json!([1, 1])),
        ("/client/instanceId", json!("")),
        ("/client/instanceId", json!("x".repeat(129))),
        ("/client/instanceId", json!("with space")),
        ("/attestation/expiresAt", json!(-1)),
        ("/attestation/expiresAt", json!(1.5)),
        ("/attestation/expiresAt", json!(9_007_199_254_740_992_u64)),
        ("/attestation/signature", json!(null)),
        ("/proof", json!([])),
        ("/profile", json!("name")),
        ("/profile", json!({"name": ""})),
        ("/profile", json!({"name": "x".repeat(129)})),
        ("/profile", json!({"name": "a", "status": "asleep"})),
        ("/profile", json!({"name": "a", "summary": "x".repeat(1025)})),
        ("/profile", json!({"name": "a", "lastInputSeconds": -1})),
        ("/profile", json!({"name": "a", "tags": vec!["t"; 33]})),
        ("/profile", json!({"name": "a", "tags": ["x".repeat(65)]})),
        ("/profile", json!({"name": "a", "tags": "t"})),
    ];
    for (pointer, value) in spoiled {
        let mut hello = good.clone();
        *hello.pointer_mut(pointer).unwrap() = value.clone();
        cases.push((format!("{pointer} = {value}"), hello.to_string()));
    }
    for (field, value) in [
        ("inbox", json!("everything")),
        ("features", json!([])),
        ("features", json!({"require": "resume"})),
        ("reconcile", json!("sooner")),
        ("auth", json!({"token": "a", "invite": "b"})),
    ] {
        let mut hello = good.clone();
        hello[field] = value.clone();
        cases.push((format!("{field} = {value}"), hello.to_string()));
    }
    for (what, params) in cases {
        let mut sock = Sock::open(addr).await;
        sock.send_text(format!(r#"{{"type":"req","id":"h","method":"hello","params":{params}}}"#)).await;
        let ended = sock.ended().await;
        assert_eq!(ended.frames.len(), 1, "{what}: {:?}", ended.frames);
        let answer = &ended.frames[0];
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("h"), &json!("bad_request")), "{what}");
        assert_closing(&ended.closing, 1008, "bad_first_frame", false);
    }
    still_serves(addr).await;
}

#[tokio::test]
async fn a_first_frame_may_have_64_kib_and_not_a_byte_more() {
    let broker = broker(LONG).await;
    let padded = |sock: &Sock, who: &Who, bytes: usize| {
        let params = sock.hello_of(who);
        let frame = json!({"type": "req", "id": "hello", "method": "hello", "params": params, "pad": ""});
        let room = bytes - frame.to_string().len();
        let mut frame = frame;
        frame["pad"] = json!("x".repeat(room));
        assert_eq!(frame.to_string().len(), bytes);
        frame
    };
    let who = Who::new("just fits");
    let mut sock = Sock::open(broker.addr()).await;
    let frame = padded(&sock, &who, 64 * 1024);
    sock.send(&frame).await;
    assert_eq!(sock.frame().await["ok"], true);
    // One byte over, and far over what is read at all.
    for bytes in [64 * 1024 + 1, 1024 * 1024, 8 * 1024 * 1024] {
        let mut sock = Sock::open(broker.addr()).await;
        let frame = padded(&sock, &Who::new("too large"), bytes);
        sock.send(&frame).await;
        let ended = sock.ended().await;
        assert!(ended.frames.is_empty(), "{:?}", ended.frames);
        assert_closing(&ended.closing, 1009, "too_large", true);
    }
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_text_that_is_not_utf8_is_garbage_like_any_other() {
    let broker = broker(LONG).await;
    let mut sock = Sock::open(broker.addr()).await;
    let frame = Frame::message(vec![b'{', 0xff, 0xfe, b'}'], OpCode::Data(Data::Text), true);
    sock.send_message(Message::Frame(frame)).await;
    let ended = sock.ended().await;
    assert!(ended.frames.is_empty());
    assert_closing(&ended.closing, 1008, "bad_first_frame", false);
    still_serves(broker.addr()).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_its_hello_is_let_go() {
    let broker = broker(LONG).await;
    let mut sock = Sock::open(broker.addr()).await;
    sock.send_message(Message::Close(None)).await;
    assert!(matches!(sock.recv().await, crate::common::Got::Cut | crate::common::Got::Closed(..)));
    Sock::open(broker.addr()).await.cut();
    // Control frames are not first frames.
    let (who, mut sock) = (Who::new("pings first"), Sock::open(broker.addr()).await);
    sock.send_message(Message::Ping(vec![1, 2, 3].into())).await;
    sock.send_message(Message::Pong(vec![].into())).await;
    let hello = sock.hello_of(&who);
    assert!(matches!(sock.recv().await, crate::common::Got::Pong));
    assert_eq!(sock.hello(hello).await["lease"], "new");
    still_serves(broker.addr()).await;
}
