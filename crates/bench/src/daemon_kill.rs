//! `daemon-kill`: what a daemon has taken reaches the receiver's inbox once, shown by killing the sender's daemon, the
//! receiver's daemon and the broker, alone and together, again and again, at any instant, under load.
//!
//! Clients post to the sender's daemon over its Unix socket, each the same message under the same id until it is
//! answered; every id that was answered 2xx is written to a file before the next. When all is quiet the receiver's
//! `inbox.db` is read with plain SQL and compared with that file: nothing is missing, nothing there twice, every body
//! as it was, every client's messages to one target in their order.
//!
//! Where to read next: [`clients`] for who sends, [`verdict`] for the comparison.

mod clients;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::daemon::DaemonProcess;
use crate::ids::Dice;
use clients::{Clients, Record};
use verdict::Verdict;

/// How long after the last kill nothing may happen before what is missing counts as lost. A row that was refused waits
/// up to 30 s, so that this is a good deal more.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long to look for doubles once all is there.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(50);
/// The topic that the receiver follows.
const TOPIC: &str = "jobs";

/// How to kill.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How often something is killed
    #[arg(long, default_value_t = 200)]
    pub cycles: u64,
    /// The earliest and latest kill after everything is up, in ms
    #[arg(long, value_name = "MIN,MAX", value_delimiter = ',', num_args = 1, default_value = "50,1500")]
    pub after_ms: Vec<u64>,
    /// Clients that post to the sender's daemon
    #[arg(long, default_value_t = 8)]
    pub clients: usize,
    /// Messages a second, all together, at most
    #[arg(long, default_value_t = 200)]
    pub rate: u64,
    /// How the broker is started
    #[command(flatten)]
    pub broker: BrokerArgs,
}

impl Args {
    /// A short run for a test: so many kills of this binary, with data in this directory.
    pub fn small(binary: PathBuf, dir: PathBuf, cycles: u64) -> Args {
        Args { cycles, after_ms: vec![50, 700], clients: 8, rate: 200, broker: BrokerArgs::with(binary, dir) }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How often something was killed.
    pub cycles: u64,
    /// Messages that were answered 2xx.
    pub accepted: u64,
    /// Different messages in the receiver's inbox.
    pub received: u64,
    /// How many of the accepted are not there.
    pub lost: u64,
    /// How many are there more than once.
    pub doubled: u64,
    /// Whatever else was wrong, each said on stderr: bodies, order, answers.
    pub wrong: u64,
}

impl Outcome {
    /// Whether all promises were kept.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.wrong == 0 && self.accepted == self.received
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { cycles, accepted, received, lost, doubled, .. } = self;
        write!(f, "cycles {cycles}, accepted {accepted}, received {received}, lost {lost}, doubled {doubled}")
    }
}

/// Everything that is killed.
struct House {
    broker: BrokerProcess,
    sender: DaemonProcess,
    receiver: DaemonProcess,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
enum Part {
    Broker,
    Sender,
    Receiver,
}

const PARTS: [Part; 3] = [Part::Broker, Part::Sender, Part::Receiver];

/// Kills and compares.
pub async fn run(args: &Args) -> Result<Outcome> {
    let &[min, max] = args.after_ms.as_slice() else { bail!("--after-ms takes two numbers: MIN,MAX") };
    let dir = args.broker.fresh_dir()?;
    let mut house = House::start(args, dir.path())?;
    let targets = house.targets().await?;
    let record = Arc::new(Record::create(dir.path())?);
    let clients = Clients::start(args, house.sender.socket(), &targets, &record);
    let mut dice = Dice::new(11);
    for cycle in 1..=args.cycles {
        let after = dice.within(min..max + 1);
        tokio::time::sleep(Duration::from_millis(after)).await;
        let parts = some_of(&mut dice);
        tokio::task::block_in_place(|| house.kill_and_start(&parts, &mut dice))?;
        eprintln!(
            "cycle {cycle} of {}: {parts:?} killed after {after} ms; {} accepted",
            args.cycles,
            record.count()
        );
        clients.are_well()?;
    }
    let asked = clients.finish(PATIENCE).await?;
    let settled = house.settle(&record).await;
    house.sender.kill()?;
    house.receiver.kill()?;
    let mut verdict = Verdict::of(&record, house.receiver.home(), &targets)?;
    verdict.check_outbox(house.sender.home())?;
    if let Err(error) = settled {
        verdict.complain(format!("not everything came to rest: {error:#}"));
    }
    eprintln!(
        "{} requests went unanswered or were put off, and were made again",
        asked.saturating_sub(record.count())
    );
    if !verdict.outcome(0).is_good() {
        eprintln!("everything stays in {}", dir.keep().display());
    }
    Ok(verdict.outcome(args.cycles))
}

/// At least one part, in any order.
fn some_of(dice: &mut Dice) -> Vec<Part> {
    let mut parts: Vec<Part> = PARTS.to_vec();
    while parts.len() > 1 && dice.within(0..2) == 0 {
        parts.swap_remove(dice.within(0..parts.len() as u64) as usize);
    }
    let at = dice.within(0..parts.len() as u64) as usize;
    parts.rotate_left(at);
    parts
}

impl House {
    fn start(args: &Args, dir: &std::path::Path) -> Result<House> {
        let broker = BrokerProcess::start(&args.broker)?;
        let sender = DaemonProcess::start(&args.broker, dir.join("sender"), &broker.url())?;
        let receiver = DaemonProcess::start(&args.broker, dir.join("receiver"), &broker.url())?;
        Ok(House { broker, sender, receiver })
    }

