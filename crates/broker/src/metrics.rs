//! Counters and gauges of one broker, in a registry of its own: ten brokers in one test share nothing.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tenure_mesh::effect::Answer;
use tenure_proto::error::WireError;

/// The named thing that happened; never an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Kind {
    pub(crate) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Counters and gauges of one broker.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) sessions: Gauge,
    pub(crate) online: Gauge,
    pub(crate) runs: Gauge,
    pub(crate) services: Gauge,
    pub(crate) sockets: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) buffered: Gauge,
    let_go: Family<Kind, Counter>,
    pub(crate) relay_streams: Gauge,
    pub(crate) frames_in: Counter,
    pub(crate) frames_out: Counter,
    pub(crate) refused: Family<Kind, Counter>,
    pub(crate) events: Family<Kind, Counter>,
    pub(crate) lost: Family<Kind, Counter>,
    resumes: Family<Kind, Counter>,
    reconciled: Family<Kind, Counter>,
    pub(crate) commits: Counter,
    pub(crate) failed_commits: Counter,
    pub(crate) writes: Counter,
    pub(crate) reads: Counter,
    pub(crate) failed_reads: Counter,
    pub(crate) log_pages: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) accepted_bytes: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) deliveries: Counter,
    pub(crate) redeliveries: Counter,
    pub(crate) settles: Counter,
    pub(crate) stale_settles: Counter,
    pub(crate) requeued: Counter,
    pub(crate) buried: Counter,
    pub(crate) damaged: Counter,
    pub(crate) violations: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("tenure");
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "The version that runs", build);
        let mut metrics = Metrics {
            registry,
            sessions: Gauge::default(),
            online: Gauge::default(),
            runs: Gauge::default(),
            services: Gauge::default(),
            sockets: Gauge::default(),
            connections: Gauge::default(),
            buffered: Gauge::default(),
            let_go: Family::default(),
            relay_streams: Gauge::default(),
            frames_in: Counter::default(),
            frames_out: Counter::default(),
            refused: Family::default(),
            events: Family::default(),
            lost: Family::default(),
            resumes: Family::default(),
            reconciled: Family::default(),
            commits: Counter::default(),
            failed_commits: Counter::default(),
            writes: Counter::default(),
            reads: Counter::default(),
            failed_reads: Counter::default(),
            log_pages: Gauge::default(),
            accepted: Counter::default(),
            accepted_bytes: Counter::default(),
            duplicates: Counter::default(),
            conflicts: Counter::default(),
            deliveries: Counter::default(),
            redeliveries: Counter::default(),
            settles: Counter::default(),
            stale_settles: Counter::default(),
            requeued: Counter::default(),
            buried: Counter::default(),
            damaged: Counter::default(),
            violations: Counter::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("sessions", "Living leases", self.sessions.clone());
        r.register("sessions_online", "Living leases that a socket carries", self.online.clone());
        r.register("runs", "Runs that have not ended", self.runs.clone());
        r.register("services", "Names of services that are held", self.services.clone());
        r.register("sockets", "Open sockets, before and after hello", self.sockets.clone());
        let connections = self.connections.clone();
        r.register("connections", "Accepted connections of all kinds, when this is asked", connections);
        let buffered = self.buffered.clone();
        let help = "What waits for clients, and what requests hold, in all sockets when this is asked";
        r.register_with_unit("buffered", help, Unit::Bytes, buffered);
        let help = "Connections let go for the sake of the others, by what was short: room or buffers";
        r.register("connections_let_go", help, self.let_go.clone());
        r.register(
            "relay_streams",
            "Streams to services that are open or opening",
            self.relay_streams.clone(),
        );
        r.register("frames_received", "Frames received", self.frames_in.clone());
        r.register("frames_sent", "Frames sent", self.frames_out.clone());
        r.register("refused", "Requests and sockets refused, by code", self.refused.clone());
        r.register("events", "Named events of the log, by name", self.events.clone());
        r.register("sockets_lost", "Sockets that left a lease in grace, by why", self.lost.clone());
        r.register("attaches", "Hellos that were taken, by what became of their token", self.resumes.clone());
        r.register("reconciled", "Reconciled subscriptions, by action", self.reconciled.clone());
        r.register("store_commits", "Transactions of the store", self.commits.clone());
        r.register("store_failed_commits", "Transactions that failed", self.failed_commits.clone());
        r.register("store_writes", "Writes in all transactions", self.writes.clone());
        r.register("store_reads", "Reads beside the writer", self.reads.clone());
        r.register("store_failed_reads", "Reads that failed", self.failed_reads.clone());
        r.register(
            "store_log_pages",
            "Pages of the write-ahead log at the last look",
            self.log_pages.clone(),
        );
        self.register_messages();
    }

    fn register_messages(&mut self) {
        let r = &mut self.registry;
        r.register("messages_accepted", "Messages accepted for the first time", self.accepted.clone());
        let bytes = self.accepted_bytes.clone();
        r.register_with_unit("message_bodies_accepted", "Bytes of their bodies", Unit::Bytes, bytes);
        r.register("messages_duplicate", "Sends of what had been accepted before", self.duplicates.clone());
        r.register("messages_conflicting", "Sends under another message's id", self.conflicts.clone());
        r.register("deliveries", "Messages pushed to or fetched by readers", self.deliveries.clone());
        r.register("redeliveries", "Those that somebody may have seen before", self.redeliveries.clone());
        r.register("settles", "Tags of ack, nack and progress that took effect", self.settles.clone());
        r.register("stale_settles", "Tags that did not", self.stale_settles.clone());
        r.register(
            "deliveries_requeued",
            "Deliveries taken back from readers that went away",
            self.requeued.clone(),
        );
        r.register("dead_letters", "Entries that went to the dead letters", self.buried.clone());
        r.register("entries_damaged", "Entries that do not match their checksum", self.damaged.clone());
        let violations = self.violations.clone();
        let help = "Findings of store checks: an entry or its dedupe record without the other";
        r.register("atomicity_violations", help, violations);
    }

    /// Counts what an answer says.
    pub(crate) fn answered(&self, outcome: &Result<Answer, WireError>) {
        match outcome {
            Err(error) => self.refusal(error.code.as_str()),
            Ok(Answer::Settle(result)) => {
                self.settles.inc_by(result.settled.len() as u64);
                self.stale_settles.inc_by(result.stale.len() as u64);
            }
            Ok(Answer::Fetch(pushes)) => {
                self.deliveries.inc_by(pushes.len() as u64);
                self.redeliveries.inc_by(pushes.iter().filter(|push| push.redelivered).count() as u64);
            }
            Ok(_) => {}
        }
    }

    /// Counts one more of a named event.
    pub(crate) fn event(&self, kind: &'static str) {
        self.events.get_or_create(&Kind { kind }).inc();
    }

    /// Counts one more socket that left its lease in grace.
    pub(crate) fn lost(&self, kind: &'static str) {
        self.lost.get_or_create(&Kind { kind }).inc();
    }

    /// Counts connections that were let go because there was too little of something.
    pub(crate) fn let_go(&self, kind: &'static str, count: u64) {
        self.let_go.get_or_create(&Kind { kind }).inc_by(count);
    }

    /// Counts one more hello that was taken, by what became of its token.
    pub(crate) fn resume(&self, kind: &'static str) {
        self.resumes.get_or_create(&Kind { kind }).inc();
    }

    /// Counts subscriptions of a reconciliation.
    pub(crate) fn reconciled(&self, kind: &'static str, count: usize) {
        self.reconciled.get_or_create(&Kind { kind }).inc_by(count as u64);
    }

    /// Counts one more refusal.
    pub(crate) fn refusal(&self, kind: &'static str) {
        self.refused.get_or_create(&Kind { kind }).inc();
    }

    /// All of it in the text format.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
