//! Leases as rows.

use rusqlite::{Connection, Row, params};
use tenure_proto::text::hex;
use tenure_proto::{LeaseId, MeshName, SessionKey};

use super::fault::{Fault, natural};
use super::{integer, run};
use crate::row::LeaseColumns;
use crate::{LeaseRow, Result, StoredLease};

/// Stores `row` in place of what its session had in its mesh.
pub(super) fn put(connection: &Connection, row: &LeaseRow) -> Result<(), Fault> {
    let columns = LeaseColumns::encode(row)?;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO leases
                 (mesh, session, lease, member, instance, profile, caps, joined_at, touched_run)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            columns.mesh,
            columns.session,
            columns.lease,
            columns.member,
            columns.instance,
            columns.profile,
            columns.caps,
            integer(columns.joined_at),
            integer(columns.touched_run),
        ])?;
    Ok(())
}

/// Deletes the session's lease if it is this one; whether it was.
pub(super) fn end(
    connection: &Connection,
    mesh: &MeshName,
    session: &SessionKey,
    lease: &LeaseId,
) -> Result<bool, Fault> {
    let gone = connection
        .prepare_cached("DELETE FROM leases WHERE mesh = ?1 AND session = ?2 AND lease = ?3")?
        .execute(params![mesh.as_str(), session.0, lease.as_str()])?;
    Ok(gone > 0)
}

/// Raises the lease's `touched_run` if the session's lease is this one.
pub(super) fn touch(
    connection: &Connection,
    mesh: &MeshName,
    session: &SessionKey,
    lease: &LeaseId,
    run: u64,
) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "UPDATE leases SET touched_run = ?4
             WHERE mesh = ?1 AND session = ?2 AND lease = ?3 AND touched_run < ?4",
        )?
        .execute(params![mesh.as_str(), session.0, lease.as_str(), integer(run)])?;
    Ok(())
}

/// Every lease with the uptime it has spent.
pub(super) fn all(connection: &Connection) -> Result<Vec<StoredLease>, Fault> {
    let uptimes = run::uptimes(connection)?;
    let mut leases = Vec::new();
    each(connection, |row| {
        let row = row?;
        let spent_ms = uptimes.spent_since(row.touched_run);
        leases.push(StoredLease { row, spent_ms });
        Ok(())
    })?;
    Ok(leases)
}

/// Hands every lease to `visit`, in order of mesh and session, and a row that is none as the error that says so.
pub(super) fn each(
    connection: &Connection,
    mut visit: impl FnMut(Result<LeaseRow, Fault>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT mesh, session, lease, member, instance, profile, caps, joined_at, touched_run
         FROM leases ORDER BY mesh, session",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        visit(read(row))?;
    }
    Ok(())
}

fn read(row: &Row<'_>) -> Result<LeaseRow, Fault> {
    let decoded = columns(row).and_then(|columns| Ok(columns.decode()?));
    decoded.map_err(|fault| fault.about(|| name(row)))
}

fn columns(row: &Row<'_>) -> Result<LeaseColumns, Fault> {
    Ok(LeaseColumns {
        mesh: row.get(0)?,
        session: row.get(1)?,
        lease: row.get(2)?,
        member: row.get(3)?,
        instance: row.get(4)?,
        profile: row.get(5)?,
        caps: row.get(6)?,
        joined_at: natural(row.get(7)?, "joined_at")?,
        touched_run: natural(row.get(8)?, "touched_run")?,
    })
}

/// What a person can find the row by, as far as it reads.
fn name(row: &Row<'_>) -> String {
    let mesh: String = row.get(0).unwrap_or_default();
    let session: Vec<u8> = row.get(1).unwrap_or_default();
    format!("lease of {} in {mesh}", hex(&session))
}
