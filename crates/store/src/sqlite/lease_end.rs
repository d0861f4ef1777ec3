//! Ends of leases: who, why and when, kept for a while.

use rusqlite::{Connection, params};
use tenure_core::record::{LeaseEnd, LeaseEndEntry, StoreFound};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::LEASE_ENDS_MAX;

use super::fault::{Fault, natural};
use super::{integer, topic};
use crate::Result;

/// The step of the schema.
pub(super) const LEASE_ENDS: &str = "
-- Leases that ended, written in the transaction of their end; deleted after 30 days, or when there are too many.
CREATE TABLE lease_ends (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    mesh    INTEGER NOT NULL,
    session BLOB NOT NULL CHECK (length(session) = 32),     -- public key
    lease   TEXT NOT NULL,
    member  BLOB NOT NULL CHECK (length(member) = 32),      -- public key of who vouched
    name    TEXT NOT NULL,                          -- what the session was called
    why     TEXT NOT NULL,                          -- expired, bye, banned, kicked
    at      INTEGER NOT NULL                        -- Unix ms
) STRICT;
CREATE INDEX lease_ends_mesh ON lease_ends (mesh, seq);
CREATE INDEX lease_ends_at ON lease_ends (at);
";

/// Keeps the end of a lease; the oldest goes if there are too many.
pub(super) fn add(connection: &Connection, mesh: i64, end: &LeaseEnd) -> Result<(), Fault> {
    let LeaseEnd { session, lease, member, name, why, at } = end;
    connection
        .prepare_cached(
            "INSERT INTO lease_ends (mesh, session, lease, member, name, why, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![mesh, session.0, lease.as_str(), member.0, name, why, integer(*at)])?;
    let oldest = connection.last_insert_rowid() - integer(LEASE_ENDS_MAX);
    connection.prepare_cached("DELETE FROM lease_ends WHERE seq <= ?1")?.execute([oldest])?;
    Ok(())
}

/// A page of them, newest first.
pub(super) fn page(
    connection: &Connection,
    mesh: i64,
    before: Option<u64>,
    limit: u32,
) -> Result<StoreFound, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, session, lease, member, name, why, at FROM lease_ends
         WHERE mesh = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3",
    )?;
    let mut rows = statement.query(params![mesh, before.map_or(i64::MAX, integer), i64::from(limit) + 1])?;
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        let lease: String = row.get(2)?;
        let end = LeaseEnd {
            session: SessionKey(row.get(1)?),
            lease: topic::parse(&lease, "a lease")?,
            member: MemberKey(row.get(3)?),
            name: row.get(4)?,
            why: row.get(5)?,
            at: natural(row.get(6)?, "at")?,
        };
        page.push(LeaseEndEntry { seq: natural(row.get(0)?, "seq")?, end });
    }
    let more = page.len() > limit as usize;
    page.truncate(limit as usize);
    Ok(StoreFound::LeaseEnds(page, more))
}

/// Forgets up to `limit` of those from before this moment; how many went.
pub(super) fn forget(connection: &Connection, before: u64, limit: u32) -> Result<usize, Fault> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM lease_ends WHERE seq IN (SELECT seq FROM lease_ends WHERE at < ?1 ORDER BY at LIMIT ?2)",
        )?
        .execute(params![integer(before), limit])?;
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_bound_the_oldest_goes() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(LEASE_ENDS).unwrap();
        let (session, member, lease) = (SessionKey([1; 32]), MemberKey([2; 32]), "l".parse().unwrap());
        let end = LeaseEnd { session, lease, member, name: String::new(), why: "bye".to_owned(), at: 1 };
        let seqs = || {
            let mut statement = connection.prepare("SELECT seq FROM lease_ends ORDER BY seq").unwrap();
            let seqs = statement.query_map([], |row| row.get(0)).unwrap();
            seqs.collect::<rusqlite::Result<Vec<i64>>>().unwrap()
        };
        add(&connection, 1, &end).unwrap();
        let max = integer(LEASE_ENDS_MAX);
        connection.execute("UPDATE sqlite_sequence SET seq = ?1", [max - 1]).unwrap();
        add(&connection, 1, &end).unwrap();
        assert_eq!(seqs(), [1, max]);
        add(&connection, 1, &end).unwrap();
        assert_eq!(seqs(), [max, max + 1]);
    }
}
