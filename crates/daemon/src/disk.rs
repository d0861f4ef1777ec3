//! A disk that is full: what is told then, and room that was kept for it.
//!
//! What was accepted must leave also when nothing more can be accepted, and every step of a row is written down before the
//! next is taken. So some room is set aside in a file, the **reserve**. When a commit finds the disk full, the write-ahead
//! log is folded back into its database, and **spare** pages are made in both files; if that needs room, the reserve is given
//! up for it. From then on nothing new is taken (`507`), rows that were taken are sent and settled, and the log is folded
//! after each commit, so that it is written over instead of growing. When there is room again the reserve is made anew, and
//! everything is as before.
//!
//! Why this is enough. The log is folded whenever it holds half the reserve; that fails only if less than half the reserve is
//! free, so the log never holds more than the whole of it, and folding it needs no more than that. What a row needs after that
//! is in the files: its commit writes over the log, and what it adds to an index fits into the spare pages until the
//! first requests that were sent have left theirs.
//!
//! What it cannot do: room that was given up is anybody's until the spare pages are made, some milliseconds later; and so is the
//! room of a log that is emptied at a stop or a start. If another program takes it first, rows wait on the disk until there is
//! room.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::db::{DbError, integer};
use crate::home::private;

/// The least and the most that is set aside; in between, an eighth of what is free.
const RESERVE_LEAST: u64 = 128 * 1024;
const RESERVE_MOST: u64 = 15 * 1024 * 1024;
/// What part of the reserve becomes spare pages of a database and of its log.
const SPARE_PART: u64 = 8;
/// Bytes of a page of a database.
const PAGE: u64 = 4_096;
/// How often somebody looks whether there is room again.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How often it is said that there is none.
const SAY: Duration = Duration::from_secs(60);

/// What is said of a full disk.
const FULL: &str = "the disk is full";

/// What a file may have of a disk that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The reserve.
    Reserve,
    /// Only what its own log gives back.
    Nothing,
}

/// The disk under the daemon's files.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    /// Bytes of the reserve when it is whole.
    reserve: u64,
    full: AtomicBool,
    /// When it was last said that it is full. Held while the reserve is made or given up.
    said: Mutex<Option<Instant>>,
}

impl Disk {
    /// The disk under `dir`. If it is nearly full the reserve is given up at once, or nothing could be opened there.
    pub(crate) fn open(dir: &Path) -> Disk {
        let held = held(dir);
        let free = free(dir).unwrap_or(RESERVE_MOST * 8);
        let wish = ((free + held) / 8).clamp(RESERVE_LEAST, RESERVE_MOST);
        // One that is there is never made smaller: what was free then is used by now.
        let reserve = wish.max(held.min(RESERVE_MOST)) / PAGE * PAGE;
        let disk =
            Disk { dir: dir.to_owned(), reserve, full: AtomicBool::new(false), said: Mutex::default() };
        if free < RESERVE_LEAST {
            disk.begin("outbox");
            release(dir);
        } else if held < reserve
            && let Err(error) = make(dir, reserve)
        {
            tracing::warn!(event = "disk_reserve", bytes = reserve, %error, "no room is kept for a full disk");
        }
        disk
    }

    /// Pages of the write-ahead log after which it is folded back: half of the reserve.
    pub(crate) fn log_pages(&self) -> u64 {
        (self.reserve / 2 / PAGE).max(1)
    }

    /// Whether it is full, as far as anybody has noticed.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Refuses what is new while the disk is full: what is left is for what was taken before.
    pub(crate) fn check(&self) -> Result<(), DbError> {
        match self.told() {
            Some(why) => Err(DbError::Full(why)),
            None => Ok(()),
        }
    }

    /// What to say while it is full: what is the matter, and what to do.
    pub(crate) fn told(&self) -> Option<String> {
        self.is_full().then(|| {
            let (dir, bytes) = (self.dir.display(), self.reserve * 2);
            format!(
                "{FULL}: free {bytes} bytes under {dir}; what was taken is still sent, nothing new is taken"
            )
        })
    }

    /// A commit to `file` found no room: folds its log and makes spare pages, with the reserve if it takes that and the file
    /// may have it.
    pub(crate) fn ran_out(&self, file: &str, connection: &Connection, claim: Claim) {
        self.begin(file);
        let make_room = || match claim {
            Claim::Nothing => fold(connection),
            Claim::Reserve => fold(connection).and_then(|()| spare(connection, self.reserve / SPARE_PART)),
        };
        if make_room().is_ok() || claim == Claim::Nothing {
            return;
        }
        let given = {
            let _said = self.said();
            release(&self.dir)
        };
        if given == 0 {
            // Somebody else has it: it is told every minute that there is no room.
            return;
        }
        match make_room() {
            Ok(()) => {
                tracing::warn!(event = "disk_reserve", bytes = given, "given up to write down what is sent")
            }
            Err(error) => tracing::error!(event = "disk_reserve", bytes = given, %error, "it is not enough"),
        }
    }

