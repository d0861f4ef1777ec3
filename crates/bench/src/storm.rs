//! `storm`: everybody loses their socket at once. How soon is everybody back, and did anybody notice?
//!
//! Twice: first the sockets are cut and the broker lives; then the broker is killed and started again at once.
//! The SDK waits up to a quarter of a second before its first dial (full jitter), and the broker checks three
//! signatures and makes one for each returning session: that is the floor.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::crypto::{self, Signatures};
use crate::fleet::{Attach, Fleet};
use crate::proc;
use crate::report::{Report, round};
use crate::watcher::{Sights, Watcher};

/// How long to wait for stragglers.
const PATIENCE: Duration = Duration::from_secs(180);
/// Attached for longer than this, a client has forgotten earlier failures and starts from its shortest wait.
const STEADY: Duration = Duration::from_secs(12);
/// How long after the last attach a late presence event would still be seen.
const AFTERMATH: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sessions whose sockets break
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Sessions that connect at a time, before the storm
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// How often the sockets are cut before the broker is killed
    #[arg(long, default_value_t = 1)]
    cuts: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// What a storm was like.
struct Storm {
    /// Milliseconds from the cut to each attach, in order.
    back_ms: Vec<f64>,
    outcomes: BTreeMap<&'static str, u64>,
    dials: u64,
    watcher: Sights,
    peers: usize,
    broker_cpu: f64,
    own_cpu: f64,
    wall: f64,
    /// How long the broker took to be ready again, where it was killed.
    ready_ms: Option<f64>,
}

/// Measures and prints.
pub(crate) async fn run(args: Args) -> Result<()> {
    proc::check_files(args.count + 1)?;
    let mut report = Report::new("storm");
    report.heading(format!("{} sessions, one watcher", args.count));
    report.figure("count", args.count, "intervals", args.broker.shown_intervals());
    let signatures = crypto::measure()?;
    floor(&mut report, &signatures, args.count);

    let mut broker = BrokerProcess::start(&args.broker)?;
    let mut fleet = Fleet::new(broker.url())?;
    eprintln!("connecting {} sessions", args.count);
    fleet.connect(args.count, args.concurrency).await?;
    let mut watcher = Watcher::start(&fleet).await?;
    for cut in 0..args.cuts {
        tokio::time::sleep(STEADY).await;
        eprintln!("cutting every socket");
        let storm = sever(&broker, &mut fleet, &mut watcher).await?;
        let key = if cut == 0 { "cut".to_owned() } else { format!("cut{}", cut + 1) };
        storm.report(&mut report, &key, "Every socket cut, the broker lives", &args, &signatures);
    }
    tokio::time::sleep(STEADY).await;
    eprintln!("killing the broker");
    let storm = crash(&mut broker, &mut fleet, &mut watcher).await?;
    storm.report(&mut report, "kill", "The broker killed and started again at once", &args, &signatures);
    report.print(args.json);
    Ok(())
}

fn floor(report: &mut Report, signatures: &Signatures, count: usize) {
    report.heading("Floor: signatures of one returning session, on one core");
    let mut one = |key: &str, us: f64, name: &str| {
        report.figure(key, round(us, 1), name, format!("{us:.0} µs"));
    };
    one("proofUs", signatures.proof_us, "verify the proof");
    one("tokenUs", signatures.token_us, "verify the resume token");
    one("attestationUs", signatures.attestation_us, "verify the attestation");
    one("issueUs", signatures.issue_us, "sign the next token");
    let all = signatures.total_us() * count as f64 / 1e6;
    report.figure("signatureSeconds", round(all, 2), "all sessions", format!("{all:.2} s"));
}

async fn sever(broker: &BrokerProcess, fleet: &mut Fleet, watcher: &mut Watcher) -> Result<Storm> {
    let meter = Meter::start(broker, fleet, watcher)?;
    let cut = Instant::now();
    for session in &fleet.sessions {
        session.sever().await;
    }
    let attaches = fleet.attaches(fleet.sessions.len(), PATIENCE).await?;
    meter.stop(broker, fleet, watcher, cut, &attaches, None).await
}

async fn crash(broker: &mut BrokerProcess, fleet: &mut Fleet, watcher: &mut Watcher) -> Result<Storm> {
    let meter = Meter { broker_cpu: 0.0, ..Meter::start(broker, fleet, watcher)? };
    let cut = Instant::now();
    let ready = tokio::task::block_in_place(|| broker.crash_and_restart())?;
    let attaches = fleet.attaches(fleet.sessions.len(), PATIENCE).await?;
    meter.stop(broker, fleet, watcher, cut, &attaches, Some(ready)).await
}

