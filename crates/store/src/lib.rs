//! Durable state of a broker: what must still be true after the process is killed.
//!
//! What this crate is for: the [`Store`] trait, and its engines: [`Memory`], the model, and [`Sqlite`], the
//! default. It keeps the broker's identity, its starts and how long each ran, the live settings, and for every
//! mesh its leases and its messages: logs, who has read how far, dead letters, and the ids that were used.
//!
//! What it promises: one method is one transaction, all of it or nothing; what a method says is durable has
//! been synced to the disk when it returns. Every engine passes one conformance suite and agrees with the model
//! under random operations and restarts. After a failed sync nothing is written again until the process
//! restarts ([`StoreError::Poisoned`]).
//!
//! What it never does: decide. Whether a lease may begin or must end, and what becomes of a message whose id is
//! known, is `tenure-mesh`'s business; the words for both are in `tenure_mesh::store::record`. It reads no clock,
//! makes no randomness, spawns no thread and retries nothing: times and entropy are arguments, and waiting is
//! the caller's.
//!
//! How it is used: all methods block, so a broker gives its store to one thread, which drains what is waiting
//! into one [`Store::apply`] and answers everybody when that returns: one sync for the whole batch. With a [`Syncer`] on
//! another thread it can [`Store::stage`] the next batch while the disk takes the last. Other threads
//! read through a [`StoreReader`], and one more may call a [`Checkpointer`] now and then.
//!
//! ```
//! use tenure_store::{Identity, Memory, Store, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut store: Box<dyn Store> = Box::new(Memory::new());
//! let fresh = Identity { cluster_id: "c-1".parse()?, broker_key: [7; 32] };
//! assert_eq!(store.identity(&fresh)?, fresh, "nothing was stored yet");
//!
//! let run = store.begin_run(1_700_000_000_000)?;
//! assert_eq!(run.number, 1);
//! store.apply(&[Write::Heartbeat { run: run.number, uptime_ms: 5_000, believed_at: None }])?;
//! assert!(store.leases()?.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Where to read next: [`Store`], then [`Write`] for what commits together, [`memory`] for the rules in their
//! shortest form, and `sqlite::schema` for the tables.

mod check;
#[cfg(test)]
mod conformance;
pub mod durable;
mod error;
mod fate;
mod head;
mod identity;
mod lease;
pub mod memory;
mod row;
pub mod sqlite;
mod uptime;
mod write;

use tenure_mesh::access::RestoredAccess;
use tenure_mesh::store::record::{RestoredMessages, StoreFound, StoreOutcome, StoreRead};
use tenure_proto::MeshName;

pub use check::Checking;
pub use error::{Result, StoreError};
pub use identity::Identity;
pub use lease::{LeaseRow, StoredLease};
pub use memory::Memory;
pub use sqlite::Sqlite;
pub use write::Write;

/// One start of the broker on this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its number: 1 for the first start, one more for each that follows.
    pub number: u64,
    /// When it began, Unix milliseconds, as the caller said.
    pub started_at: u64,
    /// When a run before it last believed its wall clock, Unix milliseconds; `None` for the first, of which the next is told
    /// when it began, if it never said.
    pub believed_at: Option<u64>,
}

/// What a broker keeps. Blocking; owned by one thread; one method is one transaction.
///
/// Numbers are milliseconds, counts and versions; engines keep them exactly below 2^63.
///
/// An error means that nothing was done, with one exception: after [`StoreError::Poisoned`] the outcome of the
/// write that met it is unknown, and the next start may find it done. Both answers are safe for a caller that
/// has told nobody.
pub trait Store: Send {
    /// Which engine this is: `memory` or `sqlite`.
    fn kind(&self) -> &'static str;

    /// The identity of this store. On first use `fresh` becomes it: both of its values are stored together, and
    /// durable on return. Later calls only read, so they work on a full disk.
    fn identity(&mut self, fresh: &Identity) -> Result<Identity>;

    /// Begins the next run, with no uptime yet. Its number is durable on return: no two starts share one, and
    /// it becomes the current run that [`Store::leases`] counts up to.
    fn begin_run(&mut self, now_wall_ms: u64) -> Result<Run>;

    /// Records that `run` has lasted `uptime_ms`; durable on return. The record never goes down. What passes
    /// after the last heartbeat before a crash is on no record; `tenure_mesh::sessions::lease::unattended_ms` says what counts for it.
    fn heartbeat(&mut self, run: u64, uptime_ms: u64) -> Result<()> {
        self.apply(&[Write::Heartbeat { run, uptime_ms, believed_at: None }]).map(|_| ())
    }

