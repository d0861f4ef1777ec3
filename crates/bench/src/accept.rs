//! `accept`: durable accepts a second, beside three floors that are measured in the same run.
//!
//! A sender has one send outstanding at a time. The whole stack is the `tenure` binary with its embedded store; an
//! answer means that the message is synced to the disk. The floors: the same bytes appended to a file with one
//! sync for each batch; the broker's store without sockets, batched as the broker's writer batches; and a bare
//! WebSocket server that answers frames of the same sizes to the same client. Rounds of all four are interleaved,
//! and what is printed are medians over rounds.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tenure_store::{Checkpointer, Sqlite};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::commit::{self, Floor};
use crate::floor::EchoServer;
use crate::load::{self, SOCKETS, Target, Template};
use crate::proc;
use crate::report::{Cell, Report};
use crate::sample::{Sample, median, spread};
use crate::stored::{Maker, Preload};

/// The topic that all sends go to; nobody reads it.
pub(crate) const TOPIC: &str = "load";
/// How long each stretch runs before it counts.
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many senders, each with one send outstanding at a time
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,512,4096")]
    senders: Vec<usize>,
    /// Seconds of each stretch
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 512)]
    body: usize,
    /// Messages that the topic holds before the broker starts
    #[arg(long, default_value_t = 0)]
    stored: u64,
    /// Measure the whole stack only
    #[arg(long)]
    no_floors: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// One stretch of the whole stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    pub(crate) sample: Sample,
    /// How long it was.
    pub(crate) seconds: f64,
    /// Processor seconds of the broker, by thread.
    pub(crate) broker_cpu: BTreeMap<String, f64>,
    pub(crate) own_cpu: f64,
    /// Writes in one commit, on average.
    batch: f64,
    /// What else was counted.
    pub(crate) probed: u64,
}

/// All rounds of one number of senders.
#[derive(Debug, Default)]
struct Step {
    raw: Vec<Floor>,
    store: Vec<Floor>,
    echo: Vec<Sample>,
    echo_cpu: Vec<f64>,
    stack: Vec<Stack>,
}

/// What the floors need for all rounds.
struct Floors {
    dir: TempDir,
    store: Sqlite,
    checkpointer: Box<dyn Checkpointer>,
    echo: EchoServer,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let template = Template::new(TOPIC, args.body)?;
    let times = (WARM_UP, Duration::from_secs_f64(args.seconds));
    let dir = args.broker.fresh_dir()?;
    if args.stored > 0 {
        eprintln!("storing {} messages", args.stored);
        let senders = args.senders.iter().copied().max().unwrap_or(1).min(SOCKETS);
        let preload =
            Preload { messages: args.stored, crew: false, unsettled: 0, claims: 0, body: args.body, senders };
        preload.fill(dir.path(), TOPIC)?;
    }
    let broker = BrokerProcess::start_on(&args.broker, dir)?;
    let mut floors = if args.no_floors { None } else { Some(Floors::new(args)?) };
    let mut steps: Vec<Step> = args.senders.iter().map(|_| Step::default()).collect();
    for round in 1..=args.rounds {
        for (senders, step) in args.senders.iter().copied().zip(&mut steps) {
            if let Some(floors) = &mut floors {
                floors.measure(step, &template, senders, args.body, times)?;
            }
            let stack = stack(&broker, &template, senders, times)?;
            eprintln!("round {round}, {senders} senders: {:.0} accepts/s", stack.sample.per_second);
            step.stack.push(stack);
        }
    }
    report(args, &template, &steps)?.print(args.json);
    Ok(())
}

/// One stretch against the broker.
pub(crate) fn stack(
    broker: &BrokerProcess,
    template: &Template,
    senders: usize,
    times: (Duration, Duration),
) -> Result<Stack> {
    stack_with(broker, template, senders, times, &|| 0)
}

/// One stretch against the broker, over which something else is counted too.
pub(crate) fn stack_with(
    broker: &BrokerProcess,
    template: &Template,
    senders: usize,
    times: (Duration, Duration),
    probe: &dyn Fn() -> u64,
) -> Result<Stack> {
    let us = std::process::id();
    let read = || -> Result<_> { Ok((proc::threads(broker.pid())?, proc::threads(us)?, probe())) };
    let counted = || -> Result<_> {
        Ok((broker.metric("tenure_store_writes_total")?, broker.metric("tenure_store_commits_total")?))
    };
    let (writes, commits) = counted()?;
    let (mut before, mut after) = (None, None);
    let target = Target::Broker(broker.address());
    let sample = load::drive(
        target,
        template,
        senders,
        times,
        || {
            before = Some(read()?);
            Ok(())
        },
        || {
            after = Some(read()?);
            Ok(())
        },
    )?;
    let (before, after) = before.zip(after).context("the stretch was not measured")?;
    let mut broker_cpu = after.0;
    for (name, spent) in &mut broker_cpu {
        *spent -= before.0.get(name).copied().unwrap_or(0.0);
    }
    let own_cpu = after.1.values().sum::<f64>() - before.1.values().sum::<f64>();
    let (later_writes, later_commits) = counted()?;
    let batch = (later_writes - writes) as f64 / (later_commits - commits).max(1) as f64;
    let probed = after.2 - before.2;
    Ok(Stack { sample, seconds: times.1.as_secs_f64(), broker_cpu, own_cpu, batch, probed })
}

