//! What happened, line by line: as a hash always, so that two runs can be compared; in words when somebody wants to
//! read it.

use std::collections::VecDeque;
use std::fmt::{self, Write};

use crate::net::Frame;

/// Lines that are kept for a reader, and how many of them may come after what broke.
const KEPT: usize = 20_000;
const AFTER: usize = 400;

/// The trace of a world.
#[derive(Debug, Default)]
pub struct Trace {
    hash: Fnv,
    lines: u64,
    words: Option<VecDeque<String>>,
    /// How many more lines are kept, once something is broken.
    left: Option<usize>,
    /// Nobody compares it: what happens leaves no mark.
    unmarked: bool,
}

/// FNV-1a, which is the same everywhere.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

impl Trace {
    /// A trace that also keeps its last lines in words.
    pub fn in_words() -> Trace {
        Trace { words: Some(VecDeque::new()), ..Trace::default() }
    }

    /// A trace of which nobody wants anything: words and marks are a good part of what a world costs.
    pub fn unmarked() -> Trace {
        Trace { unmarked: true, ..Trace::default() }
    }

    /// One more line, at a time of the world.
    pub fn line(&mut self, at: u64, what: fmt::Arguments<'_>) {
        if self.unmarked {
            return;
        }
        self.lines += 1;
        // Writing into a hash cannot fail.
        let _ = writeln!(self.hash, "{at} {what}");
        self.keep(at, what);
    }

    fn keep(&mut self, at: u64, what: fmt::Arguments<'_>) {
        if let Some(words) = self.words.as_mut().filter(|_| self.left != Some(0)) {
            self.left = self.left.map(|left| left - 1);
            if words.len() >= KEPT {
                words.pop_front();
            }
            words.push_back(format!("{:>10.3} s  {what}", at as f64 / 1_000.0));
        }
    }

    /// A frame that one end of a connection reads. Its bytes are hashed as they are; in words it is cut short.
    pub(crate) fn frame(&mut self, at: u64, wire: impl fmt::Display, frame: &Frame) {
        if self.unmarked {
            return;
        }
        if self.words.is_some() {
            let text = match frame {
                Frame::Data(bytes) => {
                    let shown: String = String::from_utf8_lossy(bytes).chars().take(160).collect();
                    format!("{} bytes {shown:?}", bytes.len())
                }
                other => format!("{other:?}"),
            };
            self.keep(at, format_args!("{wire} {text}"));
        }
        self.lines += 1;
        let _ = write!(self.hash, "{at} {wire} ");
        match frame {
            Frame::Data(bytes) => self.hash.bytes(bytes),
            other => _ = write!(self.hash, "{other:?}"),
        }
    }

    /// Something is broken: what comes much later is not worth keeping.
    pub fn broke(&mut self) {
        self.left.get_or_insert(AFTER);
    }

    /// What two runs of the same scenario have in common: how many lines, and their hash.
    pub fn mark(&self) -> (u64, u64) {
        (self.lines, self.hash.0)
    }

    /// The last lines.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.words.iter().flatten().map(String::as_str)
    }
}
