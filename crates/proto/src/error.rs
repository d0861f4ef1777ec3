//! The error codes of protocol v1: one table that says what each is called and whether trying again can help.
//! Nothing anywhere decides by reading an error's text.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::number::U53;

macro_rules! codes {
    ($($variant:ident $text:literal $retryable:literal $doc:literal;)*) => {
        /// Why a request was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
        pub enum ErrorCode {
            $(#[doc = $doc] #[serde(rename = $text)] $variant,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the contract.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The code as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $text,)* }
            }

            /// The code spelled `text`, if it is one of ours.
            pub fn from_wire(text: &str) -> Option<ErrorCode> {
                match text { $($text => Some(ErrorCode::$variant),)* _ => None }
            }

            /// Whether the same request may succeed later without being changed.
            pub const fn retryable(self) -> bool {
                match self { $(ErrorCode::$variant => $retryable,)* }
            }
        }
    };
}

codes! {
    BadRequest "bad_request" false "The request cannot be understood or breaks a rule of the protocol.";
    UnknownMethod "unknown_method" false "This broker has no such method.";
    Unauthorized "unauthorized" false "The proof, attestation or credential does not hold.";
    Forbidden "forbidden" false "Who you are is known, but this is not yours to do.";
    ProtocolMismatch "protocol_mismatch" false "No protocol version in common; `details` has ours.";
    NotFound "not_found" false "What the request names does not exist.";
    TooLarge "too_large" false "The body is over `maxPayload`.";
    RateLimited "rate_limited" true "Too many requests; wait `retryAfterMs`.";
    Busy "busy" true "A bound is reached; nothing was done.";
    Unavailable "unavailable" true "The store cannot write or read now: ask again; the message says whether anything was done.";
    Draining "draining" true "This broker takes no new sessions because it is stopping.";
    IdempotencyKeyReused "idempotency_key_reused" false "This id was used for another request.";
    NoSuchSession "no_such_session" false "That key was never seen in this mesh.";
    LeaseExpired "lease_expired" false "The session's lease has ended.";
    NameTaken "name_taken" false "Another session holds that name.";
    NameRejected "name_rejected" false "That name breaks the naming rule in force.";
    TtlOutOfBounds "ttl_out_of_bounds" false "The TTL is outside the bounds in force.";
    Banned "banned" false "An operator has banned this member, session or address.";
    StaleDelivery "stale_delivery" false "The delivery belongs to somebody else now.";
    SeqGap "seq_gap" false "A number is missing in the sequence.";
    SessionContested "session_contested" true "Several processes fight over one session key.";
    NotOwner "not_owner" true "Another broker owns this mesh; `details.url` names it.";
    Conflict "conflict" false "What you would change has changed since you read it.";
    Expired "expired" false "It was good once, and is past its time.";
    FeatureUnavailable "feature_unavailable" false "A required feature is missing here.";
    FeatureParamInvalid "feature_param_invalid" false "A required feature's parameter is malformed.";
    FeatureParamBelowFloor "feature_param_below_floor" false "A required feature's parameter is below its floor.";
    Internal "internal" true "The broker failed; its log says why.";
}

impl ErrorCode {
    /// The status of an HTTP answer that carries it.
    pub const fn http_status(self) -> u16 {
        match self {
            ErrorCode::BadRequest | ErrorCode::SeqGap => 400,
            ErrorCode::Unauthorized => 401,
            ErrorCode::Forbidden | ErrorCode::Banned => 403,
            ErrorCode::NotFound | ErrorCode::NoSuchSession | ErrorCode::UnknownMethod => 404,
            ErrorCode::IdempotencyKeyReused
            | ErrorCode::Conflict
            | ErrorCode::NameTaken
            | ErrorCode::StaleDelivery => 409,
            ErrorCode::LeaseExpired | ErrorCode::Expired => 410,
            ErrorCode::TooLarge => 413,
            ErrorCode::NameRejected | ErrorCode::TtlOutOfBounds => 422,
            ErrorCode::RateLimited | ErrorCode::Busy => 429,
            ErrorCode::Internal => 502,
            ErrorCode::Unavailable
            | ErrorCode::Draining
            | ErrorCode::SessionContested
            | ErrorCode::NotOwner
            | ErrorCode::FeatureUnavailable
            | ErrorCode::FeatureParamInvalid
            | ErrorCode::FeatureParamBelowFloor
            | ErrorCode::ProtocolMismatch => 503,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as it stands on the wire: a code for programs, one sentence for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[error("{code}: {message}")]
pub struct WireError {
    /// What happened. A code that only a newer broker knows reads as `internal`; `retryable` still tells.
    #[serde(deserialize_with = "known_or_internal")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "String"))]
    pub code: ErrorCode,
    /// One sentence that says what to do.
    pub message: String,
    /// Equal to [`ErrorCode::retryable`]; repeated for clients without the table.
    pub retryable: bool,
    /// How long to wait before trying again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<U53>,
    /// Facts that belong to the code, such as `{min, max}` of a `protocol_mismatch`.
    #[serde(
        default,
        deserialize_with = "crate::value::bounded_box",
        skip_serializing_if = "Option::is_none"
    )]
    pub details: Option<Box<serde_json::Value>>,
}

/// A client must be able to read the errors of brokers newer than itself.
fn known_or_internal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ErrorCode, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(ErrorCode::from_wire(&text).unwrap_or(ErrorCode::Internal))
}

impl WireError {
    /// An error of `code` with one sentence of help.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> WireError {
        WireError {
            code,
            message: message.into(),
            retryable: code.retryable(),
            retry_after_ms: None,
            details: None,
        }
    }

    /// Shorthand for the commonest code.
    pub fn bad_request(message: impl Into<String>) -> WireError {
        WireError::new(ErrorCode::BadRequest, message)
    }

    /// The same error with a time to wait.
    pub fn retry_after(mut self, ms: u64) -> WireError {
        self.retry_after_ms = Some(U53::saturating(ms));
        self
    }

    /// The same about this field of the request.
    pub fn about(self, field: &str) -> WireError {
        self.with_details(serde_json::json!({"field": field}))
    }

    /// The status of an HTTP answer that carries it. A value that is good by itself and not beside another, or beside what is
    /// there, is no bad request to HTTP: its details say `against` what.
    pub fn http_status(&self) -> u16 {
        let against = self.details.as_ref().is_some_and(|details| details.get("against").is_some());
        match self.code {
            ErrorCode::BadRequest if against => 422,
            code => code.http_status(),
        }
    }

    /// The same error with facts attached.
    pub fn with_details(mut self, details: serde_json::Value) -> WireError {
        self.details = Some(Box::new(details));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;

    #[test]
    fn an_error_of_a_newer_broker_can_be_read() {
        let text = br#"{"code":"of_tomorrow","message":"m","retryable":false}"#;
        let error: WireError = Codec::Json.decode(text).unwrap();
        assert_eq!((error.code, error.retryable), (ErrorCode::Internal, false));
    }
}
