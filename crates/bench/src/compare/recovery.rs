//! Workload 6: kill -9 with a backlog that nobody has read.
//!
//! A place is filled until as many messages as were asked for are confirmed, or time is up; the kill comes while publishes
//! are still under way. From the start of the new process: when is a new publish confirmed, and when is an old message
//! delivered? The kill is repeated, and in the end everything is read: whatever was confirmed and does not come is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::findings::{Findings, Recovery};
use super::flow::{number, numbered};
use super::peer::{Peer, Place, Publish, Readers, SOCKETS};
use super::peers::{Ground, Kind};
use super::plan::Plan;
use super::systems;
use crate::ids::Dice;
use crate::report::round;

/// Bytes of a body.
const BODY: usize = 128;
/// Publishes under way while filling.
const OUTSTANDING: usize = 4_096;
/// How long a server may take to be back.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a single try may take.
const TRY: Duration = Duration::from_secs(10);
/// Messages that are enough to know that old ones are delivered.
const ENOUGH: usize = 4_096;
/// How long nothing may come before what is missing counts as lost.
const SILENCE: Duration = Duration::from_secs(8);
/// How long to look for doubles once all is there.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(10);

/// Measures every system that keeps messages, one at a time; of ourselves the SDK, for what comes twice is judged as an
/// application sees it.
pub(crate) async fn run(plan: &Plan, kinds: &[Kind], ground: &Ground, findings: &mut Findings) -> Result<()> {
    for kind in kinds.iter().copied().filter(|kind| kind.keeps_messages() && *kind != Kind::Tenure) {
        eprintln!("{}: kill -9 with {} messages", kind.key(), plan.backlog);
        let Some(mut peer) = systems::one(kind, ground, findings).await else { continue };
        match one(plan, kind, &mut *peer).await {
            Ok(found) => findings.recoveries.push(found),
            Err(error) => findings.skip(kind.key(), Some("recovery"), format!("{error:#}")),
        }
    }
    Ok(())
}

async fn one(plan: &Plan, kind: Kind, peer: &mut dyn Peer) -> Result<Recovery> {
    let place = Place::new("backlog", Readers::Competing(1));
    peer.open(&place).await.context("open a place")?;
    let began = Instant::now();
    let book = fill(plan, peer, &place).await?;
    let fill_seconds = round(began.elapsed().as_secs_f64(), 1);
    let confirmed = book.confirmed.load(Ordering::Relaxed);
    let mut tally = Tally { confirmed: book.marks(), seen: Vec::new(), missing: confirmed };
    let (mut publish_ms, mut deliver_ms) = (Vec::new(), Vec::new());
    let first = book.next.load(Ordering::Relaxed);
    // A number that nobody has for what is published after each kill; the first kill was while filling.
    for next in first..first + plan.kills.max(1) as u64 {
        if next > first {
            tokio::task::block_in_place(|| peer.kill())?;
        }
        let started = Instant::now();
        tokio::task::block_in_place(|| peer.start_again())?;
        let published = first_publish(peer, &place, next, started);
        let delivered = first_delivery(peer, &place, started);
        let (published, delivered) = tokio::join!(published, delivered);
        publish_ms.push(round(published?.as_secs_f64() * 1_000.0, 1));
        tally.confirm(next);
        if let Ok((took, numbers)) = delivered {
            deliver_ms.push(round(took.as_secs_f64() * 1_000.0, 1));
            numbers.into_iter().for_each(|number| tally.saw(number));
        }
    }
    drain(peer, &place, &mut tally).await?;
    let (lost, doubled) = tally.verdict();
    let note = deliver_ms.is_empty().then(|| "nothing old was delivered".to_owned());
    let full = confirmed >= plan.backlog;
    let system = kind.key();
    Ok(Recovery { system, confirmed, full, fill_seconds, publish_ms, deliver_ms, lost, doubled, note })
}

/// What was published while filling.
struct Book {
    next: AtomicU64,
    confirmed: AtomicU64,
    marks: Vec<AtomicU64>,
}

impl Book {
    fn new(messages: u64) -> Book {
        // Those that are under way when the last is confirmed have numbers, too.
        let room = messages as usize + 4 * OUTSTANDING;
        Book { next: AtomicU64::new(0), confirmed: AtomicU64::new(0), marks: bits(room) }
    }

