//! Every parser fed with arbitrary bytes and with good frames gone bad: a value or an error, never a panic, and
//! what was read once can be written and read again.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, Head};
use tenure_proto::hello::HelloParams;
use tenure_proto::ids::{ClientMessageId, ConnId, InstanceId, RequestId, RunId, SubId, Tag};
use tenure_proto::limits::frame_bytes;
use tenure_proto::message::Address;
use tenure_proto::method::Method;
use tenure_proto::token::ResumeToken;
use tenure_proto::{
    Cap, Codec, GroupName, MemberKey, MeshName, MessageId, ServiceName, SessionKey, TopicName, canonical,
    text,
};
use wire::{CODECS, entries, good_frames, method_types, transcode, vectors};

type Frames = Vec<(Vec<u8>, Option<Method>)>;

static JSON: LazyLock<Frames> = LazyLock::new(|| good_frames(Codec::Json));
static MSGPACK: LazyLock<Frames> = LazyLock::new(|| good_frames(Codec::MsgPack));

static TOKENS: LazyLock<serde_json::Value> = LazyLock::new(|| vectors("tokens.json"));

fn frames(codec: Codec) -> &'static Frames {
    match codec {
        Codec::Json => &JSON,
        Codec::MsgPack => &MSGPACK,
    }
}

/// A thousand of each; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(1024), failure_persistence: None, ..usual }
}

fn codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(CODECS.to_vec())
}

/// Reads `bytes` as everything that a frame can be.
fn read_as_everything(codec: Codec, bytes: &[u8]) {
    let _ = frame::params::<HelloParams>(codec, bytes);
    let any =
        Head::decode(codec, &codec.encode(&serde_json::json!({"type": "req", "id": "7", "method": "x"})));
    let any = any.expect("a head");
    for &method in Method::ALL {
        let (request, response) = method_types(method);
        let _ = request(&any, codec, bytes, codec);
        let _ = response(&any, codec, bytes, codec);
    }
    for name in EventBody::NAMES {
        let _ = EventBody::decode(codec, name, bytes);
    }
}

/// If `bytes` read as a frame, what was understood survives both codecs unchanged.
fn read_again(codec: Codec, bytes: &[u8], answers: Option<Method>) -> Result<(), TestCaseError> {
    let Ok(json) = transcode(codec, bytes, answers, Codec::Json) else { return Ok(()) };
    if json.is_empty() {
        return Ok(());
    }
    let packed = transcode(Codec::Json, &json, answers, Codec::MsgPack);
    let packed =
        packed.map_err(|e| TestCaseError::fail(format!("{e}: {}", String::from_utf8_lossy(&json))))?;
    let again = transcode(Codec::MsgPack, &packed, answers, Codec::Json);
    prop_assert_eq!(again.as_ref(), Ok(&json), "{}", String::from_utf8_lossy(&json));
    Ok(())
}

/// One thing that goes wrong with a frame on its way.
#[derive(Clone, Debug)]
enum Harm {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
    Splice(Index, Index, Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    let index = any::<Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Harm::Set(at, byte)),
        (index(), 0u8..8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        (index(), prop_oneof![vec(any::<u8>(), 1..8), token()])
            .prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        (index(), 1usize..16).prop_map(|(at, count)| Harm::Remove(at, count)),
        (index(), 1usize..64).prop_map(|(at, count)| Harm::Repeat(at, count)),
        index().prop_map(Harm::Cut),
        (index(), index(), index()).prop_map(|(other, at, from)| Harm::Splice(other, at, from)),
    ]
}

/// Pieces that mean something to one codec or the other.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let tokens: &[&[u8]] = &[
        b"null",
        b"-1",
        b"1e400",
        b"\"\\ud800\"",
        b"{}",
        b"[[[[",
        b"9007199254740992",
        b"\"type\":\"req\",",
        b"-0.0",
        &[0xc0],
        &[0xc1],
        &[0xdb, 0xff, 0xff, 0xff, 0xff],
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0xdf, 0x7f, 0xff, 0xff, 0xff],
        &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
        &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0xd4, 5, 0],
        &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
        &[0xc6, 0xff, 0xff, 0xff, 0xff],
        &[0x91, 0x91, 0x91, 0x91],
        &[0xa2, 0xc3, 0x28],
    ];
    prop::sample::select(tokens.iter().map(|token| token.to_vec()).collect::<Vec<_>>())
}

