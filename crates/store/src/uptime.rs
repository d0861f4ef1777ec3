//! How much uptime lies between two runs, for many leases at once.
//!
//! A broker in a crash loop may have thousands of runs behind a hundred thousand leases, so the sums are made
//! once and each lease costs two binary searches. What a run counts is `tenure_mesh::sessions::lease`'s to say.

use tenure_mesh::sessions::lease::unattended_ms;

/// The uptimes of runs, summed up.
#[derive(Debug, Default)]
pub(crate) struct Uptimes {
    /// Each run with what itself and all before it count; ascending. Wide enough never to overflow.
    totals: Vec<(u64, u128)>,
}

impl Uptimes {
    /// From `(run, uptime_ms)` in ascending order of runs.
    pub(crate) fn from_ascending(runs: impl IntoIterator<Item = (u64, u64)>) -> Uptimes {
        let mut total = 0u128;
        let totals = runs
            .into_iter()
            .map(|(run, uptime_ms)| {
                total += u128::from(unattended_ms(uptime_ms));
                (run, total)
            })
            .collect();
        Uptimes { totals }
    }

    /// The newest run, or 0 when there is none.
    pub(crate) fn last_run(&self) -> u64 {
        self.totals.last().map_or(0, |(run, _)| *run)
    }

    /// What all runs after `touched` and before the newest count.
    pub(crate) fn spent_since(&self, touched: u64) -> u64 {
        let before_newest = self.total_below(self.last_run());
        let until_touched = self.total_below(touched.saturating_add(1));
        u64::try_from(before_newest.saturating_sub(until_touched)).unwrap_or(u64::MAX)
    }

    fn total_below(&self, run: u64) -> u128 {
        let count = self.totals.partition_point(|(number, _)| *number < run);
        count.checked_sub(1).map_or(0, |last| self.totals[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_touched_run_and_the_newest_do_not_count() {
        let uptimes = Uptimes::from_ascending([(3, 1), (4, 10), (5, 100), (6, 1000)]);
        assert_eq!(uptimes.last_run(), 6);
        assert_eq!(uptimes.spent_since(3), 2_110);
        assert_eq!(uptimes.spent_since(4), 1_100);
        assert_eq!(uptimes.spent_since(5), 0, "the first start after an attach");
        assert_eq!(uptimes.spent_since(6), 0, "attached now");
        assert_eq!(uptimes.spent_since(9), 0, "a run that never was");
        assert_eq!(uptimes.spent_since(u64::MAX), 0);
        assert_eq!(Uptimes::default().spent_since(1), 0);
    }

    #[test]
    fn absurd_uptimes_saturate() {
        let uptimes = Uptimes::from_ascending([(1, 0), (2, u64::MAX), (3, u64::MAX), (4, 0)]);
        assert_eq!(uptimes.spent_since(1), u64::MAX);
        assert_eq!(uptimes.spent_since(2), u64::MAX);
        assert_eq!(uptimes.spent_since(3), 0);
    }
}
