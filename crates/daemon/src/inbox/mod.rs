//! `inbox.db`: what came for the sessions of this machine, each message once for each recipient, kept before it is
//! settled at the broker.

mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tenure_outbox::arrival::Recipient;
use tenure_proto::Codec;
use tenure_proto::message::Message;
use tenure_proto::name::MeshName;

use crate::db::{self, DbError, integer};
use crate::disk::{Claim, Disk};
use crate::room::{Cap, Room, used};
use crate::worker::{Worker, answer};

pub use rows::{Filter, Letter};

/// Bytes of messages in one page, unless the first alone is more.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// A damaged inbox that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutAside {
    /// Where it is now.
    pub path: PathBuf,
    /// What was wrong with it.
    pub why: String,
}

/// An open inbox. Dropped, it waits until all that it was asked for is on the disk.
#[derive(Debug)]
pub struct Inbox {
    /// Declared before the writer, and so closed before it: a read that goes on would keep the writer from emptying the log.
    reader: Worker,
    writer: Worker,
    room: Arc<Room>,
    disk: Arc<Disk>,
}

impl Inbox {
    /// Opens the inbox in `dir`, or makes it. A damaged one is renamed to `inbox.db.corrupt-<wall>` and an empty one
    /// takes its place: what was settled is history, what was not comes again. One of a newer program is refused.
    pub fn open(dir: &Path, cap: Cap, wall: u64) -> Result<(Inbox, Option<PutAside>), DbError> {
        Inbox::open_on(Arc::new(Disk::open(dir)), dir, cap, wall)
    }

    /// The same on a disk that others use as well.
    pub(crate) fn open_on(
        disk: Arc<Disk>,
        dir: &Path,
        cap: Cap,
        wall: u64,
    ) -> Result<(Inbox, Option<PutAside>), DbError> {
        let path = dir.join("inbox.db");
        let (connection, aside) = match db::open(&path, schema::SCHEMA) {
            Ok(connection) => (connection, None),
            Err(DbError::Corrupt(why)) => {
                let aside = put_aside(&path, wall)?;
                tracing::error!(event = "inbox_damaged", why, aside = %aside.display(), "the inbox starts empty");
                (db::open(&path, schema::SCHEMA)?, Some(PutAside { path: aside, why }))
            }
            Err(error) => return Err(error),
        };
        let reader = Worker::reader("inbox-reader", db::open_reader(&path)?)?;
        let room = Arc::new(Room::new("inbox", cap));
        connection.pragma_update(None, "wal_autocheckpoint", integer(disk.log_pages()))?;
        let on = (Arc::clone(&disk), Claim::Nothing);
        let writer = Worker::writer("inbox-writer", connection, on, None)?;
        Ok((Inbox { writer, reader, room, disk }, aside))
    }

    /// Keeps a message, unless it is kept already: then nothing, and it must not be shown again. Only when this has
    /// answered may it be settled at the broker.
    pub async fn keep(
        &self,
        mesh: MeshName,
        recipient: Recipient,
        message: &Message,
        wall: u64,
    ) -> Result<Option<Letter>, DbError> {
        let (room, disk) = (Arc::clone(&self.room), Arc::clone(&self.disk));
        let json = Codec::Json.encode(message);
        let bytes = json.len();
        let new = rows::New::of(&mesh, &recipient, message, json, wall);
        answer(self.writer.submit_plain(move |connection| {
            // What is left is for what is sent; the broker keeps what comes.
            if let Err(full) = disk.check() {
                return if rows::is_kept(connection, &new)? { Ok(None) } else { Err(full) };
            }
            if let Err(full) = room.take(connection, bytes) {
                if rows::is_kept(connection, &new)? {
                    return Ok(None);
                }
                // What was seen makes room for what was not.
                while let Err(DbError::Full(_)) = room.take(connection, bytes) {
                    if rows::spare(connection)? == 0 {
                        return Err(full);
                    }
                }
            }
            rows::insert(connection, new)
        }))
        .await
    }

    /// Messages that `filter` lets through, in the order of their arrival: a page of them, and where to go on.
    pub async fn list(&self, filter: Filter) -> Result<(Vec<Letter>, Option<u64>), DbError> {
        answer(self.reader.submit(move |connection| rows::list(connection, &filter))).await
    }

    /// Messages of everybody after a number, at most so many, and the last number that was looked at.
    pub(crate) async fn after(
        &self,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<Letter>, Option<u64>), DbError> {
        answer(self.reader.submit(move |connection| rows::after(connection, after, limit))).await
    }

    /// The newest number that was given, also if its message is forgotten by now.
    pub async fn newest(&self) -> Result<u64, DbError> {
        answer(self.reader.submit(rows::newest)).await
    }

    /// Marks messages of one of these recipients in a mesh as seen; answers how many were not before.
    pub async fn seen(
        &self,
        mesh: MeshName,
        recipients: Vec<Recipient>,
        ids: Vec<u64>,
        wall: u64,
    ) -> Result<u64, DbError> {
        let mark =
            move |connection: &Connection| rows::seen(connection, mesh.as_str(), &recipients, &ids, wall);
        answer(self.writer.submit(mark)).await
    }

    /// Forgets what came for a recipient that is no more, up to a slice of it; answers how many.
    pub(crate) async fn forget(&self, recipient: Recipient) -> Result<u64, DbError> {
        answer(self.writer.submit(move |connection| rows::forget(connection, &recipient))).await
    }

    /// Forgets what was seen before `before`, up to a slice of it; answers how many. What nobody has seen stays.
    pub async fn prune(&self, before: u64) -> Result<u64, DbError> {
        answer(self.writer.submit(move |connection| rows::prune(connection, before))).await
    }

    /// Bytes in use.
    pub async fn bytes(&self) -> Result<u64, DbError> {
        answer(self.reader.submit(used)).await
    }

    /// How much it may hold.
    pub fn cap(&self) -> Cap {
        self.room.cap()
    }

    /// Why nothing is written any more in this process, if that is so.
    pub fn fault(&self) -> Option<String> {
        self.writer.fault()
    }
}

/// The version of the file's schema.
pub(crate) fn schema_version() -> usize {
    schema::SCHEMA.steps.len()
}

/// Renames the database and what SQLite keeps beside it.
fn put_aside(path: &Path, wall: u64) -> Result<PathBuf, DbError> {
    let aside = |suffix: &str| path.with_file_name(format!("inbox.db.corrupt-{wall}{suffix}"));
    for suffix in ["", "-wal", "-shm"] {
        let from = path.with_file_name(format!("inbox.db{suffix}"));
        match std::fs::rename(&from, aside(suffix)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(DbError::Unavailable(format!("rename {}: {error}", from.display()))),
        }
    }
    Ok(aside(""))
}
