//! Messages through the rules and a store together: what the five promises say, by example and by property.
//!
//! `world` drives a mesh on a store in virtual time; `words` shortens what tests say to it. The other modules are
//! the tests.

mod breaks;
mod delivery;
mod disk;
mod fallback;
mod inbox;
mod person;
mod props;
mod settle;
mod sim;
mod topics;
mod words;
mod world;
