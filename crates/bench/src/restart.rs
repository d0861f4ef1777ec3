//! `restart`: the broker is replaced under load, and nobody notices.
//!
//! Sessions send each other messages with known numbers; a watcher counts presence events; the broker is drained by
//! `tenure drain`, or killed with -9, and another is started on its data and port. A message that its sender was told is
//! accepted must be given to its reader's application once. A *blink* is anything that the watcher was told of anybody,
//! and whoever is listed afterwards with another beginning, or not at all. `last back` is the time from the order to
//! drain, or the kill, until the last session was attached again.
//!
//! Meanwhile agents answer runs, chunk by chunk, from before the restart until after it. A run has *failed* unless it ends
//! well and its caller was given every chunk, once and in order, but for gaps that it was told of.
//!
//! Where to read next: [`traffic`] for who sends and reads, [`calls`] for the runs.

mod calls;
mod traffic;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure_client::Session;
use tenure_client::proto::SessionKey;

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::fleet::Fleet;
use crate::proc;
use crate::watcher::Watcher;
use calls::Calls;
use traffic::Traffic;

/// How long anything may take that should happen at all.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long to look for late presence events and doubles once all is settled.
const AFTERMATH: Duration = Duration::from_secs(2);

/// How to restart.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Kill the broker with -9 instead of draining it
    #[arg(long)]
    pub kill: bool,
    /// Sessions
    #[arg(long, default_value_t = 1_000)]
    pub sessions: usize,
    /// Messages a second, all together
    #[arg(long, default_value_t = 200)]
    pub rate: u64,
    /// Runs that are answered all the while; at most half as many as sessions
    #[arg(long, default_value_t = 50)]
    pub runs: usize,
    /// What the drain promises: how soon another broker is here
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub restart_in_ms: u64,
    /// How long there is traffic before the restart, and after everybody is back
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub lead_ms: u64,
    /// How the broker is started
    #[command(flatten)]
    pub broker: BrokerArgs,
}

impl Args {
    /// A short run with little load, for a test: of this binary, with data in this directory.
    pub fn small(binary: PathBuf, dir: PathBuf, kill: bool) -> Args {
        let broker = BrokerArgs::with(binary, dir);
        Args { kill, sessions: 20, rate: 50, runs: 5, restart_in_ms: 500, lead_ms: 500, broker }
    }
}

/// What a restart came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sessions.
    pub sessions: usize,
    /// Presence events that a watcher saw, and sessions that were not what they were.
    pub blinks: u64,
    /// Runs that did not end well, or lost a chunk untold.
    pub runs_failed: u64,
    /// Accepted messages that never reached their reader.
    pub lost: u64,
    /// Messages that a reader was given more than once.
    pub doubled: u64,
    /// When the last session was back.
    pub last_back_ms: u64,
    /// Messages that were accepted.
    pub accepted: u64,
    /// Whatever else was wrong, each said on stderr.
    pub wrong: u64,
}

impl Outcome {
    /// Whether nobody noticed.
    pub fn is_good(&self) -> bool {
        self.blinks == 0 && self.runs_failed == 0 && self.lost == 0 && self.doubled == 0 && self.wrong == 0
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { sessions, blinks, runs_failed, lost, doubled, last_back_ms, .. } = self;
        write!(f, "sessions {sessions}, blinks {blinks}, runs failed {runs_failed}, ")?;
        write!(f, "lost {lost}, doubled {doubled}, last back {last_back_ms} ms")
    }
}

/// Restarts and compares.
pub async fn run(args: &Args) -> Result<Outcome> {
    ensure!(args.sessions > 1, "--sessions must be at least 2: they write to each other");
    ensure!(args.runs <= args.sessions / 2, "--runs must be at most half of --sessions");
    proc::check_files(args.sessions + 1)?;
    let mut broker = BrokerProcess::start(&args.broker)?;
    let mut fleet = Fleet::new(broker.url())?.serving();
    eprintln!("connecting {} sessions", args.sessions);
    fleet.connect(args.sessions, 64).await?;
    let watcher = Watcher::start(&fleet).await?;
    let before = present(&watcher.session).await?;
    let sights = *watcher.sights.borrow();
    let traffic = Traffic::start(&fleet.sessions, args.rate)?;
    let calls = Calls::start(&fleet.sessions, args.runs, PATIENCE).await?;
    let lead = Duration::from_millis(args.lead_ms);
    tokio::time::sleep(lead).await;

    while fleet.attached().is_some() {}
    let ordered = Instant::now();
    tokio::task::block_in_place(|| replace(&mut broker, args))?;
    let attaches = fleet.attaches(args.sessions, PATIENCE).await?;
    let back: BTreeSet<usize> = attaches.iter().map(|attach| attach.index).collect();
    let last = attaches.iter().map(|attach| attach.at).max().context("nobody came back")?;
    let resumed = attaches.iter().filter(|attach| attach.outcome() == "resumed").count();
    let last_back_ms = last.saturating_duration_since(ordered).as_millis() as u64;
    eprintln!("{} of {} are back after {last_back_ms} ms, {resumed} resumed", back.len(), args.sessions);

    tokio::time::sleep(lead).await;
    let runs_failed = calls.end(PATIENCE).await;
    let tally = traffic.settle(PATIENCE).await;
    tokio::time::sleep(AFTERMATH).await;
    let after = present(&watcher.session).await?;
    let seen = watcher.sights.borrow().since(sights).all();
    let changed = before.symmetric_difference(&after).count() as u64;
    let missing = (args.sessions - back.len()) as u64;
    let refused = tally.refused;
    for (count, what) in [
        (seen, "presence events were seen"),
        (changed, "sessions are not what they were"),
        (missing, "sessions never came back"),
        (refused, "sends were refused"),
    ] {
        if count > 0 {
            eprintln!("{count} {what}");
        }
    }
    eprintln!("{} accepted, {} received", tally.accepted, tally.received);
    let (lost, doubled) = (tally.lost, traffic.doubled());
    let (blinks, wrong, accepted) = (seen + changed, missing + refused, tally.accepted);
    let sessions = args.sessions;
    Ok(Outcome { sessions, blinks, runs_failed, lost, doubled, last_back_ms, accepted, wrong })
}

/// The broker goes, and another is in its place.
fn replace(broker: &mut BrokerProcess, args: &Args) -> Result<()> {
    if args.kill {
        eprintln!("killing the broker");
        broker.kill()?;
    } else {
        let told = broker.drain(args.restart_in_ms)?;
        eprintln!("drained: {told} sessions were told");
    }
    let ready = broker.start_again()?;
    eprintln!("another broker was ready {} ms after its start", ready.as_millis());
    Ok(())
}

/// Who is here, and since when.
async fn present(session: &Session) -> Result<BTreeSet<(SessionKey, u64)>> {
    let peers = session.peers(false).await.context("list the peers")?;
    Ok(peers.iter().map(|peer| (peer.session, peer.joined_at.get())).collect())
}
