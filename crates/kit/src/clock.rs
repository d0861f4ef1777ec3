//! Whether the wall clock can be believed.
//!
//! Messages expire, are kept and are forgotten by the wall clock. While it runs, a broker compares it with the monotonic
//! clock; at a start, with the last moment at which the store's last run believed it. A wall clock that is somewhere else is
//! a mistake until it has proven otherwise: then nothing expires and nothing is pruned, and health says so. It is believed
//! again when it is back, when it has gone steadily for an hour from where it went, or when an operator confirms it: a
//! machine that slept or was switched off, or a clock that was set right, must not stop expiry for good.
//!
//! What is accepted meanwhile is stamped with the later of the two times that may be right ([`Clocks::stamp`]). One of them is
//! believed in the end: by that, it has at least the time that it was given, and its id is known for as long as was promised.

use crate::time::{DAY_MS, Millis, Now};

/// How far the wall clock may stray from the monotonic one before it is not believed.
pub const STRAY_MS: u64 = 3_600_000;
/// How far a start may be from when the store last ran before its wall clock is not believed.
const AWAY_MS: u64 = DAY_MS;
/// How long it must then go steadily to be believed again: time for a person to see what health says.
const STEADY_MS: u64 = 3_600_000;
/// How far it may move meanwhile: a clock that is slewed or corrected by less is steady.
const WOBBLE_MS: u64 = 60_000;

/// Both clocks, as far as they are believed.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// A moment when they were. After a start in doubt: now, with the wall clock as it was when the store last ran.
    believed: Now,
    /// Since when the wall clock stands where it strayed to.
    strayed: Option<Now>,
    /// Whether it was already there at the start.
    since_start: bool,
}

/// Why the wall clock is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockDoubt {
    /// Whether it was so at the start: the store last ran at another time.
    pub since_start: bool,
    /// How far the wall clock is from where it should be, in milliseconds.
    pub apart_ms: u64,
    /// Whether it is later than it should be.
    pub ahead: bool,
    /// When it is believed again if it goes on steadily, in milliseconds from now.
    pub steady_in_ms: u64,
}

impl std::fmt::Display for ClockDoubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (apart, side) = (span(self.apart_ms), if self.ahead { "ahead of" } else { "behind" });
        let what = if self.since_start { "when this store last ran" } else { "the time that has passed" };
        let minutes = self.steady_in_ms.div_ceil(60_000);
        write!(
            f,
            "the wall clock is {apart} {side} {what}: nothing expires and nothing is pruned until it has been steady for an \
             hour (in {minutes} min), or an operator confirms it (`tenure clock confirm`)"
        )
    }
}

/// Milliseconds as a person says them.
fn span(ms: u64) -> String {
    match ms / STRAY_MS {
        hours @ 0..48 => format!("{hours} h"),
        hours => format!("{} days", hours / 24),
    }
}

/// What a look at the clocks has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockTurn {
    /// The wall clock went astray, by so much.
    Jumped(u64),
    /// It is back where it should be.
    Back,
    /// It stays where it went, and is believed.
    Steady(u64),
}

impl Clocks {
    /// Both are believed now.
    pub fn new(now: Now) -> Clocks {
        Clocks { believed: now, strayed: None, since_start: false }
    }

    /// At a start, with when the store's last run last believed its wall clock, Unix milliseconds; `None` if it never ran.
    pub fn at_start(now: Now, last_ran: Option<u64>) -> Clocks {
        match last_ran {
            Some(wall) if wall.abs_diff(now.wall) > AWAY_MS => {
                Clocks { believed: Now { at: now.at, wall }, strayed: Some(now), since_start: true }
            }
            _ => Clocks::new(now),
        }
    }

    /// Whether the wall clock is not believed.
    pub fn are_astray(&self) -> bool {
        self.strayed.is_some()
    }

    /// Why the wall clock is not believed, if it is not.
    pub fn doubt(&self, now: Now) -> Option<ClockDoubt> {
        let since = self.strayed?;
        Some(ClockDoubt {
            since_start: self.since_start,
            apart_ms: apart(self.believed, now),
            ahead: now.wall > self.expected(now.at),
            steady_in_ms: STEADY_MS.saturating_sub(now.at.since(since.at)),
        })
    }

