//! Rows on their way out: taken, settled, found again at a start, given up when they are too old.

use rusqlite::{Connection, OptionalExtension};
use tenure_outbox::age::EXPIRED;
use tenure_outbox::drain::BATCH_BYTES;
use tenure_outbox::verdict::{LAPSED, Verdict};
use tenure_outbox::{FoundLane, LaneId, Outgoing, Settled, Settlement, Status, Step};
use tenure_proto::ids::SessionKey;

use super::row;
use crate::db::{DbError, integer, natural};

/// Rows that one sweep gives up or deletes, so that it never holds the writer for long.
pub(super) const SLICE: u32 = 1_000;

/// Nobody knows what became of what was on its way: it is sent again, under the same id.
pub(super) fn restart(connection: &Connection) -> Result<u64, DbError> {
    move_all(Step::Restarted, "", |sql| connection.execute(sql, []))
}

/// Begins to drain a lane: marks its oldest rows as sent, before they are. What is marked already is nobody's any more: a
/// session ended before the disk took its last words. It is sent again.
pub(super) fn take(connection: &Connection, lane: LaneId, limit: usize) -> Result<Vec<Outgoing>, DbError> {
    // They are the oldest of the lane.
    let sql = "SELECT id FROM outbox WHERE lane = ?1 AND id > ?2 AND status IN ('pending', 'inflight') \
               ORDER BY id LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut after = 0;
    while let Some(id) = statement.query_row((integer(lane.0), after), |row| row.get(0)).optional()?
        && set(connection, natural(id), Step::Restarted)?
    {
        tracing::warn!(event = "outbox_taken_over", row = id, "its session ended without settling it");
        after = id;
    }
    take_next(connection, lane, limit)
}

/// Goes on with a lane: marks its oldest rows as sent, before they are; none while one of them is. A row that is damaged
/// is dead instead.
fn take_next(connection: &Connection, lane: LaneId, limit: usize) -> Result<Vec<Outgoing>, DbError> {
    let mut taken = Vec::new();
    let (mut bytes, mut last) = (0, 0);
    while taken.len() < limit && bytes < BATCH_BYTES {
        let sql = "SELECT id, status, attempts, length(payload), enqueued_at FROM outbox \
                   WHERE lane = ?1 AND id > ?2 AND status IN ('pending', 'inflight') ORDER BY id LIMIT 1";
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        };
        let next = connection.prepare_cached(sql)?.query_row((integer(lane.0), last), read).optional()?;
        let Some((id, status, attempts, size, since)): Option<(i64, String, i64, i64, i64)> = next else {
            break;
        };
        if status != Status::Pending.as_str() {
            break;
        }
        last = id;
        match mark(connection, natural(id), attempts, natural(since))? {
            Some(row) => {
                bytes += usize::try_from(size).unwrap_or(usize::MAX);
                taken.push(row);
            }
            None => {
                tracing::error!(event = "outbox_row_damaged", row = id, "a row does not match its checksum")
            }
        }
    }
    Ok(taken)
}

/// Marks a row as sent; nothing if it is damaged, and dead.
fn mark(
    connection: &Connection,
    id: u64,
    attempts: i64,
    enqueued_at: u64,
) -> Result<Option<Outgoing>, DbError> {
    set(connection, id, Step::Taken)?;
    let attempts = attempts.saturating_add(1);
    let sql = "UPDATE outbox SET attempts = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((integer(id), attempts))?;
    match row::frozen(connection, id)? {
        Ok(params) => {
            let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
            Ok(Some(Outgoing { id, params, attempts, enqueued_at }))
        }
        Err(error) => {
            record(connection, id, &Verdict::Dead { error }, 0, 0)?;
            Ok(None)
        }
    }
}

/// Records what became of a batch, and takes the next if that is wanted.
pub(super) fn settle(
    connection: &Connection,
    settlement: &Settlement,
    wall: u64,
) -> Result<Settled, DbError> {
    for (id, verdict) in &settlement.verdicts {
        record(connection, *id, verdict, wall, settlement.next_attempt_at)?;
    }
    for id in &settlement.unsent {
        if set(connection, *id, Step::NotSent)? {
            let sql = "UPDATE outbox SET attempts = attempts - 1 WHERE id = ?1 AND attempts > 0";
            connection.prepare_cached(sql)?.execute([integer(*id)])?;
        }
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM outbox WHERE lane = ?1 AND status IN ('pending', 'inflight'))";
    let more = connection.prepare_cached(sql)?.query_row([integer(settlement.lane.0)], |row| row.get(0))?;
    Ok(Settled { more, taken: take_next(connection, settlement.lane, settlement.take)? })
}

