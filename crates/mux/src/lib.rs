//! Many byte streams over one WebSocket: what the two ends of a relay share.
//!
//! What this crate is for: a publisher and the broker, or a consumer and the broker, hold one socket and carry many
//! streams through it. [`start`] takes the socket and gives a [`Mux`] to open streams with, a queue of those that the
//! other end opened, and the task that carries both.
//!
//! What it promises: each stream has a window of its own, so one that nobody reads stops only itself; as many streams as
//! [`RELAY_STREAMS_PER_SOCKET`](tenure_proto::limits::RELAY_STREAMS_PER_SOCKET) and no more; a socket that has been
//! silent for [`DEAD_AFTER`] is given up, and all its streams end with it.
//!
//! What it never does: decide who may have a stream, or look at what passes.
//!
//! Where to read next: `bytes` for the WebSocket as a byte stream, `mux` for the task, `frames` for what stands before
//! a stream's bytes, `load` for what streams hold, `gate` for what may be held.

mod bytes;
mod frames;
mod gate;
mod load;
mod mux;
mod stream;
#[cfg(test)]
mod tests;

pub use bytes::{WsBytes, socket_config};
pub use frames::{FrameError, read_frame, write_frame};
pub use gate::Gate;
pub use load::{Load, Tally};
pub use mux::{DEAD_AFTER, End, Incoming, Mux, OpenError, Side, start, start_counted};
pub use stream::MuxStream;
