//! How an answer is printed: pieces as they come, and what was missed from the result, if that has it.

use std::io::{self, IsTerminal};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenure_client::CallError;
use tenure_client::proto::ids::RunId;

use crate::exit::Failure;
use crate::output::{emit, emit_json, lines};

/// Bytes of pieces behind a gap that wait for the end; with more they are printed, and the gap stays.
const HELD: usize = 1024 * 1024;

/// Prints an answer.
pub(super) struct Screen {
    json: bool,
    terminal: bool,
    /// What was printed before anything was missed.
    said: Said,
    /// Whether something was missed.
    gap: bool,
    /// What came behind a gap; at most [`HELD`] bytes.
    held: Vec<Value>,
    held_bytes: usize,
    /// Whether it was printed after all.
    spilled: bool,
}

impl Screen {
    pub(super) fn new(json: bool) -> Screen {
        let terminal = io::stdout().is_terminal();
        let (gap, held, held_bytes, spilled) = (false, Vec::new(), 0, false);
        Screen { json, terminal, said: Said::default(), gap, held, held_bytes, spilled }
    }

    pub(super) fn started(&self, run: RunId, key: &str) -> io::Result<()> {
        self.say(&json!({"event": "started", "runId": run, "key": key}))
    }

    /// Prints a piece, now or at the end.
    pub(super) fn chunk(&mut self, data: Value, gap: bool) -> io::Result<()> {
        self.gap |= gap;
        if !self.gap {
            self.said.add(&data);
        }
        if self.json {
            let mut event = json!({"event": "chunk", "data": data});
            if gap {
                event["gap"] = json!(true);
            }
            return self.say(&event);
        }
        if !self.gap || self.spilled {
            return self.plain(&data);
        }
        self.held_bytes += data.as_str().map_or_else(|| data.to_string().len(), str::len) + 1;
        self.held.push(data);
        if self.held_bytes > HELD { self.spill() } else { Ok(()) }
    }

    /// Whether something of the answer was missed, at the latest before its end.
    pub(super) fn misses(&self, gap: bool) -> bool {
        self.gap || gap
    }

    /// The run has ended well, after so many `pieces` if that is known. What was missed is taken from the result, if it has
    /// it; otherwise this is a failure.
    pub(super) fn end(&mut self, result: &Value, gap: bool, pieces: Option<u64>) -> Result<(), Failure> {
        let unwritten = |error: io::Error| Failure::Failed(format!("write to standard output: {error}"));
        self.gap |= gap;
        let filled = self.gap && !self.spilled && self.said.is_in(result, pieces);
        if self.json {
            let mut event = json!({"event": "end", "status": "ok", "result": result});
            if gap {
                event["gap"] = json!(true);
            }
            self.say(&event).map_err(unwritten)?;
        } else if filled {
            let rest = self.said.rest(result).unwrap_or_default();
            self.plain(&Value::String(rest.to_owned())).map_err(unwritten)?;
        } else {
            self.spill().map_err(unwritten)?;
            if !result.is_null() && !self.said.is_all_of(result) {
                self.plain(result).map_err(unwritten)?;
            }
        }
        if self.gap && !filled {
            let text = "the run ended well, but some of its answer is gone: a broker keeps the last 1 MiB of the pieces of an \
                        answer, in its memory, and for a minute after the end";
            return Err(Failure::Failed(text.to_owned()));
        }
        Ok(())
    }

    /// The run has not ended well, or nobody knows.
    pub(super) fn error(&mut self, error: &CallError) -> io::Result<()> {
        self.spill()?;
        match error {
            CallError::Failed(error) => self.say(&json!({"event": "end", "status": "error", "error": error})),
            CallError::Cancelled => self.say(&json!({"event": "end", "status": "cancelled"})),
            CallError::Refused(_) | CallError::Session(_) => Ok(()),
        }
    }

