//! `services`: what many services cost that are renewed all the time, and how soon it shows that a publisher died.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tenure_client::proto::event::EventBody;
use tenure_client::proto::service::{ServiceEventKind, ServiceKind};
use tenure_client::{Events, Offered, Session, SessionEvent};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::fleet::Fleet;
use crate::proc;
use crate::report::{Report, round};

/// How long the end of a publisher may take to show, beyond its lease.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take to tell everybody of everything.
const TELLING: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sessions that offer services
    #[arg(long, default_value_t = 1_000)]
    sessions: usize,
    /// Services of each, renewed in one frame; at most 64
    #[arg(long, default_value_t = 10)]
    each: usize,
    /// How long to watch them being renewed
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Sessions that connect at a time
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Leave out how long a dead publisher's services are seen: it takes as long as a lease
    #[arg(long)]
    no_death: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Measures and prints.
pub(crate) async fn run(args: Args) -> Result<()> {
    proc::check_files(args.sessions)?;
    let total = args.sessions * args.each;
    let mut report = Report::new("services");
    report.heading(format!("{total} services of {} sessions", args.sessions));
    report.figure("services", total, "intervals", args.broker.shown_intervals());
    let broker = BrokerProcess::start(&args.broker)?;
    let mut fleet = Fleet::new(broker.url())?;
    fleet.connect(args.sessions, args.concurrency).await?;
    let before = proc::rss_bytes(broker.pid())?;

    let (cpu, started) = (proc::cpu_seconds(broker.pid())?, Instant::now());
    let offered = offer_all(&fleet.sessions, args.each).await?;
    quiet(&broker).await?;
    let took = started.elapsed().as_secs_f64();
    let spent = proc::cpu_seconds(broker.pid())? - cpu;
    report.heading("Taking the names: every one is on disk and told to everybody");
    report.figure("takeSeconds", round(took, 1), "time", format!("{took:.1} s"));
    report.figure("takeCpuSeconds", round(spent, 2), "broker CPU", format!("{spent:.1} s"));
    let bytes = proc::rss_bytes(broker.pid())?.saturating_sub(before) as f64 / total.max(1) as f64;
    report.figure("bytesPerService", round(bytes, 0), "memory, each", format!("{:.2} kB", bytes / 1000.0));

    eprintln!("renewing for {} s", args.seconds);
    renewing(&broker, &args, &mut report).await?;
    if !args.no_death {
        death(&fleet, &mut report).await?;
    }
    drop(offered);
    report.print(args.json);
    Ok(())
}

/// Every session offers its services, and all are taken.
async fn offer_all(sessions: &[Session], each: usize) -> Result<Vec<Offered>> {
    let mut offered = Vec::with_capacity(sessions.len() * each);
    for (index, session) in sessions.iter().enumerate() {
        for n in 0..each {
            offered.push(session.offer(format!("s{index}-{n}"), ServiceKind::Tcp).await?);
        }
    }
    for one in &mut offered {
        while let Err(error) = one.verdict().await.context("the session ended")? {
            if !error.retryable {
                bail!("{} was refused: {error}", one.name());
            }
        }
    }
    Ok(offered)
}

/// Waits until everybody has been told: the broker has had hardly anything to do for a second.
async fn quiet(broker: &BrokerProcess) -> Result<()> {
    let until = Instant::now() + TELLING;
    while Instant::now() < until {
        let before = proc::cpu_seconds(broker.pid())?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if proc::cpu_seconds(broker.pid())? - before < 0.15 {
            return Ok(());
        }
    }
    bail!("the broker is still busy {} s after all names were taken", TELLING.as_secs())
}

async fn renewing(broker: &BrokerProcess, args: &Args, report: &mut Report) -> Result<()> {
    let frames = broker.metric("tenure_frames_received_total")?;
    let writes = broker.metric("tenure_store_writes_total")?;
    let (cpu, started) = (proc::cpu_seconds(broker.pid())?, Instant::now());
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let spent = proc::cpu_seconds(broker.pid())? - cpu;
    let percent = 100.0 * spent / started.elapsed().as_secs_f64();
    report.heading("Renewing at the default interval");
    let shown = format!("{percent:.2} % over {} s", args.seconds);
    report.figure("renewPercent", round(percent, 2), "CPU, of one core", shown);
    report.count(
        "renewFrames",
        broker.metric("tenure_frames_received_total")? - frames,
        "frames received meanwhile",
    );
    report.count(
        "renewWrites",
        broker.metric("tenure_store_writes_total")? - writes,
        "writes to the store meanwhile",
    );
    Ok(())
}

/// A publisher goes without a word; somebody who watches tells when that shows.
async fn death(fleet: &Fleet, report: &mut Report) -> Result<()> {
    let (_watcher, mut events) = fleet.stranger("watcher").await?;
    let (publisher, _) = fleet.stranger("publisher").await?;
    let mut doomed = publisher.offer("doomed", ServiceKind::Tcp).await?;
    doomed.verdict().await.context("the session ended")?.context("the name was refused")?;
    until(&mut events, ServiceEventKind::Online).await?;
    let died = Instant::now();
    eprintln!("a publisher dies");
    publisher.part().await;
    report.heading("A publisher dies without a word");
    for (kind, key, label) in [
        (ServiceEventKind::Stale, "staleSeconds", "until `stale` is told"),
        (ServiceEventKind::Gone, "goneSeconds", "until `gone` is told"),
    ] {
        until(&mut events, kind).await?;
        let seconds = died.elapsed().as_secs_f64();
        report.figure(key, round(seconds, 2), label, format!("{seconds:.2} s"));
    }
    Ok(())
}

/// Reads on until the doomed service is told to be so.
async fn until(events: &mut Events, wanted: ServiceEventKind) -> Result<()> {
    let patience = Duration::from_millis(tenure_client::proto::limits::LEASE_TTL_MS) + PATIENCE;
    let told = async {
        loop {
            if let SessionEvent::Event { body, .. } =
                events.next().await.context("the watcher's session ended")?
                && let EventBody::Service(event) = *body
                && (event.service.name.as_str(), event.kind) == ("doomed", wanted)
            {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(patience, told).await.context("nobody told what became of the service")?
}
