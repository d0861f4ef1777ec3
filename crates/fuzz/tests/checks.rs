//! Whether the targets that compare our readers with others' would notice: each is given a reader that is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_fuzz::framing::{Reader, check};
use tenure_fuzz::sockets::{End, Event, Found, by_us, compare};
use tenure_mesh::relay::framing::{Framing, Read};

/// A reader of requests that takes one text for another, as long, wherever it stands in what it is shown.
struct Misreads {
    framing: Framing,
    text: &'static str,
    taken_for: &'static str,
}

impl Reader for Misreads {
    fn read(&mut self, bytes: &[u8]) -> Read {
        assert_eq!(self.text.len(), self.taken_for.len());
        let mut bytes = bytes.to_vec();
        let found: Vec<usize> =
            (0..bytes.len()).filter(|at| bytes[*at..].starts_with(self.text.as_bytes())).collect();
        for at in found {
            bytes[at..at + self.text.len()].copy_from_slice(self.taken_for.as_bytes());
        }
        self.framing.read(&bytes)
    }

    fn framing(&self) -> &Framing {
        &self.framing
    }
}

/// A header that frames a body, the body, what is misread in them as what, and words of the finding.
const MISREAD: &[(&str, &str, &str, &str, &str)] = &[
    // hyper finds more: it takes some of the next request, all of it, or waits for what never comes.
    ("Content-Length: 5", "ab", "h: 5", "h: 2", "the body is"),
    ("Content-Length: 54", "ab", "h: 54", "h: 02", "the body is"),
    ("Content-Length: 999", "ab", "h: 999", "h: 002", "hyper refuses"),
    ("Transfer-Encoding: chunked", "", "Transfer-Encoding", "Transfer+Encoding", "hyper refuses"),
    // hyper finds less: what is left is no request, or is one.
    ("Content-Length: 2", "abcde", "h: 2", "h: 5", "the body is"),
    ("Content+Length: 5", "abcde", "Content+", "Content-", "the body is"),
    ("Content-Length: 01", "aGET /inside HTTP/1.1\r\nHost: a\r\n\r\n", "h: 01", "h: 34", "the body is"),
    // As long for both, and another body.
    (
        "Transfer-Encoding: chunked",
        "1\r\na\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked",
        "Content-Length:         11",
        "the body is",
    ),
    // An empty body for both; only what stands behind it tells.
    ("Transfer+Encoding: chunked", "0\r\n\r\n", "Transfer+", "Transfer-", "hyper sees [] behind it"),
    // hyper refuses it.
    ("Content-Length: +3", "abc", "h: +3", "h: 03", "hyper refuses"),
    ("Transfer-Encoding: xchunked", "0\r\n\r\n", "xchunked", " chunked", "hyper refuses"),
    ("X : 1", "", "X :", "XX:", "hyper refuses"),
];

#[test]
fn requests_that_hyper_frames_otherwise_are_found() {
    for &(header, body, text, taken_for, words) in MISREAD {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n{body}");
        let mut misreads = Misreads { framing: Framing::default(), text, taken_for };
        let problem = check(bytes.as_bytes(), &mut misreads).expect_err(&bytes);
        assert!(problem.contains(words), "{problem}");
        check(bytes.as_bytes(), &mut Framing::default()).expect(&bytes);
    }
}

#[test]
fn requests_after_which_hyper_may_stop_are_compared_to_their_end() {
    for (first, more) in [("HTTP/1.0", ""), ("HTTP/1.1", "\r\nConnection: Close")] {
        let bytes = format!("POST / {first}\r\nHost: a{more}\r\nContent-Length: 5\r\n\r\nabcde");
        let mut misreads = Misreads { framing: Framing::default(), text: "h: 5", taken_for: "h: 4" };
        let problem = check(bytes.as_bytes(), &mut misreads).expect_err(&bytes);
        assert!(problem.contains("the body is"), "{problem}");
        check(bytes.as_bytes(), &mut Framing::default()).expect(&bytes);
    }
}

/// A frame whose mask is of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat()
}

/// What our reader makes of `bytes`, which must be right, and what is said when `wrong` has changed it.
fn told(bytes: &[u8], wrong: impl FnOnce(&mut Found)) -> Result<(), String> {
    let mut found = by_us(&[&[2, 4, 0], bytes].concat());
    compare(bytes, &found).expect("our reader is right");
    wrong(&mut found);
    compare(bytes, &found)
}

#[test]
fn frames_that_tungstenite_reads_otherwise_are_found() {
    let hello = frame(0x81, b"hello");
    let split = [frame(0x01, b"a"), frame(0x89, b"p"), frame(0x80, b"b"), frame(0x88, &[3, 0xe8])].concat();
    let event = |event: Event| move |found: &mut Found| found.came[0] = event;
    told(&hello, event(Event::Text(b"jello".to_vec()))).expect_err("another text");
    told(&hello, event(Event::Binary(b"hello".to_vec()))).expect_err("another kind");
    told(&split, |found| found.came.swap(0, 1)).expect_err("another order");
    told(&split, |found| _ = found.came.remove(0)).expect_err("a ping is missing");
    told(&split, |found| found.came[2] = Event::Close(Some((1001, Vec::new())))).expect_err("another code");
    told(&hello, |found| found.end = End::Bad).expect_err("refused without a reason");
    told(&hello[..8], |found| found.end = End::Bad).expect_err("refused before it is whole");
    told(&hello[..8], |found| found.partial = false).expect_err("forgotten");
    told(&hello, |found| found.partial = true).expect_err("waited for, and whole");
}

#[test]
fn frames_that_are_let_pass_or_refused_otherwise_are_found() {
    let over = |found: &mut Found| found.end = End::Over;
    for (what, bytes) in [
        ("not masked", vec![0x81, 1, b'x']),
        ("a reserved bit", frame(0xc1, b"")),
        ("a reserved opcode", frame(0x83, b"")),
        ("a control frame in fragments", frame(0x09, b"")),
        ("a continuation of nothing", frame(0x80, b"")),
        ("a wide length of a control frame", vec![0x89, 0xfe, 0, 1, 0, 0, 0, 0, b'x']),
        ("half a close code", frame(0x88, &[3])),
        ("a text that is none", frame(0x81, &[0xff])),
        ("too large", vec![0x82, 0xfe, 0x03, 0xe9, 0, 0, 0, 0]),
    ] {
        let passed = |found: &mut Found| {
            found.came.push(Event::Pong);
            found.end = End::Over;
        };
        told(&bytes, over).expect_err(what);
        told(&bytes, passed).expect_err(what);
    }
    told(&frame(0x80, b""), |found| found.end = End::TooLarge).expect_err("refused for another reason");
    // A text in fragments that is none may be noticed with its last, and no later.
    let none = [frame(0x01, &[0xff]), frame(0x89, b"p"), frame(0x80, b"b")].concat();
    told(&none, |found| found.came.push(Event::Text(b"\xffb".to_vec()))).expect_err("handed on");
    told(&none, over).expect_err("swallowed");
}
