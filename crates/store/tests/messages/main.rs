//! Messages through the rules and a store together: what the five promises say, by example and by property.
//!
//! `world` drives a mesh on a store in virtual time; `words` shortens what tests say to it. `props` makes up programs
//! for a `sim` of people (`person`), who are told things (`hear`) and judge in the end whether all promises were kept
//! (`judge`). The other modules are examples.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod breaks;
mod clocks;
mod deletes;
mod delivery;
mod disk;
mod fallback;
mod groups;
mod hear;
mod inbox;
mod judge;
mod lines;
mod live;
mod person;
mod props;
mod reconcile;
mod rewind;
mod run_breaks;
mod run_caps;
mod run_list;
mod run_props;
mod runs;
mod settle;
mod sim;
mod stopping;
mod topics;
mod words;
mod world;
