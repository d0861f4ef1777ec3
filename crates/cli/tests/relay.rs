//! Services through the relay, with real processes: a broker, `tenure expose`, `tenure connect`, and targets by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "relay/asking.rs"]
mod asking;
#[path = "relay/bad.rs"]
mod bad;
#[path = "relay/bans.rs"]
mod bans;
#[path = "relay/http.rs"]
mod http;
#[path = "relay/meshes.rs"]
mod meshes;
#[path = "relay/stage.rs"]
mod stage;
#[path = "relay/tcp.rs"]
mod tcp;
#[path = "relay/times.rs"]
mod times;
