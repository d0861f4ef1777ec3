//! The numbers of one mesh, checked before anything runs on them.

use tenure_kit::rate::Rate;
use tenure_kit::time::DAY_MS;
use tenure_proto::U53;
use tenure_proto::hello::{Durability, Policy};
use tenure_proto::limits;

use crate::access::pattern::Pattern;
use crate::access::setting;

/// Beyond it, say that it is for ever.
const CENTURY_DAYS: u32 = 36_500;

/// The longest that messages may be kept: as long as ids can be remembered.
pub(crate) const RETENTION_MS_MAX: u64 = CENTURY_DAYS as u64 * DAY_MS;

/// Shorter, and a crew would lose what it was handed before it could settle it.
pub(crate) const ACK_TIMEOUT_MS_MIN: u64 = 100;
/// Longer, and one that hangs keeps its share for as long.
pub(crate) const ACK_TIMEOUT_MS_MAX: u64 = 7 * DAY_MS;
/// What the longest TTL of a service must allow at least: a publisher renews every 5 s, and may miss two of those.
pub(crate) const SERVICE_TTL_MAX_MS_MIN: u64 = 15_000;

/// Sessions of one member by default: half a mesh.
const SESSIONS_PER_MEMBER: usize = 50_000;
/// Messages of one member in a second by default.
const SENDS_PER_SECOND: u32 = 5_000;
/// Other requests of one member in a second by default.
const REQUESTS_PER_SECOND: u32 = 1_000;
/// Seconds of a rate that may come in one go.
pub const BURST_SECONDS: u32 = 10;

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
    /// Living leases that one member vouches for; the next hello is told `busy`.
    pub max_sessions_per_member: usize,
    /// Consumer groups of one topic; one more is told `busy`.
    pub max_groups_per_topic: usize,
    /// Consumer groups that one member has made, each counted once for every partition it reads; one more is told `busy`.
    pub max_groups_per_member: usize,
    /// Topics that one member has made; one more is told `busy`.
    pub max_topics_per_member: usize,
    /// Messages that a member may send.
    pub send_rate: Rate,
    /// Other requests that a member may make, but for those that settle or end something.
    pub request_rate: Rate,
    /// Bytes of a body.
    pub max_payload: usize,
    /// Bytes that may wait for one socket.
    pub max_buffered_bytes: usize,
    /// Messages that may wait for one socket.
    pub max_buffered_messages: u32,
    /// How long a socket may take less than the least that a reader takes, while something waits for it.
    pub slow_consumer_ms: u64,
    /// Bytes of bodies that one partition of a topic may hold; past it the oldest go, unread ones to the dead
    /// letters. `None` is as many as retention leaves.
    pub topic_bytes: Option<u64>,
    /// How long a member of a crew may take to settle, unless it says that it makes progress.
    pub ack_timeout_ms: u64,
    /// What "accepted" means.
    pub durability: Durability,
    /// Days that the ids of accepted messages are remembered; `None` is for ever.
    pub dedupe_days: Option<u32>,
    /// How long a shared group's deliveries stay with a session that has lost its socket.
    pub reconnect_grace_ms: u64,
    /// The oldest client that the operator wants to see, as clients are told.
    pub min_client: Option<String>,
    /// How long settled entries stay readable, where a topic does not say otherwise.
    pub retention_ms: u64,
    /// The shortest `ttlMs` of a service.
    pub service_ttl_min_ms: u64,
    /// The longest `ttlMs` of a service.
    pub service_ttl_max_ms: u64,
    /// What names of services look like, with `*` for any characters and `?` for one; `None` is any name.
    pub service_names: Option<String>,
    /// What names of services must fit besides, as a regular expression for the whole name; `None` is any name.
    pub service_pattern: Option<Pattern>,
    /// Streams of one service that may be open at once, or wait; one more is told `busy`.
    pub max_streams_per_service: usize,
}

/// What a hello tells a client about the times of its lease. It holds for that client until its next hello, whatever
/// the mesh's numbers become meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// From the last proof of life to the end of the lease.
    pub lease_ttl_ms: u64,
    /// Silence after which a socket is dropped.
    pub stale_after_ms: u64,
    /// Between pings.
    pub ping_interval_ms: u64,
    /// Silence of ours after which a `tick` is sent.
    pub tick_interval_ms: u64,
}

