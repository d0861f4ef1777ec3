//! `compare`: ourselves beside what people use today, in one run, with the floors that nothing can beat.
//!
//! What this is for: to find out where we are not ahead. Peers are started by the bench on loopback with data in a temporary
//! folder and the best fair configuration that we know, which is written down ([`peers`]); one that is not installed is
//! skipped with a line. Workloads: durable publish ([`publish`]), publish to receive to ack ([`flow`]), latency at a fixed
//! rate ([`paced`]), idle sessions ([`idle`]), reconnect storms ([`storm`]), a kill with a backlog ([`recovery`]).
//!
//! What it never does: bend a workload to a peer that has no equivalent, or hide a round. Every round is in the JSON;
//! tables and plots show medians and spreads; [`claims`] says what of our claims held.
//!
//! Where to read next: [`peer`] for what a workload asks of a system, [`findings`] for what comes out.

mod claims;
mod counting;
mod crowd;
mod figures;
mod findings;
mod flow;
mod idle;
mod machine;
mod paced;
mod page;
mod peer;
mod peers;
mod pipe;
mod plan;
mod plot;
mod publish;
mod recovery;
mod server;
mod storm;
mod systems;
mod table;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_bench::broker::BrokerArgs;
use tenure_bench::{floor, proc};
use tokio::signal::unix::{SignalKind, signal};

use findings::Findings;
use machine::Machine;
use peers::{Ground, Kind};
use plan::Plan;
use publish::Floors;
use systems::Systems;

/// As in `tenure`, so that the floors have nothing that it has not, and no less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure the `tenure` binary as it ships beside what people use today.
#[derive(Debug, clap::Parser)]
#[command(name = "tenure-compare", max_term_width = 100)]
enum Command {
    /// Ourselves beside NATS, RabbitMQ, Redis, Mosquitto, PostgreSQL, Socket.IO and ws, and the floors
    Compare(Box<Args>),
    /// The bare WebSocket server that others are compared with
    #[command(hide = true)]
    FloorServer(floor::Args),
}

fn main() -> ExitCode {
    tenure_bench::report_outcome(match <Command as clap::Parser>::parse() {
        Command::Compare(args) => tenure_bench::block_on(run(*args)),
        Command::FloorServer(args) => tenure_bench::block_on(floor::serve(args)),
    })
}

/// What to compare, and where to put what was found.
#[derive(Debug, clap::Args)]
struct Args {
    /// Less than ten minutes, with smaller numbers of everything
    #[arg(long)]
    quick: bool,
    /// Only these workloads: publish, flow, paced, idle, storm, recovery
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Only these systems, by name, such as tenure,nats-always,postgres
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    systems: Vec<String>,
    /// Rounds; figures are medians over them [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Seconds of each stretch [default: 0.6, quick 0.2]
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Publishes under way [default: 1,16,256,4096, quick 1,256,4096]
    #[arg(long, value_delimiter = ',')]
    outstanding: Vec<usize>,
    /// Bytes of bodies [default: 128,1024,16384, quick 1024]
    #[arg(long, value_delimiter = ',')]
    bodies: Vec<usize>,
    /// Sessions that are idle, cut off and restarted [default: 1,000 and 10,000; 10,000; 5,000]
    #[arg(long)]
    sessions: Option<usize>,
    /// Messages that nobody has read at a kill [default: 1,000,000]
    #[arg(long)]
    backlog: Option<u64>,
    /// What `cargo xtask bench setup` installed
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Write benchmarks.md and its images into this folder
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Between a hundredth of a second and an hour.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    let allowed = (0.01..=3600.0).contains(&seconds);
    allowed.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| "give 0.01 to 3600 seconds".to_owned())
}

/// The workloads by name.
const WORKLOADS: [&str; 6] = ["publish", "flow", "paced", "idle", "storm", "recovery"];

impl Args {
    fn plan(&self) -> Plan {
        let mut plan = if self.quick { Plan::quick() } else { Plan::full() };
        plan.rounds = self.rounds.map_or(plan.rounds, usize::from);
        if let Some(seconds) = self.seconds {
            plan.times.1 = seconds;
        }
        if !self.outstanding.is_empty() {
            plan.outstanding.clone_from(&self.outstanding);
        }
        if !self.bodies.is_empty() {
            plan.bodies.clone_from(&self.bodies);
            plan.flow_bodies.clone_from(&self.bodies);
        }
        if let Some(sessions) = self.sessions {
            plan.idle = vec![sessions];
            (plan.cut.0, plan.restart.0) = (sessions, sessions);
        }
        plan.backlog = self.backlog.unwrap_or(plan.backlog);
        plan
    }

    fn kinds(&self) -> Result<Vec<Kind>> {
        for name in &self.systems {
            if !Kind::ALL.iter().any(|kind| kind.key() == name) {
                let all = Kind::ALL.map(Kind::key).join(", ");
                bail!("there is no system `{name}`; there are {all}");
            }
        }
        let wanted =
            |kind: &Kind| self.systems.is_empty() || self.systems.iter().any(|name| name == kind.key());
        Ok(Kind::ALL.into_iter().filter(wanted).collect())
    }

    fn does(&self, workload: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == workload)
    }
}

