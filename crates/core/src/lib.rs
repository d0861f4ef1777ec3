//! The rules of Tenure, without sockets, disks, clocks or dice.
//!
//! What this crate is for: deciding. A [`mesh::Mesh`] holds every lease of one mesh, its presence and its event
//! streams; a [`conn::Conn`] is one socket of a broker, from its upgrade to its end; a [`link::Link`] is the other
//! end, one client's session through any number of sockets. All take `(now, input)` and leave effects for a shell to
//! carry out.
//!
//! What it promises: the same inputs give the same effects, byte for byte; every deadline is reachable through
//! `next_deadline`; every collection has a bound that is named where it is enforced.
//!
//! What it never does: read a clock, roll dice, touch a socket, file, thread or environment variable. Time is
//! an argument; randomness comes in as numbers.
//!
//! Where to read next: [`lease`] for the life of a session, [`mesh`] for the aggregate, [`stream`] for event
//! numbering and replay, [`presence`] for who is here, [`conn`] and [`admit`] for who may come in, [`outbox`] for what a
//! daemon promises.

pub mod accept;
pub mod access;
pub mod address;
pub mod admit;
pub mod buffers;
pub mod census;
pub mod cidr;
pub mod config;
pub mod conn;
pub mod crowd;
pub mod deadline;
pub mod dice;
pub mod durable;
pub mod effect;
pub mod envelope;
pub mod feature;
pub mod feed;
pub mod frames;
pub mod group;
pub mod hooks;
pub mod host;
pub mod house;
pub mod input;
pub mod lease;
pub mod link;
pub mod log;
pub mod mesh;
pub mod mutant;
pub mod operate;
pub mod operator;
pub mod outbox;
pub mod pattern;
pub mod presence;
pub mod rate;
pub mod reconcile;
pub mod record;
pub mod relay;
pub mod route;
pub mod run;
pub mod secret;
pub mod send;
pub mod service;
pub mod setting;
pub mod settlers;
pub mod stream;
pub mod subs;
pub mod thaw;
pub mod time;
pub mod writing;

pub use config::MeshConfig;
pub use effect::Effect;
pub use house::House;
pub use input::Input;
pub use mesh::Mesh;
pub use time::{Millis, Now};