impl Terms {
    /// Of each number the one that cannot disappoint a client that knows either: patience as long as the longer,
    /// signs of life as often as the shorter.
    pub fn kinder(self, other: Terms) -> Terms {
        Terms {
            lease_ttl_ms: self.lease_ttl_ms.max(other.lease_ttl_ms),
            stale_after_ms: self.stale_after_ms.max(other.stale_after_ms),
            ping_interval_ms: self.ping_interval_ms.min(other.ping_interval_ms),
            tick_interval_ms: self.tick_interval_ms.min(other.tick_interval_ms),
        }
    }
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
            max_sessions_per_member: SESSIONS_PER_MEMBER,
            max_groups_per_topic: limits::GROUPS_PER_TOPIC,
            max_groups_per_member: limits::GROUPS_PER_MEMBER,
            max_topics_per_member: limits::TOPICS_PER_MEMBER,
            send_rate: Rate::of(SENDS_PER_SECOND, BURST_SECONDS),
            request_rate: Rate::of(REQUESTS_PER_SECOND, BURST_SECONDS),
            max_payload: limits::MAX_PAYLOAD_BYTES,
            max_buffered_bytes: limits::MAX_BUFFERED_BYTES,
            max_buffered_messages: limits::MAX_BUFFERED_MESSAGES,
            slow_consumer_ms: limits::SLOW_CONSUMER_MS,
            topic_bytes: None,
            ack_timeout_ms: limits::ACK_TIMEOUT_MS,
            durability: Durability::Fsync,
            dedupe_days: Some(limits::DEDUPE_DAYS),
            reconnect_grace_ms: limits::RECONNECT_GRACE_MS,
            min_client: None,
            retention_ms: limits::RETENTION_MS,
            service_ttl_min_ms: limits::SERVICE_TTL_MIN_MS,
            service_ttl_max_ms: limits::SERVICE_TTL_MAX_MS,
            service_names: None,
            service_pattern: None,
            max_streams_per_service: limits::STREAMS_PER_SERVICE,
        }
    }

    /// Refuses numbers under which the promises could not be kept.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        if let Some(text) = setting::out_of_range(self) {
            return refuse(text);
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
        if self.service_ttl_min_ms > self.service_ttl_max_ms {
            return refuse(format!(
                "the shortest TTL of a service ({} ms) must not be above its longest ({} ms)",
                self.service_ttl_min_ms, self.service_ttl_max_ms
            ));
        }
        self.check_memory()
    }

    /// Refuses times of remembering that would make retries unsafe, or that no clock reaches.
    fn check_memory(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        let days = limits::DEDUPE_DAYS_FLOOR..=CENTURY_DAYS;
        if self.dedupe_days.is_some_and(|n| !days.contains(&n)) {
            return refuse(format!(
                "ids of sent messages must be remembered for {} to {} days, or permanently",
                days.start(),
                days.end()
            ));
        }
        let remembered_ms = u64::from(self.dedupe_days.unwrap_or(CENTURY_DAYS)) * DAY_MS;
        if self.retention_ms > remembered_ms {
            return refuse(format!(
                "messages must not be kept longer ({} ms) than their ids are remembered ({remembered_ms} ms)",
                self.retention_ms
            ));
        }
        Ok(())
    }

    /// Until when the id of a message accepted at `wall` is remembered, Unix milliseconds; `None` is for ever.
    pub fn remember_until(&self, wall: u64) -> Option<u64> {
        self.dedupe_days.map(|days| wall.saturating_add(u64::from(days) * DAY_MS))
    }

    /// The times of a lease that begins, or is taken up, now.
    pub fn terms(&self) -> Terms {
        Terms {
            lease_ttl_ms: self.lease_ttl_ms,
            stale_after_ms: self.stale_after_ms,
            ping_interval_ms: self.ping_interval_ms,
            tick_interval_ms: self.tick_interval_ms,
        }
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

    #[test]
    fn ids_are_remembered_long_enough() {
        let with = |dedupe_days, retention_ms| {
            MeshConfig { dedupe_days, retention_ms, ..MeshConfig::default() }.check()
        };
        assert_eq!(with(Some(7), 7 * DAY_MS), Ok(()));
        assert_eq!(with(Some(36_500), 0), Ok(()));
        assert_eq!(with(None, 365 * DAY_MS), Ok(()));
        assert!(with(Some(6), 0).unwrap_err().0.contains("7 to 36500 days"));
        assert!(with(Some(36_501), 0).unwrap_err().0.contains("permanently"));
        assert!(with(Some(7), 7 * DAY_MS + 1).unwrap_err().0.contains("longer"));
        let long = MeshConfig { reconnect_grace_ms: DAY_MS + 1, ..MeshConfig::default() };
        assert!(long.check().unwrap_err().0.contains("reconnectGraceMs"));
        assert_eq!(MeshConfig { reconnect_grace_ms: 0, ..MeshConfig::default() }.check(), Ok(()));
    }

    #[test]
    fn the_end_of_a_memory_is_counted_in_days() {
        assert_eq!(MeshConfig::default().remember_until(5), Some(5 + 30 * DAY_MS));
        assert_eq!(MeshConfig { dedupe_days: None, ..MeshConfig::default() }.remember_until(5), None);
    }
}
