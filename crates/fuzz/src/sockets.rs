//! The frames of a session's socket: what our reader makes of them, beside what tungstenite makes of them.
//!
//! The reader is the broker's own file, compiled in here: it is private to the broker and needs nothing of it. Both are given
//! the same bytes, ours in pieces, and must find the same messages in them and the same end. Where tungstenite is known to
//! say something else, [`compare`] says what and why.

use std::io::{self, Cursor};
use std::task::{Context, Poll, Waker};

use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket};

// What the broker asks of it and nobody asks here is not dead.
#[allow(dead_code)]
#[path = "../../broker/src/socket/inbound.rs"]
mod inbound;

use inbound::{Came, Fault, Inbound, close_answer};

/// Bytes of a message at the most: few, so that an input reaches the limit.
const MESSAGE_BYTES: usize = 1_000;
/// Bytes of a control frame's payload, and of the longest header.
const CONTROL_BYTES: usize = 125;
const HEADER_BYTES: usize = 14;
/// Lengths of pieces that an input gives, less than this.
const LENGTHS: u8 = 8;
/// What its first byte has if what was handed on is dropped at once, as a broker does to whoever it does not read.
const RELEASES: u8 = 0x80;
/// A code of a close that is registered (bad gateway), and that tungstenite takes for none.
const UNKNOWN_THERE: u16 = 1014;

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A text.
    Text(Vec<u8>),
    /// A binary message.
    Binary(Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong.
    Pong,
    /// A close, with the code that answers it and the reason that it gave.
    Close(Option<(u16, Vec<u8>)>),
}

/// Why nothing more came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There was nothing more.
    Over,
    /// The client closed.
    Closed,
    /// A message was too large.
    TooLarge,
    /// It was no WebSocket.
    Bad,
    /// A text was none. Ours says [`End::Bad`] to that.
    NoText,
}

/// What a reader made of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What came, in its order.
    pub came: Vec<Event>,
    /// Why nothing more did.
    pub end: End,
    /// Whether a message in fragments had begun and was not whole.
    pub fragmented: bool,
    /// Whether anything had begun and was not whole.
    pub partial: bool,
}

/// A session's socket.
#[allow(clippy::panic)]
pub(crate) fn run(input: &[u8]) {
    let (_, bytes) = cut(input);
    if let Err(problem) = compare(bytes, &by_us(input)) {
        panic!("{problem}");
    }
}

/// How an input is cut, and what is cut: it begins with a number, then has so many lengths, which pieces have in turn.
/// Without lengths there is one piece.
fn cut(input: &[u8]) -> (&[u8], &[u8]) {
    let Some((count, rest)) = input.split_first() else { return (&[], &[]) };
    rest.split_at(usize::from(count % LENGTHS).min(rest.len()))
}

/// The pieces of an input, none of them empty.
fn pieces(input: &[u8]) -> Vec<&[u8]> {
    let (lengths, mut bytes) = cut(input);
    let mut lengths = lengths.iter().cycle();
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let length = lengths.next().map_or(bytes.len(), |length| usize::from(*length) + 1);
        let (piece, rest) = bytes.split_at(length.min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// What our reader makes of an input. It holds no more than what has come is worth, and nothing when nothing waits.
pub fn by_us(input: &[u8]) -> Found {
    let (mut inbound, mut came, mut shown) = (Inbound::new(MESSAGE_BYTES), Vec::new(), 0);
    let (mut end, releases) = (End::Over, input.first().is_some_and(|first| first & RELEASES != 0));
    'reading: for mut piece in pieces(input) {
        while !piece.is_empty() {
            let waits = piece.len();
            assert!(fill(&mut inbound, &mut piece), "there is more to read");
            shown += waits - piece.len();
            end = drain(&mut inbound, releases, &mut came);
            // A buffer, or the fragments of a message, may be twice as large as what is in it.
            assert!(inbound.held() <= 4 * shown + 16, "{} bytes are held of {shown}", inbound.held());
            if end != End::Over {
                break 'reading;
            }
            let most = MESSAGE_BYTES + CONTROL_BYTES + HEADER_BYTES;
            assert!(inbound.wants() <= most, "{} bytes are waited for", inbound.wants());
        }
    }
    let (fragmented, partial) = (inbound.is_fragmented(), inbound.is_partial());
    if end == End::Over && !partial {
        assert!(!fill(&mut inbound, &mut &[][..]), "there is nothing more to read");
    } else {
        inbound.clear();
    }
    assert_eq!(inbound.held(), 0, "nothing waits");
    Found { came, end, fragmented, partial }
}

/// Lets our reader read once; `false` when there was nothing.
fn fill(inbound: &mut Inbound, bytes: &mut &[u8]) -> bool {
    let filled = inbound.poll_fill(&mut Context::from_waker(Waker::noop()), bytes);
    matches!(filled, Poll::Ready(Ok(true)))
}

/// Takes all that is whole out of our reader; says [`End::Over`] when it needs more.
fn drain(inbound: &mut Inbound, releases: bool, came: &mut Vec<Event>) -> End {
    loop {
        let event = match inbound.next() {
            Ok(None) => return End::Over,
            Err(Fault::TooLarge) => return End::TooLarge,
            Err(Fault::Bad) => return End::Bad,
            Ok(Some(Came::Message { binary: true, bytes })) => Event::Binary(inbound.bytes(&bytes).to_vec()),
            Ok(Some(Came::Message { binary: false, bytes })) => Event::Text(inbound.bytes(&bytes).to_vec()),
            Ok(Some(Came::Ping(payload))) => Event::Ping(inbound.bytes(&payload).to_vec()),
            Ok(Some(Came::Pong)) => Event::Pong,
            Ok(Some(Came::Close(said))) => {
                came.push(closing(inbound.bytes(&said)));
                return End::Closed;
            }
        };
        came.push(event);
        if releases {
            inbound.release();
            assert!(inbound.is_partial() || inbound.held() == 0, "what was handed on is held");
        }
    }
}

/// A close as tungstenite shows it: one whose code is none has its own words instead.
fn closing(said: &[u8]) -> Event {
    let (answer, reason) = (close_answer(said), said.get(2..).unwrap_or_default());
    let code = |bytes: &[u8]| bytes.first_chunk().map(|code| u16::from_be_bytes(*code));
    Event::Close(code(&answer).map(|answered| match Some(answered) == code(said) {
        true if answered != UNKNOWN_THERE => (answered, reason.to_vec()),
        _ => (1002, b"Protocol violation".to_vec()),
    }))
}

/// A socket on which these bytes come, and which takes whatever is written.
struct Wire<'a>(&'a [u8]);

