//! Sending: a message is described, then awaited.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_link::Patience;
use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::Receipt;
use tenure_proto::ids::{ClientMessageId, MemberKey, SessionKey};
use tenure_proto::message::{Address, Bytes, Fallback, Meta, Priority, SendParams, SendResult};
use tenure_proto::name::TopicName;
use tenure_proto::number::U53;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::driver::{Answering, Command};
use crate::session::{Session, over, read};

/// Where a message goes: a session, a member or a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To(pub Address);

impl To {
    /// The topic called `name`.
    pub fn topic(name: &str) -> Result<To, WireError> {
        name.parse().map(|name| To(Address::Topic(name)))
    }
}

impl From<Address> for To {
    fn from(address: Address) -> To {
        To(address)
    }
}

impl From<SessionKey> for To {
    fn from(key: SessionKey) -> To {
        To(Address::Session(key))
    }
}

impl From<MemberKey> for To {
    fn from(key: MemberKey) -> To {
        To(Address::Member(key))
    }
}

impl From<TopicName> for To {
    fn from(name: TopicName) -> To {
        To(Address::Topic(name))
    }
}

/// What a message says: text or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// UTF-8 text.
    Text(String),
    /// Anything.
    Bytes(Vec<u8>),
}

impl From<&str> for Body {
    fn from(text: &str) -> Body {
        Body::Text(text.to_owned())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::Text(text)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::Bytes(bytes)
    }
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Body {
        Body::Bytes(bytes.to_vec())
    }
}

/// A message in the making: describe it, then await it.
///
/// Once it is on its way it is the same request on every socket, so that a break costs nothing: the broker accepts
/// it once, whatever happens. Without an [`id`](SendBuilder::id) it gets a fresh ULID; give one to make a retry by a later
/// life of your program the same message too.
#[must_use = "nothing is sent before this is awaited"]
#[derive(Debug)]
pub struct SendBuilder {
    session: Session,
    params: Result<SendParams, WireError>,
    timeout_ms: u64,
    window: Option<Arc<Semaphore>>,
}

impl SendBuilder {
    pub(crate) fn new(session: Session, to: To, body: Body, window: Option<Arc<Semaphore>>) -> SendBuilder {
        let (body, body_b64) = match body {
            Body::Text(text) => (Some(text), None),
            Body::Bytes(bytes) => (None, Some(Bytes(bytes))),
        };
        let params = session.ids.mint().map(|client_message_id| SendParams {
            to: to.0,
            body,
            body_b64,
            client_message_id,
            priority: Priority::default(),
            key: None,
            reply_to: None,
            meta: None,
            content_type: None,
            ttl_ms: None,
            delay_ms: None,
            fallback: Fallback::default(),
            fingerprint: None,
        });
        let timeout_ms = session.timeout_ms;
        SendBuilder { session, params, timeout_ms, window }
    }

    /// The sender's own id for it: two sends with one id are one message.
    pub fn id(mut self, id: &str) -> SendBuilder {
        self.params = self.params.and_then(|params| {
            let bad = |_| {
                WireError::bad_request(
                    "an id is 1 to 128 printable characters and does not start with 'run:'",
                )
            };
            let client_message_id = id.parse::<ClientMessageId>().map_err(bad)?;
            Ok(SendParams { client_message_id, ..params })
        });
        self
    }

    /// How urgent it is.
    pub fn priority(self, priority: Priority) -> SendBuilder {
        self.with(|params| params.priority = priority)
    }

    /// What chooses its partition of a topic.
    pub fn key(self, key: impl Into<String>) -> SendBuilder {
        self.with(|params| params.key = Some(key.into()))
    }

    /// The message that it answers.
    pub fn reply_to(self, id: impl ToString) -> SendBuilder {
        self.with(|params| params.reply_to = Some(id.to_string()))
    }

    /// Free facts beside the body.
    pub fn meta(self, meta: Meta) -> SendBuilder {
        self.with(|params| params.meta = Some(meta))
    }

    /// What the body is.
    pub fn content_type(self, content_type: impl Into<String>) -> SendBuilder {
        self.with(|params| params.content_type = Some(content_type.into()))
    }

    /// How long it may wait for its reader.
    pub fn ttl(self, ttl: Duration) -> SendBuilder {
        self.with(|params| params.ttl_ms = Some(U53::saturating(millis(ttl))))
    }

    /// How long it must wait.
    pub fn delay(self, delay: Duration) -> SendBuilder {
        self.with(|params| params.delay_ms = Some(U53::saturating(millis(delay))))
    }

    /// What happens when the receiving session's lease ends first.
    pub fn fallback(self, fallback: Fallback) -> SendBuilder {
        self.with(|params| params.fallback = fallback)
    }

