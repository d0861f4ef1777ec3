//! How a file of the daemon is opened: made for its owner alone, durable, migrated forward, with nothing in its log that the
//! last process left there; refused if it is damaged or newer than this program.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, TransactionBehavior};

use crate::keeper::{Beside, Keeper};

/// How long a statement waits for somebody's database shell to let go of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that the write-ahead log's file is cut back to once it has been copied.
const LOG_FILE_BYTES: u32 = 16 * 1024 * 1024;
/// Pages of the write-ahead log after which it is copied: the ends of the indexes are in nearly every commit, and are then
/// copied once for many.
const LOG_PAGES: u32 = 4_000;

/// Why a file of the daemon cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DbError {
    /// A newer program wrote it; it is left as it is.
    #[error("{file} has schema version {found}; this program knows {supported}: run the newer one")]
    Newer {
        /// Which file.
        file: String,
        /// Its version.
        found: i64,
        /// Ours.
        supported: i64,
    },
    /// It, or something in it, is not what this program wrote.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// There is no room for more, on the disk or under the cap.
    #[error("no room: {0}")]
    Full(String),
    /// A write failed in a way that leaves open what is on the disk: nothing is written any more in this process.
    #[error("writing failed, and nothing more is written until a restart: {0}")]
    Poisoned(String),
    /// Not now.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

impl From<Error> for DbError {
    fn from(error: Error) -> DbError {
        let text = match error.sqlite_extended_error_code() {
            Some(code) => format!("{error} (SQLite error {code})"),
            None => error.to_string(),
        };
        match &error {
            Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DiskFull => DbError::Full(text),
                ErrorCode::SystemIoFailure => DbError::Poisoned(text),
                ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::Unknown
                | ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch => DbError::Corrupt(text),
                _ => DbError::Unavailable(text),
            },
            Error::SqlInputError { .. }
            | Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
            | Error::Utf8Error(..)
            | Error::QueryReturnedNoRows => DbError::Corrupt(text),
            _ => DbError::Unavailable(text),
        }
    }
}

/// What a file of ours is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema {
    /// What `PRAGMA application_id` holds in it.
    pub(crate) application_id: i32,
    /// The steps, in order; a step is never edited once it was released.
    pub(crate) steps: &'static [&'static str],
}

/// Opens the file at `path`, or makes it, and takes the steps that it has not taken yet.
pub(crate) fn open(path: &Path, schema: Schema) -> Result<Connection, DbError> {
    make(path, schema)?;
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    refuse_unknown(&connection, path, schema)?;
    let connection = prepare(connection, path, schema)?;
    settle_log(&connection, path, false)?;
    Ok(connection)
}

/// As [`open`], for a file that holds promises: one that has lost something is refused, and left as it is.
pub(crate) fn open_kept(path: &Path, schema: Schema) -> Result<(Connection, Keeper), DbError> {
    let mut beside = Beside::look(path)?;
    make(path, schema)?;
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Closing would copy the good part of the log and delete the rest.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    refuse_unknown(&connection, path, schema)?;
    beside.judge(&connection, path)?;
    let connection = prepare(connection, path, schema)?;
    settle_log(&connection, path, beside.is_poisoned())?;
    let keeper = beside.keep(&connection, path)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok((connection, keeper))
}

fn prepare(mut connection: Connection, path: &Path, schema: Schema) -> Result<Connection, DbError> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        let why = format!("its file system has no write-ahead log (journal mode {mode})");
        return Err(DbError::Unavailable(why));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Where a plain sync stops at the drive's cache, ask for the real one; elsewhere these do nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "journal_size_limit", LOG_FILE_BYTES)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        // It says in which database, and then what.
        let what = verdict.lines().filter(|line| !line.starts_with("***")).collect::<Vec<_>>().join(" ");
        return Err(DbError::Corrupt(format!("{}: {what}", name(path))));
    }
    migrate(&mut connection, schema)?;
    Ok(connection)
}

