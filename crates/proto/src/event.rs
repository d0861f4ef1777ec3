//! Events: what a broker tells a session without being asked.

use serde::{Deserialize, Serialize};

use crate::close::Closing;
use crate::codec::{Codec, DecodeError};
use crate::frame;
use crate::hello::{Challenge, HealthStatus};
use crate::ids::{ClientMessageId, MessageId};
use crate::message::Delivery;
use crate::number::U53;
use crate::peer::SharedPeer;
use crate::run::RunEvent;
use crate::service::ServiceEvent;
use crate::subscribe::SubscriptionEvent;

/// What became of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PresenceKind {
    /// Its lease began.
    Joined,
    /// Its lease ended.
    Left,
    /// Its profile changed.
    Updated,
}

impl PresenceKind {
    /// As it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            PresenceKind::Joined => "joined",
            PresenceKind::Left => "left",
            PresenceKind::Updated => "updated",
        }
    }
}

/// `event presence`: one step of the presence map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PresenceEvent {
    /// What became of the peer.
    pub kind: PresenceKind,
    /// The peer as it is now (as it was, when it left).
    pub peer: SharedPeer,
    /// The version last sent to this session; beyond the client's own, it missed something.
    pub base: U53,
    /// The version after this step; at or below the client's own, it is old news.
    pub version: U53,
}

/// What became of a message that this session sent to a session or member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The message.
    pub id: MessageId,
    /// The sender's name for it.
    pub client_message_id: ClientMessageId,
    /// Its fate.
    pub state: ReceiptState,
    /// Why, when it was not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ReceiptState {
    /// The receiver settled it.
    Delivered,
    /// It went to the dead letters.
    Dead,
    /// Nobody settled it in time.
    Expired,
}

/// `event health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HealthEvent {
    /// How the broker is.
    pub status: HealthStatus,
    /// The version of this fact.
    pub version: U53,
}

/// `event tick`: nothing else was sent for a while, and this side lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Tick {
    /// The broker's wall clock, Unix milliseconds.
    pub ts: U53,
}

/// `event shutdown`: the broker will close this socket soon, and says what it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Shutdown {
    /// Why.
    pub reason: String,
    /// When it expects to be back, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_expected_ms: Option<U53>,
    /// How long in-flight work has.
    pub deadline_ms: U53,
    /// How long this session is asked to wait before dialling.
    pub reconnect_after_ms: U53,
}

/// Something whose deltas were dropped and that must be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ResyncWhat {
    /// `presence.list`.
    Presence,
    /// `services.list`.
    Services,
    /// `health`.
    Health,
    /// `send.status` of whatever receipts are awaited for.
    Receipts,
}

/// `event resync`: deltas were dropped; read these again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Resync {
    /// What to read again.
    pub what: Vec<ResyncWhat>,
}

/// `event notice`: something a person may want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Notice {
    /// A stable code.
    pub code: String,
    /// One sentence.
    pub message: String,
}

macro_rules! events {
    ($($variant:ident($data:ty) $name:literal $doc:literal;)*) => {
        /// Any event.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EventBody {
            $(#[doc = $doc] $variant($data),)*
            /// An event of a newer protocol: named, not understood.
            Unknown(String),
        }

        impl EventBody {
            /// The names of all events.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// Its name on the wire.
            pub fn name(&self) -> &str {
                match self {
                    $(EventBody::$variant(_) => $name,)*
                    EventBody::Unknown(name) => name,
                }
            }

            /// The event called `name` whose frame is `bytes`.
            pub fn decode(codec: Codec, name: &str, bytes: &[u8]) -> Result<EventBody, DecodeError> {
                match name {
                    $($name => frame::data(codec, bytes).map(EventBody::$variant),)*
                    _ => Ok(EventBody::Unknown(name.to_owned())),
                }
            }

            /// The whole frame, numbered `seq` if it is of the numbered kind.
            pub fn encode(&self, codec: Codec, seq: Option<u64>) -> Vec<u8> {
                match self {
                    $(EventBody::$variant(data) => codec.encode(&frame::Event::new($name, seq, data)),)*
                    EventBody::Unknown(name) => codec.encode(&frame::Event::new(name, seq, ())),
                }
            }
        }
    };
}

events! {
    Challenge(Challenge) "challenge" "The first frame on a socket.";
    Closing(Closing) "closing" "The last frame on a socket.";
    Message(Box<Delivery>) "message" "A delivery.";
    Receipt(Receipt) "receipt" "The fate of a sent message.";
    Presence(PresenceEvent) "presence" "One step of the presence map.";
    Service(ServiceEvent) "service" "One step of the service map.";
    Health(HealthEvent) "health" "How the broker is.";
    Run(RunEvent) "run" "Progress of a run.";
    Subscription(SubscriptionEvent) "subscription" "The fate of a subscription.";
    Tick(Tick) "tick" "Nothing else was sent for a while.";
    Shutdown(Shutdown) "shutdown" "The broker is stopping.";
    Resync(Resync) "resync" "Deltas were dropped.";
    Notice(Notice) "notice" "Something a person may want to know.";
}
