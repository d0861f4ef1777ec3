//! Why sockets close: one table from reason to WebSocket code and to what a client does about it.

use serde::{Deserialize, Serialize};

use crate::ids::InstanceId;
use crate::number::U53;

/// What a client does after a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It asked for it: nothing.
    Done,
    /// Stop and surface the reason: trying again cannot help.
    Stop,
    /// Dial again and resume (after `retryAfterMs`, if given).
    Resume,
    /// Dial again with back-off.
    Backoff,
    /// Resume if the newcomer is this very process, else stop.
    ResumeIfOwn,
}

macro_rules! reasons {
    ($($variant:ident $text:literal $code:literal $retryable:literal $action:ident $doc:literal;)*) => {
        /// The reason of a close; clients act on it, never on prose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
        pub enum Reason {
            $(#[doc = $doc] #[serde(rename = $text)] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the contract.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The reason as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $text,)* }
            }

            /// The WebSocket close code.
            pub const fn code(self) -> u16 {
                match self { $(Reason::$variant => $code,)* }
            }

            /// Whether dialling again may help.
            pub const fn retryable(self) -> bool {
                match self { $(Reason::$variant => $retryable,)* }
            }

            /// What a client does.
            pub const fn action(self) -> Action {
                match self { $(Reason::$variant => Action::$action,)* }
            }

            /// The reason spelled `text`, if it is one of ours.
            pub fn from_wire(text: &str) -> Option<Reason> {
                Reason::ALL.iter().copied().find(|r| r.as_str() == text)
            }
        }
    };
}

reasons! {
    Bye "bye" 1000 false Done "The client said goodbye.";
    SessionReplaced "session_replaced" 1000 false ResumeIfOwn "A newer socket carries this session.";
    GoingAway "going_away" 1001 true Resume "The broker stops and nothing says it comes back.";
    Restart "restart" 1012 true Resume "The broker restarts.";
    ProtocolMismatch "protocol_mismatch" 1002 false Stop "No protocol version in common.";
    BadFirstFrame "bad_first_frame" 1008 false Stop "The first frame was not a hello.";
    Unauthorized "unauthorized" 1008 false Stop "The proof, attestation or credential does not hold.";
    Forbidden "forbidden" 1008 false Stop "This session may not join here.";
    SlowConsumer "slow_consumer" 1008 true Resume "The client did not read what was sent to it.";
    TooLarge "too_large" 1009 true Resume "A frame was over the limit; do not send it again.";
    Busy "busy" 1013 true Backoff "A bound is reached or the store cannot write.";
    Draining "draining" 1013 true Backoff "The broker takes no new sessions.";
    SessionContested "session_contested" 1013 true Backoff "Several processes fight over this session key.";
    Kicked "kicked" 4003 false Stop "An operator ended this session.";
    Banned "banned" 4004 false Stop "An operator banned this session.";
    HelloTimeout "hello_timeout" 4008 true Resume "No hello came in time.";
    Stale "stale" 4009 true Resume "Nothing was heard from the client for too long.";
    FeatureUnavailable "feature_unavailable" 4010 false Stop "A required feature is missing here.";
    FeatureParamInvalid "feature_param_invalid" 4011 false Stop "A feature's parameter is malformed.";
    FeatureParamBelowFloor "feature_param_below_floor" 4012 false Stop "A feature's parameter is below its floor.";
    BadFrame "bad_frame" 1002 true Backoff "A message broke the WebSocket protocol itself.";
}

/// `event closing`: precedes every close that the broker decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Closing {
    /// The WebSocket close code that follows.
    pub code: u16,
    /// What to act on; a string, so that a newer broker's reason reaches an older client.
    pub reason: String,
    /// Whether dialling again may help.
    pub retryable: bool,
    /// How long to wait before dialling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<U53>,
    /// With `session_replaced`: the newcomer's `instanceId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
}

impl Closing {
    /// The closing event for `reason`.
    pub fn new(reason: Reason) -> Closing {
        Closing {
            code: reason.code(),
            reason: reason.as_str().to_owned(),
            retryable: reason.retryable(),
            retry_after_ms: None,
            instance_id: None,
        }
    }

    /// The same, with a time to wait.
    pub fn retry_after(mut self, ms: u64) -> Closing {
        self.retry_after_ms = Some(U53::saturating(ms));
        self
    }

    /// What a client does: by reason when it is known, else by whether it is `retryable`.
    pub fn action(&self) -> Action {
        match Reason::from_wire(&self.reason) {
            Some(reason) => reason.action(),
            None if self.retryable => Action::Backoff,
            None => Action::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_reason_follows_its_retryable_flag() {
        let mut closing = Closing::new(Reason::Stale);
        closing.reason = "from_the_future".into();
        assert_eq!(closing.action(), Action::Backoff);
        closing.retryable = false;
        assert_eq!(closing.action(), Action::Stop);
    }

    #[test]
    fn stopping_reasons_are_not_retryable() {
        for reason in Reason::ALL {
            assert_eq!(
                reason.action() == Action::Stop,
                !reason.retryable() && reason.code() != 1000,
                "{reason:?}"
            );
        }
    }
}
