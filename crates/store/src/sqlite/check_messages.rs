//! Whether the messages are sound: every table walked once, in its own order, with a look-up or two for each row.
//!
//! What may be missing without a finding: an entry that was pruned, that is a dead letter or was one; the dedupe
//! record of an entry whose time to be remembered was over at the last sweep.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_proto::ids::MessageId;
use tenure_proto::log::LogName;

use super::cache;
use super::entry::{self, Whole};
use super::fault::{Fault, natural};
use super::integer;
use super::place::Place;
use super::{accept, call};
use crate::Result;
use crate::check::{Report, Totals, Walk};

/// Rows of one slice.
const SLICE: i64 = 500;
/// Bytes of bodies after which a slice is over.
const SLICE_BYTES: usize = 4 * 1024 * 1024;
/// Places without an entry that are remembered until all records were seen.
const HOLES_MAX: usize = 100_000;

/// Reports what is wrong with lanes, groups, what is open and runs; and the places of which no record was seen either.
pub(super) fn readers(connection: &Connection, walk: &mut Walk, report: &mut Report) -> Result<(), Fault> {
    let mut names = Where::default();
    for place in std::mem::take(&mut walk.holes) {
        let name = names.name(connection, Place::unpack(place))?;
        report.violation(format!("{name}: the entry and its dedupe record are both gone"));
    }
    for part in [lanes, groups, opens, calls] {
        let outcome = part(connection, report);
        report.note(outcome)?;
    }
    Ok(())
}

/// The log that the walk is in.
#[derive(Default)]
struct Where {
    log: Option<(i64, i64, LogName)>,
}

impl Where {
    fn log(&mut self, connection: &Connection, id: i64) -> Result<(i64, LogName), Fault> {
        match &self.log {
            Some((known, mesh, name)) if *known == id => Ok((*mesh, name.clone())),
            _ => {
                let (mesh, name) = cache::log_name(connection, id)?;
                self.log = Some((id, mesh, name.clone()));
                Ok((mesh, name))
            }
        }
    }

    fn name(&mut self, connection: &Connection, place: Place) -> Result<String, Fault> {
        let (_, log) = self.log(connection, place.log)?;
        Ok(format!("log {log} seq {}", place.seq))
    }
}

/// A slice of the entries; `true` when it was the last.
pub(super) fn entries(connection: &Connection, walk: &mut Walk, report: &mut Report) -> Result<bool, Fault> {
    let swept: i64 =
        connection.prepare_cached("SELECT at FROM swept WHERE one = 1")?.query_row([], |row| row.get(0))?;
    let mut statement = connection.prepare_cached(
        "SELECT place, count, bytes, sent_at, crc, head, body FROM entries
         WHERE place > ?1 ORDER BY place LIMIT ?2",
    )?;
    let mut rows = statement.query(params![walk.after.unwrap_or(i64::MIN), SLICE])?;
    let (mut names, mut looked, mut size) = (Where::default(), 0, 0);
    while let Some(row) = rows.next()? {
        let place = Place::unpack(row.get(0)?);
        let last = walk.after.map(Place::unpack);
        let before =
            walk.before.filter(|_| last.is_some_and(|last| (last.log, last.lane) == (place.log, place.lane)));
        let outcome = one_entry(connection, row, place, (&mut names, walk), swept, before, report);
        (walk.before, walk.after) = (report.note(outcome)?, Some(place.pack()));
        looked += 1;
        size += row.get_ref(6)?.as_bytes_or_null().ok().flatten().map_or(0, <[u8]>::len);
        if size > SLICE_BYTES {
            return Ok(false);
        }
    }
    Ok(looked < SLICE)
}

