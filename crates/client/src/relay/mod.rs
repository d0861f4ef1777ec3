//! Services through the relay: [`Exposure`] is the end that answers, [`Connector`] the end that asks.
//!
//! What it promises: a stream to a `tcp` service is encrypted from one session to the other, and each end knows which
//! member the other belongs to before the first byte; a name belongs to the member that had it when it was first used
//! ([`Pins`]); a target that cannot be reached is said to be so, and does not take the exposure down.
//!
//! What it never does: keep a stream alive that its socket cannot carry. The sockets are dialled again; streams are not.
//!
//! Where to read next: `expose` and `connect` for the two ends, `noise` for the handshake between them.

mod connect;
mod dial;
mod expose;
mod identity;
mod noise;
mod pins;
mod target;

pub use connect::{Channel, Connector, Expect};
pub use expose::{Exposure, Target, Targets};
pub use identity::{Identity, RelayError};
pub use pins::{PinError, Pinned, Pins};
pub use target::{CONNECT_TIMEOUT, dial_target};
