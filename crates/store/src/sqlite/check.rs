//! Whether the data is sound, in words.

use rusqlite::Connection;

use super::fault::Fault;
use super::{access, check_messages, identity, lease, run, service};
use crate::{Result, StoreError};

/// Findings that are told in full; of the others only the number is.
const FINDINGS_MAX: usize = 100;

/// The pages as SQLite sees them, then every value as this program would read it.
pub(super) fn findings(connection: &Connection) -> Result<Vec<String>, Fault> {
    let mut report = Report::default();
    let outcome = pages(connection, &mut report);
    report.note(outcome)?;
    report.note(identity::get(connection))?;
    let outcome = leases(connection, &mut report);
    report.note(outcome)?;
    let outcome = service::findings(connection, &mut report);
    report.note(outcome)?;
    if let Some(meshes) = report.note(access::meshes(connection))? {
        for mesh in meshes {
            report.note(access::restore(connection, &mesh))?;
        }
    }
    check_messages::findings(connection, &mut report)?;
    Ok(report.finish())
}

fn pages(connection: &Connection, report: &mut Report) -> Result<(), Fault> {
    let mut statement = connection.prepare("PRAGMA integrity_check")?;
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

/// What was found.
#[derive(Default)]
pub(super) struct Report {
    findings: Vec<String>,
    untold: usize,
}

impl Report {
    /// One more finding.
    pub(super) fn add(&mut self, finding: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.untold += 1;
        }
    }

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

    fn finish(mut self) -> Vec<String> {
        if self.untold > 0 {
            self.findings.push(format!("and {} more", self.untold));
        }
        self.findings
    }
}
