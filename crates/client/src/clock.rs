//! The two clocks, read here and nowhere else.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_kit::{Millis, Now};

/// A monotonic clock that starts with the session, and the wall clock beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        Now { at: Millis(self.0.elapsed().as_millis() as u64), wall }
    }

    pub(crate) fn instant(&self, at: Millis) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.0 + Duration::from_millis(at.0))
    }
}
