//! Which of SQLite's errors means what to a broker.
//!
//! The safe mistake is to stop: an I/O error anywhere in a write poisons the store, although some of them would
//! have been undone cleanly. The one error that must not poison is a full disk: SQLite writes before it syncs,
//! so a write that found no room never reached the sync, and undoing it restores what was.

use rusqlite::{Error, ErrorCode};

use crate::row::BadColumn;
use crate::{Result, StoreError};

/// What can go wrong inside a transaction: SQLite's word, or ours.
#[derive(Debug)]
pub(super) enum Fault {
    Engine(Error),
    Store(StoreError),
}

impl Fault {
    /// What this fault means where nothing is written.
    pub(super) fn reading(self) -> StoreError {
        match self {
            Fault::Store(error) => error,
            Fault::Engine(error) if is_damage(&error) => StoreError::Corrupt(describe(&error)),
            Fault::Engine(error) => StoreError::Unavailable(describe(&error)),
        }
    }

    /// What this fault means in a transaction that writes.
    pub(super) fn writing(self) -> StoreError {
        match self {
            Fault::Engine(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
                StoreError::Poisoned(describe(&error))
            }
            other => other.reading(),
        }
    }

    /// The same fault, in a run that has begun: a page that a write needs and does not read poisons. What is written beside it
    /// may be lost with it, and nobody would hear of the damage while other pages take their writes.
    pub(super) fn in_a_run(self) -> Fault {
        match self {
            Fault::Engine(error)
                if matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
                ) =>
            {
                let what = describe(&error);
                Fault::Store(StoreError::Poisoned(format!(
                    "the database is damaged: {what}; restore a backup"
                )))
            }
            other => other,
        }
    }

    /// Whether there was no room.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Fault::Engine(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// The same fault; if it is damage, it says what is damaged.
    pub(super) fn about(self, what: impl FnOnce() -> String) -> Fault {
        match self {
            Fault::Store(StoreError::Corrupt(why)) => Fault::corrupt(format!("{}: {why}", what())),
            Fault::Engine(error) if is_damage(&error) => {
                Fault::corrupt(format!("{}: {}", what(), describe(&error)))
            }
            other => other,
        }
    }

    /// Something that does not read.
    pub(super) fn corrupt(what: impl Into<String>) -> Fault {
        Fault::Store(StoreError::Corrupt(what.into()))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Engine(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Store(error)
    }
}

impl From<BadColumn> for Fault {
    fn from(error: BadColumn) -> Fault {
        Fault::corrupt(error.to_string())
    }
}

/// A number that must not be negative.
pub(super) fn natural(number: i64, what: &str) -> Result<u64, Fault> {
    u64::try_from(number).map_err(|_| Fault::corrupt(format!("{what} is {number}")))
}

/// Whether the file, or a value in it, is not what this program wrote.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::SqliteFailure(failure, _) => matches!(
            failure.code,
            ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                // A statement that does not fit the schema: a table is missing or another's.
                | ErrorCode::Unknown
                | ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
        ),
        Error::SqlInputError { .. }
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..)
        | Error::Utf8Error(..)
        | Error::QueryReturnedNoRows => true,
        _ => false,
    }
}

/// The error with its extended code, which tells a failed sync from a failed read.
fn describe(error: &Error) -> String {
    match error.sqlite_extended_error_code() {
        Some(code) => format!("{error} (SQLite error {code})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn fault(code: i32) -> Fault {
        Fault::Engine(Error::SqliteFailure(ffi::Error::new(code), None))
    }

    #[test]
    fn an_io_error_poisons_a_write_and_not_a_read() {
        for code in
            [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_DIR_FSYNC]
        {
            let text = format!("(SQLite error {code})");
            assert!(matches!(fault(code).writing(), StoreError::Poisoned(why) if why.ends_with(&text)));
            assert!(matches!(fault(code).reading(), StoreError::Unavailable(_)));
        }
    }

    #[test]
    fn what_can_pass_is_unavailable() {
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_BUSY,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_NOMEM,
        ] {
            assert!(matches!(fault(code).writing(), StoreError::Unavailable(_)), "{code}");
            assert!(matches!(fault(code).reading(), StoreError::Unavailable(_)), "{code}");
        }
    }

    #[test]
    fn damage_is_corrupt() {
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_CORRUPT_INDEX, ffi::SQLITE_ERROR] {
            assert!(matches!(fault(code).writing(), StoreError::Corrupt(_)), "{code}");
            assert!(matches!(fault(code).reading(), StoreError::Corrupt(_)), "{code}");
        }
    }

    #[test]
    fn a_page_that_a_write_needs_and_that_does_not_read_poisons_a_run() {
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_CORRUPT_INDEX] {
            let error = fault(code).in_a_run().writing();
            assert!(
                matches!(&error, StoreError::Poisoned(why) if why.contains("damaged")),
                "{code}: {error}"
            );
        }
        assert!(matches!(fault(ffi::SQLITE_ERROR).in_a_run().writing(), StoreError::Corrupt(_)));
        assert!(matches!(fault(ffi::SQLITE_FULL).in_a_run().writing(), StoreError::Unavailable(_)));
    }

    #[test]
    fn our_own_words_pass_unchanged() {
        let newer = StoreError::Newer { found: 3, supported: 2 };
        assert_eq!(Fault::from(newer.clone()).writing(), newer);
        assert!(natural(-1, "the run").is_err());
    }
}
