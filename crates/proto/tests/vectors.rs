//! The vectors on disk, held against the public interface: what they call good is good here, what they call bad
//! is bad here, and what they spell is what we spell.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod wire;

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenure_proto::canonical::{Attested, Proof, sign};
use tenure_proto::event::EventBody;
use tenure_proto::fingerprint::fingerprint;
use tenure_proto::ids::{ClientMessageId, RequestId};
use tenure_proto::message::{Address, SendParams};
use tenure_proto::method::Method;
use tenure_proto::noise::NoiseKey;
use tenure_proto::token::ResumeToken;
use tenure_proto::{Cap, Codec, MemberKey, MeshName, MessageId, SessionKey, TopicName, text};
use wire::{CODECS, entries, frame_of, text_of, transcode, vectors};

fn parsed<T: std::str::FromStr>(case: &Value, field: &str) -> T {
    text_of(case, field).parse().ok().unwrap_or_else(|| panic!("{field} of {case}"))
}

/// Key pairs of a file by their public halves.
fn keys(file: &Value) -> BTreeMap<String, SigningKey> {
    let pairs = file["keys"].as_object().expect("keys");
    let pair = |pair: &Value| {
        let key = SigningKey::from_bytes(&text::unhex_array(text_of(pair, "seed")).expect("a seed"));
        assert_eq!(text::hex(key.verifying_key().as_bytes()), text_of(pair, "public"));
        (text_of(pair, "public").to_owned(), key)
    };
    pairs.values().map(pair).collect()
}

/// Both verdicts must occur, or the test would pass with a constant for an answer.
fn count_verdicts(cases: &[Value]) -> (usize, usize) {
    let good = cases.iter().filter(|case| case["valid"] == true).count();
    (good, cases.len() - good)
}

#[test]
fn attestations_hold_exactly_when_the_vectors_say() {
    let file = vectors("signatures.json");
    let keys = keys(&file);
    let cases = entries(&file, "attestations");
    assert_eq!(count_verdicts(cases), (5, 8));
    for case in cases {
        let (mesh, member, session): (MeshName, MemberKey, SessionKey) =
            (parsed(case, "mesh"), parsed(case, "member"), parsed(case, "session"));
        let caps: Option<Vec<Cap>> =
            case.get("caps").map(|caps| serde_json::from_value(caps.clone()).expect("caps"));
        let expires_at = case["expiresAt"].as_u64().expect("expiresAt");
        let attested =
            Attested { mesh: &mesh, member: &member, session: &session, expires_at, caps: caps.as_deref() };
        assert_eq!(attested.line(), text_of(case, "line"), "{case}");
        let valid = case["valid"] == true;
        assert_eq!(attested.verify(text_of(case, "signature")), valid, "{case}");
        let signed = attested.sign(&keys[text_of(case, "member")]);
        assert_eq!(signed == text_of(case, "signature"), valid, "{case}");
    }
}

#[test]
fn proofs_hold_exactly_when_the_vectors_say() {
    let file = vectors("signatures.json");
    let keys = keys(&file);
    let cases = entries(&file, "proofs");
    assert_eq!(count_verdicts(cases), (3, 18));
    for case in cases {
        let (mesh, member, session): (MeshName, MemberKey, SessionKey) =
            (parsed(case, "mesh"), parsed(case, "member"), parsed(case, "session"));
        let proof = Proof {
            mesh: &mesh,
            member: &member,
            session: &session,
            nonce: text_of(case, "nonce"),
            broker: text_of(case, "broker"),
            host: text_of(case, "host"),
        };
        assert_eq!(proof.line(), text_of(case, "line"), "{case}");
        let valid = case["valid"] == true;
        assert_eq!(proof.verify(text_of(case, "signature")), valid, "{case}");
        let signed = sign(&keys[text_of(case, "session")], &proof.line());
        assert_eq!(signed == text_of(case, "signature"), valid, "{case}");
    }
}

