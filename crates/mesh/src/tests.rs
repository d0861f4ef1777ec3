//! A mesh through its front door: inputs in, and what clients, store and log saw of it out. One file a topic;
//! `world` is the shell around it (with `socket` and `disk`),
//! `check` what must hold inside it after every step of every test.

mod access;
mod bans;
mod calls;
mod census;
mod check;
mod configure;
mod disk;
mod drain;
mod enter;
mod grants;
mod positions;
mod replay;
mod restart;
mod routing;
mod service_props;
mod services;
mod socket;
mod store;
mod table;
mod watch;
pub(crate) mod world;
