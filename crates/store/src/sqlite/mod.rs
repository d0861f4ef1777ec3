//! The default engine: one SQLite file that anyone can inspect.
//!
//! What it is for: everything a broker on one machine keeps, in `tenure.db` of its data directory.
//!
//! What it promises: a method that returned is on the disk (a write-ahead log, and one sync of it for each transaction;
//! what is only staged waits for a sync on another thread, see `sync`). A full disk refuses writes until there is room and loses nothing. An I/O error in a write
//! poisons the store: it never writes again in this process, and goes on reading. A damaged file is an error,
//! never a panic. A second process is told [`StoreError::Locked`].
//!
//! What it never does: retry a sync, repair a file, or open one that a newer program wrote.
//!
//! The write-ahead log goes back into the main file at every start, and whenever it has grown: `checkpoint` says
//! who does that.
//!
//! Where to read next: `schema`, `messages_schema` and `access_schema` for the tables, `accept` for the write that matters most,
//! `fault` for which error means what, `dir` for the files.

mod accept;
mod access;
mod access_schema;
mod apply;
mod cache;
mod call;
mod check;
mod check_messages;
mod checkpoint;
mod clear;
mod damaged;
mod dead;
mod dir;
mod entry;
mod evacuate;
mod expired;
mod fates;
mod fault;
mod group;
mod identity;
mod lease;
mod lease_end;
mod lost;
#[cfg(test)]
mod lost_tests;
#[cfg(test)]
mod message_tests;
mod messages_schema;
mod place;
#[cfg(test)]
#[cfg(unix)]
mod poison_tests;
mod prune;
mod read;
mod restore;
mod run;
mod schema;
mod service;
mod session;
mod sweep;
mod sync;
#[cfg(test)]
mod tests;
mod topic;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tenure_kit::durable::Ledger;
use tenure_mesh::access::RestoredAccess;
use tenure_mesh::store::record::{RestoredMessages, StoreOutcome};
use tenure_proto::MeshName;

use crate::durable::{MarkFile, ledger};
use crate::{
    Checkpointer, Guard, Identity, Result, Run, Store, StoreError, StoreReader, StoredLease, Syncer, Write,
};
use cache::Cache;
use checkpoint::{Gauge, SqliteCheckpointer};
use dir::DataDir;
use fault::Fault;
use read::SqliteReader;
use sync::{Files, Log, SqliteGuard, SqliteSyncer};

pub use checkpoint::{LOG_PAGES, LOG_PAGES_HARD, LOG_PAGES_SOFT};
pub use lost::AcceptedLoss;

/// Bytes of a page. A commit writes each page that it changed with two system calls, and a balanced index makes SQLite look
/// through its whole list of pages at the commit: twice the page is half of both, for a few microseconds of a lone send.
const PAGE_BYTES: u32 = 8 * 1024;
/// KiB of pages that the writer keeps in memory: 64 MB.
const CACHE_KIB: i64 = 64 * 1024;
/// Bytes that the file of the write-ahead log is cut back to once it is copied, should it have grown past them.
pub const WAL_FILE_BYTES: u32 = 128 * 1024 * 1024;
/// How long a write waits for somebody's database shell to let go of the file before it is `Unavailable`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Statements that stay prepared; more than this crate has.
const PREPARED_STATEMENTS: usize = 128;

/// A store in a directory.
pub struct Sqlite {
    /// Declared before the directory: the file is closed before its lock is let go.
    connection: Connection,
    log: Arc<Log>,
    cache: Cache,
    gauge: Arc<Gauge>,
    /// As of the last transaction.
    ledger: Ledger,
    files: Files,
    dir: Arc<DataDir>,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite")
            .field("dir", &self.dir.path())
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Opens the store in `dir`, or makes both (the directory for its owner alone), and brings an older schema
    /// up to date. Holds the directory until dropped.
    ///
    /// Fails with [`StoreError::Locked`] if another process, or another store of this one, holds it; with
    /// [`StoreError::Newer`], [`StoreError::Corrupt`] or [`StoreError::Lost`] if it cannot be understood or has lost
    /// something, and then leaves it as it is; with [`StoreError::Unavailable`] for anything else.
    pub fn open(dir: &Path) -> Result<Sqlite> {
        Sqlite::open_held(DataDir::hold(dir)?)
    }