    /// There is no room to open `file`: gives the reserve up for that. `false` if there is none.
    pub(crate) fn give_up(&self, file: &str) -> bool {
        self.begin(file);
        let _said = self.said();
        release(&self.dir) > 0
    }

    /// After a commit while the disk is full: the log is folded, so that the next is written over it.
    pub(crate) fn committed(&self, connection: &Connection) {
        if self.is_full() {
            // If this fails, so does the next commit, and says so.
            let _ = fold(connection);
        }
    }

    /// Looks whether there is room again, if there was none.
    pub(crate) fn look(&self) {
        if !self.is_full() {
            return;
        }
        let mut said = self.said();
        let (held, free) = (held(&self.dir), free(&self.dir).unwrap_or(0));
        // As much as the reserve besides it, or it would be given up with the next row.
        if free + held >= self.reserve * 2 && (held >= self.reserve || make(&self.dir, self.reserve).is_ok())
        {
            self.full.store(false, Ordering::Relaxed);
            *said = None;
            tracing::info!(event = "disk_has_room", free, "what is new is taken again");
        } else if said.is_none_or(|at| at.elapsed() >= SAY) {
            *said = Some(Instant::now());
            drop(said);
            tracing::error!(event = "disk_full", free, told = self.told());
        }
    }

    fn begin(&self, file: &str) {
        if !self.full.swap(true, Ordering::Relaxed) {
            *self.said() = Some(Instant::now());
            tracing::error!(event = "disk_full", file, told = self.told());
        }
    }

    fn said(&self) -> MutexGuard<'_, Option<Instant>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the reserve in `dir` up; answers how many bytes that were.
pub(crate) fn release(dir: &Path) -> u64 {
    let bytes = held(dir);
    match fs::remove_file(path(dir)) {
        Ok(()) => bytes,
        Err(_) => 0,
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

/// Bytes of the reserve that is there.
fn held(dir: &Path) -> u64 {
    fs::metadata(path(dir)).map_or(0, |file| file.len())
}

/// Bytes that are free for us on the disk under `dir`.
fn free(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Makes the reserve, whole or not at all.
fn make(dir: &Path, bytes: u64) -> io::Result<()> {
    let path = path(dir);
    let made = private().open(&path).and_then(|file| fill(&file, bytes));
    if made.is_err() {
        let _ = fs::remove_file(&path);
    }
    made
}

/// Has `bytes` of the disk set aside for a file.
fn fill(mut file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::NOSPC) => return Err(io::ErrorKind::StorageFull.into()),
        // Not every file system can; all can write.
        Err(_) => {}
    }
    let mut piece = vec![0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        // Zeros would take no room where files are compressed.
        getrandom::fill(&mut piece).map_err(io::Error::other)?;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        file.write_all(&piece[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Copies the write-ahead log into its file, so that the next commit writes over it.
fn fold(connection: &Connection) -> Result<(), DbError> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(())
}

/// Makes pages in a database that hold nothing yet, and writes as much to its log: both files have them from then on. They are
/// written, not only counted: a hole in a file is no room.
fn spare(connection: &Connection, bytes: u64) -> Result<(), DbError> {
    connection.execute_batch("DROP TABLE IF EXISTS spare_pages; CREATE TABLE spare_pages (room BLOB)")?;
    let room = connection.execute("INSERT INTO spare_pages VALUES (zeroblob(?1))", [integer(bytes)]);
    let made = room.map_err(DbError::from).and_then(|_| fold(connection));
    // Also what was not made is not left behind.
    connection.execute_batch("DROP TABLE spare_pages")?;
    made.and_then(|()| fold(connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_pages_are_in_the_file_and_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let connection = Connection::open(&path).unwrap();
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        spare(&connection, 100 * PAGE).unwrap();
        let free: i64 = connection.query_row("PRAGMA freelist_count", [], |row| row.get(0)).unwrap();
        assert!(free >= 100, "{free}");
        let allocated = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(path).unwrap().blocks() * 512
        };
        assert!(allocated(&path) >= 100 * PAGE, "{}", allocated(&path));
        assert!(allocated(&path.with_extension("db-wal")) >= 100 * PAGE);
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 0, "nothing is left of it");
    }

    #[test]
    fn a_reserve_is_made_given_up_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(dir.path());
        let whole = held(dir.path());
        assert!(whole >= RESERVE_LEAST && whole == disk.reserve, "{whole}");
        assert!(disk.check().is_ok());
        let connection = Connection::open_in_memory().unwrap();
        disk.ran_out("outbox", &connection, Claim::Reserve);
        assert_eq!(held(dir.path()), whole, "folding the log was enough");
        let refused = disk.check().unwrap_err();
        assert!(matches!(&refused, DbError::Full(why) if why.starts_with(FULL)), "{refused}");
        assert_eq!(release(dir.path()), whole);
        disk.look();
        assert_eq!(disk.told(), None, "there is room on the disk of this test");
        assert_eq!(held(dir.path()), whole);
        assert_eq!(Disk::open(dir.path()).reserve, whole, "a start keeps the one that is there");
    }
}
