//! `tokens.json`: resume tokens and what a broker says of them.

use serde_json::{Value, json};

use super::{BROKER, OTHER_BROKER, SESSION, STRANGER, key, key_pair};
use crate::canonical::{self, session_key};
use crate::limits::TOKEN_BYTES;
use crate::number::U53;
use crate::text;
use crate::token::ResumeToken;

const PREFIX: &str = "tenure-resume.v1.";

pub(super) fn tokens() -> Value {
    let claims = ResumeToken {
        sub: session_key(&key(SESSION)),
        mid: "default".parse().expect("a mesh"),
        bid: "cluster-1".parse().expect("a cluster"),
        lid: "lease-1".parse().expect("a lease"),
        iat: U53::saturating(1_700_000_000_000),
    };
    let good = claims.issue(&key(BROKER));
    let others = ResumeToken { sub: session_key(&key(STRANGER)), ..claims.clone() };
    let parts: Vec<&str> = good.rsplitn(2, '.').collect();
    let (signature, signed) = (parts[0], parts[1]);
    let swapped = others.issue(&key(BROKER));
    let swapped = swapped.rsplit_once('.').map_or("", |(signed, _)| signed);
    let verdicts = [
        ("good", good.clone(), "ok"),
        ("good, of another session", others.issue(&key(BROKER)), "ok"),
        ("unknown claims beside ours", signed_payload(&with(&claims, "new", json!(1))), "ok"),
        ("forged: signed by a stranger", claims.issue(&key(STRANGER)), "bad_signature"),
        ("of another broker", claims.issue(&key(OTHER_BROKER)), "bad_signature"),
        ("forged: another session under this signature", format!("{swapped}.{signature}"), "bad_signature"),
        ("signature short", format!("{signed}.{}", &signature[..84]), "bad_signature"),
        ("signature empty", format!("{signed}."), "bad_signature"),
        ("truncated after the payload", signed.to_owned(), "malformed"),
        ("truncated within the payload", good[..60].to_owned(), "malformed"),
        ("only the prefix", PREFIX.to_owned(), "malformed"),
        ("empty", String::new(), "malformed"),
        ("another version", good.replace(".v1.", ".v2."), "malformed"),
        ("padded payload", format!("{signed}==.{signature}"), "malformed"),
        ("payload is not JSON", signed_payload(b"not json"), "malformed"),
        ("payload lacks a claim", signed_payload(&without(&claims, "lid")), "malformed"),
        (
            "session key in upper case",
            signed_payload(&with(&claims, "sub", json!("AB".repeat(32)))),
            "malformed",
        ),
        ("issued at 2^53", signed_payload(&with(&claims, "iat", json!(1u64 << 53))), "malformed"),
        ("longer than any token", format!("{signed}.{}", "A".repeat(TOKEN_BYTES)), "malformed"),
    ];
    let cases: Vec<_> = verdicts
        .into_iter()
        .map(|(name, token, verdict)| {
            let mut case = json!({"name": name, "token": token, "verdict": verdict});
            if verdict == "ok" {
                let claims = ResumeToken::verify(&token, key(BROKER).verifying_key().as_bytes());
                case["claims"] = json!(claims.expect("a good token"));
            }
            case
        })
        .collect();
    json!({
        "about": "Resume tokens, as the broker with the key `broker` judges them. A bad one never refuses a hello.",
        "keys": {"broker": key_pair(BROKER), "otherBroker": key_pair(OTHER_BROKER)},
        "tokens": cases,
    })
}

/// A token with this payload and a true signature over it.
fn signed_payload(payload: &[u8]) -> String {
    let signed = format!("{PREFIX}{}", text::b64url(payload));
    let signature = canonical::sign(&key(BROKER), &signed);
    format!("{signed}.{signature}")
}

fn with(claims: &ResumeToken, claim: &str, value: Value) -> Vec<u8> {
    let mut payload = json!(claims);
    payload[claim] = value;
    payload.to_string().into_bytes()
}

fn without(claims: &ResumeToken, claim: &str) -> Vec<u8> {
    let mut payload = json!(claims);
    payload.as_object_mut().map(|fields| fields.remove(claim));
    payload.to_string().into_bytes()
}
