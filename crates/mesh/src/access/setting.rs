//! Live settings: the numbers of a mesh that an operator may change while it runs, by name.
//!
//! One table says which there are and how each is read; whether they hold together is [`MeshConfig::check`]'s to say.
//! What is stored is what differs from the broker's own configuration, as one map with one version.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tenure_kit::rate::Rate;
use tenure_kit::time::DAY_MS;
use tenure_proto::U53;
use tenure_proto::error::WireError;
use tenure_proto::limits::{NAME_BYTES, RELAY_STREAMS_PER_SOCKET};

use crate::access::pattern::{PATTERN_BYTES, Pattern};
use crate::config::{
    ACK_TIMEOUT_MS_MAX, ACK_TIMEOUT_MS_MIN, BURST_SECONDS, MeshConfig, RETENTION_MS_MAX,
    SERVICE_TTL_MAX_MS_MIN,
};

/// Settings as they are kept: name to value.
pub type Values = BTreeMap<String, Value>;

/// One setting.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// What it may be by itself.
    pub range: Range,
    get: fn(&MeshConfig) -> Value,
    set: fn(&mut MeshConfig, &Value) -> Option<()>,
}

/// What a setting may be.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    /// A whole number, from the first to the second.
    Number(u64, u64),
    /// At most [`NAME_BYTES`] letters, digits and these.
    Text {
        /// Whether letters may be capitals.
        capitals: bool,
        /// What else may stand in it.
        others: &'static str,
    },
    /// A regular expression of at most [`PATTERN_BYTES`] bytes, or nothing.
    Pattern,
}

impl Range {
    /// Whether a value of the right kind is in it.
    fn holds(self, value: &Value) -> bool {
        match (self, value) {
            (Range::Number(least, most), value) => {
                value.as_u64().is_some_and(|number| (least..=most).contains(&number))
            }
            (Range::Text { capitals, others }, Value::String(text)) => {
                let legal = |c: char| match c {
                    'A'..='Z' => capitals,
                    'a'..='z' | '0'..='9' => true,
                    other => others.contains(other),
                };
                text.len() <= NAME_BYTES && text.chars().all(legal)
            }
            (Range::Pattern, Value::String(text)) => Pattern::parse(text).is_ok(),
            _ => false,
        }
    }

    /// What is wrong with a value that is not in it.
    fn refusal(self, value: &Value) -> String {
        let why = match (self, value) {
            (Range::Pattern, Value::String(text)) => Pattern::parse(text).err(),
            _ => None,
        };
        why.map_or_else(|| self.to_string(), |why| format!("{self}; of this one: {why}"))
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Range::Number(0, most) => write!(f, "a whole number of at most {most}"),
            Range::Number(least, most) => write!(f, "a whole number between {least} and {most}"),
            Range::Text { capitals, others } => {
                let letters = if *capitals { "A-Z, a-z" } else { "a-z" };
                write!(f, "a text of at most {NAME_BYTES} of {letters}, 0-9 and {others}")
            }
            Range::Pattern => {
                write!(
                    f,
                    "a regular expression of at most {PATTERN_BYTES} bytes, such as team-[a-z]+, or empty"
                )
            }
        }
    }
}

macro_rules! settings {
    ($($name:literal $field:ident $kind:ident ($range:expr) $about:literal;)*) => {
        /// Every setting, by name.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            about: $about,
            range: $range,
            get: |config| settings!(get $kind config.$field),
            set: |config, value| {
                config.$field = settings!(set $kind value);
                Some(())
            },
        },)*];
    };
    (get number $value:expr) => { json!($value) };
    (set number $value:expr) => { $value.as_u64()?.try_into().ok()? };
    (get cap $value:expr) => { json!($value.unwrap_or(0)) };
    (set cap $value:expr) => { Some($value.as_u64()?).filter(|most| *most > 0) };
    (get rate $value:expr) => { json!($value.per_second) };
    (set rate $value:expr) => { Rate::of($value.as_u64()?.try_into().ok()?, BURST_SECONDS) };
    (get text $value:expr) => { json!($value.as_deref().unwrap_or_default()) };
    (set text $value:expr) => { Some($value.as_str()?.to_owned()).filter(|text| !text.is_empty()) };
    (get pattern $value:expr) => { json!($value.as_ref().map_or("", Pattern::as_str)) };
    (set pattern $value:expr) => {
        match $value.as_str()? {
            "" => None,
            text => Some(Pattern::parse(text).ok()?),
        }
    };
}

/// A day at most, and as little as this.
const fn within_a_day(least: u64) -> Range {
    Range::Number(least, DAY_MS)
}

/// So many, as long as a computer can count them.
const MANY: Range = Range::Number(1, u32::MAX as u64);
/// So many in a second.
const RATE: Range = Range::Number(0, u32::MAX as u64);
/// A version, as clients tell theirs.
const VERSION: Range = Range::Text { capitals: true, others: "._+-" };
/// A pattern of names.
const NAMES: Range = Range::Text { capitals: false, others: "._-*?" };

