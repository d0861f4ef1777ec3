//! What streams hold in memory, counted as their frames pass.
//!
//! The library that carries streams does not say what waits in them. So what comes through the socket is looked at on its
//! way in and out: a frame's header names its stream and its length. What has come for a stream and was not read, and what
//! was written to it and has not left, is its load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::gate::Gate;

/// Bytes of a frame's header: version, kind, two of flags, four of the stream's number, four of the length.
const HEADER_BYTES: usize = 12;
/// The kind of frame that has a body.
const DATA: u8 = 0;
/// The flag that opens a stream.
const SYN: u8 = 1;
/// Bytes between two rings of the bell.
const STEP_BYTES: usize = 64 * 1024;

/// What the streams of many sockets hold together.
#[derive(Debug)]
pub struct Tally {
    bytes: AtomicUsize,
    /// The sum that they are a part of: while it is too much, their sockets are not read.
    gate: Arc<Gate>,
    grew: Notify,
    made: Instant,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::within(Arc::default())
    }
}

impl Tally {
    /// A part of the sum that `gate` bounds.
    pub fn within(gate: Arc<Gate>) -> Tally {
        Tally { bytes: AtomicUsize::new(0), gate, grew: Notify::new(), made: Instant::now() }
    }

    /// Bytes that they hold.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until that has grown by some. Cancel-safe; for one who waits.
    pub async fn grown(&self) {
        self.grew.notified().await;
    }

    fn add(&self, bytes: usize) {
        self.gate.add(bytes);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // What does not come while the gate is closed takes no further step.
        if before / STEP_BYTES != (before + bytes) / STEP_BYTES || self.gate.is_closed() {
            self.grew.notify_one();
        }
    }

    fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gate.sub(bytes);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What one stream holds.
#[derive(Debug)]
pub struct Load {
    bytes: AtomicUsize,
    /// When some of it last left, or it began to hold something.
    moved: AtomicU64,
    /// Set when its stream is over: what still comes for it is dropped.
    closed: AtomicBool,
    tally: Arc<Tally>,
}

impl Load {
    fn new(tally: Arc<Tally>) -> Load {
        Load { bytes: AtomicUsize::new(0), moved: AtomicU64::new(0), closed: AtomicBool::new(false), tally }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How long nothing of it has left.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.tally.now().saturating_sub(self.moved.load(Ordering::Relaxed)))
    }

    /// It holds so much more.
    pub fn add(&self, bytes: usize) {
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        // The sum first: it must not be less than nothing while somebody takes this off again.
        self.tally.add(bytes);
        if bytes > 0 && self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.moved.store(self.tally.now(), Ordering::Relaxed);
        }
        if self.closed.load(Ordering::SeqCst) {
            self.drop_of(usize::MAX);
        }
    }

    /// Its stream is over.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.drop_of(usize::MAX);
    }

    /// So much of it has left.
    pub fn sub(&self, bytes: usize) {
        if bytes > 0 {
            self.moved.store(self.tally.now(), Ordering::Relaxed);
        }
        self.drop_of(bytes);
    }

    /// It holds so much less, and nothing has left.
    pub(crate) fn drop_of(&self, bytes: usize) {
        let less = |held: usize| Some(held.saturating_sub(bytes));
        if let Ok(before) = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            self.tally.sub(before.min(bytes));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tally.sub(self.bytes());
    }
}

/// The loads of the streams of one socket, by their numbers. As many as the library has streams.
#[derive(Clone, Debug)]
pub(crate) struct Loads {
    tally: Arc<Tally>,
    /// Held for a moment.
    streams: Arc<Mutex<HashMap<u32, Arc<Load>>>>,
}

impl Loads {
    pub(crate) fn new(tally: Arc<Tally>) -> Loads {
        Loads { tally, streams: Arc::default() }
    }

    /// Ready when more may come.
    pub(crate) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.tally.gate.poll_open(cx)
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u32, Arc<Load>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The load of a stream that is open from here on.
    pub(crate) fn open(&self, stream: u32) -> Arc<Load> {
        self.streams().entry(stream).or_insert_with(|| Arc::new(Load::new(self.tally.clone()))).clone()
    }

    fn find(&self, stream: u32) -> Option<Arc<Load>> {
        self.streams().get(&stream).cloned()
    }

