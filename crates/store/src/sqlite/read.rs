//! Reading messages, beside the writer: a connection of its own that cannot write.

use std::fmt;
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{DAMAGED, DamagedEntry, DeadEntry, StoreFound, StoreRead};
use tenure_proto::ids::MessageId;
use tenure_proto::log::LogName;
use tenure_proto::name::MeshName;

use super::dir::DataDir;
use super::fault::{Fault, natural};
use super::place::{Place, SEQ_MAX};
use super::sync::Log;
use super::{
    BUSY_TIMEOUT, PREPARED_STATEMENTS, access, cache, call, check, damaged, dead, entry, expired, fates,
    integer, lease_end,
};
use crate::{Checking, Result, StoreError, StoreReader};

/// KiB of pages that a reader keeps in memory.
const CACHE_KIB: i64 = 8 * 1024;

/// A reader of a store in a directory, which it holds as the store does.
pub(super) struct SqliteReader {
    /// Declared before the directory, as in the store.
    connection: Connection,
    log: Arc<Log>,
    _dir: Arc<DataDir>,
}

impl fmt::Debug for SqliteReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteReader").finish_non_exhaustive()
    }
}

impl SqliteReader {
    /// Opens a reader beside the store that holds `dir`.
    pub(super) fn open(dir: &Arc<DataDir>, log: &Arc<Log>) -> Result<SqliteReader> {
        let open = || -> Result<Connection, Fault> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(dir.database(), flags)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
            connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
            connection.pragma_update(None, "cell_size_check", true)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            Ok(connection)
        };
        let connection = open().map_err(Fault::reading)?;
        Ok(SqliteReader { connection, log: log.clone(), _dir: dir.clone() })
    }
}

impl StoreReader for SqliteReader {
    fn read(&mut self, mesh: &MeshName, read: &StoreRead) -> Result<StoreFound> {
        let view = self.connection.transaction().map_err(Fault::from);
        let found = view.and_then(|view| find(&view, mesh, read)).map_err(Fault::reading)?;
        // What a failed sync left in doubt is not told. Of entries and their order the mesh knows what it was told itself.
        let known = matches!(
            read,
            StoreRead::Page { .. }
                | StoreRead::Entries { .. }
                | StoreRead::History { .. }
                | StoreRead::Oldest { .. }
                | StoreRead::Expired { .. }
                | StoreRead::Ids { .. }
        );
        if self.log.settle() || known {
            return Ok(found);
        }
        Err(StoreError::Unavailable("what was written last is in doubt until the next start".to_owned()))
    }

    fn check(&mut self) -> Result<Vec<String>> {
        let view = self.connection.transaction().map_err(Fault::from);
        view.and_then(|view| check::findings(&view)).map_err(Fault::reading)
    }

    fn check_slice(&mut self, checking: &mut Checking) -> Result<bool> {
        let view = self.connection.transaction().map_err(Fault::from);
        view.and_then(|view| check::slice(&view, checking)).map_err(Fault::reading)
    }
}

fn find(connection: &Connection, mesh: &MeshName, read: &StoreRead) -> Result<StoreFound, Fault> {
    // A mesh that was never written to has number 0, and nothing.
    let mesh = cache::find_mesh(connection, mesh)?.unwrap_or(0);
    match read {
        StoreRead::Page { log, lane, after, limit, bytes } => {
            page(connection, mesh, log, (*lane, *after), (*limit, *bytes))
        }
        StoreRead::Entries { log, lane, seqs } => entries(connection, mesh, log, *lane, seqs),
        StoreRead::History { log, from, limit, bytes } => {
            history(connection, mesh, log, *from, (*limit, *bytes))
        }
        StoreRead::Fates { member, ids } => fates::fates(connection, mesh, member, ids),
        StoreRead::Dead { log, after, limit, bytes } => {
            letters(connection, mesh, log, *after, (*limit, *bytes))
        }
        StoreRead::Expired { now, limit } => expired::expired(connection, mesh, *now, *limit),
        StoreRead::Oldest { places } => {
            let sent = places.iter().map(|(log, lane, after)| oldest(connection, mesh, log, *lane, *after));
            Ok(StoreFound::Oldest(sent.collect::<Result<_, Fault>>()?))
        }
        StoreRead::LeaseEnds { before, limit } => lease_end::page(connection, mesh, *before, *limit),
        StoreRead::Ids { places } => {
            let ids = places.iter().map(|(log, seq)| message_at(connection, mesh, log, *seq));
            Ok(StoreFound::Ids(ids.collect::<Result<_, Fault>>()?))
        }
        StoreRead::Audit { before, limit } => access::audit(connection, mesh, *before, *limit),
        StoreRead::Run(run) => Ok(StoreFound::Run(call::get(connection, mesh, *run)?.map(Box::new))),
    }
}