fn one_entry(
    connection: &Connection,
    row: &Row<'_>,
    place: Place,
    (names, walk): (&mut Where, &mut Walk),
    swept: i64,
    before: Option<Totals>,
    report: &mut Report,
) -> Result<Totals, Fault> {
    let (mesh, log) = names.log(connection, place.log)?;
    let name = names.name(connection, place)?;
    let mut totals = Totals {
        seq: place.seq,
        count: natural(row.get(1)?, "a count").map_err(|fault| fault.about(|| name.clone()))?,
        bytes: natural(row.get(2)?, "a size").map_err(|fault| fault.about(|| name.clone()))?,
        remember_until: None,
    };
    match entry::read(row, 3, &log, place)? {
        None => report.add(format!("{name}: its bytes do not match their checksum")),
        Some(whole) => {
            let size = whole.entry.envelope.body.as_bytes().len() as u64;
            totals.remember_until = Some(whole.remember_until);
            if !follows(before, totals, size, log.is_inbox()) {
                report.add(format!("{name}: its running totals do not follow from the entry before it"));
            }
            match pair(connection, mesh, place, &whole, swept)? {
                Pair::Sound => {}
                Pair::Broken(finding) => report.violation(format!("{name}: {finding}")),
                Pair::OtherFingerprint => {
                    report.add(format!("{name}: its fingerprint does not match what it says"));
                }
            }
        }
    }
    if !log.is_inbox() {
        holes(connection, place, before, totals, swept, walk)?;
    }
    Ok(totals)
}

/// Remembers the places between an entry of a topic and the one before it, whose numbers have no gaps by themselves. An entry
/// that is pruned, or is a dead letter, may be missing; one whose record was forgotten in time may be too.
fn holes(
    connection: &Connection,
    place: Place,
    before: Option<Totals>,
    totals: Totals,
    swept: i64,
    walk: &mut Walk,
) -> Result<(), Fault> {
    // Nothing tells how long what came before the first entry was remembered, unless nothing was ever forgotten.
    if before.is_none() && swept > 0 {
        return Ok(());
    }
    let first = before.map_or(1, |before| before.seq + 1);
    if first >= place.seq {
        return Ok(());
    }
    let forgotten = |totals: Totals| {
        totals.remember_until.is_none_or(|until| until.is_some_and(|until| integer(until) <= swept))
    };
    if forgotten(totals) || before.is_some_and(forgotten) {
        return Ok(());
    }
    let pruned: Option<i64> = connection
        .prepare_cached("SELECT pruned FROM lanes WHERE log = ?1 AND lane = ?2")?
        .query_row(params![place.log, place.lane.0], |row| row.get(0))
        .optional()?;
    let first = first.max(natural(pruned.unwrap_or(0), "pruned")? + 1);
    for seq in first..place.seq {
        let hole = Place::new(place.log, place.lane, seq);
        if walk.holes.len() >= HOLES_MAX {
            break;
        }
        if !is_dead(connection, hole)? {
            walk.holes.insert(hole.pack());
        }
    }
    Ok(())
}

/// Whether totals go on from the entry before: exactly if nothing can have been between them.
fn follows(before: Option<Totals>, totals: Totals, size: u64, inbox: bool) -> bool {
    let (Some(count), Some(bytes)) = (totals.count.checked_sub(1), totals.bytes.checked_sub(size)) else {
        return false;
    };
    match before {
        Some(before) if !inbox && before.seq + 1 == totals.seq => {
            (count, bytes) == (before.count, before.bytes)
        }
        Some(before) => count >= before.count && bytes >= before.bytes && totals.count <= totals.seq,
        None => totals.count <= totals.seq,
    }
}

/// How an entry stands with its dedupe record.
enum Pair {
    Sound,
    /// They do not belong to each other, or one is missing.
    Broken(String),
    /// The record is of another request.
    OtherFingerprint,
}

fn pair(connection: &Connection, mesh: i64, place: Place, whole: &Whole, swept: i64) -> Result<Pair, Fault> {
    let envelope = &whole.entry.envelope;
    let sender = cache::find_sender(connection, mesh, &envelope.scope())?;
    let record = match sender {
        Some(sender) => accept::record(connection, sender, &envelope.client_message_id)?,
        None => None,
    };
    Ok(match record {
        Some(record) if record.id == envelope.id => {
            if record.place != place {
                let Place { log, seq, .. } = record.place;
                Pair::Broken(format!("its dedupe record points to log number {log} seq {seq}"))
            } else if envelope.fingerprint().is_some_and(|print| print != record.fingerprint) {
                Pair::OtherFingerprint
            } else {
                Pair::Sound
            }
        }
        // Forgotten in time; then the id may also have been used again.
        _ if whole.remember_until.is_some_and(|until| integer(until) <= swept) => Pair::Sound,
        _ => Pair::Broken("its dedupe record is missing".to_owned()),
    })
}

