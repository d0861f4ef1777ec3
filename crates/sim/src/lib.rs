//! A deterministic simulator: whole meshes in one thread, in virtual time, from one seed.
//!
//! What this is for: to try to break the promises. The rules that ship (`tenure-mesh`, `tenure-link`, `tenure-outbox`: the mesh, a broker's
//! connections, group commit, the SDK's link, a daemon's drain and intake) and the store that ships run here unchanged; the shells around them,
//! which are sockets, threads and timers elsewhere, are a network that fails, machines that sleep and a disk that
//! tears. An oracle that knows the promises and nothing of the rules watches.
//!
//! What it promises: a seed is a scenario, and a scenario happens the same way every time, byte for byte.
//!
//! Where to read next: `scenario` for what a seed means, `fault` for what goes wrong, `world` for how it runs,
//! `oracle` for what is asserted, `broker`, `process` and `daemon` for the shells.

mod app;
mod broker;
mod clock;
mod daemon;
mod desk;
mod disk;
pub mod fault;
mod guest;
mod hosting;
pub mod hunt;
mod letter;
mod local;
mod look;
mod memo;
mod mischief;
mod names;
mod net;
mod offers;
mod operator;
pub mod oracle;
mod process;
pub mod regressions;
mod rewinding;
mod rng;
pub mod run;
mod runs;
pub mod scenario;
mod seats;
pub mod seen;
pub mod shrink;
mod stranger;
pub mod trace;
mod wires;
mod world;
