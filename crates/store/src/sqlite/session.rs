//! Every session key that was ever seen in a mesh, and who vouched for it last.

use rusqlite::{Connection, OptionalExtension, params};
use tenure_proto::ids::{MemberKey, SessionKey};

use super::fault::Fault;
use super::integer;
use crate::Result;

/// Notes that a session has a lease.
pub(super) fn seen(
    connection: &Connection,
    mesh: i64,
    session: &SessionKey,
    member: &MemberKey,
) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "INSERT INTO sessions (mesh, session, member) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET member = excluded.member, ended_at = NULL, cleared = 0
             WHERE member != excluded.member OR ended_at IS NOT NULL",
        )?
        .execute(params![mesh, session.0, member.0])?;
    Ok(())
}

/// Notes that a session's lease ended.
pub(super) fn ended(connection: &Connection, mesh: i64, session: &SessionKey, at: u64) -> Result<(), Fault> {
    connection
        .prepare_cached("UPDATE sessions SET ended_at = ?3 WHERE mesh = ?1 AND session = ?2")?
        .execute(params![mesh, session.0, integer(at)])?;
    Ok(())
}

/// Who vouched for a session when it last had a lease.
pub(super) fn member(
    connection: &Connection,
    mesh: i64,
    session: &SessionKey,
) -> Result<Option<MemberKey>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT member FROM sessions WHERE mesh = ?1 AND session = ?2")?;
    let found: Option<[u8; 32]> =
        statement.query_row(params![mesh, session.0], |row| row.get(0)).optional()?;
    Ok(found.map(MemberKey))
}

/// Whether a member ever vouched for a session that is still remembered.
pub(super) fn was_seen(connection: &Connection, mesh: i64, member: &MemberKey) -> Result<bool, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT 1 FROM sessions WHERE mesh = ?1 AND member = ?2 LIMIT 1")?;
    Ok(statement.exists(params![mesh, member.0])?)
}

/// Notes that what a session left has moved on.
pub(super) fn cleared(connection: &Connection, mesh: i64, session: &SessionKey) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "UPDATE sessions SET cleared = 1 WHERE mesh = ?1 AND session = ?2 AND ended_at IS NOT NULL",
        )?
        .execute(params![mesh, session.0])?;
    Ok(())
}

/// Sessions whose lease ended before what they left had moved on, if they have an inbox at all.
pub(super) fn left(connection: &Connection, mesh: i64) -> Result<Vec<(SessionKey, MemberKey)>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT session, member FROM sessions
         WHERE mesh = ?1 AND ended_at IS NOT NULL AND cleared = 0
           AND EXISTS (SELECT 1 FROM logs WHERE logs.mesh = ?1
                       AND name = 'inbox/s/' || lower(hex(session)) AND hidden = 0)
         ORDER BY session",
    )?;
    let mut rows = statement.query([mesh])?;
    let mut left = Vec::new();
    while let Some(row) = rows.next()? {
        left.push((SessionKey(row.get(0)?), MemberKey(row.get(1)?)));
    }
    Ok(left)
}