    /// Looks at both clocks; for those who only ask [`Clocks::are_astray`].
    pub fn watch(&mut self, now: Now) {
        self.look(now);
    }

    /// Somebody has looked at the wall clock: it is right. How far it was from where it should be; nothing if it was believed
    /// anyway.
    pub fn confirm(&mut self, now: Now) -> Option<u64> {
        self.strayed?;
        let stray = apart(self.believed, now);
        *self = Clocks::new(now);
        Some(stray)
    }

    /// What the wall clock would show now if it had gone on from when it was last believed.
    pub fn expected(&self, now: Millis) -> u64 {
        self.believed.wall.saturating_add(now.since(self.believed.at))
    }

    /// The time that things are stamped with and measured by: what the wall clock shows, and while that is not believed, the
    /// later of it and what it should show. Behind neither, so that whichever turns out right, nothing that was accepted
    /// in doubt is at its end when the doubt is.
    pub fn stamp(&self, now: Now) -> u64 {
        let expected = self.strayed.map(|_| self.expected(now.at));
        expected.map_or(now.wall, |expected| expected.max(now.wall))
    }

    /// Looks at both clocks, and says what that has changed.
    pub fn look(&mut self, now: Now) -> Option<ClockTurn> {
        let stray = apart(self.believed, now);
        let tolerance_ms = if self.since_start { AWAY_MS } else { STRAY_MS };
        if stray <= tolerance_ms {
            if std::mem::take(&mut self.since_start) {
                self.believed = now;
            }
            return self.strayed.take().map(|_| ClockTurn::Back);
        }
        let Some(since) = self.strayed else {
            self.strayed = Some(now);
            return Some(ClockTurn::Jumped(stray));
        };
        if apart(since, now) > WOBBLE_MS {
            self.strayed = Some(now);
        } else if now.at.since(since.at) >= STEADY_MS {
            *self = Clocks::new(now);
            return Some(ClockTurn::Steady(stray));
        }
        None
    }
}