#[test]
fn statements_of_keys_hold_exactly_when_the_vectors_say() {
    let file = vectors("signatures.json");
    let keys = keys(&file);
    let cases = entries(&file, "noiseKeys");
    assert_eq!(count_verdicts(cases), (1, 4));
    for case in cases {
        let (mesh, member, session): (MeshName, MemberKey, SessionKey) =
            (parsed(case, "mesh"), parsed(case, "member"), parsed(case, "session"));
        let key = tenure_proto::text::unhex_array(text_of(case, "key")).expect("a key");
        let stated = NoiseKey { mesh: &mesh, member: &member, session: &session, key: &key };
        assert_eq!(stated.line(), text_of(case, "line"), "{case}");
        let valid = case["valid"] == true;
        assert_eq!(stated.verify(text_of(case, "signature")), valid, "{case}");
        let signed = stated.sign(&keys[text_of(case, "session")]);
        assert_eq!(signed == text_of(case, "signature"), valid, "{case}");
    }
}

#[test]
fn tokens_get_the_verdicts_of_the_vectors() {
    let file = vectors("tokens.json");
    let broker = keys(&file)[text_of(&file["keys"]["broker"], "public")].verifying_key().to_bytes();
    let mut verdicts = BTreeSet::new();
    for case in entries(&file, "tokens") {
        let verdict = match ResumeToken::verify(text_of(case, "token"), &broker) {
            Ok(claims) => {
                assert_eq!(json!(claims), case["claims"], "{case}");
                "ok".to_owned()
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(verdict, text_of(case, "verdict"), "{case}");
        verdicts.insert(verdict);
    }
    assert_eq!(verdicts.len(), 3, "{verdicts:?}");
}

fn send_params(case: &Value) -> Result<SendParams, String> {
    Codec::Json.decode(text_of(case, "params").as_bytes()).map_err(|e| e.to_string())
}

fn fingerprint_of(params: &SendParams) -> Result<String, String> {
    let body = match (&params.body, &params.body_b64) {
        (Some(text), None) => text.clone().into_bytes(),
        (None, Some(bytes)) => bytes.0.clone(),
        _ => panic!("one body"),
    };
    let meta = params.meta.as_ref().map(|meta| &meta.0);
    fingerprint(&params.to, params.reply_to.as_deref(), params.priority, meta, &body)
        .map(|print| print.hex())
        .map_err(|error| error.code.to_string())
}

#[test]
fn fingerprints_are_the_hash_of_their_fields_in_either_codec() {
    let file = vectors("fingerprints.json");
    for case in entries(&file, "cases") {
        let fields: Vec<&str> =
            entries(case, "fields").iter().map(|field| field.as_str().expect("a text")).collect();
        assert_eq!(fields.len(), 7);
        let hash = text::hex(&Sha256::digest(fields.join("\0")));
        assert_eq!(hash, text_of(case, "fingerprint"), "{case}");
        assert_eq!(hash[..16], *text_of(case, "prefix"), "{case}");
        let params = send_params(case).expect("params");
        assert_eq!(fingerprint_of(&params).as_ref(), Ok(&hash), "{case}");
        let packed = Codec::MsgPack.encode(&params);
        let unpacked: SendParams = Codec::MsgPack.decode(&packed).expect("params");
        assert_eq!(fingerprint_of(&unpacked), Ok(hash), "{case}");
    }
    for case in entries(&file, "refused") {
        let params = send_params(case).expect("params");
        assert_eq!(fingerprint_of(&params), Err(text_of(case, "error").to_owned()), "{case}");
    }
}

#[test]
fn the_vectors_say_which_sends_are_the_same() {
    let file = vectors("fingerprints.json");
    let mut same: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for case in entries(&file, "cases") {
        same.entry(text_of(case, "fingerprint")).or_default().push(text_of(case, "name"));
    }
    let mut groups: Vec<_> = same.into_values().filter(|names| names.len() > 1).collect();
    groups.sort();
    assert_eq!(
        groups,
        [
            vec!["body empty", "bytes empty"],
            vec!["meta: keys in any order", "meta: keys in order", "meta: white space"],
            vec![
                "to a topic",
                "another id is the same request",
                "priority next is the default",
                "replyTo empty is absent",
                "how it travels is left out",
                "bytes that are text are that text",
                "meta empty is absent",
                "meta null is absent",
            ],
        ]
    );
}

#[test]
fn frames_mean_the_same_in_both_codecs_and_have_one_spelling() {
    let file = vectors("frames.json");
    for case in entries(&file, "frames") {
        let answers = case["method"].as_str().and_then(Method::from_wire);
        assert_eq!(
            serde_json::from_str::<Value>(text_of(case, "json")).expect("JSON"),
            case["value"],
            "{case}"
        );
        for from in CODECS {
            for to in CODECS {
                let bytes = frame_of(case, from).expect("a frame");
                let written = transcode(from, &bytes, answers, to).unwrap_or_else(|e| panic!("{e}: {case}"));
                assert_eq!(written, frame_of(case, to).expect("a frame"), "{from:?} to {to:?}: {case}");
            }
        }
    }
}

#[test]
fn every_method_and_event_has_a_frame() {
    let file = vectors("frames.json");
    let named = |frame: &str, field: &str| -> BTreeSet<String> {
        let cases = entries(&file, "frames").iter().filter(|case| case["frame"] == frame);
        cases.map(|case| text_of(case, field).to_owned()).collect()
    };
    let methods: BTreeSet<String> = Method::ALL.iter().map(|method| method.as_str().to_owned()).collect();
    assert_eq!(named("req", "method"), methods);
    assert_eq!(named("res", "method"), methods);
    assert_eq!(named("event", "event"), EventBody::NAMES.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn tolerated_frames_read_as_the_vectors_say() {
    let file = vectors("frames.json");
    for case in entries(&file, "tolerated") {
        for from in CODECS {
            let bytes = frame_of(case, from).expect("a frame");
            let written =
                transcode(from, &bytes, None, Codec::Json).unwrap_or_else(|e| panic!("{e}: {case}"));
            let reads = case["reads"].as_str().unwrap_or_default();
            assert_eq!(String::from_utf8_lossy(&written), reads, "{from:?}: {case}");
        }
    }
}

#[test]
fn malformed_frames_are_errors() {
    let file = vectors("frames.json");
    let mut counted = [0, 0];
    let mut read = Vec::new();
    for case in entries(&file, "malformed") {
        for (codec, count) in CODECS.into_iter().zip(&mut counted) {
            let Some(bytes) = frame_of(case, codec) else { continue };
            *count += 1;
            if let Ok(bytes) = transcode(codec, &bytes, None, Codec::Json) {
                read.push((codec, text_of(case, "name"), String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
    }
    assert!(read.is_empty(), "{read:#?}");
    assert!(counted.iter().all(|count| *count > 20), "{counted:?}");
}

fn check_spelling<T: std::str::FromStr + ToString>(file: &Value, list: &str) {
    for text in entries(&file[list], "good") {
        let text = text.as_str().expect("a text");
        let value: T = text.parse().ok().unwrap_or_else(|| panic!("{list}: {text:?} is good"));
        assert_eq!(value.to_string(), text, "{list}");
    }
    for text in entries(&file[list], "bad") {
        let text = text.as_str().expect("a text");
        assert!(text.parse::<T>().is_err(), "{list}: {text:?} is bad");
    }
}

#[test]
fn names_and_ids_are_spelled_as_the_vectors_say() {
    let file = vectors("names.json");
    check_spelling::<TopicName>(&file, "names");
    check_spelling::<MeshName>(&file, "names");
    check_spelling::<ClientMessageId>(&file, "clientMessageIds");
    check_spelling::<RequestId>(&file, "requestIds");
    check_spelling::<SessionKey>(&file, "keys");
    check_spelling::<MemberKey>(&file, "keys");
    check_spelling::<MessageId>(&file, "messageIds");
    check_spelling::<Address>(&file, "addresses");
}
