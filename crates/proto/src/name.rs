//! Names of meshes, topics, groups, services and caps: one pattern, one reserved word, five types that cannot
//! be mixed up.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{ErrorCode, WireError};

/// The one sentence that tells a person what a name may be.
pub const NAME_RULE: &str =
    "names are 1 to 64 of a-z, 0-9, '.', '_', '-', start with a letter or digit, and are not 'dead'";

/// Whether `text` matches `[a-z0-9][a-z0-9._-]{0,63}` and is not reserved.
pub fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    matches!(bytes.first(), Some(b) if plain(b))
        && bytes.len() <= crate::limits::NAME_BYTES
        && bytes.iter().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
        && text != "dead"
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = WireError;
            fn from_str(text: &str) -> Result<Self, WireError> {
                if is_name(text) {
                    Ok($type(text.into()))
                } else {
                    Err(WireError::new(ErrorCode::BadRequest, concat!("illegal ", $what, " name: ").to_owned() + NAME_RULE))
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|e: WireError| de::Error::custom(e.message))
            }
        }

        #[cfg(any(test, feature = "schema"))]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$", "not": {"const": "dead"}})
            }
        }
    };
}

name!(
    /// A mesh: one tenant of a broker.
    MeshName, "mesh");
name!(
    /// A topic.
    TopicName, "topic");
name!(
    /// A reader's, or a crew's, place in a log.
    GroupName, "group");
name!(
    /// A leased name for something that a session can answer.
    ServiceName, "service");
name!(
    /// A right that an attestation may grant: `send`, `read`, `run`, `serve`, `admin`.
    Cap, "cap");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_the_pattern_of_the_contract() {
        for good in ["a", "0", "a.b_c-d", "deadline", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "dead", ".a", "-a", "_a", "A", "a b", "ä", "a/b", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_bad_name_says_the_rule() {
        let error = "Not A Name".parse::<TopicName>().unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.message.contains("topic") && error.message.contains("a-z"));
    }
}
