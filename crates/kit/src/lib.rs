//! What the pure rules share: time, deadlines, dice, rates, and the deliberate bugs that the simulator must find.
//!
//! What this crate is for: the small parts that the broker's, the client's and the daemon's rules are all made of.
//!
//! What it never does: read a clock, roll dice, touch a socket, file, thread or environment variable. Time is an argument;
//! randomness comes in as numbers.
//!
//! Where to read next: [`time`] and [`deadline`] for when, [`clock`] for whether a wall clock can be believed, [`durable`]
//! for whether a store has lost something, [`crowd`], [`rate`] and [`address`] for how many and how often.

pub mod address;
pub mod bounds;
pub mod census;
pub mod cidr;
pub mod clock;
pub mod crowd;
pub mod deadline;
pub mod dice;
pub mod durable;
pub mod host;
pub mod mutant;
pub mod rate;
pub mod secret;
pub mod time;

pub use time::{Millis, Now};
