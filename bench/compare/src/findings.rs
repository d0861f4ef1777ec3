//! What a comparison found: every round of every case, as it goes into the JSON and from there into tables and plots.

use serde::Serialize;

use super::machine::Machine;
use super::peer::About;
use tenure_bench::report::round;
use tenure_bench::sample::{Sample, median, spread};

/// Everything.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Findings {
    pub(crate) measurement: &'static str,
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    pub(crate) stretch_seconds: f64,
    /// How long it took, and whether all that was asked for was measured.
    pub(crate) seconds: u64,
    pub(crate) complete: bool,
    pub(crate) machine: Machine,
    pub(crate) systems: Vec<System>,
    pub(crate) skipped: Vec<Skipped>,
    /// Workloads 1 to 3, and 7 in their processor seconds.
    pub(crate) series: Vec<Series>,
    /// Workload 4.
    pub(crate) idle: Vec<Idle>,
    /// Workload 5.
    pub(crate) storms: Vec<Storm>,
    /// Workload 6.
    pub(crate) recoveries: Vec<Recovery>,
    /// What we claim, and what was found of it.
    pub(crate) claims: Vec<Claim>,
}

/// A system that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct System {
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) client: String,
    pub(crate) durable: &'static str,
    pub(crate) syncs: bool,
    pub(crate) ack: &'static str,
    pub(crate) config: Vec<String>,
}

impl From<&About> for System {
    fn from(about: &About) -> System {
        let About { key, name, version, client, durable, syncs, ack, config, .. } = about.clone();
        System { key, name, version, client, durable, syncs, ack, config }
    }
}

/// A system that was not, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Skipped {
    pub(crate) key: &'static str,
    /// The workload, or nothing for all of them.
    pub(crate) workload: Option<&'static str>,
    pub(crate) why: String,
}

/// The workloads that are rounds of stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Durable publish to confirm.
    Publish,
    /// Publish, receive, ack.
    Flow,
    /// From when it was to be sent until it was confirmed, at a fixed rate.
    PacedConfirm,
    /// From when it was to be sent until it was received, at a fixed rate.
    PacedReceive,
}

/// One case of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Publishes under way, or messages a second at a fixed rate.
    pub(crate) load: usize,
    /// Who reads: `1:1`, `1:100`, `16 competing`; nothing where nobody does.
    pub(crate) readers: &'static str,
}

impl Case {
    /// A number of its own, for whatever should differ from case to case.
    pub(crate) fn seed(&self) -> usize {
        self.body + self.load + self.readers.len()
    }
}

/// All rounds of one system in one case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Series {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) system: &'static str,
    pub(crate) rounds: Vec<Stretch>,
    /// Rounds that failed, each with its reason.
    pub(crate) failures: Vec<String>,
}

/// One round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stretch {
    /// Which round it was, from 0 on; rounds that failed have numbers too.
    pub(crate) round: usize,
    pub(crate) count: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    /// Processor seconds of the server for a million.
    pub(crate) server_cpu: f64,
    /// Processor seconds of the load for a million.
    pub(crate) client_cpu: f64,
    /// The p50 of a sync alone, where this is the floor of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sync_ms: Option<f64>,
    /// Messages that were confirmed and did not come while anything still came.
    pub(crate) missing: u64,
    /// Messages that came more often than they should.
    pub(crate) doubled: u64,
}

impl Stretch {
    /// A stretch with what its processes spent in it, in seconds.
    pub(crate) fn new(sample: &Sample, server_cpu: f64, client_cpu: f64) -> Stretch {
        let million = sample.count.max(1) as f64 / 1e6;
        Stretch {
            round: 0,
            count: sample.count,
            per_second: round(sample.per_second, 1),
            p50_ms: round(sample.p50_ms, 3),
            p99_ms: enough(sample, 100, sample.p99_ms),
            p999_ms: enough(sample, 1_000, sample.p999_ms),
            server_cpu: round(server_cpu / million, 2),
            client_cpu: round(client_cpu / million, 2),
            sync_ms: None,
            missing: 0,
            doubled: 0,
        }
    }
}

/// A percentile, if there were `least` at all: of fewer it is only the slowest.
fn enough(sample: &Sample, least: u64, ms: f64) -> f64 {
    if sample.count < least { f64::NAN } else { round(ms, 3) }
}

impl Series {
    /// The median over rounds of what is picked.
    pub(crate) fn median(&self, pick: impl Fn(&Stretch) -> f64) -> f64 {
        median(self.rounds.iter().map(pick))
    }

    /// The smallest and the largest of what is picked.
    pub(crate) fn range(&self, pick: impl Fn(&Stretch) -> f64) -> (f64, f64) {
        self.rounds
            .iter()
            .map(pick)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    }

    /// How many times the smallest round the largest is.
    pub(crate) fn noise(&self) -> f64 {
        spread(self.rounds.iter().map(|stretch| stretch.per_second))
    }
}

/// What idle sessions cost a system.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Idle {
    pub(crate) system: &'static str,
    pub(crate) sessions: usize,
    pub(crate) what: &'static str,
    pub(crate) empty_bytes: u64,
    pub(crate) full_bytes: u64,
    pub(crate) bytes_per_session: f64,
    pub(crate) connect_seconds: f64,
    /// Of one core.
    pub(crate) idle_percent: f64,
    pub(crate) idle_seconds: f64,
}

/// How a crowd lost its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Break {
    /// Every socket was cut, the server lives.
    Cut,
    /// The server was killed with -9 and started again at once.
    Restart,
}

