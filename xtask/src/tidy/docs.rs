//! Checks on documents and comments: paths that exist, folders that introduce themselves, `select!` that says why it is safe.

use std::path::Path;

use anyhow::{Context, Result};

use super::files::{self, Source};

/// Lines above a `select!`, or at its beginning, in which its cancel-safety may be said.
const NEAR: usize = 5;

/// One line for each path in a Markdown file that no file of the repository has.
///
/// A path is what stands in backticks, ends in `.rs` or in a slash below a crate, and has no spaces; or the target of a link to
/// a file. It may begin anywhere in the tree, so that a table can say `hooks/run.rs` beside `daemon/src/hooks.rs`.
pub(crate) fn check_paths(root: &Path) -> Result<Vec<String>> {
    let committed = files::committed(root)?;
    let known: Vec<String> = committed.iter().map(|path| format!("/{}", files::slashed(path))).collect();
    let mut problems = Vec::new();
    for path in committed.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("read {}", path.display()))?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            let sources = quoted(line).filter(|name| !is_known(name, &known));
            let links = linked(line).filter(|name| !root.join(folder.join(name)).exists());
            for name in sources.chain(links) {
                problems.push(format!("{}:{}: there is no `{name}`", files::slashed(path), index + 1));
            }
        }
    }
    Ok(problems)
}

/// One line for each folder of a crate whose `mod.rs` does not say what it is for.
pub(crate) fn check_heads(sources: &[Source]) -> Vec<String> {
    let heads = sources.iter().filter(|source| source.is_shipped() && source.path.ends_with("/mod.rs"));
    heads
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| format!("{}: say in `//!` what this folder is for", source.path))
        .collect()
}

/// One line for each `select!` that does not say why it is safe to drop the branches that lose.
pub(crate) fn check_selects(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| source.is_shipped()) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("select! {") {
                continue;
            }
            let near = index.saturating_sub(NEAR)..(index + NEAR).min(lines.len());
            if !lines[near].iter().any(|line| line.contains("//") && line.contains("ancel")) {
                let text = "say whether what is selected is cancel-safe";
                problems.push(format!("{}:{}: {text}", source.path, index + 1));
            }
        }
    }
    problems
}

/// The source files and folders that `line` names in backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let odd = line.split('`').enumerate().filter(|(index, _)| index % 2 == 1).map(|(_, text)| text);
    odd.filter(|text| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c));
        let folder = text.ends_with('/') && (text.starts_with("crates/") || text.contains("/src/"));
        plain && (text.ends_with(".rs") || folder)
    })
}

/// The files that `line` links to.
fn linked(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter_map(|target| target.split('#').next());
    files.filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
}

fn is_known(name: &str, known: &[String]) -> bool {
    let tail = format!("/{name}");
    known.iter().any(|path| path.ends_with(&tail) || (name.ends_with('/') && path.contains(&tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_from_backticks_and_links() {
        let line =
            "see `mesh/src/lib.rs`, `teardown.rs`, `crates/sim/` and `a b.rs`, not `v1/x/` nor `tenure.db`";
        assert_eq!(quoted(line).collect::<Vec<_>>(), ["mesh/src/lib.rs", "teardown.rs", "crates/sim/"]);
        let line = "[a](docs/a.md#b), [c](https://x.example/d.md) and [e](#f)";
        assert_eq!(linked(line).collect::<Vec<_>>(), ["docs/a.md"]);
        let known = ["/crates/mesh/src/lib.rs".to_owned()];
        assert!(is_known("mesh/src/lib.rs", &known) && is_known("crates/mesh/", &known));
        assert!(!is_known("esh/src/lib.rs", &known) && !is_known("lib2.rs", &known));
    }

    #[test]
    fn a_folder_and_a_select_say_what_they_are() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let heads =
            [source("crates/a/src/b/mod.rs", "mod c;\n"), source("crates/a/src/d/mod.rs", "//! D.\n")];
        assert_eq!(check_heads(&heads).len(), 1);
        let said = "    // Both are cancel-safe.\n    tokio::select! {\n";
        let selects = [source("crates/a/src/b.rs", said), source("crates/a/src/c.rs", "tokio::select! {\n")];
        assert_eq!(
            check_selects(&selects),
            ["crates/a/src/c.rs:1: say whether what is selected is cancel-safe"]
        );
    }
}