/// How much further one clock went than the other between two moments.
fn apart(then: Now, now: Now) -> u64 {
    then.wall.saturating_add(now.at.since(then.at)).abs_diff(now.wall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Millis;

    const HOUR: u64 = 3_600_000;

    fn now(at: u64, wall: u64) -> Now {
        Now { at: Millis(at), wall: 10 * HOUR + wall }
    }

    #[test]
    fn a_clock_that_strays_by_an_hour_is_still_believed_and_one_that_is_back_is_again() {
        for wall in [HOUR, 0] {
            let mut clocks = Clocks::new(now(0, HOUR));
            let further = if wall == 0 { now(1, 0) } else { now(0, 2 * HOUR + 1) };
            assert_eq!(clocks.look(now(0, 2 * wall)), None, "exactly an hour");
            assert_eq!(clocks.look(further), Some(ClockTurn::Jumped(HOUR + 1)));
            assert!(clocks.are_astray());
            assert_eq!(clocks.look(now(10, HOUR + 10)), Some(ClockTurn::Back));
            assert!(!clocks.are_astray());
        }
    }

    #[test]
    fn a_clock_that_stays_where_it_went_is_believed_after_an_hour() {
        let mut clocks = Clocks::new(now(0, 0));
        let day = 24 * HOUR;
        assert_eq!(clocks.look(now(5, day)), Some(ClockTurn::Jumped(day - 5)));
        assert_eq!(clocks.look(now(5 + HOUR - 1, day + HOUR - 1)), None);
        assert_eq!(
            clocks.look(now(5 + HOUR, day + HOUR + 30_000)),
            Some(ClockTurn::Steady(day - 5 + 30_000))
        );
        assert!(!clocks.are_astray());
        assert_eq!(clocks.look(now(6 + HOUR, day + HOUR)), None);
        assert!(
            matches!(clocks.look(now(7 + HOUR, 0)), Some(ClockTurn::Jumped(_))),
            "and can go astray again"
        );
    }

    #[test]
    fn a_stamp_is_the_later_of_what_a_doubted_clock_shows_and_what_it_should() {
        let mut clocks = Clocks::new(now(0, 5 * HOUR));
        assert_eq!(
            clocks.stamp(now(10, 5 * HOUR + 20)),
            now(0, 5 * HOUR + 20).wall,
            "a believed clock says it"
        );
        clocks.look(now(10, 0));
        assert_eq!(clocks.stamp(now(30, 20)), now(0, 5 * HOUR + 30).wall, "behind");
        clocks.look(now(40, 9 * HOUR));
        assert_eq!(clocks.stamp(now(50, 9 * HOUR + 10)), now(0, 9 * HOUR + 10).wall, "ahead");
        clocks.look(now(60, 5 * HOUR + 90));
        assert_eq!(clocks.stamp(now(60, 5 * HOUR + 90)), now(0, 5 * HOUR + 90).wall, "back");
        let clocks = Clocks::at_start(now(0, 0), Some(now(0, 60 * 24 * HOUR).wall));
        assert_eq!(clocks.stamp(now(7, 7)), now(0, 60 * 24 * HOUR + 7).wall, "since the start");
    }

    #[test]
    fn one_that_jumps_on_is_not_steady() {
        let mut clocks = Clocks::new(now(0, 0));
        clocks.look(now(0, 5 * HOUR));
        assert_eq!(clocks.look(now(HOUR - 1, 6 * HOUR + WOBBLE_MS + 10)), None);
        assert_eq!(clocks.look(now(2 * HOUR - 2, 7 * HOUR + WOBBLE_MS + 9)), None, "the hour begins anew");
        assert!(matches!(
            clocks.look(now(2 * HOUR - 1, 7 * HOUR + WOBBLE_MS + 10)),
            Some(ClockTurn::Steady(_))
        ));
    }

    #[test]
    fn a_start_a_day_from_when_the_store_last_ran_is_believed_and_one_further_away_is_not() {
        let (day, ran) = (24 * HOUR, 100 * HOUR);
        for last_ran in [None, Some(ran), Some(ran + day), Some(ran - day)] {
            assert!(!Clocks::at_start(now(0, ran - 10 * HOUR), last_ran).are_astray(), "{last_ran:?}");
        }
        for (last_ran, ahead) in [(ran + day + 1, false), (ran - day - 1, true)] {
            let start = now(7, ran - 10 * HOUR);
            let mut clocks = Clocks::at_start(start, Some(last_ran));
            let doubt = clocks.doubt(start).unwrap();
            assert_eq!((doubt.since_start, doubt.apart_ms, doubt.ahead), (true, day + 1, ahead));
            assert_eq!(clocks.look(now(7 + HOUR - 1, ran - 9 * HOUR - 1)), None, "not for an hour");
            assert!(matches!(clocks.look(now(7 + HOUR, ran - 9 * HOUR)), Some(ClockTurn::Steady(_))));
            assert_eq!(clocks.doubt(now(7 + HOUR, ran - 9 * HOUR)), None);
        }
    }

    #[test]
    fn a_start_in_doubt_ends_when_the_clock_is_set_right_or_confirmed() {
        let start = now(0, 60 * 24 * HOUR);
        let mut clocks = Clocks::at_start(start, Some(start.wall - 60 * 24 * HOUR));
        assert_eq!(clocks.look(now(10, 2 * HOUR)), Some(ClockTurn::Back), "within a day of when it last ran");
        assert_eq!(clocks.look(now(20, 2 * HOUR + 10)), None, "and compared from there on");
        assert!(matches!(clocks.look(now(30, 4 * HOUR)), Some(ClockTurn::Jumped(_))));
        let mut clocks = Clocks::at_start(start, Some(start.wall - 60 * 24 * HOUR));
        assert_eq!(clocks.confirm(start), Some(60 * 24 * HOUR));
        assert_eq!((clocks.are_astray(), clocks.confirm(start), clocks.look(start)), (false, None, None));
    }
}
