//! The numbers of one mesh, checked before anything runs on them.

use tenure_proto::U53;
use tenure_proto::hello::{Durability, Policy};
use tenure_proto::limits;

/// The numbers of one mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshConfig {
    /// From the last proof of life to the end of the lease.
    pub lease_ttl_ms: u64,
    /// Between pings, from both sides.
    pub ping_interval_ms: u64,
    /// Silence after which a socket is dropped.
    pub stale_after_ms: u64,
    /// Silence of ours after which a `tick` is sent.
    pub tick_interval_ms: u64,
    /// Living leases; the next hello is told `busy`.
    pub max_sessions: usize,
    /// Bytes of a body.
    pub max_payload: usize,
    /// Bytes that may wait for one socket.
    pub max_buffered_bytes: usize,
    /// Messages that may wait for one socket.
    pub max_buffered_messages: u32,
    /// What "accepted" means.
    pub durability: Durability,
}

/// A number that contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl Default for MeshConfig {
    fn default() -> MeshConfig {
        MeshConfig::with_lease(limits::LEASE_TTL_MS)
    }
}

impl MeshConfig {
    /// The defaults for leases of `lease_ttl_ms`: ping and tick a third of it, stale five sixths, which for
    /// 90 s is 30, 30 and 75.
    pub fn with_lease(lease_ttl_ms: u64) -> MeshConfig {
        MeshConfig {
            lease_ttl_ms,
            ping_interval_ms: lease_ttl_ms / 3,
            stale_after_ms: lease_ttl_ms / 6 * 5,
            tick_interval_ms: lease_ttl_ms / 3,
            max_sessions: limits::PRESENCE_PER_MESH,
            max_payload: limits::MAX_PAYLOAD_BYTES,
            max_buffered_bytes: limits::MAX_BUFFERED_BYTES,
            max_buffered_messages: limits::MAX_BUFFERED_MESSAGES,
            durability: Durability::Fsync,
        }
    }

    /// Refuses numbers under which the promises could not be kept.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        let day_ms = 24 * 3600 * 1000;
        if !(100..=day_ms).contains(&self.lease_ttl_ms) {
            return refuse(format!(
                "the lease must be between 100 ms and a day, not {} ms",
                self.lease_ttl_ms
            ));
        }
        if self.ping_interval_ms == 0 || self.tick_interval_ms == 0 {
            return refuse("ping and tick intervals must be above zero".to_owned());
        }
        if self.ping_interval_ms >= self.stale_after_ms {
            return refuse(format!(
                "the ping interval ({} ms) must be shorter than stale-after ({} ms)",
                self.ping_interval_ms, self.stale_after_ms
            ));
        }
        if self.stale_after_ms >= self.lease_ttl_ms {
            return refuse(format!(
                "stale-after ({} ms) must be shorter than the lease ({} ms)",
                self.stale_after_ms, self.lease_ttl_ms
            ));
        }
        if self.tick_interval_ms > day_ms {
            return refuse("the tick interval must be at most a day".to_owned());
        }
        if self.max_sessions == 0 {
            return refuse("max sessions must be above zero".to_owned());
        }
        let payload = limits::MAX_PAYLOAD_BYTES_FLOOR..=64 * 1024 * 1024;
        if !payload.contains(&self.max_payload) {
            return refuse(format!(
                "max payload must be between {} and {} bytes",
                payload.start(),
                payload.end()
            ));
        }
        if self.max_buffered_bytes < limits::frame_bytes(self.max_payload) {
            return refuse("max buffered bytes must hold at least one frame of max payload".to_owned());
        }
        Ok(())
    }

    /// The numbers as a client is told them.
    pub fn policy(&self) -> Policy {
        Policy {
            ping_interval_ms: U53::saturating(self.ping_interval_ms),
            stale_after_ms: U53::saturating(self.stale_after_ms),
            tick_interval_ms: U53::saturating(self.tick_interval_ms),
            max_payload: U53::saturating(self.max_payload as u64),
            max_buffered_bytes: U53::saturating(self.max_buffered_bytes as u64),
            max_buffered_messages: U53::from(self.max_buffered_messages),
            max_inflight: U53::from(limits::MAX_INFLIGHT),
            durability: self.durability,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_contract_and_hold_together() {
        let config = MeshConfig::default();
        assert_eq!((config.lease_ttl_ms, config.ping_interval_ms), (90_000, 30_000));
        assert_eq!((config.stale_after_ms, config.tick_interval_ms), (75_000, 30_000));
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn contradictions_are_named() {
        let bad = MeshConfig { stale_after_ms: 95_000, ..MeshConfig::default() };
        assert!(bad.check().unwrap_err().0.contains("stale-after"));
        let bad = MeshConfig { ping_interval_ms: 75_000, ..MeshConfig::default() };
        assert!(bad.check().unwrap_err().0.contains("ping interval"));
    }
}
