//! When to dial again: full jitter, quick while the lease may still be saved, patient afterwards.

use tenure_kit::dice::Dice;

/// The first and smallest ceiling.
const FIRST_MS: u64 = 250;
/// The ceiling while the lease may live.
const LEASED_MS: u64 = 1_000;
/// The ceiling once it cannot.
const PATIENT_MS: u64 = 30_000;
/// The first ceiling for a request that was refused for now.
const AGAIN_FIRST_MS: u64 = 50;
/// The last one.
const AGAIN_MS: u64 = 5_000;

/// A back-off with dice of its own: the same seed rolls the same waits.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempt: u32,
    dice: Dice,
}

impl Backoff {
    /// A back-off seeded with `seed`.
    pub fn new(seed: u64) -> Backoff {
        Backoff { attempt: 0, dice: Dice::new(seed) }
    }

    /// Forgives all failures so far.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// How long to wait before the next dial; `leased` while the lease may still live.
    pub fn next_ms(&mut self, leased: bool) -> u64 {
        let ceiling = FIRST_MS << self.attempt.min(16);
        let ceiling = ceiling.min(if leased { LEASED_MS } else { PATIENT_MS });
        self.attempt = self.attempt.saturating_add(1);
        self.dice.roll() % (ceiling + 1)
    }

    /// How long to wait before asking again for what was refused `refusals` times for now.
    pub fn again_ms(&mut self, refusals: u32) -> u64 {
        let ceiling = (AGAIN_FIRST_MS << refusals.min(16)).min(AGAIN_MS);
        self.dice.roll() % (ceiling + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_second_while_leased_and_to_thirty_afterwards() {
        let mut longest = [0; 12];
        for seed in 0..2_000 {
            let mut backoff = Backoff::new(seed);
            for (attempt, longest) in longest.iter_mut().enumerate() {
                *longest = (*longest).max(backoff.next_ms(attempt < 6));
            }
        }
        let ceilings = [250, 500, 1_000, 1_000, 1_000, 1_000, 16_000, 30_000, 30_000, 30_000, 30_000, 30_000];
        for (seen, ceiling) in longest.iter().zip(ceilings) {
            assert!(*seen <= ceiling && *seen > ceiling * 9 / 10, "{seen} of {ceiling}");
        }
    }
}
