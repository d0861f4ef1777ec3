//! Whether the wall clock can be believed.
//!
//! Messages expire, are kept and are forgotten by the wall clock. One that goes where the monotonic clock does not is
//! somebody's mistake until it has proven otherwise: then nothing expires and nothing is pruned, and health says so.
//! It is believed again when it is back, or when it has gone steadily from where it went: a machine that slept, or a
//! clock that was wrong and was set right, must not stop expiry for good.

use crate::effect::{Effect, Note};
use crate::time::Now;

use super::Mesh;

/// How far the wall clock may stray from the monotonic one before it is not believed.
const STRAY_MS: u64 = 3_600_000;
/// How long it must then go steadily to be believed again: time for a person to see what health says.
const STEADY_MS: u64 = 3_600_000;
/// How far it may move meanwhile: a clock that is slewed or corrected by less is steady.
const WOBBLE_MS: u64 = 60_000;

/// Both clocks, as far as they are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// A moment when they were.
    believed: Now,
    /// Since when the wall clock stands where it strayed to.
    strayed: Option<Now>,
}

/// What a look at the clocks has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The wall clock went astray, by so much.
    Jumped(u64),
    /// It is back where it should be.
    Back,
    /// It stays where it went, and is believed.
    Steady(u64),
}

impl Clocks {
    pub(crate) fn new(now: Now) -> Clocks {
        Clocks { believed: now, strayed: None }
    }

    /// Whether the wall clock is not believed.
    pub(crate) fn are_astray(&self) -> bool {
        self.strayed.is_some()
    }

    /// Looks at both clocks; for those who only ask [`Clocks::are_astray`].
    pub(crate) fn watch(&mut self, now: Now) {
        self.look(now);
    }

    fn look(&mut self, now: Now) -> Option<Turn> {
        let stray = apart(self.believed, now);
        if stray <= STRAY_MS {
            return self.strayed.take().map(|_| Turn::Back);
        }
        let Some(since) = self.strayed else {
            self.strayed = Some(now);
            return Some(Turn::Jumped(stray));
        };
        if apart(since, now) > WOBBLE_MS {
            self.strayed = Some(now);
        } else if now.at.since(since.at) >= STEADY_MS {
            *self = Clocks::new(now);
            return Some(Turn::Steady(stray));
        }
        None
    }
}

/// How much further one clock went than the other between two moments.
fn apart(then: Now, now: Now) -> u64 {
    then.wall.saturating_add(now.at.since(then.at)).abs_diff(now.wall)
}

impl Mesh {
    /// Notices that the wall clock went where the monotonic one did not, and when it can be believed again.
    pub(super) fn watch_clocks(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(turn) = self.clocks.look(now) else { return };
        self.health_version += 1;
        for session in self.conns.values().copied().collect::<Vec<_>>() {
            self.tell_health(session);
        }
        match turn {
            Turn::Jumped(ms) => effects.push(Effect::Note(Note::ClockJumped { ms })),
            Turn::Back => {}
            Turn::Steady(ms) => {
                // When to look next was said by the clock as it was.
                self.messages.logs.prune_anew();
                effects.push(Effect::Note(Note::ClockBelieved { ms }));
            }
        }
    }
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
            assert_eq!(clocks.look(further), Some(Turn::Jumped(HOUR + 1)));
            assert!(clocks.are_astray());
            assert_eq!(clocks.look(now(10, HOUR + 10)), Some(Turn::Back));
            assert!(!clocks.are_astray());
        }
    }

    #[test]
    fn a_clock_that_stays_where_it_went_is_believed_after_an_hour() {
        let mut clocks = Clocks::new(now(0, 0));
        let day = 24 * HOUR;
        assert_eq!(clocks.look(now(5, day)), Some(Turn::Jumped(day - 5)));
        assert_eq!(clocks.look(now(5 + HOUR - 1, day + HOUR - 1)), None);
        assert_eq!(clocks.look(now(5 + HOUR, day + HOUR + 30_000)), Some(Turn::Steady(day - 5 + 30_000)));
        assert!(!clocks.are_astray());
        assert_eq!(clocks.look(now(6 + HOUR, day + HOUR)), None);
        assert!(matches!(clocks.look(now(7 + HOUR, 0)), Some(Turn::Jumped(_))), "and can go astray again");
    }

    #[test]
    fn one_that_jumps_on_is_not_steady() {
        let mut clocks = Clocks::new(now(0, 0));
        clocks.look(now(0, 5 * HOUR));
        assert_eq!(clocks.look(now(HOUR - 1, 6 * HOUR + WOBBLE_MS + 10)), None);
        assert_eq!(clocks.look(now(2 * HOUR - 2, 7 * HOUR + WOBBLE_MS + 9)), None, "the hour begins anew");
        assert!(matches!(clocks.look(now(2 * HOUR - 1, 7 * HOUR + WOBBLE_MS + 10)), Some(Turn::Steady(_))));
    }
}