/// What a reconnect storm was like, over all its rounds.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Storm {
    pub(crate) system: &'static str,
    pub(crate) how: Break,
    pub(crate) sessions: usize,
    pub(crate) what: &'static str,
    /// All that were asked for: one that fails leaves no storm at all.
    pub(crate) rounds: usize,
    /// Medians over rounds.
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) last_ms: f64,
    /// Added up over rounds.
    pub(crate) never_back: u64,
    /// From before the first break to the end of all rounds, and how long after the last break that was.
    pub(crate) presence_events: Option<u64>,
    pub(crate) watched_seconds: f64,
    pub(crate) presence_by: &'static str,
    /// Messages to sessions that were confirmed in all rounds, and in the round with the fewest; nothing where there are
    /// none.
    pub(crate) confirmed: Option<u64>,
    pub(crate) confirmed_least: Option<u64>,
    /// Of all rounds, as it is at the end of them.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
}

/// How a system came back after a kill with a backlog.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recovery {
    pub(crate) system: &'static str,
    /// Messages that were confirmed before the first kill.
    pub(crate) confirmed: u64,
    /// Whether that is all that were asked for; slow ones are cut short.
    pub(crate) full: bool,
    pub(crate) fill_seconds: f64,
    /// Kills that were asked for; whichever had no publish confirmed ends the measurement.
    pub(crate) kills: usize,
    /// Messages that were confirmed after the first kill.
    pub(crate) confirmed_later: u64,
    /// Messages that came in the end, each counted once.
    pub(crate) came: u64,
    /// How many had come before one of the later kills to whoever read then.
    pub(crate) read_at_kills: u64,
    /// Of each kill, from the start of the new process until a new publish was confirmed.
    pub(crate) publish_ms: Vec<f64>,
    /// And until an old message was delivered; nothing where none came.
    pub(crate) deliver_ms: Vec<f64>,
    pub(crate) lost: u64,
    /// Came again although the ack was answered, or to a reader that nothing had happened to.
    pub(crate) doubled: u64,
    /// Came again after a break because nobody had answered the ack: allowed.
    pub(crate) again: u64,
    pub(crate) note: Option<String>,
}

/// Something that we say of ourselves, and whether this run bears it out.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    pub(crate) claim: String,
    pub(crate) found: String,
    pub(crate) holds: Option<bool>,
}

impl Findings {
    /// Notes a system, once.
    pub(crate) fn system(&mut self, about: &About) {
        if !self.systems.iter().any(|system| system.key == about.key) {
            self.systems.push(about.into());
        }
    }

    /// Notes why something was left out, once.
    pub(crate) fn skip(&mut self, key: &'static str, workload: Option<&'static str>, why: impl Into<String>) {
        let skipped = Skipped { key, workload, why: why.into() };
        if !self.skipped.contains(&skipped) {
            eprintln!(
                "{}{}: skipped: {}",
                key,
                workload.map_or(String::new(), |w| format!(", {w}")),
                skipped.why
            );
            self.skipped.push(skipped);
        }
    }

    /// Notes a round.
    pub(crate) fn round(&mut self, case: &Case, system: &'static str, found: anyhow::Result<Stretch>) {
        let at = self.series.iter().position(|series| series.case == *case && series.system == system);
        let at = at.unwrap_or_else(|| {
            let (rounds, failures) = (Vec::new(), Vec::new());
            self.series.push(Series { case: case.clone(), system, rounds, failures });
            self.series.len() - 1
        });
        let Some(series) = self.series.get_mut(at) else { return };
        match found {
            Ok(stretch) => {
                let round = series.rounds.len() + series.failures.len();
                series.rounds.push(Stretch { round, ..stretch });
            }
            Err(error) => {
                eprintln!("{system}, {case}: {error:#}");
                series.failures.push(format!("{error:#}"));
            }
        }
    }

    /// The series of a system in a case.
    pub(crate) fn series_of(&self, case: &Case, system: &str) -> Option<&Series> {
        let found = self.series.iter().find(|series| series.case == *case && series.system == system);
        found.filter(|series| !series.rounds.is_empty())
    }

    /// The cases of a workload, in order.
    pub(crate) fn cases(&self, workload: Workload) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for series in self.series.iter().filter(|series| series.case.workload == workload) {
            if !cases.contains(&series.case) {
                cases.push(series.case.clone());
            }
        }
        cases.sort();
        cases
    }

    /// A system's name for people.
    pub(crate) fn name(&self, key: &str) -> String {
        let found = self.systems.iter().find(|system| system.key == key);
        found.map_or_else(|| key.to_owned(), |system| system.name.to_owned())
    }

    /// Whether a system syncs before it confirms.
    pub(crate) fn syncs(&self, key: &str) -> bool {
        self.systems.iter().any(|system| system.key == key && system.syncs)
    }
}

/// A size as people say it.
pub(crate) fn size(bytes: usize) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) {
        format!("{} KiB", bytes / 1024)
    } else {
        format!("{bytes} B")
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = size(self.body);
        match self.workload {
            Workload::Publish => write!(f, "publish to confirm, {body}, {} outstanding", self.load),
            Workload::Flow => {
                write!(f, "publish, receive, ack, {body}, {}, {} in flight", self.readers, self.load)
            }
            Workload::PacedConfirm => write!(f, "{} a second to confirm, {body}", self.load),
            Workload::PacedReceive => write!(f, "{} a second to receive, {body}", self.load),
        }
    }
}
