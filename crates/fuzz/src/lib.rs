//! Fuzz targets: one function for each parser that reads bytes from outside.
//!
//! What this crate is for: `cargo xtask fuzz` runs every [`Target`] with libFuzzer (the thin binaries are in `fuzz/`), and
//! `tests/corpus.rs` runs every target over its seeds and a fixed number of mutations of them, so that a plain test run
//! notices a parser that panics.
//!
//! What a target promises: it never panics on any input, and it checks what its parser promises (a value that was read is
//! written and read again as itself; a request that passes the relay is framed alike by hyper; a socket's frames are to our
//! reader what they are to tungstenite). `tests/checks.rs` gives those two comparisons readers that are wrong.
//!
//! Seeds come from `vectors/` and from what the code itself writes, so they follow the protocol.

mod frames;
pub mod framing;
mod hosts;
mod mux;
mod rows;
pub mod seeds;
pub mod sockets;
mod tokens;

/// One parser under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: that of its binary in `fuzz/fuzz_targets`, and of its corpus.
    pub name: &'static str,
    /// Reads one input; panics if the parser breaks a promise.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "frames_json", run: frames::json, seeds: seeds::frames_json },
    Target { name: "frames_msgpack", run: frames::msgpack, seeds: seeds::frames_msgpack },
    Target { name: "hosts", run: hosts::run, seeds: seeds::hosts },
    Target { name: "invites", run: tokens::invite, seeds: seeds::invites },
    Target { name: "mux", run: mux::run, seeds: seeds::mux },
    Target { name: "outbox_rows", run: rows::run, seeds: seeds::outbox_rows },
    Target { name: "relay_framing", run: framing::run, seeds: seeds::relay_framing },
    Target { name: "resume_tokens", run: tokens::resume, seeds: seeds::resume_tokens },
    Target { name: "socket_frames", run: sockets::run, seeds: seeds::socket_frames },
    Target { name: "tickets", run: tokens::ticket, seeds: seeds::tickets },
];

/// Runs the target of this name, as the binaries in `fuzz/` do.
///
/// # Panics
/// If there is no such target, or the input makes it break a promise.
#[allow(clippy::expect_used)]
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    (target.run)(input);
}
