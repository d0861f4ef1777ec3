//! Time as an argument: monotonic milliseconds decide, wall milliseconds are only shown or signed.

/// A day, in milliseconds.
pub const DAY_MS: u64 = 24 * 3600 * 1000;

/// A moment of the shell's monotonic clock, in milliseconds since a start of its choosing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `ms` later.
    pub const fn plus(self, ms: u64) -> Millis {
        Millis(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to here; zero when it is not earlier.
    pub const fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock: everything that expires hangs on it.
    pub at: Millis,
    /// The wall clock, Unix milliseconds: shown to people and compared across machines, never used to expire.
    pub wall: u64,
}