/// Readings from before a storm.
struct Meter {
    broker_cpu: f64,
    own_cpu: f64,
    waits: u64,
    sights: Sights,
}

impl Meter {
    fn start(broker: &BrokerProcess, fleet: &Fleet, watcher: &Watcher) -> Result<Meter> {
        Ok(Meter {
            broker_cpu: proc::cpu_seconds(broker.pid())?,
            own_cpu: proc::cpu_seconds(std::process::id())?,
            waits: fleet.waits(),
            sights: *watcher.sights.borrow(),
        })
    }

    async fn stop(
        self,
        broker: &BrokerProcess,
        fleet: &Fleet,
        watcher: &mut Watcher,
        cut: Instant,
        attaches: &[Attach],
        ready: Option<Duration>,
    ) -> Result<Storm> {
        let wall = cut.elapsed().as_secs_f64();
        let broker_cpu = proc::cpu_seconds(broker.pid())? - self.broker_cpu;
        let own_cpu = proc::cpu_seconds(std::process::id())? - self.own_cpu;
        tokio::time::sleep(AFTERMATH).await;
        let mut back_ms: Vec<f64> =
            attaches.iter().map(|a| a.at.saturating_duration_since(cut).as_secs_f64() * 1000.0).collect();
        back_ms.sort_by(f64::total_cmp);
        let mut outcomes = BTreeMap::new();
        for attach in attaches {
            *outcomes.entry(attach.outcome()).or_default() += 1;
        }
        Ok(Storm {
            back_ms,
            outcomes,
            dials: fleet.waits() - self.waits,
            watcher: watcher.sights.borrow().since(self.sights),
            peers: watcher.session.peers(false).await.context("list the peers")?.len(),
            broker_cpu,
            own_cpu,
            wall,
            ready_ms: ready.map(|ready| ready.as_secs_f64() * 1000.0),
        })
    }
}

impl Storm {
    fn report(&self, report: &mut Report, key: &str, title: &str, args: &Args, signatures: &Signatures) {
        report.heading(title);
        if let Some(ms) = self.ready_ms {
            report.millis(&format!("{key}ReadyMs"), ms, "broker ready again");
        }
        for (name, share, shown) in [
            ("First", 0.0, "first back"),
            ("P50", 0.5, "p50"),
            ("P95", 0.95, "p95"),
            ("Last", 1.0, "last back"),
        ] {
            report.millis(&format!("{key}{name}Ms"), percentile(&self.back_ms, share), shown);
        }
        let missing = args.count.saturating_sub(self.back_ms.len()) as u64;
        report.count(&format!("{key}Missing"), missing, "never back");
        let outcomes: Vec<String> = self.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect();
        report.figure(
            &format!("{key}Outcomes"),
            serde_json::json!(self.outcomes),
            "outcomes",
            outcomes.join(", "),
        );
        report.count(&format!("{key}Dials"), self.dials, "dials");
        let Sights { joined, left, updated } = self.watcher;
        report.figure(
            &format!("{key}Watcher"),
            serde_json::json!({"joined": joined, "left": left, "updated": updated}),
            "watcher saw",
            format!("{joined} joined, {left} left, {updated} updated"),
        );
        report.count(&format!("{key}Peers"), self.peers as u64, "peers listed afterwards");
        let floor = signatures.total_us() * args.count as f64 / 1e6;
        report.figure(
            &format!("{key}BrokerCpuSeconds"),
            round(self.broker_cpu, 2),
            "broker CPU",
            format!(
                "{:.2} s: {:.1} × the signatures, {:.0} µs a session",
                self.broker_cpu,
                self.broker_cpu / floor,
                self.broker_cpu * 1e6 / args.count as f64
            ),
        );
        report.figure(
            &format!("{key}OwnCpuSeconds"),
            round(self.own_cpu, 2),
            "the sessions' own CPU",
            format!("{:.2} s", self.own_cpu),
        );
        let cores = (self.broker_cpu + self.own_cpu) / self.wall;
        report.figure(
            &format!("{key}CoresBusy"),
            round(cores, 2),
            "cores that both kept busy",
            format!("{cores:.2} over {:.2} s", self.wall),
        );
    }
}

/// The smallest value that `share` of the sorted values do not exceed.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let sorted: Vec<f64> = (1..=20).map(f64::from).collect();
        let at = |share| percentile(&sorted, share);
        assert_eq!([at(0.0), at(0.5), at(0.95), at(1.0)], [1.0, 10.0, 19.0, 20.0]);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