/// Measures, prints and writes.
async fn run(args: Args) -> Result<()> {
    if let Some(name) = args.only.iter().find(|name| !WORKLOADS.contains(&name.as_str())) {
        bail!("there is no workload `{name}`; there are {}", WORKLOADS.join(", "));
    }
    let (plan, kinds) = (args.plan(), args.kinds()?);
    if ["idle", "storm"].iter().any(|workload| args.does(workload)) {
        let most = plan.idle.iter().copied().chain([plan.cut.0, plan.restart.0]).max();
        proc::check_files(most.unwrap_or(0) + 1)?;
    }
    let ground = Ground { broker: args.broker.clone(), peers: args.peers.clone() };
    let dir = args.broker.fresh_dir()?;
    let mut findings = Findings {
        measurement: "compare",
        quick: plan.quick,
        rounds: plan.rounds,
        stretch_seconds: plan.times.1.as_secs_f64(),
        machine: Machine::here(dir.path()),
        ..Findings::default()
    };
    check_places(&args)?;
    let began = Instant::now();
    // What is measured is dropped when it is stopped, and its servers with it; what was found until then is given.
    // Neither is resumed after it loses, so neither needs to be cancel-safe.
    let stop = tokio::select! {
        done = measure(&args, &plan, &kinds, &ground, dir, &mut findings) => {
            done?;
            findings.complete = args.only.is_empty() && args.systems.is_empty();
            None
        }
        signal = stopped() => Some(signal?),
    };
    findings.claims = claims::judge(&findings);
    findings.seconds = began.elapsed().as_secs();
    eprintln!("compared in {} s", findings.seconds);
    give(&args, &findings)?;
    if let Some(file) = &args.page {
        eprintln!("the page is {}", file.display());
    }
    match stop {
        Some(signal) => bail!("stopped by {signal}; what was found until then is above"),
        None => Ok(()),
    }
}

/// Waits for a signal to stop.
async fn stopped() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut hung_up = signal(SignalKind::hangup()).context("listen for signals")?;
    // All are cancel-safe: they only wait.
    tokio::select! {
        _ = hung_up.recv() => Ok("SIGHUP"),
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| "SIGINT").context("listen for signals"),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

async fn measure(
    args: &Args,
    plan: &Plan,
    kinds: &[Kind],
    ground: &Ground,
    dir: tempfile::TempDir,
    findings: &mut Findings,
) -> Result<()> {
    let floors = Floors::start(dir)?;
    let keeping: Vec<Kind> = kinds.iter().copied().filter(|kind| kind.keeps_messages()).collect();
    // Each workload has servers of its own, so that none pays for what another left behind; one that fails is said to
    // have, and the others go on.
    for workload in WORKLOADS.into_iter().filter(|workload| args.does(workload)) {
        let began = Instant::now();
        let done = match workload {
            "publish" => {
                let systems = Systems::start(&keeping, ground, findings).await;
                publish::run(plan, &systems, &floors, findings).await
            }
            "flow" => {
                let systems = Systems::start(&keeping, ground, findings).await;
                flow::run(plan, &systems, floors.dir(), findings).await
            }
            "paced" => {
                let wanted = |kind: &Kind| !(plan.quick && kind.is_second());
                let wanted: Vec<Kind> = keeping.iter().copied().filter(wanted).collect();
                let systems = Systems::start(&wanted, ground, findings).await;
                paced::run(plan, &systems, &floors, findings).await
            }
            "idle" => idle::run(plan, kinds, ground, findings).await,
            "storm" => storm::run(plan, kinds, ground, findings).await,
            _ => recovery::run(plan, kinds, ground, findings).await,
        };
        if let Err(error) = done {
            findings.skip("everybody", Some(workload), format!("{error:#}"));
        }
        eprintln!("{workload}: {} s", began.elapsed().as_secs());
        // A run of more than an hour must not lose it all to whatever ends it.
        findings.claims = claims::judge(findings);
        if let Err(error) = write(args, findings) {
            eprintln!("what was found until now is not written: {error:#}");
        }
    }
    Ok(())
}

/// Prints what was found, and writes it.
fn give(args: &Args, findings: &Findings) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(findings).context("spell the findings")?);
    } else {
        println!("{}", page::about(findings));
        for table in table::all(findings) {
            print!("{}", table.lines());
        }
    }
    write(args, findings)
}

/// Refuses places that cannot be written to: better now than after an hour.
fn check_places(args: &Args) -> Result<()> {
    if let Some(file) = &args.page {
        let opened = std::fs::File::options().append(true).create(true).open(file);
        opened.with_context(|| format!("the page cannot be written to {}", file.display()))?;
    }
    if let Some(dir) = &args.docs {
        std::fs::create_dir_all(dir)
            .and_then(|()| tempfile::tempfile_in(dir))
            .with_context(|| format!("the document cannot be written to {}", dir.display()))?;
    }
    Ok(())
}

/// Writes the page and the document where they are wanted.
fn write(args: &Args, findings: &Findings) -> Result<()> {
    if let Some(file) = &args.page {
        std::fs::write(file, page::html(findings)).with_context(|| format!("write {}", file.display()))?;
    }
    if let Some(dir) = &args.docs {
        page::document(findings, dir)?;
    }
    Ok(())
}
