//! Forgetting what has outlived its time, a slice at a call, so that no slice holds the writer for long.
//!
//! Dedupe records have no index on their time: that would cost an accept a third row. Instead a sweep walks
//! through all of them, and remembers in memory where it was; a restart begins again. Meshes share the walk,
//! since each record says itself when it ends.

use rusqlite::{Connection, params};
use tenure_mesh::store::record::StoreOutcome;
use tenure_proto::ids::SessionKey;
use tenure_proto::log::LogName;

use super::cache::{Cache, find_log};
use super::fault::Fault;
use super::place::Place;
use super::{call, dead, group, integer, lease_end};
use crate::Result;

/// Where the sweeps are.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// The last dedupe record that was looked at.
    dedupe: Option<(i64, String)>,
    /// The last ended session.
    sessions: Option<(i64, i64, [u8; 32])>,
    /// The last entry whose time had come.
    due: Option<(i64, i64)>,
}

/// What a part of a sweep came to.
#[derive(Default)]
struct Part {
    looked: u32,
    gone: u64,
}

/// One slice: at most `limit` rows are looked at.
pub(super) fn sweep(
    connection: &Connection,
    cache: &mut Cache,
    now: u64,
    (dead_before, runs_before): (u64, u64),
    limit: u32,
) -> Result<StoreOutcome, Fault> {
    let (mut left, mut rows) = (limit, 0);
    let mut spend = |part: Part| {
        left -= part.looked.min(left);
        rows += part.gone;
        left
    };
    let left = spend(letters(connection, dead_before, limit)?);
    let left = spend(calls(connection, runs_before, left)?);
    let left = spend(lease_ends(connection, dead_before, left)?);
    let left = spend(sessions(connection, cache, dead_before, left)?);
    let left = spend(settled_dues(connection, cache, now, left)?);
    let left = spend(records(connection, cache, now, left)?);
    Ok(StoreOutcome::Count { rows, more: limit > 0 && left == 0 })
}

fn letters(connection: &Connection, dead_before: u64, limit: u32) -> Result<Part, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT rowid FROM dead WHERE at < ?1 ORDER BY at LIMIT ?2")?;
    let old: Vec<i64> = statement
        .query_map(params![integer(dead_before), limit], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    old.iter().try_for_each(|rowid| dead::sweep_one(connection, *rowid))?;
    Ok(Part { looked: count(&old), gone: old.len() as u64 })
}

fn calls(connection: &Connection, runs_before: u64, limit: u32) -> Result<Part, Fault> {
    let gone = call::forget(connection, runs_before, limit)?;
    Ok(Part { looked: u32::try_from(gone).unwrap_or(u32::MAX), gone })
}

fn lease_ends(connection: &Connection, before: u64, limit: u32) -> Result<Part, Fault> {
    let gone = lease_end::forget(connection, before, limit)?;
    Ok(Part { looked: u32::try_from(gone).unwrap_or(u32::MAX), gone: gone as u64 })
}

/// Ended sessions with nothing in their inbox go, and their inbox is hidden with its groups.
fn sessions(connection: &Connection, cache: &mut Cache, dead_before: u64, limit: u32) -> Result<Part, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT ended_at, mesh, session FROM sessions
         WHERE ended_at IS NOT NULL AND ended_at < ?1 AND (ended_at, mesh, session) > (?2, ?3, ?4)
         ORDER BY ended_at, mesh, session LIMIT ?5",
    )?;
    let after = cache.sweeps.sessions.unwrap_or((-1, 0, [0; 32]));
    let ended: Vec<(i64, i64, [u8; 32])> = statement
        .query_map(params![integer(dead_before), after.0, after.1, after.2, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut gone = 0;
    for (_, mesh, session) in &ended {
        gone += u64::from(forget(connection, cache, *mesh, SessionKey(*session))?);
    }
    if limit > 0 {
        cache.sweeps.sessions = ended.last().copied().filter(|_| count(&ended) == limit);
    }
    Ok(Part { looked: count(&ended), gone })
}

fn forget(connection: &Connection, cache: &mut Cache, mesh: i64, session: SessionKey) -> Result<bool, Fault> {
    let name = LogName::Session(session);
    if let Some((log, _)) = find_log(connection, mesh, &name)? {
        let first = Place { log, lane: Default::default(), seq: 0 }.pack();
        let next = Place { log: log + 1, lane: Default::default(), seq: 0 }.pack().wrapping_sub(1);
        let busy = connection
            .prepare_cached("SELECT 1 FROM entries WHERE place BETWEEN ?1 AND ?2")?
            .exists(params![first, next])?;
        if busy {
            return Ok(false);
        }
        group::drop_inbox(connection, log)?;
        connection.prepare_cached("UPDATE logs SET hidden = 1 WHERE id = ?1")?.execute([log])?;
        cache.forget_log(&name);
    }
    connection
        .prepare_cached("DELETE FROM sessions WHERE mesh = ?1 AND session = ?2")?
        .execute(params![mesh, session.0])?;
    Ok(true)
}

/// Entries that were settled before their time came need not be looked at again when it has come.
fn settled_dues(connection: &Connection, cache: &mut Cache, now: u64, limit: u32) -> Result<Part, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT due, place FROM entries WHERE due IS NOT NULL AND due <= ?1 AND (due, place) > (?2, ?3)
         ORDER BY due, place LIMIT ?4",
    )?;
    let after = cache.sweeps.due.unwrap_or((-1, 0));
    let due: Vec<(i64, i64)> = statement
        .query_map(params![integer(now), after.0, after.1, limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (_, place) in &due {
        if group::is_settled(connection, Place::unpack(*place))? {
            connection.prepare_cached("UPDATE entries SET due = NULL WHERE place = ?1")?.execute([place])?;
        }
    }
    if limit > 0 {
        cache.sweeps.due = due.last().copied().filter(|_| count(&due) == limit);
    }
    Ok(Part { looked: count(&due), gone: 0 })
}

fn records(connection: &Connection, cache: &mut Cache, now: u64, limit: u32) -> Result<Part, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT sender, client_id, expires_at FROM dedupe WHERE (client_id, sender) > (?2, ?1)
         ORDER BY client_id, sender LIMIT ?3",
    )?;
    if limit == 0 {
        return Ok(Part::default());
    }
    let (sender, client_id) = cache.sweeps.dedupe.take().unwrap_or((0, String::new()));
    let mut rows = statement.query(params![sender, client_id, limit])?;
    let (mut looked, mut old, mut last) = (0, Vec::new(), None);
    while let Some(row) = rows.next()? {
        looked += 1;
        let (key, expires_at): ((i64, String), Option<i64>) = ((row.get(0)?, row.get(1)?), row.get(2)?);
        if expires_at.is_some_and(|at| at <= integer(now)) {
            old.push(key.clone());
        }
        last = Some(key);
    }
    drop(rows);
    for (sender, client_id) in &old {
        connection
            .prepare_cached("DELETE FROM dedupe WHERE sender = ?1 AND client_id = ?2")?
            .execute(params![sender, client_id])?;
    }
    if !old.is_empty() {
        connection
            .prepare_cached("UPDATE swept SET at = ?1 WHERE one = 1 AND at < ?1")?
            .execute([integer(now)])?;
    }
    cache.sweeps.dedupe = last.filter(|_| looked == limit);
    Ok(Part { looked, gone: old.len() as u64 })
}

fn count<T>(rows: &[T]) -> u32 {
    u32::try_from(rows.len()).unwrap_or(u32::MAX)
}
