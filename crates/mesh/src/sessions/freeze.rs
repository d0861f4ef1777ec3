//! The frozen-broker rule: a broker that was stopped (SIGSTOP, a paused machine, a starved scheduler) must not
//! blame its clients for the time it did not listen.
//!
//! Instead of moving every deadline, the clock itself stands still: all of a mesh runs on *thawed* time, which is
//! the shell's clock minus what was lost in freezes. One subtraction shifts a million deadlines.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::limits::FROZEN_AFTER_MS;

/// A shell may look this late and be awake, however short leases are: it does what is due at about the same time together.
const TOLERANCE_MS_MIN: u64 = 50;

/// The longest time between two looks of a shell that is awake.
const LOOKS_EVERY_MS_MAX: u64 = 1_000;

/// The uptime of a run at `now`, without its freezes: `frozen_ms` of them were known at the last look, which was at `looked`.
/// After a freeze a thread may ask before the next look. The time since the last look may then be that freeze, so no more
/// of it counts than an awake shell lets pass between two looks.
pub fn uptime_ms(now: Millis, looked: Millis, frozen_ms: u64) -> u64 {
    let known = if mutant::on(Mutant::FreezeIsUptime) { now } else { looked.plus(LOOKS_EVERY_MS_MAX) };
    now.min(known).0.saturating_sub(frozen_ms)
}

/// Turns the shell's clock into thawed time.
#[derive(Clone, Debug)]
pub struct Thaw {
    /// Lateness that still counts as awake.
    tolerance_ms: u64,
    /// How often the shell is asked to look, so that lateness tells how long the freeze was.
    beat_ms: u64,
    /// Total time lost, and what it was before the last freeze.
    lost_ms: u64,
    lost_before_ms: u64,
    /// When the last freeze was noticed, on the shell's clock.
    woke: Millis,
    /// When the next look is due, on the shell's clock.
    expected: Millis,
}

impl Thaw {
    /// For leases of `lease_ttl_ms`, starting at `now` on the shell's clock.
    pub fn new(lease_ttl_ms: u64, now: Millis) -> Thaw {
        let (tolerance_ms, beat_ms) = pace(lease_ttl_ms);
        Thaw { tolerance_ms, beat_ms, lost_ms: 0, lost_before_ms: 0, woke: now, expected: now.plus(beat_ms) }
    }

    /// Leases are of `lease_ttl_ms` from here on. Call it right after [`Thaw::look`].
    pub fn retune(&mut self, lease_ttl_ms: u64, now: Millis) {
        (self.tolerance_ms, self.beat_ms) = pace(lease_ttl_ms);
        self.expected = now.plus(self.beat_ms);
    }

    /// Looks at the shell's clock; returns how long the broker was frozen, when it was.
    pub fn look(&mut self, now: Millis) -> Option<u64> {
        let late = now.since(self.expected);
        self.expected = now.plus(self.beat_ms);
        if late > self.tolerance_ms && !mutant::on(Mutant::NoThaw) {
            (self.lost_before_ms, self.woke) = (self.lost_ms, now);
            self.lost_ms += late;
            return Some(late);
        }
        None
    }

    /// Thawed time for a moment of the shell's clock. What happened before or during the last freeze, and is
    /// heard of only now, did not happen earlier for that.
    pub fn thawed(&self, at: Millis) -> Millis {
        let awake = Millis(at.0.max(self.woke.0).saturating_sub(self.lost_ms));
        awake.min(Millis(at.0.saturating_sub(self.lost_before_ms)))
    }

    /// The moment of the shell's clock for thawed time.
    pub fn shell(&self, thawed: Millis) -> Millis {
        thawed.plus(self.lost_ms)
    }

    /// When the shell last looked, on its own clock.
    pub fn last_look(&self) -> Millis {
        Millis(self.expected.0.saturating_sub(self.beat_ms))
    }

    /// How long all freezes were together.
    pub fn lost_ms(&self) -> u64 {
        self.lost_ms
    }

    /// When the shell must look again, on its own clock.
    pub fn next_look(&self) -> Millis {
        self.expected
    }
}

/// The tolerance and the beat for leases of `lease_ttl_ms`.
fn pace(lease_ttl_ms: u64) -> (u64, u64) {
    let tolerance_ms = FROZEN_AFTER_MS.min(lease_ttl_ms / 10).max(TOLERANCE_MS_MIN);
    (tolerance_ms, (tolerance_ms / 2).min(LOOKS_EVERY_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_for_the_shortest_lease_too() {
        let mut thaw = Thaw::new(100, Millis(0));
        for at in (25..1_000).step_by(50) {
            assert_eq!(thaw.look(Millis(at)), None, "25 ms late is awake");
        }
        assert_eq!(thaw.thawed(Millis(1_000)), Millis(1_000));
    }

    #[test]
    fn lateness_over_a_tenth_of_the_lease_is_a_freeze_and_stands_still() {
        let mut thaw = Thaw::new(1_000, Millis(0));
        assert_eq!(thaw.look(Millis(50)), None);
        assert_eq!(thaw.look(Millis(200)), None, "100 ms late is still awake");
        assert_eq!(thaw.look(Millis(1_250)), Some(1_000));
        assert_eq!(thaw.thawed(Millis(1_250)), Millis(250));
        assert_eq!(thaw.shell(Millis(250)), Millis(1_250));
    }

    #[test]
    fn a_moment_before_the_freeze_keeps_its_place() {
        let mut thaw = Thaw::new(1_000, Millis(0));
        thaw.look(Millis(50));
        assert_eq!(thaw.look(Millis(5_100)), Some(5_000));
        assert_eq!(thaw.thawed(Millis(60)), Millis(60), "before");
        assert_eq!(thaw.thawed(Millis(2_000)), Millis(100), "during: all of it is one moment");
        assert_eq!(thaw.thawed(Millis(5_100)), Millis(100), "awake again");
        assert_eq!(thaw.thawed(Millis(5_300)), Millis(300));
    }

    #[test]
    fn who_is_awake_before_the_next_look_does_not_take_the_freeze_for_uptime() {
        assert_eq!(uptime_ms(Millis(2_500), Millis(2_000), 0), 2_500);
        assert_eq!(uptime_ms(Millis(60_000), Millis(2_000), 0), 3_000, "nobody has looked yet");
        assert_eq!(uptime_ms(Millis(60_000), Millis(60_000), 57_000), 3_000);
        assert_eq!(uptime_ms(Millis(61_000), Millis(60_500), 57_000), 4_000);
    }

    #[test]
    fn the_tolerance_is_capped_at_five_seconds() {
        let mut thaw = Thaw::new(90_000, Millis(0));
        assert_eq!(thaw.look(Millis(6_000)), None);
        assert_eq!(thaw.look(Millis(12_001)), Some(5_001));
    }
}
