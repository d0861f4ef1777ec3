//! Deleting the oldest entries of a lane: those that everybody has settled and that are old enough, and those for
//! which there is no room.

use rusqlite::{Connection, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{Burial, StoreOutcome};
use tenure_proto::log::LogName;

use super::cache::Mesh;
use super::fault::{Fault, natural};
use super::place::Place;
use super::{dead, entry};
use crate::Result;
use crate::fate::RETENTION;

/// What may go.
pub(super) struct Slice {
    pub(super) through: u64,
    pub(super) before: u64,
    pub(super) keep_bytes: Option<u64>,
    pub(super) at: u64,
    pub(super) limit: u32,
}

/// Deletes a slice from the front of a lane.
pub(super) fn prune(
    connection: &Connection,
    mesh: &mut Mesh,
    (name, lane): (&LogName, Lane),
    slice: &Slice,
) -> Result<StoreOutcome, Fault> {
    let nothing = StoreOutcome::Pruned { through: 0, more: false };
    let Some(log) = mesh.find_log(connection, name)? else { return Ok(nothing) };
    let (id, end, total) = (log.id, log.end(), log.tails[lane.index()].bytes);
    let places = oldest(connection, (id, lane, end, total), slice)?;
    let Some(last) = places.last().copied() else { return Ok(nothing) };
    for place in places.iter().filter(|place| place.seq > slice.through) {
        // Somebody has not settled it: it must be found again.
        let burial = Burial {
            log: name.clone(),
            lane,
            seq: place.seq,
            group: None,
            attempts: 0,
            reason: RETENTION.to_owned(),
            at: slice.at,
            remove: false,
        };
        dead::bury(connection, mesh, &burial)?;
    }
    let log = mesh.need_log(connection, name)?;
    connection
        .prepare_cached("DELETE FROM entries WHERE place > ?1 AND place <= ?2")?
        .execute(params![Place::first(id, lane).pack(), last.pack()])?;
    entry::note_tail(connection, log, lane, last.seq)?;
    let more = places.len() as u64 >= u64::from(slice.limit);
    Ok(StoreOutcome::Pruned { through: last.seq, more })
}

/// The first entries of a lane that may go, without a gap.
fn oldest(
    connection: &Connection,
    (log, lane, end, total): (i64, Lane, u64, u64),
    slice: &Slice,
) -> Result<Vec<Place>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT place, sent_at, bytes FROM entries WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3",
    )?;
    let last = Place::new(log, lane, end).pack();
    let mut rows = statement.query(params![Place::first(log, lane).pack(), last, slice.limit])?;
    let mut places = Vec::new();
    while let Some(row) = rows.next()? {
        let place = Place::unpack(row.get(0)?);
        let old = place.seq <= slice.through && natural(row.get(1)?, "sent_at")? < slice.before;
        let newer = total.saturating_sub(natural(row.get(2)?, "a size")?);
        let no_room = slice.keep_bytes.is_some_and(|keep| newer >= keep);
        if !(old || no_room) {
            break;
        }
        places.push(place);
    }
    Ok(places)
}
