//! The outcome: a table or JSON, and whether the promise was kept.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::proto::SessionKey;

use super::score::{Actor, Score};
use crate::flaky::Fault;
use crate::output::{Colour, Paint, table};

/// How many connections must have been broken for the outcome to mean something, in the usual time.
const FLAPS_MIN: u32 = 20;
/// The time from which on that is asked; a shorter demonstration must break at least one.
const FULL_SECONDS: u64 = 20;

/// The table, and the line that sums it up.
pub(super) fn text(score: &Score, paint: Paint) -> String {
    let header =
        ["SESSION", "DROP", "STALL", "HALF/CLIENT", "HALF/BROKER", "RESUMES", "LONGEST", "BLINKS SEEN"];
    let row = |actor: &Actor| {
        let mut row = vec![actor.name.to_owned()];
        row.extend(actor.flaps.iter().map(u32::to_string));
        row.extend([actor.resumes.to_string(), milliseconds(actor.longest_outage), actor.blinks.to_string()]);
        row
    };
    let rows: Vec<Vec<String>> = score.actors.iter().map(row).collect();
    let kept = score.resumes() == score.flaps() && score.blinks() == 0;
    let sum = format!("{} flaps, {} resumes, {} blinks", score.flaps(), score.resumes(), score.blinks());
    let colour = if kept { Colour::Good } else { Colour::Bad };
    let moral = format!("Their sockets died {} times, and nobody saw anybody leave.\n", score.flaps());
    let moral = if kept { moral } else { String::new() };
    format!("{}\n{moral}{}\n", table(&header, &rows), paint.paint(colour, &sum))
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{} ms", time.as_millis()))
}

/// The same for programs.
pub(super) fn json(score: &Score, seconds: u64, keys: Vec<SessionKey>, interrupted: bool) -> Value {
    let millis = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
    let session = |(actor, key): (&Actor, SessionKey)| {
        let kinds = Fault::ALL.iter().map(|fault| name(*fault).to_owned());
        let flaps: serde_json::Map<String, Value> = kinds.zip(actor.flaps.map(Value::from)).collect();
        json!({"name": actor.name, "session": key, "flaps": flaps, "resumes": actor.resumes,
            "longestOutageMs": millis(actor.longest_outage), "blinks": actor.blinks})
    };
    let sessions: Vec<Value> = score.actors.iter().zip(keys).map(session).collect();
    let longest = score.actors.iter().filter_map(|actor| actor.longest_outage).max();
    json!({"ok": verdict(score, seconds, interrupted).is_ok(), "seconds": seconds, "flaps": score.flaps(),
        "resumes": score.resumes(), "blinks": score.blinks(), "longestOutageMs": millis(longest), "sessions": sessions})
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Drop => "drop",
        Fault::Stall => "stall",
        Fault::HalfOpenClient => "halfOpenClient",
        Fault::HalfOpenBroker => "halfOpenBroker",
    }
}

/// Whether the promise was kept; if not, the sentence that says what was wrong.
pub(super) fn verdict(score: &Score, seconds: u64, interrupted: bool) -> Result<(), String> {
    let (flaps, resumes, blinks) = (score.flaps(), score.resumes(), score.blinks());
    let demanded = if seconds >= FULL_SECONDS { FLAPS_MIN } else { 1 };
    if blinks > 0 {
        return Err(format!("the others saw somebody come or go {blinks} times; nobody should have"));
    }
    if interrupted {
        return Err("interrupted; nobody had blinked until then".to_owned());
    }
    if resumes != flaps {
        return Err(format!("{flaps} connections were broken, but only {resumes} led to a resume"));
    }
    if flaps < demanded {
        return Err(format!(
            "only {flaps} connections could be broken, {demanded} are needed; is this machine very busy?"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::watcher::News;
    use super::*;

    fn score(flaps: u32, resumes: u32, blinks: u32) -> Score {
        let mut score = Score::new(Duration::from_secs(20));
        for number in 0..flaps {
            score.flapped(Duration::ZERO, 0, Fault::Drop);
            let resumed = number < resumes;
            score.hear(Duration::from_millis(7), 0, News::Attached { resumed });
        }
        score.hear(Duration::ZERO, 1, News::Sees { present: vec![true, false, true], blinks });
        score
    }

    #[test]
    fn the_promise_is_every_resume_and_no_blink_often_enough() {
        assert_eq!(verdict(&score(20, 20, 0), 20, false), Ok(()));
        assert_eq!(verdict(&score(3, 3, 0), 8, false), Ok(()));
        for (flaps, resumes, blinks, seconds, about) in [
            (19, 19, 0, 20, "only 19"),
            (20, 19, 0, 20, "only 19 led"),
            (20, 20, 1, 20, "1 times"),
            (0, 0, 0, 8, "only 0"),
        ] {
            let problem = verdict(&score(flaps, resumes, blinks), seconds, false).unwrap_err();
            assert!(problem.contains(about), "{problem}");
        }
        assert!(verdict(&score(20, 20, 0), 20, true).unwrap_err().contains("interrupted"));
    }

    #[test]
    fn the_last_line_sums_up() {
        let text = text(&score(2, 2, 0), Paint::stdout());
        assert!(text.lines().last().unwrap().contains("2 flaps, 2 resumes, 0 blinks"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80 + 9), "{text}");
    }
}
