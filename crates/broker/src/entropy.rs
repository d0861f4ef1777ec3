//! Randomness for ids, fetched from the system a block at a time: a call for each message costs as much as its
//! fingerprint.

use std::cell::RefCell;

/// Bytes in a block.
const BLOCK: usize = 1024;

struct Pool {
    bytes: [u8; BLOCK],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; BLOCK], used: BLOCK }) };
}

/// Sixteen bytes that nobody had before; `None` if the system has none.
pub(crate) fn draw() -> Option<u128> {
    POOL.with_borrow_mut(|pool| {
        if pool.used == BLOCK {
            getrandom::fill(&mut pool.bytes).ok()?;
            pool.used = 0;
        }
        let (drawn, _) = pool.bytes[pool.used..].split_first_chunk()?;
        pool.used += drawn.len();
        Some(u128::from_le_bytes(*drawn))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn nothing_is_drawn_twice() {
        let draws: HashSet<u128> = (0..10 * BLOCK).filter_map(|_| draw()).collect();
        assert_eq!(draws.len(), 10 * BLOCK);
    }
}
