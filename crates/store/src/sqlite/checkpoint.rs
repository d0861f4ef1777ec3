//! Copying the write-ahead log back into the main file, off the writer's thread.
//!
//! A [`Checkpointer`] has its own connection and copies while the writer goes on. But only when every page of
//! the log is copied does the writer begin it anew, and under constant load there is always one more; so past
//! [`LOG_PAGES_SOFT`] the writer copies the rest itself as soon as it is little and nobody else is copying, and
//! past [`LOG_PAGES_HARD`] whatever it is, after whoever is. Without a checkpointer the writer does it all. A reader that looks at one moment for long
//! holds the log open, and then it grows meanwhile.
//!
//! A copy that finds no room loses nothing: the log keeps its content, and the next attempt goes on. One that the disk fails
//! poisons the store as a failed commit does: some of what an earlier copy wrote may be lost with it, of which SQLite knows
//! nothing, and it would begin the log anew over the only good copy. The next start copies all of it again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::dir::DataDir;
use super::fault::Fault;
use super::sync::Log;
use super::{BUSY_TIMEOUT, durable};
use crate::durable::Stamped;
use crate::{Checkpoint, Checkpointer, Result, StoreError};

/// Pages in the log before they are worth copying: 16 MB, or a half of that in a file of an older program, whose pages are
/// half as large.
pub const LOG_PAGES: u64 = 2_000;
/// Pages in the log from which on the writer copies what is left of it when that is little: 64 MB.
pub const LOG_PAGES_SOFT: u64 = 8_000;
/// Pages in the log from which on the writer copies what is left of it whatever that is: 256 MB.
pub const LOG_PAGES_HARD: u64 = 32_000;
/// Pages that the writer copies in a few milliseconds.
const LITTLE: u64 = 500;
/// Times that a checkpointer copies in one go, to leave little: each time there is less, as long as copying is faster than
/// writing.
const PASSES: u32 = 6;

/// What the writer and its checkpointer share.
#[derive(Debug)]
pub(super) struct Gauge {
    /// Whether there is a checkpointer.
    pub(super) attached: AtomicBool,
    /// The main file, which nothing but a copy changes. Held by whoever copies.
    turn: Mutex<Stamped>,
}

impl Gauge {
    /// Of a store that has just been opened.
    pub(super) fn new(dir: &DataDir) -> Gauge {
        Gauge { attached: AtomicBool::new(false), turn: Mutex::new(Stamped::new(dir.database())) }
    }

    /// Whether nobody else has written to the main file. While somebody copies that cannot be told: `patient` waits until
    /// then, others are told nothing.
    pub(super) fn look(&self, patient: bool) -> Result<(), String> {
        match self.turn.try_lock() {
            Ok(main) => main.look(),
            Err(_) if patient => self.turn.lock().unwrap_or_else(PoisonError::into_inner).look(),
            Err(_) => Ok(()),
        }
    }
}

/// What the writer does after a commit, with the log as it then is.
pub(super) fn after_commit(
    found: Checkpoint,
    connection: &Connection,
    gauge: &Gauge,
    log: &Log,
) -> Result<()> {
    let Checkpoint { log_pages, moved_pages } = found;
    let left = log_pages.saturating_sub(moved_pages);
    let attached = gauge.attached.load(Ordering::Relaxed);
    if left == 0 || log_pages < LOG_PAGES || (attached && log_pages < LOG_PAGES_SOFT) {
        return Ok(());
    }
    let mut main = if attached && log_pages < LOG_PAGES_HARD {
        // Little is left, and nobody is at it who could be slow.
        let Ok(turn) = gauge.turn.try_lock() else { return Ok(()) };
        if left > LITTLE {
            return Ok(());
        }
        turn
    } else {
        gauge.turn.lock().unwrap_or_else(PoisonError::into_inner)
    };
    copy(connection, log, &mut main)
}

/// How much is in the log, and how much of that is copied.
pub(super) fn look(connection: &Connection) -> Result<Checkpoint> {
    checkpoint(connection, "PRAGMA wal_checkpoint(NOOP)").map_err(Fault::reading)
}

/// Copies what can be, unless the store has stopped writing: then nobody copies either. Nor is a log copied that is not the
/// one that was written, or into a file that is not.
fn copy(connection: &Connection, log: &Log, main: &mut Stamped) -> Result<()> {
    log.sound()?;
    if let Err(what) = main.look().and_then(|()| log.look()) {
        // A store that is being closed copies its log itself.
        return if log.is_closing() { Ok(()) } else { Err(log.poison_overwritten(what)) };
    }
    let copied = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)").map_err(Fault::writing);
    main.take();
    match copied {
        Ok(_) => Ok(()),
        Err(StoreError::Poisoned(cause)) => Err(log.poison(cause)),
        Err(error) => Err(error),
    }
}

fn checkpoint(connection: &Connection, pragma: &str) -> Result<Checkpoint, Fault> {
    let (log, moved): (i64, i64) =
        connection.prepare_cached(pragma)?.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    // Both are -1 when there is no log yet.
    let pages = |count| u64::try_from(count).unwrap_or(0);
    Ok(Checkpoint { log_pages: pages(log), moved_pages: pages(moved) })
}

/// The checkpointer of a store in a directory, which it holds as the store does.
pub(super) struct SqliteCheckpointer {
    /// Declared before the directory, as in the store.
    connection: Connection,
    gauge: Arc<Gauge>,
    log: Arc<Log>,
    _dir: Arc<DataDir>,
}

impl fmt::Debug for SqliteCheckpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteCheckpointer").field("gauge", &self.gauge).finish_non_exhaustive()
    }
}

impl SqliteCheckpointer {
    /// Opens a checkpointer beside the store that holds `dir`.
    pub(super) fn open(dir: &Arc<DataDir>, gauge: &Arc<Gauge>, log: &Arc<Log>) -> Result<SqliteCheckpointer> {
        let open = || -> Result<Connection, Fault> {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(dir.database(), flags)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            durable(&connection)?;
            // The store closes the file; if it stopped writing, nobody must.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Ok(connection)
        };
        let connection = open().map_err(Fault::reading)?;
        gauge.attached.store(true, Ordering::Relaxed);
        Ok(SqliteCheckpointer { connection, gauge: gauge.clone(), log: log.clone(), _dir: dir.clone() })
    }
}

impl Drop for SqliteCheckpointer {
    fn drop(&mut self) {
        self.gauge.attached.store(false, Ordering::Relaxed);
    }
}

impl Checkpointer for SqliteCheckpointer {
    fn run(&mut self) -> Result<Checkpoint> {
        self.log.sound()?;
        for _ in 0..PASSES {
            let found = look(&self.connection)?;
            // From there on the writer waits for little to be left.
            let enough = if found.log_pages < LOG_PAGES_SOFT { LOG_PAGES } else { LITTLE };
            if found.log_pages.saturating_sub(found.moved_pages) < enough {
                return Ok(found);
            }
            let mut main = self.gauge.turn.lock().unwrap_or_else(PoisonError::into_inner);
            copy(&self.connection, &self.log, &mut main)?;
        }
        look(&self.connection)
    }
}
