//! How long a row may wait: strictly less than the broker remembers ids, so that a late retry is never a second
//! message.
//!
//! Integer hours: `margin = max(24, ceil(days * 24 / 10))`, `max_age = days * 24 - margin`. A broker that never
//! forgets needs no margin; a week is still long enough to wait.

use tenure_kit::clock::Clocks;
use tenure_kit::time::{Millis, Now};

use crate::window::Window;

/// Hours that a row may wait where the broker never forgets.
pub const PERMANENT_HOURS: u64 = 168;
/// The most that an operator may make of them.
pub const PERMANENT_HOURS_CAP: u64 = 720;
/// Hours that must lie between the end of a row and the end of the broker's memory of it.
const MARGIN_HOURS: u64 = 24;
const HOUR_MS: u64 = 3_600_000;
/// How far the broker's clock may be from ours for both to be believed.
const APART_MS: u64 = HOUR_MS;
/// How long a clock that nobody has confirmed must be watched to be believed.
const UNTOLD_MS: u64 = HOUR_MS;

/// What is written down of a row that was given up for its age, whatever set the age: the broker's memory or the operator.
pub const EXPIRED: &str =
    "expired: it waited longer than a message may wait for this broker; `tenure daemon status` says how long";

/// The operator wants rows to outlive the broker's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "outbox_max_age_above_dedupe_window: rows may wait {asked} h, but with this broker at most {most} h are safe"
)]
pub struct AboveWindow {
    /// Hours asked for.
    pub asked: u64,
    /// The most that is safe.
    pub most: u64,
}

/// Hours that a row may wait with a broker that remembers ids for `window`, unless the operator says otherwise.
pub fn max_age_hours(window: Window, wanted: Option<u64>) -> Result<u64, AboveWindow> {
    match window {
        Window::Permanent => Ok(wanted.unwrap_or(PERMANENT_HOURS).min(PERMANENT_HOURS_CAP)),
        Window::Days(days) => {
            let hours = u64::from(days) * 24;
            let most = hours.saturating_sub(MARGIN_HOURS);
            match wanted {
                Some(asked) if asked <= most => Ok(asked),
                Some(asked) => Err(AboveWindow { asked, most }),
                None => Ok(hours.saturating_sub(MARGIN_HOURS.max(hours.div_ceil(10)))),
            }
        }
    }
}

/// Who is too old, by a wall clock that is only believed while it goes with the monotonic one, and, once the broker's was
/// asked, with that.
///
/// A clock that was wrong before the process began does not jump: only another clock can tell. A machine that was off for a
/// fortnight is no reason for doubt, so what is on the disk cannot.
#[derive(Clone, Copy, Debug)]
pub struct Ageing {
    clocks: Clocks,
    doubt: Option<Doubt>,
}

/// Why the wall clock is not believed, though it has not jumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The broker was asked and has not said anything since then.
    Untold(Millis),
    /// The broker's says something else.
    Disputed,
}

/// Whether a clock so far from the broker's is not to be believed.
pub fn is_disputed(apart_ms: u64) -> bool {
    apart_ms > APART_MS
}

impl Ageing {
    /// Starts to watch the clocks.
    pub fn new(now: Now) -> Ageing {
        Ageing { clocks: Clocks::new(now), doubt: None }
    }

    /// The broker was asked how late it is: its clock is so far from ours, or it did not say. The first who agrees is
    /// believed; one who does not agree stops everything until another does; without a word from any the clock must be
    /// watched for an hour.
    pub fn compare(&mut self, now: Now, apart_ms: Option<u64>, asked_before: bool) {
        match apart_ms {
            Some(ms) if is_disputed(ms) => self.doubt = Some(Doubt::Disputed),
            Some(_) => *self = Ageing::new(now),
            None if !asked_before => self.doubt = Some(Doubt::Untold(now.at)),
            None => {}
        }
    }

    /// Whether a row that was queued then and may live so long is over. Never while the wall clock is not believed.
    pub fn has_lapsed(&mut self, now: Now, enqueued_at: u64, ttl_ms: u64) -> bool {
        self.is_believed(now) && enqueued_at.saturating_add(ttl_ms) <= now.wall
    }

    /// Rows that were queued before this moment are too old; `None` while the wall clock is not believed, because
    /// what has been given up cannot be called back.
    pub fn cutoff(&mut self, now: Now, max_age_hours: u64) -> Option<u64> {
        if !self.is_believed(now) {
            return None;
        }
        now.wall.checked_sub(max_age_hours.saturating_mul(HOUR_MS))
    }
}

