//! How commands print: tables that line up, colour only on a terminal that wants it.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use serde_json::Value;
use tenure_client::proto::text::is_control_or_bidi;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit::Failure;

/// A colour of meaning, not of taste.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    Good,
    Warn,
    Bad,
    Dim,
    Strong,
}

/// Paints text when stdout is a terminal and nobody objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    pub(crate) fn stdout() -> Paint {
        Paint(wants_colour(&std::io::stdout()))
    }

    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Good => "32",
            Colour::Warn => "33",
            Colour::Bad => "31",
            Colour::Dim => "2",
            Colour::Strong => "1",
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Whether `stream` is a terminal and nobody objects to colour.
pub(crate) fn wants_colour(stream: &impl IsTerminal) -> bool {
    let objects = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !objects
}

/// Rows of text as columns that line up.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.width()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    // Columns of a terminal, not characters: some take two, some none.
    let pad = |(cell, width): (&str, &usize)| cell.to_owned() + &" ".repeat(width - cell.width().min(*width));
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(pad).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// What others wrote, made safe for a terminal: no control characters or bidi marks, bounded.
pub(crate) fn safe(text: &str) -> String {
    bounded(text, 80)
}

/// A sentence of a broker or server, made safe for a terminal in the same way.
pub(crate) fn sentence(text: &str) -> String {
    bounded(text, 400)
}

/// At most so many columns of a terminal, and as many characters again that take none.
fn bounded(text: &str, most: usize) -> String {
    let (mut safe, mut columns) = (String::new(), 0);
    for (taken, c) in text.chars().enumerate() {
        let c = if is_control_or_bidi(c) { '\u{fffd}' } else { c };
        columns += c.width().unwrap_or(0);
        if columns > most || taken >= most * 2 {
            safe.push('…');
            break;
        }
        safe.push(c);
    }
    safe
}

/// All of what others wrote, on one line of a terminal: what would move the cursor, break the line or turn the
/// direction of the text is escaped as Rust spells it, the rest is as it was.
pub(crate) fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => line.push(c),
            c if is_control_or_bidi(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// The same for a text of several lines, such as a failure with candidates.
pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// What is left in a text for people, or in JSON, that a terminal would act on and that is not ours: C1 controls, DEL and
/// bidi marks are spelled as JSON spells them. Lower controls stay: colours and line breaks are ours, and JSON has none.
pub(crate) fn spelled(text: &str) -> Cow<'_, str> {
    let is_left = |c: char| is_control_or_bidi(c) && c > '\x1f';
    if !text.contains(is_left) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_left(c) {
            true => spelled += &format!("\\u{:04x}", u32::from(c)),
            false => spelled.push(c),
        }
    }
    Cow::Owned(spelled)
}

/// Prints one JSON value as a line that a terminal can be shown; says what [`emit`] says.
pub(crate) fn emit_json(value: &Value) -> std::io::Result<()> {
    emit(spelled(&value.to_string()).as_bytes())
}

/// Prints one line of data, and says whether anybody is there to read it: for those who must not leave as long as
/// they hold something.
pub(crate) fn emit(line: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Prints data, with nothing in it that a terminal would act on but what is ours. A reader that went away is not an error, it is the end: `tenure peers | head -1`. A disk that is full is
/// one: what was to be read there never will be.
pub(crate) fn print(text: &str) {
    let printed =
        std::io::stdout().write_all(spelled(text).as_bytes()).and_then(|()| std::io::stdout().flush());
    if let Err(error) = printed {
        if let Err(failure) = unread(&error) {
            eprintln!("tenure: {}", lines(&failure.to_string()));
            std::process::exit(1);
        }
        std::process::exit(0);
    }
}

/// Says a line on stderr. Whether anybody hears it changes nothing: what the command is for goes on.
pub(crate) fn talk(words: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{words}\n").as_bytes());
}

/// What it means for a command that nobody reads what it printed.
pub(crate) fn unread(error: &std::io::Error) -> Result<(), Failure> {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        return Ok(());
    }
    Err(Failure::Failed(format!("write to standard output: {error}")))
}

/// Prints one line of data.
pub(crate) fn println(text: &str) {
    print(&format!("{text}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let rows = vec![vec!["a".to_owned(), "long cell".to_owned()], vec!["äöü".to_owned(), "b".to_owned()]];
        assert_eq!(table(&["x", "y"], &rows), "x    y\na    long cell\näöü  b\n");
    }

    #[test]
    fn a_message_is_one_line_whatever_is_in_it() {
        assert_eq!(line("a\nb\x1b[2J\u{202e}c\td\\ä"), "a\\nb\\u{1b}[2J\\u{202e}c\td\\ä");
    }

    #[test]
    fn names_of_strangers_cannot_move_the_cursor() {
        assert_eq!(safe("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(safe("\u{9b}2J\x7f\u{202e}x\u{200f}"), "\u{fffd}2J\u{fffd}\u{fffd}x\u{fffd}");
        assert_eq!(safe(&"世".repeat(50)), "世".repeat(40) + "…", "a wide one takes two columns");
        assert_eq!(
            safe(&"\u{301}".repeat(500)).chars().count(),
            161,
            "one that takes none is bounded as well"
        );
    }

    #[test]
    fn wide_characters_take_two_columns_of_a_table() {
        let rows = vec![vec!["世界".to_owned(), "x".to_owned()], vec!["e\u{301}".to_owned(), "y".to_owned()]];
        assert_eq!(table(&["n", "v"], &rows), "n     v\n世界  x\ne\u{301}     y\n");
    }

    #[test]
    fn json_stays_json_whatever_is_in_it() {
        let value = serde_json::json!({"a": "\u{9b}31m\x7f\u{202e}\u{2069}\x1b ä"});
        let text = spelled(&value.to_string()).into_owned();
        assert_eq!(text, "{\"a\":\"\\u009b31m\\u007f\\u202e\\u2069\\u001b ä\"}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value, "and says the same");
        assert_eq!(spelled("\x1b[1mours\x1b[0m\n"), "\x1b[1mours\x1b[0m\n");
    }
}
