//! When counting begins and ends.
//!
//! After some time, and after enough has happened, whichever is later: a system that answers thousands together after
//! seconds would else be seen between two answers, with a rate of nothing or of everything.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sample::Window;

/// How long enough is waited for, before and while it counts.
const MOST: Duration = Duration::from_secs(10);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(2);

/// Before these two it warms up.
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// Shared by whoever makes things happen and whoever counts them.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    phase: AtomicU8,
    happened: AtomicU64,
}

impl Counting {
    /// So many more have happened; whether they count.
    pub(crate) fn happened(&self, count: u64) -> bool {
        self.happened.fetch_add(count, Ordering::Relaxed);
        self.counts()
    }

    /// Whether what happens now counts.
    pub(crate) fn counts(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == COUNTING
    }

    /// Whether it is time to go home.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OVER
    }

    /// Warms up, counts and ends: at least as long as `times` say and until `enough` have happened in each. Gives when
    /// it counted, and what `read` gave at both ends.
    pub(crate) async fn run<T>(
        &self,
        times: (Duration, Duration),
        enough: u64,
        read: impl Fn() -> T,
    ) -> (Window, T, T) {
        self.wait(times.0, enough).await;
        let (before, from) = (read(), Instant::now());
        self.phase.store(COUNTING, Ordering::Relaxed);
        self.wait(times.1, enough).await;
        self.phase.store(OVER, Ordering::Relaxed);
        let (until, after) = (Instant::now(), read());
        (Window { from, until }, before, after)
    }

    async fn wait(&self, least: Duration, enough: u64) {
        let (began, mark) = (Instant::now(), self.happened.load(Ordering::Relaxed));
        tokio::time::sleep(least).await;
        while self.happened.load(Ordering::Relaxed) - mark < enough && began.elapsed() < least.max(MOST) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counting_lasts_until_enough_has_happened() {
        let counting = Counting::default();
        let happens = async {
            while !counting.is_over() {
                counting.happened(1);
                tokio::task::yield_now().await;
            }
        };
        let seen = || counting.happened.load(Ordering::Relaxed);
        let ran = counting.run((Duration::ZERO, Duration::ZERO), 100, seen);
        let ((_, before, after), ()) = tokio::join!(ran, happens);
        assert!(before >= 100 && after - before >= 100, "{before}, {after}");
        assert!(!counting.happened(1));
    }
}
