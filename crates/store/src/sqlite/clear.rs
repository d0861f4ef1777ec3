//! The end of a topic: the mark that it is going, and what it holds, a slice at a call.

use rusqlite::{Connection, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{GroupId, StoreOutcome, TopicRecord, TopicState};
use tenure_proto::log::LogName;

use super::cache::Mesh;
use super::fault::{Fault, natural};
use super::place::Place;
use super::{dead, entry, group, topic};
use crate::Result;

/// Marks a topic as going; not if it must be empty and is not. Whether it did.
pub(super) fn end(
    connection: &Connection,
    mesh: &mut Mesh,
    record: &TopicRecord,
    if_empty: bool,
) -> Result<bool, Fault> {
    if if_empty {
        for partition in 0..record.partitions {
            let log = LogName::Topic(record.name.clone(), partition);
            if let Some(log) = mesh.find_log(connection, &log)?
                && holds_something(connection, log.id)?
            {
                return Ok(false);
            }
        }
    }
    topic::put(connection, mesh.id, record)?;
    Ok(true)
}

fn holds_something(connection: &Connection, log: i64) -> Result<bool, Fault> {
    let range = params![Place::first(log, Lane(0)).pack(), Place::last(log, Lane(0)).pack()];
    let entries = connection
        .prepare_cached("SELECT 1 FROM entries WHERE place BETWEEN ?1 AND ?2 LIMIT 1")?
        .exists(range)?;
    let letters = connection.prepare_cached("SELECT 1 FROM dead WHERE log = ?1 LIMIT 1")?.exists([log])?;
    Ok(entries || letters)
}

/// Deletes a slice of what a topic holds; when that was not a full one, the topic is gone and its logs are hidden.
pub(super) fn clear(
    connection: &Connection,
    mesh: &mut Mesh,
    record: &TopicRecord,
    limit: u32,
) -> Result<StoreOutcome, Fault> {
    let mut left = limit;
    for partition in 0..record.partitions {
        let name = LogName::Topic(record.name.clone(), partition);
        let Some(log) = mesh.find_log(connection, &name)?.copied() else { continue };
        left -= groups(connection, mesh.id, log.id, left)?;
        let (gone, last) = entries(connection, log.id, left)?;
        left -= gone;
        // What was removed before its time is told apart from what is missing by how far the lane was pruned.
        let pruned = if left > 0 { log.end() } else { last };
        if pruned > 0 {
            entry::note_tail(connection, &log, Lane(0), pruned)?;
        }
        left -= letters(connection, log.id, left)?;
        if left == 0 {
            return Ok(StoreOutcome::Count { rows: u64::from(limit), more: true });
        }
    }
    for partition in 0..record.partitions {
        let how = if record.state == TopicState::Deleted { 2 } else { 1 };
        mesh.hide_log(connection, &LogName::Topic(record.name.clone(), partition), how)?;
    }
    topic::drop(connection, mesh.id, &record.name)?;
    Ok(StoreOutcome::Count { rows: u64::from(limit - left), more: false })
}

/// Groups of a log with what is open in them, in the order of their numbers; each row counts.
fn groups(connection: &Connection, mesh: i64, log: i64, limit: u32) -> Result<u32, Fault> {
    let mut left = limit;
    while left > 0 {
        let first: Option<i64> = connection
            .prepare_cached("SELECT min(id) FROM groups WHERE mesh = ?1 AND log = ?2")?
            .query_row(params![mesh, log], |row| row.get(0))?;
        let Some(id) = first else { break };
        let closed = connection
            .prepare_cached(
                "DELETE FROM open_entries WHERE mesh = ?1 AND grp = ?2 AND seq IN
                     (SELECT seq FROM open_entries WHERE mesh = ?1 AND grp = ?2 ORDER BY seq LIMIT ?3)",
            )?
            .execute(params![mesh, id, left])?;
        left -= u32::try_from(closed).unwrap_or(left).min(left);
        if left == 0 {
            break;
        }
        group::drop(connection, mesh, GroupId(natural(id, "a group")?))?;
        left -= 1;
    }
    Ok(limit - left)
}

/// The oldest entries of a log: how many went, and the last of them.
fn entries(connection: &Connection, log: i64, limit: u32) -> Result<(u32, u64), Fault> {
    if limit == 0 {
        return Ok((0, 0));
    }
    let range = (Place::first(log, Lane(0)).pack(), Place::last(log, Lane(0)).pack());
    let (gone, last): (i64, Option<i64>) = connection
        .prepare_cached(
            "SELECT count(*), max(place) FROM
                 (SELECT place FROM entries WHERE place BETWEEN ?1 AND ?2 ORDER BY place LIMIT ?3)",
        )?
        .query_row(params![range.0, range.1, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(last) = last else { return Ok((0, 0)) };
    connection
        .prepare_cached("DELETE FROM entries WHERE place BETWEEN ?1 AND ?2")?
        .execute(params![range.0, last])?;
    Ok((u32::try_from(gone).unwrap_or(limit).min(limit), Place::unpack(last).seq))
}

/// Dead letters of a log: why each message is nowhere any more is noted for who sent it.
fn letters(connection: &Connection, log: i64, limit: u32) -> Result<u32, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT rowid FROM dead WHERE log = ?1 ORDER BY seq, grp LIMIT ?2")?;
    let old: Vec<i64> =
        statement.query_map(params![log, limit], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    old.iter().try_for_each(|rowid| dead::sweep_one(connection, *rowid))?;
    Ok(u32::try_from(old.len()).unwrap_or(limit))
}
