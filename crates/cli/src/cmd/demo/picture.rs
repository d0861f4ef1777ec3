//! The live picture: the same few lines, drawn over themselves.

use std::time::Duration;

use super::put;
use super::score::{Actor, NAMES, Score, Socket};
use crate::flaky::Fault;
use crate::output::{Colour, Paint};

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// A line that is too long for the terminal is cut, not wrapped: wrapped, it would be drawn over only in part.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
const TO_END_OF_LINE: &str = "\x1b[K";

/// Columns of what a socket does.
const SOCKET: usize = 25;

/// Characters of the bar that shows the time.
const BAR: usize = 34;

/// A place on the terminal that is drawn over and over. The cursor is hidden while it exists.
pub(super) struct Screen {
    paint: Paint,
    /// Lines that the last picture had.
    drawn: usize,
}

impl Screen {
    pub(super) fn open(paint: Paint) -> Screen {
        put(HIDE_CURSOR);
        Screen { paint, drawn: 0 }
    }

    /// Draws it anew; `false` when nobody sees it any more.
    pub(super) fn draw(&mut self, score: &Score, now: Duration, time: Duration) -> bool {
        let lines = lines(self.paint, score, now, time);
        // One write for the whole picture, so that half of one is never seen.
        let mut frame = NO_WRAP.to_owned();
        if self.drawn > 0 {
            frame += &format!("\x1b[{}A", self.drawn);
        }
        for line in &lines {
            frame += &format!("\r{line}{TO_END_OF_LINE}\n");
        }
        self.drawn = lines.len();
        put(&(frame + WRAP))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // What the terminal echoed of an interrupt goes with it.
        put(&format!("\r{TO_END_OF_LINE}{SHOW_CURSOR}"));
    }
}

fn lines(paint: Paint, score: &Score, now: Duration, time: Duration) -> Vec<String> {
    let strong = |text: &str| paint.paint(Colour::Strong, text);
    let dim = |text: &str| paint.paint(Colour::Dim, text);
    let mut lines = vec![
        String::new(),
        strong("  Three sessions, one broker, and a network that keeps breaking"),
        String::new(),
        dim(&format!(
            "  {:<8} {:<SOCKET$} {:>5}  {:>7}  {:>8}   {}",
            "SESSION", "ITS SOCKET", "FLAPS", "RESUMES", "OUTAGE", "WHOM IT SEES"
        )),
    ];
    lines.extend(score.actors.iter().map(|actor| row(paint, actor, now)));
    lines.push(String::new());
    lines.push(progress(paint, score, now, time));
    lines.push(String::new());
    lines
}

fn row(paint: Paint, actor: &Actor, now: Duration) -> String {
    let socket = socket(paint, actor.socket, now);
    let outage = actor.last_outage.map_or("-".to_owned(), |outage| format!("{} ms", outage.as_millis()));
    let sees: Vec<String> = NAMES
        .iter()
        .zip(&actor.sees)
        .filter(|(name, _)| **name != actor.name)
        .map(|(name, seen)| {
            let dot = if *seen { paint.paint(Colour::Good, "●") } else { paint.paint(Colour::Bad, "○") };
            format!("{dot} {name:<5}")
        })
        .collect();
    format!(
        "  {:<8} {socket} {:>5}  {:>7}  {outage:>8}   {}",
        actor.name,
        actor.flaps(),
        actor.resumes,
        sees.join(" ").trim_end()
    )
}

/// What the socket does, [`SOCKET`] columns wide; padded before it is painted, because colours have no width.
fn socket(paint: Paint, socket: Socket, now: Duration) -> String {
    let (colour, dot, text) = match socket {
        Socket::Online(_) => (Colour::Good, "●", "online".to_owned()),
        Socket::Broken(fault, since) => {
            let kind = match fault {
                Fault::Drop => "dropped",
                Fault::Stall => "stalled",
                Fault::HalfOpenClient => "half-open client",
                Fault::HalfOpenBroker => "half-open broker",
            };
            let seconds = now.saturating_sub(since).as_secs_f64();
            (Colour::Warn, "○", format!("{kind:<16} {seconds:>4.1} s"))
        }
        Socket::Away(_) => (Colour::Warn, "○", "away".to_owned()),
    };
    format!(
        "{} {}",
        paint.paint(colour, dot),
        paint.paint(colour, &format!("{text:<width$}", width = SOCKET - 2))
    )
}

fn progress(paint: Paint, score: &Score, now: Duration, time: Duration) -> String {
    let done = now.min(time).as_secs_f64() / time.as_secs_f64().max(f64::EPSILON);
    let filled = (done * BAR as f64) as usize;
    let bar =
        paint.paint(Colour::Good, &"━".repeat(filled)) + &paint.paint(Colour::Dim, &"─".repeat(BAR - filled));
    let blinks = score.blinks();
    let colour = if blinks == 0 { Colour::Good } else { Colour::Bad };
    let seen = paint.paint(colour, &format!("{blinks} blinks"));
    format!(
        "  {bar}  {:>2} s of {}   {} flaps, {seen}",
        now.min(time).as_secs(),
        time.as_secs(),
        score.flaps()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text without its colours.
    fn plain(line: &str) -> String {
        let mut text = String::new();
        let mut escaped = false;
        for c in line.chars() {
            match c {
                '\x1b' => escaped = true,
                'm' if escaped => escaped = false,
                _ if escaped => {}
                _ => text.push(c),
            }
        }
        text
    }

    #[test]
    fn the_picture_keeps_its_shape_and_fits_eighty_columns() {
        let time = Duration::from_secs(3_600);
        let mut score = Score::new(time);
        let calm = lines(Paint::stdout(), &score, Duration::ZERO, time);
        for (index, fault) in
            [Fault::HalfOpenClient, Fault::HalfOpenBroker, Fault::Stall].into_iter().enumerate()
        {
            score.flapped(Duration::ZERO, index, fault);
            score.actors[index].last_outage = Some(Duration::from_millis(11_999));
            score.actors[index].resumes = 1_000;
        }
        let busy = lines(Paint::stdout(), &score, Duration::from_millis(11_900), time);
        assert_eq!(calm.len(), busy.len());
        for line in calm.iter().chain(&busy).map(|line| plain(line)) {
            assert!(line.chars().count() <= 80, "{} columns: {line:?}", line.chars().count());
        }
    }
}
