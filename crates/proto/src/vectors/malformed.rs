//! Frames that are errors, in both codecs. Each would be good but for the one thing its name says.

use rmp::encode::{write_bin, write_ext_meta, write_f64, write_map_len, write_pfix, write_str, write_u64};
use serde_json::{Value, json};

use super::samples;
use crate::codec::Codec;
use crate::limits::{FREE_JSON_NESTING, NESTING};
use crate::text;

pub(super) fn malformed() -> Vec<Value> {
    let mut entries: Vec<Value> = [texts(), hellos(), sends(), events()]
        .into_iter()
        .flatten()
        .map(|(name, text)| json!({"name": name, "codec": "json", "json": text, "expect": "error"}))
        .collect();
    let bytes = [envelopes(), values()].into_iter().flatten();
    entries.extend(bytes.map(
        |(name, bytes)| json!({"name": name, "codec": "msgpack", "msgpack": text::hex(&bytes), "expect": "error"}),
    ));
    entries
}

type Texts = Vec<(&'static str, String)>;
type Binaries = Vec<(&'static str, Vec<u8>)>;

/// Not frames, or not one frame.
fn texts() -> Texts {
    let texts = [
        ("empty", ""),
        ("white space", "  \n"),
        ("not JSON", "hello"),
        ("binary garbage", "\u{1}\u{2}\u{fffd}\u{7f}"),
        ("null", "null"),
        ("a number", "7"),
        ("an array", r#"["req","7","ping",{}]"#),
        ("an empty object", "{}"),
        ("unfinished", r#"{"type":"req","id":"7","method":"ping","params":{}"#),
        ("trailing text", r#"{"type":"req","id":"7","method":"ping","params":{}}x"#),
        ("two frames", r#"{"type":"req","id":"7","method":"ping"}{"type":"req","id":"8","method":"ping"}"#),
        ("trailing comma", r#"{"type":"req","id":"7","method":"ping","params":{},}"#),
        ("a comment", r#"{"type":"req","id":"7","method":"ping"/**/}"#),
        ("single quotes", "{'type':'req','id':'7','method':'ping'}"),
        ("no type", r#"{"id":"7","method":"ping","params":{}}"#),
        ("unknown type", r#"{"type":"request","id":"7","method":"ping","params":{}}"#),
        ("type in upper case", r#"{"type":"REQ","id":"7","method":"ping","params":{}}"#),
        ("type is a number", r#"{"type":0,"id":"7","method":"ping","params":{}}"#),
        ("type is an object", r#"{"type":{"req":null},"id":"7","method":"ping","params":{}}"#),
        ("type twice", r#"{"type":"req","type":"req","id":"7","method":"ping","params":{}}"#),
        ("id twice", r#"{"type":"req","id":"7","id":"8","method":"ping","params":{}}"#),
        ("params twice", r#"{"type":"req","id":"7","method":"ping","params":{},"params":{}}"#),
        ("id is a number", r#"{"type":"req","id":7,"method":"ping","params":{}}"#),
        ("id is empty", r#"{"type":"req","id":"","method":"ping","params":{}}"#),
        ("method is a number", r#"{"type":"req","id":"7","method":1,"params":{}}"#),
        ("params is an array", r#"{"type":"req","id":"7","method":"ping","params":[]}"#),
        ("params is a text", r#"{"type":"req","id":"7","method":"ping","params":"x"}"#),
        ("ok is a text", r#"{"type":"res","id":"7","ok":"true","result":{}}"#),
        ("an unpaired surrogate", r#"{"type":"req","id":"7","method":"\ud800","params":{}}"#),
        ("a raw control character", "{\"type\":\"req\",\"id\":\"7\",\"method\":\"pi\nng\",\"params\":{}}"),
    ];
    texts.map(|(name, text)| (name, text.to_owned())).into()
}

/// The least hello after `change` to its text.
fn hello(name: &'static str, from: &str, to: &str) -> (&'static str, String) {
    let good =
        json!({"type": "req", "id": "7", "method": "hello", "params": samples::hello_least()}).to_string();
    let bad = good.replacen(from, to, 1);
    assert_ne!(good, bad, "{name}");
    (name, bad)
}

fn hellos() -> Texts {
    let member = samples::member().to_string();
    let member_field = format!(r#""member":"{member}""#);
    let upper = format!(r#""member":"{}""#, member.to_uppercase());
    let short = format!(r#""member":"{}""#, &member[..62]);
    vec![
        ("hello: no params", r#"{"type":"req","id":"7","method":"hello"}"#.to_owned()),
        hello("hello: no profile", r#""profile":"#, r#""p":"#),
        hello("hello: no proof", r#""proof":"#, r#""p":"#),
        hello("hello: key in upper case", &member_field, &upper),
        hello("hello: key too short", &member_field, &short),
        hello("hello: field twice", &member_field, &format!("{member_field},{member_field}")),
        hello("hello: profile name twice", r#""name":"daemon""#, r#""name":"daemon","name":"daemon""#),
        hello("hello: profile is an array", r#""profile":{"#, r#""profile":["daemon"],"x":{"#),
        hello("hello: illegal mesh", r#""mesh":"default""#, r#""mesh":"Default""#),
        hello("hello: reserved mesh", r#""mesh":"default""#, r#""mesh":"dead""#),
        hello("hello: unknown inbox", r#""inbox":"session""#, r#""inbox":"all""#),
        hello("hello: protocol is a number", r#""protocol":{"max":1,"min":1}"#, r#""protocol":1"#),
        hello("hello: negative version", r#""min":1"#, r#""min":-1"#),
        hello(
            "hello: expiry 2^53",
            r#""proof":"#,
            r#""attestation":{"expiresAt":9007199254740992,"signature":"s"},"proof":"#,
        ),
        hello(
            "hello: negative expiry",
            r#""proof":"#,
            r#""attestation":{"expiresAt":-1,"signature":"s"},"proof":"#,
        ),
        hello(
            "hello: expiry with a fraction",
            r#""proof":"#,
            r#""attestation":{"expiresAt":1.5,"signature":"s"},"proof":"#,
        ),
        hello(
            "hello: illegal cap",
            r#""proof":"#,
            r#""attestation":{"expiresAt":1,"caps":["*"],"signature":"s"},"proof":"#,
        ),
        hello("hello: reconcile neither later nor an object", r#""proof":"#, r#""reconcile":"now","proof":"#),
        hello(
            "hello: position twice",
            r#""proof":"#,
            r#""reconcile":{"subscriptions":[{"subId":"s","topic":"t","positions":{"0":1,"0":2}}]},"proof":"#,
        ),
        hello("hello: two credentials", r#""proof":"#, r#""auth":{"token":"a","invite":"b"},"proof":"#),
        hello("hello: no credential in auth", r#""proof":"#, r#""auth":{},"proof":"#),
        hello("hello: a feature without a name", r#""require":[]"#, r#""require":[{"version":2}]"#),
    ]
}

fn send(more: &str) -> String {
    format!(
        r#"{{"type":"req","id":"7","method":"send","params":{{"to":"topic:jobs","clientMessageId":"1","body":"x"{more}}}}}"#
    )
}

fn sends() -> Texts {
    let meta = |text: &str| send(&format!(r#","meta":{text}"#));
    let deep = |open: &str, close: &str, levels: usize| {
        meta(&format!(r#"{{"a":{}{}}}"#, open.repeat(levels), close.repeat(levels)))
    };
    vec![
        ("send: illegal address", send("").replace("topic:jobs", "jobs")),
        ("send: illegal id", send("").replace(r#""1""#, r#""run:1""#)),
        ("send: body is bytes", send("").replace(r#""x""#, "[120]")),
        ("send: bytes not in base64", send(r#","bodyB64":"?""#)),
        ("send: bytes padded in the middle", send(r#","bodyB64":"eHg=eHh4""#)),
        ("send: bytes not padded", send(r#","bodyB64":"eA""#)),
        ("send: bytes in base64url", send(r#","bodyB64":"_-8=""#)),
        ("send: unknown priority", send(r#","priority":"high""#)),
        ("send: priority is a number", send(r#","priority":1"#)),
        ("send: negative ttl", send(r#","ttlMs":-1"#)),
        ("send: ttl 2^53", send(r#","ttlMs":9007199254740992"#)),
        ("send: meta is an array", meta("[]")),
        ("send: meta has a key twice", meta(r#"{"a":1,"a":1}"#)),
        ("send: meta has an escaped key twice", meta(r#"{"a":1,"\u0061":1}"#)),
        ("send: meta has a key twice inside", meta(r#"{"a":{"b":1,"b":2}}"#)),
        ("send: meta has a key twice inside an array", meta(r#"{"a":[[{"b":1,"c":0,"b":2}]]}"#)),
        ("send: number out of range", meta(r#"{"a":1e999}"#)),
        ("send: meta nested too deeply", deep("[", "]", FREE_JSON_NESTING)),
        ("send: objects nested too deeply", deep(r#"{"a":"#, "}", FREE_JSON_NESTING).replace(":}", ":0}")),
        ("send: nested beyond any frame", deep("[", "]", NESTING * 2)),
        ("run.start: input has a key twice", r#"{"type":"req","id":"7","method":"run.start","params":{"to":"topic:t","input":[{"a":1,"a":2}],"idempotencyKey":"k"}}"#.to_owned()),
    ]
}

fn events() -> Texts {
    let event = |name: &str, seq: &str, data: &str| {
        format!(r#"{{"type":"event","event":"{name}","seq":{seq},"data":{data}}}"#)
    };
    vec![
        ("event: seq 2^53", event("tick", "9007199254740992", r#"{"ts":1}"#)),
        ("event: negative seq", event("tick", "-1", r#"{"ts":1}"#)),
        ("event: seq is a text", event("tick", r#""1""#, r#"{"ts":1}"#)),
        ("event: no data", r#"{"type":"event","event":"tick","seq":1}"#.to_owned()),
        ("event: data is null", event("tick", "1", "null")),
        ("event: data is an array", event("tick", "1", "[1]")),
        ("event: data twice", event("tick", "1", r#"{"ts":1},"data":{"ts":1}"#)),
        ("event: field twice", event("tick", "1", r#"{"ts":1,"ts":1}"#)),
        (
            "event: unknown state",
            event(
                "receipt",
                "1",
                r#"{"id":"01HF7YAT000000000000000007","clientMessageId":"1","state":"lost"}"#,
            ),
        ),
        (
            "event: illegal message id",
            event(
                "receipt",
                "1",
                r#"{"id":"01hf7yat000000000000000007","clientMessageId":"1","state":"dead"}"#,
            ),
        ),
        (
            "event: code beyond 16 bits",
            event("closing", "null", r#"{"code":70000,"reason":"bye","retryable":false}"#),
        ),
    ]
}

/// A map of these fields, whatever they are: keys may repeat.
fn map(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_map_len(&mut bytes, u32::try_from(fields.len()).expect("few fields")).expect("a length");
    for (key, value) in fields {
        write_str(&mut bytes, key).expect("a key");
        bytes.extend_from_slice(value);
    }
    bytes
}

fn pack(value: Value) -> Vec<u8> {
    Codec::MsgPack.encode(&value)
}

/// A ping whose envelope ends with `more`.
fn ping(more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut fields =
        vec![("type", pack(json!("req"))), ("id", pack(json!("7"))), ("method", pack(json!("ping")))];
    fields.extend_from_slice(more);
    map(&fields)
}

fn envelopes() -> Binaries {
    let good = ping(&[("params", map(&[]))]);
    let with = |tail: &[u8]| [good.as_slice(), tail].concat();
    let mut number_key = Vec::new();
    write_map_len(&mut number_key, 2).expect("a length");
    for (key, value) in [(0, "req"), (1, "7")] {
        write_pfix(&mut number_key, key).expect("a key");
        write_str(&mut number_key, value).expect("a value");
    }
    vec![
        ("empty", Vec::new()),
        ("binary garbage", vec![0xc1, 0xff, 0x00, 0x13]),
        ("nil", vec![0xc0]),
        ("JSON", br#"{"type":"req","id":"7","method":"ping","params":{}}"#.to_vec()),
        ("an array", pack(json!(["req", "7", "ping", {}]))),
        ("an empty map", vec![0x80]),
        ("unfinished", good[..good.len() - 1].to_vec()),
        ("trailing bytes", with(&[0xc0])),
        ("two frames", with(&good)),
        ("no type", map(&[("id", pack(json!("7"))), ("method", pack(json!("ping")))])),
        ("type is a number", map(&[("type", pack(json!(0))), ("id", pack(json!("7")))])),
        ("keys are numbers", number_key),
        ("type twice", ping(&[("type", pack(json!("req")))])),
        ("params twice", ping(&[("params", map(&[])), ("params", map(&[]))])),
        ("params is an array", ping(&[("params", pack(json!([])))])),
        ("text longer than the frame", ping(&[("params", vec![0xdb, 0xff, 0xff, 0xff, 0xff])])),
        ("map longer than the frame", ping(&[("params", vec![0xdf, 0xff, 0xff, 0xff, 0xff])])),
        ("array longer than the frame", ping(&[("params", vec![0xdd, 0xff, 0xff, 0xff, 0xff])])),
        ("text that is not UTF-8", map(&[("type", pack(json!("req"))), ("method", vec![0xa2, 0xc3, 0x28])])),
        ("nested too deeply", ping(&[("new", [vec![0x91; NESTING * 2], vec![0xc0]].concat())])),
    ]
}

/// A send whose params end with `more`.
fn send_packed(more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut params = vec![
        ("to", pack(json!("topic:jobs"))),
        ("clientMessageId", pack(json!("1"))),
        ("body", pack(json!("x"))),
    ];
    params.extend_from_slice(more);
    map(&[
        ("type", pack(json!("req"))),
        ("id", pack(json!("7"))),
        ("method", pack(json!("send"))),
        ("params", map(&params)),
    ])
}

fn values() -> Binaries {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        bytes
    };
    let float = |value: f64| written(&|bytes| write_f64(bytes, value).expect("a float"));
    let meta = |value: Vec<u8>| send_packed(&[("meta", map(&[("a", value)]))]);
    let twice = || map(&[("b", pack(json!(1))), ("b", pack(json!(2)))]);
    let extension = written(&|bytes| {
        write_ext_meta(bytes, 1, 5).expect("an extension");
        bytes.push(0);
    });
    let blob = written(&|bytes| write_bin(bytes, &[1, 2]).expect("bytes"));
    let large = written(&|bytes| write_u64(bytes, 1 << 53).expect("an integer"));
    let mut number_key = vec![0x81];
    write_pfix(&mut number_key, 1).expect("a key");
    write_pfix(&mut number_key, 1).expect("a value");
    vec![
        ("send: field twice", send_packed(&[("to", pack(json!("topic:jobs")))])),
        ("send: priority is a number", send_packed(&[("priority", pack(json!(1)))])),
        ("send: ttl 2^53", send_packed(&[("ttlMs", large)])),
        ("send: negative ttl", send_packed(&[("ttlMs", pack(json!(-1)))])),
        ("send: ttl with a fraction", send_packed(&[("ttlMs", float(1.5))])),
        ("send: ttl is not a number", send_packed(&[("ttlMs", float(f64::NAN))])),
        ("send: meta has a key twice", send_packed(&[("meta", twice())])),
        ("send: meta has a key twice inside", meta(twice())),
        ("send: meta has a number for a key", send_packed(&[("meta", number_key)])),
        ("send: meta has bytes", meta(blob)),
        ("send: meta has an extension", meta(extension)),
        ("send: meta has NaN", meta(float(f64::NAN))),
        ("send: meta has infinity", meta(float(f64::INFINITY))),
        ("send: meta nested too deeply", meta([vec![0x91; FREE_JSON_NESTING], vec![0xc0]].concat())),
        ("send: bytes not in base64", send_packed(&[("bodyB64", pack(json!("?")))])),
    ]
}
