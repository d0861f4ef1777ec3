//! The scenarios that once broke a promise, each made as small as it got, by name.

use std::io;
use std::path::Path;

use crate::scenario::Scenario;

/// All of them, in the order of their names.
pub fn regressions() -> io::Result<Vec<(String, Scenario)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        found.push((name, serde_json::from_slice(&std::fs::read(&path)?)?));
    }
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}
