//! Words that must not stand in the code.
//!
//! Two checks: what `proto` and the rules may not name, because they are pure; and what no source may hold,
//! because it is unfinished. Both see tokens, so comments and strings may speak of anything. A rule matches
//! a path however it is written: `std::fs::read`, `use std::fs`, `use std::{fs, fmt}`.

use super::files::Source;
use super::lex::{self, Token};

/// A path that must not be named in some rooms, and why.
struct Rule {
    rooms: &'static [&'static str],
    /// A path from `std`, or a single name, which is then forbidden wherever it stands.
    path: &'static str,
    why: &'static str,
}

const PROTO: &str = "crates/proto/src/";
/// The rules, where also the order of a map decides.
const RULES_ROOMS: &[&str] =
    &["crates/kit/src/", "crates/mesh/src/", "crates/link/src/", "crates/outbox/src/"];
const PURE: &[&str] =
    &[PROTO, "crates/kit/src/", "crates/mesh/src/", "crates/link/src/", "crates/outbox/src/"];

const RULES: &[Rule] = &[
    Rule { rooms: PURE, path: "Instant", why: "time enters as an argument" },
    Rule { rooms: PURE, path: "SystemTime", why: "time enters as an argument" },
    Rule { rooms: PURE, path: "std::thread", why: "no threads here" },
    Rule { rooms: PURE, path: "std::net", why: "no I/O here" },
    Rule { rooms: PURE, path: "std::fs", why: "no I/O here" },
    Rule { rooms: PURE, path: "std::env", why: "the environment is read in the shells" },
    Rule { rooms: PURE, path: "std::process", why: "no I/O here" },
    Rule { rooms: RULES_ROOMS, path: "HashMap", why: "its order is random; use a BTreeMap" },
    Rule { rooms: RULES_ROOMS, path: "HashSet", why: "its order is random; use a BTreeSet" },
    Rule { rooms: RULES_ROOMS, path: "RandomState", why: "randomness enters as an argument" },
];

const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// One line for each forbidden path in the pure rooms; their tests may name what they like.
pub(crate) fn check_pure_rooms(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let rules: Vec<_> =
            RULES.iter().filter(|rule| rule.rooms.iter().any(|room| source.path.starts_with(room))).collect();
        if rules.is_empty() {
            continue;
        }
        let (tokens, _) = lex::without_tests(&lex::tokens(&source.text));
        for (line, path) in paths(&tokens) {
            for rule in rules.iter().filter(|rule| rule.forbids(&path)) {
                problems.push(format!("{}:{line}: `{}`: {}", source.path, rule.path, rule.why));
            }
        }
    }
    problems
}

/// One line for each unfinished or ignored piece of code, tests included.
pub(crate) fn check_leftovers(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources {
        let tokens = lex::tokens(&source.text);
        for (at, token) in tokens.iter().enumerate() {
            let next = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text);
            if UNFINISHED.contains(&token.text) && next(1) == "!" && matches!(next(2), "(" | "[" | "{") {
                problems
                    .push(format!("{}:{}: `{}!` is unfinished work", source.path, token.line, token.text));
            }
            if token.text == "#" && next(1) == "[" && next(2) == "ignore" {
                problems.push(format!("{}:{}: an ignored test proves nothing", source.path, token.line));
            }
        }
    }
    problems
}

impl Rule {
    fn forbids(&self, path: &[&str]) -> bool {
        // Anywhere in the path: `use ::std::fs` reads as `use`, `std`, `fs`.
        let names: Vec<&str> = self.path.split("::").collect();
        path.windows(names.len()).any(|window| window == names)
    }
}

/// Every path in the code with the line of its last name; a group such as `a::{b, c::d}` gives each of its own.
fn paths<'a>(tokens: &[Token<'a>]) -> Vec<(usize, Vec<&'a str>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = path(tokens, at, &[], &mut found);
    }
    found
}

