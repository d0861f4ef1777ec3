//! How long files and functions are, tests cut.
//!
//! Soft limits: 500 lines a file, 70 a function. Crossing one is worth a look, not a failure, so this only
//! prints: what is over, and the shape of the whole.

use std::fmt::Write;

use super::files::Source;
use super::lex::{self, Token};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

/// Something that has a length: where it is, and how many lines.
#[derive(Debug, PartialEq, Eq)]
struct Sized {
    place: String,
    lines: usize,
}

/// The report: everything over its limit, longest first, then median, p90 and maximum.
pub(crate) fn report(sources: &[Source]) -> String {
    let mut files = Vec::new();
    let mut functions = Vec::new();
    for source in sources.iter().filter(|source| source.is_shipped()) {
        let (tokens, test_lines) = lex::without_tests(&lex::tokens(&source.text));
        let lines = source.text.lines().count().saturating_sub(test_lines);
        files.push(Sized { place: source.path.clone(), lines });
        functions.extend(function_lengths(&tokens).into_iter().map(|function| Sized {
            place: format!("{}:{} {}", source.path, function.line, function.name),
            lines: function.lines,
        }));
    }
    let mut text = String::new();
    section(&mut text, "files", files, FILE_LINES);
    section(&mut text, "functions", functions, FUNCTION_LINES);
    text
}

fn section(text: &mut String, what: &str, mut sized: Vec<Sized>, limit: usize) {
    sized.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.place.cmp(&b.place)));
    let at = |percent: usize| {
        // The list runs from the longest down, so the p90 is a tenth of the way in.
        let index = sized.len() * (100 - percent) / 100;
        sized.get(index).map_or(0, |entry| entry.lines)
    };
    let over = sized.iter().take_while(|entry| entry.lines > limit).count();
    // Writing to a `String` does not fail.
    let _ = writeln!(
        text,
        "{what}: {} counted, lines median {} / p90 {} / max {}, {over} over the soft limit of {limit}",
        sized.len(),
        at(50),
        at(90),
        at(100),
    );
    for entry in &sized[..over] {
        let _ = writeln!(text, "  {:>5}  {}", entry.lines, entry.place);
    }
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    line: usize,
    lines: usize,
}

/// Every function from the line of its `fn` to that of its closing brace; one inside another counts in both.
fn function_lengths<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let mut functions = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        // `fn(u8)` is a type: no name follows.
        if keyword.text != "fn" || !name.is_word() {
            continue;
        }
        if let Some(open) = body(tokens, at) {
            let end = tokens[lex::closing(tokens, open)].line;
            functions.push(Function { name: name.text, line: keyword.line, lines: end - keyword.line + 1 });
        }
    }
    functions
}

/// Where the body of the function at `at` opens; a signature that ends in a semicolon has none.
fn body(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut at = at;
    loop {
        match tokens.get(at)?.text {
            "{" => return Some(at),
            ";" => return None,
            "(" | "[" => at = lex::closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(source: &str) -> Vec<(&str, usize, usize)> {
        let tokens = lex::tokens(source);
        let functions = function_lengths(&tokens);
        functions.iter().map(|function| (function.name, function.line, function.lines)).collect()
    }

    #[test]
    fn a_function_runs_from_its_fn_to_its_brace() {
        let source = "/// Doc.\npub fn a(\n    x: [u8; 4],\n) -> u8 {\n    if x { '}' } else { \"}\" }\n}\nfn b() {}\n";
        assert_eq!(lengths(source), [("a", 2, 5), ("b", 7, 1)]);
    }

    #[test]
    fn signatures_and_function_types_do_not_count() {
        assert_eq!(lengths("trait T { fn a(&self) -> [u8; 2]; fn b(f: fn(u8) -> u8) { } }"), [("b", 1, 1)]);
    }

    #[test]
    fn nested_functions_count_in_both() {
        assert_eq!(lengths("fn a() {\n    fn b() {\n    }\n}\n"), [("a", 1, 4), ("b", 2, 2)]);
    }

    #[test]
    fn the_report_names_what_is_over_and_leaves_tests_out() {
        let long = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(FUNCTION_LINES));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let source = |path: &str, text: String| Source { path: path.to_owned(), text };
        let report = report(&[
            source("crates/a/src/lib.rs", format!("{long}fn short() {{}}\n{tests}")),
            source("crates/a/tests/t.rs", long.clone()),
        ]);
        assert_eq!(
            report,
            "files: 1 counted, lines median 73 / p90 73 / max 73, 0 over the soft limit of 500\n\
             functions: 2 counted, lines median 1 / p90 72 / max 72, 1 over the soft limit of 70\n\
             \x20    72  crates/a/src/lib.rs:1 long\n"
        );
    }
}
