//! What peers see of a session: its profile, and the peer built from it.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::error::WireError;
use crate::ids::{InstanceId, MemberKey, SessionKey};
use crate::limits::{PROFILE_NAME_BYTES, PROFILE_TAG_BYTES, PROFILE_TAGS, PROFILE_TEXT_BYTES};
use crate::name::ServiceName;
use crate::number::U53;
use crate::text::check_shown;

/// Whether a session can be disturbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Ready for anything.
    #[default]
    Idle,
    /// Busy: only `now` gets through.
    Working,
    /// Do not disturb: only `now` gets through.
    Dnd,
}

/// What a session says of itself in `hello`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// The display name.
    pub name: String,
    /// Whether it can be disturbed.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub status: Status,
    /// What it is doing, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The machine it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Seconds since a person last typed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_input_seconds: Option<U53>,
    /// Free labels.
    #[serde(default, deserialize_with = "crate::null::or_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// Any part of a profile, for `profile.set`: absent fields stay as they are, and so does `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProfilePatch {
    /// See [`Profile::name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(any(test, feature = "schema"), schemars(length(min = 1, max = 128)))]
    pub name: Option<String>,
    /// See [`Profile::status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// See [`Profile::summary`]; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// See [`Profile::host`]; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// See [`Profile::cwd`]; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// See [`Profile::role`]; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// See [`Profile::last_input_seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_input_seconds: Option<U53>,
    /// See [`Profile::tags`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

impl From<Profile> for ProfilePatch {
    /// A patch that turns any profile into this one. A missing `lastInputSeconds` leaves the old number.
    fn from(profile: Profile) -> ProfilePatch {
        let Profile { name, status, summary, host, cwd, role, last_input_seconds, tags } = profile;
        let text = |text: Option<String>| Some(text.unwrap_or_default());
        ProfilePatch {
            name: Some(name),
            status: Some(status),
            summary: text(summary),
            host: text(host),
            cwd: text(cwd),
            role: text(role),
            last_input_seconds,
            tags: Some(tags),
        }
    }
}

impl Profile {
    /// A profile with only a name.
    pub fn named(name: impl Into<String>) -> Profile {
        Profile { name: name.into(), ..Profile::default() }
    }

    /// Refuses what is out of bounds, naming the field.
    pub fn check(&self) -> Result<(), WireError> {
        let over = |field: &str, limit: usize| {
            let told = format!("profile.{field} must be at most {limit} bytes");
            Err(WireError::bad_request(told).about(field.trim_end_matches("[]")))
        };
        if self.name.is_empty() {
            return Err(WireError::bad_request("profile.name must not be empty"));
        }
        if self.name.len() > PROFILE_NAME_BYTES {
            return over("name", PROFILE_NAME_BYTES);
        }
        check_shown("profile.name", &self.name)?;
        let texts =
            [("summary", &self.summary), ("host", &self.host), ("cwd", &self.cwd), ("role", &self.role)];
        for (field, text) in texts {
            let text = text.as_deref().unwrap_or_default();
            if text.len() > PROFILE_TEXT_BYTES {
                return over(field, PROFILE_TEXT_BYTES);
            }
            check_shown(&format!("profile.{field}"), text)?;
        }
        if self.tags.len() > PROFILE_TAGS {
            return Err(WireError::bad_request(format!("profile.tags may hold at most {PROFILE_TAGS} tags")));
        }
        if self.tags.iter().any(|t| t.len() > PROFILE_TAG_BYTES) {
            return over("tags[]", PROFILE_TAG_BYTES);
        }
        self.tags.iter().try_for_each(|tag| check_shown("profile.tags", tag))
    }

    /// This profile with `patch` laid over it.
    pub fn patched(&self, patch: &ProfilePatch) -> Profile {
        let text = |new: &Option<String>, old: &Option<String>| match new {
            Some(t) if t.is_empty() => None,
            Some(t) => Some(t.clone()),
            None => old.clone(),
        };
        Profile {
            name: patch.name.clone().unwrap_or_else(|| self.name.clone()),
            status: patch.status.unwrap_or(self.status),
            summary: text(&patch.summary, &self.summary),
            host: text(&patch.host, &self.host),
            cwd: text(&patch.cwd, &self.cwd),
            role: text(&patch.role, &self.role),
            last_input_seconds: patch.last_input_seconds.or(self.last_input_seconds),
            tags: patch.tags.clone().unwrap_or_else(|| self.tags.clone()),
        }
    }

    /// Whether peers would see a difference worth an event: everything but the ageing `lastInputSeconds`.
    pub fn differs_visibly(&self, other: &Profile) -> bool {
        self.name != other.name
            || self.status != other.status
            || self.summary != other.summary
            || self.host != other.host
            || self.cwd != other.cwd
            || self.role != other.role
            || self.tags != other.tags
    }
}

