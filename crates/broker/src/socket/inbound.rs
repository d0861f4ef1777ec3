//! The way into a socket: WebSocket frames out of bytes, with a buffer that exists only while a message is not whole.
//!
//! A WebSocket library reserves what a frame's header announces, and keeps the largest buffer that it ever had. Here
//! the buffer grows with what has come, is given back when nothing waits in it, and can be asked how large it is. So
//! an idle socket holds nothing, and a client that announces a megabyte and sends a byte costs a byte.
//!
//! It reads what RFC 6455 lets a client send: masked frames, whole or in fragments, with control frames between them.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that are read at once. They are read to the stack, so that only what has come is held.
const READ_BYTES: usize = 32 * 1024;
/// Bytes of a control frame's payload.
const CONTROL_BYTES: usize = 125;
/// Bytes that a header has at the most: two, eight of length, four of mask.
const HEADER_BYTES: usize = 14;

/// What came. Where bytes are, [`Inbound::bytes`] gives them, until the next is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A whole message.
    Message {
        /// Whether it is binary rather than text.
        binary: bool,
        /// What it says.
        bytes: At,
    },
    /// A ping with this payload.
    Ping(At),
    /// A pong.
    Pong,
    /// The client closes, and gives this code and reason.
    Close(At),
}

/// Where the bytes of what came are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    whole: bool,
    range: Range<usize>,
}

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A message is larger than it may be.
    TooLarge,
    /// This is no WebSocket, or a text that is none.
    Bad,
}

/// What came on a socket and is not handed on.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Bytes of a message at the most.
    max: usize,
    /// What was read; before `start` it was handed on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes from `start` that the frame which has begun needs, as far as that is known.
    needs: usize,
    /// The fragments of a message that is not whole, and whether it is binary.
    fragments: Vec<u8>,
    binary: Option<bool>,
    /// A message that came in fragments, until the next is asked for.
    whole: Vec<u8>,
}

/// The header of a frame.
struct Header {
    fin: bool,
    opcode: u8,
    mask: [u8; 4],
    /// Where its payload is, from `start`.
    payload: Range<usize>,
}

impl Inbound {
    /// Reads messages of at most `max` bytes.
    pub(crate) fn new(max: usize) -> Inbound {
        Inbound {
            max,
            buffer: Vec::new(),
            start: 0,
            needs: 0,
            fragments: Vec::new(),
            binary: None,
            whole: Vec::new(),
        }
    }

    /// The bytes of what came last.
    pub(crate) fn bytes(&self, at: &At) -> &[u8] {
        let from = if at.whole { &self.whole } else { &self.buffer };
        from.get(at.range.clone()).unwrap_or_default()
    }

    /// Whether a message has begun that is not whole.
    pub(crate) fn is_partial(&self) -> bool {
        self.binary.is_some() || self.start < self.buffer.len()
    }

    /// Whether a message in fragments has begun, which control frames do not end.
    pub(crate) fn is_fragmented(&self) -> bool {
        self.binary.is_some()
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> usize {
        self.buffer.capacity() + self.fragments.capacity() + self.whole.capacity()
    }

    /// Bytes of the message that has begun, as far as is known; of one in fragments those that came and are announced.
    pub(crate) fn wants(&self) -> usize {
        let frame = if self.start < self.buffer.len() { self.needs } else { 0 };
        self.fragments.len() + frame
    }

    /// Drops what was handed on: nobody asks for its bytes any more. What little is left of one read stays where it is,
    /// rather than being moved once for each message in it.
    pub(crate) fn release(&mut self) {
        self.whole = Vec::new();
        if self.start >= self.buffer.len() || self.start > READ_BYTES {
            self.compact();
        }
    }

    /// Forgets everything: what comes next makes no sense any more.
    pub(crate) fn clear(&mut self) {
        *self = Inbound::new(self.max);
    }

    /// What has come whole, if anything has. Nothing that was given before is held any longer.
    pub(crate) fn next(&mut self) -> Result<Option<Came>, Fault> {
        self.whole = Vec::new();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let Range { start: from, end: to } = header.payload;
            let payload = self.start + from..self.start + to;
            unmask(&mut self.buffer[payload.clone()], header.mask);
            self.start += to;
            self.needs = 0;
            let at = At { whole: false, range: payload.clone() };
            return Ok(Some(match header.opcode {
                0x9 => Came::Ping(at),
                0xa => Came::Pong,
                0x8 => {
                    self.check_close(&at)?;
                    Came::Close(at)
                }
                // A message in one frame is not copied.
                1 | 2 if header.fin => self.message(header.opcode == 2, at)?,
                opcode => {
                    if opcode != 0 {
                        self.binary = Some(opcode == 2);
                    }
                    self.fragments.extend_from_slice(&self.buffer[payload]);
                    if !header.fin {
                        continue;
                    }
                    let Some(binary) = self.binary.take() else { return Err(Fault::Bad) };
                    self.whole = std::mem::take(&mut self.fragments);
                    self.message(binary, At { whole: true, range: 0..self.whole.len() })?
                }
            }));
        }
    }

