//! Ids as types that cannot be mixed up: a member key is not a session key, a lease is not a connection.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::text;

/// Serialises through `Display`, deserialises through `FromStr`; the shape of every textual id.
macro_rules! textual {
    ($type:ident, $expecting:literal, $schema:tt) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                text::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|_| de::Error::custom(concat!("expected ", $expecting)))
            }
        }

        #[cfg(any(test, feature = "schema"))]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

/// The text was not a legal spelling of the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a legal id")]
pub struct IdError;

macro_rules! key {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub [u8; 32]);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                text::write_key(&self.0, f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($type), text::hex(&self.0[..4]))
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text::unhex_array(text).map($type).ok_or(IdError)
            }
        }

        textual!($type, "a key: 64 lower-case hex digits", {"type": "string", "pattern": "^[0-9a-f]{64}$"});
    };
}

key!(
    /// A session's public key: its identity, whatever socket carries it.
    SessionKey);
key!(
    /// A member's public key: the person or machine that vouches for sessions.
    MemberKey);

impl SessionKey {
    /// Whether this session is its member's own (a daemon's): both keys are the same bytes.
    pub fn is_member(&self, member: &MemberKey) -> bool {
        self.0 == member.0
    }
}

macro_rules! opaque {
    ($(#[$doc:meta])* $type:ident, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let legal = !text.is_empty() && text.len() <= $max && text.bytes().all(|b| (0x21..=0x7e).contains(&b));
                if legal { Ok($type(text.into())) } else { Err(IdError) }
            }
        }

        textual!($type, "1 to 128 printable ASCII characters without spaces", {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"});
    };
}

opaque!(
    /// The random name of one process, so that a session can tell its own newer socket from a stranger's.
    InstanceId, 128);
opaque!(
    /// The name of one lease: a session that left and came back has another.
    LeaseId, 128);
opaque!(
    /// The name of a store and all brokers on it: the scope in which a resume token is good.
    ClusterId, 128);
opaque!(
    /// What a client sends as `id` of a request and gets back in its response.
    RequestId, 128);
opaque!(
    /// A delivery's handle: names group, seq, attempt and session to the broker, opaque to everybody else.
    Tag, 128);

impl Tag {
    /// The tag spelled `text`, which its maker knows to be legal.
    pub(crate) fn legal(text: &str) -> Tag {
        Tag(text.into())
    }
}

opaque!(
    /// A subscription's name on its session; `inbox` and `member` are implicit.
    SubId, 128);
opaque!(
    /// The name of an invite or of a bearer token; it is no secret.
    GrantId, 128);
opaque!(
    /// The numbering of one event stream; positions of different epochs are not comparable.
    Epoch, 128);

/// One socket of a broker, unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl FromStr for ConnId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.strip_prefix('c').ok_or(IdError)?;
        let id = digits.parse().map(ConnId).map_err(|_| IdError)?;
        // One value, one spelling: no sign, no leading zeros.
        if id.to_string() == text { Ok(id) } else { Err(IdError) }
    }
}

textual!(ConnId, "a connection id", {"type": "string", "pattern": "^c(0|[1-9][0-9]*)$"});

macro_rules! ulid {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub u128);

        impl $type {
            /// The id made at `unix_ms` with `entropy` of which 80 bits are used.
            pub fn from_parts(unix_ms: u64, entropy: u128) -> Self {
                $type(ulid::Ulid::from_parts(unix_ms, entropy).0)
            }

            /// When it was made, Unix milliseconds.
            pub fn unix_ms(self) -> u64 {
                ulid::Ulid(self.0).timestamp_ms()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&ulid::Ulid(self.0), f)
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let parsed = ulid::Ulid::from_string(text).map_err(|_| IdError)?;
                // One value, one spelling: lower case and look-alike letters are not ours.
                let mut canonical = [0u8; ulid::ULID_LEN];
                if parsed.array_to_str(&mut canonical) == text { Ok($type(parsed.0)) } else { Err(IdError) }
            }
        }

        textual!($type, "a ULID", {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"});
    };
}

ulid!(
    /// A message, named by the broker that accepted it.
    MessageId);
ulid!(
    /// A run: one call to an agent.
    RunId);

/// The id that a sender chooses for a message: 1 to 128 printable ASCII, not starting with `run:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientMessageId(Arc<str>);

impl ClientMessageId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClientMessageId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let printable = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
        let legal = !text.is_empty() && text.len() <= 128 && printable && !text.starts_with("run:");
        if legal { Ok(ClientMessageId(text.into())) } else { Err(IdError) }
    }
}

textual!(ClientMessageId, "1 to 128 printable ASCII characters, not starting with 'run:'", {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$", "not": {"pattern": "^run:"}});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_spelling() {
        let key = SessionKey([0xab; 32]);
        assert_eq!(key.to_string().parse::<SessionKey>(), Ok(key));
        assert!("AB".repeat(32).parse::<SessionKey>().is_err(), "upper case");
        assert!("ab".repeat(31).parse::<SessionKey>().is_err(), "short");
        assert!("zz".repeat(32).parse::<SessionKey>().is_err(), "not hex");
    }

    #[test]
    fn ulids_have_one_spelling() {
        let id = MessageId::from_parts(1_700_000_000_000, 7);
        assert_eq!(id.to_string().parse::<MessageId>(), Ok(id));
        assert_eq!(id.unix_ms(), 1_700_000_000_000);
        assert!(id.to_string().to_lowercase().parse::<MessageId>().is_err());
    }

    #[test]
    fn client_message_ids_keep_out_of_the_run_namespace() {
        assert!("run:1".parse::<ClientMessageId>().is_err());
        assert!("a b".parse::<ClientMessageId>().is_ok());
        assert!("a\n".parse::<ClientMessageId>().is_err());
        assert!("x".repeat(129).parse::<ClientMessageId>().is_err());
    }

    #[test]
    fn connections_have_one_spelling() {
        assert_eq!("c17".parse(), Ok(ConnId(17)));
        for text in ["17", "c", "c+17", "c017", "c-1", "c18446744073709551616"] {
            assert!(text.parse::<ConnId>().is_err(), "{text}");
        }
    }
}
