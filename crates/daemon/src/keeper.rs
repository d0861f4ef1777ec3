//! What watches over a file that holds promises: it counts transactions and rows, keeps the count outside of the file too
//! (the high-water mark), and notices files that are removed or replaced. What that means at a start is
//! `tenure_core::durable`'s to say.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;
use tenure_core::durable::{Evidence, Ledger, Mark, judge};
use tenure_store::durable::{MarkFile, TICK, Watch, beside, ledger, log_state, of_row};

use crate::db::DbError;

/// The ledger of one file, its mark, and its place in the file system.
#[derive(Debug)]
pub(crate) struct Keeper {
    mark: MarkFile,
    watch: Watch,
    looked: Instant,
    /// Whether the last mark could be kept.
    sound: bool,
}

/// What was beside a file before it was opened.
pub(crate) struct Beside {
    mark: MarkFile,
    evidence: Evidence,
}

impl Beside {
    /// Looks at the mark and the log of the file at `path`. To be asked before SQLite opens it.
    pub(crate) fn look(path: &Path) -> Result<Beside, DbError> {
        let cannot =
            |error: std::io::Error| DbError::Unavailable(format!("look at {}: {error}", path.display()));
        let mark = MarkFile::open(&path.with_extension("mark")).map_err(cannot)?;
        let evidence = Evidence { mark: mark.mark(), ledger: None, log: log_state(path).map_err(cannot)? };
        let empty = std::fs::metadata(path).map_or(true, |file| file.len() <= 1);
        let found = Beside { mark, evidence };
        if empty && found.evidence.mark.is_some() {
            found.refuse(path)?;
        }
        Ok(found)
    }

    /// Whether the file that is now open has all that was promised.
    pub(crate) fn judge(&mut self, connection: &Connection, path: &Path) -> Result<(), DbError> {
        self.evidence.ledger = ledger(connection)?;
        self.refuse(path)
    }

    fn refuse(&self, path: &Path) -> Result<(), DbError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        judge(&self.evidence)
            .map_err(|loss| DbError::Corrupt(format!("{name} lost rows that were accepted: {loss}")))
    }

    /// Watches over the file from now on. It is open, and all that is in it is on the disk.
    pub(crate) fn keep(self, connection: &Connection, path: &Path) -> Result<Keeper, DbError> {
        let missing = || DbError::Corrupt("its ledger is missing".to_owned());
        let ledger = ledger(connection)?.ok_or_else(missing)?;
        let mut keeper =
            Keeper { mark: self.mark, watch: Watch::default(), looked: Instant::now(), sound: true };
        keeper.committed(ledger);
        keeper.sync();
        let paths =
            [path.to_owned(), beside(path, "-wal"), beside(path, "-shm"), path.with_extension("mark")];
        keeper.watch = Watch::new(paths);
        Ok(keeper)
    }
}

impl Keeper {
    /// Counts the transaction that is open, and the rows that were ever accepted.
    pub(crate) fn count(connection: &Connection) -> Result<Ledger, DbError> {
        let sql = "UPDATE ledger SET writes = writes + 1, \
                   messages = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0) \
                   WHERE one = 1 RETURNING store, writes, messages";
        Ok(connection.prepare_cached(sql)?.query_row([], of_row)?)
    }

    /// A transaction is on the disk.
    pub(crate) fn committed(&mut self, ledger: Ledger) {
        let kept = self.mark.write(Mark { ledger, poisoned: false });
        self.note(kept);
    }

    /// Makes the mark durable and looks at the files, unless it did so a moment ago.
    pub(crate) fn tick(&mut self) -> Result<(), DbError> {
        if self.looked.elapsed() < TICK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.watch.look().map_err(DbError::Poisoned)?;
        self.sync();
        Ok(())
    }

    /// Makes the mark durable.
    pub(crate) fn sync(&mut self) {
        let synced = self.mark.sync();
        self.note(synced);
    }

    /// Whether every file is where it was.
    pub(crate) fn is_in_place(&self) -> bool {
        self.watch.look().is_ok()
    }

    /// A mark that is old is safe, and a later one may be kept. Said once.
    fn note(&mut self, outcome: std::io::Result<()>) {
        if let Err(error) = &outcome
            && self.sound
        {
            tracing::warn!(event = "mark_failed", %error);
        }
        self.sound = outcome.is_ok();
    }
}
