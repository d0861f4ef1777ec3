//! Counters and gauges of one broker, in a registry of its own: ten brokers in one test share nothing.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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
    pub(crate) sockets: Gauge,
    pub(crate) frames_in: Counter,
    pub(crate) frames_out: Counter,
    pub(crate) refused: Family<Kind, Counter>,
    pub(crate) events: Family<Kind, Counter>,
    pub(crate) commits: Counter,
    pub(crate) failed_commits: Counter,
    pub(crate) writes: Counter,
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
            sockets: Gauge::default(),
            frames_in: Counter::default(),
            frames_out: Counter::default(),
            refused: Family::default(),
            events: Family::default(),
            commits: Counter::default(),
            failed_commits: Counter::default(),
            writes: Counter::default(),
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
        r.register("sockets", "Open sockets, before and after hello", self.sockets.clone());
        r.register("frames_received", "Frames received", self.frames_in.clone());
        r.register("frames_sent", "Frames sent", self.frames_out.clone());
        r.register("refused", "Requests and sockets refused, by code", self.refused.clone());
        r.register("events", "Named events of the log, by name", self.events.clone());
        r.register("store_commits", "Transactions of the store", self.commits.clone());
        r.register("store_failed_commits", "Transactions that failed", self.failed_commits.clone());
        r.register("store_writes", "Writes in all transactions", self.writes.clone());
    }

    /// Counts one more of a named event.
    pub(crate) fn event(&self, kind: &'static str) {
        self.events.get_or_create(&Kind { kind }).inc();
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