    /// Prints what came behind a gap.
    fn spill(&mut self) -> io::Result<()> {
        if self.json || !self.gap || std::mem::replace(&mut self.spilled, true) {
            return Ok(());
        }
        eprintln!("gap: some of the answer behind what was printed so far is gone");
        for data in std::mem::take(&mut self.held) {
            self.plain(&data)?;
        }
        Ok(())
    }

    fn say(&self, event: &Value) -> io::Result<()> {
        if self.json { emit_json(event) } else { Ok(()) }
    }

    /// A string as it is, unless a terminal would act on it; anything else as JSON.
    fn plain(&self, value: &Value) -> io::Result<()> {
        match value {
            Value::String(text) if self.terminal => emit(lines(text).as_bytes()),
            Value::String(text) => emit(text.as_bytes()),
            value => emit_json(value),
        }
    }
}

/// What the pieces of an answer said, one a line: not kept, but known again.
#[derive(Default)]
struct Said {
    print: Sha256,
    bytes: usize,
    pieces: u64,
    /// Whether one of them was no text.
    other: bool,
}

impl Said {
    fn add(&mut self, data: &Value) {
        let Value::String(text) = data else {
            self.other = true;
            return;
        };
        if self.pieces > 0 {
            self.print.update("\n");
            self.bytes += 1;
        }
        self.print.update(text);
        (self.bytes, self.pieces) = (self.bytes + text.len(), self.pieces + 1);
    }

    /// What a result says behind this; `None` if it does not begin with it.
    fn rest<'a>(&self, result: &'a Value) -> Option<&'a str> {
        let text = result.as_str().filter(|_| !self.other)?;
        if self.pieces == 0 {
            return Some(text);
        }
        let (said, rest) = text.split_at_checked(self.bytes)?;
        let known = self.print.clone().finalize() == Sha256::digest(said);
        rest.strip_prefix('\n').filter(|_| known)
    }

    /// Whether a result says just this, and nothing else.
    fn is_all_of(&self, result: &Value) -> bool {
        let text = result.as_str().filter(|text| !self.other && self.pieces > 0 && text.len() == self.bytes);
        text.is_some_and(|text| self.print.clone().finalize() == Sha256::digest(text))
    }

    /// Whether a result says this and more, as an answer of so many pieces does, one a line.
    fn is_in(&self, result: &Value, pieces: Option<u64>) -> bool {
        let lines = |text: &str| text.split('\n').count() as u64;
        self.rest(result).is_some() && result.as_str().map(lines) == pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pieces: &[&str]) -> Said {
        let mut said = Said::default();
        for piece in pieces {
            said.add(&json!(piece));
        }
        said
    }

    #[test]
    fn a_result_that_repeats_the_pieces_is_known_again() {
        assert!(said(&["a", "", "b"]).is_all_of(&json!("a\n\nb")));
        for other in [json!("a\nb"), json!("a\n\nb\n"), json!("x\n\nb"), json!(null), json!(["a"])] {
            assert!(!said(&["a", "", "b"]).is_all_of(&other), "{other}");
        }
        assert!(!said(&[]).is_all_of(&json!("")), "a result of its own");
    }

    #[test]
    fn what_was_missed_is_what_the_result_says_behind_the_pieces() {
        let all = json!("one\ntwo\nthree");
        assert_eq!(said(&["one"]).rest(&all), Some("two\nthree"));
        assert_eq!(said(&[]).rest(&all), Some("one\ntwo\nthree"));
        assert_eq!(said(&["one", "tow"]).rest(&all), None);
        assert_eq!(said(&["on"]).rest(&all), None);
        assert!(said(&["one"]).is_in(&all, Some(3)));
        assert!(!said(&["one"]).is_in(&all, Some(4)), "a result of another kind");
        assert!(!said(&["one"]).is_in(&all, None));
        let mut mixed = said(&["one"]);
        mixed.add(&json!(2));
        assert!(!mixed.is_in(&all, Some(3)));
    }
}
