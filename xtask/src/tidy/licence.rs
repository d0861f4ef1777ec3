//! Where every package comes from and what it may be used for.
//!
//! A licence expression is satisfied when we could accept it from the list below: one side of an `OR`, both of
//! an `AND`. The list is also in `deny.toml`; a test keeps the two equal.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::graph;

const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "MIT-0",
];

/// The name of the public registry in a lock file, whatever mirror serves it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// One line for each package under a licence we do not allow, or from somewhere else.
pub(crate) fn check(metadata: &Value) -> Vec<String> {
    let root = Path::new(metadata["workspace_root"].as_str().unwrap_or_default());
    let mut problems = Vec::new();
    for package in graph::packages(metadata) {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        match package["license"].as_str() {
            None => problems.push(format!("{name}: no licence expression")),
            Some(expression) => match satisfied(expression) {
                Ok(true) => {}
                Ok(false) => problems.push(format!("{name}: `{expression}` is not allowed")),
                Err(error) => problems.push(format!("{name}: cannot read `{expression}`: {error}")),
            },
        }
        match package["source"].as_str() {
            Some(REGISTRY) => {}
            Some(source) => problems.push(format!("{name}: comes from `{source}`, not from the registry")),
            None if Path::new(text("manifest_path")).starts_with(root) => {}
            None => problems.push(format!("{name}: lies outside the workspace")),
        }
    }
    problems
}

/// Whether the allow list satisfies an SPDX expression; `/` is an old spelling of `OR`.
fn satisfied(expression: &str) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect(), at: 0 };
    let value = words.any_of()?;
    match words.peek() {
        None => Ok(value),
        Some(word) => bail!("unexpected `{word}`"),
    }
}

/// The words of an expression and how far we have read; each method reads one rule of the grammar.
struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += 1;
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn any_of(&mut self) -> Result<bool> {
        let mut value = self.all_of()?;
        while self.take("OR") {
            value |= self.all_of()?;
        }
        Ok(value)
    }

    fn all_of(&mut self) -> Result<bool> {
        let mut value = self.term()?;
        while self.take("AND") {
            value &= self.term()?;
        }
        Ok(value)
    }

    fn term(&mut self) -> Result<bool> {
        match self.next() {
            None => bail!("it ends too early"),
            Some("(") => {
                let value = self.any_of()?;
                if !self.take(")") {
                    bail!("a parenthesis stays open");
                }
                Ok(value)
            }
            Some(word @ (")" | "AND" | "OR" | "WITH")) => bail!("unexpected `{word}`"),
            Some(licence) if self.take("WITH") => match self.next() {
                Some(exception) => Ok(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str())),
                None => bail!("it ends after `WITH`"),
            },
            Some(licence) => Ok(ALLOWED.contains(&licence)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_are_satisfied_as_spdx_says() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only/Zlib", true),
            ("MIT OR GPL-3.0-only", true),
            ("MIT AND GPL-3.0-only", false),
            ("GPL-2.0-only AND MIT OR ISC", true),
            ("GPL-2.0-only AND (MIT OR ISC)", false),
            ("ISC OR GPL-2.0-only AND MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("((MIT)) AND (GPL-3.0-only OR (ISC AND Zlib))", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("GPL-2.0-only WITH Classpath-exception-2.0 OR MIT", true),
            ("mit", false),
        ] {
            assert_eq!(satisfied(expression).expect(expression), expected, "{expression}");
        }
    }

    #[test]
    fn broken_expressions_are_errors_not_permissions() {
        for expression in
            ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT Apache-2.0", "MIT WITH", "MIT AND AND ISC"]
        {
            assert!(satisfied(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn packages_come_from_the_registry_or_the_workspace() {
        let package = |name: &str, source: Value, path: &str| json!({"name": name, "version": "1.0.0", "license": "MIT", "source": source, "manifest_path": path});
        let problems = check(&json!({
            "workspace_root": "tree",
            "packages": [
                package("ours", Value::Null, "tree/crates/ours/Cargo.toml"),
                package("good", json!(REGISTRY), "elsewhere/good/Cargo.toml"),
                package("stray", Value::Null, "treehouse/stray/Cargo.toml"),
                package("fork", json!("git+ssh://example.org/fork"), "elsewhere/fork/Cargo.toml"),
                {"name": "bare", "version": "1.0.0", "license": null, "source": REGISTRY},
            ],
        }));
        let names: Vec<_> = problems.iter().filter_map(|problem| problem.split(' ').next()).collect();
        assert_eq!(names, ["stray", "fork", "bare"], "{problems:?}");
    }

    #[test]
    fn cargo_deny_allows_the_same_licences() {
        let deny = std::fs::read_to_string(crate::run::root().join("deny.toml")).expect("read deny.toml");
        let allow =
            deny.split_once("\nallow = [").and_then(|(_, tail)| tail.split_once(']')).expect("the list").0;
        let listed: Vec<_> = allow.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, ALLOWED);
    }
}
