//! The local daemon: what a program hands to it is on this machine's disk before the answer, reaches the broker once,
//! and what comes back is kept once.
//!
//! What this crate is for: [`Daemon::start`], which answers HTTP over a Unix socket around [`outbox::Outbox`] and
//! [`inbox::Inbox`], two SQLite files, each with one writer thread that shares a commit among all that waits.
//!
//! What it promises: what was answered is on the disk (WAL with `synchronous=FULL`); a damaged file is a named error,
//! never a panic; a file of a newer program is left as it is; a row that does not match its checksum is named and
//! never sent or shown.
//!
//! What it never does: decide. Whether a message is taken, when it is sent and what an answer means is asked of
//! `tenure_outbox`.
//!
//! Where to read next: `ipc` for the routes, [`outbox`], then `db` for how a file is opened and `worker` for who writes
//! to it; `sessions` for who is calling.

mod clock;
pub mod config;
mod contact;
mod daemon;
pub mod db;
mod disk;
mod drain;
pub mod group;
mod home;
mod hooks;
pub mod inbox;
mod ipc;
mod keeper;
mod link;
mod listen;
pub mod outbox;
mod queue;
mod reader;
mod recover;
mod rewinds;
mod room;
mod serve;
mod sessions;
mod shared;
mod stranded;
mod upkeep;
mod utc;
mod visits;
mod worker;

pub use config::{Config, MeshChoice};
pub use daemon::{Daemon, StartError};
pub use db::DbError;
pub use home::{Holder, HomeError, holder, open_to_all, socket_path};
pub use ipc::document;
pub use recover::{RecoverError, Recovered, recover};
pub use sessions::SessionError;
pub use utc::utc;