/// Records what the broker's answer made of a row that was on its way.
fn record(
    connection: &Connection,
    id: u64,
    verdict: &Verdict,
    wall: u64,
    next_attempt_at: u64,
) -> Result<(), DbError> {
    if !set(connection, id, verdict.step())? {
        return Ok(());
    }
    match verdict {
        Verdict::Done(place) => {
            let sql =
                "UPDATE outbox SET delivered_at = ?2, broker_message_id = ?3, log_seq = ?4 WHERE id = ?1";
            let values = (integer(id), integer(wall), place.id.to_string(), place.seq.map(integer));
            connection.prepare_cached(sql)?.execute(values)?;
            row::empty(connection, id)?;
        }
        Verdict::Again { error, .. } => {
            let sql = "UPDATE outbox SET last_error = ?2, next_attempt_at = ?3 WHERE id = ?1";
            connection.prepare_cached(sql)?.execute((integer(id), error, integer(next_attempt_at)))?;
        }
        Verdict::Dead { error } => {
            let sql = "UPDATE outbox SET last_error = ?2 WHERE id = ?1";
            connection.prepare_cached(sql)?.execute((integer(id), error))?;
        }
        Verdict::Lapsed => {
            let sql = "UPDATE outbox SET last_error = ?2, attempts = max(0, attempts - 1) WHERE id = ?1";
            connection.prepare_cached(sql)?.execute((integer(id), LAPSED))?;
        }
    }
    Ok(())
}

/// Lets a row take a step, if it applies where the row stands.
pub(super) fn set(connection: &Connection, id: u64, step: Step) -> Result<bool, DbError> {
    for from in Status::ALL {
        if let Some(to) = from.after(step) {
            let sql = "UPDATE outbox SET status = ?3 WHERE id = ?1 AND status = ?2";
            let values = (integer(id), from.as_str(), to.as_str());
            if connection.prepare_cached(sql)?.execute(values)? > 0 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The lanes of a session that have rows, with their oldest row.
pub(super) fn lanes(
    connection: &Connection,
    mesh: &str,
    sender: &SessionKey,
) -> Result<Vec<FoundLane>, DbError> {
    // By lanes, not by rows: there may be a hundred thousand of those in one.
    let sql = "SELECT lanes.lane, attempts, next_attempt_at FROM lanes JOIN outbox ON outbox.id = \
               (SELECT id FROM outbox WHERE lane = lanes.lane AND status IN ('pending', 'inflight') ORDER BY id LIMIT 1) \
               WHERE lanes.mesh = ?1 AND lanes.sender = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map((mesh, &sender.0), |row| {
        Ok(FoundLane {
            lane: LaneId(natural(row.get(0)?)),
            attempts: u32::try_from(row.get::<_, i64>(1)?).unwrap_or(u32::MAX),
            next_attempt_at: natural(row.get(2)?),
        })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// The senders that have rows to send, with their meshes.
pub(super) fn senders(connection: &Connection) -> Result<Vec<(String, SessionKey)>, DbError> {
    let sql = "SELECT DISTINCT mesh, sender FROM lanes WHERE EXISTS \
               (SELECT 1 FROM outbox WHERE lane = lanes.lane AND status IN ('pending', 'inflight'))";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map([], |row| Ok((row.get(0)?, SessionKey(row.get(1)?))))?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// Gives up rows of a mesh that were accepted before `cutoff`, a slice at a time; answers how many. Rows from the future, of
/// a clock that was wrong and is right again, were accepted `wall` at the latest, or they would never be too old.
pub(super) fn expire(connection: &Connection, mesh: &str, cutoff: u64, wall: u64) -> Result<u64, DbError> {
    let sql = format!(
        "UPDATE outbox SET enqueued_at = ?1 WHERE id IN (SELECT id FROM outbox INDEXED BY outbox_age \
         WHERE status = 'pending' AND enqueued_at > ?1 AND mesh = ?2 LIMIT {SLICE})"
    );
    connection.prepare_cached(&sql)?.execute((integer(wall), mesh))?;
    let rest = format!(
        ", last_error = '{EXPIRED}' WHERE id IN (SELECT id FROM outbox \
         INDEXED BY outbox_age WHERE status = 'pending' AND enqueued_at < ?1 AND mesh = ?2 ORDER BY enqueued_at LIMIT {SLICE})"
    );
    move_all(Step::Expired, &rest, |sql| connection.execute(sql, (integer(cutoff), mesh)))
}

/// Forgets what was done before `before`, a slice at a time; answers how many. What was taken back is remembered for
/// ever: its id is never free again.
pub(super) fn prune(connection: &Connection, before: u64) -> Result<u64, DbError> {
    let sql = format!(
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox INDEXED BY outbox_done \
         WHERE status = 'done' AND delivered_at < ?1 ORDER BY delivered_at LIMIT {SLICE})"
    );
    Ok(connection.execute(&sql, [integer(before)])? as u64)
}

/// Lets every row that `rest` selects take a step, by the one table of steps.
fn move_all(
    step: Step,
    rest: &str,
    execute: impl Fn(&str) -> rusqlite::Result<usize>,
) -> Result<u64, DbError> {
    let mut moved = 0;
    for from in Status::ALL {
        let Some(to) = from.after(step) else { continue };
        let (from, to) = (from.as_str(), to.as_str());
        let sql = if rest.is_empty() {
            format!("UPDATE outbox SET status = '{to}' WHERE status = '{from}'")
        } else {
            format!("UPDATE outbox SET status = '{to}'{rest} AND status = '{from}'")
        };
        moved += execute(&sql)? as u64;
    }
    Ok(moved)
}
