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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use tenure_kit::durable::wal::UNSYNCED_TRANSACTIONS;
use tenure_kit::durable::{Ledger, Mark};

use super::checkpoint::Gauge;
use super::dir::DataDir;
use super::fault::Fault;
use crate::durable::{LogWatch, MarkFile, Watch, is_removed};
use crate::{Guard, Result, StoreError, Syncer};

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
    /// Whether somebody else wrote over the database or its log.
    overwritten: AtomicBool,
    /// The store is being closed, which removes files of its own.
    closing: AtomicBool,
    /// The ledger as of the last transaction that is over.
    ledger: Mutex<Ledger>,
    /// The ledger as of the last sync, outside of the database; and why the last try to write it failed.
    mark: Mutex<(MarkFile, Option<String>)>,
    /// Whether a mark is on the disk.
    marked: AtomicBool,
    /// What is in the log. Held while a transaction writes to it.
    tail: Mutex<Tail>,
}

/// What is in the log, and what was there when somebody looked last.
#[derive(Debug)]
struct Tail {
    watch: LogWatch,
    /// Frames that the writer has in it; nothing when SQLite could not say.
    frames: Option<u64>,
}

impl Log {
    /// The log at `path` of a database which is open and has come as far as `ledger` says. All of it is on the disk.
    pub(super) fn open(path: &Path, ledger: Ledger, mark: MarkFile) -> Result<Log, Fault> {
        let unavailable = |error| StoreError::Unavailable(format!("its write-ahead log: {error}"));
        let file = File::options().write(true).open(path).map_err(unavailable)?;
        // What a start without room left in it is known with the first commit.
        let tail = Tail { watch: LogWatch::open(path).map_err(unavailable)?, frames: None };
        let log = Log {
            file: Mutex::new(file),
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            synced: Mutex::new(0),
            changed: Condvar::new(),
            readers: AtomicU64::new(0),
            poison: OnceLock::new(),
            overwritten: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ledger: Mutex::new(ledger),
            mark: Mutex::new((mark, None)),
            marked: AtomicBool::new(false),
            tail: Mutex::new(tail),
        };
        log.set_mark(ledger);
        Ok(log)
    }

    /// The store is about to be closed: files that go from now on are no surprise.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Whether a mark is on the disk.
    pub(super) fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// Whether nobody but the writer has changed the log, else what became of it. Waits for a transaction that is under way.
    pub(super) fn look(&self) -> Result<(), String> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let Tail { watch, frames } = &mut *tail;
        frames.map_or(Ok(()), |frames| watch.look(frames))
    }

    /// The same of every byte of it.
    fn read(&self) -> Result<(), String> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let Tail { watch, frames } = &mut *tail;
        frames.map_or(Ok(()), |frames| watch.read(frames))
    }

    /// Whether nobody else has written to the mark, else what became of it.
    fn look_at_mark(&self) -> Result<(), String> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).0.look()
    }

    /// The store writes no more, and the next start must find how far it had come: whoever wrote over the files may have
    /// written over the mark too, or removed it, then or later. On the disk when this returns, unless that failed: whoever poisoned
    /// the store has not waited for it. Without a change since the last time there is nothing to wait for. A mark that is at the
    /// place of the own one is left alone unless the directory is still `ours`.
    fn restate_mark(&self, ours: bool) {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        mark.1 = mark.0.restate(ours).err().map(|error| error.to_string());
        drop(mark);
        let _ = self.sync_mark();
    }

    /// A transaction is over that took the store as far as `ledger` says.
    pub(super) fn committed(&self, ledger: Ledger) {
        *self.ledger.lock().unwrap_or_else(PoisonError::into_inner) = ledger;
    }

    /// Syncs if so much is unsynced that no other transaction may begin: what a loss of power takes is bounded, and can so
    /// be told from damage.
    pub(super) fn make_way(&self) -> Result<()> {
        let synced = *self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.load(Ordering::SeqCst).saturating_sub(synced) >= UNSYNCED_TRANSACTIONS {
            self.sync()?;
        }
        Ok(())
    }

    /// Notes outside of the database what is on the disk. A mark that cannot be written is older than it could be, which
    /// is safe; the guard tells.
    fn set_mark(&self, ledger: Ledger) {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let (poisoned, overwritten) = (self.poison.get().is_some(), self.overwritten.load(Ordering::SeqCst));
        // Two syncs may come here in either order.
        let older = mark.0.mark().is_some_and(|mark| {
            mark.ledger.store == ledger.store
                && mark.ledger.writes >= ledger.writes
                && (mark.poisoned, mark.overwritten) == (poisoned, overwritten)
        });
        if !older {
            mark.1 =
                mark.0.write(Mark { ledger, poisoned, overwritten }).err().map(|error| error.to_string());
        }
    }

    /// Makes the mark durable.
    pub(super) fn sync_mark(&self) -> Result<()> {
        let unavailable = |error: String| StoreError::Unavailable(format!("its high-water mark: {error}"));
        let handle = {
            let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(error) = &mark.1 {
                return Err(unavailable(error.clone()));
            }
            mark.0.unsynced().map_err(|error| unavailable(error.to_string()))?
        };
        handle.map_or(Ok(()), |file| file.sync_data()).map_err(|error| unavailable(error.to_string()))?;
        self.marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the mark as it was written last is on the disk.
    #[cfg(test)]
    pub(super) fn is_mark_synced(&self) -> bool {
        self.mark.lock().unwrap().0.is_synced()
    }

    /// A transaction begins. Before its first write, so that no reader sees it that does not count it.
    pub(super) fn begin(&self) -> Begun<'_> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.fetch_add(1, Ordering::SeqCst);
        Begun { log: self, tail }
    }

    /// Waits for the disk. When it returns, every transaction that was over before is durable, unless it failed.
    pub(super) fn sync(&self) -> Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Never again after one has failed.
        self.sound()?;
        let over = self.over.load(Ordering::SeqCst);
        let ledger = *self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.sync_data() {
            return Err(self.poison(format!("a sync of the write-ahead log failed: {error}")));
        }
        if is_removed(&file) {
            return Err(self.poison("the write-ahead log was removed while it was in use".to_owned()));
        }
        drop(file);
        self.set_mark(ledger);
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
        let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = self.poison.get_or_init(|| cause).clone();
        self.changed.notify_all();
        drop(synced);
        // The next start must not trust what the system shows of the log.
        let known = self.mark.lock().unwrap_or_else(PoisonError::into_inner).0.mark();
        known.into_iter().for_each(|mark| self.set_mark(mark.ledger));
        StoreError::Poisoned(cause)
    }

    /// As [`Log::poison`], because somebody else wrote over the database or its log: the next start must not trust them,
    /// even if they read.
    pub(super) fn poison_overwritten(&self, what: String) -> StoreError {
        self.overwritten.store(true, Ordering::SeqCst);
        self.poison(what)
    }

    /// Whether the store still writes, else why not.
    pub(super) fn sound(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |cause| Err(StoreError::Poisoned(cause.clone())))
    }
}