/// A slice of the dedupe records; `true` when it was the last.
pub(super) fn records(connection: &Connection, walk: &mut Walk, report: &mut Report) -> Result<bool, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT place, client_id, dedupe.id, lost IS NOT NULL, mesh, sender FROM dedupe
         LEFT JOIN senders ON senders.id = sender
         WHERE (client_id, sender) > (?1, ?2) ORDER BY client_id, sender LIMIT ?3",
    )?;
    let (client_id, sender) = walk.record.clone().unwrap_or((String::new(), i64::MIN));
    let mut rows = statement.query(params![client_id, sender, SLICE])?;
    let (mut names, mut looked) = (Where::default(), 0);
    while let Some(row) = rows.next()? {
        walk.holes.remove(&row.get(0)?);
        walk.record = Some((row.get(1)?, row.get(5)?));
        let outcome = one_record(connection, row, &mut names, report);
        report.note(outcome)?;
        looked += 1;
    }
    Ok(looked < SLICE)
}

fn one_record(
    connection: &Connection,
    row: &Row<'_>,
    walk: &mut Where,
    report: &mut Report,
) -> Result<(), Fault> {
    let (place, client_id): (i64, String) = (row.get(0)?, row.get(1)?);
    let (id, lost, mesh): ([u8; 16], bool, Option<i64>) = (row.get(2)?, row.get(3)?, row.get(4)?);
    let place = Place::unpack(place);
    let about = |fault: Fault| fault.about(|| format!("dedupe record {client_id:?}"));
    let (of, _) = walk.log(connection, place.log).map_err(about)?;
    let name = walk.name(connection, place)?;
    let message = MessageId(u128::from_be_bytes(id));
    if mesh != Some(of) {
        report.violation(format!("{name}: dedupe record {client_id:?} is of a sender of another mesh"));
    }
    let found: Option<Vec<u8>> = connection
        .prepare_cached("SELECT substr(head, 4, 16) FROM entries WHERE place = ?1")?
        .query_row([place.pack()], |row| row.get(0))
        .optional()?;
    match found {
        Some(other) if other != id => {
            report.violation(format!("{name}: dedupe record {client_id:?} is of another message, {message}"));
        }
        Some(_) => {}
        None if lost || is_dead(connection, place)? || is_pruned(connection, place)? => {}
        None => {
            let finding =
                format!("{name}: dedupe record {client_id:?} has no entry, and none was pruned there");
            report.violation(finding);
        }
    }
    Ok(())
}

fn is_dead(connection: &Connection, place: Place) -> Result<bool, Fault> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM dead WHERE log = ?1 AND seq = ?2")?;
    Ok(statement.exists(params![place.log, integer(place.seq)])?)
}

fn is_pruned(connection: &Connection, place: Place) -> Result<bool, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT 1 FROM lanes WHERE log = ?1 AND lane = ?2 AND pruned >= ?3")?;
    Ok(statement.exists(params![place.log, place.lane.0, integer(place.seq)])?)
}

fn lanes(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection
        .prepare_cached("SELECT log, lane, last_seq, count, bytes, pruned FROM lanes ORDER BY log, lane")?;
    let mut rows = statement.query([])?;
    let mut walk = Where::default();
    while let Some(row) = rows.next()? {
        let (log, lane): (i64, u8) = (row.get(0)?, row.get(1)?);
        let (last, count, bytes, pruned): (i64, i64, i64, i64) =
            (row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?);
        let at = Place::new(log, Lane(lane), natural(last, "last_seq")?);
        let wrong: bool = connection
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM (SELECT count, bytes - octet_length(body) AS past FROM entries
                                  WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT 1)
                                WHERE count <= ?4 OR past < ?5)
                     OR EXISTS (SELECT 1 FROM (SELECT count, bytes FROM entries
                                  WHERE place >= ?3 AND place <= ?1 ORDER BY place DESC LIMIT 1)
                                WHERE count > ?4 OR bytes > ?5)",
            )?
            .query_row(
                params![
                    at.pack(),
                    Place::last(log, at.lane).pack(),
                    Place::first(log, at.lane).pack(),
                    count,
                    bytes
                ],
                |row| row.get(0),
            )?;
        if wrong || pruned > last || count > last {
            let name = walk.name(connection, at)?;
            report.add(format!("{name}: what was noted of lane {lane} does not fit its entries"));
        }
    }
    Ok(())
}