/// The state of a session's socket; shown only with `debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A socket carries it.
    Online,
    /// No socket now; the lease lives.
    Grace,
}

/// A session as its peers see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its key.
    pub session: SessionKey,
    /// Who vouches for it.
    pub member: MemberKey,
    /// The display name.
    pub name: String,
    /// Whether it can be disturbed.
    pub status: Status,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The machine it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Free labels.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The process that carries it now.
    pub instance_id: InstanceId,
    /// When its lease began, Unix milliseconds.
    pub joined_at: U53,
    /// Seconds since a person last typed, as of the last profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_input_seconds: Option<U53>,
    /// Names it answers to.
    #[serde(default)]
    pub services: Vec<ServiceName>,
    /// With `debug`: the state of its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// With `debug`: when its lease would end, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<U53>,
}

impl Peer {
    /// The peer that `profile` describes.
    pub fn new(
        session: SessionKey,
        member: MemberKey,
        instance: InstanceId,
        joined_at: u64,
        profile: &Profile,
    ) -> Peer {
        Peer {
            session,
            member,
            name: profile.name.clone(),
            status: profile.status,
            summary: profile.summary.clone(),
            host: profile.host.clone(),
            cwd: profile.cwd.clone(),
            role: profile.role.clone(),
            tags: profile.tags.clone(),
            instance_id: instance,
            joined_at: U53::saturating(joined_at),
            last_input_seconds: profile.last_input_seconds,
            services: Vec::new(),
            transport: None,
            lease_until: None,
        }
    }

    /// The profile that this peer shows.
    pub fn profile(&self) -> Profile {
        Profile {
            name: self.name.clone(),
            status: self.status,
            summary: self.summary.clone(),
            host: self.host.clone(),
            cwd: self.cwd.clone(),
            role: self.role.clone(),
            last_input_seconds: self.last_input_seconds,
            tags: self.tags.clone(),
        }
    }
}

/// A peer that many sockets are told about: encoded at most once per codec, whatever the number of readers.
#[derive(Clone, Debug)]
pub struct SharedPeer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    peer: Peer,
    json: OnceLock<Box<[u8]>>,
    msgpack: OnceLock<Box<[u8]>>,
}

impl SharedPeer {
    /// `peer`, ready to be shared.
    pub fn new(peer: Peer) -> SharedPeer {
        SharedPeer(Arc::new(Shared { peer, json: OnceLock::new(), msgpack: OnceLock::new() }))
    }

    /// The peer itself.
    pub fn get(&self) -> &Peer {
        &self.0.peer
    }

    /// Its encoding, made on first use.
    pub fn encoded(&self, codec: Codec) -> &[u8] {
        let cell = match codec {
            Codec::Json => &self.0.json,
            Codec::MsgPack => &self.0.msgpack,
        };
        cell.get_or_init(|| codec.encode(&self.0.peer).into_boxed_slice())
    }
}

impl PartialEq for SharedPeer {
    fn eq(&self, other: &SharedPeer) -> bool {
        self.0.peer == other.0.peer
    }
}

impl Eq for SharedPeer {}

impl Serialize for SharedPeer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.peer.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedPeer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Peer::deserialize(deserializer).map(SharedPeer::new)
    }
}

#[cfg(any(test, feature = "schema"))]
impl schemars::JsonSchema for SharedPeer {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Peer::schema_name()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        generator.subschema_for::<Peer>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_would_act_on_a_terminal_is_refused_with_its_field() {
        let profile = |field: &str, text: &str| {
            let (mut profile, text) = (Profile::named("alice"), text.to_owned());
            match field {
                "name" => profile.name = text,
                "summary" => profile.summary = Some(text),
                "host" => profile.host = Some(text),
                "cwd" => profile.cwd = Some(text),
                "role" => profile.role = Some(text),
                _ => profile.tags = vec!["fine".to_owned(), text],
            }
            profile
        };
        for field in ["name", "summary", "host", "cwd", "role", "tags"] {
            for bad in [
                "a\nb",
                "\x1b[2J",
                "a\tb",
                "\x7f",
                "\u{9b}2J",
                "\u{202e}a",
                "\u{2067}",
                "\u{200f}",
                "\u{2028}",
            ] {
                let error = profile(field, bad).check().unwrap_err();
                assert_eq!(error.code, crate::error::ErrorCode::BadRequest);
                assert_eq!(error.details.unwrap()["field"], field, "{bad:?}");
                assert!(error.message.starts_with(&format!("profile.{field} has U+")), "{}", error.message);
                assert!(!error.message.contains(bad), "{:?}", error.message);
            }
            for good in ["größe", "世界 👩‍💻", "a b", "עברית"] {
                assert_eq!(profile(field, good).check(), Ok(()), "{good}");
            }
        }
    }
}