impl Floors {
    fn new(args: &Args) -> Result<Floors> {
        let dir = args.broker.fresh_dir()?;
        let (store, checkpointer) = commit::open(&dir.path().join("store"))?;
        let echo = EchoServer::start(load::answer_len(TOPIC)?)?;
        Ok(Floors { dir, store, checkpointer, echo })
    }

    fn measure(
        &mut self,
        step: &mut Step,
        template: &Template,
        senders: usize,
        body: usize,
        times: (Duration, Duration),
    ) -> Result<()> {
        step.raw.push(commit::raw(self.dir.path(), template.payload_len(), senders, times)?);
        let mut maker = Maker::new(&mut self.store, TOPIC, body, senders.min(SOCKETS))?;
        let checkpointer = &mut *self.checkpointer;
        step.store.push(commit::store(&mut self.store, checkpointer, &mut maker, senders, times)?);
        let pid = self.echo.pid();
        let (mut before, mut after) = (0.0, 0.0);
        let cpu = || -> Result<f64> { Ok(proc::threads(pid)?.values().sum()) };
        let target = Target::Echo(&self.echo.address, "/");
        let sample = load::drive(
            target,
            template,
            senders,
            times,
            || {
                before = cpu()?;
                Ok(())
            },
            || {
                after = cpu()?;
                Ok(())
            },
        )?;
        step.echo_cpu.push(per_100k(after - before, sample.count));
        step.echo.push(sample);
        Ok(())
    }
}

/// Processor seconds for a hundred thousand.
fn per_100k(seconds: f64, count: u64) -> f64 {
    seconds / count.max(1) as f64 * 1e5
}

fn report(args: &Args, template: &Template, steps: &[Step]) -> Result<Report> {
    let mut report = Report::new("accept");
    report.heading(format!(
        "Durable accepts: bodies of {} bytes, MessagePack, synced before the answer, one topic without readers",
        args.body
    ));
    report.say(format!(
        "N senders with one send outstanding each, spread over min(N, {SOCKETS}) sockets, each socket a member; \
         {} messages stored before",
        args.stored
    ));
    report.say(format!(
        "requests of {} bytes, answers of {}; medians of {} rounds of {} s, all four kinds interleaved; \
         noise is the largest round over the smallest",
        template.payload_len(),
        load::answer_len(TOPIC)?,
        args.rounds,
        args.seconds
    ));
    stack_table(&mut report, args, steps);
    if !args.no_floors {
        floor_table(&mut report, args, steps);
        lone(&mut report, args, steps);
    }
    thread_table(&mut report, args, steps);
    Ok(report)
}

fn stack_table(report: &mut Report, args: &Args, steps: &[Step]) {
    report.heading("Whole stack");
    let columns = [
        ("senders", "senders"),
        ("perSecond", "accepts/s"),
        ("noise", "noise"),
        ("p50Ms", "p50 ms"),
        ("p99Ms", "p99 ms"),
        ("p999Ms", "p99.9 ms"),
        ("writesPerCommit", "writes/commit"),
        ("brokerCpuPer100k", "broker CPU s/100k"),
        ("loadCpuPer100k", "load CPU s/100k"),
    ];
    let rows: Vec<Vec<Cell>> = steps
        .iter()
        .zip(&args.senders)
        .map(|(step, senders)| {
            let of = |pick: &dyn Fn(&Stack) -> f64| median(step.stack.iter().map(pick));
            vec![
                Cell::count(*senders as f64),
                Cell::count(of(&|stack| stack.sample.per_second)),
                Cell::number(spread(step.stack.iter().map(|stack| stack.sample.per_second)), 2),
                Cell::number(of(&|stack| stack.sample.p50_ms), 2),
                Cell::number(of(&|stack| stack.sample.p99_ms), 2),
                Cell::number(of(&|stack| stack.sample.p999_ms), 2),
                Cell::number(of(&|stack| stack.batch), 1),
                Cell::number(of(&|stack| per_100k(stack.broker_cpu.values().sum(), stack.sample.count)), 2),
                Cell::number(of(&|stack| per_100k(stack.own_cpu, stack.sample.count)), 2),
            ]
        })
        .collect();
    report.grid("stack", &columns, &rows);
}