settings! {
    "ackTimeoutMs" ack_timeout_ms number (Range::Number(ACK_TIMEOUT_MS_MIN, ACK_TIMEOUT_MS_MAX)) "How long a member of a crew may take to settle.";
    "leaseTtlMs" lease_ttl_ms number (within_a_day(100)) "From the last proof of life to the end of a lease.";
    "maxGroupsPerMember" max_groups_per_member number (MANY) "Consumer groups that one member has made, counted by partition.";
    "maxGroupsPerTopic" max_groups_per_topic number (MANY) "Consumer groups of one topic.";
    "maxSessions" max_sessions number (MANY) "Living leases; the next hello is told busy.";
    "maxSessionsPerMember" max_sessions_per_member number (MANY) "Living leases that one member vouches for.";
    "maxStreamsPerService" max_streams_per_service number (Range::Number(1, RELAY_STREAMS_PER_SOCKET as u64)) "Streams of one service that may be open, or wait.";
    "maxTopicsPerMember" max_topics_per_member number (MANY) "Topics that one member has made.";
    "minClient" min_client text (VERSION) "The oldest client that clients are told to be; empty is any.";
    "pingIntervalMs" ping_interval_ms number (within_a_day(1)) "Between pings, from both sides.";
    "reconnectGraceMs" reconnect_grace_ms number (within_a_day(0)) "How long a shared group waits for a session in grace.";
    "requestRate" request_rate rate (RATE) "Requests of a member in a second, but for messages; 0 is as many as it likes.";
    "retentionMs" retention_ms number (Range::Number(0, RETENTION_MS_MAX)) "How long settled messages stay, unless their topic says otherwise.";
    "sendRate" send_rate rate (RATE) "Messages of a member in a second; 0 is as many as it likes.";
    "serviceNames" service_names text (NAMES) "What names of services look like, with * for any characters and ? for one; empty is any.";
    "servicePattern" service_pattern pattern (Range::Pattern) "What whole names of services must fit besides, as a regular expression; empty is any.";
    "serviceTtlMaxMs" service_ttl_max_ms number (within_a_day(SERVICE_TTL_MAX_MS_MIN)) "The longest time for which a service may say that it is there.";
    "serviceTtlMinMs" service_ttl_min_ms number (within_a_day(1)) "The shortest time for which a service may say that it is there.";
    "slowConsumerMs" slow_consumer_ms number (within_a_day(100)) "How long a socket may take next to nothing while something waits for it.";
    "staleAfterMs" stale_after_ms number (within_a_day(1)) "Silence after which a socket is dropped.";
    "tickIntervalMs" tick_interval_ms number (within_a_day(1)) "How soon an idle socket gets a tick.";
    "topicMaxBytes" topic_bytes cap (Range::Number(0, U53::MAX.get())) "Bytes of bodies that a partition of a topic may hold; 0 is no cap.";
}

/// What every setting is in `config`.
pub fn all(config: &MeshConfig) -> Values {
    SETTINGS.iter().map(|setting| (setting.name.to_owned(), (setting.get)(config))).collect()
}

/// Other names by which a setting may be set, and the name that it is kept and shown under.
pub const ALIASES: &[(&str, &str)] = &[("connection.reconnect_grace_ms", "reconnectGraceMs")];

/// The name that a setting is kept and shown under, of a name or an alias.
pub fn resolved(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// The setting of this name, or of this alias.
pub fn find(name: &str) -> Result<&'static Setting, WireError> {
    let name = resolved(name);
    SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        let clipped: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        WireError::bad_request(format!("there is no setting {clipped:?}; there are {}", names.join(", ")))
            .with_details(json!({"field": clipped}))
    })
}

/// Whether there is a setting of this name or alias, and the value is of its kind; if not, what is wrong is told under the
/// name that was given.
pub fn check(given: &str, value: &Value) -> Result<(), WireError> {
    put(&mut MeshConfig::default(), given, value)
}

fn put(config: &mut MeshConfig, given: &str, value: &Value) -> Result<(), WireError> {
    let (setting, value) = (find(given)?, plain(value));
    let done = setting.range.holds(&value).then(|| (setting.set)(config, &value)).flatten();
    done.ok_or_else(|| {
        WireError::bad_request(format!("{given} must be {}", setting.range.refusal(&value)))
            .with_details(json!({"field": given}))
    })
}

/// The numbers that `values` make of `base`; refused if there is no such setting, or if a value is none of its kind. Values
/// that are good by themselves may still not hold together: with each other, or with what stands.
pub fn apply(base: &MeshConfig, values: &Values) -> Result<MeshConfig, WireError> {
    let mut config = base.clone();
    for (name, value) in values {
        put(&mut config, name, value)?;
    }
    config.check().map_err(|error| {
        WireError::bad_request(error.to_string()).with_details(json!({"against": "the other settings"}))
    })?;
    Ok(config)
}

/// Takes out what is no setting any more, or has another range now; says what is wrong with each.
pub fn weed(values: &mut Values) -> Vec<String> {
    let mut out = Vec::new();
    values.retain(|name, value| match find(name) {
        Ok(setting) if setting.range.holds(&plain(value)) => true,
        Ok(setting) => {
            out.push(format!("{name} must be {}", setting.range));
            false
        }
        Err(error) => {
            out.push(error.message);
            false
        }
    });
    out
}

