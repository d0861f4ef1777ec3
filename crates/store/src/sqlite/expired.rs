//! Entries whose time has run out.
//!
//! Those with a time of their own are in an index. The others of an inbox live for a week, and lie in their lane
//! in the order they came, so only what is open and the first that was never read need a look.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tenure_mesh::messages::envelope::{Entry, Lane};
use tenure_mesh::store::record::StoreFound;
use tenure_proto::limits::INBOX_TTL_MS;
use tenure_proto::log::LogName;

use super::fault::Fault;
use super::place::Place;
use super::topic::parse;
use super::{cache, entry, group, integer};
use crate::Result;

/// At most `limit` of them.
pub(super) fn expired(connection: &Connection, mesh: i64, now: u64, limit: u32) -> Result<StoreFound, Fault> {
    let mut found = Vec::new();
    with_a_time(connection, mesh, now, limit as usize, &mut found)?;
    let mut statement = connection.prepare_cached(
        "SELECT id, name FROM logs WHERE mesh = ?1 AND name BETWEEN 'inbox/' AND 'inbox0' AND hidden = 0",
    )?;
    let mut rows = statement.query([mesh])?;
    while let Some(row) = rows.next()? {
        let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
        let log: LogName = parse(&name, "a log")?;
        for lane in Lane::ALL {
            if found.len() < limit as usize {
                after_a_week(connection, (&log, id, lane), now, limit as usize, &mut found)?;
            }
        }
    }
    Ok(StoreFound::Expired(found))
}

fn with_a_time(
    connection: &Connection,
    mesh: i64,
    now: u64,
    limit: usize,
    found: &mut Vec<Arc<Entry>>,
) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT place FROM entries WHERE due IS NOT NULL AND due <= ?1 ORDER BY due, place",
    )?;
    let mut rows = statement.query([integer(now)])?;
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let place = Place::unpack(row.get(0)?);
        let (owner, log) = cache::log_name(connection, place.log)?;
        if owner == mesh && !(log.is_inbox() && group::is_settled(connection, place)?) {
            found.extend(entry::get(connection, &log, place)?.flatten().map(|whole| whole.entry));
        }
    }
    Ok(())
}

fn after_a_week(
    connection: &Connection,
    (log, id, lane): (&LogName, i64, Lane),
    now: u64,
    limit: usize,
    found: &mut Vec<Arc<Entry>>,
) -> Result<(), Fault> {
    let Some(sent_by) = now.checked_sub(INBOX_TTL_MS) else { return Ok(()) };
    // One that was held back has its week from then on.
    let old = |whole: &entry::Whole| {
        let entry = &whole.entry;
        entry.envelope.expires_at.is_none() && entry.expires_at().is_some_and(|at| at <= now)
    };
    let group = group::of_inbox(connection, id, lane)?;
    if let Some((mesh, group, _)) = group {
        for open in group::opened(connection, (mesh, group), 0, u32::MAX)? {
            let whole = entry::get(connection, log, Place::new(id, lane, open.seq))?.flatten();
            found.extend(whole.filter(old).map(|whole| whole.entry));
        }
    }
    let unread = Place::new(id, lane, group.map_or(0, |(_, _, cursor)| cursor));
    let mut statement = connection.prepare_cached(
        "SELECT place, sent_at, crc, head, body FROM entries
         WHERE place > ?1 AND place <= ?2 ORDER BY place",
    )?;
    let mut rows = statement.query(params![unread.pack(), Place::last(id, lane).pack()])?;
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let sent_at: i64 = row.get(1)?;
        if sent_at > integer(sent_by) {
            break;
        }
        let whole = entry::read(row, 1, log, Place::unpack(row.get(0)?))?;
        found.extend(whole.filter(old).map(|whole| whole.entry));
    }
    found.truncate(limit);
    Ok(())
}