fn groups(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached("SELECT id, log, cursor FROM groups ORDER BY log")?;
    let mut rows = statement.query([])?;
    let mut walk = Where::default();
    while let Some(row) = rows.next()? {
        let (id, log, cursor): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let about = |fault: Fault| fault.about(|| format!("group {id}"));
        let (_, name) = walk.log(connection, log).map_err(about)?;
        let tails = cache::tails(connection, log, &name)?;
        let end = tails.iter().map(|tail| tail.end).max().unwrap_or_default();
        let cursor = natural(cursor, "a cursor").map_err(about)?;
        if cursor > end {
            report.add(format!("log {name} seq {cursor}: group {id} is there, but the log ends at {end}"));
        }
    }
    Ok(())
}

fn opens(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT grp, seq, log, lane, cursor, attempt = 0 AND ready_at IS NULL FROM open_entries AS open
         LEFT JOIN groups ON groups.mesh = open.mesh AND groups.id = open.grp
         ORDER BY open.mesh, grp, seq",
    )?;
    let mut rows = statement.query([])?;
    let mut walk = Where::default();
    while let Some(row) = rows.next()? {
        let (group, seq, log): (i64, i64, Option<i64>) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let Some(log) = log else {
            report.add(format!("seq {seq} is open in group {group}, which does not exist"));
            continue;
        };
        let (lane, cursor): (u8, i64) = (row.get(3)?, row.get(4)?);
        let place = Place::new(log, Lane(lane), natural(seq, "a seq")?);
        let name = walk.name(connection, place)?;
        if seq > cursor {
            report.add(format!("{name}: open in group {group}, whose cursor is {cursor}"));
        }
        // After a crash a lone reader is believed that it was handed everything up to an entry: of what lies between,
        // lanes share their numbers, not all need exist.
        let assumed: bool = row.get(5)?;
        if !assumed && !entry::exists(connection, place)? && !is_pruned(connection, place)? {
            report.add(format!("{name}: open in group {group}, but there is no such entry"));
        }
    }
    Ok(())
}

/// A slice of the dead letters; `true` when it was the last.
pub(super) fn letters(connection: &Connection, walk: &mut Walk, report: &mut Report) -> Result<bool, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT log, seq, lane, sent_at, crc, head, body, rowid FROM dead WHERE rowid > ?1 ORDER BY rowid LIMIT ?2",
    )?;
    let mut rows = statement.query(params![walk.after.unwrap_or(i64::MIN), SLICE])?;
    let (mut names, mut looked) = (Where::default(), 0);
    while let Some(row) = rows.next()? {
        walk.after = Some(row.get(7)?);
        looked += 1;
        let seq = natural(row.get(1)?, "a seq")?;
        let place = Place::new(row.get(0)?, Lane(row.get(2)?), seq);
        let (_, log) = names.log(connection, place.log)?;
        if entry::read(row, 3, &log, place)?.is_none() {
            let name = names.name(connection, place)?;
            report.add(format!("{name}: the bytes of its dead letter do not match their checksum"));
        }
    }
    Ok(looked < SLICE)
}

/// A run that lives has its entry, or that was pruned, or is a dead letter or was one: then the run's end is about to
/// be written.
fn calls(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut walk = Where::default();
    call::walk(connection, |run, place, lost| {
        let name = walk.name(connection, place)?;
        let gone = || Ok::<_, Fault>(is_dead(connection, place)? || is_pruned(connection, place)?);
        if !lost && !entry::exists(connection, place)? && !gone()? {
            report.violation(format!("{name}: run {run} has not ended, but there is no such entry"));
        }
        Ok(())
    })
}
