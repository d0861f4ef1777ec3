//! What watches over a file that holds promises: it counts transactions and rows, keeps the count outside of the file too
//! (the high-water mark), and notices files that are removed, replaced or written over. What that means at a start is
//! `tenure_kit::durable`'s to say.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tenure_kit::durable::{Evidence, Ledger, Loss, LossCause, Mark, MarkState, judge, judge_files};
use tenure_store::durable::{
    LogWatch, MarkFile, Stamped, TICK, Watch, beside, evidence, is_marked, ledger, of_row,
};

use crate::db::DbError;
use crate::home::lock_path;

/// The ledger of one file, its mark, and its place in the file system.
#[derive(Debug)]
pub(crate) struct Keeper {
    mark: MarkFile,
    watch: Watch,
    /// The file that says whose the directory is.
    lock: Watch,
    /// The file itself, which SQLite writes to in the writer's thread only, between a commit's begin and its end.
    main: Stamped,
    log: LogWatch,
    looked: Instant,
    /// Whether the last mark could be kept.
    sound: bool,
    /// Whether somebody else wrote over the file or its log.
    overwritten: bool,
}

/// What was beside a file before it was opened.
pub(crate) struct Beside {
    mark: MarkFile,
    evidence: Evidence,
}

impl Beside {
    /// Looks at the file at `path` alone, at its log and at its mark. To be asked before SQLite opens it.
    pub(crate) fn look(path: &Path) -> Result<Beside, DbError> {
        let found = Beside::find(path)?;
        tell(path, judge_files(&found.evidence))?;
        let empty = std::fs::metadata(path).map_or(true, |file| file.len() <= 1);
        if empty && matches!(found.evidence.mark, MarkState::Read(_)) {
            tell(path, judge(&found.evidence))?;
        }
        Ok(found)
    }

    fn find(path: &Path) -> Result<Beside, DbError> {
        let cannot =
            |error: std::io::Error| DbError::Unavailable(format!("look at {}: {error}", path.display()));
        let mark = MarkFile::open(&path.with_extension("mark")).map_err(cannot)?;
        let evidence = evidence(path, mark.state()).map_err(cannot)?;
        Ok(Beside { mark, evidence })
    }

    /// Whether the file that is now open has all that was promised.
    pub(crate) fn judge(&mut self, connection: &Connection, path: &Path) -> Result<(), DbError> {
        self.evidence.ledger = ledger(connection)?;
        self.evidence.marked = is_marked(connection)?;
        tell(path, judge(&self.evidence))
    }

    /// Whether the log of the file at `path`, which is a copy that nobody has open, belongs to that file, as far as that can be told.
    pub(crate) fn has_own_log(path: &Path) -> Result<bool, DbError> {
        let mut found = Beside::find(path)?;
        if found.evidence.mismatch().is_none() {
            let connection = Connection::open(path)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            // A file that is damaged may not say.
            found.evidence.ledger = ledger(&connection).unwrap_or(None);
        }
        Ok(found.evidence.mismatch().is_none())
    }

    /// Whether a write failed in the process that used the file last.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.mark.mark().is_some_and(|mark| mark.poisoned)
    }

    /// Watches over the file from now on. It is open, and all that is in it is on the disk.
    pub(crate) fn keep(self, connection: &Connection, path: &Path) -> Result<Keeper, DbError> {
        let missing = || DbError::Corrupt("its ledger is missing".to_owned());
        let ledger = ledger(connection)?.ok_or_else(missing)?;
        let unreadable = |error| DbError::Unavailable(format!("read its write-ahead log: {error}"));
        let log = LogWatch::open(&beside(path, "-wal")).map_err(unreadable)?;
        let (mark, watch, main) = (self.mark, Watch::default(), Stamped::new(path.to_owned()));
        let lock = Watch::new(path.parent().map(lock_path));
        let mut keeper =
            Keeper { mark, watch, lock, main, log, looked: Instant::now(), sound: true, overwritten: false };
        keeper.committed(ledger);
        keeper.sync();
        let paths =
            [path.to_owned(), beside(path, "-wal"), beside(path, "-shm"), path.with_extension("mark")];
        keeper.watch = Watch::new(paths);
        Ok(keeper)
    }
}

