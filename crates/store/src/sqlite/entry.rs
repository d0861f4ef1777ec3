//! Entries as rows: into their log, out of it, and how they read.

use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, Row, params};
use tenure_mesh::messages::envelope::{Body, Entry, Envelope, Lane};
use tenure_proto::log::LogName;

use super::cache::{Log, Tail};
use super::fault::Fault;
use super::integer;
use super::place::{Place, SEQ_MAX};
use crate::head;
use crate::{Result, StoreError};

/// The seq of the next entry of `log`, if there is a number left for it.
pub(super) fn next_seq(log: &Log) -> Option<u64> {
    Some(log.end() + 1).filter(|seq| *seq <= SEQ_MAX)
}

/// The statement with which [`append`] appends.
pub(super) fn appending(connection: &Connection) -> Result<CachedStatement<'_>, Fault> {
    Ok(connection.prepare_cached(
        "INSERT INTO entries (place, sent_at, due, count, bytes, crc, head, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?)
}

/// Appends `envelope` to `log` as `seq`, which is the next.
pub(super) fn append(
    appending: &mut CachedStatement<'_>,
    log: &mut Log,
    (lane, seq): (Lane, u64),
    envelope: &Envelope,
    remember_until: Option<u64>,
    scratch: &mut Vec<u8>,
) -> Result<(), Fault> {
    let body = envelope.body.as_bytes();
    let before = log.tails[lane.index()];
    let tail =
        Tail { end: seq, count: before.count + 1, bytes: before.bytes.saturating_add(body.len() as u64) };
    let place = Place::new(log.id, lane, seq).pack();
    head::encode(envelope, remember_until, scratch);
    let value = match &envelope.body {
        Body::Text(_) => ValueRef::Text(body),
        Body::Bytes(_) => ValueRef::Blob(body),
    };
    appending.execute(params![
        place,
        integer(envelope.sent_at),
        envelope.expires_at.map(integer),
        integer(tail.count),
        integer(tail.bytes),
        checksum(place, integer(envelope.sent_at), scratch, body),
        &*scratch,
        ToSqlOutput::Borrowed(value),
    ])?;
    log.tails[lane.index()] = tail;
    Ok(())
}

/// Takes the entry at `place` out of `log`; whether there was one.
pub(super) fn remove(connection: &Connection, log: &Log, place: Place) -> Result<bool, Fault> {
    let gone = connection.prepare_cached("DELETE FROM entries WHERE place = ?1")?.execute([place.pack()])?;
    if gone > 0 && log.tails[place.lane.index()].end == place.seq {
        note_tail(connection, log, place.lane, 0)?;
    }
    Ok(gone > 0)
}

/// Notes how far a lane is, so that it stays known when its last entry is gone, and how far it was pruned.
pub(super) fn note_tail(connection: &Connection, log: &Log, lane: Lane, pruned: u64) -> Result<(), Fault> {
    let tail = log.tails[lane.index()];
    connection
        .prepare_cached(
            "INSERT INTO lanes (log, lane, last_seq, count, bytes, pruned) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET last_seq = excluded.last_seq, count = excluded.count,
                 bytes = excluded.bytes, pruned = max(pruned, excluded.pruned)",
        )?
        .execute(params![
            log.id,
            lane.0,
            integer(tail.end),
            integer(tail.count),
            integer(tail.bytes),
            integer(pruned),
        ])?;
    Ok(())
}

/// Forgets the times that the senders of these entries gave them.
pub(super) fn unexpire(connection: &Connection, log: i64, lane: Lane, seqs: &[u64]) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached("UPDATE entries SET due = NULL WHERE place = ?1")?;
    for seq in seqs {
        statement.execute([Place::new(log, lane, *seq).pack()])?;
    }
    Ok(())
}

/// Whether there is an entry at `place`.
pub(super) fn exists(connection: &Connection, place: Place) -> Result<bool, Fault> {
    Ok(connection.prepare_cached("SELECT 1 FROM entries WHERE place = ?1")?.exists([place.pack()])?)
}

/// What an entry's bytes are checked by.
pub(super) fn checksum(place: i64, sent_at: i64, head: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&place.to_be_bytes());
    let crc = crc32c::crc32c_append(crc, &sent_at.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, head), body)
}

/// An entry as it lies in its row.
pub(super) struct Raw<'r> {
    pub(super) sent_at: i64,
    pub(super) crc: i64,
    pub(super) head: &'r [u8],
    pub(super) body: &'r [u8],
    pub(super) text: bool,
}

/// The entry in `row`, whose columns `sent_at, crc, head, body` begin at `first`; `None` if a column is not what it should be.
pub(super) fn raw<'r>(row: &'r Row<'_>, first: usize) -> Result<Option<Raw<'r>>, Fault> {
    let (sent_at, crc) = (row.get_ref(first)?, row.get_ref(first + 1)?);
    let (ValueRef::Integer(sent_at), ValueRef::Integer(crc)) = (sent_at, crc) else { return Ok(None) };
    let ValueRef::Blob(head) = row.get_ref(first + 2)? else { return Ok(None) };
    Ok(match row.get_ref(first + 3)? {
        ValueRef::Text(body) => Some(Raw { sent_at, crc, head, body, text: true }),
        ValueRef::Blob(body) => Some(Raw { sent_at, crc, head, body, text: false }),
        _ => None,
    })
}

/// An entry that matches its checksum, with what only its row knows.
pub(super) struct Whole {
    pub(super) entry: Arc<Entry>,
    /// Until when its id is remembered.
    pub(super) remember_until: Option<u64>,
}

/// The entry at `place` of `log` in `row`, whose columns `sent_at, crc, head, body` begin at `first`; `None` if its bytes are damaged.
pub(super) fn read(row: &Row<'_>, first: usize, log: &LogName, place: Place) -> Result<Option<Whole>, Fault> {
    let Some(raw) = raw(row, first)? else { return Ok(None) };
    if i64::from(checksum(place.pack(), raw.sent_at, raw.head, raw.body)) != raw.crc {
        return Ok(None);
    }
    let Some((envelope, remember_until)) = decode(&raw) else { return Ok(None) };
    let entry = Arc::new(Entry::new(log.clone(), place.lane, place.seq, Arc::new(envelope)));
    Ok(Some(Whole { entry, remember_until }))
}

fn decode(raw: &Raw<'_>) -> Option<(Envelope, Option<u64>)> {
    let sent_at = u64::try_from(raw.sent_at).ok()?;
    let (envelope, remember_until) = head::decode(raw.head, raw.body, sent_at)?;
    let same = matches!(envelope.body, Body::Text(_)) == raw.text;
    same.then_some((envelope, remember_until))
}

/// The entry at `place` of `log`: absent, damaged or whole.
pub(super) fn get(
    connection: &Connection,
    log: &LogName,
    place: Place,
) -> Result<Option<Option<Whole>>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT sent_at, crc, head, body FROM entries WHERE place = ?1")?;
    let mut rows = statement.query([place.pack()])?;
    rows.next()?.map(|row| read(row, 0, log, place)).transpose()
}

/// What is said when a log can number no more entries.
pub(super) fn full(log: &LogName) -> Fault {
    StoreError::Unavailable(format!("no seq is left in the log {log}")).into()
}
