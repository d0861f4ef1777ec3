//! The relay's rules: which Host names which service, which requests are read at all, which headers pass, who is said
//! to ask, and what a consumer is told when there is nothing to pass on.
//!
//! What it promises: a request is either understood in one way only, or refused with a sentence; what a stranger says
//! about where a request came from is not believed; nothing that was meant for the connection before us reaches the
//! one behind us.
//!
//! What it never does: parse bodies, or hold bytes. Sockets, streams and the waiting are the broker's `relay`.
//!
//! Where to read next: [`framing`] for what is refused before it is a request, [`host`] for names, [`headers`] for what
//! passes, [`forwarded`] for who asks, [`refusal`] for what is answered.

pub mod forwarded;
pub mod framing;
pub mod headers;
pub mod host;
pub mod refusal;

pub use framing::Framing;
pub use host::{Domains, places};
pub use refusal::Refusal;
