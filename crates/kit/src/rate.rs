//! Rates: how often somebody may do something. So many at once, then so many a second.
//!
//! A rate is kept as one moment for each who uses it: when all that it did will have been paid for at that rate. So it
//! costs one number whatever the rate, and whoever has paid for everything is forgotten without a trace.
//!
//! The map is bounded. When it is full and nobody in it has paid, those who find no place share one account: many
//! strangers at once slow each other down, and can neither grow our memory nor keep everybody out.

use std::collections::BTreeMap;

use crate::time::Millis;

/// Accounts that are kept apart at once.
pub const ACCOUNTS: usize = 65_536;
/// How often a full map is looked through for those who have paid.
const SWEEP_MS: u64 = 1_000;
/// Moments are counted in microseconds: a rate may be thousands a second.
const US_PER_MS: u64 = 1_000;

/// How often something may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many at once.
    pub burst: u32,
    /// Then so many a second; 0 is as often as one likes.
    pub per_second: u32,
}

impl Rate {
    /// As often as one likes.
    pub const UNLIMITED: Rate = Rate { burst: 0, per_second: 0 };

    /// A rate of `per_second` that may come in one go once in `seconds`.
    pub const fn of(per_second: u32, seconds: u32) -> Rate {
        Rate { burst: per_second.saturating_mul(seconds), per_second }
    }

    /// Microseconds that one costs.
    fn cost_us(self) -> u64 {
        (1_000 * US_PER_MS / u64::from(self.per_second.max(1))).max(1)
    }
}

/// Who has done how much of something lately.
#[derive(Debug)]
pub struct Rates<K> {
    /// When everything that somebody did is paid for, in microseconds; at most [`ACCOUNTS`].
    paid_us: BTreeMap<K, u64>,
    /// The account of those who found no place.
    crowd_us: u64,
    swept: Millis,
    bound: usize,
}

impl<K: Ord + Clone> Default for Rates<K> {
    fn default() -> Rates<K> {
        Rates::bounded(ACCOUNTS)
    }
}

impl<K: Ord + Clone> Rates<K> {
    fn bounded(bound: usize) -> Rates<K> {
        Rates { paid_us: BTreeMap::new(), crowd_us: 0, swept: Millis(0), bound }
    }

    /// Lets `who` do it once more; else says after how many milliseconds it may.
    pub fn take(&mut self, now: Millis, who: &K, rate: Rate) -> Result<(), u64> {
        if rate.per_second == 0 {
            return Ok(());
        }
        let now_us = now.0.saturating_mul(US_PER_MS);
        let (cost, full) = (rate.cost_us(), !self.has_place(now, who));
        let paid = if full { &mut self.crowd_us } else { self.paid_us.entry(who.clone()).or_default() };
        let after = (*paid).max(now_us).saturating_add(cost);
        let most = now_us.saturating_add(cost.saturating_mul(u64::from(rate.burst.max(1))));
        if after > most {
            return Err((after - most).div_ceil(US_PER_MS));
        }
        *paid = after;
        Ok(())
    }

    /// What `who` did last does not count after all.
    pub fn give_back(&mut self, who: &K, rate: Rate) {
        if let Some(paid) = self.paid_us.get_mut(who) {
            *paid = paid.saturating_sub(rate.cost_us());
        }
    }

    /// Accounts that are kept apart.
    pub fn len(&self) -> usize {
        self.paid_us.len()
    }

    /// Whether nobody has done anything lately.
    pub fn is_empty(&self) -> bool {
        self.paid_us.is_empty()
    }

    /// Whether there is an account of its own for `who`, after those who have paid are forgotten if need be.
    fn has_place(&mut self, now: Millis, who: &K) -> bool {
        if self.paid_us.len() < self.bound || self.paid_us.contains_key(who) {
            return true;
        }
        if now.since(self.swept) >= SWEEP_MS {
            self.swept = now;
            let now_us = now.0.saturating_mul(US_PER_MS);
            self.paid_us.retain(|_, paid| *paid > now_us);
        }
        self.paid_us.len() < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, per_second: 10 };

    fn ok(rates: &mut Rates<u32>, at: u64, who: u32) -> bool {
        rates.take(Millis(at), &who, RATE).is_ok()
    }

    #[test]
    fn a_burst_then_a_pace_and_the_wait_is_told_exactly() {
        let mut rates = Rates::default();
        assert_eq!([0, 0, 0, 0].map(|at| ok(&mut rates, at, 1)), [true, true, true, false]);
        let Err(wait) = rates.take(Millis(40), &1, RATE) else { panic!("too soon") };
        assert_eq!(wait, 60);
        assert!(!ok(&mut rates, 99, 1));
        assert!(ok(&mut rates, 100, 1));
        assert!(!ok(&mut rates, 100, 1));
        // What was refused cost nothing, and a rest is worth a burst, never more.
        assert_eq!([0; 4].map(|_| ok(&mut rates, 100_000, 1)), [true, true, true, false]);
    }

    #[test]
    fn each_has_an_account_of_its_own() {
        let mut rates = Rates::default();
        for who in 0..50 {
            assert_eq!([0; 4].map(|_| ok(&mut rates, 5, who)), [true, true, true, false]);
        }
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut rates = Rates::default();
        assert_eq!([0; 4].map(|_| ok(&mut rates, 0, 1)), [true, true, true, false]);
        rates.give_back(&1, RATE);
        assert_eq!([0; 2].map(|_| ok(&mut rates, 0, 1)), [true, false]);
        rates.give_back(&2, RATE);
        assert_eq!(rates.len(), 1, "nobody is remembered for nothing");
    }

    #[test]
    fn no_rate_is_no_bound_and_costs_no_memory() {
        let mut rates = Rates::default();
        assert!((0..10_000).all(|who| rates.take(Millis(0), &who, Rate::UNLIMITED).is_ok()));
        assert!(rates.is_empty());
    }

    #[test]
    fn a_full_map_makes_the_rest_share_and_forgets_who_has_paid() {
        let mut rates = Rates::bounded(4);
        assert!((0..4).all(|who| ok(&mut rates, 2_000, who)));
        // The fifth and all after it are one account.
        assert_eq!([4, 5, 6, 7].map(|who| ok(&mut rates, 2_000, who)), [true, true, true, false]);
        assert!(ok(&mut rates, 2_000, 0), "those with a place keep it");
        assert_eq!(rates.len(), 4);
        // A second later all have paid but the first, and there is room again.
        assert!(ok(&mut rates, 3_000, 8));
        assert_eq!(rates.len(), 1);
    }

    #[test]
    fn the_largest_numbers_are_numbers() {
        let mut rates = Rates::default();
        let most = Rate { burst: u32::MAX, per_second: u32::MAX };
        assert!(rates.take(Millis(u64::MAX), &1, most).is_ok());
        let least = Rate { burst: 0, per_second: 1 };
        assert!(rates.take(Millis(7), &2, least).is_ok(), "one at a time is the least");
        assert_eq!(rates.take(Millis(7), &2, least), Err(1_000));
    }
}
