//! `tenure daemon recover`: a new outbox with what could be read of a damaged one, which is kept.
//!
//! The damaged file is worked on as a copy, kept under a dated name, and replaced when the new one is complete on the
//! disk. A recovery that is interrupted is either not begun or finished by the next one; no daemon starts in between.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tenure_kit::durable::Mark;
use tenure_kit::durable::wal::LogState;
use tenure_store::durable::{MarkFile, beside, log_state};

use crate::db::DbError;
use crate::home::{Home, HomeError, file, make_dir};
use crate::keeper::Beside;
use crate::outbox::{Salvage, salvage, sound};
use crate::utc::utc;

/// Why nothing was recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The directory cannot be used, or a daemon runs there.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The outbox cannot be used, and not because it is damaged.
    #[error(transparent)]
    Outbox(#[from] DbError),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// There is no outbox, so there is nothing to save.
    Nothing,
    /// The outbox is sound, and left as it is; an interrupted recovery may have been finished.
    Sound,
    /// What could be read is in a new outbox.
    Saved {
        /// What became of the rows.
        salvage: Salvage,
        /// What was wrong.
        why: String,
        /// Where the damaged file is now.
        kept: PathBuf,
    },
}

/// Recovers the outbox of the daemon whose directory this is; no daemon runs there meanwhile.
pub fn recover(home: &Path, wall: u64) -> Result<Recovered, RecoverError> {
    let held = Home::hold(home)?;
    if is_unfinished(held.path()) {
        finish(held.path())?;
    }
    let path = held.path().join("outbox.db");
    let mark = mark(&path)?;
    if !path.exists() {
        return forget(&path, mark, wall);
    }
    let work = held.path().join("recover.tmp");
    let _ = fs::remove_dir_all(&work);
    let (copy, fresh) = (work.join("old"), work.join("new"));
    for dir in [&copy, &fresh] {
        make_dir(dir).map_err(file("make directory", dir))?;
    }
    copy_files(&path, &copy)?;
    let why = match sound(&copy) {
        Ok(()) => {
            let _ = fs::remove_dir_all(&work);
            return Ok(Recovered::Sound);
        }
        Err(DbError::Corrupt(why)) => why,
        Err(error) => return Err(error.into()),
    };
    // Asking may have changed the copy: what is read is a copy again.
    fs::remove_dir_all(&copy).map_err(file("remove", &copy))?;
    make_dir(&copy).map_err(file("make directory", &copy))?;
    copy_files(&path, &copy)?;
    let damaged = log_state(&copy.join("outbox.db")).map_err(file("read the log of", &path))?;
    // What reads of a file and a log that do not belong together is of two outboxes, or of two moments of one.
    if !Beside::has_own_log(&copy.join("outbox.db"))? {
        remove(&beside(&copy.join("outbox.db"), "-wal"))?;
    }
    let accepted = mark.map_or(0, |mark| mark.ledger.messages);
    let mut salvage = salvage(&copy.join("outbox.db"), &fresh, accepted)?;
    // Without a mark nothing says how many rows there were.
    salvage.maybe_more |= mark.is_none();
    // Rows in the bad part of the log are counted only up to the mark.
    salvage.maybe_more |= matches!(damaged, LogState::Damaged { .. }) && salvage.missing == 0;
    fs::remove_dir_all(&copy).map_err(file("remove", &copy))?;
    let _ = fs::remove_file(fresh.join("found.db"));
    let kept = keep(&path, wall)?;
    let ready = ready(held.path());
    fs::rename(&fresh, &ready).map_err(file("rename", &fresh))?;
    finish(held.path())?;
    let _ = fs::remove_dir_all(&work);
    Ok(Recovered::Saved { salvage, why, kept })
}

/// How far the outbox had come, as its high-water mark says.
fn mark(path: &Path) -> Result<Option<Mark>, HomeError> {
    let path = path.with_extension("mark");
    Ok(MarkFile::open(&path).map_err(file("read", &path))?.mark())
}

/// There is no outbox. Where a mark is there was one: it is kept aside, and its rows are lost.
fn forget(path: &Path, mark: Option<Mark>, wall: u64) -> Result<Recovered, RecoverError> {
    let Some(mark) = mark else { return Ok(Recovered::Nothing) };
    let kept = keep(path, wall)?;
    for old in [beside(path, "-wal"), beside(path, "-shm"), path.with_extension("mark")] {
        remove(&old)?;
    }
    let salvage = Salvage { missing: mark.ledger.messages, ..Salvage::default() };
    Ok(Recovered::Saved { salvage, why: "outbox.db is gone".to_owned(), kept })
}

/// Copies the outbox, its log and its mark.
fn copy_files(path: &Path, to: &Path) -> Result<(), HomeError> {
    let names = [path.to_owned(), beside(path, "-wal"), path.with_extension("mark")];
    for from in names.iter().filter(|from| from.exists()) {
        let name = from.file_name().unwrap_or_default();
        fs::copy(from, to.join(name)).map_err(file("copy", from))?;
    }
    Ok(())
}

/// Where a new outbox stands that is complete and not in its place yet.
fn ready(home: &Path) -> PathBuf {
    home.join("recover")
}

/// Whether a recovery was interrupted: the outbox must not be used before it is finished.
pub(crate) fn is_unfinished(home: &Path) -> bool {
    ready(home).exists()
}

/// Puts the new outbox in its place. Done twice, it is done once.
fn finish(home: &Path) -> Result<(), HomeError> {
    let (ready, path) = (ready(home), home.join("outbox.db"));
    let fresh = ready.join("outbox.db");
    sync(&ready).and_then(|()| sync(home)).map_err(file("sync", home))?;
    if fresh.exists() {
        // The log and the mark of the old file must not be taken for those of the new.
        for old in [beside(&path, "-wal"), beside(&path, "-shm"), path.with_extension("mark")] {
            remove(&old)?;
        }
        fs::rename(&fresh, &path).map_err(file("rename", &fresh))?;
        sync(home).map_err(file("sync", home))?;
    }
    fs::remove_dir_all(&ready).map_err(file("remove", &ready))
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), HomeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Keeps the damaged file, its log and its mark under a dated name; where.
fn keep(path: &Path, wall: u64) -> Result<PathBuf, HomeError> {
    let date = utc(wall).replace(['-', ':'], "");
    let kept = beside(path, &format!(".corrupt-{date}"));
    let names =
        [(path.to_owned(), ""), (beside(path, "-wal"), "-wal"), (path.with_extension("mark"), "-mark")];
    for (from, suffix) in names {
        let to = beside(&kept, suffix);
        if from.exists() {
            // Not every file system has links.
            let linked = fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop));
            linked.map_err(file("keep", &from))?;
        }
    }
    Ok(kept)
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
