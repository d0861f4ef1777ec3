//! What the tasks of one broker share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_kit::address::Addresses;
use tenure_kit::clock::Clocks;
use tenure_kit::crowd::CrowdLimits;
use tenure_kit::{Millis, Now};
use tenure_mesh::House;
use tenure_mesh::access::admin::{OPERATIONS_MAX, OperateId};
use tenure_mesh::access::operator_auth::Operator;
use tenure_mesh::conn::buffers::BufferLimit;
use tenure_mesh::sessions::freeze;
use tenure_proto::ids::ConnId;
use tenure_proto::method::StoreHealth;
use tenure_proto::number::U53;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::checks::Checks;
use crate::clock::Clock;
use crate::config::Config;
use crate::connections::Connections;
use crate::descriptors;
use crate::meshes::Meshes;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::stop::Stopping;

/// What the tasks of one broker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    /// Whether the wall clock is believed; held for a moment, never across an await. Every mesh has its own copy, which sees
    /// the same times: this one is for what is no mesh's.
    clocks: Mutex<Clocks>,
    /// What the broker is to whoever connects, without its meshes; the numbers are those that it was started with.
    pub(crate) house: House,
    /// The meshes, and what the broker is to those who are in them.
    pub(crate) meshes: Meshes,
    pub(crate) metrics: Metrics,
    /// Which start of the broker this is: tickets of another are not good here.
    pub(crate) run: u64,
    /// Drawn at this start, for ids that are never used twice.
    pub(crate) random: u64,
    pub(crate) relay: Relay,
    /// Every connection, from accept on.
    pub(crate) connections: Connections,
    /// What addresses have and do; held for a moment, never across an await.
    addresses: Mutex<Addresses>,
    /// Whether `/readyz` says yes.
    pub(crate) ready: AtomicBool,
    /// Set when the broker stops: sockets that have not said hello are let go.
    pub(crate) stopping: CancellationToken,
    /// Whether the store's last transaction went well.
    pub(crate) store_sound: AtomicBool,
    /// Checks of the store while the broker runs.
    pub(crate) checks: Checks,
    /// Rung when the drain of every mesh is complete.
    pub(crate) drained: Notify,
    /// Meshes that drain and are not done.
    pub(crate) undrained: AtomicUsize,
    /// What is under way since the broker was told to stop; `None` before.
    pub(crate) stop: watch::Sender<Option<Stopping>>,
    /// Who may administer; `None` when nobody may.
    pub(crate) operator: Option<Mutex<Operator>>,
    store_kind: &'static str,
    /// Since when the oldest unanswered write waits, in milliseconds of our clock plus one; 0 when none does.
    pub(crate) oldest_write: AtomicU64,
    /// Milliseconds in which the broker was frozen, and when a mesh last checked for a freeze, by our clock.
    frozen_ms: AtomicU64,
    looked_ms: AtomicU64,
    last_conn: AtomicU64,
    last_operation: AtomicU64,
    /// Requests of operators that are worked on.
    pub(crate) operating: Semaphore,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        (clock, clocks): (Clock, Clocks),
        house: House,
        operator: Option<Operator>,
        (run, random): (u64, u64),
        store_kind: &'static str,
        files: u64,
    ) -> Arc<Shared> {
        let total = descriptors::connections(files).min(config.max_connections.unwrap_or(usize::MAX));
        let crowd = CrowdLimits::of(total, config.max_unauthenticated);
        let connections = Connections::new(crowd, BufferLimit(config.max_buffered_total));
        let addresses = Mutex::new(Addresses::new(config.addresses));
        Arc::new(Shared {
            addresses,
            config,
            clock,
            clocks: Mutex::new(clocks),
            meshes: Meshes::new(house.clone()),
            house,
            metrics: Metrics::default(),
            run,
            random,
            relay: Relay::default(),
            connections,
            ready: AtomicBool::new(false),
            stopping: CancellationToken::new(),
            store_sound: AtomicBool::new(true),
            checks: Checks::default(),
            drained: Notify::new(),
            undrained: AtomicUsize::new(0),
            stop: watch::Sender::new(None),
            operator: operator.map(Mutex::new),
            store_kind,
            oldest_write: AtomicU64::new(0),
            frozen_ms: AtomicU64::new(0),
            looked_ms: AtomicU64::new(0),
            last_conn: AtomicU64::new(0),
            last_operation: AtomicU64::new(0),
            operating: Semaphore::new(OPERATIONS_MAX),
        })
    }

    pub(crate) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a mesh has checked for freezes, and how long those it knows were in all. The longest counts and not the sum:
    /// all meshes freeze together.
    pub(crate) fn looked(&self, at: Millis, frozen_ms: u64) {
        self.frozen_ms.fetch_max(frozen_ms, Ordering::Release);
        self.looked_ms.fetch_max(at.0, Ordering::Release);
    }

    /// Milliseconds in which the broker was frozen, as far as a mesh has noticed.
    pub(crate) fn frozen_ms(&self) -> u64 {
        self.frozen_ms.load(Ordering::Acquire)
    }

    /// How long this run has lasted, without freezes.
    pub(crate) fn uptime_ms(&self) -> u64 {
        // In this order, the reverse of `looked`: whoever sees a look also sees the freeze that it found.
        let looked = Millis(self.looked_ms.load(Ordering::Acquire));
        freeze::uptime_ms(self.clock.at(), looked, self.frozen_ms())
    }

    /// Both clocks as they are now, and whether they are believed.
    pub(crate) fn clocks(&self) -> (Now, Clocks) {
        let now = self.clock.now();
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.watch(now);
        (now, *clocks)
    }

    /// An operator says that the wall clock is right.
    pub(crate) fn confirm_clock(&self) {
        let now = self.clock.now();
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).confirm(now);
    }

    pub(crate) fn next_conn(&self) -> ConnId {
        ConnId(self.last_conn.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn next_operation(&self) -> OperateId {
        OperateId(self.last_operation.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// How the store is, as far as waiting writes tell.
    pub(crate) fn store_health(&self) -> StoreHealth {
        let lag_ms = match self.oldest_write.load(Ordering::Relaxed) {
            0 => 0,
            since => self.clock.at().since(Millis(since - 1)),
        };
        StoreHealth { kind: self.store_kind.to_owned(), lag_ms: U53::saturating(lag_ms) }
    }
}
