//! JSON, strict where it matters: trailing bytes, duplicate keys and nesting over 127 levels are errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DecodeError;
use super::strict::Strict;

pub(super) fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.clear();
    }
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut decoder = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Strict(&mut decoder)).map_err(|e| DecodeError(e.to_string()))?;
    decoder.end().map_err(|e| DecodeError(e.to_string()))?;
    Ok(value)
}
