//! What goes into a link and what comes out of it.

use tenure_proto::WireError;
use tenure_proto::event::{EventBody, Receipt};
use tenure_proto::hello::HelloResult;
use tenure_proto::ids::InstanceId;

use crate::delivery::{Handed, SettleNumber, Settlement, SubHandle, SubItem};
use crate::runs::{CallHandle, CallItem, ServedHandle, ServedItem};
use crate::services::{OfferHandle, OfferItem};

/// One socket of a link; the shell gets the number with the dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SockId(pub u64);

/// One request of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNumber(pub u64);

/// What a socket did.
#[derive(Clone, Debug)]
pub enum LinkInput {
    /// A dial led to a WebSocket.
    Opened(SockId),
    /// A frame came.
    Frame(SockId, Vec<u8>),
    /// A ping or pong came.
    Heard(SockId),
    /// The pong to the last [`LinkEffect::Ping`] came. Anything else may have lain unread while we slept; this
    /// was sent after we asked.
    Answered(SockId),
    /// The dial failed.
    Failed {
        /// Which.
        sock: SockId,
        /// Why, in a few words.
        reason: String,
        /// Whether somebody answered, if only to refuse: an HTTP status instead of a WebSocket.
        answered: bool,
    },
    /// It ended; with the close code, if there was one.
    Gone(SockId, Option<u16>),
}

/// What a link asks of its shell.
#[derive(Clone, Debug)]
pub enum LinkEffect {
    /// Dial, and call the socket this.
    Dial(SockId),
    /// Send a frame.
    Send(SockId, Vec<u8>),
    /// Send a WebSocket ping, told apart from those before it.
    Ping(SockId),
    /// Close it or stop dialling; whatever it still does is ignored.
    Drop(SockId),
    /// Tell the application.
    Deliver(SessionEvent),
    /// A request is answered: with its response frame, or with why there is none.
    Answer(RequestNumber, Result<Vec<u8>, WireError>),
    /// A `fetch` is answered: what it brought that was not in hand already.
    Fetched(RequestNumber, Result<Vec<Handed>, WireError>),
    /// The fate of a send whose receipt was asked for; once for each, after its [`LinkEffect::Answer`].
    Receipt(RequestNumber, Result<Receipt, WireError>),
    /// Something for the reader of a subscription; after [`SubItem::Ended`] nothing more.
    Sub(SubHandle, SubItem),
    /// Something for the caller of a run; after [`CallItem::Ended`] nothing more.
    Call(CallHandle, CallItem),
    /// Something about a run that this session answers; after [`ServedItem::Over`] or [`ServedItem::Ended`] nothing more.
    Served(ServedHandle, ServedItem),
    /// Something about what this session offers; after [`OfferItem::Ended`] nothing more.
    Offer(OfferHandle, OfferItem),
    /// What became of a settlement; once for each.
    Settled(SettleNumber, Settlement),
    /// The session is over. Nothing follows.
    Ended(End),
}

/// What an application hears of its session.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// A socket carries it; a snapshot, when there is one, replaces what was known.
    Attached(Box<HelloResult>),
    /// The socket is lost. Peers notice nothing unless it takes too long.
    Detached {
        /// Why.
        reason: String,
    },
    /// The next dial comes in this many milliseconds.
    Waiting {
        /// Milliseconds.
        ms: u64,
        /// Why the last socket or dial did not do.
        reason: String,
        /// Whether a broker, or a server in its place, said so itself; otherwise nothing answered.
        answered: bool,
    },
    /// The broker's store came back with another history: it was wiped, restored from a backup, or kept in memory only. Of these
    /// logs everything that is there is read again; what was handled before is recognised by its message id and not
    /// handed out twice. Told once for each time that it happens.
    HistoryRewound {
        /// The logs, in order.
        logs: Vec<String>,
    },
    /// An event of the broker, in order.
    Event {
        /// Its number.
        seq: u64,
        /// The event.
        body: Box<EventBody>,
    },
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum End {
    /// This side said goodbye.
    #[error("the session said goodbye")]
    Bye,
    /// Another process speaks with this session's key now.
    #[error("another process took this session over")]
    Replaced {
        /// Which.
        by: Option<InstanceId>,
    },
    /// The broker will not have it, and trying again cannot help.
    #[error("the broker closed the session for good: {reason}{}", error.as_ref().map(|e| format!(" ({e})")).unwrap_or_default())]
    Stopped {
        /// The reason of the close.
        reason: String,
        /// What the hello was answered.
        error: Option<WireError>,
    },
}