/// Says what a file has lost.
fn tell(path: &Path, judged: Result<(), Loss>) -> Result<(), DbError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    judged.map_err(|loss| {
        let lost = if loss.cause.is_certain() { "lost" } else { "may have lost" };
        let hint = match loss.cause {
            LossCause::FileBehindLog | LossCause::LogBehindFile => {
                "; put the right file back if there is one"
            }
            _ => "",
        };
        DbError::Corrupt(format!("{name} {lost} rows that were accepted: {loss}{hint}"))
    })
}

impl Keeper {
    /// True once the last mark was written to the disk.
    pub(crate) fn is_marked(&self) -> bool {
        self.sound && self.mark.mark().is_some()
    }

    /// Counts the transaction that is open, and the rows that were ever accepted; and says that a mark is on the disk, if it is:
    /// a start that misses it then knows.
    pub(crate) fn count(connection: &Connection, marked: bool) -> Result<Ledger, DbError> {
        let sql = "UPDATE ledger SET writes = writes + 1, marked = max(marked, ?1), \
                   messages = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0) \
                   WHERE one = 1 RETURNING store, writes, messages";
        Ok(connection.prepare_cached(sql)?.query_row([marked], of_row)?)
    }

    /// A transaction is on the disk.
    pub(crate) fn committed(&mut self, ledger: Ledger) {
        let kept = self.mark.write(Mark { ledger, ..Mark::default() });
        self.note(kept);
    }

    /// Makes the mark durable and looks at the files, unless it did so a moment ago. Nothing is written meanwhile.
    pub(crate) fn tick(&mut self, connection: &Connection) -> Result<(), DbError> {
        if self.looked.elapsed() < TICK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.look(connection)?;
        self.sync();
        Ok(())
    }

    /// Whether nobody else has written to the file itself. To be asked before each batch, which may.
    pub(crate) fn look_at_file(&mut self) -> Result<(), DbError> {
        let looked = self.main.look();
        self.overwritten |= looked.is_err();
        looked.map_err(DbError::Poisoned)
    }

    /// SQLite may have copied the log into the file.
    pub(crate) fn wrote(&mut self) {
        self.main.take();
    }

    /// As [`Keeper::look`], and reads the whole log: what is damaged in it is not to be copied into the file.
    pub(crate) fn look_closely(&mut self, connection: &Connection) -> Result<(), DbError> {
        self.look(connection)?;
        let read = frames(connection).map_or(Ok(()), |frames| self.log.read(frames));
        self.overwritten |= read.is_err();
        read.map_err(DbError::Poisoned)
    }

    /// Whether every file is where it was, and what was written to it. A log that cannot be asked about says nothing.
    pub(crate) fn look(&mut self, connection: &Connection) -> Result<(), DbError> {
        let frames = frames(connection);
        self.look_at_file()?;
        let log = frames.map_or(Ok(()), |frames| self.log.look(frames));
        self.overwritten |= log.is_err();
        let looked = log.and_then(|()| self.watch.look()).and_then(|()| self.mark.look());
        looked.map_err(DbError::Poisoned)
    }

    /// Nothing is written any more. The next start must find that, and how far it had come, also if the process is killed next
    /// or somebody wrote over the mark or removed it.
    pub(crate) fn give_up(&mut self) {
        let overwritten = self.overwritten;
        let poisoned = |mark: Mark| Mark { poisoned: true, overwritten, ..mark };
        let marked = self.mark.mark().map_or(Ok(()), |mark| self.mark.write(poisoned(mark)));
        let restated = self.mark.restate(self.lock.look().is_ok());
        self.note(marked.and(restated));
        self.sync();
    }

    /// Makes the mark durable.
    pub(crate) fn sync(&mut self) {
        let synced = self.mark.sync();
        self.note(synced);
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

/// Frames in the log, if SQLite can say.
fn frames(connection: &Connection) -> Option<u64> {
    let frames = connection
        .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
        .and_then(|mut asked| asked.query_row([], |row| row.get::<_, i64>(1)));
    frames.ok().and_then(|frames| u64::try_from(frames).ok())
}
