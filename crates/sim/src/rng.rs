//! Randomness from a seed: the same on every machine, for ever.

/// SplitMix64. Forks give every part of a world a stream of its own, so that taking one part away leaves what the
/// others do as it was: a scenario shrinks without becoming another.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A stream of its own for `part` of this seed; does not move this one.
    pub(crate) fn fork(&self, part: u64) -> Rng {
        let mut rng = Rng(self.0 ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        rng.next();
        rng
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; zero if that is zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True so many times out of a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of them.
    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let index = self.below(of.len() as u64) as usize;
        of.get(index).cloned()
    }

    /// A length of time around `mean`, short ones more often than long ones, at most six times as long.
    pub(crate) fn around(&mut self, mean: u64) -> u64 {
        let uniform = (self.below(1_000_000) + 1) as f64 / 1_000_000.0;
        let ms = -uniform.ln() * mean as f64;
        (ms as u64).clamp(1, mean.saturating_mul(6).max(1))
    }

    /// Bytes for a key.
    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}
