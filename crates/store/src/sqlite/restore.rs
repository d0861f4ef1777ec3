//! What a mesh needs to know of its messages at a start. Its cost follows logs, groups and what is open.

use rusqlite::{Connection, OptionalExtension, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{
    DeletedLog, GroupState, LaneRecord, LogRecord, OpenRecord, Origin, Reader, RestoredMessages,
};
use tenure_proto::log::LogName;
use tenure_proto::name::MeshName;

use super::cache::{self, Tail};
use super::fault::{Fault, natural};
use super::place::Place;
use super::{call, entry, group, service, session, topic};
use crate::Result;

/// Logs of deleted topics that a start reads.
const DELETED_LOGS: u32 = 100_000;

/// All of it.
pub(super) fn restore(connection: &Connection, mesh: &MeshName) -> Result<RestoredMessages, Fault> {
    let Some(mesh) = cache::find_mesh(connection, mesh)? else { return Ok(RestoredMessages::default()) };
    Ok(RestoredMessages {
        topics: topic::all(connection, mesh)?,
        deleted: deleted(connection, mesh)?,
        logs: logs(connection, mesh)?,
        groups: groups(connection, mesh)?,
        subs: topic::subs(connection, mesh)?,
        left: session::left(connection, mesh)?,
        runs: call::living(connection, mesh)?,
        services: service::all(connection, mesh)?,
    })
}

fn logs(connection: &Connection, mesh: i64) -> Result<Vec<LogRecord>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT id, name FROM logs WHERE mesh = ?1 AND hidden = 0")?;
    let mut rows = statement.query([mesh])?;
    let mut logs = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
        let log: LogName = topic::parse(&name, "a log")?;
        let lanes = lanes(connection, id, &log)?;
        logs.push(LogRecord { log, lanes });
    }
    logs.sort_by(|a, b| a.log.cmp(&b.log));
    Ok(logs)
}

/// Logs of deleted topics; of very many the newest.
fn deleted(connection: &Connection, mesh: i64) -> Result<Vec<DeletedLog>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT id, name, hidden FROM logs WHERE mesh = ?1 AND hidden > 0 AND name GLOB 'topic/*'
         ORDER BY id DESC LIMIT ?2",
    )?;
    let mut rows = statement.query(params![mesh, DELETED_LOGS])?;
    let mut logs = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, name, hidden): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let log: LogName = topic::parse(&name, "a log")?;
        let lanes = lanes(connection, id, &log)?;
        logs.push(DeletedLog { record: LogRecord { log, lanes }, told: hidden == 2 });
    }
    logs.sort_by(|a, b| a.record.log.cmp(&b.record.log));
    Ok(logs)
}

fn lanes(connection: &Connection, id: i64, log: &LogName) -> Result<[LaneRecord; 3], Fault> {
    let mut lanes = cache::tails(connection, id, log)?.map(|Tail { end, count, bytes }| LaneRecord {
        end,
        count,
        bytes,
        pruned: 0,
    });
    let mut statement = connection.prepare_cached("SELECT lane, pruned FROM lanes WHERE log = ?1")?;
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        let lane: u8 = row.get(0)?;
        if let Some(record) = lanes.get_mut(usize::from(lane)) {
            record.pruned = natural(row.get(1)?, "pruned")?;
        }
    }
    Ok(lanes)
}

fn groups(connection: &Connection, mesh: i64) -> Result<Vec<GroupState>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT groups.id, log, logs.name, lane, cursor, used_at, kind, groups.name, session, owner
         FROM groups JOIN logs ON logs.id = log WHERE groups.mesh = ?1 ORDER BY groups.id",
    )?;
    let mut rows = statement.query([mesh])?;
    let mut groups = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, log, name): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (log_name, reader) = (topic::parse(&name, "a log")?, group::reader(row, 6)?);
        let record = group::record(id, log_name, row.get(3)?, reader, row.get(9)?)?;
        let cursor = natural(row.get(4)?, "a cursor")?;
        let opened = group::opened(connection, (mesh, id), 0, u32::MAX)?;
        let origin = |open: OpenRecord| {
            let inbox = record.reader == Reader::Inbox;
            let place = Place::new(log, record.lane, open.seq);
            let origin = if inbox { origin(connection, &record.log, place)? } else { None };
            Ok((open, origin))
        };
        let open = opened.into_iter().map(origin).collect::<Result<_, Fault>>()?;
        groups.push(GroupState {
            passed: passed(connection, log, record.lane, cursor, &record.log)?,
            used_at: natural(row.get(5)?, "used_at")?,
            record,
            cursor,
            open,
            settlers: group::settlers(connection, (mesh, id))?,
        });
    }
    Ok(groups)
}

/// The totals of a lane before the first entry after `cursor`, or all of them when there is none.
pub(super) fn passed(
    connection: &Connection,
    log: i64,
    lane: Lane,
    cursor: u64,
    name: &LogName,
) -> Result<(u64, u64), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT count - 1, bytes - octet_length(body) FROM entries
         WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT 1",
    )?;
    let range = params![Place::new(log, lane, cursor).pack(), Place::last(log, lane).pack()];
    let next: Option<(i64, i64)> =
        statement.query_row(range, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    match next {
        Some((count, bytes)) => Ok((natural(count, "a count")?, natural(bytes, "a size")?)),
        None => {
            let tail = cache::tails(connection, log, name)?[lane.index().min(2)];
            Ok((tail.count, tail.bytes))
        }
    }
}

fn origin(connection: &Connection, log: &LogName, place: Place) -> Result<Option<Origin>, Fault> {
    let whole = entry::get(connection, log, place)?.flatten();
    Ok(whole.map(|whole| {
        let envelope = &whole.entry.envelope;
        Origin {
            session: envelope.from.session,
            id: envelope.id,
            client_message_id: envelope.client_message_id.clone(),
        }
    }))
}
