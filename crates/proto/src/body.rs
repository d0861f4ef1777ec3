//! What a message carries beside plain text: bytes, and free facts.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use crate::limits::FREE_JSON_NESTING;

/// Bytes: standard base64 in JSON; in MessagePack a `bin`, or the same text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&crate::text::b64(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl de::Visitor<'_> for Visit {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, or standard base64")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                crate::text::unb64(text).map(Bytes).ok_or_else(|| E::custom("expected standard base64"))
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Visit)
        } else {
            deserializer.deserialize_any(Visit)
        }
    }
}

#[cfg(any(test, feature = "schema"))]
impl schemars::JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "contentEncoding": "base64"})
    }
}

/// Free facts beside a body: a JSON object of bounded depth in which no key stands twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Meta(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> de::Visitor<'de> for Visit {
            type Value = Meta;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<Meta, A::Error> {
                let mut map = Map::new();
                while let Some(key) = access.next_key::<String>()? {
                    if map.contains_key(&key) {
                        return Err(de::Error::custom(format!("duplicate key `{key}` in meta")));
                    }
                    let value = access.next_value()?;
                    crate::value::check_within(&value, FREE_JSON_NESTING - 1)?;
                    map.insert(key, value);
                }
                Ok(Meta(map))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}
