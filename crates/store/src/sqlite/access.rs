//! Who may do what, and what operators did, as rows.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_mesh::access::setting::Values;
use tenure_mesh::access::{
    AccessWrite, AuditEntry, AuditRecord, BanRecord, Change, InviteRecord, MemberRecord, RestoredAccess,
    TokenRecord,
};
use tenure_mesh::store::record::StoreFound;
use tenure_proto::ids::MemberKey;
use tenure_proto::invite::Role;
use tenure_proto::name::{Cap, MeshName};

use super::fault::{Fault, natural};
use super::topic::parse;
use super::{cache, integer};
use crate::Result;

/// Carries out changes, and appends the row that tells of them.
pub(super) fn write(connection: &Connection, mesh: i64, write: &AccessWrite) -> Result<(), Fault> {
    for change in &write.changes {
        apply(connection, mesh, change)?;
    }
    match &write.audit {
        Some(record) => append(connection, mesh, record),
        None => Ok(()),
    }
}

fn apply(connection: &Connection, mesh: i64, change: &Change) -> Result<(), Fault> {
    let prepare = |sql| connection.prepare_cached(sql);
    match change {
        Change::Found(at) => prepare("INSERT OR IGNORE INTO founded (mesh, at) VALUES (?1, ?2)")?
            .execute(params![mesh, integer(*at)])?,
        Change::PutMember(record) => {
            let sql = "INSERT OR REPLACE INTO members (mesh, member, role, caps, name, invite, since)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let MemberRecord { member, role, caps, name, invite, since } = record;
            let invite = invite.as_ref().map(|id| id.as_str());
            prepare(sql)?.execute(params![
                mesh,
                member.0,
                role.as_str(),
                caps_text(caps)?,
                name,
                invite,
                integer(*since)
            ])?
        }
        Change::DropMember(member) => prepare("DELETE FROM members WHERE mesh = ?1 AND member = ?2")?
            .execute(params![mesh, member.0])?,
        Change::PutInvite(record) => {
            let sql = "INSERT OR REPLACE INTO invites (mesh, id, operator, used, uses, expires_at, revoked)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let InviteRecord { id, by, used, uses, expires_at, revoked } = record;
            let by = by.map(|by| by.0);
            prepare(sql)?.execute(params![
                mesh,
                id.as_str(),
                by,
                used,
                uses,
                integer(*expires_at),
                revoked
            ])?
        }
        Change::DropInvite(id) => {
            prepare("DELETE FROM invites WHERE mesh = ?1 AND id = ?2")?.execute(params![mesh, id.as_str()])?
        }
        Change::PutToken(record) => {
            let sql = "INSERT OR REPLACE INTO tokens (mesh, id, hash, caps, name, since, expires_at)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let TokenRecord { id, hash, caps, name, since, expires_at } = record;
            let end = expires_at.map(integer);
            prepare(sql)?.execute(params![
                mesh,
                id.as_str(),
                hash,
                caps_text(caps)?,
                name,
                integer(*since),
                end
            ])?
        }
        Change::DropToken(id) => {
            prepare("DELETE FROM tokens WHERE mesh = ?1 AND id = ?2")?.execute(params![mesh, id.as_str()])?
        }
        Change::PutBan(BanRecord { subject, reason, since }) => {
            let sql = "INSERT OR REPLACE INTO bans (mesh, subject, reason, since) VALUES (?1, ?2, ?3, ?4)";
            prepare(sql)?.execute(params![mesh, subject.to_string(), reason, integer(*since)])?
        }
        Change::DropBan(subject) => prepare("DELETE FROM bans WHERE mesh = ?1 AND subject = ?2")?
            .execute(params![mesh, subject.to_string()])?,
        Change::Settings { version, values } => {
            let sql = "INSERT OR REPLACE INTO mesh_settings (mesh, version, body) VALUES (?1, ?2, ?3)";
            let body = serde_json::to_string(values).map_err(|error| Fault::corrupt(error.to_string()))?;
            prepare(sql)?.execute(params![mesh, integer(*version), body])?
        }
    };
    Ok(())
}

fn append(connection: &Connection, mesh: i64, record: &AuditRecord) -> Result<(), Fault> {
    let AuditRecord { at, who, from, act, subject, outcome, details } = record;
    connection
        .prepare_cached(
            "INSERT INTO audit (mesh, at, who, origin, act, subject, outcome, details)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![mesh, integer(*at), who, from, act, subject, outcome, details.to_string()])?;
    Ok(())
}

/// The meshes that somebody made, by name.
pub(super) fn meshes(connection: &Connection) -> Result<Vec<MeshName>, Fault> {
    let sql = "SELECT name FROM meshes JOIN founded ON founded.mesh = meshes.id ORDER BY name";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        names.push(parse(&name, "a mesh")?);
    }
    Ok(names)
}

