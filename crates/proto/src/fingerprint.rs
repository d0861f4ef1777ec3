//! The request fingerprint: what makes two sends "the same request".
//!
//! SHA-256 over seven fields joined by one 0x00. `key, ttlMs, delayMs, fallback, contentType` are left out on
//! purpose: a retry that changes only how a message travels is still a retry.

use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};

use crate::error::WireError;
use crate::message::{Address, Priority};
use crate::number::U53;
use crate::text;

/// A request fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// All of it in lower-case hex.
    pub fn hex(&self) -> String {
        text::hex(&self.0)
    }

    /// The first eight bytes in lower-case hex: enough to tell two apart, useless for anything else.
    pub fn prefix(&self) -> String {
        text::hex(&self.0[..8])
    }
}

/// The fingerprint of a request to send `body` to `to`.
pub fn fingerprint(
    to: &Address,
    reply_to: Option<&str>,
    priority: Priority,
    meta: Option<&Map<String, Value>>,
    body: &[u8],
) -> Result<Fingerprint, WireError> {
    let (kind, reference) = to.kind_and_ref();
    let meta = canonical_meta(meta)?;
    let body = text::hex(&Sha256::digest(body));
    let fields = ["1", kind, &reference, reply_to.unwrap_or(""), priority.as_str(), &meta, &body];
    let mut hash = Sha256::new();
    for (index, field) in fields.iter().enumerate() {
        if field.as_bytes().contains(&0) {
            let name = match index {
                1 | 2 => "to",
                3 => "replyTo",
                _ => "meta",
            };
            let error = WireError::bad_request("a NUL character may not stand in to, replyTo or meta");
            return Err(error.about(name));
        }
        if index > 0 {
            hash.update([0]);
        }
        hash.update(field.as_bytes());
    }
    Ok(Fingerprint(hash.finalize().into()))
}

/// `meta` as RFC 8785 JSON; absent and `{}` are both empty.
fn canonical_meta(meta: Option<&Map<String, Value>>) -> Result<String, WireError> {
    let Some(meta) = meta.filter(|m| !m.is_empty()) else { return Ok(String::new()) };
    if !meta.values().all(safe_numbers) {
        let error = WireError::bad_request("numbers in meta must be below 2^53 in magnitude");
        return Err(error.about("meta"));
    }
    serde_json_canonicalizer::to_string(meta)
        .map_err(|_| WireError::bad_request("meta has no canonical JSON form").about("meta"))
}

/// What a run is called with, as RFC 8785 JSON: the body of its message.
pub fn canonical_input(input: &Value) -> Result<String, WireError> {
    if !safe_numbers(input) {
        return Err(WireError::bad_request("numbers in input must be below 2^53 in magnitude"));
    }
    serde_json_canonicalizer::to_string(input)
        .map_err(|_| WireError::bad_request("input has no canonical JSON form"))
}

/// Whether every number in `value` is one that all languages read alike: RFC 8785 knows only doubles.
fn safe_numbers(value: &Value) -> bool {
    match value {
        Value::Number(number) => safe_number(number),
        Value::Array(items) => items.iter().all(safe_numbers),
        Value::Object(fields) => fields.values().all(safe_numbers),
        _ => true,
    }
}

/// By value, not by spelling: `1e20`, `100000000000000000000` and a MessagePack float are one number to most
/// languages, so they must share one verdict. (No double beyond the limit has a fraction.)
fn safe_number(number: &Number) -> bool {
    number.as_f64().is_some_and(|n| n.abs() <= U53::MAX.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn print(meta: Value, body: &[u8]) -> Result<Fingerprint, WireError> {
        let to: Address = "topic:jobs".parse().unwrap();
        fingerprint(&to, None, Priority::Next, meta.as_object(), body)
    }

    #[test]
    fn absent_and_empty_meta_are_the_same_and_key_order_does_not_matter() {
        assert_eq!(print(Value::Null, b"x").unwrap(), print(json!({}), b"x").unwrap());
        assert_eq!(print(json!({"a":1,"b":2}), b"x").unwrap(), print(json!({"b":2,"a":1.0}), b"x").unwrap());
        assert_ne!(print(json!({"a":1}), b"x").unwrap(), print(json!({"a":2}), b"x").unwrap());
        assert_ne!(print(Value::Null, b"x").unwrap(), print(Value::Null, b"y").unwrap());
    }

    #[test]
    fn nul_and_unsafe_integers_are_refused() {
        let to: Address = "topic:jobs".parse().unwrap();
        assert!(fingerprint(&to, Some("a\0b"), Priority::Next, None, b"").is_err());
        assert!(print(json!({"n": 9007199254740992u64}), b"").is_err());
        assert!(print(json!({"n": [{"m": -9007199254740992i64}]}), b"").is_err());
        assert!(print(json!({"n": 9007199254740991u64}), b"").is_ok());
        assert!(print(json!({"n": 1e20}), b"").is_err(), "a float is judged by its value too");
        assert!(print(json!({"n": 0.5}), b"").is_ok());
    }
}
