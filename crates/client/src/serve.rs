//! Answering: runs come to this session, and a handler answers each.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::FutureExt;
use serde_json::Value;
use tenure_link::{CHUNK_WINDOW, End, Piece, ServedHandle};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::RunId;
use tenure_proto::message::{Delivery, Sender};
use tenure_proto::run::{RunEnd, RunEndStatus};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::driver::Command;
use crate::received::{HandCommand, Hands};
use crate::session::{Session, over};

/// Runs that are answered at once, unless told otherwise.
const CONCURRENCY: usize = 16;

/// A run to be answered: read it, send pieces of the answer, return the rest of it.
#[derive(Debug)]
pub struct Run {
    /// The run, as everybody knows it.
    pub id: RunId,
    /// Who calls.
    pub from: Sender,
    /// What they ask.
    pub input: Value,
    /// Whether it may have been handed out before, to a process of this session that is gone. What that one has said of it
    /// stays said: ask [`Session::run_get`] how much that is before you answer from the beginning.
    pub redelivered: bool,
    handle: ServedHandle,
    session: Session,
    state: Arc<RunState>,
    /// Pieces leave in the order in which they were given.
    order: AsyncMutex<()>,
}

/// Why a piece of an answer was not sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChunkError {
    /// This one will not do; the run goes on without it.
    #[error(transparent)]
    Refused(WireError),
    /// The run is over, and nothing that is said of it counts any more: stop working on it.
    #[error("the run is over: {0}")]
    Over(WireError),
}

/// How a handler says that it has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The run was cancelled, and it stopped.
    #[error("cancelled")]
    Cancelled,
    /// It failed. Its caller gets this error as it is.
    #[error(transparent)]
    Failed(WireError),
}

impl RunError {
    /// It failed, for a reason that has no code of its own: the caller sees `internal` and this sentence.
    pub fn failed(message: impl Into<String>) -> RunError {
        RunError::Failed(WireError::new(ErrorCode::Internal, message))
    }
}

impl From<WireError> for RunError {
    fn from(error: WireError) -> RunError {
        RunError::Failed(error)
    }
}

impl From<ChunkError> for RunError {
    fn from(error: ChunkError) -> RunError {
        match error {
            ChunkError::Refused(error) | ChunkError::Over(error) => RunError::Failed(error),
        }
    }
}

impl Run {
    /// Sends a piece of the answer. It waits while the broker is behind, and goes on through every break.
    pub async fn chunk(&self, data: impl Into<Value>) -> Result<(), ChunkError> {
        let piece = Piece::new(data.into());
        let cost = u32::try_from(piece.cost()).unwrap_or(u32::MAX);
        let _order = self.order.lock().await;
        let window = Arc::clone(&self.state.window);
        let room = window.acquire_many_owned(cost).await.map_err(|_| self.over())?;
        let (answer, answered) = oneshot::channel();
        let command = Command::Chunk(self.handle, piece, room, answer);
        self.session.commands.send(command).await.map_err(|_| self.over())?;
        answered.await.map_err(|_| self.over())?.map_err(|error| match error.code {
            ErrorCode::TooLarge | ErrorCode::Busy => ChunkError::Refused(error),
            _ => ChunkError::Over(self.state.over.get().cloned().unwrap_or(error)),
        })
    }

    /// Waits until somebody wants this run stopped, or it is over without us. Cancel-safe.
    pub async fn cancelled(&self) {
        self.state.cancelled.cancelled().await;
    }

    /// Whether somebody wants this run stopped.
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.is_cancelled()
    }

    /// Completes when the broker has its end, or it is over without us. It does not hold the run.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let settled = self.state.settled.clone();
        async move { settled.cancelled().await }
    }

    fn over(&self) -> ChunkError {
        ChunkError::Over(self.state.over.get().cloned().unwrap_or_else(over))
    }
}

