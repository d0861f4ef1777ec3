//! Ends of leases: who, why and when, kept for a while.

use rusqlite::{Connection, params};
use tenure_mesh::store::record::{LeaseEnd, LeaseEndEntry, StoreFound};
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

/// The step that counts them, so that each mesh has a bound of its own.
pub(super) const LEASE_END_COUNTS: &str = "
-- How many rows of lease_ends each mesh has.
CREATE TABLE lease_end_counts (
    mesh INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL
) STRICT;
INSERT INTO lease_end_counts (mesh, rows) SELECT mesh, count(*) FROM lease_ends GROUP BY mesh;
CREATE TRIGGER lease_ends_more AFTER INSERT ON lease_ends BEGIN
    INSERT INTO lease_end_counts (mesh, rows) VALUES (new.mesh, 1) ON CONFLICT (mesh) DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER lease_ends_less AFTER DELETE ON lease_ends BEGIN
    UPDATE lease_end_counts SET rows = rows - 1 WHERE mesh = old.mesh;
END;
";

/// Keeps the end of a lease; the oldest of its mesh goes if that has too many.
pub(super) fn add(connection: &Connection, mesh: i64, end: &LeaseEnd) -> Result<(), Fault> {
    let LeaseEnd { session, lease, member, name, why, at } = end;
    connection
        .prepare_cached(
            "INSERT INTO lease_ends (mesh, session, lease, member, name, why, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![mesh, session.0, lease.as_str(), member.0, name, why, integer(*at)])?;
    let rows: i64 = connection
        .prepare_cached("SELECT rows FROM lease_end_counts WHERE mesh = ?1")?
        .query_row([mesh], |row| row.get(0))?;
    let over = rows - integer(LEASE_ENDS_MAX);
    if over > 0 {
        connection
            .prepare_cached(
                "DELETE FROM lease_ends
                 WHERE seq IN (SELECT seq FROM lease_ends WHERE mesh = ?1 ORDER BY seq LIMIT ?2)",
            )?
            .execute([mesh, over])?;
    }
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
    fn past_its_bound_the_oldest_of_a_mesh_goes_and_no_other() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(LEASE_ENDS).unwrap();
        let (session, member, lease) = (SessionKey([1; 32]), MemberKey([2; 32]), "l".parse().unwrap());
        let end = LeaseEnd { session, lease, member, name: String::new(), why: "bye".to_owned(), at: 1 };
        // What an older program left is counted.
        let old = "INSERT INTO lease_ends (mesh, session, lease, member, name, why, at)
                   VALUES (?1, zeroblob(32), 'l', zeroblob(32), '', 'bye', 0)";
        for mesh in [1, 2, 1] {
            connection.execute(old, [mesh]).unwrap();
        }
        connection.execute_batch(LEASE_END_COUNTS).unwrap();
        let seqs = |mesh: i64| {
            let wanted = "SELECT seq FROM lease_ends WHERE mesh = ?1 ORDER BY seq";
            let mut statement = connection.prepare(wanted).unwrap();
            let seqs = statement.query_map([mesh], |row| row.get(0)).unwrap();
            seqs.collect::<rusqlite::Result<Vec<i64>>>().unwrap()
        };
        let max = integer(LEASE_ENDS_MAX);
        // As if there were as many as there may be, without writing them.
        connection.execute("UPDATE lease_end_counts SET rows = ?1 WHERE mesh = 1", [max]).unwrap();
        add(&connection, 2, &end).unwrap();
        assert_eq!((seqs(1), seqs(2)), (vec![1, 3], vec![2, 4]), "another's rows do not count");
        add(&connection, 1, &end).unwrap();
        add(&connection, 1, &end).unwrap();
        assert_eq!((seqs(1), seqs(2)), (vec![5, 6], vec![2, 4]));
        assert_eq!(forget(&connection, 1, 9).unwrap(), 1);
        add(&connection, 3, &end).unwrap();
        let counts: Vec<(i64, i64)> = connection
            .prepare("SELECT mesh, rows FROM lease_end_counts ORDER BY mesh")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap();
        assert_eq!(counts, [(1, max), (2, 1), (3, 1)]);
    }
}
