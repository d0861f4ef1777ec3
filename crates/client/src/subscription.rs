//! Reading: topics and inboxes as streams that end with a reason.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_link::{SubEnd, SubHandle};
use tenure_proto::WireError;
use tenure_proto::subscribe::{AckMode, DEFAULT_PREFETCH, From as Start, SubscribeParams, SubscribeResult};
use tokio::sync::oneshot;

use crate::driver::Command;
use crate::feed::{Fed, Mouth};
use crate::received::{HandCommand, Received};
use crate::session::{Session, over};

/// What comes out of a [`Subscription`].
#[derive(Debug)]
pub enum Item {
    /// A message, to be settled.
    Message(Received),
    /// Entries that were gone before they could be read: pruned at the broker, or, on a subscription that settles
    /// by sending, skipped because the application did not keep up.
    Gap {
        /// Of which partition.
        partition: Option<u32>,
        /// The first one.
        from: u64,
        /// The last one.
        to: u64,
    },
}

/// A stream of messages. It goes on through every break; when it ends, it says why. Dropping it unsubscribes;
/// what was taken from it can still be settled. An inbox cannot be left: dropped, it can be taken again.
#[derive(Debug)]
pub struct Subscription {
    mouth: Option<Mouth>,
    session: Session,
    start: Option<SubscribeResult>,
    end: Option<SubEnd>,
    /// Where an inbox goes back to.
    home: Option<InboxSlot>,
}

/// An inbox that nobody has taken, or `None`.
pub(crate) type InboxSlot = Arc<Mutex<Option<Mouth>>>;

/// Why there is no inbox to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// The options did not ask for it, so the broker does not send it: see [`crate::Options::inbox`].
    #[error("this session did not ask for that inbox when it joined")]
    NotAsked,
    /// Somebody has it already.
    #[error("that inbox is being read already")]
    Taken,
}

impl Subscription {
    pub(crate) fn inbox(session: Session, slot: &InboxSlot) -> Result<Subscription, InboxError> {
        let mouth = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mouth = mouth.ok_or(InboxError::Taken)?;
        let home = Some(Arc::clone(slot));
        Ok(Subscription { mouth: Some(mouth), session, start: None, end: None, home })
    }

    /// The next message or gap; after the last one the reason for the end, every time. Cancel-safe.
    pub async fn next(&mut self) -> Result<Item, SubEnd> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        loop {
            let fed = match &mut self.mouth {
                Some(mouth) => mouth.next().await,
                None => None,
            };
            match fed {
                Some(Fed::Item(item)) => return Ok(item),
                Some(Fed::Opened(result)) => self.start = Some(result),
                Some(Fed::Ended(end)) => return Err(self.end.insert(end).clone()),
                // The task ends by telling why; without that it was torn down with its runtime.
                None => return Err(self.end.insert(SubEnd::Disconnected).clone()),
            }
        }
    }

    /// The next message, passing over gaps. Cancel-safe.
    pub async fn next_message(&mut self) -> Result<Received, SubEnd> {
        loop {
            if let Item::Message(message) = self.next().await? {
                return Ok(message);
            }
        }
    }

    /// Pulls up to `limit` entries at once, whatever their priority and whatever is in hand: how an agent that is
    /// busy looks into its inbox. What is in hand already is not among them.
    pub async fn fetch(&self, limit: usize) -> Result<Vec<Received>, WireError> {
        let Some(handle) = self.handle() else { return Err(over()) };
        let (answer, answered) = oneshot::channel();
        let command = Command::Fetch(handle, limit as u64, self.session.timeout_ms, answer);
        self.session.commands.send(command).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }

    /// Where it began in each partition, of a topic.
    pub fn start(&self) -> Option<&SubscribeResult> {
        self.start.as_ref()
    }

    /// Ends it, and waits until the broker knows: what was not settled then goes to others. What waits unread is
    /// let go.
    pub async fn unsubscribe(mut self) {
        self.leave();
        while self.home.is_none() && self.next().await.is_ok() {}
    }

    fn handle(&self) -> Option<SubHandle> {
        self.mouth.as_ref().map(|mouth| mouth.handle)
    }

    fn leave(&self) {
        if let Some(handle) = self.handle().filter(|_| self.home.is_none() && self.end.is_none()) {
            let _ = self.session.hands.send(HandCommand::Leave(handle));
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
        if let Some(slot) = &self.home
            && self.end.is_none()
        {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = self.mouth.take();
        }
    }
}

/// A subscription in the making; await it.
#[must_use = "nothing is read before this is awaited"]
#[derive(Debug)]
pub struct SubscribeBuilder {
    session: Session,
    params: Result<SubscribeParams, WireError>,
}

impl SubscribeBuilder {
    pub(crate) fn new(session: Session, topic: &str) -> SubscribeBuilder {
        let params = topic.parse().map(|topic| SubscribeParams {
            topic,
            group: None,
            partition: None,
            prefetch: DEFAULT_PREFETCH,
            ack_mode: AckMode::Manual,
            from: Start::New,
        });
        SubscribeBuilder { session, params }
    }

    /// As one of a crew that shares the work, durably; without it every subscription sees everything and ends
    /// with its session.
    pub fn group(mut self, name: &str) -> SubscribeBuilder {
        self.params = self.params.and_then(|params| {
            let group = Some(name.parse()?);
            Ok(SubscribeParams { group, ..params })
        });
        self
    }

    /// How many messages may be unsettled at once; they wait in this process.
    pub fn prefetch(self, messages: u32) -> SubscribeBuilder {
        self.with(|params| params.prefetch = messages)
    }

    /// Where to begin, if the group is new.
    pub fn from(self, start: Start) -> SubscribeBuilder {
        self.with(|params| params.from = start)
    }

    /// One partition only.
    pub fn partition(self, partition: u32) -> SubscribeBuilder {
        self.with(|params| params.partition = Some(partition))
    }

    /// A message counts as settled when it was sent to us: at most once, by choice. Settling it does nothing.
    pub fn auto_ack(self) -> SubscribeBuilder {
        self.with(|params| params.ack_mode = AckMode::Auto)
    }

    fn with(mut self, change: impl FnOnce(&mut SubscribeParams)) -> SubscribeBuilder {
        if let Ok(params) = &mut self.params {
            change(params);
        }
        self
    }

    async fn open(self) -> Result<Subscription, SubEnd> {
        let params = self.params.map_err(|error| SubEnd::refused(&error))?;
        let (answer, answered) = oneshot::channel();
        let command = Command::Subscribe(Box::new(params), self.session.timeout_ms, answer);
        self.session.commands.send(command).await.map_err(|_| SubEnd::Disconnected)?;
        let mouth = answered.await.map_err(|_| SubEnd::Disconnected)?;
        let mouth = mouth.map_err(|error| SubEnd::refused(&error))?;
        let (session, end, home) = (self.session, None, None);
        // From here on dropping it unsubscribes.
        let mut subscription = Subscription { mouth: Some(mouth), session, start: None, end, home };
        let fed = match &mut subscription.mouth {
            Some(mouth) => mouth.next().await,
            None => None,
        };
        match fed {
            Some(Fed::Opened(result)) => subscription.start = Some(result),
            Some(Fed::Ended(end)) => return Err(subscription.end.insert(end).clone()),
            Some(Fed::Item(_)) | None => return Err(SubEnd::Disconnected),
        }
        Ok(subscription)
    }
}

impl IntoFuture for SubscribeBuilder {
    type Output = Result<Subscription, SubEnd>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Subscribes; goes on trying until the options' timeout.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
