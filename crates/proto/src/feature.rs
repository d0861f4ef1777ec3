//! Feature bits: what a client needs of a broker, or would like, and how much of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// Feature bits that a client needs or would like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct FeatureWishes {
    /// Without these, or with less of them than is asked for, the hello is refused.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Vec<Shape>"))]
    pub require: Vec<FeatureWish>,
    /// These are answered when they are here.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Vec<Shape>"))]
    pub optional: Vec<FeatureWish>,
}

/// A feature bit: its name as a text, or an object `{bit, …}` that says what its parameters must be at the least.
/// Parameters that a broker does not know are ignored like every unknown field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureWish {
    /// The bit.
    pub bit: String,
    /// What its parameters must be at the least.
    pub floors: BTreeMap<String, Value>,
}

/// How a wish looks, for the schema.
#[cfg(any(test, feature = "schema"))]
#[derive(schemars::JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
enum Shape {
    Named(String),
    WithFloors { bit: String },
}

impl From<&str> for FeatureWish {
    fn from(bit: &str) -> FeatureWish {
        FeatureWish { bit: bit.to_owned(), floors: BTreeMap::new() }
    }
}

impl Serialize for FeatureWish {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.floors.is_empty() {
            return serializer.serialize_str(&self.bit);
        }
        let mut map = serializer.serialize_map(Some(self.floors.len() + 1))?;
        map.serialize_entry("bit", &self.bit)?;
        for (name, floor) in &self.floors {
            map.serialize_entry(name, floor)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for FeatureWish {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FeatureWish, D::Error> {
        struct Visit;

        impl<'de> de::Visitor<'de> for Visit {
            type Value = FeatureWish;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a feature bit")
            }
            fn visit_str<E: de::Error>(self, bit: &str) -> Result<FeatureWish, E> {
                Ok(bit.into())
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<FeatureWish, A::Error> {
                let (mut bit, mut floors) = (None, BTreeMap::new());
                while let Some(name) = access.next_key::<String>()? {
                    if name == "bit" {
                        bit = Some(access.next_value()?);
                    } else {
                        floors.insert(name, access.next_value()?);
                    }
                }
                bit.map(|bit| FeatureWish { bit, floors }).ok_or_else(|| de::Error::missing_field("bit"))
            }
        }

        deserializer.deserialize_any(Visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;
    use serde_json::json;

    fn read(text: &str) -> Result<FeatureWishes, String> {
        Codec::Json.decode(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_feature_is_named_by_a_text_or_in_an_object_with_floors() {
        let wishes = read(r#"{"require":["a",{"version":2,"bit":"b"}],"optional":null}"#).unwrap();
        let b = FeatureWish { bit: "b".into(), floors: BTreeMap::from([("version".into(), json!(2))]) };
        assert_eq!(wishes, FeatureWishes { require: vec!["a".into(), b], optional: vec![] });
        for codec in [Codec::Json, Codec::MsgPack] {
            assert_eq!(codec.decode::<FeatureWishes>(&codec.encode(&wishes)).unwrap(), wishes);
        }
        assert!(read(r#"{"require":[{"version":2}]}"#).unwrap_err().contains("bit"));
        assert!(read(r#"{"require":[{"bit":"a","bit":"b"}]}"#).is_err());
        assert!(read(r#"{"require":[["a"]]}"#).is_err());
        assert!(read(r#"{"require":"a"}"#).is_err());
    }
}
