//! What a reader of messages sees: subscriptions by a name that outlives sockets, deliveries in hand, and how
//! both end.

use tenure_proto::WireError;
use tenure_proto::message::Delivery;
use tenure_proto::subscribe::SubscribeResult;

/// A subscription as the application knows it. The broker's name for it may change with every reconnect; this
/// one does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubHandle(pub u64);

impl SubHandle {
    /// The session's own inbox, when the hello asks for it.
    pub const INBOX: SubHandle = SubHandle(1);
    /// The member's inbox, when the hello asks for it.
    pub const MEMBER: SubHandle = SubHandle(2);
}

/// A message in the application's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub u64);

/// One settlement that the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettleNumber(pub u64);

/// A message handed to the application.
#[derive(Clone, Debug, PartialEq)]
pub struct Handed {
    /// What to settle it by; `None` when it was settled by being sent.
    pub id: Option<DeliveryId>,
    /// The message. Its tag may be outdated by the time it is settled; the link knows the current one.
    pub delivery: Box<Delivery>,
}

/// Something for the reader of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum SubItem {
    /// The broker has it; told once, however often it is made again.
    Opened(SubscribeResult),
    /// A message.
    Message(Handed),
    /// Entries were gone before they could be read.
    Gap {
        /// Of which partition.
        partition: Option<u32>,
        /// The first one.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// It is over.
    Ended(SubEnd),
}

/// What to do with a message in hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// It is done.
    Ack,
    /// It goes back: to be tried again, or to the dead letters.
    Nack {
        /// How long it waits before the next attempt.
        delay_ms: Option<u64>,
        /// Whether it goes straight to the dead letters.
        dead: bool,
        /// Why.
        reason: Option<String>,
    },
    /// It takes longer: the clock that would take it away starts again.
    Progress,
}

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// It took effect, now or before.
    Settled,
    /// The message is not in this session's hands any more: it will be, or has been, handed out again.
    Stale {
        /// Why.
        reason: String,
    },
    /// The broker will not have it.
    Refused(WireError),
    /// The session ended before the broker answered.
    SessionOver,
}

/// Why a subscription is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubEnd {
    /// The application asked for it.
    #[error("unsubscribed")]
    Unsubscribed,
    /// The session said goodbye.
    #[error("the session said goodbye")]
    ClientShutdown,
    /// After a break the broker would not take it up again.
    #[error("the broker did not take the subscription up again: {reason}")]
    ReconciledClosed {
        /// Why.
        reason: String,
    },
    /// The topic, or the group that it read with, was deleted.
    #[error("its topic or group was deleted")]
    Deleted,
    /// The lease that it hung on has ended.
    #[error("the session's lease has ended")]
    LeaseExpired,
    /// Another process speaks with this session's key now.
    #[error("another process took this session over")]
    Replaced,
    /// No broker could be reached in time, or the task that carried the session is gone.
    #[error("disconnected")]
    Disconnected,
    /// The broker refused or ended it.
    #[error("{code}: {message}")]
    BrokerError {
        /// The code, as it stands on the wire.
        code: String,
        /// One sentence for people.
        message: String,
    },
}

impl SubEnd {
    /// The end that a refusal means.
    pub fn refused(error: &WireError) -> SubEnd {
        SubEnd::BrokerError { code: error.code.as_str().to_owned(), message: error.message.clone() }
    }

    /// The end that the broker told in one word.
    pub(super) fn closed(reason: Option<String>) -> SubEnd {
        match reason.as_deref() {
            Some("lease_expired") => SubEnd::LeaseExpired,
            Some("deleted") => SubEnd::Deleted,
            Some("replaced" | "session_replaced") => SubEnd::Replaced,
            _ => {
                let code = reason.unwrap_or_else(|| "closed".to_owned());
                SubEnd::BrokerError { code, message: "the broker closed the subscription".to_owned() }
            }
        }
    }

    /// The end that the end of the whole session means.
    pub(super) fn of_session(end: &crate::End) -> SubEnd {
        match end {
            crate::End::Bye => SubEnd::ClientShutdown,
            crate::End::Replaced { .. } => SubEnd::Replaced,
            crate::End::Stopped { error: Some(error), .. } => SubEnd::refused(error),
            crate::End::Stopped { reason, .. } if reason == "lease_expired" => SubEnd::LeaseExpired,
            crate::End::Stopped { reason, .. } => SubEnd::BrokerError {
                code: reason.clone(),
                message: "the broker closed the session for good".to_owned(),
            },
        }
    }
}
