//! Dice for waits: seeded from outside, so that the same seed throws the same numbers.

/// SplitMix64: small, and good enough to keep ten thousand clients from dialling in step.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that throw what `seed` says.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next throw.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