/// What the session's task and a handler share of a run.
#[derive(Debug)]
pub(crate) struct RunState {
    cancelled: CancellationToken,
    /// Nothing more is to be said of it.
    settled: CancellationToken,
    over: OnceLock<WireError>,
    /// Room for pieces without an answer.
    window: Arc<Semaphore>,
}

/// The task's end of a run. Dropped, the run is over.
#[derive(Debug)]
pub(crate) struct Served(Arc<RunState>);

impl Served {
    pub(crate) fn new() -> Served {
        let window = Arc::new(Semaphore::new(CHUNK_WINDOW));
        let (cancelled, settled) = (CancellationToken::new(), CancellationToken::new());
        Served(Arc::new(RunState { cancelled, settled, over: OnceLock::new(), window }))
    }

    pub(crate) fn state(&self) -> Arc<RunState> {
        Arc::clone(&self.0)
    }

    pub(crate) fn cancel(&self) {
        self.0.cancelled.cancel();
    }

    /// It is over without us.
    pub(crate) fn end(self, error: WireError) {
        let _ = self.0.over.set(error);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.window.close();
        self.0.cancelled.cancel();
        self.0.settled.cancel();
    }
}

/// What goes from the session's task to the server. Unbounded as a channel: each run is a message in hand, and bounded as
/// those are.
#[derive(Debug)]
pub(crate) enum Incoming {
    Run(ServedHandle, RunId, Box<Delivery>, Arc<RunState>),
    Ended(End),
}

/// The runs that nobody has taken to answer, or `None`.
pub(crate) type RunSlot = Arc<Mutex<Option<mpsc::UnboundedReceiver<Incoming>>>>;

/// Why runs are answered no more.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServeEnd {
    /// The options did not ask for runs: see [`crate::Options::serve_runs`].
    #[error("this session did not ask for runs when it joined")]
    NotAsked,
    /// Somebody answers them already.
    #[error("the runs of this session are being answered already")]
    Taken,
    /// The session is over.
    #[error(transparent)]
    Session(End),
}

/// A server in the making: await it, and it answers runs until the session is over. Dropped, it ends those that it is at
/// with an error, and leaves the rest to the next one.
#[must_use = "no run is answered before this is awaited"]
pub struct ServeBuilder<H> {
    session: Session,
    handler: H,
    concurrency: usize,
}

impl<H> std::fmt::Debug for ServeBuilder<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeBuilder").field("concurrency", &self.concurrency).finish_non_exhaustive()
    }
}

impl<H> ServeBuilder<H> {
    pub(crate) fn new(session: Session, handler: H) -> ServeBuilder<H> {
        ServeBuilder { session, handler, concurrency: CONCURRENCY }
    }

    /// Answers so many at once. What comes beyond it waits here, and counts as taken: no other session answers it.
    pub fn concurrency(mut self, runs: usize) -> ServeBuilder<H> {
        self.concurrency = runs.clamp(1, Semaphore::MAX_PERMITS);
        self
    }
}

impl<H, F> IntoFuture for ServeBuilder<H>
where
    H: Fn(Run) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Value, RunError>> + Send + 'static,
{
    type Output = ServeEnd;
    type IntoFuture = Pin<Box<dyn Future<Output = ServeEnd> + Send>>;

    /// Answers runs until the session is over.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(serve(self))
    }
}

/// Gives the runs back to their slot when it is dropped.
struct Mouth {
    runs: Option<mpsc::UnboundedReceiver<Incoming>>,
    slot: RunSlot,
}

impl Mouth {
    async fn next(&mut self) -> Option<Incoming> {
        match &mut self.runs {
            Some(runs) => runs.recv().await,
            None => None,
        }
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.runs.take();
    }
}