    fn open_held(dir: DataDir) -> Result<Sqlite> {
        let dir = Arc::new(dir);
        let mark = lost::mark(&dir)?;
        let (connection, ledger) = match connect(&dir, &mark).map_err(Fault::reading) {
            // A full disk: there is some room for this.
            Err(StoreError::Unavailable(_)) if dir.release_reserve() => {
                connect(&dir, &mark).map_err(Fault::reading)?
            }
            outcome => {
                let opened = outcome?;
                dir.make_reserve();
                opened
            }
        };
        let log = Arc::new(Log::open(&dir.log(), ledger, mark).map_err(Fault::reading)?);
        let (cache, gauge) = (Cache::default(), Arc::new(Gauge::new(&dir)));
        let files = Files::new(&dir, &log, &gauge);
        let store = Sqlite { connection, log, cache, gauge, ledger, files, dir };
        // One that cannot be written now is tried again by the guard.
        let _ = store.log.sync_mark();
        Ok(store)
    }

    /// Runs `work` as one transaction that may write; commits and syncs if it succeeds, else undoes it all.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>, &mut Cache) -> Result<T, Fault>) -> Result<T> {
        let value = self.commit(work)?;
        self.log.sync()?;
        Ok(value)
    }

    /// As [`Sqlite::write`], without the sync.
    fn commit<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>, &mut Cache) -> Result<T, Fault>,
    ) -> Result<T> {
        self.log.sound()?;
        self.log.make_way()?;
        let mut begun = self.log.begin();
        let marked = self.log.is_marked();
        let mut ledger = Ledger { writes: self.ledger.writes + 1, ..self.ledger };
        let outcome = transact(&mut self.connection, |transaction| {
            let value = work(transaction, &mut self.cache)?;
            ledger.messages += std::mem::take(&mut self.cache.accepted);
            lost::put_ledger(transaction, &ledger, marked)?;
            Ok(value)
        });
        if outcome.is_ok() {
            self.ledger = ledger;
            self.log.committed(ledger);
        }
        // Also one that failed may have begun the log anew.
        let found = checkpoint::look(&self.connection).ok();
        begun.left(found.map(|found| found.log_pages));
        drop(begun);
        let fault = match outcome {
            Ok(value) => {
                // An error of the copy is not the commit's; one that the disk made is met again by the next.
                let copies =
                    |found| checkpoint::after_commit(found, &self.connection, &self.gauge, &self.log);
                let _ = found.map(copies);
                return Ok(value);
            }
            Err(fault) => fault,
        };
        // What it remembered was true in a transaction that is undone.
        self.cache.clear();
        // A transaction that cannot even be undone must not swallow the next one.
        let stuck = !self.connection.is_autocommit();
        let error = if stuck {
            StoreError::Poisoned("a transaction could not be undone".to_owned())
        } else {
            fault.writing()
        };
        match error {
            StoreError::Poisoned(cause) => Err(self.log.poison(cause)),
            // Readers wait for a sync of whatever was begun.
            error => self.log.sync().and(Err(error)),
        }
    }

    /// Runs `work` on one consistent view of the data.
    fn read<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>) -> Result<T> {
        let view = self.connection.transaction().map_err(Fault::from);
        view.and_then(|transaction| work(&transaction)).map_err(Fault::reading)
    }
}

impl Drop for Sqlite {
    /// Copies the log into the main file, which is then all there is; unless the store has stopped writing, or its files are
    /// not the ones at their places, or not what was written to them.
    fn drop(&mut self) {
        let _ = self.files.look(true);
        self.log.close();
        if self.log.sync().is_ok() {
            // Readers and the checkpointer may still be open, so closing would not do it.
            let _ = settle_log(&self.connection);
            let _ = self.log.sync_mark();
        } else {
            // Closing would copy the log. Nothing else can be done if this fails, and closing is still safe.
            let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            self.files.restate_mark();
        }
    }
}

/// A transaction that may write, around `work`. Dropping it uncommitted undoes it, unless SQLite already has.
fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

