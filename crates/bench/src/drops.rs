//! `drops`: readers whose network comes and goes during a steady publish. Does everybody get everything, once, and how
//! late?
//!
//! Every client reads one topic and is cut off for a while, again and again, each at its own time. While it is away its
//! dials fail, as they do without a network. What is measured of a cut in which something was missed is how long after it
//! the client has been given the last message that was accepted before the cut ended: from the end of the cut, of which the
//! SDK's wait before its next dial is a part (up to a second), and from the attach, which is the replay itself and what the
//! last line says.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tenure_client::{Session, Subscription};
use tokio::task::JoinSet;

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::fleet::Fleet;
use crate::ids::Dice;
use crate::proc;
use crate::sample::Times;

/// What everybody reads.
const TOPIC: &str = "drops";
/// Subscriptions that are made at a time.
const CONCURRENCY: usize = 64;
/// How long nothing may come before what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(50);

/// How to cut.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Readers
    #[arg(long, default_value_t = 10_000)]
    pub clients: usize,
    /// Messages a second: each is a delivery to every reader
    #[arg(long, default_value_t = 1.0)]
    pub rate: f64,
    /// How long to publish
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub seconds: u64,
    /// From one cut of a client to its next, about
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    pub every_ms: u64,
    /// How long a cut lasts, about
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub away_ms: u64,
    /// How the broker is started
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// What it came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Readers.
    pub clients: usize,
    /// Messages that were accepted.
    pub accepted: u64,
    /// How often somebody was cut off.
    pub cuts: u64,
    /// Deliveries that never came.
    pub lost: u64,
    /// Deliveries that came twice, or out of order.
    pub doubled: u64,
    /// Cuts in which something was missed, and p50, p99 and the longest in ms from the end of the cut.
    pub since_cut: (u64, [f64; 3]),
    /// The same from the attach.
    pub since_attach: (u64, [f64; 3]),
}

impl Outcome {
    /// Whether everybody got everything, once.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.accepted > 0
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { clients, accepted, cuts, lost, doubled, since_cut, since_attach } = self;
        let all = (*accepted * *clients as u64).max(1);
        let percent = 100.0 * (all.saturating_sub(*lost)) as f64 / all as f64;
        writeln!(f, "clients {clients}, messages {accepted}, cuts {cuts}")?;
        for ((count, [p50, p99, max]), from) in [
            (since_cut, "the end of the cut, the SDK's wait before its dial included,"),
            (since_attach, "the attach"),
        ] {
            writeln!(
                f,
                "replay from {from} to the last missed message, {count} cuts: p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms"
            )?;
        }
        let [p50, p99, max] = since_attach.1;
        write!(
            f,
            "delivered {percent:.4} %, lost {lost}, doubled {doubled}, replay p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms"
        )
    }
}

/// Publishes, cuts and counts.
pub async fn run(args: &Args) -> Result<Outcome> {
    proc::check_files(args.clients + 1)?;
    let broker = BrokerProcess::start(&args.broker)?;
    let mut fleet = Fleet::new(broker.url())?;
    eprintln!("connecting {} sessions", args.clients);
    fleet.connect(args.clients, CONCURRENCY).await?;
    let (publisher, _events) = fleet.stranger("publisher").await?;
    let clients = subscribe(&fleet.sessions).await?;
    let accepted = Arc::<AtomicU64>::default();
    let stop = Arc::<AtomicBool>::default();
    let cuts = Arc::<AtomicU64>::default();
    for (index, client) in clients.iter().enumerate() {
        let session = fleet.sessions[index].clone();
        let cutter = Cutter {
            session,
            client: client.clone(),
            accepted: accepted.clone(),
            stop: stop.clone(),
            cuts: cuts.clone(),
        };
        let first = args.every_ms * index as u64 / args.clients as u64;
        tokio::spawn(cutter.cut(args.clone(), first, index as u64));
    }
    eprintln!("publishing for {} s", args.seconds);
    let publishing = tokio::spawn(publish(publisher, args.clone(), accepted.clone()));
    while !publishing.is_finished() {
        note_attaches(&mut fleet, &clients);
        tokio::time::sleep(LOOK).await;
    }
    stop.store(true, Ordering::Relaxed);
    publishing.await??;
    let accepted = accepted.load(Ordering::Relaxed);
    settle(&mut fleet, &clients, accepted).await;
    let (mut since_cut, mut since_attach) = (Times::default(), Times::default());
    let (mut lost, mut doubled) = (0, 0);
    for client in &clients {
        let client = client.lock();
        lost += client.lost + accepted.saturating_sub(client.expected);
        doubled += client.doubled;
        since_cut.merge(client.since_cut.clone());
        since_attach.merge(client.since_attach.clone());
    }
    let shares = |mut times: Times| (times.count(), [0.5, 0.99, 1.0].map(|share| times.at(share)));
    let (since_cut, since_attach) = (shares(since_cut), shares(since_attach));
    let cuts = cuts.load(Ordering::Relaxed);
    Ok(Outcome { clients: args.clients, accepted, cuts, lost, doubled, since_cut, since_attach })
}

