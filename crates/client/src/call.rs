//! Calling: somebody is asked something, and the answer streams back through every break.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tenure_link::{CallEnd, CallHandle, CallItem, SubEnd};
use tenure_proto::WireError;
use tenure_proto::ids::RunId;
use tenure_proto::message::Address;
use tenure_proto::number::U53;
use tenure_proto::run::{RunEndStatus, RunStartParams};
use tokio::sync::{mpsc, oneshot};

use crate::driver::Command;
use crate::received::HandCommand;
use crate::send::{To, millis};
use crate::session::{Session, over};

/// Something of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A piece of it.
    Chunk {
        /// What it says.
        data: Value,
        /// Whether pieces before it are gone for good: a broker keeps the last mebibyte of them, for a minute after the
        /// end, and one that crashed none.
        gap: bool,
    },
    /// The end of a run that went well.
    End {
        /// What came of it.
        result: Value,
        /// Whether pieces before the end are gone for good.
        gap: bool,
    },
}

/// Why a call did not end well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The run failed: its callee said so, or the broker had to.
    #[error("the run failed: {0}")]
    Failed(WireError),
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The broker did not start it, or does not know it any more.
    #[error(transparent)]
    Refused(WireError),
    /// This session is over. The run is not: a call with the same key finds it again, its pieces for a minute after its end
    /// and its result for a day.
    #[error("{0}; the run goes on, and a call with the same key finds it")]
    Session(SubEnd),
}

impl CallError {
    fn of(end: CallEnd) -> Result<Answer, CallError> {
        let (end, gap) = match end {
            CallEnd::Run { end, gap } => (end, gap),
            CallEnd::Refused(error) => return Err(CallError::Refused(error)),
            CallEnd::Session(end) => return Err(CallError::Session(end)),
        };
        match end.status {
            RunEndStatus::Ok => Ok(Answer::End { result: end.result.unwrap_or(Value::Null), gap }),
            RunEndStatus::Cancelled => Err(CallError::Cancelled),
            RunEndStatus::Error => {
                let unsaid = || WireError::new(tenure_proto::ErrorCode::Internal, "it did not say why");
                Err(CallError::Failed(end.error.unwrap_or_else(unsaid)))
            }
        }
    }
}

/// The task's end of a call. Unbounded as a channel, bounded by what the link hands out unread.
pub(crate) type Caller = mpsc::UnboundedSender<CallItem>;

/// The answer to a call, as it comes. It goes on through every break and every start of the broker; each piece comes once
/// and in order, and where some are gone that is said.
///
/// **Dropped**, it stops listening; the run goes on, and a call with the same key finds it again.
/// [`cancel`](RunStream::cancel) is what stops it.
#[derive(Debug)]
pub struct RunStream {
    session: Session,
    handle: CallHandle,
    items: mpsc::UnboundedReceiver<CallItem>,
    run: RunId,
    end: Option<Result<Answer, CallError>>,
}

impl RunStream {
    /// The run, as everybody knows it.
    pub fn run_id(&self) -> RunId {
        self.run
    }

    /// The next piece, then the end, every time: [`Answer::End`] when it went well, else why it did not. Cancel-safe.
    pub async fn next(&mut self) -> Result<Answer, CallError> {
        if let Some(end) = &self.end {
            return end.clone();
        }
        loop {
            let end = match self.items.recv().await {
                Some(CallItem::Started(_)) => continue,
                Some(CallItem::Chunk { data, gap, .. }) => {
                    let _ = self.session.hands.send(HandCommand::ReadChunk(self.handle));
                    return Ok(Answer::Chunk { data, gap });
                }
                Some(CallItem::Ended(end)) => CallError::of(end),
                // The task ends by telling why; without that it was torn down with its runtime.
                None => Err(CallError::Session(SubEnd::Disconnected)),
            };
            return self.end.insert(end).clone();
        }
    }

