//! What a broker must promise before a daemon entrusts messages to it: that it remembers ids, for how long, and what
//! stood under them.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure_proto::error::ErrorCode;
use tenure_proto::limits::DEDUPE_DAYS_FLOOR;

/// The bit that a daemon requires.
pub const DEDUPE: &str = "dedupe";
/// The version of it that this code understands.
pub const DEDUPE_VERSION: u64 = 2;

/// How long a broker remembers the ids of what it accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// So many days.
    Days(u32),
    /// For ever.
    Permanent,
}

/// A broker that a daemon cannot work with: one sentence for a person, one code for the rest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Unfit {
    /// `feature_unavailable`, `feature_param_invalid` or `feature_param_below_floor`.
    pub code: ErrorCode,
    /// What is wrong with the broker.
    pub message: String,
}

impl Unfit {
    fn new(code: ErrorCode, message: impl Into<String>) -> Unfit {
        Unfit { code, message: message.into() }
    }
}

/// How long the broker remembers ids, from the feature bits of its hello.
pub fn window(features: &BTreeMap<String, Value>) -> Result<Window, Unfit> {
    let invalid = |what: &str| Unfit::new(ErrorCode::FeatureParamInvalid, format!("the broker's {what}"));
    let Some(dedupe) = features.get(DEDUPE) else {
        let message = "the broker does not remember the ids of messages, so a retry could arrive twice";
        return Err(Unfit::new(ErrorCode::FeatureUnavailable, message));
    };
    match dedupe.get("version").and_then(Value::as_u64) {
        Some(DEDUPE_VERSION) => {}
        Some(version) if version < DEDUPE_VERSION => {
            let message = format!("the broker has dedupe {version}; this daemon needs {DEDUPE_VERSION}");
            return Err(Unfit::new(ErrorCode::FeatureUnavailable, message));
        }
        // A newer version may say more, and must still say this.
        Some(_) => {}
        None => return Err(invalid("dedupe has no version")),
    }
    if dedupe.get("fingerprint") != Some(&Value::Bool(true)) {
        return Err(invalid("dedupe does not compare fingerprints"));
    }
    match dedupe.get("mode").and_then(Value::as_str) {
        Some("permanent") => Ok(Window::Permanent),
        Some("retention_scoped") => {
            let days = dedupe.get("retentionDays").and_then(Value::as_u64);
            let days = days.ok_or_else(|| invalid("dedupe.retentionDays is not a number of days"))?;
            if days < u64::from(DEDUPE_DAYS_FLOOR) {
                let message = format!(
                    "the broker remembers ids for {days} days; a daemon needs {DEDUPE_DAYS_FLOOR} or more"
                );
                return Err(Unfit::new(ErrorCode::FeatureParamBelowFloor, message));
            }
            Ok(Window::Days(u32::try_from(days).unwrap_or(u32::MAX)))
        }
        _ => Err(invalid("dedupe.mode is neither retention_scoped nor permanent")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(dedupe: Value) -> Result<Window, ErrorCode> {
        let features = BTreeMap::from([(DEDUPE.to_owned(), dedupe)]);
        window(&features).map_err(|unfit| {
            assert!(!unfit.message.is_empty());
            unfit.code
        })
    }

    #[test]
    fn a_window_is_read() {
        let days = |days: u64| json!({"version": 2, "mode": "retention_scoped", "retentionDays": days, "fingerprint": true});
        assert_eq!(read(days(7)), Ok(Window::Days(7)));
        assert_eq!(read(days(u64::MAX)), Ok(Window::Days(u32::MAX)));
        assert_eq!(
            read(json!({"version": 2, "mode": "permanent", "fingerprint": true})),
            Ok(Window::Permanent)
        );
        assert_eq!(
            read(json!({"version": 3, "mode": "permanent", "fingerprint": true, "more": 1})),
            Ok(Window::Permanent)
        );
        assert_eq!(read(days(6)), Err(ErrorCode::FeatureParamBelowFloor));
    }

    #[test]
    fn what_is_missing_is_unavailable_and_what_is_malformed_is_invalid() {
        assert_eq!(window(&BTreeMap::new()).map_err(|e| e.code), Err(ErrorCode::FeatureUnavailable));
        assert_eq!(read(json!({"version": 1})), Err(ErrorCode::FeatureUnavailable));
        for bad in [
            json!(true),
            json!({}),
            json!({"version": "2"}),
            json!({"version": 2, "mode": "permanent"}),
            json!({"version": 2, "mode": "permanent", "fingerprint": false}),
            json!({"version": 2, "mode": "sometimes", "fingerprint": true}),
            json!({"version": 2, "mode": "retention_scoped", "fingerprint": true}),
            json!({"version": 2, "mode": "retention_scoped", "retentionDays": 7.5, "fingerprint": true}),
            json!({"version": 2, "mode": "retention_scoped", "retentionDays": -7, "fingerprint": true}),
        ] {
            assert_eq!(read(bad.clone()), Err(ErrorCode::FeatureParamInvalid), "{bad}");
        }
    }
}
