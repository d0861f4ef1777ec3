//! JSON and MessagePack of the same types.

mod delivery;
mod json;
mod msgpack;
mod presence;
mod strict;

pub use delivery::delivery_frame;
pub use presence::presence_frame;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::WireError;
use crate::limits::{SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK};

/// Bytes that most frames need at most. Encoders write a few bytes at a time: a buffer that grows from nothing is
/// copied half a dozen times on the way.
pub const ROOM: usize = 256;

/// How frames are spelled on one socket, chosen by its subprotocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// One JSON object a text message: the default.
    #[default]
    Json,
    /// The same objects as MessagePack maps in binary messages.
    MsgPack,
}

/// Bytes that are not a frame of the expected shape; the text says where and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

impl From<DecodeError> for WireError {
    fn from(error: DecodeError) -> WireError {
        WireError::bad_request(error.0)
    }
}

impl Codec {
    /// The codec of a subprotocol's name.
    pub fn from_subprotocol(name: &str) -> Option<Codec> {
        match name {
            SUBPROTOCOL_JSON => Some(Codec::Json),
            SUBPROTOCOL_MSGPACK => Some(Codec::MsgPack),
            _ => None,
        }
    }

    /// The subprotocol that asks for this codec.
    pub const fn subprotocol(self) -> &'static str {
        match self {
            Codec::Json => SUBPROTOCOL_JSON,
            Codec::MsgPack => SUBPROTOCOL_MSGPACK,
        }
    }

    /// Whether its frames are binary WebSocket messages.
    pub const fn is_binary(self) -> bool {
        matches!(self, Codec::MsgPack)
    }

    /// The bytes of `value`. Our wire types have string keys and finite numbers, so encoding them cannot fail.
    pub fn encode<T: Serialize + ?Sized>(self, value: &T) -> Vec<u8> {
        self.encode_with_room(value, ROOM)
    }

    /// The same for a value of about so many bytes, in room that need not grow if that is right.
    pub fn encode_with_room<T: Serialize + ?Sized>(self, value: &T, room: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(room);
        match self {
            Codec::Json => json::encode(value, &mut out),
            Codec::MsgPack => msgpack::encode(value, &mut out),
        }
        out
    }

    /// The value that `bytes`, all of them, spell. Strict in the same way in both codecs: objects have named fields,
    /// each once at every depth that is read; variants are texts; numbers are finite.
    pub fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, DecodeError> {
        match self {
            Codec::Json => json::decode(bytes),
            Codec::MsgPack => msgpack::decode(bytes),
        }
    }
}