/// A transaction that is under way; dropped when it is over, with or without success.
pub(super) struct Begun<'a> {
    log: &'a Log,
    tail: MutexGuard<'a, Tail>,
}

impl Begun<'_> {
    /// So many frames are now in the log, if SQLite can say.
    pub(super) fn left(&mut self, frames: Option<u64>) {
        self.tail.frames = frames;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.log.over.fetch_add(1, Ordering::SeqCst);
        if std::thread::panicking() {
            // No sync follows, and readers must not wait for one.
            self.log.poison("a transaction did not come to its end".to_owned());
        }
    }
}

/// A hand on the log for another thread.
#[derive(Debug)]
pub(super) struct SqliteSyncer(pub(super) Arc<Log>);

impl Syncer for SqliteSyncer {
    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }
}

/// The files of an open store, which are where they were, and which nobody else writes to.
#[derive(Debug)]
pub(super) struct Files {
    log: Arc<Log>,
    gauge: Arc<Gauge>,
    watch: Watch,
    /// The file that says whose the directory is.
    lock: Watch,
}

impl Files {
    /// The files of the store in `dir`, as they are now.
    pub(super) fn new(dir: &DataDir, log: &Arc<Log>, gauge: &Arc<Gauge>) -> Files {
        let (log, gauge) = (Arc::clone(log), Arc::clone(gauge));
        Files { log, gauge, watch: dir.watch(), lock: dir.watch_lock() }
    }

    /// The store writes no more: the next start finds how far it had come.
    pub(super) fn restate_mark(&self) {
        self.log.restate_mark(self.lock.look().is_ok());
    }

    /// Whether that is so; else the store is poisoned, unless it is being closed. What the store does itself is no difference:
    /// each file is looked at while nobody of ours writes to it; `patient` waits for that also where it can take long, and
    /// reads the whole log.
    pub(super) fn look(&self, patient: bool) -> Result<()> {
        let log = || if patient { self.log.read() } else { self.log.look() };
        let content = self.gauge.look(patient).and_then(|()| log());
        let place = self.watch.look();
        let mark = self.log.look_at_mark();
        if self.log.is_closing() {
            return Ok(());
        }
        place.map_err(|what| self.log.poison(what))?;
        content.map_err(|what| self.log.poison_overwritten(what))?;
        mark.map_err(|what| self.log.poison(what))
    }
}

/// Looks after the files of a store: the mark, and whether each is still what it was.
#[derive(Debug)]
pub(super) struct SqliteGuard(pub(super) Files);

impl Guard for SqliteGuard {
    fn look(&mut self) -> Result<()> {
        let log = &self.0.log;
        let looked = log.sound().and_then(|()| self.0.look(false));
        if looked.is_err() && !log.is_closing() {
            // At once: the process may be killed before it looks again.
            self.0.restate_mark();
        }
        looked.and_then(|()| log.sync_mark())
    }
}
