//! MessagePack: the same objects as maps with string keys; as strict as our JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DecodeError;
use super::strict::Strict;
use crate::limits::NESTING;

pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut rest = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    decoder.set_max_depth(NESTING);
    let value = T::deserialize(Strict(&mut decoder)).map_err(|e| DecodeError(e.to_string()))?;
    if !rest.is_empty() {
        return Err(DecodeError(format!("{} bytes follow the object", rest.len())));
    }
    Ok(value)
}