fn log_id(connection: &Connection, mesh: i64, log: &LogName) -> Result<Option<i64>, Fault> {
    Ok(cache::find_log(connection, mesh, log)?.map(|(id, _)| id))
}

fn page(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    (lane, after): (Lane, u64),
    (limit, bytes): (u32, usize),
) -> Result<StoreFound, Fault> {
    let (mut found, mut damaged, mut size) = (Vec::new(), Vec::new(), 0usize);
    if let Some(id) = log_id(connection, mesh, log)? {
        let mut statement = connection.prepare_cached(
            "SELECT place, sent_at, crc, head, body FROM entries
             WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3",
        )?;
        let from = Place::new(id, lane, after).pack();
        let mut rows = statement.query(params![from, Place::last(id, lane).pack(), limit])?;
        while let Some(row) = rows.next()? {
            let place = Place::unpack(row.get(0)?);
            let Some(whole) = entry::read(row, 1, log, place)? else {
                damaged.push(damaged::named(connection, mesh, place, entry::raw(row, 1)?.as_ref())?);
                continue;
            };
            size = size.saturating_add(whole.entry.envelope.body.as_bytes().len());
            if size > bytes && !found.is_empty() {
                break;
            }
            found.push(whole.entry);
        }
    }
    Ok(StoreFound::Page { entries: found, damaged })
}

fn entries(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    lane: Lane,
    seqs: &[u64],
) -> Result<StoreFound, Fault> {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    if let Some(id) = log_id(connection, mesh, log)? {
        let mut seqs = seqs.to_vec();
        seqs.sort_unstable();
        seqs.dedup();
        for seq in seqs {
            match entry::get(connection, log, Place::new(id, lane, seq))? {
                Some(Some(whole)) => found.push(whole.entry),
                Some(None) => damaged.push(named_at(connection, mesh, Place::new(id, lane, seq))?),
                None => {}
            }
        }
    }
    Ok(StoreFound::Page { entries: found, damaged })
}

fn history(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    from: u64,
    (limit, bytes): (u32, usize),
) -> Result<StoreFound, Fault> {
    let Some(id) = log_id(connection, mesh, log)? else {
        return Ok(StoreFound::History { entries: Vec::new(), damaged: Vec::new(), next: None });
    };
    // The places of all lanes first, which are small; then as many bodies as are wanted.
    let mut places = Vec::new();
    for lane in Lane::of_log(log) {
        let mut statement = connection.prepare_cached(
            "SELECT place FROM entries WHERE place >= ?1 AND place <= ?2 ORDER BY place LIMIT ?3",
        )?;
        let first = Place::new(id, *lane, from).pack();
        let range = params![first, Place::last(id, *lane).pack(), i64::from(limit) + 1];
        let mut rows = statement.query(range)?;
        while let Some(row) = rows.next()? {
            places.push(Place::unpack(row.get(0)?));
        }
    }
    places.sort_unstable_by_key(|place| place.seq);
    let (mut found, mut damaged, mut size) = (Vec::new(), Vec::new(), 0usize);
    for (index, place) in places.iter().enumerate() {
        let next = Some(place.seq);
        if index >= limit as usize {
            return Ok(StoreFound::History { entries: found, damaged, next });
        }
        let whole = match entry::get(connection, log, *place)? {
            Some(Some(whole)) => whole,
            Some(None) => {
                damaged.push(place.seq);
                continue;
            }
            None => continue,
        };
        size = size.saturating_add(whole.entry.envelope.body.as_bytes().len());
        if size > bytes && !found.is_empty() {
            return Ok(StoreFound::History { entries: found, damaged, next });
        }
        found.push(whole.entry);
    }
    Ok(StoreFound::History { entries: found, damaged, next: None })
}

