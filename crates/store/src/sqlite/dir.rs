//! The data directory: made for its owner alone, held by one process at a time.
//!
//! `tenure.lock` carries the operating system's file lock and is otherwise empty; it goes with the process,
//! however that ends, so it is never stale. The lock is taken before `tenure.db` is touched: on Unix a second
//! handle on a database file, when closed, would drop the locks that SQLite holds in the same process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::durable::Watch;
use crate::{Result, StoreError};

/// Bytes of the file that is given up when a start finds no room: enough for SQLite's index of the log, and the writes of a
/// start.
const RESERVE_BYTES: usize = 1024 * 1024;

/// A data directory that this value holds until it is dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// Holds the lock by being open.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, and takes the lock.
    pub(super) fn hold(path: &Path) -> Result<DataDir> {
        let cannot = |what: &'static str| {
            move |error: io::Error| StoreError::Unavailable(format!("{what} {}: {error}", path.display()))
        };
        // The process may change its working directory later; and nothing absolute looks like a URI.
        let absolute = std::path::absolute(path).map_err(cannot("resolve"))?;
        make_dir(&absolute).map_err(cannot("make directory"))?;
        let lock = open_private(&absolute.join("tenure.lock")).map_err(cannot("open the lock file in"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked),
            Err(TryLockError::Error(error)) => return Err(cannot("lock")(error)),
        }
        Ok(DataDir { path: absolute, _lock: lock })
    }

    /// Whether there is no database, or one of 0 bytes, or 1: SQLite takes that for a new one.
    pub(super) fn is_empty(&self) -> bool {
        fs::metadata(self.database()).map_or(true, |database| database.len() <= 1)
    }

    /// Makes an empty database file if it is missing. SQLite would make it readable for everybody, and gives its other
    /// files the mode of this one.
    pub(super) fn make_database(&self) -> Result<()> {
        let cannot = |error| {
            let path = self.path.display();
            StoreError::Unavailable(format!("make the database file in {path}: {error}"))
        };
        open_private(&self.database()).map_err(cannot)?;
        if self.is_empty() && self.has_log() {
            return Err(StoreError::Corrupt(
                "tenure.db is empty but its log tenure.db-wal is not".to_owned(),
            ));
        }
        Ok(())
    }

    /// Whether there is a write-ahead log. SQLite would delete it beside an empty database.
    fn has_log(&self) -> bool {
        fs::metadata(self.log()).is_ok_and(|log| log.len() > 0)
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The database file in it.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("tenure.db")
    }

    /// Its write-ahead log. SQLite holds no locks on that, so another handle does no harm.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("tenure.db-wal")
    }

    /// The high-water mark beside them.
    pub(super) fn mark(&self) -> PathBuf {
        self.path.join("tenure.mark")
    }

    /// Keeps some room on the disk for a start that finds none. Without room for that either, there is none.
    pub(super) fn make_reserve(&self) {
        let path = self.reserve();
        let missing = !path.exists();
        if missing && open_private(&path).and_then(|mut file| file.write_all(&[0; RESERVE_BYTES])).is_err() {
            let _ = fs::remove_file(&path);
        }
    }

    /// Gives that room up; whether there was any.
    pub(super) fn release_reserve(&self) -> bool {
        fs::remove_file(self.reserve()).is_ok()
    }

    fn reserve(&self) -> PathBuf {
        self.path.join("tenure.reserve")
    }

    /// What must stay in its place while the store is open.
    pub(super) fn watch(&self) -> Watch {
        let index = self.path.join("tenure.db-shm");
        Watch::new([self.database(), self.log(), self.mark(), index, self.lock()])
    }

    /// What must stay in its place for the directory to be ours: without it another process can hold it.
    pub(super) fn watch_lock(&self) -> Watch {
        Watch::new([self.lock()])
    }

    fn lock(&self) -> PathBuf {
        self.path.join("tenure.lock")
    }
}

/// Makes `path` and what is missing above it. A directory that exists keeps the mode its owner gave it.
fn make_dir(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    missing.iter().filter_map(|made| made.parent()).for_each(sync_dir);
    Ok(())
}

/// Makes a new directory's name durable, where the system can; SQLite does the same for the files it makes.
fn sync_dir(path: &Path) {
    if cfg!(unix)
        && let Ok(dir) = File::open(path)
    {
        let _ = dir.sync_all();
    }
}

/// Opens a file for reading and writing; a new one is its owner's alone.
fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
