//! `offline`: a laptop was away from its broker, and much waits in its outbox. How long until all of it is there, in
//! order, what does that cost the daemon in memory, and how long does a new send wait meanwhile?
//!
//! The daemon is a process of its own, and so is the broker. Rows are handed over through the daemon's socket while no
//! broker runs; each connection numbers its own, and the reader checks that numbers of one connection come in order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tenure_client::{Options, Session, Start, Subscription};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::daemon::DaemonProcess;
use crate::http::{Answered, Http};
use crate::proc;
use crate::report::Report;
use crate::sample::Times;

/// Where the backlog goes, and where new sends go.
const BACKLOG: &str = "backlog";
const FRESH: &str = "fresh";
/// Between two new sends while the backlog drains.
const FRESH_EVERY: Duration = Duration::from_millis(20);
/// How long nothing may arrive before we say that nothing more will.
const PATIENCE: Duration = Duration::from_secs(120);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Messages that wait when the broker comes
    #[arg(long, default_value_t = 100_000)]
    count: u64,
    /// Connections that hand them over, and bytes of each message
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Bytes of a message
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Measures, and prints what it saw.
pub(crate) async fn run(args: Args) -> Result<()> {
    let mut report = Report::new("offline");
    let mut broker = BrokerProcess::start(&args.broker)?;
    let session = reader(&broker.url()).await?;
    let backlog = subscribe(&session, BACKLOG).await?;
    let fresh = subscribe(&session, FRESH).await?;
    broker.kill()?;
    let home = args.broker.fresh_dir()?;
    let daemon = DaemonProcess::start(&args.broker, home.path().to_owned(), &broker.url())?;
    let pid = daemon.pid();
    let empty = proc::rss_bytes(pid)?;

    let began = Instant::now();
    queue(&args, &daemon.socket()).await?;
    let queued = began.elapsed();
    let full = proc::rss_bytes(pid)?;

    let began = Instant::now();
    let up = broker.start_again()?;
    let read = tokio::spawn(check(backlog, args.count, began));
    let stop = Arc::new(AtomicBool::new(false));
    let sends = tokio::spawn(fresh_sends(daemon.socket(), began, stop.clone()));
    let arrivals = tokio::spawn(fresh_arrivals(fresh, began));
    let most = Arc::new(AtomicU64::new(full));
    let watching = tokio::spawn(watch_memory(pid, most.clone(), stop.clone()));
    let drained = drained(&daemon.socket(), began).await?;
    let arrived = read.await??;
    stop.store(true, Ordering::Relaxed);
    let (mut posted, sent) = sends.await??;
    watching.await??;
    let mut reached = arrivals_of(arrivals, sent).await?;

    let times = [queued, up, drained, arrived].map(|time| time.as_secs_f64());
    say(&mut report, &args, times, (&mut posted, &mut reached));
    report.heading("memory of the daemon");
    report.size("rss_empty_bytes", empty, "at its start");
    report.size("rss_queued_bytes", full, "with everything queued");
    report.size("rss_most_bytes", most.load(Ordering::Relaxed), "the most while it drained");
    report.print(args.json);
    Ok(())
}

/// How long it took, and what new sends waited.
fn say(report: &mut Report, args: &Args, times: [f64; 4], (posted, reached): (&mut Times, &mut Times)) {
    let names = [
        ("queued_s", "handed over while no broker ran"),
        ("up_s", "the broker took to start"),
        ("drained_s", "until the outbox was empty"),
        ("arrived_s", "until a reader had the last, all in order"),
    ];
    report.heading(format!("{} messages of {} bytes wait for one target", args.count, args.bytes));
    for ((key, name), seconds) in names.into_iter().zip(times) {
        report.figure(key, seconds, name, format!("{seconds:.1} s"));
    }
    let rate = args.count as f64 / times[2];
    report.figure("per_second", rate, "rows a second", format!("{rate:.0}"));
    report.heading("new sends to another target meanwhile");
    report.count("fresh", posted.count(), "sends");
    for (key, name, times) in
        [("answered", "answered by the daemon", posted), ("read", "with their reader", reached)]
    {
        let (p50, p99) = (times.at(0.5), times.at(0.99));
        report.figure(&format!("{key}_p99_ms"), p99, name, format!("p50 {p50:.1} ms, p99 {p99:.1} ms"));
    }
}

async fn reader(url: &str) -> Result<Session> {
    let options = Options::new(url, tenure_client::random_key()?, "reader")?;
    let (session, events) = Session::connect(options).await.context("join")?;
    drop(events);
    Ok(session)
}

