//! Feature bits: what this broker has, how much of it, and whether that is as much as a client requires.
//!
//! A client names a bit, or says with it what its parameters must be at the least. What is in force stands in the answer
//! to its hello, so that a client can also judge for itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_proto::close::Reason;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::feature::FeatureWish;
use tenure_proto::limits::POSITIONS_PER_HELLO;

use crate::config::MeshConfig;
use crate::conn::admit::Refusal;

/// Features that this broker has; a hello that requires another is refused.
pub const FEATURES: &[&str] =
    &["resume", "replay", "reconcile", "dedupe", "maxPayload", "runs", "services", "topics", "positions"];

/// The features of a mesh with these numbers, each with its parameters in force.
pub fn in_force(config: &MeshConfig) -> BTreeMap<String, Value> {
    FEATURES.iter().map(|bit| ((*bit).to_owned(), params(bit, config))).collect()
}

fn params(bit: &str, config: &MeshConfig) -> Value {
    match bit {
        "maxPayload" => json!({"version": 1, "bytes": config.max_payload}),
        "positions" => json!({"version": 1, "max": POSITIONS_PER_HELLO}),
        "dedupe" => dedupe(config.dedupe_days),
        "runs" => json!({"version": 1, "list": true}),
        _ => json!({"version": 1}),
    }
}

/// What is promised about retries: for how long a second send of the same is known to be one.
fn dedupe(days: Option<u32>) -> Value {
    match days {
        Some(days) => json!({
            "version": 2, "mode": "retention_scoped", "retentionDays": days, "fingerprint": true,
        }),
        None => json!({"version": 2, "mode": "permanent", "fingerprint": true}),
    }
}

/// Whether a mesh with these numbers has all that is required, and enough of it.
pub fn check(required: &[FeatureWish], config: &MeshConfig) -> Result<(), Refusal> {
    for FeatureWish { bit, floors } in required {
        let shown: String = bit.chars().filter(|c| !c.is_control()).take(64).collect();
        if !FEATURES.contains(&bit.as_str()) {
            let text = format!("this broker does not have the required feature {shown:?}");
            let error = WireError::new(ErrorCode::FeatureUnavailable, text);
            return Err(Refusal::new(error, Reason::FeatureUnavailable));
        }
        let params = params(bit, config);
        for (name, floor) in floors {
            match reaches(name, floor, &params) {
                Reach::Enough => {}
                Reach::Less => {
                    let have = params.get(name).unwrap_or(&Value::Null);
                    let text =
                        format!("{bit}.{name} is {have} here, which is less than this client requires");
                    let error = WireError::new(ErrorCode::FeatureParamBelowFloor, text);
                    return Err(Refusal::new(error, Reason::FeatureParamBelowFloor));
                }
                Reach::Nonsense => {
                    let text = format!("{bit}.{name} cannot be what this client requires of it");
                    let error = WireError::new(ErrorCode::FeatureParamInvalid, text);
                    return Err(Refusal::new(error, Reason::FeatureParamInvalid));
                }
            }
        }
    }
    Ok(())
}

enum Reach {
    Enough,
    Less,
    /// What is asked for is not something that the parameter could be.
    Nonsense,
}

/// Whether the parameter called `name` is at least `floor`. One that is not ours asks for nothing.
fn reaches(name: &str, floor: &Value, params: &Value) -> Reach {
    let enough = match (name, params.get(name), floor) {
        ("mode", _, Value::String(mode)) => match mode.as_str() {
            "retention_scoped" => true,
            "permanent" => params.get(name).and_then(Value::as_str) == Some("permanent"),
            _ => return Reach::Nonsense,
        },
        // What is remembered for ever is remembered for any number of days.
        ("retentionDays", None, floor) if params.get("mode").is_some() => {
            if floor.as_u64().is_none() {
                return Reach::Nonsense;
            }
            true
        }
        (_, None, _) => true,
        (_, Some(Value::Number(have)), floor) => match (have.as_u64(), floor.as_u64()) {
            (Some(have), Some(floor)) => have >= floor,
            _ => return Reach::Nonsense,
        },
        (_, Some(Value::Bool(have)), Value::Bool(floor)) => *have || !floor,
        _ => return Reach::Nonsense,
    };
    if enough { Reach::Enough } else { Reach::Less }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_ever_is_longer_than_any_number_of_days() {
        let permanent = MeshConfig { dedupe_days: None, ..MeshConfig::default() };
        let wish = |name: &str, floor| {
            let floors = BTreeMap::from([(name.to_owned(), floor)]);
            check(&[FeatureWish { bit: "dedupe".to_owned(), floors }], &permanent)
        };
        assert!(wish("retentionDays", json!(36_500)).is_ok());
        assert!(wish("mode", json!("permanent")).is_ok());
        assert!(wish("mode", json!("retention_scoped")).is_ok());
        assert_eq!(wish("retentionDays", json!("x")).unwrap_err().closing.code, 4011);
    }

    #[test]
    fn what_is_in_force_is_enough_for_whoever_asks_for_it() {
        let config = MeshConfig::default();
        for (bit, params) in in_force(&config) {
            let floors = params.as_object().unwrap().clone().into_iter().collect();
            assert!(check(&[FeatureWish { bit, floors }], &config).is_ok());
        }
    }
}