    /// Reads some of what has come. `false` when nothing more will. Cancel-safe: what was read is kept.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<bool>> {
        self.compact();
        let mut read = [MaybeUninit::<u8>::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut read);
        ready!(Pin::new(stream).poll_read(cx, &mut read))?;
        let came = read.filled();
        let length = self.buffer.len() + came.len();
        if length > self.buffer.capacity() {
            // Grows by doubling, but not beyond the frame that has begun.
            let wanted = self.needs.min(self.buffer.capacity() * 2).max(length);
            self.buffer.reserve_exact(wanted - self.buffer.len());
        }
        self.buffer.extend_from_slice(came);
        Poll::Ready(Ok(!came.is_empty()))
    }

    /// Drops what was handed on; holds nothing when nothing is left.
    fn compact(&mut self) {
        if self.start >= self.buffer.len() {
            self.buffer = Vec::new();
        } else if self.start > 0 {
            // What is left of a large read should not keep all of it.
            self.buffer = self.buffer[self.start..].to_vec();
        }
        self.start = 0;
    }

    /// The header of the frame that begins here, if all of the frame has come.
    fn header(&mut self) -> Result<Option<Header>, Fault> {
        let frame = &self.buffer[self.start.min(self.buffer.len())..];
        let [first, second, rest @ ..] = frame else {
            self.needs = HEADER_BYTES;
            return Ok(None);
        };
        let (fin, opcode) = (first & 0x80 != 0, first & 0x0f);
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let (length, width) = match second & 0x7f {
            126 => (rest.get(..2).map(number), 2),
            127 => (rest.get(..8).map(number), 8),
            length => (Some(u64::from(length)), 0),
        };
        // Reserved bits mean nothing here, and what a client sends is masked.
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(Fault::Bad);
        }
        let sound = match opcode {
            0 => self.binary.is_some(),
            1 | 2 => self.binary.is_none(),
            0x8..=0xa => fin && second & 0x7f <= CONTROL_BYTES as u8,
            _ => false,
        };
        if !sound {
            return Err(Fault::Bad);
        }
        let Some(length) = length else {
            self.needs = HEADER_BYTES;
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| Fault::TooLarge)?;
        if opcode < 8 && length > self.max - self.fragments.len() {
            return Err(Fault::TooLarge);
        }
        let payload = 2 + width + 4..2 + width + 4 + length;
        self.needs = payload.end;
        if frame.len() < payload.end {
            return Ok(None);
        }
        let mask = [2, 3, 4, 5].map(|at| frame[at + width]);
        Ok(Some(Header { fin, opcode, mask, payload }))
    }

    fn message(&self, binary: bool, at: At) -> Result<Came, Fault> {
        if !binary && std::str::from_utf8(self.bytes(&at)).is_err() {
            return Err(Fault::Bad);
        }
        Ok(Came::Message { binary, bytes: at })
    }

    /// A close says nothing, or a code and a text.
    fn check_close(&self, at: &At) -> Result<(), Fault> {
        match self.bytes(at) {
            [] => Ok(()),
            [_] => Err(Fault::Bad),
            [_, _, reason @ ..] => std::str::from_utf8(reason).map(|_| ()).map_err(|_| Fault::Bad),
        }
    }
}