fn connect(dir: &DataDir, mark: &MarkFile) -> Result<(Connection, Ledger), Fault> {
    // Before anything changes the file: what a newer program wrote, or what has lost something, stays untouched.
    let mut connection = lost::examine(dir, mark.state())?;

    // Only a file that is made now takes it.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let why = format!("its file system has no write-ahead log (journal mode {mode})");
        return Err(StoreError::Unavailable(why).into());
    }
    durable(&connection)?;
    connection.pragma_update(None, "journal_size_limit", WAL_FILE_BYTES)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    // Damage is found when a page is read, not when it is walked into; a damaged schema runs nothing.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;

    // Without room, or while another program reads the log, what is in it stays there; unless a sync of it had failed: then it
    // must be written anew.
    let must = mark.mark().is_some_and(|mark| mark.poisoned);
    match settle_log(&connection) {
        Err(fault) if fault.is_full() && !must => {}
        Ok(false) if must => {
            let why = "a write to its log failed, and another program keeps the log from being copied; close the program that reads it";
            return Err(StoreError::Unavailable(why.to_owned()).into());
        }
        outcome => _ = outcome?,
    }
    if schema::migrate(&mut connection)? {
        // So that a log which is lost takes no tables with it. Without room they stay in the log.
        let _ = settle_log(&connection);
    }
    let ledger = ledger(&connection)?.ok_or_else(|| Fault::corrupt("its ledger is missing"))?;
    // From here on commits wait for `sync`, and copies of the log still for the disk.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok((connection, ledger))
}

/// What makes a commit, and a copy of the log, durable; and who copies: never SQLite by itself.
fn durable(connection: &Connection) -> Result<(), Fault> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Where a plain sync stops at the drive's cache, ask for the real one; elsewhere these do nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(())
}

/// Copies what the last process left in the log into the main file, and syncs that. `false` if another program that reads the
/// log keeps it from that.
///
/// If that process died of a failed sync, the log as it reads now may differ from the log on the disk: the
/// system shows pages that it could not write, and no longer tries to. Syncing the log again would say nothing;
/// writing its content anew does.
fn settle_log(connection: &Connection) -> Result<bool, Fault> {
    let busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(!busy)
}

impl Store for Sqlite {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn identity(&mut self, fresh: &Identity) -> Result<Identity> {
        match self.read(|transaction| identity::get(transaction))? {
            Some(identity) => Ok(identity),
            None => {
                self.write(|transaction, _| identity::insert(transaction, fresh))?;
                Ok(fresh.clone())
            }
        }
    }

    fn begin_run(&mut self, now_wall_ms: u64) -> Result<Run> {
        match self.write(|transaction, _| run::begin(transaction, now_wall_ms)) {
            // A full disk must not keep a broker from starting: what it has can still be read.
            Err(StoreError::Unavailable(_)) if self.dir.release_reserve() => {
                self.write(|transaction, _| run::begin(transaction, now_wall_ms))
            }
            outcome => outcome,
        }
    }

    fn apply(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
        if batch.is_empty() {
            return self.log.sound().map(|()| Vec::new());
        }
        self.write(|transaction, cache| apply::all(transaction, cache, batch).map_err(Fault::in_a_run))
    }

    fn stage(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
        if batch.is_empty() {
            return self.log.sound().map(|()| Vec::new());
        }
        self.commit(|transaction, cache| apply::all(transaction, cache, batch).map_err(Fault::in_a_run))
    }

    fn look_closely(&mut self) -> Result<()> {
        self.files.look(true)
    }

    fn syncer(&self) -> Result<Option<Box<dyn Syncer>>> {
        Ok(Some(Box::new(SqliteSyncer(self.log.clone()))))
    }

    fn restore(&mut self, mesh: &MeshName) -> Result<RestoredMessages> {
        self.read(|transaction| restore::restore(transaction, mesh))
    }

    fn meshes(&mut self) -> Result<Vec<MeshName>> {
        self.read(|transaction| access::meshes(transaction))
    }

    fn access(&mut self, mesh: &MeshName) -> Result<RestoredAccess> {
        self.read(|transaction| access::restore(transaction, mesh))
    }

    fn reader(&self) -> Result<Box<dyn StoreReader>> {
        Ok(Box::new(SqliteReader::open(&self.dir, &self.log)?))
    }

    fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>> {
        Ok(Some(Box::new(SqliteCheckpointer::open(&self.dir, &self.gauge, &self.log)?)))
    }

    fn guard(&self) -> Result<Option<Box<dyn Guard>>> {
        Ok(Some(Box::new(SqliteGuard(Files::new(&self.dir, &self.log, &self.gauge)))))
    }

    fn leases(&mut self) -> Result<Vec<StoredLease>> {
        self.read(|transaction| lease::all(transaction))
    }

    fn check(&mut self) -> Result<Vec<String>> {
        self.read(|transaction| check::findings(transaction))
    }
}

/// A number as SQLite holds it: 63 bits. Larger ones do not occur; they would be kept as the largest.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