/// Everybody reads the topic.
async fn subscribe(sessions: &[Session]) -> Result<Vec<Arc<Client>>> {
    let mut clients = vec![None; sessions.len()];
    let mut made = JoinSet::new();
    let mut next = sessions.iter().enumerate();
    loop {
        while made.len() < CONCURRENCY
            && let Some((index, session)) = next.next()
        {
            let session = session.clone();
            made.spawn(async move { (index, session.subscribe(TOPIC).await) });
        }
        let Some(subscribed) = made.join_next().await else { break };
        let (index, subscription) = subscribed?;
        let client = Arc::<Client>::default();
        tokio::spawn(read(subscription.context("subscribe")?, client.clone()));
        clients[index] = Some(client);
    }
    clients.into_iter().collect::<Option<Vec<_>>>().context("somebody does not read")
}

/// One reader, as its application sees it.
#[derive(Debug, Default)]
struct Client(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    /// The number of the next message, if all is well: they come in order.
    expected: u64,
    lost: u64,
    doubled: u64,
    attached: Option<Instant>,
    /// The end of a cut and when it had all, until its attach is known, of which others tell.
    replayed: Option<(Instant, Instant)>,
    /// The end of the last cut, and how many messages were accepted before it, until it has them all.
    back: Option<(Instant, u64)>,
    since_cut: Times,
    since_attach: Times,
}

impl Client {
    fn lock(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    fn got(&mut self, number: u64) {
        if number < self.expected {
            self.doubled += 1;
            return;
        }
        self.lost += number - self.expected;
        self.expected = number + 1;
        if let Some((back, _)) = self.back.filter(|(_, all)| self.expected >= *all) {
            let now = Instant::now();
            (self.back, self.replayed) = (None, Some((back, now)));
            self.since_cut.add(now - back);
            self.note_replay();
        }
    }

    fn attached(&mut self, at: Instant) {
        self.attached = Some(at);
        self.note_replay();
    }

    fn note_replay(&mut self) {
        let (Some((back, done)), Some(attached)) = (self.replayed, self.attached) else { return };
        if attached >= back {
            self.replayed = None;
            self.since_attach.add(done.saturating_duration_since(attached));
        }
    }
}

async fn read(mut subscription: Subscription, client: Arc<Client>) {
    while let Ok(message) = subscription.next_message().await {
        match message.text().and_then(|text| text.parse().ok()) {
            Some(number) => client.lock().got(number),
            None => client.lock().doubled += 1,
        }
        // It goes on, and through any break, without us.
        drop(message.ack());
    }
}

/// Who takes the network away from one client.
struct Cutter {
    session: Session,
    client: Arc<Client>,
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Cutter {
    async fn cut(self, args: Args, first_ms: u64, seed: u64) {
        let mut dice = Dice::new(seed);
        // A tenth more or less, so that nobody keeps step with anybody.
        let mut about = |ms: u64| Duration::from_millis(dice.within(ms * 9 / 10..ms * 11 / 10 + 1));
        tokio::time::sleep(Duration::from_millis(first_ms)).await;
        while !self.stop.load(Ordering::Relaxed) {
            let (away, every) = (about(args.away_ms), about(args.every_ms));
            self.session.cut_off(away).await;
            tokio::time::sleep(away).await;
            self.cuts.fetch_add(1, Ordering::Relaxed);
            let accepted = self.accepted.load(Ordering::Relaxed);
            {
                let mut client = self.client.lock();
                if client.expected < accepted {
                    client.back = Some((Instant::now(), accepted));
                }
            }
            tokio::time::sleep(every.saturating_sub(away)).await;
        }
    }
}

async fn publish(session: Session, args: Args, accepted: Arc<AtomicU64>) -> Result<()> {
    let topic = session.publisher(TOPIC)?;
    let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / args.rate.max(0.001)));
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut number: u64 = 0;
    while Instant::now() < until {
        pace.tick().await;
        topic.publish(number.to_string()).await.with_context(|| format!("publish message {number}"))?;
        number += 1;
        accepted.store(number, Ordering::Relaxed);
    }
    Ok(())
}

fn note_attaches(fleet: &mut Fleet, clients: &[Arc<Client>]) {
    while let Some(attach) = fleet.attached() {
        if let Some(client) = clients.get(attach.index) {
            client.lock().attached(attach.at);
        }
    }
}

/// Waits until everybody has everything, or nothing has come to anybody for a while.
async fn settle(fleet: &mut Fleet, clients: &[Arc<Client>], accepted: u64) {
    let (mut moved, mut seen) = (Instant::now(), 0);
    while moved.elapsed() < PATIENCE {
        note_attaches(fleet, clients);
        let got: u64 = clients.iter().map(|client| client.lock().expected).sum();
        if got >= accepted * clients.len() as u64 {
            return;
        }
        if got != seen {
            (moved, seen) = (Instant::now(), got);
        }
        tokio::time::sleep(LOOK).await;
    }
}