impl Ageing {
    fn is_believed(&mut self, now: Now) -> bool {
        self.clocks.watch(now);
        if self.clocks.are_astray() {
            return false;
        }
        if matches!(self.doubt, Some(Doubt::Untold(since)) if now.at.since(since) >= UNTOLD_MS) {
            self.doubt = None;
        }
        self.doubt.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_contract() {
        for (days, hours) in [(7, 144), (10, 216), (11, 237), (30, 648), (365, 7_884)] {
            assert_eq!(max_age_hours(Window::Days(days), None), Ok(hours), "{days} days");
        }
        assert_eq!(max_age_hours(Window::Permanent, None), Ok(168));
    }

    #[test]
    fn an_operator_may_go_up_to_a_day_before_the_end() {
        assert_eq!(max_age_hours(Window::Days(7), Some(144)), Ok(144));
        assert_eq!(max_age_hours(Window::Days(30), Some(696)), Ok(696));
        let above = max_age_hours(Window::Days(7), Some(145)).unwrap_err();
        assert!(above.to_string().starts_with("outbox_max_age_above_dedupe_window"), "{above}");
        assert_eq!(max_age_hours(Window::Permanent, Some(700)), Ok(700));
        assert_eq!(max_age_hours(Window::Permanent, Some(10_000)), Ok(720));
    }

    #[test]
    fn a_clock_that_jumps_gives_nothing_up() {
        let week = 168;
        let now = |at, wall| Now { at: Millis(at), wall };
        let mut ageing = Ageing::new(now(0, 1_000 * HOUR_MS));
        assert_eq!(ageing.cutoff(now(5, 1_000 * HOUR_MS + 5), week), Some(832 * HOUR_MS + 5));
        assert_eq!(ageing.cutoff(now(6, 9_000 * HOUR_MS), week), None);
        assert_eq!(ageing.cutoff(now(7, 1_000 * HOUR_MS + 7), week), Some(832 * HOUR_MS + 7));
        let believed = now(6 + HOUR_MS, 9_001 * HOUR_MS);
        assert_eq!(ageing.cutoff(now(6, 9_000 * HOUR_MS), week), None);
        assert_eq!(ageing.cutoff(believed, week), Some((9_001 - week) * HOUR_MS), "it went on steadily");
        assert_eq!(Ageing::new(now(0, 5)).cutoff(now(0, 5), week), None, "a clock of 1970");
    }

    #[test]
    fn a_clock_that_was_wrong_from_the_start_gives_nothing_up() {
        let week = 168;
        let now = |at, wall| Now { at: Millis(at), wall };
        let years = 40_000 * HOUR_MS;
        let mut ageing = Ageing::new(now(0, years));
        ageing.compare(now(5, years), Some(35_000 * HOUR_MS), false);
        assert_eq!(ageing.cutoff(now(5, years), week), None);
        let later = now(50 * HOUR_MS, years + 50 * HOUR_MS);
        assert_eq!(ageing.cutoff(later, week), None, "and does not become right by going on");
        let right = now(50 * HOUR_MS + 5, 5_050 * HOUR_MS);
        ageing.compare(right, Some(APART_MS), true);
        assert_eq!(ageing.cutoff(right, week), Some((5_050 - week) * HOUR_MS), "it was set right");
        ageing.compare(right, Some(APART_MS + 1), true);
        assert_eq!(ageing.cutoff(right, week), None);
    }

    #[test]
    fn a_clock_that_the_broker_did_not_confirm_is_watched_for_an_hour() {
        let now = |at| Now { at: Millis(at), wall: 1_000 * HOUR_MS + at };
        let mut ageing = Ageing::new(now(0));
        ageing.compare(now(5), None, false);
        assert_eq!(ageing.cutoff(now(4 + HOUR_MS), 1), None);
        ageing.compare(now(5 + HOUR_MS), None, true);
        assert!(ageing.cutoff(now(5 + HOUR_MS), 1).is_some(), "asking again does not begin anew");
        let mut ageing = Ageing::new(now(0));
        ageing.compare(now(5), Some(3), false);
        ageing.compare(now(6), None, true);
        assert!(ageing.cutoff(now(7), 1).is_some(), "what was confirmed stays so");
    }

    proptest! {
        #[test]
        fn a_row_never_outlives_the_memory_less_a_day(days in 7u32..40_000, wanted in proptest::option::of(0u64..2_000_000)) {
            if let Ok(hours) = max_age_hours(Window::Days(days), wanted) {
                prop_assert!(hours + 24 <= u64::from(days) * 24);
                prop_assert!(wanted.is_some() || hours >= 144);
            } else {
                prop_assert!(wanted.is_some_and(|wanted| wanted + 24 > u64::from(days) * 24));
            }
        }
    }
}
