//! The Rust SDK of Tenure: sessions that resume by themselves.
//!
//! What this crate is for: holding a session. [`Session::connect`] joins a mesh; the session then outlives any
//! number of sockets until it says [`Session::bye`] or the broker will not have it any more. On it messages are
//! sent ([`Session::send`], [`Session::publisher`]) and read ([`Session::subscribe`], [`Session::inbox`]); agents are called
//! ([`Session::call`]) and answer ([`Session::serve_runs`]); services are offered ([`Session::offer`]) and found
//! ([`Session::services`]).
//!
//! What it promises: [`Events::next`] never ends without a typed [`End`], nor [`Subscription::next`] without a
//! typed [`SubEnd`]; requests are answered once, also when a socket breaks under them; a send is accepted once,
//! however often it had to be made; a message comes out once while it is in hand or acked; an application that
//! does not read one subscription holds back only that one; a call is one run, whose chunks come in order and each once.
//!
//! What it never does: decide. Dialling, resuming, numbering, reconciling and watchdogs are `tenure_link`;
//! this crate owns the sockets, the timers and the task.
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
//! Where to read next: [`Session`], [`Options`], [`Subscription`] and [`Received`], then `tenure_link` for the rules.

mod call;
mod clock;
mod driver;
mod endpoint;
mod feed;
mod ids;
mod offer;
mod options;
mod received;
pub mod relay;
mod send;
mod serve;
mod session;
mod sock;
mod subscription;

pub use call::{Answer, CallBuilder, CallError, RunStream};
pub use ed25519_dalek::SigningKey;
pub use endpoint::{Endpoint, Wire};
pub use offer::{OfferBuilder, Offered};
pub use options::{Options, OptionsError};
pub use received::{Received, Settling, Unsettled};
pub use send::{Body, Publisher, SendBuilder, Sending, To};
pub use serve::{ChunkError, Run, RunError, ServeBuilder, ServeEnd};
pub use session::{ConnectError, Events, Session};
pub use subscription::{InboxError, Item, SubscribeBuilder, Subscription};
pub use tenure_link::{End, PeerChange, PeerMap, Screen, SessionEvent, SubEnd, Voucher};
pub use tenure_proto as proto;
pub use tenure_proto::hello::InboxChoice;
pub use tenure_proto::reconcile::ReconcilePolicy;
pub use tenure_proto::subscribe::From as Start;

/// A new random key.
pub fn random_key() -> Result<SigningKey, OptionsError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|_| OptionsError::Entropy)?;
    Ok(SigningKey::from_bytes(&seed))
}
