//! The way out of a socket: a buffer that exists only while something waits in it.
//!
//! A WebSocket library keeps a write buffer as large as the largest message it has ever sent. A hello's snapshot
//! is a fifth of a megabyte, and an idle socket stays for weeks, times ten thousand. So frames are made here, which for
//! a server is a header of two to ten bytes, and the buffer is given back when it has left.
//!
//! On the way out the pipe has no bound of its own: the owner stops encoding and reading while too much waits here.
//! On the way in a stranger may send one hello's worth of bytes, whatever frames they are in, until it is trusted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tenure_proto::limits::FRAME_BEFORE_HELLO_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a stranger may send: a hello, its frame's header, a few pings.
const BEFORE_HELLO_BYTES: usize = FRAME_BEFORE_HELLO_BYTES + 8 * 1024;

/// What kind of frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text message.
    Text,
    /// A binary message.
    Binary,
    /// A ping.
    Ping,
    /// The answer to a ping.
    Pong,
    /// The last frame.
    Close,
}

/// A stream with the bytes that wait to be written to it.
#[derive(Debug)]
pub(crate) struct Pipe<S> {
    stream: S,
    waiting: Vec<u8>,
    /// How much of `waiting` has been written.
    written: usize,
    /// How much of `waiting` is the rest of a frame whose beginning is not there any more.
    rest: usize,
    /// How much has left since somebody last asked.
    taken: usize,
    /// How much a stranger may still send; `None` once it is trusted.
    allowance: Option<usize>,
}

impl<S> Pipe<S> {
    pub(crate) fn new(stream: S) -> Pipe<S> {
        let allowance = Some(BEFORE_HELLO_BYTES);
        Pipe { stream, waiting: Vec::new(), written: 0, rest: 0, taken: 0, allowance }
    }

    /// Lets a frame wait its turn.
    pub(crate) fn push(&mut self, kind: Kind, payload: &[u8]) {
        // Ten bytes are the longest header.
        self.reserve(payload.len() + 10);
        let (header, len) = header(kind, payload.len());
        self.waiting.extend_from_slice(&header[..len]);
        self.waiting.extend_from_slice(payload);
    }

    /// Lets a frame wait its turn that `write` appends, of about `guess` bytes: nothing is copied if its header is as
    /// long as the guess has it.
    pub(crate) fn push_with(&mut self, kind: Kind, guess: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.reserve(guess + 10);
        let start = self.waiting.len();
        let (_, room) = header(kind, guess);
        self.waiting.resize(start + room, 0);
        write(&mut self.waiting);
        let (header, len) = header(kind, self.waiting.len() - start - room);
        self.waiting.splice(start..start + room, header[..len].iter().copied());
    }

    /// Drops the frames of which nothing has left: whatever waits next leaves sooner.
    pub(crate) fn skip(&mut self) {
        // What waits begins with a whole frame, or with what an earlier skip left of one: it is given back only when all
        // of it has left.
        let mut end = self.rest;
        while end < self.written {
            end += frame_len(&self.waiting[end..]);
        }
        // What has left is not needed to know where frames begin, as the first of them is all that stays.
        self.waiting = self.waiting[self.written..end].to_vec();
        self.written = 0;
        self.rest = self.waiting.len();
    }

    /// Makes room for so many bytes. It grows by a quarter at the least, so that many small frames cost little, and
    /// not to twice its size, because what is not used is held all the same.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if self.waiting.capacity() - self.waiting.len() < bytes {
            self.waiting.reserve_exact(bytes.max(self.waiting.len() / 4));
        }
    }

    /// From here on the other side may send what it likes.
    pub(crate) fn trust(&mut self) {
        self.allowance = None;
    }

    /// Bytes that have left since this was last asked.
    pub(crate) fn taken(&mut self) -> usize {
        std::mem::take(&mut self.taken)
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> usize {
        self.waiting.capacity()
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() - self.written
    }
}