    /// The receiver's own session, its member, a session of a program there, and a topic: their addresses.
    async fn targets(&self) -> Result<Vec<String>> {
        let health = until(async || {
            let health = self.receiver.call("GET", "/v1/health", &[], "").await?.json();
            Ok(Some(health).filter(|health| health["connected"] == true))
        });
        let health = health.await.context("the receiver never reached the broker")?;
        let made =
            self.receiver.call("POST", "/v1/sessions", &[], &json!({"name": "agent"}).to_string()).await?;
        let agent = made.json();
        let path = format!("/v1/topics/{TOPIC}/subscribe");
        let followed = self.receiver.call("POST", &path, &[], "{}").await?;
        ensure!(followed.status < 300, "follow {TOPIC}: {}", String::from_utf8_lossy(&followed.body));
        let text = |value: &Value| value.as_str().map(str::to_owned).context("the daemon says no key");
        let targets = vec![
            format!("session:{}", text(&health["session"])?),
            format!("member:{}", text(&health["member"])?),
            format!("session:{}", text(&agent["session"])?),
            format!("topic:{TOPIC}"),
        ];
        for target in &targets {
            self.probe(target).await.with_context(|| format!("nothing arrives at {target}"))?;
        }
        Ok(targets)
    }

    /// Sends to a target until something arrives: from then on it has its place at the broker.
    async fn probe(&self, target: &str) -> Result<()> {
        let (mut number, kind) = (0, target.split(':').next().unwrap_or("").to_owned());
        until(async || {
            number += 1;
            let id = verdict::probe(target, number);
            let body = json!({"to": target, "body": "?", "clientMessageId": id}).to_string();
            let sent = self.sender.call("POST", "/v1/send", &[], &body).await?;
            ensure!(sent.status < 300, "the {kind} is refused: {}", String::from_utf8_lossy(&sent.body));
            tokio::time::sleep(LOOK).await;
            Ok(verdict::has_probe(self.receiver.home(), target)?.then_some(()))
        })
        .await
    }

    fn kill_and_start(&mut self, parts: &[Part], dice: &mut Dice) -> Result<()> {
        for part in parts {
            match part {
                Part::Broker => self.broker.kill()?,
                Part::Sender => self.sender.kill()?,
                Part::Receiver => self.receiver.kill()?,
            }
            // Not always at the same instant.
            std::thread::sleep(Duration::from_millis(dice.within(0..30)));
        }
        for part in parts {
            match part {
                Part::Broker => drop(self.broker.start_again()?),
                Part::Sender => self.sender.start_again()?,
                Part::Receiver => self.receiver.start_again()?,
            }
            std::thread::sleep(Duration::from_millis(dice.within(0..200)));
        }
        Ok(())
    }

    /// Waits until the outbox is empty and the inbox has all; fails when nothing has moved for a while.
    async fn settle(&self, record: &Record) -> Result<()> {
        let (mut moved, mut seen) = (Instant::now(), (0, 0));
        loop {
            let health = self.sender.call("GET", "/v1/health", &[], "").await?.json();
            let count = |name: &str| health["outbox"][name].as_u64().unwrap_or(u64::MAX);
            let waiting = count("pending").saturating_add(count("inflight"));
            let received = verdict::count(self.receiver.home())?;
            if waiting == 0 && received >= record.count() {
                break;
            }
            if (waiting, received) != seen {
                (moved, seen) = (Instant::now(), (waiting, received));
            }
            ensure!(moved.elapsed() < PATIENCE, "{waiting} wait, {received} arrived");
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(AFTERMATH).await;
        Ok(())
    }
}

/// Asks until there is an answer.
async fn until<T>(mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(started.elapsed() < PATIENCE, "it takes too long");
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_killed_alone_and_with_others() {
        let mut dice = Dice::new(1);
        let drawn: Vec<usize> = (0..1_000).map(|_| some_of(&mut dice).len()).collect();
        assert!((1..=3).all(|len| drawn.contains(&len)));
        assert!(drawn.iter().all(|len| (1..=3).contains(len)));
    }
}
