//! Whether the data is sound, in words.

use rusqlite::{Connection, OptionalExtension};

use super::fault::Fault;
use super::{access, check_messages, identity, lease, run, service};
use crate::check::{Checking, Part, Report, Walk};
use crate::{Result, StoreError};

/// The pages as SQLite sees them, then every value as this program would read it.
pub(super) fn findings(connection: &Connection) -> Result<Vec<String>, Fault> {
    let mut checking = Checking::default();
    let outcome = pages(connection, &mut checking.report);
    checking.report.note(outcome)?;
    // All pages were looked at.
    checking.walk.part = Part::Small;
    while !slice(connection, &mut checking)? {}
    Ok(checking.findings())
}

/// Goes on with a check; `true` when it is over. What does not read ends its part.
pub(super) fn slice(connection: &Connection, checking: &mut Checking) -> Result<bool, Fault> {
    let Checking { report, walk } = checking;
    let (outcome, next) = match walk.part {
        Part::Tables => (tables(connection, walk, report), Part::Small),
        Part::Small => (small(connection, report).map(|()| true), Part::Entries),
        Part::Entries => (check_messages::entries(connection, walk, report), Part::Records),
        Part::Records => (check_messages::records(connection, walk, report), Part::Readers),
        Part::Readers => (check_messages::readers(connection, walk, report).map(|()| true), Part::Letters),
        Part::Letters => (check_messages::letters(connection, walk, report), Part::Over),
        Part::Over => return Ok(true),
    };
    if report.note(outcome)?.unwrap_or(true) {
        (walk.part, walk.after, walk.before, walk.record) = (next, None, None, None);
    }
    Ok(walk.part == Part::Over)
}

fn small(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    report.note(identity::get(connection))?;
    let outcome = leases(connection, report);
    report.note(outcome)?;
    let outcome = service::findings(connection, report);
    report.note(outcome)?;
    if let Some(meshes) = report.note(access::meshes(connection))? {
        for mesh in meshes {
            report.note(access::restore(connection, &mesh))?;
        }
    }
    Ok(())
}

/// The next table: one may have many rows, such as the audit log. `true` when there is none left.
fn tables(connection: &Connection, walk: &mut Walk, report: &mut Report) -> Result<bool, Fault> {
    let sql =
        "SELECT rowid, name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('entries', 'dedupe')
               AND rowid > ?1 ORDER BY rowid LIMIT 1";
    let next = connection
        .prepare_cached(sql)?
        .query_row([walk.after.unwrap_or(0)], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
        .optional()?;
    let Some((rowid, table)) = next else { return Ok(true) };
    walk.after = Some(rowid);
    // What does not read ends the look at this table, and not at the others.
    let outcome = integrity(connection, &format!("PRAGMA integrity_check(\"{table}\")"), report);
    report.note(outcome)?;
    Ok(false)
}

fn pages(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    integrity(connection, "PRAGMA integrity_check", report)
}

fn integrity(connection: &Connection, pragma: &str, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection.prepare(pragma)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let line: String = row.get(0)?;
        if line != "ok" {
            report.add(format!("database file: {line}"));
        }
    }
    Ok(())
}

fn leases(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    // Unknown when the runs themselves do not read, which is a finding already.
    let last_run = report.note(run::uptimes(connection))?.map(|uptimes| uptimes.last_run());
    lease::each(connection, |row| {
        if let (Some(row), Some(last_run)) = (report.note(row)?, last_run)
            && let Some(finding) = row.impossible_run(last_run)
        {
            report.add(finding);
        }
        Ok(())
    })
}

impl Report {
    /// The value if it reads; damage becomes a finding; any other fault ends the check.
    pub(super) fn note<T>(&mut self, outcome: Result<T, Fault>) -> Result<Option<T>, Fault> {
        match outcome.map_err(Fault::reading) {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::Corrupt(finding)) => {
                self.add(finding);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
