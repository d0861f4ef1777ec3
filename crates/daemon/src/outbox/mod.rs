//! `outbox.db`: what programs of this machine have handed over, until the broker has it.
//!
//! Every method is one transaction; when it has answered, what it did is on the disk. Concurrent ones share a commit.
//! Rules are `tenure_outbox`'s.

mod accept;
mod admin;
mod drain;
mod pages;
mod row;
mod salvage;
mod schema;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use tenure_outbox::{FoundLane, LaneId, Outgoing, Settled, Settlement, Status};
use tenure_proto::Codec;
use tenure_proto::ids::{ClientMessageId, SessionKey};
use tenure_proto::name::MeshName;

use crate::db::{self, DbError, integer, natural};
use crate::disk::{Claim, Disk};
use crate::room::{Room, used};
use crate::worker::{Pending, Worker, answer};

pub use crate::room::Cap;
pub use accept::{Accepted, Request};
pub use admin::{Anew, Patch, Requeued, Withdrawn};
pub use row::{Entry, Wanted};
pub(crate) use salvage::salvage;
pub use salvage::{Lost, Salvage, rows_on_pages};

/// What an outbox may hold unless told otherwise: 5 GiB.
pub const CAP: Cap = Cap { bytes: 5 * 1024 * 1024 * 1024 };

/// How many rows stand where, and how full the file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Rows that wait.
    pub pending: u64,
    /// Rows on their way.
    pub inflight: u64,
    /// Rows that the broker has.
    pub done: u64,
    /// Rows that it will never have.
    pub dead: u64,
    /// Rows that were taken back.
    pub aborted: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// When the oldest row that waits or is on its way was taken, Unix milliseconds; none if there is none.
    pub oldest_open: Option<u64>,
    /// When the oldest row that is dead was taken.
    pub oldest_dead: Option<u64>,
    /// When the broker last took a row.
    pub last_done: Option<u64>,
}

/// An open outbox. Dropped, it waits until all that it was asked for is on the disk.
#[derive(Debug)]
pub struct Outbox {
    /// Declared before the writer, and so closed before it: a read that goes on would keep the writer from emptying the log.
    reader: Worker,
    writer: Worker,
    room: Arc<Room>,
    disk: Arc<Disk>,
}

impl Outbox {
    /// Opens the outbox in `dir`, or makes it. What was on its way when the last process ended is pending again.
    ///
    /// A damaged file is [`DbError::Corrupt`], one of a newer program [`DbError::Newer`]; both are left as they are.
    pub fn open(dir: &Path, cap: Cap) -> Result<Outbox, DbError> {
        Outbox::open_on(Arc::new(Disk::open(dir)), dir, cap)
    }

    /// The same on a disk that others use as well.
    pub(crate) fn open_on(disk: Arc<Disk>, dir: &Path, cap: Cap) -> Result<Outbox, DbError> {
        let path = dir.join("outbox.db");
        let (connection, keeper) = match db::open_kept(&path, schema::SCHEMA) {
            // What a start must write is what the reserve is for, too.
            Err(DbError::Full(_)) if disk.give_up("outbox") => db::open_kept(&path, schema::SCHEMA)?,
            outcome => outcome?,
        };
        connection.pragma_update(None, "wal_autocheckpoint", integer(disk.log_pages()))?;
        let returned = drain::restart(&connection)?;
        if returned > 0 {
            tracing::info!(event = "outbox_restarted", rows = returned, "what was on its way is sent again");
        }
        let reader = Worker::reader("outbox-reader", db::open_reader(&path)?)?;
        let room = Arc::new(Room::new("outbox", cap));
        let on = (Arc::clone(&disk), Claim::Reserve);
        let writer = Worker::writer("outbox-writer", connection, on, Some(keeper))?;
        Ok(Outbox { writer, reader, room, disk })
    }

    /// Takes a request, or says why not. When the answer is `Insert`, the row is on the disk as pending.
    pub async fn accept(&self, request: Request, wall: u64) -> Result<Accepted, DbError> {
        answer(self.accepting(request, wall)).await
    }

    fn accepting(&self, request: Request, wall: u64) -> Pending<Accepted> {
        let (room, disk) = (Arc::clone(&self.room), Arc::clone(&self.disk));
        let payload = Codec::Json.encode(&request.params);
        self.writer.submit_plain(move |connection| {
            accept::accept(connection, &request, &payload, wall, (&room, &disk))
        })
    }

    /// Marks the oldest rows of a lane as sent and gives them, up to `limit`, for who begins to drain it: what was marked
    /// before is nobody's any more.
    pub async fn take(&self, lane: LaneId, limit: usize) -> Result<Vec<Outgoing>, DbError> {
        answer(self.writer.submit(move |connection| drain::take(connection, lane, limit))).await
    }

    /// Records what became of rows that were taken, and takes the next of their lane if that is wanted.
    pub async fn settle(&self, settlement: Settlement, wall: u64) -> Result<Settled, DbError> {
        answer(self.writer.submit(move |connection| drain::settle(connection, &settlement, wall))).await
    }

    /// The lanes of a session that have rows.
    pub async fn lanes(&self, mesh: MeshName, sender: SessionKey) -> Result<Vec<FoundLane>, DbError> {
        answer(self.writer.submit(move |connection| drain::lanes(connection, mesh.as_str(), &sender))).await
    }

