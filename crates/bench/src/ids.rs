//! Ids and keys as senders have them: ULIDs, whose first part is the time, and keys that are the same in every run.

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_client::SigningKey;

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Characters of a ULID.
pub const ULID: usize = 26;

/// The key of the `index`th sender. What was stored before a measurement comes from the same senders as its load.
pub fn sender_key(index: usize) -> SigningKey {
    let mut seed = [0x5e; 32];
    seed[..8].copy_from_slice(&(index as u64).to_be_bytes());
    SigningKey::from_bytes(&seed)
}

/// Unix milliseconds.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A quick source of numbers that nobody needs to be unable to guess (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A source of its own for each `seed`, other in every process.
    pub fn new(seed: u64) -> Dice {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Dice(nanos ^ (u64::from(std::process::id()) << 40) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `range`.
    pub fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.roll() % (range.end - range.start).max(1)
    }

    /// 80 random bits.
    pub fn entropy(&mut self) -> u128 {
        (u128::from(self.roll()) << 16 | u128::from(self.roll() & 0xffff)) & ((1 << 80) - 1)
    }

    /// Text of so many characters that does not compress.
    pub fn text(&mut self, len: usize) -> String {
        (0..len).map(|_| char::from(CROCKFORD[(self.roll() & 31) as usize])).collect()
    }
}

/// Writes a ULID of `ms` and `entropy` over the first 26 bytes of `out`.
pub fn spell(ms: u64, entropy: u128, out: &mut [u8]) {
    let mut bits = u128::from(ms) << 80 | entropy;
    for place in out.iter_mut().take(ULID).rev() {
        *place = CROCKFORD[(bits & 31) as usize];
        bits >>= 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::proto::MessageId;

    #[test]
    fn what_is_spelled_is_a_ulid() {
        let mut dice = Dice::new(1);
        for ms in [0, 1, 1_800_000_000_000] {
            let entropy = dice.entropy();
            let mut text = [0; ULID];
            spell(ms, entropy, &mut text);
            let text = std::str::from_utf8(&text).unwrap();
            assert_eq!(text, MessageId::from_parts(ms, entropy).to_string());
        }
    }
}
