//! Groups: how far readers are, and what is in their hands.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_mesh::messages::envelope::Lane;
use tenure_mesh::store::record::{
    GroupId, GroupRecord, GroupWrite, OpenRecord, Placed, Reader, SettlerChanges, SettlerRecord,
};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::log::LogName;
use tenure_proto::name::GroupName;
use tenure_proto::subscribe::From;

use super::cache::Mesh;
use super::fault::{Fault, natural};
use super::place::Place;
use super::{integer, restore};
use crate::Result;

/// Makes a group that begins at `from`: where it stands, or the end of its log when that is before `from`. A group
/// that exists stays where it is.
pub(super) fn open(
    connection: &Connection,
    mesh: &mut Mesh,
    record: &GroupRecord,
    from: From,
    used_at: u64,
) -> Result<Result<Placed, u64>, Fault> {
    if let Some(cursor) = cursor(connection, mesh.id, record.id)? {
        let log = mesh.need_log(connection, &record.log)?.id;
        return placed(connection, log, record, cursor).map(Ok);
    }
    let id = mesh.id;
    let (log, end) = match mesh.find_log(connection, &record.log)? {
        Some(log) => (Some(log.id), log.end()),
        None => (None, 0),
    };
    let cursor = match (from, log) {
        (From::New, _) | (From::Earliest, None) => end,
        (From::Earliest, Some(log)) => first_seq(connection, log, record.lane)?.map_or(end, |seq| seq - 1),
        (From::Seq(seq), _) if seq.get() > end + 1 => return Ok(Err(end)),
        (From::Seq(seq), _) => seq.get().saturating_sub(1),
    };
    let log = mesh.need_log(connection, &record.log)?.id;
    put(connection, id, log, record, cursor, used_at)?;
    placed(connection, log, record, cursor).map(Ok)
}

fn placed(connection: &Connection, log: i64, record: &GroupRecord, cursor: u64) -> Result<Placed, Fault> {
    let passed = restore::passed(connection, log, record.lane, cursor, &record.log)?;
    Ok(Placed { cursor, passed })
}

/// Changes a group, or makes it.
pub(super) fn write(connection: &Connection, mesh: &mut Mesh, group: &GroupWrite) -> Result<(), Fault> {
    let log = mesh.need_log(connection, &group.record.log)?.id;
    let id = integer(group.record.id.0);
    put(connection, mesh.id, log, &group.record, group.cursor, group.used_at)?;
    if group.replace {
        close_all(connection, mesh.id, id)?;
    }
    let mut closing =
        connection.prepare_cached("DELETE FROM open_entries WHERE mesh = ?1 AND grp = ?2 AND seq = ?3")?;
    for seq in &group.del {
        closing.execute(params![mesh.id, id, integer(*seq)])?;
    }
    let mut opening = connection.prepare_cached(
        "INSERT OR REPLACE INTO open_entries (mesh, grp, seq, attempt, tries, holder, ready_at, lasting)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for open in &group.put {
        opening.execute(params![
            mesh.id,
            id,
            integer(open.seq),
            open.attempt,
            open.tries,
            open.holder.map(|session| session.0),
            open.ready_at.map(integer),
            open.lasting,
        ])?;
    }
    write_settlers(connection, (mesh.id, id), &group.settlers)
}

fn write_settlers(
    connection: &Connection,
    (mesh, id): (i64, i64),
    changes: &SettlerChanges,
) -> Result<(), Fault> {
    if changes.put.is_empty() && changes.del.is_empty() {
        return Ok(());
    }
    let mut forgetting =
        connection.prepare_cached("DELETE FROM settlers WHERE mesh = ?1 AND grp = ?2 AND seq = ?3")?;
    for seq in &changes.del {
        forgetting.execute(params![mesh, id, integer(*seq)])?;
    }
    let mut noting = connection.prepare_cached(
        "INSERT OR REPLACE INTO settlers (mesh, grp, seq, attempt, session, nth) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for SettlerRecord { seq, attempt, session, nth } in &changes.put {
        noting.execute(params![mesh, id, integer(*seq), attempt, session.0, integer(*nth)])?;
    }
    Ok(())
}