    /// A stream is over: what still comes for it is dropped by the library.
    pub(crate) fn close(&self, stream: u32) {
        let closed = self.streams().remove(&stream);
        if let Some(load) = closed {
            load.close();
        }
    }
}

/// Follows the frames in one direction of a socket.
#[derive(Debug)]
pub(crate) struct Meter {
    loads: Loads,
    header: [u8; HEADER_BYTES],
    /// How much of the header is here.
    have: usize,
    /// What is missing of the body that follows it, and whose it is.
    left: usize,
    load: Option<Arc<Load>>,
}

impl Meter {
    pub(crate) fn new(loads: Loads) -> Meter {
        Meter { loads, header: [0; HEADER_BYTES], have: 0, left: 0, load: None }
    }

    /// Ready when more may come.
    pub(crate) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.loads.poll_open(cx)
    }

    /// These bytes come in: they wait to be read.
    pub(crate) fn comes(&mut self, bytes: &[u8]) {
        self.pass(bytes, true);
    }

    /// These bytes leave.
    pub(crate) fn leaves(&mut self, bytes: &[u8]) {
        self.pass(bytes, false);
    }

    fn pass(&mut self, mut bytes: &[u8], inward: bool) {
        while !bytes.is_empty() {
            let now = bytes.len().min(if self.left > 0 { self.left } else { HEADER_BYTES - self.have });
            let (part, rest) = bytes.split_at(now);
            if self.left > 0 {
                self.left -= now;
                match &self.load {
                    Some(load) if inward => load.add(now),
                    Some(load) => load.sub(now),
                    None => {}
                }
            } else {
                self.header[self.have..self.have + now].copy_from_slice(part);
                self.have += now;
                if self.have == HEADER_BYTES {
                    self.have = 0;
                    self.begin(inward);
                }
            }
            bytes = rest;
        }
    }

    /// A header is complete.
    fn begin(&mut self, inward: bool) {
        let [_, kind, _, flags, s0, s1, s2, s3, l0, l1, l2, l3] = self.header;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        if inward && matches!(kind, 0 | 1) && flags & SYN != 0 {
            // What is no new stream, or one too many, ends the socket.
            self.loads.open(stream);
        }
        if kind == DATA {
            self.left = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
            self.load = self.loads.find(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: u32) -> Vec<u8> {
        let mut frame = vec![0, kind, 0, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(length.to_be_bytes());
        if kind == DATA {
            frame.resize(HEADER_BYTES + length as usize, 7);
        }
        frame
    }

    #[test]
    fn what_comes_is_counted_for_its_stream_in_pieces_of_every_size() {
        let all = [
            frame(DATA, SYN, 2, 5),
            frame(1, 0, 2, 1 << 20),
            frame(DATA, 0, 4, 1_000),
            frame(1, SYN, 4, 0),
            frame(2, SYN, 0, 99),
            frame(DATA, 0, 4, 300),
            frame(DATA, 0, 2, 0),
            frame(DATA, 0, 2, 70),
        ]
        .concat();
        for piece in [1, 2, 5, 12, 13, 100, 10_000] {
            let tally = Arc::new(Tally::default());
            let loads = Loads::new(tally.clone());
            let mut meter = Meter::new(loads.clone());
            all.chunks(piece).for_each(|bytes| meter.comes(bytes));
            let (two, four) = (loads.open(2), loads.open(4));
            assert_eq!((two.bytes(), four.bytes(), tally.bytes()), (75, 300, 375), "{piece}");
            two.sub(70);
            loads.close(4);
            meter.comes(&frame(DATA, 0, 4, 50));
            assert_eq!((two.bytes(), four.bytes(), tally.bytes()), (5, 0, 5), "what is over holds nothing");
            drop((two, meter, loads));
            assert_eq!(tally.bytes(), 0);
        }
    }

    #[test]
    fn what_leaves_is_counted_off() {
        let loads = Loads::new(Arc::default());
        let load = loads.open(1);
        load.add(100);
        let mut meter = Meter::new(loads.clone());
        meter.leaves(&frame(DATA, SYN, 1, 60));
        assert_eq!(load.bytes(), 40);
        meter.leaves(&frame(DATA, 0, 1, 60));
        assert_eq!((load.bytes(), loads.tally.bytes()), (0, 0), "never less than nothing");
    }
}
