//! How much a file may hold, and whether there is room for more.

use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;

use crate::db::{DbError, natural};

/// Bytes by which a row may make its file grow besides what it says: pages of the table and its indexes.
const AROUND_A_ROW: u64 = 16 * 1024;
/// Bytes that are written without looking again: far less than lies between the 95 % and the cap.
const UNSEEN: u64 = 1024 * 1024;

/// How much a file may hold.
#[derive(Clone, Copy, Debug)]
pub struct Cap {
    /// Bytes of the file.
    pub bytes: u64,
}

impl Cap {
    /// Bytes from which on nothing new is taken: 95 % of the cap.
    pub const fn closed_at(self) -> u64 {
        self.bytes / 100 * 95
    }

    /// Bytes from which on somebody should be told: 80 % of the cap.
    pub const fn warn_at(self) -> u64 {
        self.bytes / 100 * 80
    }

    /// How full a file with so many bytes is: `ok`, `warn` or `full`.
    pub const fn space(self, bytes: u64) -> &'static str {
        match bytes {
            bytes if bytes >= self.closed_at() => "full",
            bytes if bytes >= self.warn_at() => "warn",
            _ => "ok",
        }
    }
}

/// The room in a file, for who writes there. Asking SQLite costs as much as a small row does, so it is asked again only
/// when what was found free may have been used.
#[derive(Debug)]
pub(crate) struct Room {
    what: &'static str,
    cap: Cap,
    /// Bytes that are free for sure.
    free: AtomicU64,
}

impl Room {
    /// The room in `what`, of which nothing is known yet.
    pub(crate) fn new(what: &'static str, cap: Cap) -> Room {
        Room { what, cap, free: AtomicU64::new(0) }
    }

    /// How much the file may hold.
    pub(crate) fn cap(&self) -> Cap {
        self.cap
    }

    /// Takes room for a row of so many bytes; [`DbError::Full`] if there is none.
    pub(crate) fn take(&self, connection: &Connection, bytes: usize) -> Result<(), DbError> {
        let growth = AROUND_A_ROW + bytes as u64;
        let mut free = self.free.load(Ordering::Relaxed);
        if free < growth {
            free = self.cap.closed_at().saturating_sub(used(connection)?).min(UNSEEN);
        }
        if free == 0 {
            let (what, bytes) = (self.what, self.cap.bytes);
            return Err(DbError::Full(format!("the {what} holds 95 % of its {bytes} bytes")));
        }
        self.free.store(free.saturating_sub(growth), Ordering::Relaxed);
        Ok(())
    }
}

/// Bytes of the file that hold something.
pub(crate) fn used(connection: &Connection) -> Result<u64, DbError> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
    Ok(natural(pages) * natural(number("PRAGMA page_size")?))
}