    /// Carries out every write of `batch`, in order, in one transaction: all of them or, on an error, none. Gives
    /// one outcome for each, in their order; later writes see earlier ones, so a twin in the same batch is a
    /// duplicate. Durable on return, with one sync however long the batch is. An empty batch does nothing.
    fn apply(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>>;

    /// As [`Store::apply`], but durable only when a [`Syncer::sync`] has returned that began later. Readers answer
    /// nothing that is not durable: until then they wait, so whoever stages must see to it that a sync follows. An engine
    /// without a [`Syncer`] syncs here.
    fn stage(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
        self.apply(batch)
    }

    /// Whether the files hold what was written to them, every byte of the log. To be asked when nothing is written any more, before
    /// the store is dropped: [`StoreError::Poisoned`] says that it will leave its log as it is, and that the next start refuses.
    fn look_closely(&mut self) -> Result<()> {
        Ok(())
    }

    /// Something that waits for the disk beside this store and on any thread; `None` if staging does that.
    fn syncer(&self) -> Result<Option<Box<dyn Syncer>>> {
        Ok(None)
    }

    /// What is remembered of the messages of `mesh`, as of one moment. Changes nothing. Its cost follows logs,
    /// groups and what is open, never the number of messages.
    fn restore(&mut self, mesh: &MeshName) -> Result<RestoredMessages>;

    /// The meshes that somebody has made, by name. Changes nothing.
    fn meshes(&mut self) -> Result<Vec<MeshName>>;

    /// What is remembered of who may do what in `mesh`, as of one moment. Changes nothing.
    fn access(&mut self, mesh: &MeshName) -> Result<RestoredAccess>;

    /// Something to read messages with, beside this store and on any thread. It sees what is committed, and holds
    /// what the store holds: a data directory is free when its readers are gone too.
    fn reader(&self) -> Result<Box<dyn StoreReader>>;

    /// Something that tidies up behind the writer, for a thread of its own; `None` if this engine needs none.
    /// Without one the writer does that work itself, between two commits.
    fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>>;

    /// Something that looks after the files from a thread of its own; `None` if this engine has none.
    fn guard(&self) -> Result<Option<Box<dyn Guard>>> {
        Ok(None)
    }

    /// Every lease with the uptime it has spent unattended, ordered by mesh and session, as of one moment.
    /// Changes nothing.
    fn leases(&mut self) -> Result<Vec<StoredLease>>;

    /// What is wrong with the data, one finding in words each; empty when it is sound. Reads everything, so it
    /// takes as long as the store is large. Changes nothing.
    fn check(&mut self) -> Result<Vec<String>>;
}

/// Reads messages. Blocking; one method is one consistent view of what is committed.
pub trait StoreReader: Send {
    /// Carries out `read` in `mesh`. An entry whose bytes do not match their checksum is never given: a page
    /// names it, everything else leaves it out, and [`Store::check`] finds it. What is given is durable, but for entries
    /// that a failed sync left in doubt; what else it left in doubt is [`StoreError::Unavailable`].
    fn read(&mut self, mesh: &MeshName, read: &StoreRead) -> Result<StoreFound>;

    /// As [`Store::check`], without keeping the writer from its work.
    fn check(&mut self) -> Result<Vec<String>>;

    /// Goes on with a check, for as long as a few hundred rows take; `true` when it is over. Each slice is one consistent view;
    /// between them the store may change, which is no finding. Unlike [`Store::check`] it looks at rows only, not at the pages of
    /// indexes.
    fn check_slice(&mut self, checking: &mut Checking) -> Result<bool>;
}

/// Waits for the disk. Blocking.
pub trait Syncer: Send {
    /// Makes durable all that was staged before this began. An error poisons the store: what was staged since the last
    /// sync may be found by the next start or not.
    fn sync(&mut self) -> Result<()>;
}

/// Looks after the files of a store.
pub trait Guard: Send {
    /// Makes the high-water mark durable, and sees whether the files are still what they were. To be called at least once
    /// a second. [`StoreError::Poisoned`]: a file was removed, replaced or written over, and nothing is acknowledged any
    /// more; called again, it keeps the mark. Any other error says that the mark is old: try again later.
    fn look(&mut self) -> Result<()>;
}

/// Moves what was committed to where it stays, so that the writer need not.
pub trait Checkpointer: Send {
    /// Does what there is to do, which may be nothing, and returns. An error loses nothing: try again later.
    fn run(&mut self) -> Result<Checkpoint>;
}

/// What a checkpoint came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Pages in the write-ahead log.
    pub log_pages: u64,
    /// How many of them are where they stay.
    pub moved_pages: u64,
}