    /// The sessions that have rows to send, with their meshes.
    pub async fn senders(&self) -> Result<Vec<(String, SessionKey)>, DbError> {
        answer(self.reader.submit(drain::senders)).await
    }

    /// Gives up rows of a mesh that were accepted before `cutoff`, up to a slice of them; answers how many. What was
    /// accepted by a clock that was ahead of `wall` counts from there.
    pub async fn expire(&self, mesh: MeshName, cutoff: u64, wall: u64) -> Result<u64, DbError> {
        let expire = move |connection: &Connection| drain::expire(connection, mesh.as_str(), cutoff, wall);
        answer(self.writer.submit(expire)).await
    }

    /// Forgets rows that were done before `before`, the oldest first and up to a slice of them, if the file is nearly full;
    /// answers how many. With room to spare an id is never free again.
    pub async fn prune(&self, before: u64) -> Result<u64, DbError> {
        let cap = self.cap();
        answer(self.writer.submit(move |connection| match used(connection)? {
            bytes if bytes < cap.warn_at() => Ok(0),
            _ => drain::prune(connection, before),
        }))
        .await
    }

    /// Sends a row anew, under another id.
    pub async fn requeue(&self, row: u64, anew: Anew, wall: u64) -> Result<Requeued, DbError> {
        answer(self.writer.submit(move |connection| admin::requeue(connection, row, anew, wall))).await
    }

    /// Takes a row back.
    pub async fn withdraw(&self, row: u64, by: String, wall: u64) -> Result<Withdrawn, DbError> {
        answer(self.writer.submit(move |connection| admin::drop_row(connection, row, &by, wall))).await
    }

    /// One row.
    pub async fn get(&self, row: u64) -> Result<Option<Entry>, DbError> {
        answer(self.reader.submit(move |connection| row::get(connection, row))).await
    }

    /// One row by the id that its sender gave it.
    pub async fn find(&self, mesh: MeshName, id: ClientMessageId) -> Result<Option<Entry>, DbError> {
        let find = move |connection: &Connection| row::find(connection, mesh.as_str(), id.as_str());
        answer(self.reader.submit(find)).await
    }

    /// Rows after `after`, at most `limit`, in the order of their acceptance.
    pub async fn list(
        &self,
        status: Option<Status>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, DbError> {
        let wanted = Wanted { status, after, limit, ..Wanted::default() };
        self.page(wanted).await.map(|(rows, _)| rows)
    }

    /// Whom a display name means under an id: the receiver of the row that was sent to that name under it.
    pub async fn named(
        &self,
        mesh: MeshName,
        id: ClientMessageId,
        name: String,
    ) -> Result<Option<String>, DbError> {
        let find = move |connection: &Connection| row::named(connection, mesh.as_str(), id.as_str(), &name);
        answer(self.reader.submit(find)).await
    }

    /// A page of rows, and where to go on if there may be more: also an empty page may have a next one.
    pub async fn page(&self, wanted: Wanted) -> Result<(Vec<Entry>, Option<u64>), DbError> {
        answer(self.reader.submit(move |connection| row::page(connection, &wanted))).await
    }

    /// How many rows stand where.
    pub async fn census(&self) -> Result<Census, DbError> {
        answer(self.reader.submit(census)).await
    }

    /// How much it may hold.
    pub fn cap(&self) -> Cap {
        self.room.cap()
    }

    /// What is the matter with a disk that is full, and what to do; nothing while there is room.
    pub(crate) fn disk_full(&self) -> Option<String> {
        self.disk.told()
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

/// Whether the outbox in `dir` can be opened.
pub(crate) fn sound(dir: &Path) -> Result<(), DbError> {
    db::open_kept(&dir.join("outbox.db"), schema::SCHEMA).map(drop)
}

fn census(connection: &Connection) -> Result<Census, DbError> {
    let mut statement = connection.prepare_cached("SELECT status, count(*) FROM outbox GROUP BY status")?;
    let counts = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let at = |sql: &str| -> Result<Option<u64>, DbError> {
        let at: Option<i64> = connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(at.map(natural))
    };
    // Each is the end of an index; rows on their way are few.
    let pending = at("SELECT min(enqueued_at) FROM outbox INDEXED BY outbox_age WHERE status = 'pending'")?;
    let inflight = at("SELECT min(enqueued_at) FROM outbox WHERE status = 'inflight'")?;
    let mut census = Census {
        bytes: used(connection)?,
        oldest_open: pending.into_iter().chain(inflight).min(),
        oldest_dead: at("SELECT (SELECT enqueued_at FROM outbox WHERE status = 'dead' ORDER BY id LIMIT 1)")?,
        last_done: at("SELECT max(delivered_at) FROM outbox INDEXED BY outbox_done WHERE status = 'done'")?,
        ..Census::default()
    };
    for count in counts {
        let (status, count) = count?;
        let place = match Status::from_text(&status) {
            Some(Status::Pending) => &mut census.pending,
            Some(Status::Inflight) => &mut census.inflight,
            Some(Status::Done) => &mut census.done,
            Some(Status::Dead) => &mut census.dead,
            Some(Status::Aborted) => &mut census.aborted,
            None => return Err(DbError::Corrupt(format!("status is {status:?}"))),
        };
        *place = natural(count);
    }
    Ok(census)
}

/// What a crash leaves: the files as they are at this moment.
#[cfg(test)]
pub(crate) fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    for name in names.iter().filter(|name| !name.to_string_lossy().ends_with("-shm")) {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}
