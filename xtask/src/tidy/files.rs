//! Checks on files as files, and the list of sources the other checks read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::graph;

/// Directories of one machine. Split, so that this file does not hold what it looks for.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// A Rust file of ours.
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Whether the whole file is test code: in a `tests` or `props` directory, or named `tests.rs`, `*_tests.rs` or
    /// `props.rs` (property tests).
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        let in_tests = self.path.contains("/tests/") || self.path.contains("/props/");
        in_tests || matches!(name, "tests.rs" | "props.rs") || name.ends_with("_tests.rs")
    }

    /// Whether the file is part of what is built: under `src`, and not test code.
    pub(crate) fn is_shipped(&self) -> bool {
        self.path.contains("/src/") && !self.is_test()
    }
}

/// Every Rust file under `crates`, `xtask` and `bench`.
pub(crate) fn rust_sources(root: &Path) -> Result<Vec<Source>> {
    let mut paths = walk(root, Path::new("crates"))?;
    paths.extend(walk(root, Path::new("xtask"))?);
    paths.extend(walk(root, Path::new("bench"))?);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    paths
        .into_iter()
        .map(|path| {
            let text =
                fs::read_to_string(root.join(&path)).with_context(|| format!("read {}", path.display()))?;
            Ok(Source { path: slashed(&path), text })
        })
        .collect()
}

/// One line for each crate whose root file does not say what the crate is for.
pub(crate) fn check_crate_docs(metadata: &Value) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for package in graph::members(metadata) {
        let of_kind = |kind: &str| {
            graph::list(&package["targets"])
                .find(|target| graph::list(&target["kind"]).any(|found| found == kind))
                .and_then(|target| target["src_path"].as_str())
        };
        let Some(path) = of_kind("lib").or_else(|| of_kind("bin")) else { continue };
        let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        if !text.lines().any(|line| line.starts_with("//!")) {
            let name = package["name"].as_str().unwrap_or_default();
            problems.push(format!("`{name}` does not say what it is for: its root file has no `//!` docs"));
        }
    }
    Ok(problems)
}

/// One line for each path of somebody's machine in a file that is, or would be, committed.
pub(crate) fn check_machine_paths(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in committed(root)? {
        if path.file_name().is_some_and(|name| name == "Cargo.lock") {
            continue;
        }
        // Not text, or deleted but still listed: nothing to read.
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                let line = index + 1;
                problems.push(format!("{}:{line}: `{found}` is a path of one machine", slashed(&path)));
            }
        }
    }
    Ok(problems)
}

/// The machine path in `line`, if any; the same letters inside a longer path are none.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS
        .iter()
        .copied()
        .find(|path| line.match_indices(path).any(|(at, _)| !continues_a_path(&line[..at])))
}

/// Whether a path is still going on at the end of `before`: `crates`, `~`, `$(pwd)`, or `"$DIR"` in a script.
fn continues_a_path(before: &str) -> bool {
    let in_path =
        |char: char| char.is_alphanumeric() || matches!(char, '_' | '-' | '.' | '~' | '*' | '}' | ')');
    let quoted_variable = before.strip_suffix('"').is_some_and(|quoted| {
        let dollar =
            quoted.trim_end_matches(|char: char| char.is_alphanumeric() || matches!(char, '_' | '}'));
        dollar.ends_with('$') || dollar.ends_with("${")
    });
    before.ends_with(in_path) || quoted_variable
}

/// The files git tracks or would add; without git, every file outside `target` and hidden directories.
pub(crate) fn committed(root: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stderr(Stdio::null())
        .output();
    match listed {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8_lossy(&output.stdout);
            Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
        }
        _ => walk(root, Path::new("")),
    }
}

/// The files below `root/directory`, relative to `root`, in order; hidden directories and `target` are left out.
fn walk(root: &Path, directory: &Path) -> Result<Vec<PathBuf>> {
    let here = root.join(directory);
    let mut files = Vec::new();
    for entry in fs::read_dir(&here).with_context(|| format!("list {}", here.display()))? {
        let entry = entry.with_context(|| format!("list {}", here.display()))?;
        let path = directory.join(entry.file_name());
        let kind = entry.file_type().with_context(|| format!("look at {}", path.display()))?;
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !hidden && name != "target" {
            files.extend(walk(root, &path)?);
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn slashed(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_absolute_ones() {
        for path in MACHINE_PATHS {
            assert_eq!(machine_path(&format!("see {path}main/x")), Some(*path));
            assert_eq!(machine_path(&format!("\"{path}x\"")), Some(*path));
            assert_eq!(machine_path(&format!("file://{path}x")), Some(*path));
            assert_eq!(machine_path(&format!("b\"{path}x\"")), Some(*path));
            assert_eq!(machine_path(&format!("crates{path}x ~{path}x")), None);
            assert_eq!(machine_path(&format!("\"$DIR\"{path}x \"${{DIR}}\"{path}x $(pwd){path}x")), None);
        }
        assert_eq!(machine_path("target/release/tenure, /tmp/x"), None);
    }

    #[test]
    fn test_files_are_told_by_their_names() {
        let source = |path: &str| Source { path: path.to_owned(), text: String::new() };
        for path in [
            "crates/a/tests/b.rs",
            "crates/a/src/tests.rs",
            "crates/a/src/lease/tests/b.rs",
            "crates/a/src/props.rs",
        ] {
            assert!(source(path).is_test(), "{path}");
        }
        assert!(source("crates/a/src/attests.rs").is_shipped());
        assert!(!source("crates/a/examples/vectors.rs").is_shipped());
    }

    #[test]
    fn the_walk_finds_this_file_and_no_build_output() {
        let files = walk(&crate::run::root(), Path::new("xtask")).expect("walk");
        assert!(files.contains(&PathBuf::from("xtask/src/tidy/files.rs")));
        assert!(files.iter().all(|path| !path.starts_with("xtask/target")));
    }
}
