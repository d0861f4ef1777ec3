//! Services: a row for each name that a session holds, gone with its lease.

use rusqlite::{Connection, Row, params};
use tenure_mesh::services::service::Facts;
use tenure_mesh::store::record::ServiceRecord;
use tenure_proto::ids::SessionKey;
use tenure_proto::name::ServiceName;
use tenure_proto::service::ServiceKind;

use super::fault::{Fault, natural};
use super::{integer, topic};
use crate::Result;
use crate::check::Report;
use crate::row::{metadata_text, read_metadata};

/// The sixth step.
pub(super) const SERVICES: &str = "
-- Names that sessions hold. A row is deleted with its session's lease, or when it is withdrawn.
CREATE TABLE services (
    mesh     INTEGER NOT NULL,
    name     TEXT NOT NULL,
    session  BLOB NOT NULL CHECK (length(session) = 32),    -- public key of its holder
    kind     TEXT NOT NULL CHECK (kind IN ('tcp', 'http', 'run')),
    ttl_ms   INTEGER NOT NULL,                      -- without renewal until it is stale
    metadata TEXT NOT NULL,                         -- JSON {\"v\": 1, description, tags, owner, hide}
    PRIMARY KEY (mesh, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX services_session ON services (mesh, session);
";

/// A later step.
pub(super) const SERVICES_SINCE: &str = "
ALTER TABLE services ADD COLUMN since INTEGER NOT NULL DEFAULT 0;   -- Unix ms
";

/// Keeps a service, in place of what its name stood for.
pub(super) fn put(connection: &Connection, mesh: i64, record: &ServiceRecord) -> Result<(), Fault> {
    let ServiceRecord { name, session, since, facts: Facts { kind, ttl_ms, metadata } } = record;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO services (mesh, name, session, kind, ttl_ms, metadata, since)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            mesh,
            name.as_str(),
            session.0,
            kind_text(*kind),
            integer(*ttl_ms),
            metadata_text(metadata)?,
            integer(*since),
        ])?;
    Ok(())
}

/// Forgets a service of a session.
pub(super) fn drop(
    connection: &Connection,
    mesh: i64,
    session: &SessionKey,
    name: &ServiceName,
) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM services WHERE mesh = ?1 AND name = ?2 AND session = ?3")?
        .execute(params![mesh, name.as_str(), session.0])?;
    Ok(())
}

/// Forgets all services of a session.
pub(super) fn drop_all(connection: &Connection, mesh: i64, session: &SessionKey) -> Result<(), Fault> {
    connection
        .prepare_cached("DELETE FROM services WHERE mesh = ?1 AND session = ?2")?
        .execute(params![mesh, session.0])?;
    Ok(())
}

/// Every service of a mesh, by name.
pub(super) fn all(connection: &Connection, mesh: i64) -> Result<Vec<ServiceRecord>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT name, session, kind, ttl_ms, metadata, since FROM services WHERE mesh = ?1 ORDER BY name",
    )?;
    let mut rows = statement.query([mesh])?;
    let mut services = Vec::new();
    while let Some(row) = rows.next()? {
        services.push(record(row)?);
    }
    Ok(services)
}

/// Rows that do not read, and names whose holders have no lease.
pub(super) fn findings(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT services.name, services.session, kind, ttl_ms, metadata, since, meshes.name,
                EXISTS (SELECT 1 FROM leases
                        WHERE leases.mesh = meshes.name AND leases.session = services.session)
         FROM services LEFT JOIN meshes ON meshes.id = services.mesh ORDER BY services.mesh, services.name",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Some(record) = report.note(record(row))? else { continue };
        let mesh: Option<String> = row.get(6)?;
        let (mesh, leased): (String, bool) = (mesh.unwrap_or_default(), row.get(7)?);
        if !leased {
            report.add(format!("service {} in {mesh}: its session has no lease", record.name));
        }
    }
    Ok(())
}

fn record(row: &Row<'_>) -> Result<ServiceRecord, Fault> {
    let read = || -> Result<ServiceRecord, Fault> {
        let (name, kind, metadata): (String, String, String) = (row.get(0)?, row.get(2)?, row.get(4)?);
        let facts = Facts {
            kind: kind_of(&kind)?,
            ttl_ms: natural(row.get(3)?, "ttl_ms")?,
            metadata: read_metadata(&metadata)?,
        };
        let since = natural(row.get(5)?, "since")?;
        Ok(ServiceRecord {
            name: topic::parse(&name, "a name")?,
            session: SessionKey(row.get(1)?),
            since,
            facts,
        })
    };
    read().map_err(|fault| fault.about(|| format!("service {}", row.get::<_, String>(0).unwrap_or_default())))
}

fn kind_text(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::Tcp => "tcp",
        ServiceKind::Http => "http",
        ServiceKind::Run => "run",
    }
}

fn kind_of(text: &str) -> Result<ServiceKind, Fault> {
    match text {
        "tcp" => Ok(ServiceKind::Tcp),
        "http" => Ok(ServiceKind::Http),
        "run" => Ok(ServiceKind::Run),
        other => Err(Fault::corrupt(format!("its kind is {other}"))),
    }
}
