//! A machine's two clocks, and whether it stands still.

use tenure_kit::{Millis, Now};

/// Where wall clocks stand when a world begins.
const WALL: u64 = 1_700_000_000_000;

/// The clocks of one machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// When its monotonic clock began, and how long that stood still since, in the world's time.
    pub(crate) lag: u64,
    /// How far its wall clock is off.
    pub(crate) off: i64,
}

impl Clock {
    pub(crate) fn now(&self, world: u64) -> Now {
        let wall = WALL.saturating_add(world).saturating_add_signed(self.off);
        Now { at: Millis(world.saturating_sub(self.lag)), wall }
    }

    /// When its monotonic clock shows `at`, in the world's time.
    pub(crate) fn world(&self, at: Millis) -> u64 {
        at.0.saturating_add(self.lag)
    }
}
