//! `daemon`: what a program on this machine waits for. Durable `POST /v1/send` a second, beside bare SQLite; and one
//! `tenure send` from a shell, beside a process that does nothing.
//!
//! A client has one request outstanding at a time on a connection that it keeps; an answer means that the message is
//! synced to the disk. No broker can be reached, so that what is measured is the taking. The floors are a file with the
//! same table, indexes and settings: one insert a commit, and one commit for all that waits. Rounds of all kinds are
//! interleaved, and what is printed are medians over rounds.

mod bare;
mod command;
mod posts;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::broker::BrokerArgs;
use crate::commit::Floor;
use crate::daemon::DaemonProcess;
use crate::proc;
use crate::report::{Cell, Report};
use crate::sample::{Sample, median, spread};
use bare::Bare;
use command::Commands;

/// Nobody listens there.
const NOWHERE: &str = "ws://127.0.0.1:9";
/// Where everything is sent to.
pub(crate) const TARGET: &str = "topic:load";
/// How long each stretch runs before it counts.
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many clients, each with one request outstanding at a time; the daemon works on 64 at once
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    clients: Vec<usize>,
    /// Seconds of each stretch
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of a message's body
    #[arg(long, default_value_t = 512)]
    body: usize,
    /// How often each command is run
    #[arg(long, default_value_t = 200)]
    commands: usize,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// One stretch of the daemon.
#[derive(Clone, Debug, Default)]
struct Posted {
    sample: Sample,
    /// Processor seconds of the daemon, by thread.
    cpu: BTreeMap<String, f64>,
    own_cpu: f64,
}

/// All rounds of one number of clients.
#[derive(Debug, Default)]
struct Step {
    single: Vec<f64>,
    group: Vec<Floor>,
    posts: Vec<Posted>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let times = (WARM_UP, Duration::from_secs_f64(args.seconds));
    let dir = args.broker.fresh_dir()?;
    let daemon = DaemonProcess::start(&args.broker, dir.path().join("home"), NOWHERE)?;
    let mut bare = Bare::new(&dir.path().join("bare"), args.body)?;
    let mut steps: Vec<Step> = args.clients.iter().map(|_| Step::default()).collect();
    for round in 1..=args.rounds {
        for (clients, step) in args.clients.iter().copied().zip(&mut steps) {
            step.single.push(bare.single(times)?);
            step.group.push(bare.group(clients, times)?);
            let posted = posted(&daemon, clients, args.body, times)?;
            eprintln!("round {round}, {clients} clients: {:.0} posts/s", posted.sample.per_second);
            step.posts.push(posted);
        }
    }
    let commands = command::run(&args.broker.tenure()?, daemon.home(), NOWHERE, args.commands)?;
    report(args, &steps, commands).print(args.json);
    Ok(())
}

fn posted(
    daemon: &DaemonProcess,
    clients: usize,
    body: usize,
    times: (Duration, Duration),
) -> Result<Posted> {
    let read = || -> Result<_> { Ok((proc::threads(daemon.pid())?, proc::threads(std::process::id())?)) };
    let (mut before, mut after) = (None, None);
    let keep = |place: &mut Option<_>| -> Result<()> {
        *place = Some(read()?);
        Ok(())
    };
    let socket: &Path = &daemon.socket();
    let sample = posts::drive(socket, clients, body, times, || keep(&mut before), || keep(&mut after))?;
    let ((before, own_before), (mut cpu, own_after)) =
        before.zip(after).context("the stretch was not measured")?;
    for (name, spent) in &mut cpu {
        *spent -= before.get(name).copied().unwrap_or(0.0);
    }
    let own_cpu = own_after.values().sum::<f64>() - own_before.values().sum::<f64>();
    Ok(Posted { sample, cpu, own_cpu })
}

fn report(args: &Args, steps: &[Step], commands: Option<Commands>) -> Report {
    let mut report = Report::new("daemon");
    report.heading(format!(
        "Durable POST /v1/send: bodies of {} bytes, synced before the answer, no broker in reach",
        args.body
    ));
    report.say(format!(
        "N clients with one request outstanding each, on kept connections; medians of {} rounds of {} s, all kinds \
         interleaved; noise is the largest round over the smallest",
        args.rounds, args.seconds
    ));
    report
        .say("(a) bare SQLite, one insert a commit; (b) the same, one commit for what N producers wait for");
    table(&mut report, args, steps);
    threads(&mut report, args, steps);
    if let Some(commands) = commands {
        commands.tell(&mut report);
    }
    report
}

fn table(report: &mut Report, args: &Args, steps: &[Step]) {
    let columns = [
        ("clients", "clients"),
        ("perSecond", "posts/s"),
        ("noise", "noise"),
        ("p50Ms", "p50 ms"),
        ("p99Ms", "p99 ms"),
        ("singlePerSecond", "(a) /s"),
        ("groupPerSecond", "(b) /s"),
        ("groupNoise", "noise"),
        ("groupP50Ms", "(b) p50 ms"),
        ("toSingle", "posts/(a)"),
        ("toGroup", "posts/(b)"),
    ];
    let rows: Vec<Vec<Cell>> = steps
        .iter()
        .zip(&args.clients)
        .map(|(step, clients)| {
            let posts: Vec<f64> = step.posts.iter().map(|posted| posted.sample.per_second).collect();
            let group: Vec<f64> = step.group.iter().map(|floor| floor.sample.per_second).collect();
            // Within a round, neighbours are the same for both; so ratios are medians of ratios.
            let ratio = |floor: &[f64]| {
                Cell::share(median(posts.iter().zip(floor).map(|(ours, floor)| ours / floor)))
            };
            vec![
                Cell::count(*clients as f64),
                Cell::count(median(posts.iter().copied())),
                Cell::number(spread(posts.iter().copied()), 2),
                Cell::number(median(step.posts.iter().map(|posted| posted.sample.p50_ms)), 2),
                Cell::number(median(step.posts.iter().map(|posted| posted.sample.p99_ms)), 2),
                Cell::count(median(step.single.iter().copied())),
                Cell::count(median(group.iter().copied())),
                Cell::number(spread(group.iter().copied()), 2),
                Cell::number(median(step.group.iter().map(|floor| floor.sample.p50_ms)), 2),
                ratio(&step.single),
                ratio(&group),
            ]
        })
        .collect();
    report.grid("posts", &columns, &rows);
}

/// Where the processor time goes.
fn threads(report: &mut Report, args: &Args, steps: &[Step]) {
    report.heading("Processor time, µs a post: the daemon by thread, and the load");
    let mut names: Vec<&String> = Vec::new();
    for name in steps.iter().flat_map(|step| &step.posts).flat_map(|posted| posted.cpu.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut columns = vec![("clients", "clients")];
    columns.extend(names.iter().map(|name| (name.as_str(), name.as_str())));
    columns.push(("load", "load"));
    let rows: Vec<Vec<Cell>> = steps
        .iter()
        .zip(&args.clients)
        .map(|(step, clients)| {
            let each = |spent: &dyn Fn(&Posted) -> f64| {
                let one = |posted: &Posted| spent(posted) * 1e6 / posted.sample.count.max(1) as f64;
                Cell::number(median(step.posts.iter().map(one)), 1)
            };
            let mut row = vec![Cell::count(*clients as f64)];
            row.extend(
                names.iter().map(|name| each(&|posted| posted.cpu.get(*name).copied().unwrap_or(0.0))),
            );
            row.push(each(&|posted| posted.own_cpu));
            row
        })
        .collect();
    report.grid("threads", &columns, &rows);
}