/// Takes the mask off.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    // Eight bytes at a time, which the compiler makes wider still.
    let half = u64::from(u32::from_ne_bytes(mask));
    let wide = half << 32 | half;
    let mut words = payload.chunks_exact_mut(8);
    for word in &mut words {
        if let Ok(bytes) = <&mut [u8; 8]>::try_from(word) {
            *bytes = (u64::from_ne_bytes(*bytes) ^ wide).to_ne_bytes();
        }
    }
    for (byte, mask) in words.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The close frame's payload that answers a client's: its own code, unless that is none.
pub(crate) fn close_answer(said: &[u8]) -> Vec<u8> {
    match said {
        [high, low, ..] => match u16::from_be_bytes([*high, *low]) {
            1000..=1003 | 1007..=1014 | 3000..=4999 => vec![*high, *low],
            _ => 1002u16.to_be_bytes().to_vec(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const MAX: usize = 100_000;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 0xf4];
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    /// What comes of bytes that arrive in pieces of `piece`.
    async fn read(bytes: &[u8], piece: usize) -> (Vec<(Came, Vec<u8>)>, Option<Fault>, Inbound) {
        let mut inbound = Inbound::new(MAX);
        let mut came = Vec::new();
        for piece in bytes.chunks(piece.max(1)) {
            let mut piece = piece;
            while !piece.is_empty() {
                std::future::poll_fn(|cx| inbound.poll_fill(cx, &mut piece)).await.unwrap();
                loop {
                    match inbound.next() {
                        Ok(None) => break,
                        Err(fault) => return (came, Some(fault), inbound),
                        Ok(Some(next)) => {
                            let at = match &next {
                                Came::Message { bytes, .. } => Some(bytes),
                                Came::Ping(at) | Came::Close(at) => Some(at),
                                Came::Pong => None,
                            };
                            let bytes = at.map(|at| inbound.bytes(at).to_vec()).unwrap_or_default();
                            came.push((next, bytes));
                        }
                    }
                }
            }
        }
        (came, None, inbound)
    }

    fn kind(came: &Came) -> &'static str {
        match came {
            Came::Message { binary: true, .. } => "binary",
            Came::Message { .. } => "text",
            Came::Ping(_) => "ping",
            Came::Pong => "pong",
            Came::Close(_) => "close",
        }
    }

    #[tokio::test]
    async fn every_kind_of_frame_in_pieces_of_every_size() {
        let long = vec![7; 70_000];
        let mut bytes = Vec::new();
        bytes.extend(frame(0x81, "für alle".as_bytes()));
        bytes.extend(frame(0x82, &long));
        // In fragments, one empty, with a ping between them; no fragment is a whole text.
        bytes.extend(frame(0x01, &"ü".as_bytes()[..1]));
        bytes.extend(frame(0x89, b"alive"));
        bytes.extend(frame(0x00, b""));
        bytes.extend(frame(0x80, &"ü".as_bytes()[1..]));
        bytes.extend(frame(0x8a, b""));
        bytes.extend(frame(0x82, &[0; 126]));
        bytes.extend(frame(0x88, &[3, 0xe8, b'x']));
        for piece in [1, 2, 3, 5, 7, 100, 4096, 1 << 20] {
            let (came, fault, inbound) = read(&bytes, piece).await;
            assert_eq!(fault, None);
            let kinds: Vec<_> = came.iter().map(|(came, _)| kind(came)).collect();
            assert_eq!(kinds, ["text", "binary", "ping", "text", "pong", "binary", "close"]);
            assert_eq!(came[0].1, "für alle".as_bytes());
            assert!(came[1].1 == long);
            assert_eq!((came[2].1.as_slice(), came[3].1.as_slice()), (&b"alive"[..], "ü".as_bytes()));
            assert_eq!(came[6].1, [3, 0xe8, b'x']);
            assert!(!inbound.is_partial());
        }
    }

    #[tokio::test]
    async fn what_is_no_websocket_is_a_fault() {
        let cases: &[(&str, Vec<u8>, Fault)] = &[
            ("not masked", vec![0x81, 1, b'x'], Fault::Bad),
            ("a reserved bit", frame(0xc1, b""), Fault::Bad),
            ("a reserved opcode", frame(0x83, b""), Fault::Bad),
            ("a reserved control opcode", frame(0x8b, b""), Fault::Bad),
            ("a control frame in fragments", frame(0x09, b""), Fault::Bad),
            ("a long control frame", frame(0x89, &[0; 126]), Fault::Bad),
            ("a continuation of nothing", frame(0x80, b""), Fault::Bad),
            ("a message inside another", [frame(0x01, b"a"), frame(0x81, b"b")].concat(), Fault::Bad),
            ("a text that is none", frame(0x81, &[0xff]), Fault::Bad),
            ("half a character", [frame(0x01, b"a"), frame(0x80, &[0xc3])].concat(), Fault::Bad),
            ("half a close code", frame(0x88, &[3]), Fault::Bad),
            ("a close reason that is no text", frame(0x88, &[3, 0xe8, 0xff]), Fault::Bad),
            ("too long", frame(0x82, &vec![0; MAX + 1]), Fault::TooLarge),
            ("too long in all", [frame(0x02, &vec![0; MAX]), frame(0x80, b"x")].concat(), Fault::TooLarge),
            (
                "longer than anything",
                vec![0x82, 0xff, 255, 255, 255, 255, 255, 255, 255, 255],
                Fault::TooLarge,
            ),
        ];
        for (what, bytes, expected) in cases {
            for piece in [1, 1 << 20] {
                assert_eq!(read(bytes, piece).await.1, Some(*expected), "{what}");
            }
        }
        assert_eq!(read(&frame(0x82, &vec![0; MAX]), 4096).await.0.len(), 1, "as long as it may be");
    }

    #[tokio::test]
    async fn what_is_held_follows_what_has_come() {
        // A frame that announces much costs what has come of it.
        let (_, fault, inbound) = read(&frame(0x82, &[0; 90_000])[..1_000], 100).await;
        assert_eq!(fault, None);
        assert!(inbound.is_partial() && inbound.held() <= 2_000, "{}", inbound.held());
        // Doubling ends where the frame does.
        let (_, _, inbound) = read(&frame(0x82, &[0; 90_000])[..80_000], 1_000).await;
        assert!((80_000..=90_014).contains(&inbound.held()), "{}", inbound.held());
        // What it will need is known before it has come.
        assert_eq!(inbound.wants(), 90_014);
        // Fragments are held once.
        let (_, _, inbound) = read(&frame(0x02, &[0; 50_000]), 50_000).await;
        assert!(inbound.is_fragmented() && inbound.held() < 110_000, "{}", inbound.held());
        // Nothing is held when nothing waits, whatever came before.
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut ours = ours;
        theirs.write_all(&frame(0x82, &[0; 90_000])).await.unwrap();
        let mut inbound = Inbound::new(MAX);
        loop {
            std::future::poll_fn(|cx| inbound.poll_fill(cx, &mut ours)).await.unwrap();
            if inbound.next().unwrap().is_some() {
                break;
            }
        }
        // Also before anybody looks for more: whoever is not read keeps nothing.
        inbound.release();
        assert_eq!((inbound.held(), inbound.wants()), (0, 0));
        assert_eq!(inbound.next(), Ok(None));
        std::future::poll_fn(|cx| {
            assert!(inbound.poll_fill(cx, &mut ours).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!((inbound.held(), inbound.is_partial()), (0, false));
    }

    #[test]
    fn a_close_is_answered_with_its_own_code_if_that_is_one() {
        assert_eq!(close_answer(b""), b"");
        for (code, answer) in [(1000u16, 1000u16), (4009, 4009), (1005, 1002), (1006, 1002), (999, 1002)] {
            assert_eq!(close_answer(&code.to_be_bytes()), answer.to_be_bytes());
        }
    }

    proptest! {
        /// Whatever comes, in whatever pieces, comes to the same, and nothing panics.
        #[test]
        fn pieces_make_no_difference(
            frames in proptest::collection::vec((0u8..=255, proptest::collection::vec(any::<u8>(), 0..300)), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..20),
            piece in 1usize..400,
        ) {
            let mut bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| frame(*first, payload)).collect();
            bytes.extend(noise);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (whole, fault, _) = runtime.block_on(read(&bytes, usize::MAX));
            let (parts, same, _) = runtime.block_on(read(&bytes, piece));
            let texts = |all: &[(Came, Vec<u8>)]| {
                all.iter().map(|(came, bytes)| (kind(came), bytes.clone())).collect::<Vec<_>>()
            };
            prop_assert_eq!(texts(&whole), texts(&parts));
            prop_assert_eq!(fault, same);
        }
    }
}
