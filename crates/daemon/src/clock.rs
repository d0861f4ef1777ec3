//! The wall clock, and what is made of it.

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_proto::ids::{ClientMessageId, MessageId};

/// Reads the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock
    }

    /// Unix milliseconds.
    pub(crate) fn wall(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// A fresh id for a message: a ULID.
    pub(crate) fn mint(&self) -> Option<ClientMessageId> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).ok()?;
        MessageId::from_parts(self.wall(), u128::from_le_bytes(random)).to_string().parse().ok()
    }
}
