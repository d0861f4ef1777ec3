//! `sessions`: what an idle session costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::fleet::Fleet;
use crate::report::{Report, round};
use crate::{floor, proc};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sessions to hold
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// How long to watch them do nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle_seconds: u64,
    /// How long to let the broker come to rest before that
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    settle_seconds: u64,
    /// Sessions that connect at a time
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Leave the bare WebSocket server out
    #[arg(long)]
    no_floor: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Measures and prints.
pub(crate) async fn run(args: Args) -> Result<()> {
    proc::check_files(args.count)?;
    let mut report = Report::new("sessions");
    report.heading(format!("{} idle sessions", args.count));
    report.figure("count", args.count, "intervals", args.broker.shown_intervals());
    if !args.no_floor {
        eprintln!("floor: {} bare WebSockets", args.count);
        measure_floor(&args, &mut report).await?;
    }
    eprintln!("broker: {} sessions", args.count);
    measure_broker(&args, &mut report).await?;
    report.print(args.json);
    Ok(())
}

async fn measure_floor(args: &Args, report: &mut Report) -> Result<()> {
    let floor = floor::measure(args.count).await?;
    report.heading("Floor: bare WebSockets, one small echo each");
    report.size("floorEmptyBytes", floor.empty_bytes, "memory when empty");
    report.size("floorFullBytes", floor.full_bytes, "memory with all");
    per_session(report, "floorBytesPerConnection", floor.full_bytes, floor.empty_bytes, args.count);
    Ok(())
}

async fn measure_broker(args: &Args, report: &mut Report) -> Result<()> {
    let broker = BrokerProcess::start(&args.broker)?;
    let empty = proc::rss_bytes(broker.pid())?;
    let mut fleet = Fleet::new(broker.url())?;
    let started = Instant::now();
    fleet.connect(args.count, args.concurrency).await?;
    let connected = started.elapsed();
    let cpu = proc::cpu_seconds(broker.pid())?;
    let connect_rss = proc::rss_bytes(broker.pid())?;
    report.heading("Connecting: every join is announced to everybody");
    report.figure(
        "connectSeconds",
        round(connected.as_secs_f64(), 1),
        "time",
        format!("{:.1} s", connected.as_secs_f64()),
    );
    report.figure("connectCpuSeconds", round(cpu, 2), "broker CPU", format!("{cpu:.1} s"));
    report.count("framesSent", broker.metric("tenure_frames_sent_total")?, "frames sent by the broker");

    eprintln!("settling for {} s", args.settle_seconds);
    tokio::time::sleep(Duration::from_secs(args.settle_seconds)).await;
    let settled_rss = proc::rss_bytes(broker.pid())?;

    eprintln!("idle for {} s", args.idle_seconds);
    let idle = watch_idle(&broker, args.idle_seconds).await?;
    let rss = proc::rss_bytes(broker.pid())?;
    let online = broker.metric("tenure_sessions_online").context("count the sessions")?;

    report.heading("Broker: memory");
    report.size("emptyBytes", empty, "when empty");
    report.size("connectedBytes", connect_rss, "right after connecting");
    per_session(report, "connectedBytesPerSession", connect_rss, empty, args.count);
    report.size("settledBytes", settled_rss, "after settling");
    per_session(report, "settledBytesPerSession", settled_rss, empty, args.count);
    report.size("idleBytes", rss, "at the end");
    per_session(report, "bytesPerSession", rss, empty, args.count);

    report.heading("Broker: idle");
    report.count("online", online, "sessions online at the end");
    report.figure(
        "idlePercent",
        round(idle.percent, 2),
        "CPU, of one core",
        format!("{:.2} % over {} s", idle.percent, args.idle_seconds),
    );
    report.count("idleFrames", idle.frames, "frames sent meanwhile");
    Ok(())
}

struct Idle {
    percent: f64,
    frames: u64,
}

async fn watch_idle(broker: &BrokerProcess, seconds: u64) -> Result<Idle> {
    let frames = broker.metric("tenure_frames_sent_total")?;
    let (cpu, started) = (proc::cpu_seconds(broker.pid())?, Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let spent = proc::cpu_seconds(broker.pid())? - cpu;
    let percent = 100.0 * spent / started.elapsed().as_secs_f64();
    Ok(Idle { percent, frames: broker.metric("tenure_frames_sent_total")? - frames })
}

fn per_session(report: &mut Report, key: &str, full: u64, empty: u64, count: usize) {
    let bytes = full.saturating_sub(empty) as f64 / count.max(1) as f64;
    report.figure(key, round(bytes, 0), "  each", format!("{:.2} kB", bytes / 1000.0));
}
