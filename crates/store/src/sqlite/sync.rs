//! When what was committed is on the disk.
//!
//! SQLite writes a transaction to the write-ahead log and does not wait for the disk (`synchronous=NORMAL`); whoever is
//! to be told that it is durable waits for [`Log::sync`]. So a sync can run beside the next transaction, and one sync is
//! enough for all that was committed before it began.
//!
//! In between, readers see what a loss of power could still take. They look up, after they have read, what was begun by
//! then, and wait until that is synced ([`Log::settle`]): nobody is told of anything that is not on the disk. What was begun
//! and not synced when a sync failed stays in doubt until the next start; readers are told that too.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use super::fault::Fault;
use crate::{Result, StoreError, Syncer};

/// The file of the write-ahead log, and how much of it is on the disk.
#[derive(Debug)]
pub(super) struct Log {
    /// Held while it is synced: the system tells of an error once, and whoever comes next must know of it.
    file: Mutex<File>,
    /// Transactions that were begun: what a reader sees is of one of them.
    begun: AtomicU64,
    /// Of those, the ones that are over: what a sync that begins now covers.
    over: AtomicU64,
    /// Of those, the ones that a sync has covered.
    synced: Mutex<u64>,
    changed: Condvar,
    /// Readers that wait for a sync.
    readers: AtomicU64,
    /// Why the store writes no more, once it does not.
    poison: OnceLock<String>,
}

impl Log {
    /// The log of the database at `path`, which is open.
    pub(super) fn open(path: &Path) -> Result<Log, Fault> {
        let unavailable = |error| StoreError::Unavailable(format!("its write-ahead log: {error}"));
        let file = File::options().write(true).open(path).map_err(unavailable)?;
        Ok(Log {
            file: Mutex::new(file),
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            synced: Mutex::new(0),
            changed: Condvar::new(),
            readers: AtomicU64::new(0),
            poison: OnceLock::new(),
        })
    }

    /// A transaction begins. Before its first write, so that no reader sees it that does not count it.
    pub(super) fn begin(&self) -> Begun<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Begun(self)
    }

    /// Waits for the disk. When it returns, every transaction that was over before is durable, unless it failed.
    pub(super) fn sync(&self) -> Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Never again after one has failed.
        self.sound()?;
        let over = self.over.load(Ordering::SeqCst);
        if let Err(error) = file.sync_data() {
            return Err(self.poison(format!("a sync of the write-ahead log failed: {error}")));
        }
        drop(file);
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        *synced = over.max(*synced);
        if self.readers.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until what a reader may have seen is on the disk; `false` if that is in doubt for good.
    pub(super) fn settle(&self) -> bool {
        let begun = self.begun.load(Ordering::SeqCst);
        self.readers.fetch_add(1, Ordering::SeqCst);
        let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |synced: &mut u64| *synced < begun && self.poison.get().is_none();
        let synced = self.changed.wait_while(synced, waits).unwrap_or_else(PoisonError::into_inner);
        self.readers.fetch_sub(1, Ordering::SeqCst);
        *synced >= begun
    }

    /// Whether a reader would not have to wait.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        *self.synced.lock().unwrap() >= self.begun.load(Ordering::SeqCst)
    }

    /// Returns when a reader waits.
    #[cfg(test)]
    pub(super) fn until_awaited(&self) {
        while self.readers.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    /// Nothing is written any more, for this reason; the first one counts.
    pub(super) fn poison(&self, cause: String) -> StoreError {
        // Under the lock, so that nobody begins to wait between the two.
        let _synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = self.poison.get_or_init(|| cause).clone();
        self.changed.notify_all();
        StoreError::Poisoned(cause)
    }

    /// Whether the store still writes, else why not.
    pub(super) fn sound(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |cause| Err(StoreError::Poisoned(cause.clone())))
    }
}

/// A transaction that is under way; dropped when it is over, with or without success.
pub(super) struct Begun<'a>(&'a Log);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
        if std::thread::panicking() {
            // No sync follows, and readers must not wait for one.
            self.0.poison("a transaction did not come to its end".to_owned());
        }
    }
}

/// A hand on the log for another thread.
#[derive(Debug)]
pub(super) struct SqliteSyncer(pub(super) std::sync::Arc<Log>);

impl Syncer for SqliteSyncer {
    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }
}