fn floor_table(report: &mut Report, args: &Args, steps: &[Step]) {
    report
        .heading("Floors: (a) append + fdatasync, (b) the store without sockets, (c) a bare WebSocket echo");
    let columns = [
        ("senders", "senders"),
        ("rawPerSecond", "(a) /s"),
        ("rawNoise", "noise"),
        ("storePerSecond", "(b) /s"),
        ("storeNoise", "noise"),
        ("echoPerSecond", "(c) /s"),
        ("echoNoise", "noise"),
        ("echoCpuPer100k", "(c) server CPU s/100k"),
        ("stackToRaw", "stack/(a)"),
        ("stackToStore", "stack/(b)"),
        ("stackToEcho", "stack/(c)"),
    ];
    let rows: Vec<Vec<Cell>> = steps
        .iter()
        .zip(&args.senders)
        .map(|(step, senders)| {
            let rates = |floors: &[Floor]| -> Vec<f64> {
                floors.iter().map(|floor| floor.sample.per_second).collect()
            };
            let raw = rates(&step.raw);
            let store = rates(&step.store);
            let echo: Vec<f64> = step.echo.iter().map(|sample| sample.per_second).collect();
            let stack: Vec<f64> = step.stack.iter().map(|stack| stack.sample.per_second).collect();
            // Within a round, neighbours are the same for both; so ratios are medians of ratios.
            let ratio = |floor: &[f64]| {
                Cell::share(median(stack.iter().zip(floor).map(|(ours, floor)| ours / floor)))
            };
            vec![
                Cell::count(*senders as f64),
                Cell::count(median(raw.iter().copied())),
                Cell::number(spread(raw.iter().copied()), 2),
                Cell::count(median(store.iter().copied())),
                Cell::number(spread(store.iter().copied()), 2),
                Cell::count(median(echo.iter().copied())),
                Cell::number(spread(echo.iter().copied()), 2),
                Cell::number(median(step.echo_cpu.iter().copied()), 2),
                ratio(&raw),
                ratio(&store),
                ratio(&echo),
            ]
        })
        .collect();
    report.grid("floors", &columns, &rows);
}

/// A send with nobody else there: its wait beside one sync and one way there and back.
fn lone(report: &mut Report, args: &Args, steps: &[Step]) {
    let Some(step) = args.senders.iter().position(|senders| *senders == 1).and_then(|at| steps.get(at))
    else {
        return;
    };
    report.heading("A lone send");
    let sync = median(step.raw.iter().map(|floor| floor.commit_p50_ms));
    let commit = median(step.store.iter().map(|floor| floor.commit_p50_ms));
    let echo = median(step.echo.iter().map(|sample| sample.p50_ms));
    let send = median(step.stack.iter().map(|stack| stack.sample.p50_ms));
    let mut row = |key: &str, ms: f64, name: &str| {
        report.figure(key, crate::report::round(ms, 3), name, format!("{ms:.3} ms"));
    };
    row("loneSyncMs", sync, "append + fdatasync, p50");
    row("loneCommitMs", commit, "one accept through the store, p50");
    row("loneEchoMs", echo, "echo round trip, p50");
    row("loneSendMs", send, "send, p50");
    let ratio = send / (sync + echo);
    report.figure(
        "loneRatio",
        crate::report::round(ratio, 2),
        "send / (fdatasync + echo)",
        format!("{ratio:.2}"),
    );
}

/// Where the broker's processor time goes.
fn thread_table(report: &mut Report, args: &Args, steps: &[Step]) {
    report.heading("Broker CPU by thread, µs an accept");
    let mut names: Vec<String> = Vec::new();
    for name in steps.iter().flat_map(|step| &step.stack).flat_map(|stack| stack.broker_cpu.keys()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let mut columns = vec![("senders", "senders")];
    columns.extend(names.iter().map(|name| (name.as_str(), name.as_str())));
    let rows: Vec<Vec<Cell>> = steps
        .iter()
        .zip(&args.senders)
        .map(|(step, senders)| {
            let spent = |name: &String| {
                median(step.stack.iter().map(|stack| {
                    let seconds = stack.broker_cpu.get(name).copied().unwrap_or(0.0);
                    seconds * 1e6 / stack.sample.count.max(1) as f64
                }))
            };
            let mut row = vec![Cell::count(*senders as f64)];
            row.extend(names.iter().map(|name| Cell::number(spent(name), 2)));
            row
        })
        .collect();
    report.grid("threads", &columns, &rows);
}
