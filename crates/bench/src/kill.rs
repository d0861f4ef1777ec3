//! `kill`: an accepted message is never lost and reaches its reader once, shown by killing the broker, again and
//! again, at any instant, under load.
//!
//! Senders send messages with known ids to inboxes and to a topic that a crew reads; the broker is killed with -9
//! and started again; nobody else is. Every accept that a sender was told of, and every message that an application
//! was given, is written to a file of its own before anything else happens to it. When all is settled these two
//! files are compared with each other, with what the broker's history says, and with the store's own check.
//!
//! Where to read next: [`crew`] for who sends and reads, [`record`] for the files, [`verdict`] for the comparison.

mod crew;
mod record;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_store::{Sqlite, Store};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::ids::Dice;
use crew::Crew;
use record::Record;
use verdict::Verdict;

/// How long after the last kill nothing may happen before what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long to look for doubles once all is settled.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(50);

/// How to kill.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How often the broker is killed
    #[arg(long, default_value_t = 100)]
    pub cycles: u64,
    /// The earliest and latest kill after the broker is ready, in ms
    #[arg(long, value_name = "MIN,MAX", value_delimiter = ',', num_args = 1, default_value = "50,1500")]
    pub after_ms: Vec<u64>,
    /// Sending sessions
    #[arg(long, default_value_t = 4)]
    pub senders: usize,
    /// Sends that each has outstanding
    #[arg(long, default_value_t = 16)]
    pub window: usize,
    /// Sends a second, all together, at most
    #[arg(long, default_value_t = 4_000)]
    pub rate: u64,
    /// Sessions that read their inbox
    #[arg(long, default_value_t = 4)]
    pub inboxes: usize,
    /// Sessions that share a topic's work
    #[arg(long, default_value_t = 3)]
    pub crew: usize,
    /// How the broker is started
    #[command(flatten)]
    pub broker: BrokerArgs,
}

impl Args {
    /// A short run with little load, for a test: so many kills of this binary, with data in this directory.
    pub fn small(binary: PathBuf, dir: PathBuf, cycles: u64) -> Args {
        Args {
            cycles,
            after_ms: vec![50, 1_500],
            senders: 2,
            window: 4,
            rate: 300,
            inboxes: 2,
            crew: 2,
            broker: BrokerArgs::with(binary, dir),
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How often the broker was killed.
    pub cycles: u64,
    /// Accepts that senders were told of.
    pub accepted: u64,
    /// How many of them never reached their inbox or crew.
    pub lost: u64,
    /// Messages that an inbox or crew was given more than once.
    pub doubled: u64,
    /// Whatever else was wrong, each said on stderr: history, order, bodies, the store's check.
    pub wrong: u64,
}

impl Outcome {
    /// Whether all promises were kept.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.wrong == 0
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { cycles, accepted, lost, doubled, .. } = self;
        write!(f, "cycles {cycles}, accepted {accepted}, lost {lost}, doubled {doubled}")
    }
}

/// Kills and compares.
pub async fn run(args: &Args) -> Result<Outcome> {
    let &[min, max] = args.after_ms.as_slice() else { bail!("--after-ms takes two numbers: MIN,MAX") };
    let dir = args.broker.fresh_dir()?;
    let record = Arc::new(Record::create(dir.path())?);
    let mut broker = BrokerProcess::start(&args.broker)?;
    let crew = Crew::start(args, &broker.url(), &record).await?;
    let mut dice = Dice::new(7);
    for cycle in 1..=args.cycles {
        let after = dice.within(min..max + 1);
        tokio::time::sleep(Duration::from_millis(after)).await;
        let ready = tokio::task::block_in_place(|| -> Result<Duration> {
            broker.kill()?;
            broker.start_again()
        })?;
        eprintln!(
            "cycle {cycle} of {}: killed after {after} ms, ready again in {} ms; {} accepted, {} received",
            args.cycles,
            ready.as_millis(),
            record.accepted.count(),
            record.received.count()
        );
        crew.is_well()?;
    }
    let settled = settle(&crew, &record).await;
    let mut verdict = Verdict::of(&record)?;
    if let Err(error) = settled {
        verdict.complain(format!("not everything was settled: {error:#}"));
    }
    verdict.check_history(&crew).await?;
    for complaint in crew.complaints() {
        verdict.complain(complaint);
    }
    crew.say_numbers();
    broker.kill()?;
    for finding in tokio::task::block_in_place(|| check(&broker))? {
        verdict.complain(format!("the store's check: {finding}"));
    }
    if !verdict.is_good() {
        eprintln!("the record stays in {}", dir.keep().display());
    }
    Ok(verdict.outcome(args.cycles))
}

/// Waits until everything accepted was received and settled; fails when nothing has moved for a while.
async fn settle(crew: &Crew, record: &Record) -> Result<()> {
    crew.stop_sending(PATIENCE).await?;
    let (mut moved, mut seen) = (Instant::now(), 0);
    loop {
        let received = record.received.count();
        let waiting = crew.waiting();
        // Readers settle what they were given at once; what the broker still counts is on its way to them.
        if received >= record.accepted.count() && waiting == 0 && crew.depth().await? == 0 {
            break;
        }
        if received + waiting != seen {
            (moved, seen) = (Instant::now(), received + waiting);
        }
        if moved.elapsed() > PATIENCE {
            let depth = crew.depth().await?;
            bail!("{received} received, {waiting} not settled, {depth} waiting at the broker");
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(AFTERMATH).await;
    Ok(())
}

fn check(broker: &BrokerProcess) -> Result<Vec<String>> {
    let mut store = Sqlite::open(broker.data_dir()).context("open the store of the killed broker")?;
    store.check().context("check the store")
}
