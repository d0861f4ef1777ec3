//! The relay: streams from whoever asks to whoever offers a service.
//!
//! What it is made of: `door` lets sockets of sessions in (`/v1/relay`, by ticket), `streams` knows which are there and
//! cuts what must end, `open` gets a stream to a service, `tcp` carries those of other sessions, and `consumer`,
//! `guard`, `forward` and `body` are HTTP by name, on a listener of its own.
//!
//! What it promises: a stream counts from the mesh's word until its last byte; what is cut ends now, with a reason; a
//! consumer that is slow, or a publisher that is, costs only itself.
//!
//! What it never does: decide. Who may have a stream is asked of the mesh, what passes of `tenure_mesh::relay`.

mod body;
mod config;
mod consumer;
mod door;
mod forward;
mod guard;
mod open;
mod streams;
mod tcp;
mod tickets;

pub(crate) use config::RawRelay;
pub use config::RelayConfig;
pub(crate) use consumer::{address, run};
pub(crate) use door::enter;
pub(crate) use streams::listen_for_cuts;

use streams::Streams;
use tickets::Tickets;

/// What the tasks of a relay share.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    pub(crate) streams: Streams,
    pub(crate) tickets: Tickets,
}
