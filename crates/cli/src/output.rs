//! How commands print: tables that line up, colour only on a terminal that wants it.

use std::io::{IsTerminal, Write};

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
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// What others wrote, made safe for a terminal: no control characters, bounded.
pub(crate) fn safe(text: &str) -> String {
    bounded(text, 80)
}

/// A sentence of a broker or server, made safe for a terminal in the same way.
pub(crate) fn sentence(text: &str) -> String {
    bounded(text, 400)
}

fn bounded(text: &str, most: usize) -> String {
    let mut safe: String =
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(most).collect();
    if text.chars().nth(most).is_some() {
        safe.push('…');
    }
    safe
}

/// All of what others wrote, on one line of a terminal: what would move the cursor, break the line or turn the
/// direction of the text is escaped as Rust spells it, the rest is as it was.
pub(crate) fn line(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => line.push(c),
            c if c.is_control() || turns(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Prints one line of data, and says whether anybody is there to read it: for those who must not leave as long as
/// they hold something.
pub(crate) fn emit(line: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Prints data. A reader that went away is not an error, it is the end: `tenure peers | head -1`. A disk that is full is
/// one: what was to be read there never will be.
pub(crate) fn print(text: &str) {
    let printed = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    if let Err(error) = printed {
        if let Err(failure) = unread(&error) {
            eprintln!("tenure: {failure}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
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
    }
}
