//! When counting begins and ends, and which numbers were counted.
//!
//! After some time, and after enough has happened, whichever is later: a system that answers thousands together after
//! seconds would else be seen between two answers, with a rate of nothing or of everything.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_bench::sample::Window;

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

/// Which numbers were there: a bit for each, up to the largest. Whoever marks bounds what may be marked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    /// Marks a number; whether it was not marked before.
    pub(crate) fn set(&mut self, number: u64) -> bool {
        let (at, bit) = (number as usize / 64, 1 << (number % 64));
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let new = self.0[at] & bit == 0;
        self.0[at] |= bit;
        new
    }

    /// Takes a mark away; whether there was one.
    pub(crate) fn clear(&mut self, number: u64) -> bool {
        let had = self.has(number);
        if had {
            self.0[number as usize / 64] &= !(1 << (number % 64));
        }
        had
    }

    /// Whether a number is marked.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// How many are marked.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once_until_its_mark_is_taken_away() {
        let mut marks = Marks::default();
        assert!(marks.set(3) && marks.set(64) && !marks.set(64));
        assert!(marks.has(64) && !marks.has(63) && !marks.has(1_000));
        assert_eq!(marks.count(), 2);
        assert!(marks.clear(64) && !marks.clear(64) && !marks.clear(1_000));
        assert!(marks.set(64));
        assert_eq!(marks.count(), 2);
    }

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
