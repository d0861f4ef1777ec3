//! A message in hand, and the ways to settle it.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_link::{CallHandle, DeliveryId, Handed, OfferHandle, ServedHandle, Settlement, SubHandle, Verb};
use tenure_proto::WireError;
use tenure_proto::message::Message;
use tenure_proto::run::RunEnd;
use tenure_proto::service::ServiceMetadata;
use tokio::sync::{mpsc, oneshot};

/// What becomes of things in hand. Unbounded as a channel, bounded by what is in hand: each message, subscription, call and
/// run says one last word here, and before it no more than the application makes it say.
pub(crate) enum HandCommand {
    Settle(DeliveryId, Verb, oneshot::Sender<Settlement>),
    Forgo(DeliveryId),
    Leave(SubHandle),
    /// A chunk of an answer was read.
    ReadChunk(CallHandle),
    /// A call is wanted no more.
    Cancelled(CallHandle),
    HangUp(CallHandle),
    EndRun(ServedHandle, RunEnd),
    /// A service is offered no more.
    Withdraw(OfferHandle),
    /// Whether a service's local target fails.
    Degrade(OfferHandle, bool),
    /// Other things are said of a service.
    Describe(OfferHandle, ServiceMetadata),
}

pub(crate) type Hands = mpsc::UnboundedSender<HandCommand>;

/// A message in hand: read it through [`Deref`], then settle it.
///
/// [`ack`](Received::ack) says that it is done, [`retry`](Received::retry) that somebody should try it again,
/// [`dead`](Received::dead) that nobody should. All three are on their way when they return; await what they
/// return to know that the broker has them.
///
/// **Dropped without being settled**, a message stays this session's until the broker takes it back: after its
/// ack timeout in a shared group, with the next reconnect or the end of the lease otherwise. It is then handed
/// out again, perhaps to this very session, and meanwhile takes one place of the prefetch.
#[must_use = "an unsettled message takes a place of the prefetch until the broker takes it back"]
#[derive(Debug)]
pub struct Received {
    handed: Handed,
    hands: Hands,
    settled: bool,
}

impl Received {
    pub(crate) fn new(handed: Handed, hands: Hands) -> Received {
        Received { settled: handed.id.is_none(), handed, hands }
    }

    /// How often it was handed out and given back before, plus one.
    pub fn attempt(&self) -> u32 {
        self.handed.delivery.attempt
    }

    /// Whether somebody may have seen it before.
    pub fn redelivered(&self) -> bool {
        self.handed.delivery.redelivered
    }

    /// What it says, as bytes.
    pub fn bytes(&self) -> &[u8] {
        let message = &self.handed.delivery.message;
        match (&message.body, &message.body_b64) {
            (Some(text), _) => text.as_bytes(),
            (None, Some(bytes)) => &bytes.0,
            (None, None) => &[],
        }
    }

    /// What it says, if that is text.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes()).ok()
    }

    /// It is done.
    pub fn ack(self) -> Settling {
        self.finish(Verb::Ack)
    }

    /// It is to be tried again, by whoever gets it, after `delay`. Counts an attempt: after too many the broker
    /// puts it among the dead letters.
    pub fn retry(self, delay: Duration) -> Settling {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.finish(Verb::Nack { delay_ms: (ms > 0).then_some(ms), dead: false, reason: None })
    }

    /// It cannot be done: straight to the dead letters, with the reason, from where it can be sent again.
    pub fn dead(self, reason: impl Into<String>) -> Settling {
        self.finish(Verb::Nack { delay_ms: None, dead: true, reason: Some(reason.into()) })
    }

    /// It takes longer: the ack timeout starts again.
    pub fn progress(&self) -> Settling {
        self.say(Verb::Progress)
    }

    fn finish(mut self, verb: Verb) -> Settling {
        let settling = self.say(verb);
        self.settled = true;
        settling
    }

    fn say(&self, verb: Verb) -> Settling {
        let Some(id) = self.handed.id else { return Settling(None) };
        let (answer, answered) = oneshot::channel();
        // A session that is over answers by dropping the other end.
        let _ = self.hands.send(HandCommand::Settle(id, verb, answer));
        Settling(Some(answered))
    }
}

impl Deref for Received {
    type Target = Message;
    fn deref(&self) -> &Message {
        &self.handed.delivery.message
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(id) = self.handed.id.filter(|_| !self.settled) {
            let _ = self.hands.send(HandCommand::Forgo(id));
        }
    }
}

/// A settlement on its way; it goes on, and through any break, whether or not this is awaited.
#[must_use = "only the answer tells whether the broker has it"]
#[derive(Debug)]
pub struct Settling(Option<oneshot::Receiver<Settlement>>);

/// Why a settlement did not take effect.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unsettled {
    /// The message had left this session's hands: it is, or will be, handed out again.
    #[error("the message is in other hands now: {reason}")]
    Stale {
        /// Why.
        reason: String,
    },
    /// The broker will not have it.
    #[error(transparent)]
    Refused(WireError),
    /// The session ended before the broker answered: it may or may not have taken effect.
    #[error("the session was over before the broker answered")]
    SessionOver,
}

impl Future for Settling {
    type Output = Result<(), Unsettled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Settled by being sent, or told before.
        let Some(answered) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let settlement = std::task::ready!(Pin::new(answered).poll(cx));
        self.0 = None;
        Poll::Ready(match settlement {
            Ok(Settlement::Settled) => Ok(()),
            Ok(Settlement::Stale { reason }) => Err(Unsettled::Stale { reason }),
            Ok(Settlement::Refused(error)) => Err(Unsettled::Refused(error)),
            Ok(Settlement::SessionOver) | Err(_) => Err(Unsettled::SessionOver),
        })
    }
}
