//! The broker over real sockets, as an independent and hostile client finds it.
//!
//! One file per topic. Nothing here sleeps: a test reads until what must come has come.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod admin;
mod admission;
mod bad_input;
mod bounds;
mod clock;
mod codecs;
mod crowd;
mod drain;
mod durable;
mod first_frame;
mod hello_timeout;
mod hoard;
mod http;
mod limits;
mod messages;
mod presence;
mod requests;
mod restart;
mod resume;
mod runs;
mod services;
mod silence;
mod slow;
mod takeover;
mod tls;
mod token;
mod topics;
mod twice;
mod welcome;
