//! The outbox of a daemon, and what it does with what comes in: the rules without the disk.
//!
//! What this is for: a program hands a message to its daemon and may forget about it. Whether the daemon takes it is
//! [`accept`]'s to say, what may become of it [`row`]'s, when it is sent [`schedule`]'s and [`drain`]'s, what the
//! broker's answer means [`verdict`]'s, and how long it may wait [`age`]'s. What a broker must promise for all that is in [`window`];
//! what an operator may do about a row in [`requeue`]; when a session that is over is taken up
//! again in [`revival`]; what becomes of a message that arrives in [`arrival`] and
//! [`intake`]. [`ledger`] is an outbox in memory: the model.
//!
//! What it promises: an id belongs to the first request that was written under it, for as long as the row is kept; a row that may be at the
//! broker is never sent under another id without asking; rows of one lane leave one after the other, the next when the broker has the one before; no lane waits
//! for the backlog of another.
//!
//! What it never does: read a row, a clock or dice. The daemon's store and its tasks do.

pub mod accept;
pub mod age;
pub mod arrival;
pub mod backoff;
pub mod drain;
pub mod hooks;
pub mod intake;
pub mod ledger;
pub mod requeue;
pub mod revival;
pub mod row;
pub mod schedule;
pub mod verdict;
pub mod window;

pub use accept::{Answer, Conflict, Held, Mismatch, decide, free, meant};
pub use drain::{Drain, FoundLane, Outgoing, Settled, Settlement};
pub use row::{Place, Status, Step};
pub use schedule::{LaneId, Schedule};