async fn serve<H, F>(server: ServeBuilder<H>) -> ServeEnd
where
    H: Fn(Run) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Value, RunError>> + Send + 'static,
{
    let ServeBuilder { session, handler, concurrency } = server;
    let Some(slot) = session.runs.clone() else { return ServeEnd::NotAsked };
    let runs = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if runs.is_none() {
        return ServeEnd::Taken;
    }
    let mut mouth = Mouth { runs, slot };
    let (handler, places) = (Arc::new(handler), Arc::new(Semaphore::new(concurrency)));
    let work = Work { hands: session.hands.clone(), live: Arc::default() };
    // Dropped with this, it drops every handler.
    let mut handlers = JoinSet::new();
    loop {
        // Both are cancel-safe.
        tokio::select! {
            incoming = mouth.next() => match incoming {
                Some(Incoming::Run(handle, id, delivery, state)) => {
                    let ending = work.begin(handle);
                    let (redelivered, message) = (delivery.redelivered, delivery.message);
                    let input = message.body.as_deref().map(serde_json::from_str);
                    let Some(Ok(input)) = input else {
                        ending.end(error(WireError::bad_request("the input of the run is not JSON")));
                        continue;
                    };
                    let (session, order) = (session.clone(), AsyncMutex::new(()));
                    let run =
                        Run { id, from: message.from, input, redelivered, handle, session, state, order };
                    handlers.spawn(answer(run, ending, Arc::clone(&handler), Arc::clone(&places)));
                }
                Some(Incoming::Ended(end)) => return ServeEnd::Session(end),
                // The task ends by telling why; without that it was torn down with its runtime.
                None => return ServeEnd::Session(End::Bye),
            },
            Some(_) = handlers.join_next() => {}
        }
    }
}

/// Answers one run when there is a place for it.
async fn answer<H, F>(run: Run, ending: Ending, handler: Arc<H>, places: Arc<Semaphore>)
where
    H: Fn(Run) -> F,
    F: Future<Output = Result<Value, RunError>>,
{
    // Both are cancel-safe: a wait for a place that is dropped holds none.
    let place = tokio::select! {
        biased;
        () = run.cancelled() => return ending.end(cancelled()),
        place = places.acquire_owned() => place,
    };
    let outcome = AssertUnwindSafe(async move { handler(run).await }).catch_unwind().await;
    drop(place);
    ending.end(match outcome {
        Ok(Ok(result)) => RunEnd { status: RunEndStatus::Ok, result: Some(result), error: None },
        Ok(Err(RunError::Cancelled)) => cancelled(),
        Ok(Err(RunError::Failed(failure))) => error(failure),
        Err(_) => error(WireError::new(ErrorCode::Internal, "the callee's handler panicked")),
    });
}

fn cancelled() -> RunEnd {
    RunEnd { status: RunEndStatus::Cancelled, result: None, error: None }
}

fn error(error: WireError) -> RunEnd {
    RunEnd { status: RunEndStatus::Error, result: None, error: Some(error) }
}

/// The runs that a server is at. Dropped, it says of each that nobody answers it any more: at once, while its handlers are
/// dropped when their turn comes.
struct Work {
    hands: Hands,
    live: Arc<Mutex<BTreeSet<ServedHandle>>>,
}

impl Work {
    fn begin(&self, handle: ServedHandle) -> Ending {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(handle);
        Ending { handle, hands: self.hands.clone(), live: Arc::clone(&self.live) }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let live = std::mem::take(&mut *self.live.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in live {
            let end = error(WireError::new(ErrorCode::Unavailable, "the callee has stopped answering runs"));
            let _ = self.hands.send(HandCommand::EndRun(handle, end));
        }
    }
}

/// Says how a run ended, unless that is said.
struct Ending {
    handle: ServedHandle,
    hands: Hands,
    live: Arc<Mutex<BTreeSet<ServedHandle>>>,
}

impl Ending {
    fn end(self, end: RunEnd) {
        if self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.handle) {
            let _ = self.hands.send(HandCommand::EndRun(self.handle, end));
        }
    }
}
