//! The two clocks: one that decides, one that is shown; and ids made of the second.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_kit::{Millis, Now};
use tenure_proto::ids::{ClientMessageId, MessageId};

/// Reads both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn at(&self) -> Millis {
        Millis(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Unix milliseconds.
    pub(crate) fn wall(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn now(&self) -> Now {
        Now { at: self.at(), wall: self.wall() }
    }

    /// How long it is until a moment of the clock that decides.
    pub(crate) fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.since(self.at()))
    }

    /// A fresh id for a message: a ULID.
    pub(crate) fn mint(&self) -> Option<ClientMessageId> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).ok()?;
        MessageId::from_parts(self.wall(), u128::from_le_bytes(random)).to_string().parse().ok()
    }
}
