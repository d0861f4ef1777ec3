//! The tables, and how an older file gets them.
//!
//! Anyone may look: `sqlite3 tenure.db .schema` prints what stands here, comments included. Migrations only go
//! forward: `PRAGMA user_version` counts the steps a file has taken, and each step is one transaction with its
//! count, so a start that is killed half-way goes on where it was. A step is never edited once it was released;
//! a change is a new step.

use rusqlite::Connection;

use super::access_schema::ACCESS;
use super::fault::Fault;
use super::lease_end::{LEASE_END_COUNTS, LEASE_ENDS};
use super::messages_schema::{
    CALLS, CANCELLED_CALLS, GROUP_OWNERS, IDS_BY_TIME, MESSAGES, SETTLERS, TOPIC_OWNERS,
};
use super::service::{SERVICES, SERVICES_SINCE};
use super::transact;
use crate::durable::{LEDGER, MARKED};
use crate::{Result, StoreError};

/// What `PRAGMA application_id` holds in our files: `TNUR`.
const APPLICATION_ID: i32 = 0x544e_5552;

/// The steps, in order. Step N takes a file from version N to N + 1.
const STEPS: &[&str] = &[
    "
-- Who this store is: one row, made on the first start.
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    cluster_id TEXT NOT NULL,                       -- scope of resume tokens
    broker_key BLOB NOT NULL                        -- SECRET: Ed25519 seed that signs resume tokens
               CHECK (length(broker_key) = 32)
) STRICT;

-- Starts of the broker. Those that no lease can need any more are deleted at the next start.
CREATE TABLE runs (
    run        INTEGER PRIMARY KEY,                 -- 1, 2, 3, ...; the largest is the current one
    started_at INTEGER NOT NULL,                    -- Unix ms
    uptime_ms  INTEGER NOT NULL                     -- as of the last heartbeat; never goes down
) STRICT;

-- Sessions that exist, attached or not. A row is deleted when its lease ends.
CREATE TABLE leases (
    mesh        TEXT NOT NULL,
    session     BLOB NOT NULL CHECK (length(session) = 32), -- public key
    lease       TEXT NOT NULL,                      -- id of this lease; another after it ended
    member      BLOB NOT NULL CHECK (length(member) = 32),  -- public key
    instance    TEXT NOT NULL,                      -- process that carried it last
    profile     TEXT NOT NULL,                      -- JSON {\"v\": 1, name, status, ...}
    caps        TEXT,                               -- JSON [\"send\", ...]; NULL allows everything
    joined_at   INTEGER NOT NULL,                   -- Unix ms
    touched_run INTEGER NOT NULL,                   -- last run it was attached in
    PRIMARY KEY (mesh, session)
) STRICT, WITHOUT ROWID;

-- Live settings that differ from the defaults.
CREATE TABLE settings (
    key   TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL                             -- JSON
) STRICT, WITHOUT ROWID;

-- How often the settings were changed: one row.
CREATE TABLE settings_version (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
) STRICT;
INSERT INTO settings_version (one, version) VALUES (1, 0);
",
    MESSAGES,
    IDS_BY_TIME,
    CALLS,
    CANCELLED_CALLS,
    SERVICES,
    ACCESS,
    // What `mesh_settings` keeps, for each mesh.
    "DROP TABLE settings; DROP TABLE settings_version;",
    SETTLERS,
    "
-- When the wall clock was last believed, written with the uptime of a run: one row. A start that finds the clock more than a
-- day from it holds expiry and pruning.
CREATE TABLE clock (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    believed_at INTEGER NOT NULL                    -- Unix ms
) STRICT;
INSERT INTO clock (one, believed_at) SELECT 1, started_at + uptime_ms FROM runs ORDER BY run DESC LIMIT 1;
",
    SERVICES_SINCE,
    LEASE_ENDS,
    GROUP_OWNERS,
    TOPIC_OWNERS,
    LEDGER,
    MARKED,
    LEASE_END_COUNTS,
];

/// The schema version of this program.
pub(super) const SUPPORTED: u32 = STEPS.len() as u32;

/// Refuses a file that a newer program wrote, or one that is not ours. Changes nothing.
pub(super) fn refuse_unknown(connection: &Connection) -> Result<(), Fault> {
    let found = version(connection)?;
    if found > SUPPORTED {
        return Err(StoreError::Newer { found, supported: SUPPORTED }.into());
    }
    let application_id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if found > 0 && application_id != APPLICATION_ID {
        return Err(Fault::corrupt("tenure.db belongs to another program"));
    }
    Ok(())
}

/// Whether the file has taken every step.
pub(super) fn is_current(connection: &Connection) -> Result<bool, Fault> {
    Ok(version(connection)? == SUPPORTED)
}

/// Takes the steps that the file has not taken yet; whether there were any.
pub(super) fn migrate(connection: &mut Connection) -> Result<bool, Fault> {
    let found = version(connection)?;
    for (next, step) in (1u32..).zip(STEPS).skip(found as usize) {
        transact(connection, |transaction| {
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", next)?;
            Ok(())
        })?;
    }
    Ok(found < SUPPORTED)
}

/// What a file of the first version was made with.
#[cfg(test)]
pub(super) fn first_step() -> &'static str {
    STEPS[0]
}

fn version(connection: &Connection) -> Result<u32, Fault> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    u32::try_from(version).map_err(|_| Fault::corrupt(format!("its schema version is {version}")))
}
