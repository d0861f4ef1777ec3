//! How long a client may take over something, in time that stands still while the broker does.

use tenure_kit::time::Millis;

use crate::sessions::freeze::Thaw;

/// A time that runs: until its hello is here, or a message that has begun is whole.
#[derive(Debug)]
pub(super) struct Patience {
    since: Millis,
    ms: u64,
    /// A broker that was frozen has not listened: that time is not the client's.
    thaw: Thaw,
}

impl Patience {
    /// Runs for `ms` from now, with leases of `lease_ttl_ms`.
    pub(super) fn new(now: Millis, ms: u64, lease_ttl_ms: u64) -> Patience {
        Patience { since: now, ms, thaw: Thaw::new(lease_ttl_ms, now) }
    }

    /// Since when.
    pub(super) fn since(&self) -> Millis {
        self.since
    }

    /// Whether it is over.
    pub(super) fn is_over(&mut self, now: Millis) -> bool {
        self.thaw.look(now);
        self.thaw.thawed(now) >= self.since.plus(self.ms)
    }

    /// When to look again.
    pub(super) fn next_deadline(&self) -> Millis {
        self.thaw.next_look().min(self.thaw.shell(self.since.plus(self.ms)))
    }
}