/// The damaged entry at `place`.
fn named_at(connection: &Connection, mesh: i64, place: Place) -> Result<DamagedEntry, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT sent_at, crc, head, body FROM entries WHERE place = ?1")?;
    let mut rows = statement.query([place.pack()])?;
    let row = rows.next()?.ok_or_else(|| Fault::corrupt("an entry is there and is not"))?;
    damaged::named(connection, mesh, place, entry::raw(row, 0)?.as_ref())
}

/// Dead letters. One entry's are never torn apart, so that the next page can begin after its seq.
fn letters(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    after: u64,
    (limit, bytes): (u32, usize),
) -> Result<StoreFound, Fault> {
    let (mut letters, mut last, mut looked, mut size) = (Vec::new(), after, 0u32, 0usize);
    let Some(id) = log_id(connection, mesh, log)? else {
        return Ok(StoreFound::Dead { letters, next: None });
    };
    let mut statement = connection.prepare_cached(
        "SELECT seq, lane, grp, attempts, reason, at, sent_at, crc, head, body FROM dead
         WHERE log = ?1 AND seq > ?2 ORDER BY seq, grp",
    )?;
    let mut rows = statement.query(params![id, integer(after)])?;
    while let Some(row) = rows.next()? {
        let seq = natural(row.get(0)?, "a seq")?;
        let place = Place::new(id, Lane(row.get(1)?), seq);
        let whole = entry::read(row, 6, log, place)?;
        let length = whole.as_ref().map_or(0, |whole| whole.entry.envelope.body.as_bytes().len());
        let full = looked >= limit || size.saturating_add(length) > bytes;
        if seq != last && full && looked > 0 {
            return Ok(StoreFound::Dead { letters, next: Some(last) });
        }
        (last, looked, size) = (seq, looked + 1, size.saturating_add(length));
        let group: String = row.get(2)?;
        let (entry, reason) = match whole {
            Some(whole) => (whole.entry, row.get(4)?),
            None => {
                let husk = damaged::husk(connection, mesh, log, place, entry::raw(row, 6)?.as_ref())?;
                (Arc::new(husk), DAMAGED.to_owned())
            }
        };
        letters.push(DeadEntry {
            entry,
            group: dead::group_name(&group)?,
            attempts: row.get(3)?,
            reason,
            at: natural(row.get(5)?, "at")?,
        });
    }
    Ok(StoreFound::Dead { letters, next: None })
}

/// The id of the message at a place of a log, whatever its lane; `None` where there is none, or none that reads.
fn message_at(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    seq: u64,
) -> Result<Option<MessageId>, Fault> {
    let Some(id) = log_id(connection, mesh, log)?.filter(|_| seq <= SEQ_MAX) else { return Ok(None) };
    for lane in Lane::of_log(log) {
        if let Some(whole) = entry::get(connection, log, Place::new(id, *lane, seq))? {
            return Ok(whole.map(|whole| whole.entry.envelope.id));
        }
    }
    Ok(None)
}

fn oldest(
    connection: &Connection,
    mesh: i64,
    log: &LogName,
    lane: Lane,
    after: u64,
) -> Result<Option<u64>, Fault> {
    let Some(id) = log_id(connection, mesh, log)? else { return Ok(None) };
    let found: Option<i64> = connection
        .prepare_cached(
            "SELECT sent_at FROM entries WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT 1",
        )?
        .query_row(params![Place::new(id, lane, after).pack(), Place::last(id, lane).pack()], |row| {
            row.get(0)
        })
        .optional()?;
    found.map(|at| natural(at, "sent_at")).transpose()
}