async fn subscribe(session: &Session, topic: &str) -> Result<Subscription> {
    let asked = session.subscribe(topic).group("all").prefetch(1_000).from(Start::Earliest);
    asked.await.map_err(|end| anyhow!("subscribe to {topic}: {end}"))
}

/// Hands a message over; an error unless the daemon promises it.
async fn post(http: &mut Http, topic: &str, body: &str) -> Result<()> {
    let body = json!({"to": format!("topic:{topic}"), "body": body}).to_string();
    asked(http.call("POST", "/v1/send", &[], body.as_bytes()).await?, 202).map(drop)
}

fn asked(answered: Answered, status: u16) -> Result<Value> {
    let json = answered.json();
    ensure!(answered.status == status, "the daemon answered {}: {json}", answered.status);
    Ok(json)
}

/// Hands everything over, each connection its share.
async fn queue(args: &Args, socket: &Path) -> Result<()> {
    let mut clients = Vec::new();
    for client in 0..args.clients {
        let (socket, bytes) = (socket.to_owned(), args.bytes);
        let share = args.count / args.clients + u64::from(client < args.count % args.clients);
        clients.push(tokio::spawn(async move {
            let mut line = Http::connect(&socket).await?;
            for number in 0..share {
                let body = format!("{:x<bytes$}", format!("{client} {number} "));
                post(&mut line, BACKLOG, &body).await?;
            }
            anyhow::Ok(())
        }));
    }
    for client in clients {
        client.await??;
    }
    Ok(())
}

/// Reads the backlog: everything once, and of each connection in order.
async fn check(mut stream: Subscription, count: u64, began: Instant) -> Result<Duration> {
    let mut next: BTreeMap<String, u64> = BTreeMap::new();
    for n in 0..count {
        let message = tokio::time::timeout(PATIENCE, stream.next_message()).await;
        let message = message.with_context(|| format!("nothing came after {n} messages"))?;
        let message = message.map_err(|end| anyhow!("the backlog ended: {end}"))?;
        let mut words = message.text().unwrap_or_default().split(' ');
        let (client, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let expected = next.entry(client.to_owned()).or_default();
        ensure!(number == expected.to_string(), "of {client}, {number} came in place of {expected}");
        *expected += 1;
        drop(message.ack());
    }
    Ok(began.elapsed())
}

/// Waits until nothing is left in the outbox.
async fn drained(socket: &Path, began: Instant) -> Result<Duration> {
    let mut line = Http::connect(socket).await?;
    loop {
        let health = asked(line.call("GET", "/v1/health", &[], b"").await?, 200)?;
        let left = |state: &str| health["outbox"][state].as_u64().unwrap_or(u64::MAX);
        // New sends come and go: a few are always on their way.
        if left("pending").saturating_add(left("inflight")) <= 4 {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sends something new now and then, until told to stop; how long each was answered, and how many there were.
async fn fresh_sends(socket: PathBuf, began: Instant, stop: Arc<AtomicBool>) -> Result<(Times, u64)> {
    let mut line = Http::connect(&socket).await?;
    let (mut times, mut sent) = (Times::default(), 0);
    while !stop.load(Ordering::Relaxed) {
        let at = Instant::now();
        let body = (at - began).as_micros().to_string();
        post(&mut line, FRESH, &body).await?;
        times.add(at.elapsed());
        sent += 1;
        tokio::time::sleep(FRESH_EVERY).await;
    }
    Ok((times, sent))
}

/// How long new sends took, each when it came.
type Arrivals = tokio::sync::mpsc::Receiver<Duration>;

/// How long new sends took to their reader.
async fn fresh_arrivals(mut stream: Subscription, began: Instant) -> Arrivals {
    let (sender, receiver) = tokio::sync::mpsc::channel(65_536);
    tokio::spawn(async move {
        while let Ok(message) = stream.next_message().await {
            let sent: u64 = message.text().and_then(|text| text.parse().ok()).unwrap_or(0);
            let took = began.elapsed().saturating_sub(Duration::from_micros(sent));
            if sender.send(took).await.is_err() {
                return;
            }
            drop(message.ack());
        }
    });
    receiver
}

async fn arrivals_of(arrivals: tokio::task::JoinHandle<Arrivals>, sent: u64) -> Result<Times> {
    let mut arrivals = arrivals.await?;
    let mut times = Times::default();
    while times.count() < sent {
        let next = tokio::time::timeout(PATIENCE, arrivals.recv()).await.context("a new send never came")?;
        times.add(next.context("the reader of new sends ended")?);
    }
    Ok(times)
}

async fn watch_memory(pid: u32, most: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        most.fetch_max(proc::rss_bytes(pid)?, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