/// Copies what the last process left in the log into the file, and empties the log; both are then on the disk.
///
/// If that process died of a failed sync, the log as it reads now may differ from the log on the disk: the system shows pages that
/// it could not write, and no longer tries to. Syncing the log again would say nothing, and a row that is chained behind such
/// pages is lost with them. Writing their content anew helps. While the disk is full, or another program reads the log, it stays
/// as it is, unless it `must` be copied.
fn settle_log(connection: &Connection, path: &Path, must: bool) -> Result<(), DbError> {
    let copied = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
    match copied.map_err(DbError::from) {
        Ok(true) | Err(DbError::Full(_)) if !must => Ok(()),
        Ok(true) => {
            let (name, what) =
                (name(path), "a write to its log failed, and another program keeps it from being copied");
            Err(DbError::Unavailable(format!("{name}: {what}; close the program that reads it")))
        }
        // The old log must not come back over the file that is newer now.
        Ok(false) => {
            let log = File::open(path.with_extension("db-wal")).and_then(|log| log.sync_all());
            log.map_err(|error| DbError::Unavailable(format!("sync the log of {}: {error}", name(path))))
        }
        Err(error) => Err(error),
    }
}

/// Another connection to a file that is open, which cannot write: not even when it is the last to be closed. SQLite would
/// then copy the log into the file and delete it, also a log that the writer left alone because it is damaged.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, DbError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, DbError> {
    // No URI flag: a path is a path, whatever it looks like.
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

fn refuse_unknown(connection: &Connection, path: &Path, schema: Schema) -> Result<(), DbError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let supported = schema.steps.len() as i64;
    if found > supported {
        return Err(DbError::Newer { file: name(path), found, supported });
    }
    let application_id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    // One of no version is new, and has nothing in it.
    let foreign = if found == 0 { tables > 0 } else { application_id != schema.application_id };
    if found < 0 || foreign {
        return Err(DbError::Corrupt(format!("{} belongs to another program", name(path))));
    }
    Ok(())
}

fn migrate(connection: &mut Connection, schema: Schema) -> Result<(), DbError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (next, step) in (1i64..).zip(schema.steps).skip(usize::try_from(found).unwrap_or(0)) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", schema.application_id)?;
        transaction.pragma_update(None, "user_version", next)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Makes the file if there is none: aside, and whole when it is put in its place. So one that is there and empty has lost
/// what was in it; SQLite would take it for a new one, and delete the log beside it.
fn make(path: &Path, schema: Schema) -> Result<(), DbError> {
    let cannot = |error: io::Error| DbError::Unavailable(format!("make {}: {error}", path.display()));
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) if file.metadata().map_err(cannot)?.len() > 1 => return Ok(()),
        Ok(_) => return Err(DbError::Corrupt(format!("{} is empty", name(path)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot(error)),
    }
    if fs::metadata(path.with_extension("db-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(DbError::Corrupt(format!("{} is gone, but its log is not", name(path))));
    }
    // What a crash has left of an earlier try would be rolled back into this one.
    let aside = path.with_extension("db-making");
    for left in [&aside, &path.with_extension("db-making-journal")] {
        let _ = fs::remove_file(left);
    }
    private(&aside).map_err(cannot)?;
    let mut connection = connect(&aside, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    migrate(&mut connection, schema)?;
    connection.close().map_err(|(_, error)| error)?;
    let place = || {
        fs::rename(&aside, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    place().map_err(cannot)
}

/// SQLite would make the file readable for everybody, and gives its other files the mode of this one.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A number as SQLite holds it: 63 bits. Larger ones do not occur; they would be kept as the largest.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that must not be negative.
pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The checksum of a row: over what it is called and what it says, so that neither can change alone.
pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |sum, part| {
        let sum = crc32c::crc32c_append(sum, &(part.len() as u64).to_le_bytes());
        crc32c::crc32c_append(sum, part)
    })
}