fn suffer(codec: Codec, bytes: &mut Vec<u8>, harm: &Harm) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match harm {
        Harm::Set(at, byte) => bytes[at.index(len)] = *byte,
        Harm::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Harm::Insert(at, more) => {
            let at = at.index(len + 1);
            bytes.splice(at..at, more.iter().copied());
        }
        Harm::Remove(at, count) => {
            let at = at.index(len);
            bytes.drain(at..len.min(at + count));
        }
        Harm::Repeat(at, count) => {
            let at = at.index(len);
            let piece = bytes[at..len.min(at + count)].to_vec();
            bytes.splice(at..at, piece);
        }
        Harm::Cut(at) => bytes.truncate(at.index(len)),
        Harm::Splice(other, at, from) => {
            let (other, _) = other.get(frames(codec));
            bytes.truncate(at.index(len));
            bytes.extend_from_slice(&other[from.index(other.len())..]);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_do_no_harm(codec in codec(), bytes in vec(any::<u8>(), 0..256)) {
        read_as_everything(codec, &bytes);
        read_again(codec, &bytes, None)?;
    }

    #[test]
    fn arbitrary_text_does_no_harm(text in "\\PC{0,64}|[\\[\\]{}:,\"\\\\a-e0-9.+-]{0,64}") {
        read_as_everything(Codec::Json, text.as_bytes());
    }

    #[test]
    fn good_frames_gone_bad_do_no_harm(
        codec in codec(),
        which in any::<Index>(),
        harms in vec(harm(), 1..6),
    ) {
        let (mut bytes, answers) = which.get(frames(codec)).clone();
        harms.iter().for_each(|harm| suffer(codec, &mut bytes, harm));
        read_as_everything(codec, &bytes);
        read_again(codec, &bytes, answers)?;
    }

    #[test]
    fn one_wrong_byte_does_no_harm(codec in codec(), which in any::<Index>(), at in any::<Index>(), byte: u8) {
        let (mut bytes, answers) = which.get(frames(codec)).clone();
        suffer(codec, &mut bytes, &Harm::Set(at, byte));
        read_again(codec, &bytes, answers)?;
    }

    #[test]
    fn names_and_ids_parse_or_not(text in "\\PC{0,140}|[a-z0-9._:-]{0,140}|(session|member|topic):[a-f0-9]{60,66}") {
        /// What parses is spelled as it was.
        fn one_spelling<T: std::str::FromStr + ToString>(text: &str) -> bool {
            text.parse::<T>().map_or(true, |value| value.to_string() == text)
        }
        prop_assert!(one_spelling::<MeshName>(&text) && one_spelling::<TopicName>(&text));
        prop_assert!(one_spelling::<GroupName>(&text) && one_spelling::<ServiceName>(&text) && one_spelling::<Cap>(&text));
        prop_assert!(one_spelling::<SessionKey>(&text) && one_spelling::<MemberKey>(&text));
        prop_assert!(one_spelling::<MessageId>(&text) && one_spelling::<RunId>(&text) && one_spelling::<ConnId>(&text));
        prop_assert!(one_spelling::<RequestId>(&text) && one_spelling::<InstanceId>(&text));
        prop_assert!(one_spelling::<Tag>(&text) && one_spelling::<SubId>(&text));
        prop_assert!(one_spelling::<ClientMessageId>(&text) && one_spelling::<Address>(&text));
    }

    #[test]
    fn texts_of_bytes_have_one_spelling(text in "[A-Za-z0-9+/_=-]{0,12}") {
        prop_assert!(text::unhex(&text).is_none_or(|bytes| text::hex(&bytes) == text));
        prop_assert!(text::unb64(&text).is_none_or(|bytes| text::b64(&bytes) == text));
        prop_assert!(text::unb64url(&text).is_none_or(|bytes| text::b64url(&bytes) == text));
    }

    #[test]
    fn tokens_gone_bad_are_refused(which in any::<Index>(), harms in vec(harm(), 1..4), junk in "\\PC{0,80}") {
        let key = text::unhex_array(TOKENS["keys"]["broker"]["public"].as_str().unwrap_or_default()).expect("a key");
        let tokens: Vec<&str> = entries(&TOKENS, "tokens").iter().filter_map(|case| case["token"].as_str()).collect();
        let good: Vec<&str> =
            tokens.iter().copied().filter(|token| ResumeToken::verify(token, &key).is_ok()).collect();
        let mut bytes = which.get(&tokens).as_bytes().to_vec();
        harms.iter().for_each(|harm| suffer(Codec::Json, &mut bytes, harm));
        let bad = String::from_utf8_lossy(&bytes);
        // Harm may undo itself; what verifies must then be one of those that the broker signed.
        prop_assert!(ResumeToken::verify(&bad, &key).is_err() || good.contains(&bad.as_ref()));
        prop_assert!(ResumeToken::verify(&junk, &key).is_err());
        prop_assert!(!canonical::verify(&key, &junk, &bad));
    }

    #[test]
    fn signatures_under_any_key_do_no_harm(key: [u8; 32], line in "\\PC{0,40}", signature in vec(any::<u8>(), 0..80)) {
        prop_assert!(!canonical::verify(&key, &line, &text::b64url(&signature)));
    }
}

/// Frames as large as they may be and as awkward as they can be take about as long as they are large.
#[test]
fn the_largest_frames_are_read_soon() {
    let size = frame_bytes(1024 * 1024);
    let head = r#"{"type":"req","id":"7","method":"send","params":{"to":"topic:t","clientMessageId":"1","body":"x","meta":"#;
    let keys: String = (0..size / 16).map(|n| format!(r#""{n:08}":1,"#)).collect();
    let started = Instant::now();
    for text in [
        format!("{head}{{{keys}\"x\":1}}}}}}"),
        format!("{head}{{\"a\":[{}0]}}}}}}", "{},".repeat(size / 3)),
        format!("{head}{{\"a\":\"{}\"}}}}}}", "\\u0000".repeat(size / 6)),
        format!("{{{keys}\"type\":\"req\",\"id\":\"7\",\"method\":\"ping\"}}"),
        format!("{head}{{\"a\":{}}}}}}}", "9".repeat(size)),
        format!("{head}{{\"a\":0.{}}}}}}}", "123456789".repeat(size / 9)),
    ] {
        let read = transcode(Codec::Json, text.as_bytes(), None, Codec::MsgPack);
        if let Ok(packed) = read {
            assert!(transcode(Codec::MsgPack, &packed, None, Codec::Json).is_ok());
        }
    }
    assert!(started.elapsed() < Duration::from_secs(120), "took {:?}", started.elapsed());
}