/// Reads the path that starts at `at`, below `prefix`; answers with where to go on, always further than `at`.
fn path<'a>(
    tokens: &[Token<'a>],
    at: usize,
    prefix: &[&'a str],
    found: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token: &Token<'_>| token.text == text);
    if !tokens[at].is_word() {
        return at + 1;
    }
    let mut names = prefix.to_vec();
    names.push(tokens[at].text);
    let mut last = at;
    while is(last + 1, "::") && tokens.get(last + 2).is_some_and(Token::is_word) {
        last += 2;
        names.push(tokens[last].text);
    }
    if is(last + 1, "::") && is(last + 2, "{") {
        let end = lex::closing(tokens, last + 2);
        let mut inner = last + 3;
        while inner < end {
            inner = path(tokens, inner, &names, found);
        }
        return end + 1;
    }
    found.push((tokens[last].line, names));
    last + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Vec<Source> {
        vec![Source { path: path.to_owned(), text: text.to_owned() }]
    }

    fn core(text: &str) -> Vec<String> {
        check_pure_rooms(&source("crates/mesh/src/lease.rs", text))
    }

    #[test]
    fn a_forbidden_path_is_found_however_it_is_written() {
        for text in [
            "fn f() { std::fs::read(p) }",
            "use std::fs;",
            "use std::{fmt, fs};",
            "use std::{\n    fmt::{self, Debug},\n    fs::{self, File},\n};",
            "use ::std::fs::File;",
        ] {
            let problems = core(text);
            assert!(problems.iter().any(|problem| problem.contains("`std::fs`")), "{text}: {problems:?}");
        }
    }

    #[test]
    fn the_line_is_that_of_the_name() {
        let problems = core("// one\nuse std::{\n    fmt,\n    fs,\n};\n");
        assert_eq!(problems, ["crates/mesh/src/lease.rs:4: `std::fs`: no I/O here"]);
    }

    #[test]
    fn single_names_are_found_in_any_path() {
        assert_eq!(core("use std::collections::{BTreeMap, HashMap};").len(), 1);
        assert_eq!(core("let now = Instant::now();").len(), 1);
        assert_eq!(core("fn f(at: std::time::SystemTime) {}").len(), 1);
    }

    #[test]
    fn comments_strings_tests_and_longer_names_are_free() {
        assert_eq!(core("// std::fs\n/// `HashMap`\nfn f() { \"std::env\" }"), Vec::<String>::new());
        assert_eq!(core("#[cfg(test)]\nmod tests { use std::fs; }"), Vec::<String>::new());
        assert_eq!(core("use std::fmt; use crate::fs::Thing; struct MyHashMapLike;"), Vec::<String>::new());
        assert_eq!(
            check_pure_rooms(&source("crates/mesh/src/tests.rs", "use std::fs;")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_room_has_its_own_rules() {
        let text = "use std::collections::HashMap; use std::thread;";
        assert_eq!(check_pure_rooms(&source("crates/mesh/src/a.rs", text)).len(), 2);
        assert_eq!(check_pure_rooms(&source("crates/proto/src/a.rs", text)).len(), 1);
        assert_eq!(check_pure_rooms(&source("crates/broker/src/a.rs", text)).len(), 0);
    }

    #[test]
    fn leftovers_are_found_in_tests_too() {
        let text = "fn a() { todo!() }\n#[cfg(test)]\nmod t {\n #[ignore = \"slow\"]\n fn b() { dbg!(x) }\n}";
        let problems = check_leftovers(&source("crates/cli/tests/a.rs", text));
        let lines: Vec<_> = problems.iter().map(|problem| problem.split(':').nth(1)).collect();
        assert_eq!(lines, [Some("1"), Some("4"), Some("5")], "{problems:?}");
        let innocent = "fn todo() {} // todo!()\nlet ignore = todo != 1; \"dbg!(x)\"";
        assert_eq!(check_leftovers(&source("xtask/src/a.rs", innocent)), Vec::<String>::new());
    }
}
