//! Ids of messages: ULIDs, in the order in which they were made.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_proto::WireError;
use tenure_proto::ids::{ClientMessageId, MessageId};

use crate::send::no_entropy;

/// Bits of a ULID that are not its time.
const ENTROPY: u128 = (1 << 80) - 1;

/// Makes ids, each greater than the one before.
#[derive(Debug, Default)]
pub(crate) struct Mint(Mutex<u128>);

impl Mint {
    pub(crate) fn mint(&self) -> Result<ClientMessageId, WireError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Within one millisecond, or after the clock went back, count on.
        *last = if u128::from(now) > *last >> 80 { fresh(now)? } else { *last + 1 };
        MessageId(*last).to_string().parse().map_err(|_| no_entropy())
    }
}

/// The first id of a millisecond.
fn fresh(now: u64) -> Result<u128, WireError> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|_| no_entropy())?;
    // Half of the range, so that counting on from it never overflows into the time.
    Ok(MessageId::from_parts(now, (u128::from_le_bytes(random) & ENTROPY) >> 1).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_order_and_never_the_same() {
        let mint = Mint::default();
        let ids: Vec<_> = (0..10_000).map(|_| mint.mint().unwrap()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(ids[0].as_str().len(), 26);
    }
}
