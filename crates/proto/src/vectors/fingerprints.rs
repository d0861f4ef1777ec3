//! `fingerprints.json`: sends, and what makes two of them the same request.

use serde_json::{Map, Value, json};

use super::{MEMBER, SESSION, key};
use crate::canonical::{member_key, session_key};
use crate::codec::Codec;
use crate::fingerprint::fingerprint;
use crate::message::SendParams;

pub(super) fn fingerprints() -> Value {
    let cases: Vec<_> = cases().into_iter().map(|(name, params)| case(name, &params)).collect();
    let refused: Vec<_> = refused()
        .into_iter()
        .map(|(name, params)| json!({"name": name, "params": params, "error": "bad_request"}))
        .collect();
    json!({
        "about": "`params` is the JSON text of a send's params: read it with your own parser. `fields` are joined by \
                  one NUL and hashed with SHA-256. Cases with the same `fingerprint` are the same request.",
        "cases": cases,
        "refused": refused,
    })
}

/// The text of params to a topic with `more` after the fields that every send has.
fn to_topic(more: &str) -> String {
    format!(r#"{{"to":"topic:jobs","clientMessageId":"1"{more}}}"#)
}

fn meta(text: &str) -> String {
    to_topic(&format!(r#","body":"x","meta":{text}"#))
}

fn cases() -> Vec<(&'static str, String)> {
    let session = session_key(&key(SESSION));
    let member = member_key(&key(MEMBER));
    vec![
        ("to a topic", to_topic(r#","body":"x""#)),
        ("to a session", format!(r#"{{"to":"session:{session}","clientMessageId":"1","body":"x"}}"#)),
        ("to a member", format!(r#"{{"to":"member:{member}","clientMessageId":"1","body":"x"}}"#)),
        (
            "another id is the same request",
            r#"{"to":"topic:jobs","clientMessageId":"2","body":"x"}"#.to_owned(),
        ),
        ("priority next is the default", to_topic(r#","body":"x","priority":"next""#)),
        ("priority now", to_topic(r#","body":"x","priority":"now""#)),
        ("priority low", to_topic(r#","body":"x","priority":"low""#)),
        ("replyTo", to_topic(r#","body":"x","replyTo":"01HF7YAT000000000000000007""#)),
        ("replyTo empty is absent", to_topic(r#","body":"x","replyTo":"""#)),
        ("replyTo in unicode", to_topic(r#","body":"x","replyTo":"für dich \u2603""#)),
        (
            "how it travels is left out",
            to_topic(
                r#","body":"x","key":"k","ttlMs":1,"delayMs":2,"fallback":"fail","contentType":"text/plain""#,
            ),
        ),
        ("body empty", to_topic(r#","body":"""#)),
        ("body in unicode", to_topic(r#","body":"größer \ud83d\ude00""#)),
        ("body with NUL", to_topic(r#","body":"a\u0000b""#)),
        ("bytes that are text are that text", to_topic(r#","bodyB64":"eA==""#)),
        ("bytes", to_topic(r#","bodyB64":"AP+A/w==""#)),
        ("bytes empty", to_topic(r#","bodyB64":"""#)),
        ("meta empty is absent", meta("{}")),
        ("meta null is absent", meta("null")),
        ("meta", meta(r#"{"a":1}"#)),
        ("meta: keys in any order", meta(r#"{"b":2,"a":1}"#)),
        ("meta: keys in order", meta(r#"{"a":1,"b":2}"#)),
        ("meta: white space", meta("{ \"a\" :\n1 , \"b\":\t2 }")),
        (
            "meta: order is that of UTF-16",
            meta(r#"{"\ud83d\ude00":1,"\ufb33":2,"é":3,"z":4,"€":5,"\r":6,"1":7}"#),
        ),
        ("meta: escapes", meta(r#"{"s":"\u0000\u0007\b\t\n\f\r\"\\\/\u007f\u00e9\u2028"}"#)),
        ("meta: not normalised", meta(r#"{"composed":"é","decomposed":"e\u0301"}"#)),
        ("meta: nested", meta(r#"{"z":{"y":[{"b":null,"a":true},[],{}],"x":false},"a":"text"}"#)),
        (
            "meta: numbers",
            meta("{\"n\":[0,-0,-0.0,1,1.0,1e0,10E-1,0.1,1.5,100,1e2,-17,0.000001,1e-7,123456789.125]}"),
        ),
        ("meta: largest integers", meta("{\"n\":[9007199254740991,-9007199254740991,9007199254740991.0]}")),
        (
            "meta: hard fractions",
            meta(
                "{\"n\":[5e-324,2.2250738585072014e-308,0.30000000000000004,4.35,1e-400,333333333.33333329]}",
            ),
        ),
    ]
}

fn refused() -> Vec<(&'static str, String)> {
    vec![
        ("NUL in replyTo", to_topic(r#","body":"x","replyTo":"a\u0000b""#)),
        ("integer 2^53 in meta", meta(r#"{"n":9007199254740992}"#)),
        ("integer -2^53 in meta", meta(r#"{"n":-9007199254740992}"#)),
        ("2^53 as a fraction", meta(r#"{"n":9007199254740992.0}"#)),
        ("2^64 - 1", meta(r#"{"n":18446744073709551615}"#)),
        ("10^20 in digits", meta(r#"{"n":100000000000000000000}"#)),
        ("10^20 with an exponent", meta(r#"{"n":1e20}"#)),
        ("deep inside meta", meta(r#"{"a":[{"b":{"c":[1,9007199254740993]}}]}"#)),
    ]
}

fn case(name: &str, text: &str) -> Value {
    let params: SendParams = Codec::Json.decode(text.as_bytes()).expect("params of a send");
    let body = params.body.as_ref().map(|body| body.clone().into_bytes());
    let body = body.or(params.body_b64.map(|bytes| bytes.0)).unwrap_or_default();
    let free = params.meta.map(|meta| meta.0);
    let print = fingerprint(&params.to, params.reply_to.as_deref(), params.priority, free.as_ref(), &body);
    let (kind, reference) = params.to.kind_and_ref();
    let fields = [
        "1",
        kind,
        &reference,
        params.reply_to.as_deref().unwrap_or(""),
        params.priority.as_str(),
        &canonical(free),
        &crate::text::hex(&<sha2::Sha256 as sha2::Digest>::digest(&body)),
    ];
    let print = print.expect("a fingerprint");
    json!({"name": name, "params": text, "fields": fields, "fingerprint": print.hex(), "prefix": print.prefix()})
}

fn canonical(meta: Option<Map<String, Value>>) -> String {
    let meta = meta.filter(|meta| !meta.is_empty());
    meta.map(|meta| serde_json_canonicalizer::to_string(&meta).expect("canonical JSON")).unwrap_or_default()
}
