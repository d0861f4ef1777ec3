//! A regular expression that an operator gives for names.
//!
//! It fits whole names, takes time linear in the name (`regex` never backtracks), and is bounded: the text by
//! [`PATTERN_BYTES`], what it compiles to by [`COMPILED_BYTES`], its nesting by [`NESTING`].

use std::fmt;

use regex::{Regex, RegexBuilder};

/// Bytes of a pattern's text.
pub const PATTERN_BYTES: usize = 256;
/// Bytes of what a pattern compiles to.
const COMPILED_BYTES: usize = 64 * 1024;
/// Groups within groups.
const NESTING: u32 = 16;

/// A regular expression for whole names; two are equal if their texts are.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    whole: Regex,
}

impl Pattern {
    /// What `text` means, or why it means nothing, in a few words.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        if text.len() > PATTERN_BYTES {
            return Err(format!("it has {} bytes", text.len()));
        }
        // By itself first: what closes a group that it did not open must not get out of ours.
        compile(text)?;
        let whole = compile(&format!(r"\A(?:{text})\z"))?;
        Ok(Pattern { text: text.to_owned(), whole })
    }

    /// Whether it fits all of `name`.
    pub fn fits(&self, name: &str) -> bool {
        self.whole.is_match(name)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(COMPILED_BYTES).nest_limit(NESTING).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it compiles to too much; use smaller counts".to_owned(),
        // The last of several lines says it; those before point at the place.
        other => {
            other.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_whole_names_however_it_is_written() {
        let fits = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().fits(name);
        assert!(fits("team-[a-z]+", "team-db") && !fits("team-[a-z]+", "team-db1") && !fits("db", "my-db"));
        assert!(
            fits("db|web", "web") && !fits("db|web", "webs") && !fits("db|web", "dbs"),
            "each alternative"
        );
        assert!(!fits("(?m)^db$", "x\ndb"), "nor by a flag");
    }

    #[test]
    fn what_is_no_pattern_or_too_much_is_refused_with_a_reason() {
        for (bad, words) in [
            ("(", "unclosed"),
            ("a)|(b", "unopened"),
            ("[z-a]", "range"),
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreference"),
            ("[a-z]{1000}{1000}", "too much"),
            ("(?x)a #", ""),
        ] {
            let why = Pattern::parse(bad).unwrap_err();
            assert!(why.contains(words) && !why.contains('\n'), "{bad}: {why}");
        }
        assert!(Pattern::parse(&"(".repeat(200)).is_err());
        assert!(
            Pattern::parse(&format!("{}{}", "(".repeat(40), ")".repeat(40))).unwrap_err().contains("nest")
        );
        assert!(Pattern::parse(&"a".repeat(PATTERN_BYTES + 1)).unwrap_err().contains("257 bytes"));
    }
}
