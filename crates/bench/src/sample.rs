//! One stretch of measuring: how many in how long, how long each, and what it cost.

use std::time::{Duration, Instant};

/// When counting begins and ends; what happens before is warming up, what happens after is going home.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Instant,
    pub until: Instant,
}

impl Window {
    /// A window of `length` that opens after `warm_up`.
    pub fn after(warm_up: Duration, length: Duration) -> Window {
        let from = Instant::now() + warm_up;
        Window { from, until: from + length }
    }

    pub fn has(&self, at: Instant) -> bool {
        self.from <= at && at < self.until
    }

    pub fn seconds(&self) -> f64 {
        (self.until - self.from).as_secs_f64()
    }
}

/// How long things took, in microseconds, in no order.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<u32>);

impl Times {
    pub fn add(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn merge(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The time in ms that each of these shares of them did not exceed.
    pub fn at(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).map_or(f64::NAN, |us| f64::from(*us) / 1_000.0)
    }
}

/// What one stretch came to.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub count: u64,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
}

impl Sample {
    pub fn new(window: Window, mut times: Times) -> Sample {
        let count = times.count();
        let per_second = count as f64 / window.seconds();
        let [p50_ms, p99_ms, p999_ms] = [0.5, 0.99, 0.999].map(|share| times.at(share));
        Sample { count, per_second, p50_ms, p99_ms, p999_ms }
    }
}

/// The middle one; of an even number the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

/// How many times the smallest the largest is: the noise between rounds.
pub fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let (low, high) =
        values.into_iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    high / low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_shares_are_what_they_say() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0])), (2.0, 2.5));
        assert_eq!(spread([2.0, 1.0, 3.0]), 3.0);
        let mut times = Times::default();
        (1..=100).for_each(|ms| times.add(Duration::from_millis(ms)));
        assert_eq!((times.at(0.5), times.at(0.99), times.count()), (50.0, 99.0, 100));
    }
}
