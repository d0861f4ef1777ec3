//! The Rust SDK of Tenure: sessions that resume by themselves.
//!
//! What this crate is for: holding a session. [`Session::connect`] joins a mesh; the session then outlives any
//! number of sockets until it says [`Session::bye`] or the broker will not have it any more.
//!
//! What it promises: [`Events::next`] never ends without a typed [`End`]; requests are answered once, also when
//! a socket breaks under them; an application that reads slowly slows only itself.
//!
//! What it never does: decide. Dialling, resuming, numbering and watchdogs are `tenure_core::link`; this crate
//! owns the sockets, the timers and the task.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_client::{Options, Session, SessionEvent};
//!
//! let options = Options::new("ws://127.0.0.1:7400", tenure_client::random_key()?, "worker-1")?;
//! let (session, mut events) = Session::connect(options).await?;
//! for peer in session.peers(false).await? {
//!     println!("{} is here", peer.name);
//! }
//! loop {
//!     match events.next().await {
//!         Ok(SessionEvent::Event { body, .. }) => println!("{body:?}"),
//!         Ok(_) => {}
//!         Err(end) => break println!("over: {end}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where to read next: [`Session`], [`Options`], then `tenure_core::link` for the rules.

mod clock;
mod driver;
mod options;
mod session;
mod sock;

pub use ed25519_dalek::SigningKey;
pub use options::{Options, OptionsError};
pub use session::{ConnectError, Events, Session};
pub use tenure_core::link::{End, PeerChange, PeerMap, SessionEvent, Voucher};
pub use tenure_proto as proto;

/// A new random key.
pub fn random_key() -> Result<SigningKey, OptionsError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|_| OptionsError::Entropy)?;
    Ok(SigningKey::from_bytes(&seed))
}
