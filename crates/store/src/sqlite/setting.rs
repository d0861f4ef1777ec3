//! Live settings: values and the version that guards them.

use rusqlite::{Connection, params};
use serde_json::Value;

use super::fault::{Fault, natural};
use super::integer;
use crate::{Result, Settings, StoreError};

/// All settings.
pub(super) fn all(connection: &Connection) -> Result<Settings, Fault> {
    let mut settings = Settings { version: version(connection)?, ..Settings::default() };
    let mut statement = connection.prepare_cached("SELECT key, value FROM settings ORDER BY key")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (key, text): (String, String) = (row.get(0)?, row.get(1)?);
        let value =
            serde_json::from_str(&text).map_err(|error| Fault::corrupt(format!("setting {key}: {error}")))?;
        settings.values.insert(key, value);
    }
    Ok(settings)
}

/// Changes one setting if the version is still `expected`; gives the new version.
pub(super) fn put(
    connection: &Connection,
    expected: u64,
    key: &str,
    value: Option<&Value>,
) -> Result<u64, Fault> {
    let found = version(connection)?;
    if found != expected {
        return Err(StoreError::Conflict { version: found }.into());
    }
    match value {
        Some(value) => connection
            .prepare_cached("INSERT OR REPLACE INTO settings (key, value) VALUES (?1, ?2)")?
            .execute(params![key, value.to_string()])?,
        None => connection.prepare_cached("DELETE FROM settings WHERE key = ?1")?.execute([key])?,
    };
    let next = found + 1;
    connection
        .prepare_cached("UPDATE settings_version SET version = ?1 WHERE one = 1")?
        .execute([integer(next)])?;
    Ok(next)
}

fn version(connection: &Connection) -> Result<u64, Fault> {
    let version: i64 = connection
        .prepare_cached("SELECT version FROM settings_version WHERE one = 1")?
        .query_row([], |row| row.get(0))?;
    natural(version, "the settings' version")
}