impl io::Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut self.0, into)
    }
}

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What tungstenite makes of bytes, and why it read no more.
fn by_tungstenite(bytes: &[u8]) -> Result<(Vec<Event>, End), String> {
    let most = Some(MESSAGE_BYTES);
    let config =
        WebSocketConfig::default().read_buffer_size(4096).max_message_size(most).max_frame_size(most);
    let mut socket = WebSocket::from_raw_socket(Wire(bytes), Role::Server, Some(config));
    let mut came = Vec::new();
    loop {
        let event = match socket.read() {
            Ok(Message::Text(text)) => Event::Text(text.as_bytes().to_vec()),
            Ok(Message::Binary(bytes)) => Event::Binary(bytes.to_vec()),
            Ok(Message::Ping(payload)) => Event::Ping(payload.to_vec()),
            Ok(Message::Pong(_)) => Event::Pong,
            Ok(Message::Close(said)) => {
                let said = said.map(|said| (said.code.into(), said.reason.as_bytes().to_vec()));
                came.push(Event::Close(said));
                return Ok((came, End::Closed));
            }
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                return Ok((came, End::Over));
            }
            Err(Error::Protocol(_)) => return Ok((came, End::Bad)),
            Err(Error::Capacity(_)) => return Ok((came, End::TooLarge)),
            Err(Error::Utf8(_)) => return Ok((came, End::NoText)),
            other => return Err(format!("tungstenite says {other:?}")),
        };
        came.push(event);
    }
}

/// Where the frames of `bytes` are, as far as tungstenite would read them.
struct Frames {
    /// Where each begins.
    starts: Vec<usize>,
    /// The bytes, with zeros behind them until the frame that has begun is complete.
    finished: Vec<u8>,
}

impl Frames {
    fn of(bytes: &[u8]) -> Frames {
        let (mut starts, mut finished, mut at) = (vec![0], bytes.to_vec(), 0);
        while at < finished.len() {
            let mut cursor = Cursor::new(&finished[at..]);
            match FrameHeader::parse(&mut cursor) {
                Ok(None) => finished.push(0),
                Ok(Some((_, length))) if length <= MESSAGE_BYTES as u64 => {
                    at += cursor.position() as usize + length as usize;
                    finished.resize(finished.len().max(at), 0);
                    starts.push(at);
                }
                // tungstenite reads no more of it, or nothing at all.
                _ => break,
            }
        }
        Frames { starts, finished }
    }

    /// Where a control frame begins whose length stands in more bytes than it may. Ours refuses that, since the length of a
    /// control frame never needs them; theirs looks at the length alone.
    fn wide_control(&self, bytes: &[u8]) -> Option<usize> {
        let is_wide = |at: &usize| match bytes.get(*at..) {
            Some([first, second, ..]) => (8..=10).contains(&(first & 0x0f)) && second & 0x7f >= 126,
            _ => false,
        };
        self.starts.iter().copied().find(is_wide)
    }
}

/// Compares what our reader made of `bytes` with what tungstenite makes of them.
///
/// # Errors
/// What they disagree about.
pub fn compare(bytes: &[u8], ours: &Found) -> Result<(), String> {
    let frames = Frames::of(bytes);
    if let Some(at) = frames.wide_control(bytes) {
        let (came, end) = by_tungstenite(&bytes[..at])?;
        if end == End::Over {
            return match ours.end == End::Bad && ours.came == came {
                true => Ok(()),
                false => Err(format!("{bytes:02x?} is {ours:?} for us, and has a wide length at {at}")),
            };
        }
    }
    let refused = matches!(ours.end, End::TooLarge | End::Bad);
    // Ours says at a frame's first bytes what theirs says at its last.
    let (came, end) = by_tungstenite(if refused { &frames.finished } else { bytes })?;
    let alike = match (ours.end, end) {
        // Theirs looks at each fragment of a text, ours at all of it: until then only control frames come, and it is refused
        // with its last fragment, if not before.
        (_, End::NoText) if ours.fragmented || ours.end == End::Bad => {
            let rest = ours.came.strip_prefix(&came[..]);
            let is_message = |event: &Event| matches!(event, Event::Text(_) | Event::Binary(_));
            rest.is_some_and(|rest| !rest.iter().any(is_message))
        }
        // A frame that is wrong and too large: theirs looks at its length first.
        (End::Bad, End::TooLarge) => ours.came == came,
        (our, their) => our == their && ours.came == came,
    };
    if !alike {
        return Err(format!("{bytes:02x?} is {ours:?} for us, and {came:?}, {end:?} for tungstenite"));
    }
    let begun = ours.fragmented || frames.finished.len() > bytes.len();
    match ours.end == End::Over && ours.partial != begun {
        true => Err(format!("whether more of {bytes:02x?} is waited for: {} for us", ours.partial)),
        false => Ok(()),
    }
}