/// Who settled entries of a group that several had in hand, in the order of their seqs.
pub(super) fn settlers(connection: &Connection, (mesh, id): (i64, i64)) -> Result<Vec<SettlerRecord>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, attempt, session, nth FROM settlers WHERE mesh = ?1 AND grp = ?2 ORDER BY seq",
    )?;
    let mut rows = statement.query(params![mesh, id])?;
    let mut settlers = Vec::new();
    while let Some(row) = rows.next()? {
        settlers.push(SettlerRecord {
            seq: natural(row.get(0)?, "a seq")?,
            attempt: row.get(1)?,
            session: SessionKey(row.get(2)?),
            nth: natural(row.get(3)?, "nth")?,
        });
    }
    Ok(settlers)
}

fn put(
    connection: &Connection,
    mesh: i64,
    log: i64,
    record: &GroupRecord,
    cursor: u64,
    used_at: u64,
) -> Result<(), Fault> {
    let (kind, name, session) = match &record.reader {
        Reader::Inbox => ("inbox", None, None),
        Reader::Private(session) => ("private", None, Some(session.0)),
        Reader::Shared(name) => ("shared", Some(name.as_str()), None),
    };
    connection
        .prepare_cached(
            "INSERT INTO groups (mesh, id, log, lane, kind, name, session, cursor, used_at, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT DO UPDATE SET cursor = excluded.cursor, used_at = excluded.used_at",
        )?
        .execute(params![
            mesh,
            integer(record.id.0),
            log,
            record.lane.0,
            kind,
            name,
            session,
            integer(cursor),
            integer(used_at),
            record.owner.map(|member| member.0),
        ])?;
    Ok(())
}

/// Forgets a group, what is open in it and who settled what.
pub(super) fn drop(connection: &Connection, mesh: i64, id: GroupId) -> Result<(), Fault> {
    let id = integer(id.0);
    close_all(connection, mesh, id)?;
    connection
        .prepare_cached("DELETE FROM groups WHERE mesh = ?1 AND id = ?2")?
        .execute(params![mesh, id])?;
    Ok(())
}

/// Forgets the private groups of a session.
pub(super) fn drop_private(connection: &Connection, mesh: i64, session: &SessionKey) -> Result<(), Fault> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM groups WHERE mesh = ?1 AND session = ?2")?;
    let ids: Vec<i64> =
        statement.query_map(params![mesh, session.0], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    ids.into_iter().try_for_each(|id| drop(connection, mesh, GroupId(natural(id, "a group")?)))
}

/// Opens an entry again for the reader whose dead letter it was, if that has read past it.
pub(super) fn reopen(
    connection: &Connection,
    place: Place,
    name: Option<&GroupName>,
    attempts: u32,
) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO open_entries (mesh, grp, seq, attempt, tries, lasting)
             SELECT mesh, id, ?3, ?4, 0, 1 FROM groups
             WHERE log = ?1 AND lane = ?2 AND cursor >= ?3
                   AND kind = CASE WHEN ?5 IS NULL THEN 'inbox' ELSE 'shared' END AND name IS ?5",
        )?
        .execute(params![
            place.log,
            place.lane.0,
            integer(place.seq),
            attempts,
            name.map(GroupName::as_str)
        ])?;
    Ok(())
}

/// Forgets that anybody has the entry at `place` open.
pub(super) fn close_everywhere(connection: &Connection, place: Place) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "DELETE FROM open_entries WHERE (mesh, grp, seq) IN
                 (SELECT mesh, id, ?3 FROM groups WHERE log = ?1 AND lane = ?2)",
        )?
        .execute(params![place.log, place.lane.0, integer(place.seq)])?;
    Ok(())
}

fn close_all(connection: &Connection, mesh: i64, id: i64) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM open_entries WHERE mesh = ?1 AND grp = ?2")?
        .execute(params![mesh, id])?;
    connection
        .prepare_cached("DELETE FROM settlers WHERE mesh = ?1 AND grp = ?2")?
        .execute(params![mesh, id])?;
    Ok(())
}

fn cursor(connection: &Connection, mesh: i64, id: GroupId) -> Result<Option<u64>, Fault> {
    let found: Option<i64> = connection
        .prepare_cached("SELECT cursor FROM groups WHERE mesh = ?1 AND id = ?2")?
        .query_row(params![mesh, integer(id.0)], |row| row.get(0))
        .optional()?;
    found.map(|cursor| natural(cursor, "a cursor")).transpose()
}

