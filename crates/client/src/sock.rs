//! One socket of a session: dialled, read and written by polling, owned by the session's task.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Sink, Stream};
use tenure_link::SockId;
use tenure_proto::codec::Codec;
use tenure_proto::limits;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::endpoint::{Endpoint, Wire};

/// Bytes that are read at a time. The library fills them with zeros before each read, so more is not better.
const READ: usize = 4 * 1024;
/// Bytes that are gathered before they are written, if there are so many; a flush writes what there is.
const WRITE: usize = 64 * 1024;
/// Characters of a refusing server's words that are passed on.
const REASON: usize = 300;

type Ws = WebSocketStream<Wire>;
type Dial = Pin<Box<dyn Future<Output = Result<Ws, Error>> + Send>>;

/// What a socket did.
pub(crate) enum SockEvent {
    /// The dial led to a WebSocket.
    Opened,
    /// A frame came.
    Frame(Vec<u8>),
    /// A ping or pong came.
    Heard,
    /// The pong to our last ping came.
    Answered,
    /// The dial failed: why, and whether somebody answered it.
    Failed(String, bool),
    /// It ended; with its close code, if there was one.
    Gone(Option<u16>),
}

enum State {
    Dialling(Dial),
    Open(Box<Ws>),
    Over,
}

/// One socket of a session.
pub(crate) struct Sock {
    pub(crate) id: SockId,
    codec: Codec,
    state: State,
    queue: VecDeque<Message>,
    flushing: bool,
    /// How many pings have left; each carries its number, and so does its pong.
    pings: u64,
    close_code: Option<u16>,
}

impl Sock {
    /// Starts to dial.
    pub(crate) fn dial(id: SockId, endpoint: Endpoint, codec: Codec) -> Sock {
        let state = State::Dialling(Box::pin(open(endpoint, codec)));
        Sock { id, codec, state, queue: VecDeque::new(), flushing: false, pings: 0, close_code: None }
    }

    /// Lets a frame leave.
    pub(crate) fn send(&mut self, frame: Vec<u8>) {
        let message = match self.codec {
            Codec::Json => Message::Text(Utf8Bytes::try_from(frame).unwrap_or_default()),
            Codec::MsgPack => Message::Binary(frame.into()),
        };
        self.queue.push_back(message);
        self.flushing = true;
    }

    /// Lets a ping leave.
    pub(crate) fn ping(&mut self) {
        self.pings += 1;
        self.queue.push_back(Message::Ping(self.pings.to_be_bytes().to_vec().into()));
        self.flushing = true;
    }

    /// The next thing it does. With `reading` off, nothing is taken from the network.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<SockEvent> {
        let ws = match &mut self.state {
            State::Over => return Poll::Pending,
            State::Dialling(dial) => {
                let outcome = std::task::ready!(dial.as_mut().poll(cx));
                return Poll::Ready(match outcome {
                    Ok(ws) => {
                        self.state = State::Open(Box::new(ws));
                        SockEvent::Opened
                    }
                    Err(error) => {
                        tracing::debug!(%error, "dial failed");
                        self.state = State::Over;
                        failed(&error)
                    }
                });
            }
            State::Open(ws) => ws,
        };
        if self.flushing {
            match poll_out(Pin::new(ws), &mut self.queue, cx) {
                Poll::Ready(Ok(())) => self.flushing = false,
                Poll::Ready(Err(_)) => return Poll::Ready(self.over()),
                Poll::Pending => {}
            }
        }
        if !reading {
            return Poll::Pending;
        }
        let State::Open(ws) = &mut self.state else { return Poll::Pending };
        let event = match std::task::ready!(Pin::new(ws.as_mut()).poll_next(cx)) {
            Some(Ok(Message::Text(text))) => SockEvent::Frame(text.as_bytes().to_vec()),
            Some(Ok(Message::Binary(bytes))) => SockEvent::Frame(bytes.to_vec()),
            Some(Ok(Message::Ping(_))) => {
                // The library has queued the pong; it leaves with the next flush.
                self.flushing = true;
                SockEvent::Heard
            }
            Some(Ok(Message::Pong(number))) if number[..] == self.pings.to_be_bytes() => SockEvent::Answered,
            Some(Ok(Message::Pong(_) | Message::Frame(_))) => SockEvent::Heard,
            Some(Ok(Message::Close(frame))) => {
                self.close_code = frame.map(|frame| frame.code.into());
                self.flushing = true;
                SockEvent::Heard
            }
            Some(Err(_)) | None => self.over(),
        };
        Poll::Ready(event)
    }

    fn over(&mut self) -> SockEvent {
        self.state = State::Over;
        SockEvent::Gone(self.close_code)
    }
}

/// Why a dial failed, in a few words.
fn failed(error: &Error) -> SockEvent {
    match error {
        Error::Http(response) => {
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let line = body.trim().lines().next().unwrap_or_default();
            let line: String = line.chars().take(REASON).collect();
            let reason = format!("HTTP {}: {line}", response.status().as_u16());
            SockEvent::Failed(reason.trim_end_matches([':', ' ']).to_owned(), true)
        }
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            SockEvent::Failed("connection refused".to_owned(), false)
        }
        Error::Io(error) => SockEvent::Failed(error.to_string(), false),
        error => SockEvent::Failed(error.to_string(), false),
    }
}

fn poll_out(
    mut ws: Pin<&mut Ws>,
    queue: &mut VecDeque<Message>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Error>> {
    while !queue.is_empty() {
        std::task::ready!(ws.as_mut().poll_ready(cx))?;
        if let Some(message) = queue.pop_front() {
            ws.as_mut().start_send(message)?;
        }
    }
    ws.poll_flush(cx)
}

async fn open(endpoint: Endpoint, codec: Codec) -> Result<Ws, Error> {
    let mut request = endpoint.url("/v1/ws").into_client_request()?;
    let protocol = HeaderValue::from_static(codec.subprotocol());
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    let stream = endpoint.dial().await?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ)
        .write_buffer_size(WRITE)
        .max_write_buffer_size(64 * limits::MAX_PAYLOAD_BYTES)
        .max_message_size(Some(64 * limits::MAX_PAYLOAD_BYTES))
        .max_frame_size(Some(64 * limits::MAX_PAYLOAD_BYTES));
    let (ws, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
    Ok(ws)
}
