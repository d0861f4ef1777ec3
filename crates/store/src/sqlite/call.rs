//! Runs of agents: a row for each, with how it ended.

use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_mesh::messages::envelope::Envelope;
use tenure_mesh::store::record::{RunEnding, RunRecord};
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::run::RunState;

use super::fault::{Fault, natural};
use super::place::Place;
use super::{cache, integer};
use crate::Result;

/// What [`record`] reads.
const COLUMNS: &str =
    "id, caller, caller_session, callee, callee_member, place, state, last_seq, result, error,
    deadline, started_at, ended_at, cancelled,
    coalesce((SELECT octet_length(body) FROM entries WHERE entries.place = calls.place), 0)";

/// Keeps a run whose message was accepted at `place`.
pub(super) fn start(
    connection: &Connection,
    mesh: i64,
    envelope: &Envelope,
    place: Place,
    deadline: u64,
) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO calls
                 (mesh, id, client_id, caller, caller_session, place, state, last_seq, deadline, started_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'queued', 0, ?7, ?8)",
        )?
        .execute(params![
            mesh,
            envelope.id.0.to_be_bytes(),
            &*envelope.client_message_id,
            envelope.from.member.0,
            envelope.from.session.0,
            place.pack(),
            integer(deadline),
            integer(envelope.sent_at),
        ])?;
    Ok(())
}

/// Notes who answers a run, if nobody did.
pub(super) fn claim(
    connection: &Connection,
    mesh: i64,
    run: RunId,
    callee: &SessionKey,
    member: &MemberKey,
) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "UPDATE calls SET callee = ?3, callee_member = ?4, state = 'running'
             WHERE mesh = ?1 AND id = ?2 AND state = 'queued'",
        )?
        .execute(params![mesh, run.0.to_be_bytes(), callee.0, member.0])?;
    Ok(())
}

/// Notes that a run's caller wants it stopped.
pub(super) fn cancel(connection: &Connection, mesh: i64, run: RunId) -> Result<(), Fault> {
    connection
        .prepare_cached("UPDATE calls SET cancelled = 1 WHERE mesh = ?1 AND id = ?2 AND ended_at IS NULL")?
        .execute(params![mesh, run.0.to_be_bytes()])?;
    Ok(())
}

/// Notes how a run ended, if it had not.
pub(super) fn end(connection: &Connection, mesh: i64, ending: &RunEnding) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "UPDATE calls SET state = ?3, last_seq = ?4, result = ?5, error = ?6, ended_at = ?7
             WHERE mesh = ?1 AND id = ?2 AND ended_at IS NULL",
        )?
        .execute(params![
            mesh,
            ending.id.0.to_be_bytes(),
            name(ending.state),
            integer(ending.last_seq),
            ending.result.as_ref().map(json).transpose()?,
            ending.error.as_ref().map(json).transpose()?,
            integer(ending.at),
        ])?;
    Ok(())
}

/// A run, if it is remembered.
pub(super) fn get(connection: &Connection, mesh: i64, run: RunId) -> Result<Option<RunRecord>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM calls WHERE mesh = ?1 AND id = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![mesh, run.0.to_be_bytes()])?;
    rows.next()?.map(|row| record(connection, row)).transpose()
}

/// Runs that have not ended, in the order of their ids.
pub(super) fn living(connection: &Connection, mesh: i64) -> Result<Vec<RunRecord>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM calls WHERE mesh = ?1 AND ended_at IS NULL ORDER BY id");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([mesh])?;
    let mut living = Vec::new();
    while let Some(row) = rows.next()? {
        living.push(record(connection, row)?);
    }
    Ok(living)
}

/// Deletes at most `limit` runs that ended before a moment; how many.
pub(super) fn forget(connection: &Connection, before: u64, limit: u32) -> Result<u64, Fault> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM calls WHERE rowid IN
                 (SELECT rowid FROM calls WHERE ended_at IS NOT NULL AND ended_at < ?1
                  ORDER BY ended_at LIMIT ?2)",
        )?
        .execute(params![integer(before), limit])?;
    Ok(gone as u64)
}

fn record(connection: &Connection, row: &Row<'_>) -> Result<RunRecord, Fault> {
    let id = RunId(u128::from_be_bytes(row.get(0)?));
    let place = Place::unpack(row.get(5)?);
    let (_, log) = cache::log_name(connection, place.log)?;
    let callee: Option<[u8; 32]> = row.get(3)?;
    let member: Option<[u8; 32]> = row.get(4)?;
    let state: String = row.get(6)?;
    let ended_at: Option<i64> = row.get(12)?;
    Ok(RunRecord {
        id,
        caller: MemberKey(row.get(1)?),
        caller_session: SessionKey(row.get(2)?),
        callee: callee.zip(member).map(|(session, member)| (SessionKey(session), MemberKey(member))),
        log,
        lane: place.lane,
        seq: place.seq,
        size: natural(row.get(14)?, "a size")?,
        state: state_of(&state).ok_or_else(|| Fault::corrupt(format!("run {id} is {state}")))?,
        cancelled: row.get(13)?,
        last_seq: natural(row.get(7)?, "last_seq")?,
        result: unjson(row, 8)?,
        error: unjson(row, 9)?,
        deadline: natural(row.get(10)?, "a deadline")?,
        started_at: natural(row.get(11)?, "started_at")?,
        ended_at: ended_at.map(|at| natural(at, "ended_at")).transpose()?,
    })
}

fn name(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Ok => "ok",
        RunState::Error => "error",
        RunState::Cancelled => "cancelled",
    }
}

fn state_of(text: &str) -> Option<RunState> {
    use RunState::{Cancelled, Error, Ok, Queued, Running};
    [Queued, Running, Ok, Error, Cancelled].into_iter().find(|state| name(*state) == text)
}

fn json(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|_| Fault::corrupt("a result is no JSON"))
}

fn unjson<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> Result<Option<T>, Fault> {
    let text: Option<String> = row.get(index)?;
    let wrong = |error: serde_json::Error| {
        rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
    };
    Ok(text.map(|text| serde_json::from_str(&text).map_err(wrong)).transpose()?)
}

/// Runs that live: what a check looks at. With each its place, and whether its message is known to be lost.
pub(super) fn walk(
    connection: &Connection,
    mut look: impl FnMut(RunId, Place, bool) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT calls.id, calls.place, coalesce(lost IS NOT NULL, 0) FROM calls
         LEFT JOIN senders ON senders.mesh = calls.mesh AND senders.member = calls.caller
         LEFT JOIN dedupe ON dedupe.client_id = calls.client_id AND dedupe.sender = senders.id
         WHERE calls.ended_at IS NULL ORDER BY calls.place",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        look(RunId(u128::from_be_bytes(row.get(0)?)), Place::unpack(row.get(1)?), row.get(2)?)?;
    }
    Ok(())
}
