//! How a socket takes what waits for it: slowly is fine, hardly at all is not.
//!
//! A reader is judged by what it takes, never by how long a batch is on its way: a message of a megabyte takes ten
//! seconds at a megabit a second, and whoever reads it all that time reads.

use tenure_kit::time::Millis;
use tenure_proto::limits::SLOW_CONSUMER_BYTES;

/// How often the mesh is told at the most, in parts of the time that a reader is given.
const PARTS: u64 = 10;

/// What a socket has taken since the mesh was last told that it reads.
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes: usize,
    told: Millis,
}

impl Pace {
    /// So many bytes have left; says whether the mesh, which waits for `patience_ms`, is to hear of it.
    pub(super) fn took(&mut self, now: Millis, bytes: usize, patience_ms: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let worth = self.bytes >= SLOW_CONSUMER_BYTES && now.since(self.told) >= patience_ms / PARTS;
        if worth {
            (self.bytes, self.told) = (0, now);
        }
        worth
    }

    /// All has left: what is taken of the next batch is counted from here.
    pub(super) fn rest(&mut self) {
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_is_told_and_not_too_often() {
        let mut pace = Pace::default();
        let mut took = |at, bytes| pace.took(Millis(at), bytes, 10_000);
        assert!(!took(2_000, SLOW_CONSUMER_BYTES - 1), "too little");
        assert!(took(9_000, 1), "in all it is enough");
        assert!(!took(9_000, SLOW_CONSUMER_BYTES - 1), "what was told does not count again");
        assert!(!took(9_999, SLOW_CONSUMER_BYTES), "so soon after the last time");
        assert!(took(10_000, 0));
        assert!(!took(20_000, SLOW_CONSUMER_BYTES - 1));
        pace.rest();
        assert!(!pace.took(Millis(20_000), SLOW_CONSUMER_BYTES - 1, 10_000), "of another batch");
    }
}
