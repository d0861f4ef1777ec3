//! Dead letters: copies of entries that somebody could not settle.

use rusqlite::{Connection, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::Burial;
use tenure_proto::log::LogName;
use tenure_proto::name::GroupName;

use super::cache::Mesh;
use super::fault::{Fault, natural};
use super::place::Place;
use super::topic::parse;
use super::{accept, entry, group, integer};
use crate::{Result, head};

/// A dead letter that was taken out: lane, seq, group, attempts.
pub(super) type Letter = (Lane, u64, Option<GroupName>, u32);

/// Copies an entry to the dead letters, byte for byte, so that a damaged one can go there too.
pub(super) fn bury(connection: &Connection, mesh: &mut Mesh, burial: &Burial) -> Result<(), Fault> {
    let Some(log) = mesh.find_log(connection, &burial.log)? else { return Ok(()) };
    let place = Place::new(log.id, burial.lane, burial.seq);
    let copied = connection
        .prepare_cached(
            "INSERT OR REPLACE INTO dead (log, seq, grp, lane, attempts, reason, at,
                                          sent_at, due, count, bytes, crc, head, body)
             SELECT ?2, ?3, ?4, ?5, ?6, ?7, ?8, sent_at, due, count, bytes, crc, head, body
             FROM entries WHERE place = ?1",
        )?
        .execute(params![
            place.pack(),
            place.log,
            integer(place.seq),
            burial.group.as_ref().map_or("", GroupName::as_str),
            place.lane.0,
            burial.attempts,
            burial.reason,
            integer(burial.at),
        ])?;
    if copied > 0 && burial.remove {
        entry::remove(connection, log, place)?;
        group::close_everywhere(connection, place)?;
    }
    Ok(())
}

/// Takes dead letters out again, only those of `crews` if said, and puts their entries back if they have left the
/// log.
pub(super) fn revive(
    connection: &Connection,
    mesh: &mut Mesh,
    log: &LogName,
    seqs: &[u64],
    crews: Option<&[GroupName]>,
) -> Result<Vec<Letter>, Fault> {
    let Some(id) = mesh.find_log(connection, log)?.map(|log| log.id) else { return Ok(Vec::new()) };
    let mut revived = Vec::new();
    for seq in sorted(seqs) {
        let mut letters = letters(connection, id, seq)?;
        if let Some(crews) = crews {
            letters.retain(|(_, _, group, _)| group.as_ref().is_some_and(|group| crews.contains(group)));
        }
        let Some((lane, ..)) = letters.first() else { continue };
        let log = mesh.need_log(connection, log)?;
        connection
            .prepare_cached(
                "INSERT OR IGNORE INTO entries (place, sent_at, due, count, bytes, crc, head, body)
                 SELECT ?1, sent_at, due, count, bytes, crc, head, body FROM dead
                 WHERE log = ?2 AND seq = ?3 LIMIT 1",
            )?
            .execute(params![Place::new(log.id, *lane, seq).pack(), log.id, integer(seq)])?;
        let place = Place::new(log.id, *lane, seq);
        for (_, _, group, attempts) in &letters {
            delete_one(connection, log.id, seq, group.as_ref())?;
            group::reopen(connection, place, group.as_ref(), *attempts)?;
        }
        revived.extend(letters);
    }
    Ok(revived)
}

/// Forgets dead letters; how many.
pub(super) fn forget(
    connection: &Connection,
    mesh: &mut Mesh,
    log: &LogName,
    seqs: &[u64],
) -> Result<u64, Fault> {
    let Some(log) = mesh.find_log(connection, log)? else { return Ok(0) };
    let (id, mut gone) = (log.id, 0);
    for seq in sorted(seqs) {
        let Some((lane, ..)) = letters(connection, id, seq)?.into_iter().next() else { continue };
        note_loss(connection, mesh.id, Place::new(id, lane, seq))?;
        gone += delete(connection, id, seq)?;
    }
    Ok(gone)
}

/// Notes why the message at `place` is nowhere any more, if its only dead letters are about to go.
pub(super) fn note_loss(connection: &Connection, mesh: i64, place: Place) -> Result<(), Fault> {
    if entry::exists(connection, place)? {
        return Ok(());
    }
    let mut statement = connection
        .prepare_cached("SELECT head, reason FROM dead WHERE log = ?1 AND seq = ?2 ORDER BY grp LIMIT 1")?;
    let mut rows = statement.query(params![place.log, integer(place.seq)])?;
    let Some(row) = rows.next()? else { return Ok(()) };
    let (head, reason): (Vec<u8>, String) = (row.get(0)?, row.get(1)?);
    // A head that does not read names nobody to note it for.
    let Some((envelope, _)) = head::decode(&head, b"", 0) else { return Ok(()) };
    let sender = super::cache::find_sender(connection, mesh, &envelope.scope())?;
    let Some(sender) = sender else { return Ok(()) };
    accept::mark_lost(connection, sender, (&envelope.client_message_id, envelope.id), &reason)
}

fn letters(connection: &Connection, log: i64, seq: u64) -> Result<Vec<Letter>, Fault> {
    let mut statement = connection
        .prepare_cached("SELECT lane, grp, attempts FROM dead WHERE log = ?1 AND seq = ?2 ORDER BY grp")?;
    let mut rows = statement.query(params![log, integer(seq)])?;
    let mut letters = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(1)?;
        letters.push((Lane(row.get(0)?), seq, group_name(&name)?, row.get(2)?));
    }
    Ok(letters)
}

fn delete_one(connection: &Connection, log: i64, seq: u64, group: Option<&GroupName>) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM dead WHERE log = ?1 AND seq = ?2 AND grp = ?3")?
        .execute(params![log, integer(seq), group.map_or("", GroupName::as_str)])?;
    Ok(())
}

fn delete(connection: &Connection, log: i64, seq: u64) -> Result<u64, Fault> {
    let gone = connection
        .prepare_cached("DELETE FROM dead WHERE log = ?1 AND seq = ?2")?
        .execute(params![log, integer(seq)])?;
    Ok(gone as u64)
}

/// Deletes one dead letter that is older than the sweep allows; gives its place and the mesh it was in.
pub(super) fn sweep_one(connection: &Connection, rowid: i64) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT dead.log, lane, seq, mesh,
                (SELECT count(*) FROM dead AS other WHERE other.log = dead.log AND other.seq = dead.seq)
         FROM dead JOIN logs ON logs.id = dead.log WHERE dead.rowid = ?1",
    )?;
    let (log, lane, seq, mesh, twins): (i64, u8, i64, i64, i64) = statement
        .query_row([rowid], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?;
    if twins == 1 {
        note_loss(connection, mesh, Place::new(log, Lane(lane), natural(seq, "a seq")?))?;
    }
    connection.prepare_cached("DELETE FROM dead WHERE rowid = ?1")?.execute([rowid])?;
    Ok(())
}

/// A group's name as the dead letters have it.
pub(super) fn group_name(text: &str) -> Result<Option<GroupName>, Fault> {
    if text.is_empty() { Ok(None) } else { parse(text, "a group").map(Some) }
}

fn sorted(seqs: &[u64]) -> Vec<u64> {
    let mut seqs = seqs.to_vec();
    seqs.sort_unstable();
    seqs.dedup();
    seqs
}
