//! How much of everything: a quick run of about ten minutes, and the full one.

use std::time::Duration;

/// The sizes of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// Rounds; figures are medians over them.
    pub(crate) rounds: usize,
    /// How long a stretch runs before it counts, and how long it counts.
    pub(crate) times: (Duration, Duration),
    /// Bytes of bodies.
    pub(crate) bodies: Vec<usize>,
    /// Publishes under way.
    pub(crate) outstanding: Vec<usize>,
    /// Bytes of bodies that are read too.
    pub(crate) flow_bodies: Vec<usize>,
    /// Messages a second at a fixed rate, and for how long.
    pub(crate) rate: usize,
    pub(crate) paced: Duration,
    /// Idle sessions, how long they come to rest, and how long they are watched.
    pub(crate) idle: Vec<usize>,
    pub(crate) settle: Duration,
    pub(crate) watch: Duration,
    /// Sessions that are cut off, and how often; sessions whose server is killed, and how often.
    pub(crate) cut: (usize, usize),
    pub(crate) restart: (usize, usize),
    /// How long a crowd stands before it is broken, and how long after that the last may be back.
    pub(crate) steady: Duration,
    pub(crate) patience: Duration,
    /// How long after the last break presence is watched: longer than a lease lasts, for only then it is known that
    /// nobody leaves.
    pub(crate) aftermath: Duration,
    /// Messages to sessions a second meanwhile.
    pub(crate) mail: u64,
    /// Undelivered messages at a kill, how long filling in may take, and how many kills.
    pub(crate) backlog: u64,
    pub(crate) fill: Duration,
    pub(crate) kills: usize,
}

impl Plan {
    /// Less than ten minutes for everything.
    pub(crate) fn quick() -> Plan {
        Plan {
            quick: true,
            rounds: 5,
            times: (Duration::from_millis(80), Duration::from_millis(200)),
            bodies: vec![1024],
            outstanding: vec![1, 256, 4_096],
            flow_bodies: vec![1024],
            rate: 200,
            paced: Duration::from_millis(400),
            idle: vec![1_000],
            settle: Duration::from_millis(500),
            watch: Duration::from_secs(1),
            cut: (500, 1),
            restart: (250, 1),
            steady: Duration::from_millis(500),
            patience: Duration::from_secs(10),
            aftermath: Duration::from_secs(2),
            mail: 100,
            backlog: 10_000,
            fill: Duration::from_secs(2),
            // The first comes while nobody reads, the second under a reader.
            kills: 2,
        }
    }

    /// All sizes; about an hour and three quarters.
    pub(crate) fn full() -> Plan {
        Plan {
            quick: false,
            rounds: 5,
            times: (Duration::from_millis(150), Duration::from_millis(600)),
            bodies: vec![128, 1024, 16 * 1024],
            outstanding: vec![1, 16, 256, 4_096],
            flow_bodies: vec![128, 1024, 16 * 1024],
            rate: 200,
            paced: Duration::from_secs(3),
            idle: vec![1_000, 10_000],
            settle: Duration::from_secs(6),
            watch: Duration::from_secs(12),
            cut: (10_000, 5),
            restart: (5_000, 5),
            steady: Duration::from_secs(2),
            patience: Duration::from_secs(60),
            aftermath: Duration::from_secs(100),
            mail: 200,
            backlog: 1_000_000,
            fill: Duration::from_secs(60),
            kills: 5,
        }
    }
}
