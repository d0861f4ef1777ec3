//! The task that carries the streams of one socket.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_proto::limits::RELAY_STREAMS_PER_SOCKET;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_tungstenite::WebSocketStream;
use tokio_util::sync::CancellationToken;
use yamux::{Config, Connection, Mode};

use crate::bytes::{Heard, WsBytes};
use crate::load::{Loads, Tally};
use crate::stream::MuxStream;

/// How long a socket may be silent: both ends ask each other for a sign of life every ten seconds.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long a last word may take.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Streams that may wait to be opened; one more waits before that.
const QUEUE: usize = 64;
/// Streams that are over for who opened them and not yet for who answers, or only for the library: both know later.
const LINGERING: usize = 512;
/// Bytes by which the windows of all streams of a socket may grow beyond the least.
const GROWTH_BYTES: usize = 32 * 1024 * 1024;

/// Which end of the socket this is: one is the client of the multiplexer, the other its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that dialled.
    Dialled,
    /// The one that answered.
    Answered,
}

/// Why no stream was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// As many are open as may be.
    #[error("as many streams are open as one socket may carry")]
    Full,
    /// The socket is gone.
    #[error("the socket that would carry it is gone")]
    Gone,
}

/// Why a socket carries nothing any more.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The other end closed it, or went away.
    #[error("the other end closed the socket")]
    Closed,
    /// It was told to stop, or nobody holds it.
    #[error("closed")]
    Stopped,
    /// Nothing came for [`DEAD_AFTER`].
    #[error("nothing came through the socket for {} s", DEAD_AFTER.as_secs())]
    Silent,
    /// The other end broke the rules, or the network broke the socket.
    #[error("{0}")]
    Broken(#[from] yamux::ConnectionError),
}

type Opening = oneshot::Sender<yamux::Stream>;

/// Opens streams on a socket. Clones speak of the same socket; when all are gone, it closes.
#[derive(Clone, Debug)]
pub struct Mux {
    openings: mpsc::Sender<Opening>,
    places: Arc<Semaphore>,
    loads: Loads,
    gone: CancellationToken,
}

/// The streams that the other end opens.
pub type Incoming = mpsc::Receiver<MuxStream>;

impl Mux {
    /// A new stream. Waits while the other end has not answered many others yet: bound it in time.
    pub async fn open(&self) -> Result<MuxStream, OpenError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| OpenError::Full)?;
        let (opening, opened) = oneshot::channel();
        self.openings.send(opening).await.map_err(|_| OpenError::Gone)?;
        let stream = opened.await.map_err(|_| OpenError::Gone)?;
        Ok(MuxStream::new(stream, &self.loads, place))
    }

    /// Whether the socket is gone.
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Waits until the socket is gone.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

/// Carries streams through `ws` until `stop`, or until it ends. The future is the task: nothing moves unless it runs.
pub fn start<S>(
    ws: WebSocketStream<S>,
    side: Side,
    stop: CancellationToken,
) -> (Mux, Incoming, impl Future<Output = End> + Send + use<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    start_counted(ws, side, stop, Arc::default())
}

/// The same, with what its streams hold counted in `tally`.
pub fn start_counted<S>(
    ws: WebSocketStream<S>,
    side: Side,
    stop: CancellationToken,
    tally: Arc<Tally>,
) -> (Mux, Incoming, impl Future<Output = End> + Send + use<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let loads = Loads::new(tally);
    let (openings, asked) = mpsc::channel(QUEUE);
    let places = Arc::new(Semaphore::new(RELAY_STREAMS_PER_SOCKET));
    // More than the other end may open: when it has given up one and opens the next, we may not have heard of the first.
    let arrivals = RELAY_STREAMS_PER_SOCKET + LINGERING;
    // As many as have a place: they may all come at once, before anybody has had the time to take one.
    let (arrived, incoming) = mpsc::channel(arrivals);
    let gone = CancellationToken::new();
    let bytes = WsBytes::new(ws).counted(&loads);
    let heard = bytes.heard();
    let mode = match side {
        Side::Dialled => Mode::Client,
        Side::Answered => Mode::Server,
    };
    let carrier = Carrier {
        connection: Connection::new(bytes, config(), mode),
        asked,
        opening: None,
        arrived,
        arrivals: Arc::new(Semaphore::new(arrivals)),
        loads: loads.clone(),
    };
    let mux = Mux { openings, places, loads, gone: gone.clone() };
    let task = async move {
        let _gone = gone.drop_guard();
        carrier.run(heard, stop).await
    };
    (mux, incoming, task)
}

fn config() -> Config {
    let most = RELAY_STREAMS_PER_SOCKET + 2 * LINGERING;
    let least = yamux::DEFAULT_CREDIT as usize * most;
    let mut config = Config::default();
    config.set_max_connection_receive_window(None);
    config.set_max_num_streams(most);
    config.set_max_connection_receive_window(Some(least + GROWTH_BYTES));
    config
}

struct Carrier<S> {
    connection: Connection<WsBytes<S>>,
    asked: mpsc::Receiver<Opening>,
    /// Who is next to get a stream.
    opening: Option<Opening>,
    arrived: mpsc::Sender<MuxStream>,
    /// Places of streams that the other end opens.
    arrivals: Arc<Semaphore>,
    loads: Loads,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Carrier<S> {
    async fn run(mut self, heard: Heard, stop: CancellationToken) -> End {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            // All are cancel-safe: what the carrier has taken it keeps in itself.
            tokio::select! {
                end = poll_fn(|cx| self.poll(cx)) => break end,
                () = stop.cancelled() => break End::Stopped,
                _ = look.tick() => {
                    if heard.silence() > DEAD_AFTER {
                        break End::Silent;
                    }
                }
            }
        };
        if matches!(end, End::Stopped) {
            let _ = tokio::time::timeout(LAST_WORD, poll_fn(|cx| self.connection.poll_close(cx))).await;
        }
        end
    }

    /// Moves whatever can move; ready when nothing ever will again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let mut moved = false;
            match self.connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    self.arrive(stream);
                    moved = true;
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(error.into()),
                Poll::Ready(None) => return Poll::Ready(End::Closed),
                Poll::Pending => {}
            }
            if self.opening.as_ref().is_none_or(oneshot::Sender::is_closed) {
                self.opening = match self.asked.poll_recv(cx) {
                    Poll::Ready(Some(opening)) => Some(opening),
                    Poll::Ready(None) => return Poll::Ready(End::Stopped),
                    Poll::Pending => None,
                };
            }
            if self.opening.is_some() {
                match self.connection.poll_new_outbound(cx) {
                    Poll::Ready(Ok(stream)) => {
                        // Nobody waiting any more is a stream that is dropped, and so closed.
                        let _ = self.opening.take().map(|opening| opening.send(stream));
                        moved = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                    Poll::Pending => {}
                }
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// Hands on a stream of the other end, or cuts it when there are too many.
    fn arrive(&self, stream: yamux::Stream) {
        let Ok(place) = self.arrivals.clone().try_acquire_owned() else {
            self.loads.close(stream.id().val());
            tracing::debug!("a stream too many was cut");
            return;
        };
        if self.arrived.try_send(MuxStream::new(stream, &self.loads, place)).is_err() {
            tracing::debug!("a stream that nobody takes was cut");
        }
    }
}