    /// How long to go on trying, breaks and refusals for now included.
    pub fn timeout(mut self, timeout: Duration) -> SendBuilder {
        self.timeout_ms = millis(timeout);
        self
    }

    /// Sends it and waits until the broker has accepted it.
    pub async fn send(self) -> Result<SendResult, WireError> {
        self.enqueue().await?.await
    }

    /// Sends it without waiting for the answer: resolves when there is room for it, to a future of the answer.
    /// It is on its way whether or not that is awaited.
    pub async fn enqueue(self) -> Result<Sending, WireError> {
        let permit = match &self.window {
            Some(window) => Some(Arc::clone(window).acquire_owned().await.map_err(|_| over())?),
            None => None,
        };
        let codec = self.session.codec;
        let (answer, answered) = oneshot::channel();
        self.command(answer, None, permit, None).await?;
        Ok(Sending { answered, codec })
    }

    /// Sends it and waits until the receiver has settled it, or it is clear that nobody will; `within` this time,
    /// after which the message is still accepted and may still be delivered. Not for topics.
    pub async fn send_and_wait_delivered(mut self, within: Duration) -> Result<Receipt, WireError> {
        self.timeout_ms = self.timeout_ms.min(millis(within));
        let codec = self.session.codec;
        let (answer, answered) = oneshot::channel();
        let (receipt, received) = oneshot::channel();
        self.command(answer, Some(receipt), None, Some(millis(within))).await?;
        Sending { answered, codec }.await?;
        received.await.map_err(|_| over())?
    }

    /// The id that it has, or will have: keep it to ask for its fate later.
    pub fn message_id(&self) -> Option<&ClientMessageId> {
        self.params.as_ref().ok().map(|params| &params.client_message_id)
    }

    async fn command(
        self,
        answer: oneshot::Sender<Result<Vec<u8>, WireError>>,
        receipt: Option<oneshot::Sender<Result<Receipt, WireError>>>,
        permit: Option<OwnedSemaphorePermit>,
        receipt_ms: Option<u64>,
    ) -> Result<(), WireError> {
        let params = Box::new(self.params?);
        let patience = Patience { answer_ms: self.timeout_ms, receipt_ms };
        let answering = Answering { answer, receipt, permit };
        let command = Command::Send(params, patience, answering);
        self.session.commands.send(command).await.map_err(|_| over())
    }

    fn with(mut self, change: impl FnOnce(&mut SendParams)) -> SendBuilder {
        if let Ok(params) = &mut self.params {
            change(params);
        }
        self
    }
}

impl IntoFuture for SendBuilder {
    type Output = Result<SendResult, WireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Sends it and waits until the broker has accepted it.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A message on its way: resolves to the broker's answer. Dropping it changes nothing.
#[must_use = "only the answer tells whether the broker has it"]
#[derive(Debug)]
pub struct Sending {
    answered: oneshot::Receiver<Result<Vec<u8>, WireError>>,
    codec: Codec,
}

impl Future for Sending {
    type Output = Result<SendResult, WireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.answered).poll(cx));
        Poll::Ready(answer.map_err(|_| over()).flatten().and_then(|frame| read(self.codec, &frame)))
    }
}

/// Sends to one topic, many at a time. Clones share one window; it goes on through every break.
#[derive(Clone, Debug)]
pub struct Publisher {
    session: Session,
    topic: TopicName,
    window: Arc<Semaphore>,
}

/// Sends that a publisher keeps in flight, unless told otherwise.
const WINDOW: usize = 256;
/// The most that it may: half of what a broker lets wait for one session.
const WINDOW_MAX: usize = tenure_proto::limits::MAX_INFLIGHT as usize / 2;

impl Publisher {
    pub(crate) fn new(session: Session, topic: &str) -> Result<Publisher, WireError> {
        Ok(Publisher { session, topic: topic.parse()?, window: Arc::new(Semaphore::new(WINDOW)) })
    }

    /// Keeps up to `sends` in flight from here on, counted apart from its clones'.
    pub fn window(mut self, sends: usize) -> Publisher {
        self.window = Arc::new(Semaphore::new(sends.clamp(1, WINDOW_MAX)));
        self
    }

    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// A message to the topic. Await it to know that it is accepted; [`SendBuilder::enqueue`] it to go on at once, and
    /// to be held back only when the window is full.
    pub fn publish(&self, body: impl Into<Body>) -> SendBuilder {
        let to = To(Address::Topic(self.topic.clone()));
        SendBuilder::new(self.session.clone(), to, body.into(), Some(Arc::clone(&self.window)))
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Refused because there is no randomness for an id.
pub(crate) fn no_entropy() -> WireError {
    WireError::new(ErrorCode::Internal, "the system gave no randomness for a message id")
}
