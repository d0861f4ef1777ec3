//! Starts of the broker and how long each lasted.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::{Fault, natural};
use super::integer;
use crate::uptime::Uptimes;
use crate::{Result, Run};

/// Begins the next run, and forgets those that no lease can count any more: at or before every lease's
/// `touched_run`, which only grows.
pub(super) fn begin(connection: &Connection, now_wall_ms: u64) -> Result<Run, Fault> {
    let last: i64 = connection
        .prepare_cached("SELECT coalesce(max(run), 0) FROM runs")?
        .query_row([], |row| row.get(0))?;
    let number = natural(last, "the last run")? + 1;
    connection
        .prepare_cached("INSERT INTO runs (run, started_at, uptime_ms) VALUES (?1, ?2, 0)")?
        .execute(params![integer(number), integer(now_wall_ms)])?;
    connection
        .prepare_cached(
            "DELETE FROM runs WHERE run < ?1 AND run <= (SELECT coalesce(min(touched_run), ?1) FROM leases)",
        )?
        .execute([integer(number)])?;
    let believed: Option<i64> = connection
        .prepare_cached("SELECT believed_at FROM clock WHERE one = 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    let believed_at = believed.map(|at| natural(at, "believed_at")).transpose()?;
    if believed_at.is_none() {
        // The first run believes the clock that it finds, and may end before its first beat.
        believe(connection, now_wall_ms)?;
    }
    Ok(Run { number, started_at: now_wall_ms, believed_at })
}

/// Raises the uptime on record of `run`, and keeps the wall clock if it is believed.
pub(super) fn heartbeat(
    connection: &Connection,
    run: u64,
    uptime_ms: u64,
    believed_at: Option<u64>,
) -> Result<(), Fault> {
    if let Some(at) = believed_at {
        believe(connection, at)?;
    }
    connection
        .prepare_cached("UPDATE runs SET uptime_ms = ?2 WHERE run = ?1 AND uptime_ms < ?2")?
        .execute([integer(run), integer(uptime_ms)])?;
    Ok(())
}

fn believe(connection: &Connection, at: u64) -> Result<(), Fault> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO clock (one, believed_at) VALUES (1, ?1)")?
        .execute([integer(at)])?;
    Ok(())
}

/// The uptimes of all runs on record.
pub(super) fn uptimes(connection: &Connection) -> Result<Uptimes, Fault> {
    let mut statement = connection.prepare_cached("SELECT run, uptime_ms FROM runs ORDER BY run")?;
    let rows: Vec<(i64, i64)> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let runs: Vec<(u64, u64)> = rows
        .into_iter()
        .map(|(run, uptime_ms)| Ok((natural(run, "a run")?, natural(uptime_ms, "an uptime")?)))
        .collect::<Result<_, Fault>>()?;
    Ok(Uptimes::from_ascending(runs))
}
