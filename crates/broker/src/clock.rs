//! The two clocks, read here and nowhere else.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_kit::{Millis, Now};

/// A monotonic clock that starts with the broker, and the wall clock beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// Milliseconds since the start.
    pub(crate) fn at(&self) -> Millis {
        Millis(self.origin.elapsed().as_millis() as u64)
    }

    /// Both clocks at once.
    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        Now { at: self.at(), wall }
    }

    /// The moment `at` as the runtime's timers want it.
    pub(crate) fn instant(&self, at: Millis) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.origin + Duration::from_millis(at.0))
    }
}
