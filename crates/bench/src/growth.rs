//! `growth`: what ten million stored messages cost. Accepts with an empty store and with a full one, interleaved,
//! and how long a start takes with a shared group that is a million messages behind.

use std::time::Duration;

use anyhow::Result;

use crate::accept::{self, Stack, TOPIC};
use crate::broker::{BrokerArgs, BrokerProcess};
use crate::load::{SOCKETS, Template};
use crate::proc;
use crate::report::{Cell, Report};
use crate::sample::{median, spread};
use crate::stored::Preload;

/// How long each stretch runs before it counts.
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Messages that are stored
    #[arg(long, default_value_t = 10_000_000)]
    stored: u64,
    /// How many of them a shared group has not settled
    #[arg(long, default_value_t = 1_000_000)]
    unsettled: u64,
    /// How many of those are in somebody's hands
    #[arg(long, default_value_t = 10_000)]
    claims: u64,
    /// How many senders, each with one send outstanding at a time
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    senders: Vec<usize>,
    /// Seconds of each stretch
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; figures are medians over them, and disks are noisy
    #[arg(long, default_value_t = 16)]
    rounds: usize,
    /// Starts of each kind
    #[arg(long, default_value_t = 5)]
    starts: usize,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 512)]
    body: usize,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let template = Template::new(TOPIC, args.body)?;
    let times = (WARM_UP, Duration::from_secs_f64(args.seconds));
    let dir = args.broker.fresh_dir()?;
    eprintln!("storing {} messages", args.stored);
    let Args { unsettled, claims, body, .. } = *args;
    let preload = Preload { messages: args.stored, crew: true, unsettled, claims, body, senders: SOCKETS };
    let began = std::time::Instant::now();
    preload.fill(dir.path(), TOPIC)?;
    // The other has the same group, so that what is stored is all that differs.
    let bare = args.broker.fresh_dir()?;
    Preload { messages: 0, unsettled: 0, claims: 0, ..preload }.fill(bare.path(), TOPIC)?;
    // What was filled in must not still be on its way to the disk when we measure.
    std::fs::File::open(dir.path().join("tenure.db"))?.sync_all()?;
    let filled = began.elapsed();
    let bytes = std::fs::metadata(dir.path().join("tenure.db"))?.len();

    let mut empty = BrokerProcess::start_on(&args.broker, bare)?;
    let mut full = BrokerProcess::start_on(&args.broker, dir)?;
    let mut report = Report::new("growth");
    report.heading(format!(
        "{} messages stored by {SOCKETS} members in one topic, {unsettled} of them unsettled by a shared group, \
         {claims} in somebody's hands",
        args.stored
    ));
    report.figure("fillSeconds", filled.as_secs(), "filled in", format!("{} s", filled.as_secs()));
    report.size("fileBytes", bytes, "the file");
    starts(&mut report, args, &mut empty, &mut full)?;

    let mut rows = Vec::new();
    for senders in args.senders.iter().copied() {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 1..=args.rounds {
            // Each goes first as often as the other: what one leaves to be written back slows the one after it.
            for turn in [round % 2 == 0, round % 2 != 0] {
                let (broker, found) = if turn { (&full, &mut with) } else { (&empty, &mut without) };
                found.push(accept::stack(broker, &template, senders, times)?);
            }
            eprintln!("round {round}, {senders} senders");
        }
        rows.push(row(senders, &without, &with));
    }
    report.heading("Accepts with an empty store and with the full one, interleaved");
    let columns = [
        ("senders", "senders"),
        ("emptyPerSecond", "empty /s"),
        ("emptyNoise", "noise"),
        ("fullPerSecond", "full /s"),
        ("fullNoise", "noise"),
        ("rateRatio", "full/empty"),
        ("emptyP50Ms", "empty p50 ms"),
        ("fullP50Ms", "full p50 ms"),
        ("emptyP99Ms", "empty p99 ms"),
        ("fullP99Ms", "full p99 ms"),
        ("p50Ratio", "p50 full/empty"),
        ("writerRatio", "writer CPU full/empty"),
    ];
    report.grid("accepts", &columns, &rows);
    report.print(args.json);
    Ok(())
}

/// How long it takes from the start of the process to its ready line, after a kill and after being stopped.
fn starts(
    report: &mut Report,
    args: &Args,
    empty: &mut BrokerProcess,
    full: &mut BrokerProcess,
) -> Result<()> {
    report.heading("From the start of the process to its ready line, after a kill -9");
    for (broker, key, name) in [(empty, "empty", "empty store"), (full, "full", "full store")] {
        let mut ready = Vec::new();
        for _ in 0..args.starts {
            broker.kill()?;
            ready.push(broker.start_again()?.as_secs_f64() * 1_000.0);
        }
        let shown =
            format!("{:.0} ms, noise {:.2}", median(ready.iter().copied()), spread(ready.iter().copied()));
        report.figure(&format!("{key}ReadyMs"), median(ready), name, shown);
        let rss = proc::rss_bytes(broker.pid())?;
        report.size(&format!("{key}ReadyRssBytes"), rss, &format!("memory when ready, {name}"));
    }
    Ok(())
}

fn row(senders: usize, without: &[Stack], with: &[Stack]) -> Vec<Cell> {
    let of =
        |stacks: &[Stack], pick: &dyn Fn(&Stack) -> f64| -> Vec<f64> { stacks.iter().map(pick).collect() };
    let rate = |stack: &Stack| stack.sample.per_second;
    let (p50, p99) = (|stack: &Stack| stack.sample.p50_ms, |stack: &Stack| stack.sample.p99_ms);
    let writer = |stack: &Stack| {
        stack.broker_cpu.get("tenure-writer").copied().unwrap_or(f64::NAN) / stack.sample.count.max(1) as f64
    };
    let ratio = |pick: &dyn Fn(&Stack) -> f64| {
        median(without.iter().zip(with).map(|(without, with)| pick(with) / pick(without)))
    };
    vec![
        Cell::count(senders as f64),
        Cell::count(median(of(without, &rate))),
        Cell::number(spread(of(without, &rate)), 2),
        Cell::count(median(of(with, &rate))),
        Cell::number(spread(of(with, &rate)), 2),
        Cell::share(ratio(&rate)),
        Cell::number(median(of(without, &p50)), 2),
        Cell::number(median(of(with, &p50)), 2),
        Cell::number(median(of(without, &p99)), 2),
        Cell::number(median(of(with, &p99)), 2),
        Cell::number(ratio(&p50), 2),
        Cell::number(ratio(&writer), 2),
    ]
}
