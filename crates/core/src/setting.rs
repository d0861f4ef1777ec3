//! Live settings: the numbers of a mesh that an operator may change while it runs, by name.
//!
//! One table says which there are and how each is read; whether they hold together is [`MeshConfig::check`]'s to say.
//! What is stored is what differs from the broker's own configuration, as one map with one version.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_proto::error::WireError;

use crate::config::{BURST_SECONDS, MeshConfig};
use crate::rate::Rate;

/// Settings as they are kept: name to value.
pub type Values = BTreeMap<String, Value>;

/// One setting.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    get: fn(&MeshConfig) -> Value,
    set: fn(&mut MeshConfig, &Value) -> Option<()>,
}

macro_rules! settings {
    ($($name:literal $field:ident $kind:ident $about:literal;)*) => {
        /// Every setting, by name.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            about: $about,
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
}

settings! {
    "ackTimeoutMs" ack_timeout_ms number "How long a member of a crew may take to settle.";
    "leaseTtlMs" lease_ttl_ms number "From the last proof of life to the end of a lease.";
    "maxSessions" max_sessions number "Living leases; the next hello is told busy.";
    "maxSessionsPerMember" max_sessions_per_member number "Living leases that one member vouches for.";
    "maxStreamsPerService" max_streams_per_service number "Streams of one service that may be open, or wait.";
    "minClient" min_client text "The oldest client that clients are told to be; empty is any.";
    "pingIntervalMs" ping_interval_ms number "Between pings, from both sides.";
    "reconnectGraceMs" reconnect_grace_ms number "How long a shared group waits for a session in grace.";
    "requestRate" request_rate rate "Requests of a member in a second, but for messages; 0 is as many as it likes.";
    "retentionMs" retention_ms number "How long settled messages stay, unless their topic says otherwise.";
    "sendRate" send_rate rate "Messages of a member in a second; 0 is as many as it likes.";
    "serviceNames" service_names text "What names of services look like, with * for any characters and ? for one; empty is any.";
    "serviceTtlMaxMs" service_ttl_max_ms number "The longest time for which a service may say that it is there.";
    "serviceTtlMinMs" service_ttl_min_ms number "The shortest time for which a service may say that it is there.";
    "slowConsumerMs" slow_consumer_ms number "How long a socket may take next to nothing while something waits for it.";
    "staleAfterMs" stale_after_ms number "Silence after which a socket is dropped.";
    "tickIntervalMs" tick_interval_ms number "How soon an idle socket gets a tick.";
    "topicMaxBytes" topic_bytes cap "Bytes of bodies that a partition of a topic may hold; 0 is no cap.";
}

/// What every setting is in `config`.
pub fn all(config: &MeshConfig) -> Values {
    SETTINGS.iter().map(|setting| (setting.name.to_owned(), (setting.get)(config))).collect()
}

/// The setting of this name.
pub fn find(name: &str) -> Result<&'static Setting, WireError> {
    SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        let clipped: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        WireError::bad_request(format!("there is no setting {clipped:?}; there are {}", names.join(", ")))
    })
}

/// The numbers that `values` make of `base`; refused if there is no such setting, if a value is none of its kind, or if
/// they do not hold together.
pub fn apply(base: &MeshConfig, values: &Values) -> Result<MeshConfig, WireError> {
    let mut config = base.clone();
    for (name, value) in values {
        let setting = find(name)?;
        (setting.set)(&mut config, value).ok_or_else(|| {
            let kind = if (setting.get)(base).is_string() { "a text" } else { "a whole number" };
            WireError::bad_request(format!("{name} must be {kind} that fits it"))
                .with_details(json!({"field": name}))
        })?;
    }
    config.check().map_err(|error| WireError::bad_request(error.to_string()))?;
    Ok(config)
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
            ("sendRate", json!(1u64 << 40), "fits"),
            ("minClient", json!(1), "a text"),
            ("leaseTtlMs", json!(10), "between 100 ms"),
            ("staleAfterMs", json!(90_000), "stale-after"),
            ("serviceTtlMinMs", json!(0), "TTL of a service"),
            ("serviceTtlMaxMs", json!(14_999), "at least 15000 ms"),
            ("ackTimeoutMs", json!(0), "between 100 ms and a week"),
            ("ackTimeoutMs", json!(u64::MAX), "between 100 ms and a week"),
            ("maxStreamsPerService", json!(0), "between 1 and 1024"),
            ("maxStreamsPerService", json!(u64::MAX), "between 1 and 1024"),
            ("serviceNames", json!("A*"), "pattern of service names"),
        ] {
            let error = apply(&base, &one(name, value)).unwrap_err();
            assert!(error.message.contains(words), "{name}: {}", error.message);
        }
    }
}