    /// What comes of it in the end, passing over its pieces.
    pub async fn result(mut self) -> Result<Value, CallError> {
        loop {
            if let Answer::End { result, .. } = self.next().await? {
                return Ok(result);
            }
        }
    }

    /// Asks for the run to be stopped. One that nobody has taken yet is cancelled at once; else its callee is told, and the
    /// stream ends when that has ended it, however it did. A broker that starts again is told once more.
    ///
    /// It is asked for at once; the future is the broker's answer, and goes on while the stream is read.
    pub fn cancel(&self) -> impl Future<Output = Result<(), WireError>> + Send + use<> {
        let _ = self.session.hands.send(HandCommand::Cancelled(self.handle));
        let (session, run) = (self.session.clone(), self.run);
        async move { session.run_cancel(run).await }
    }
}

impl Drop for RunStream {
    fn drop(&mut self) {
        if self.end.is_none() {
            let _ = self.session.hands.send(HandCommand::HangUp(self.handle));
        }
    }
}

/// A call in the making: describe it, then await its stream.
#[must_use = "nobody is called before this is awaited"]
#[derive(Debug)]
pub struct CallBuilder {
    session: Session,
    params: Result<RunStartParams, WireError>,
    patience_ms: u64,
}

impl CallBuilder {
    pub(crate) fn new(session: Session, to: To, input: Value) -> CallBuilder {
        let params = match to {
            To(Address::Topic(_)) => {
                Err(WireError::bad_request("a topic cannot be called: name a session or a member"))
            }
            To(to) => session.ids.mint().map(|key| RunStartParams {
                to,
                input,
                idempotency_key: key.to_string(),
                timeout_ms: None,
                from_seq: None,
            }),
        };
        let patience_ms = session.timeout_ms;
        CallBuilder { session, params, patience_ms }
    }

    /// The caller's own key for it: two calls with one key are one run, also from a later life of your program. Without one
    /// it gets a fresh ULID.
    pub fn key(self, key: impl Into<String>) -> CallBuilder {
        self.with(|params| params.idempotency_key = key.into())
    }

    /// How long the run may take before the broker ends it; ten minutes unless told otherwise.
    pub fn timeout(self, timeout: Duration) -> CallBuilder {
        self.with(|params| params.timeout_ms = Some(U53::saturating(millis(timeout))))
    }

    /// How long to go on trying until a broker has taken it, breaks and refusals for now included.
    pub fn patience(mut self, patience: Duration) -> CallBuilder {
        self.patience_ms = millis(patience);
        self
    }

    /// The key that it has.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.params.as_ref().ok().map(|params| params.idempotency_key.as_str())
    }

    fn with(mut self, change: impl FnOnce(&mut RunStartParams)) -> CallBuilder {
        if let Ok(params) = &mut self.params {
            change(params);
        }
        self
    }

    async fn open(self) -> Result<RunStream, CallError> {
        let CallBuilder { session, params, patience_ms } = self;
        let params = Box::new(params.map_err(CallError::Refused)?);
        let (answer, answered) = oneshot::channel();
        let lost = || CallError::Refused(over());
        session.commands.send(Command::Call(params, patience_ms, answer)).await.map_err(|_| lost())?;
        let (handle, items) = answered.await.map_err(|_| lost())?.map_err(CallError::Refused)?;
        // From here on dropping it hangs up.
        let mut stream = RunStream { session, handle, items, run: RunId(0), end: None };
        match stream.items.recv().await {
            Some(CallItem::Started(result)) => stream.run = result.run_id,
            Some(CallItem::Ended(end)) => {
                let refused = CallError::of(end).err().unwrap_or(CallError::Cancelled);
                stream.end = Some(Err(refused.clone()));
                return Err(refused);
            }
            Some(CallItem::Chunk { .. }) | None => return Err(CallError::Session(SubEnd::Disconnected)),
        }
        Ok(stream)
    }
}

impl IntoFuture for CallBuilder {
    type Output = Result<RunStream, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Calls, and waits until the broker has the run on its disk.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
