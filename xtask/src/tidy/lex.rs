//! Just enough of a Rust lexer to look at code without its comments and literals.
//!
//! It knows where words and punctuation are and which lines they stand on. It never fails: on text that is not
//! Rust it yields some tokens, and the compiler has already said what is wrong.

/// A word, or one character of punctuation (`::` counts as one), and its line, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

impl Token<'_> {
    /// Whether this is an identifier or a keyword.
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(is_word_start)
    }
}

/// The tokens of `source`; comments, strings, characters, numbers and lifetimes leave none.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let length = skipped(rest).unwrap_or_else(|| {
            let length = token_length(rest, first);
            if !first.is_whitespace() && !first.is_ascii_digit() {
                tokens.push(Token { line, text: &rest[..length] });
            }
            length
        });
        line += rest[..length].matches('\n').count();
        at += length;
    }
    tokens
}

/// The tokens without the items marked `#[cfg(test)]`, and how many lines those items take.
pub(crate) fn without_tests<'a>(tokens: &[Token<'a>]) -> (Vec<Token<'a>>, usize) {
    let mut kept = Vec::with_capacity(tokens.len());
    let (mut at, mut lines) = (0, 0);
    while let Some(token) = tokens.get(at) {
        if starts_test_item(&tokens[at..]) {
            let end = item_end(tokens, at);
            lines += tokens[end].line - token.line + 1;
            at = end + 1;
        } else {
            kept.push(*token);
            at += 1;
        }
    }
    (kept, lines)
}

/// The index of the token that closes the bracket at `open`, or the last token.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

fn starts_test_item(tokens: &[Token<'_>]) -> bool {
    let begins = |texts: &[&str]| {
        tokens.len() >= texts.len() && texts.iter().zip(tokens).all(|(text, token)| *text == token.text)
    };
    begins(&["#", "[", "cfg", "(", "test", ")", "]"]) || begins(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The last token of the item whose attributes start at `at`: its closing brace or its semicolon.
fn item_end(tokens: &[Token<'_>], at: usize) -> usize {
    let mut at = at;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => return closing(tokens, at),
            ";" => return at,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    tokens.len().saturating_sub(1)
}

/// The length of the comment, literal or lifetime that `rest` begins with, if it begins with one.
fn skipped(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    if rest.starts_with('\'') {
        return Some(quote(rest));
    }
    string(rest)
}

/// The length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a character literal, or of a lifetime, whichever the quote begins.
fn quote(rest: &str) -> usize {
    let mut chars = rest[1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => escaped(rest, '\''),
        (Some(first), Some('\'')) => 2 + first.len_utf8(),
        (Some(first), _) if is_word_start(first) => 1 + word_length(&rest[1..]),
        _ => 1,
    }
}

/// The length of a string literal of any kind, if `rest` begins with one.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["", "b", "c", "r", "br", "cr"]
        .into_iter()
        .rev()
        .find(|prefix| rest.strip_prefix(prefix).is_some_and(|tail| tail.starts_with(['"', '#', '\''])))?;
    let tail = &rest[prefix.len()..];
    let length = if prefix.ends_with('r') {
        raw_string(tail)?
    } else if tail.starts_with('"') {
        escaped(tail, '"')
    } else if prefix == "b" && tail.starts_with('\'') {
        escaped(tail, '\'')
    } else {
        return None;
    };
    Some(prefix.len() + length)
}

/// The length of `#"…"#` with any number of hashes; a raw identifier is none.
fn raw_string(tail: &str) -> Option<usize> {
    let hashes = tail.len() - tail.trim_start_matches('#').len();
    let body = tail[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(tail.len(), |at| hashes + 1 + at + end.len()))
}

/// The length of a literal that begins with a quote and ends at the next one without a backslash.
fn escaped(literal: &str, quote: char) -> usize {
    let mut chars = literal.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        if char == '\\' {
            chars.next();
        } else if char == quote {
            return at + 1;
        }
    }
    literal.len()
}

fn token_length(rest: &str, first: char) -> usize {
    if is_word_start(first) || first.is_ascii_digit() {
        word_length(rest)
    } else if rest.starts_with("::") {
        2
    } else {
        first.len_utf8()
    }
}

fn is_word_start(char: char) -> bool {
    char == '_' || char.is_alphabetic()
}

fn word_length(rest: &str) -> usize {
    rest.find(|char: char| char != '_' && !char.is_alphanumeric()).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_leave_no_tokens() {
        assert_eq!(texts("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(texts(r##"x("a \" b", r#"c " d"#, b"e", 'f', '\'', b'"', 7u8) y"##).last(), Some(&"y"));
        assert_eq!(texts(r##"x = r#"c " d"#;"##), ["x", "=", ";"]);
        assert_eq!(
            texts("fn f<'a>(x: &'a str) { '{' }"),
            "fn f < > ( x : & str ) { }".split(' ').collect::<Vec<_>>()
        );
    }

    #[test]
    fn words_that_look_like_prefixes_are_words() {
        assert_eq!(texts("r b br crate"), ["r", "b", "br", "crate"]);
        assert_eq!(texts("r#type"), ["r", "#", "type"]);
        assert_eq!(texts("std::fs"), ["std", "::", "fs"]);
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let source = "a\n/* 2\n3 */ b \"\n4\" c\n";
        let lines: Vec<_> = tokens(source).into_iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("a", 1), ("b", 3), ("c", 4)]);
    }

    #[test]
    fn test_items_are_cut() {
        let source = "use a;\n#[cfg(test)]\nmod tests {\n    fn t() { [0; 4] }\n}\nfn kept() {}\n#[cfg(test)]\nuse b;\nc";
        let tokens = tokens(source);
        let (kept, lines) = without_tests(&tokens);
        let kept: Vec<_> = kept.iter().map(|token| token.text).collect();
        assert_eq!(kept, ["use", "a", ";", "fn", "kept", "(", ")", "{", "}", "c"]);
        assert_eq!(lines, 6);
    }

    #[test]
    fn a_test_function_with_an_array_in_its_signature_is_cut_whole() {
        let tokens = tokens("#[cfg(test)] fn f() -> [u8; 4] { x } y");
        let (kept, _) = without_tests(&tokens);
        assert_eq!(kept.iter().map(|token| token.text).collect::<Vec<_>>(), ["y"]);
    }
}
