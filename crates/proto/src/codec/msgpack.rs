//! MessagePack: the same objects as maps with string keys; as strict as our JSON.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::DecodeError;
use super::strict::Strict;
use crate::limits::NESTING;

pub(super) fn encode<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    if rmp_serde::encode::write_named(out, value).is_err() {
        out.clear();
    }
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    // From a slice, so that texts are taken from where they stand.
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(NESTING);
    let value = T::deserialize(Strict(&mut decoder)).map_err(|e| DecodeError(e.to_string()))?;
    match <()>::deserialize(&mut decoder) {
        // There was not even a first byte of anything else.
        Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(DecodeError("more follows the object".to_owned())),
    }
}