    fn confirm(&self, number: u64) {
        if let Some(word) = self.marks.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Relaxed);
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn marks(&self) -> Vec<u64> {
        self.marks.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

fn bits(count: usize) -> Vec<AtomicU64> {
    (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// Fills until enough is confirmed or time is up, then kills the server under those who still publish.
async fn fill(plan: &Plan, peer: &mut dyn Peer, place: &Place) -> Result<Arc<Book>> {
    let publishers = peer.publishers(place, SOCKETS).await.context("start publishers")?;
    let publishers: Vec<Arc<dyn Publish>> = publishers.into_iter().map(Arc::from).collect();
    let book = Arc::new(Book::new(plan.backlog));
    let filler: Arc<str> = Dice::new(0).text(BODY).into();
    let most = plan.backlog + 2 * OUTSTANDING as u64;
    let mut tasks = JoinSet::new();
    for publisher in publishers.iter().cycle().take(OUTSTANDING) {
        let (publisher, book, filler) = (publisher.clone(), book.clone(), filler.clone());
        tasks.spawn(async move {
            loop {
                let number = book.next.fetch_add(1, Ordering::Relaxed);
                if number >= most {
                    return Ok(());
                }
                publisher.publish(&numbered(&filler, number)).await?;
                book.confirm(number);
            }
        });
    }
    let deadline = Instant::now() + plan.fill;
    while book.confirmed.load(Ordering::Relaxed) < plan.backlog && Instant::now() < deadline {
        if let Some(ended) = tasks.try_join_next() {
            let ended: Result<()> = ended?;
            ended.context("a publish failed while filling")?;
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::task::block_in_place(|| peer.kill())?;
    // Whoever was not answered was promised nothing; an answer that was on its way still counts.
    let rest = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), rest).await;
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    Ok(book)
}

async fn first_publish(peer: &dyn Peer, place: &Place, number: u64, started: Instant) -> Result<Duration> {
    let body = numbered(&Dice::new(0).text(BODY), number);
    let attempt = async || {
        let publishers = peer.publishers(place, 1).await?;
        let publisher = publishers.first().context("no publisher")?;
        publisher.publish(&body).await
    };
    while started.elapsed() < PATIENCE {
        if let Ok(Ok(())) = tokio::time::timeout(TRY, attempt()).await {
            return Ok(started.elapsed());
        }
        tokio::time::sleep(LOOK).await;
    }
    anyhow::bail!("no publish was confirmed within {} s", PATIENCE.as_secs())
}

/// Waits for whatever comes first, and gives the numbers of all that came with it.
async fn first_delivery(peer: &dyn Peer, place: &Place, started: Instant) -> Result<(Duration, Vec<u64>)> {
    let attempt = async || {
        let mut reader = peer.reader(place, 0).await?;
        let (mut numbers, mut first) = (Vec::new(), None);
        // What is acked with the first must be answered before the reader goes, or it comes again.
        let (mut settled, began) = (0, Instant::now());
        while numbers.is_empty() || settled < numbers.len() as u64 {
            let mut seen = |body: &[u8]| {
                first.get_or_insert_with(|| started.elapsed());
                numbers.extend(number(body));
            };
            let read = reader.read(&mut seen);
            match tokio::time::timeout(TRY, read).await {
                Ok(count) => settled += count?,
                Err(_) if numbers.is_empty() => anyhow::bail!("nothing came"),
                Err(_) => break,
            }
            // Whoever only looks now and then finds nothing without being asked to wait.
            if numbers.is_empty() && began.elapsed() > TRY {
                anyhow::bail!("nothing came");
            }
            if numbers.len() >= ENOUGH {
                break;
            }
        }
        let took = first.context("nothing came")?;
        anyhow::Ok((took, numbers))
    };
    let mut tries = 0;
    while started.elapsed() < PATIENCE && tries < 3 {
        let before = Instant::now();
        match attempt().await {
            Ok(found) => return Ok(found),
            // Whoever connects and hears nothing for so long has nothing to hear.
            Err(_) if before.elapsed() >= TRY => tries += 1,
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
    anyhow::bail!("nothing old was delivered")
}

/// Reads everything that is left, until nothing has come for a while.
async fn drain(peer: &dyn Peer, place: &Place, tally: &mut Tally) -> Result<()> {
    let mut reader = peer.reader(place, 0).await.context("start a reader")?;
    let mut since = Instant::now();
    // Once all is there, a moment is enough to see what comes twice.
    while since.elapsed() < if tally.missing == 0 { AFTERMATH } else { SILENCE } {
        let patience = if tally.missing == 0 { AFTERMATH } else { SILENCE };
        let mut came = false;
        let mut seen = |body: &[u8]| {
            came = true;
            if let Some(number) = number(body) {
                tally.saw(number);
            }
        };
        match tokio::time::timeout(patience, reader.read(&mut seen)).await {
            Ok(read) => _ = read.context("read what is left")?,
            Err(_) => return Ok(()),
        }
        if came {
            since = Instant::now();
        }
    }
    Ok(())
}

/// Who was promised, and who came.
struct Tally {
    /// A bit for each number that was confirmed.
    confirmed: Vec<u64>,
    /// How often each number came.
    seen: Vec<u8>,
    /// How many of the confirmed have not come.
    missing: u64,
}

impl Tally {
    fn promised(&self, number: usize) -> bool {
        self.confirmed.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    fn confirm(&mut self, number: u64) {
        let at = number as usize / 64;
        if self.confirmed.len() <= at {
            self.confirmed.resize(at + 1, 0);
        }
        self.confirmed[at] |= 1 << (number % 64);
        if self.seen.get(number as usize).copied().unwrap_or(0) == 0 {
            self.missing += 1;
        }
    }

    fn saw(&mut self, number: u64) {
        let at = number as usize;
        if self.seen.len() <= at {
            self.seen.resize(at + 1, 0);
        }
        if self.seen[at] == 0 && self.promised(at) {
            self.missing = self.missing.saturating_sub(1);
        }
        self.seen[at] = self.seen[at].saturating_add(1);
    }

    /// How many were confirmed and never came, and how many came more than once.
    fn verdict(&self) -> (u64, u64) {
        let doubled = self.seen.iter().filter(|times| **times > 1).count();
        (self.missing, doubled as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_promises_that_were_not_kept() {
        let mut tally = Tally { confirmed: Vec::new(), seen: Vec::new(), missing: 0 };
        [1, 2, 70].into_iter().for_each(|number| tally.confirm(number));
        [2, 3, 70, 70].into_iter().for_each(|number| tally.saw(number));
        assert_eq!(tally.verdict(), (1, 1));
    }
}
