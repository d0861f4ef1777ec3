//! Sessions: leases and the hellos that begin, resume and take them over; presence; event streams; the end of a lease.
//!
//! What it never does: keep anything by socket. A socket is a number in a lease's state.
//!
//! Where to read next: [`lease`] for the life of a session, `hello` and `teardown` for its beginning and end, [`presence`]
//! for what others see of it, [`stream`] for event numbers and replay, `fanout` for who is handed what.

pub(crate) mod fanout;
pub mod feed;
pub mod freeze;
pub(crate) mod hello;
pub mod lease;
pub(crate) mod positions;
pub mod presence;
pub(crate) mod quota;
pub(crate) mod snapshot;
pub mod stream;
pub(crate) mod teardown;
pub(crate) mod watch;