/// All that is remembered of one mesh.
pub(super) fn restore(connection: &Connection, mesh: &MeshName) -> Result<RestoredAccess, Fault> {
    let Some(mesh) = cache::find_mesh(connection, mesh)? else { return Ok(RestoredAccess::default()) };
    let founded: Option<i64> = connection
        .prepare_cached("SELECT at FROM founded WHERE mesh = ?1")?
        .query_row([mesh], |row| row.get(0))
        .optional()?;
    let (settings_version, settings) = settings(connection, mesh)?;
    let mut bans = all(connection, "SELECT subject, reason, since FROM bans WHERE mesh = ?1", mesh, ban)?;
    bans.sort_by_key(|ban| ban.subject);
    Ok(RestoredAccess {
        founded: founded.map(|at| natural(at, "founded")).transpose()?,
        members: all(
            connection,
            "SELECT member, role, caps, name, invite, since FROM members WHERE mesh = ?1 ORDER BY member",
            mesh,
            member,
        )?,
        invites: all(
            connection,
            "SELECT id, operator, used, uses, expires_at, revoked FROM invites WHERE mesh = ?1 ORDER BY id",
            mesh,
            invite,
        )?,
        tokens: all(
            connection,
            "SELECT id, hash, caps, name, since, expires_at FROM tokens WHERE mesh = ?1 ORDER BY id",
            mesh,
            token,
        )?,
        bans,
        settings_version,
        settings,
    })
}

fn all<T>(
    connection: &Connection,
    sql: &str,
    mesh: i64,
    read: impl Fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([mesh])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

fn member(row: &Row<'_>) -> Result<MemberRecord, Fault> {
    let (role, invite): (String, Option<String>) = (row.get(1)?, row.get(4)?);
    Ok(MemberRecord {
        member: MemberKey(row.get(0)?),
        role: Role::from_wire(&role).ok_or_else(|| Fault::corrupt(format!("a role is {role:?}")))?,
        caps: caps(row.get(2)?)?,
        name: row.get(3)?,
        invite: invite.map(|id| parse(&id, "an invite")).transpose()?,
        since: natural(row.get(5)?, "since")?,
    })
}

fn invite(row: &Row<'_>) -> Result<InviteRecord, Fault> {
    let (id, by): (String, Option<[u8; 32]>) = (row.get(0)?, row.get(1)?);
    Ok(InviteRecord {
        id: parse(&id, "an invite")?,
        by: by.map(MemberKey),
        used: row.get(2)?,
        uses: row.get(3)?,
        expires_at: natural(row.get(4)?, "expires_at")?,
        revoked: row.get(5)?,
    })
}

fn token(row: &Row<'_>) -> Result<TokenRecord, Fault> {
    let (id, end): (String, Option<i64>) = (row.get(0)?, row.get(5)?);
    Ok(TokenRecord {
        id: parse(&id, "a token")?,
        hash: row.get(1)?,
        caps: caps(row.get(2)?)?,
        name: row.get(3)?,
        since: natural(row.get(4)?, "since")?,
        expires_at: end.map(|end| natural(end, "expires_at")).transpose()?,
    })
}

fn ban(row: &Row<'_>) -> Result<BanRecord, Fault> {
    let subject: String = row.get(0)?;
    Ok(BanRecord {
        subject: parse(&subject, "who is banned")?,
        reason: row.get(1)?,
        since: natural(row.get(2)?, "since")?,
    })
}

fn settings(connection: &Connection, mesh: i64) -> Result<(u64, Values), Fault> {
    let found: Option<(i64, String)> = connection
        .prepare_cached("SELECT version, body FROM mesh_settings WHERE mesh = ?1")?
        .query_row([mesh], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((version, body)) = found else { return Ok((0, Values::new())) };
    let values = serde_json::from_str(&body).map_err(|error| Fault::corrupt(format!("settings: {error}")))?;
    Ok((natural(version, "the version of settings")?, values))
}

/// A page of the audit log, newest first.
pub(super) fn audit(
    connection: &Connection,
    mesh: i64,
    before: Option<u64>,
    limit: u32,
) -> Result<StoreFound, Fault> {
    let sql = "SELECT seq, at, who, origin, act, subject, outcome, details FROM audit
               WHERE mesh = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let before = before.map_or(i64::MAX, integer);
    let mut rows = statement.query(params![mesh, before, i64::from(limit) + 1])?;
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        let details: String = row.get(7)?;
        let details = serde_json::from_str(&details)
            .map_err(|error| Fault::corrupt(format!("details of the audit log: {error}")))?;
        let record = AuditRecord {
            at: natural(row.get(1)?, "at")?,
            who: row.get(2)?,
            from: row.get(3)?,
            act: row.get(4)?,
            subject: row.get(5)?,
            outcome: row.get(6)?,
            details,
        };
        page.push(AuditEntry { seq: natural(row.get(0)?, "seq")?, record });
    }
    let more = page.len() > limit as usize;
    page.truncate(limit as usize);
    Ok(StoreFound::Audit(page, more))
}

fn caps_text(caps: &Option<Vec<Cap>>) -> Result<Option<String>, Fault> {
    let text = caps.as_ref().map(serde_json::to_string).transpose();
    text.map_err(|error| Fault::corrupt(error.to_string()))
}

fn caps(text: Option<String>) -> Result<Option<Vec<Cap>>, Fault> {
    let read = text.map(|text| serde_json::from_str(&text)).transpose();
    read.map_err(|error| Fault::corrupt(format!("caps: {error}")))
}