/// The group of an inbox's owner in a lane, if there is one: its mesh, number and cursor.
pub(super) fn of_inbox(
    connection: &Connection,
    log: i64,
    lane: Lane,
) -> Result<Option<(i64, i64, u64)>, Fault> {
    let found: Option<(i64, i64, i64)> = connection
        .prepare_cached(
            "SELECT mesh, id, cursor FROM groups WHERE log = ?1 AND lane = ?2 AND kind = 'inbox'
             ORDER BY id LIMIT 1",
        )?
        .query_row(params![log, lane.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    found.map(|(mesh, id, cursor)| Ok((mesh, id, natural(cursor, "a cursor")?))).transpose()
}

/// Whether the owner of an inbox has settled the entry at `place`.
pub(super) fn is_settled(connection: &Connection, place: Place) -> Result<bool, Fault> {
    let Some((mesh, id, cursor)) = of_inbox(connection, place.log, place.lane)? else { return Ok(false) };
    if place.seq > cursor {
        return Ok(false);
    }
    let open = connection
        .prepare_cached("SELECT 1 FROM open_entries WHERE mesh = ?1 AND grp = ?2 AND seq = ?3")?
        .exists(params![mesh, id, integer(place.seq)])?;
    Ok(!open)
}

/// What is open in a group after `after`, in order, at most `limit` of it.
pub(super) fn opened(
    connection: &Connection,
    (mesh, id): (i64, i64),
    after: u64,
    limit: u32,
) -> Result<Vec<OpenRecord>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, attempt, tries, holder, ready_at, lasting FROM open_entries
         WHERE mesh = ?1 AND grp = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4",
    )?;
    let mut rows = statement.query(params![mesh, id, integer(after), limit])?;
    let mut opened = Vec::new();
    while let Some(row) = rows.next()? {
        let ready_at: Option<i64> = row.get(4)?;
        opened.push(OpenRecord {
            seq: natural(row.get(0)?, "a seq")?,
            attempt: row.get(1)?,
            tries: row.get(2)?,
            holder: row.get::<_, Option<[u8; 32]>>(3)?.map(SessionKey),
            ready_at: ready_at.map(|at| natural(at, "ready_at")).transpose()?,
            lasting: row.get(5)?,
        });
    }
    Ok(opened)
}

/// The first entry of a lane.
fn first_seq(connection: &Connection, log: i64, lane: Lane) -> Result<Option<u64>, Fault> {
    let found: Option<i64> = connection
        .prepare_cached("SELECT place FROM entries WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT 1")?
        .query_row(params![Place::first(log, lane).pack(), Place::last(log, lane).pack()], |row| row.get(0))
        .optional()?;
    Ok(found.map(|place| Place::unpack(place).seq))
}

/// A group's identity from `kind, name, session` at `first`.
pub(super) fn reader(row: &Row<'_>, first: usize) -> Result<Reader, Fault> {
    let kind: String = row.get(first)?;
    Ok(match kind.as_str() {
        "inbox" => Reader::Inbox,
        "private" => Reader::Private(SessionKey(row.get(first + 2)?)),
        "shared" => {
            let name: String = row.get(first + 1)?;
            Reader::Shared(name.parse().map_err(|_| Fault::corrupt(format!("a group is called {name:?}")))?)
        }
        other => return Err(Fault::corrupt(format!("a group is of kind {other:?}"))),
    })
}

/// A group as its row has it.
pub(super) fn record(
    id: i64,
    log: LogName,
    lane: u8,
    reader: Reader,
    owner: Option<[u8; 32]>,
) -> Result<GroupRecord, Fault> {
    let (id, owner) = (GroupId(natural(id, "a group")?), owner.map(MemberKey));
    Ok(GroupRecord { id, log, lane: Lane(lane), reader, owner })
}

/// Forgets the groups of an inbox that nobody owns any more.
pub(super) fn drop_inbox(connection: &Connection, log: i64) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached("SELECT mesh, id FROM groups WHERE log = ?1")?;
    let groups: Vec<(i64, i64)> =
        statement.query_map([log], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    groups.into_iter().try_for_each(|(mesh, id)| drop(connection, mesh, GroupId(natural(id, "a group")?)))
}
