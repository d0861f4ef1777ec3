//! How long a refused row waits: half a second, doubling up to thirty, a quarter more or less.

/// The first wait.
pub const FIRST_MS: u64 = 500;
/// The longest, before the dice.
pub const LONGEST_MS: u64 = 30_000;
/// The longest that a broker's own wish is followed.
pub const WISH_MS: u64 = 300_000;

/// Milliseconds to wait after the `refusals`-th refusal in a row, by the throw `roll`; a broker that wished for
/// more, within reason, gets it.
pub fn wait_ms(refusals: u32, wish_ms: Option<u64>, roll: u64) -> u64 {
    let doublings = refusals.saturating_sub(1).min(16);
    let base = (FIRST_MS << doublings).min(LONGEST_MS);
    let wait = base - base / 4 + roll % (base / 2 + 1);
    wait.max(wish_ms.unwrap_or(0).min(WISH_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_thirty_seconds_give_or_take_a_quarter() {
        let bases = [500, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
        for (refusals, base) in (0u32..).zip(bases) {
            assert_eq!(wait_ms(refusals, None, 0), base * 3 / 4);
            assert_eq!(wait_ms(refusals, None, base / 2), base * 5 / 4);
            assert_eq!(wait_ms(refusals, None, base / 4), base);
        }
        assert_eq!(wait_ms(u32::MAX, None, 0), 22_500);
    }

    #[test]
    fn the_broker_is_obeyed_within_reason() {
        assert_eq!(wait_ms(1, Some(5_000), 0), 5_000);
        assert_eq!(wait_ms(1, Some(1), 0), 375);
        assert_eq!(wait_ms(1, Some(u64::MAX), 0), WISH_MS);
    }
}