/// The header of a whole frame of `len` bytes, and how long it is.
fn header(kind: Kind, len: usize) -> ([u8; 10], usize) {
    let opcode = match kind {
        Kind::Text => 0x1,
        Kind::Binary => 0x2,
        Kind::Ping => 0x9,
        Kind::Pong => 0xa,
        Kind::Close => 0x8,
    };
    let mut header = [0x80 | opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    match len {
        0..=125 => {
            header[1] = len as u8;
            (header, 2)
        }
        126..=0xffff => {
            header[1] = 126;
            header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            (header, 4)
        }
        _ => {
            header[1] = 127;
            header[2..].copy_from_slice(&(len as u64).to_be_bytes());
            (header, 10)
        }
    }
}

/// How long the frame is that begins here; it is ours, so it is not masked.
fn frame_len(frame: &[u8]) -> usize {
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let long = |from: usize, to: usize| (from..to).fold(0, |len, at| len << 8 | usize::from(byte(at)));
    match byte(1) & 0x7f {
        126 => 4 + long(2, 4),
        127 => 10 + long(2, 10),
        len => 2 + usize::from(len),
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pipe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.allowance == Some(0) {
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.saturating_sub(buf.filled().len() - before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Pipe<S> {
    /// Ready when nothing waits any more; then nothing is held either.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Pipe { stream, waiting, written, rest, taken, .. } = self;
        while *written < waiting.len() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, &waiting[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => (*written, *taken) = (*written + count, *taken + count),
            }
        }
        (*waiting, *written, *rest, *taken) = (Vec::new(), 0, 0, 0);
        Pin::new(stream).poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use tokio::io::AsyncWriteExt;
    use tokio_tungstenite::WebSocketStream;
    use tungstenite::Message;
    use tungstenite::protocol::Role;

    async fn flush<S: AsyncWrite + Unpin>(pipe: &mut Pipe<S>) {
        std::future::poll_fn(|cx| pipe.poll_flush(cx)).await.unwrap();
    }

    #[tokio::test]
    async fn every_length_of_header_is_read_back_and_nothing_is_held_afterwards() {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let mut pipe = Pipe::new(ours);
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        for len in [0, 1, 125, 126, 0xffff, 0x10000] {
            let text = "x".repeat(len);
            pipe.push(Kind::Text, text.as_bytes());
            pipe.push(Kind::Binary, text.as_bytes());
            pipe.push(Kind::Ping, b"");
            assert!(pipe.waiting() >= 2 * len + 6);
            // Whatever was guessed.
            for guess in [0, len, 200, 0x20000] {
                pipe.push_with(Kind::Text, guess, |out| out.extend_from_slice(text.as_bytes()));
            }
            flush(&mut pipe).await;
            assert_eq!((pipe.waiting(), pipe.waiting.capacity()), (0, 0));
            assert_eq!(client.next().await.unwrap().unwrap(), Message::text(text.clone()));
            assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(text.clone().into_bytes()));
            assert_eq!(client.next().await.unwrap().unwrap(), Message::Ping(Default::default()));
            for _ in 0..4 {
                assert_eq!(client.next().await.unwrap().unwrap(), Message::text(text.clone()));
            }
        }
    }

    #[tokio::test]
    async fn what_has_begun_to_leave_leaves_and_the_rest_can_be_skipped() {
        for len in [0, 125, 126, 0xffff, 0x10000] {
            // Enough for the first frame and a part of the second.
            let (ours, theirs) = tokio::io::duplex(len + 20);
            let mut pipe = Pipe::new(ours);
            let text = "x".repeat(len);
            for _ in 0..50 {
                pipe.push(Kind::Text, text.as_bytes());
            }
            std::future::poll_fn(|cx| {
                assert!(pipe.poll_flush(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            pipe.skip();
            assert!(pipe.held() <= len + 10, "no more than the frame that has begun");
            pipe.skip();
            pipe.push(Kind::Text, b"last");
            let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
            let reading = tokio::spawn(async move {
                let mut before = 0;
                while client.next().await.unwrap().unwrap() != Message::text("last") {
                    before += 1;
                }
                before
            });
            flush(&mut pipe).await;
            assert!((1..50).contains(&reading.await.unwrap()), "{len}");
            pipe.skip();
            assert_eq!(pipe.waiting(), 0);
        }
    }

    #[tokio::test]
    async fn a_stranger_may_send_a_hello_and_no_more_until_it_is_trusted() {
        use tokio::io::AsyncReadExt;
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut pipe = Pipe::new(ours);
        theirs.write_all(&vec![0; BEFORE_HELLO_BYTES + 8 * 1024]).await.unwrap();
        let mut some = vec![0; 4096];
        let mut read = 0;
        let error = loop {
            match pipe.read(&mut some).await {
                Ok(count) => read += count,
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.kind()), (BEFORE_HELLO_BYTES, io::ErrorKind::FileTooLarge));
        pipe.trust();
        assert_eq!(pipe.read(&mut some).await.unwrap(), 4096);
    }

    #[tokio::test]
    async fn a_reader_that_takes_little_gets_all_of_it_in_order() {
        let (ours, theirs) = tokio::io::duplex(7);
        let mut pipe = Pipe::new(ours);
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        for n in 0..100 {
            pipe.push(Kind::Text, format!("frame {n}").as_bytes());
        }
        let reading = tokio::spawn(async move {
            for n in 0..100 {
                assert_eq!(client.next().await.unwrap().unwrap(), Message::text(format!("frame {n}")));
            }
        });
        flush(&mut pipe).await;
        reading.await.unwrap();
    }
}
