//! Whether the data is sound, in words.

use rusqlite::Connection;

use super::fault::Fault;
use super::{identity, lease, run, setting};
use crate::{Result, StoreError};

/// Findings that are told in full; of the others only the number is.
const FINDINGS_MAX: usize = 100;

/// The pages as SQLite sees them, then every value as this program would read it.
pub(super) fn findings(connection: &Connection) -> Result<Vec<String>, Fault> {
    let mut findings = Findings::default();
    findings.note(pages(connection, &mut findings.clone_of_pages()))?;
    findings.finish()
}