/// The same value, a whole number written as one: `5.0` is 5.
fn plain(value: &Value) -> Value {
    U53::deserialize(value).map_or_else(|_| value.clone(), |number| json!(number.get()))
}

/// What is wrong with a value of `config`, whatever the others are.
pub(crate) fn out_of_range(config: &MeshConfig) -> Option<String> {
    SETTINGS.iter().find_map(|setting| {
        let value = (setting.get)(config);
        (!setting.range.holds(&value))
            .then(|| format!("{} must be {}, not {value}", setting.name, setting.range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: Value) -> Values {
        Values::from([(name.to_owned(), value)])
    }

    #[test]
    fn every_setting_reads_back_what_it_shows() {
        let base = MeshConfig::default();
        assert_eq!(apply(&base, &all(&base)).unwrap(), base);
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn a_value_takes_effect_and_a_bad_one_says_why() {
        let base = MeshConfig::default();
        assert_eq!(apply(&base, &one("sendRate", json!(7))).unwrap().send_rate, Rate::of(7, BURST_SECONDS));
        assert_eq!(apply(&base, &one("topicMaxBytes", json!(9))).unwrap().topic_bytes, Some(9));
        assert_eq!(apply(&base, &one("topicMaxBytes", json!(0))).unwrap().topic_bytes, None);
        for (name, value, words) in [
            ("nothing", json!(1), "no setting"),
            ("leaseTtlMs", json!("x"), "whole number"),
            ("leaseTtlMs", json!(-1), "whole number"),
            ("leaseTtlMs", json!(1.5), "whole number"),
            ("sendRate", json!(1u64 << 40), "at most 4294967295"),
            ("minClient", json!(1), "a text"),
            ("minClient", json!("1.0 "), "a text"),
            ("minClient", json!("1".repeat(65)), "at most 64"),
            ("leaseTtlMs", json!(10), "between 100 and"),
            ("serviceTtlMinMs", json!(0), "between 1 and"),
            ("serviceTtlMaxMs", json!(14_999), "between 15000 and"),
            ("ackTimeoutMs", json!(0), "between 100 and 604800000"),
            ("ackTimeoutMs", json!(u64::MAX), "between 100 and 604800000"),
            ("maxStreamsPerService", json!(0), "between 1 and 2048"),
            ("maxStreamsPerService", json!(u64::MAX), "between 1 and 2048"),
            ("serviceNames", json!("A*"), "a-z, 0-9"),
            ("servicePattern", json!("team-("), "unclosed group"),
            ("servicePattern", json!(7), "a regular expression of at most 256 bytes"),
            ("servicePattern", json!("a".repeat(257)), "it has 257 bytes"),
            ("servicePattern", json!("[a-z]{999}{999}"), "too much"),
        ] {
            let error = apply(&base, &one(name, value)).unwrap_err();
            assert_eq!(error.details.and_then(|details| details.get("against").cloned()), None, "{name}");
            assert!(error.message.contains(words), "{name}: {}", error.message);
        }
        // Good by itself, and not with the others.
        for (name, value, words) in [
            ("staleAfterMs", json!(90_000), "stale-after"),
            ("serviceTtlMinMs", json!(86_400_000), "shortest"),
        ] {
            let error = apply(&base, &one(name, value)).unwrap_err();
            assert!(error.details.is_some_and(|details| details.get("against").is_some()), "{name}");
            assert!(error.message.contains(words), "{name}: {}", error.message);
        }
    }

    #[test]
    fn what_is_no_setting_any_more_is_taken_out_alone() {
        let mut values = one("minClient", json!(">=1.2"));
        values.extend([("sendRate".to_owned(), json!(50)), ("gone".to_owned(), json!(1))]);
        let said = weed(&mut values);
        assert_eq!(values, one("sendRate", json!(50)));
        assert!(said.len() == 2 && said.iter().any(|line| line.contains("minClient")), "{said:?}");
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        let base = MeshConfig::default();
        assert_eq!(apply(&base, &one("sendRate", json!(7.0))).unwrap().send_rate.per_second, 7);
    }

    #[test]
    fn a_setting_is_found_by_its_alias_too() {
        for (alias, name) in ALIASES {
            assert_eq!(find(alias).unwrap().name, *name);
            assert!(SETTINGS.iter().all(|setting| setting.name != *alias));
        }
        let base = MeshConfig::default();
        let set = apply(&base, &one("connection.reconnect_grace_ms", json!(7_000))).unwrap();
        assert_eq!(set.reconnect_grace_ms, 7_000);
        assert_eq!(resolved("connection.reconnect_grace_ms"), "reconnectGraceMs");
        assert_eq!((resolved("sendRate"), resolved("nothing")), ("sendRate", "nothing"));
        let error = check("connection.reconnect_grace_ms", &json!("x")).unwrap_err();
        assert_eq!(error.details.as_deref(), Some(&json!({"field": "connection.reconnect_grace_ms"})));
        assert!(error.message.starts_with("connection.reconnect_grace_ms must be"), "{}", error.message);
    }
}
