//! Wire types, ids, limits, codes and canonical bytes of Tenure.
//!
//! What this crate is for: everything that two programs must agree on to speak `tenure.v1`. Broker, SDK,
//! simulator and the vectors for other languages all read it from here.
//!
//! What it promises: decoding any bytes yields a value or a [`WireError`] with a code, never a panic; unknown
//! fields are ignored; the same value encodes to the same bytes; JSON and MessagePack carry the same objects.
//!
//! What it never does: I/O, clocks, randomness, policy. Whether a request is *allowed* is `tenure-mesh`'s
//! business; here is only what it *says*.
//!
//! Where to read next: [`frame`] for the envelope, [`hello`] for the handshake, [`error`] and [`close`] for the
//! two tables of codes, [`canonical`] for what is signed, [`fingerprint`] for what is hashed.

mod body;
pub mod canonical;
pub mod close;
pub mod codec;
pub mod dead;
pub mod error;
pub mod event;
pub mod feature;
pub mod fingerprint;
pub mod frame;
pub mod hello;
pub mod ids;
pub mod invite;
mod lenient;
pub mod limits;
pub mod log;
pub mod message;
pub mod method;
pub mod name;
pub mod noise;
mod null;
pub mod number;
pub mod peer;
pub mod pointer;
pub mod reconcile;
pub mod relay;
pub mod right;
pub mod run;
#[cfg(any(test, feature = "schema"))]
pub mod schema;
pub mod service;
pub mod subscribe;
pub mod tag;
pub mod text;
pub mod ticket;
pub mod token;
pub mod topic;
mod value;
#[cfg(any(test, feature = "schema"))]
pub mod vectors;
pub mod wire;

pub use close::{Closing, Reason};
pub use codec::Codec;
pub use error::{ErrorCode, WireError};
pub use ids::{ClusterId, ConnId, InstanceId, LeaseId, MemberKey, MessageId, RunId, SessionKey};
pub use log::LogName;
pub use name::{Cap, GroupName, MeshName, ServiceName, TopicName};
pub use number::U53;
pub use tag::TagParts;
