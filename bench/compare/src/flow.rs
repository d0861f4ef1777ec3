//! Workload 2: publish, receive, ack; one reader, a hundred that each get everything, and sixteen that compete.
//!
//! A bounded number of messages is in flight: the next is published when one was confirmed and received by all who should.
//! What counts are deliveries whose ack was answered, or sent where a system answers none; what is timed is the way from
//! the publish to the reader's application. A stretch is over when everything that was published has come, so that
//! what is missing is known: in a fan-out of each reader, for two copies to one and none to another are as many.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::counting::{Counting, Marks};
use super::findings::{Case, Findings, Stretch, Workload};
use super::peer::{Peer, Place, Publish, Read, Readers};
use super::plan::Plan;
use super::server::{cpu_seconds, own_cpu_seconds};
use super::systems::{Systems, calm, turns};
use tenure_bench::ids::Dice;
use tenure_bench::sample::{Sample, Times};

/// Digits of a message's number at the beginning of its body.
pub(crate) const NUMBER: usize = 16;
/// Connections that publish.
const PUBLISHERS: usize = 16;
/// Messages whose times are remembered: many more than are ever in flight.
const REMEMBERED: usize = 1 << 16;
/// How long a stretch may take, with all that goes before and after it.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long nothing may come before what is missing counts as missing.
const SILENCE: Duration = Duration::from_secs(10);
/// How long readers go on once all is there, to see what comes twice.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(5);

/// Who reads, and how many messages are in flight meanwhile.
const SHAPES: [(&str, Readers, usize); 3] = [
    ("1:1", Readers::Competing(1), 256),
    ("1:100", Readers::Each(100), 16),
    ("16 competing", Readers::Competing(16), 256),
];

/// Measures all rounds of all systems.
pub(crate) async fn run(plan: &Plan, systems: &Systems, dir: &Path, findings: &mut Findings) -> Result<()> {
    for body in plan.flow_bodies.iter().copied() {
        for (name, readers, load) in SHAPES {
            let case = Case { workload: Workload::Flow, body, load, readers: name };
            for round in 0..plan.rounds {
                eprintln!("round {} of {}: {case}", round + 1, plan.rounds);
                let all: Vec<_> = systems.keeping().collect();
                for at in turns(case.seed(), round, all.len()) {
                    tokio::task::block_in_place(|| calm(dir));
                    let Some((kind, peer)) = all.get(at) else { continue };
                    let place = Place::new(format!("flow-{body}-{}-{round}", readers.count()), readers);
                    let found = stretch(*peer, &place, load, body, plan.times);
                    let found = tokio::time::timeout(PATIENCE, found).await.context("it does not end");
                    let found = found.and_then(|found| found);
                    findings.round(&case, kind.key(), found);
                }
            }
        }
    }
    Ok(())
}

/// One stretch in a place of its own.
async fn stretch(
    peer: &dyn Peer,
    place: &Place,
    load: usize,
    body: usize,
    times: (Duration, Duration),
) -> Result<Stretch> {
    peer.open(place).await.context("open a place")?;
    let mut readers = Vec::new();
    for index in 0..place.readers.count() {
        readers.push(peer.reader(place, index).await.with_context(|| format!("start reader {index}"))?);
    }
    let publishers = peer.publishers(place, load.min(PUBLISHERS)).await.context("start publishers")?;
    let publishers: Vec<Arc<dyn Publish>> = publishers.into_iter().map(Arc::from).collect();
    let found = measure(peer, &publishers, readers, place.readers.copies(), load, body, times).await;
    drop(publishers);
    peer.close(place).await.context("close a place")?;
    found
}

async fn measure(
    peer: &dyn Peer,
    publishers: &[Arc<dyn Publish>],
    readers: Vec<Box<dyn Read>>,
    copies: u32,
    load: usize,
    body: usize,
    times: (Duration, Duration),
) -> Result<Stretch> {
    let flow = Arc::new(Flow::new(copies, load));
    let mut reading = JoinSet::new();
    let shared = Arc::<Mutex<Marks>>::default();
    for reader in readers {
        // Of a fan-out everybody is to get everything once; of those who compete all together.
        let came = if copies > 1 { Arc::default() } else { shared.clone() };
        reading.spawn(read(reader, flow.clone(), came));
    }
    let filler: Arc<str> = Dice::new(0).text(body).into();
    let mut publishing = JoinSet::new();
    for publisher in publishers.iter().cycle().take(load).cloned() {
        publishing.spawn(publish(publisher, flow.clone(), filler.clone()));
    }
    let them = peer.pids();
    let read = || (cpu_seconds(&them), own_cpu_seconds());
    let enough = load as u64 * u64::from(copies);
    let (window, before, after) = flow.counting.run(times, enough, read).await;
    flow.stop();
    while let Some(task) = publishing.join_next().await {
        task??;
    }
    let missing = flow.rest(&mut reading).await?;
    tokio::time::sleep(AFTERMATH).await;
    let mut times = Times::default();
    reading.abort_all();
    while let Some(task) = reading.join_next().await {
        if let Ok(read) = task {
            read?;
        }
    }
    times.merge(flow.times());
    let settled = flow.settled.load(Ordering::Relaxed);
    let mut sample = Sample::new(window, times);
    (sample.count, sample.per_second) = (settled, settled as f64 / window.seconds());
    let stretch = Stretch::new(&sample, after.0 - before.0, after.1 - before.1);
    Ok(Stretch { missing, doubled: flow.doubled.load(Ordering::Relaxed), ..stretch })
}

/// What publishers and readers of a stretch share.
struct Flow {
    began: Instant,
    counting: Counting,
    copies: u32,
    /// Room in flight.
    room: Semaphore,
    stopped: AtomicBool,
    published: AtomicU64,
    received: AtomicU64,
    /// Acks within the window.
    settled: AtomicU64,
    doubled: AtomicU64,
    /// When each was published, in nanoseconds, and how many are still to get it.
    sent: Vec<AtomicU64>,
    left: Vec<AtomicU32>,
    times: Mutex<Times>,
}

impl Flow {
    fn new(copies: u32, load: usize) -> Flow {
        Flow {
            began: Instant::now(),
            counting: Counting::default(),
            copies,
            room: Semaphore::new(load),
            stopped: AtomicBool::new(false),
            published: AtomicU64::new(0),
            received: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
            sent: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
            left: (0..REMEMBERED).map(|_| AtomicU32::new(0)).collect(),
            times: Mutex::default(),
        }
    }

    fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Waits for room and gives the number of the next message; nothing when it is over.
    async fn next(&self) -> Option<u64> {
        let permit = self.room.acquire().await.ok()?;
        permit.forget();
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.published.fetch_add(1, Ordering::Relaxed);
        let at = number as usize % REMEMBERED;
        self.left[at].store(self.copies, Ordering::Relaxed);
        self.sent[at].store(self.nanos(), Ordering::Release);
        Some(number)
    }

    /// A reader was given a body; `came` is what it, or whoever it competes with, was given before.
    fn seen(&self, body: &[u8], came: &Mutex<Marks>, times: &mut Times) {
        let Some(number) = number(body) else { return };
        // Nor should a number come that nobody has published; so marks are bounded by what was published.
        let known = number < self.published.load(Ordering::Relaxed);
        if !known || !came.lock().unwrap_or_else(PoisonError::into_inner).set(number) {
            self.doubled.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let at = number as usize % REMEMBERED;
        let sent = self.sent[at].load(Ordering::Acquire);
        if self.counting.counts() {
            times.add(Duration::from_nanos(self.nanos().saturating_sub(sent)));
        }
        let left =
            self.left[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        self.received.fetch_add(1, Ordering::Relaxed);
        if left == Ok(1) {
            self.room.add_permits(1);
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Whoever waits for room finds that it is over.
        self.room.close();
    }

    /// Waits until all has come, or nothing comes any more; how many are missing.
    async fn rest(&self, reading: &mut JoinSet<Result<()>>) -> Result<u64> {
        let wanted = self.published.load(Ordering::Relaxed) * u64::from(self.copies);
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let received = self.received.load(Ordering::Relaxed);
            if received >= wanted {
                return Ok(0);
            }
            if let Some(ended) = reading.try_join_next() {
                ended?.context("a reader ended")?;
            }
            if received != seen {
                (seen, since) = (received, Instant::now());
            } else if since.elapsed() > SILENCE {
                return Ok(wanted - received);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn times(&self) -> Times {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The number at the beginning of a body.
pub(crate) fn number(body: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(body.get(..NUMBER)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

/// A body with its number.
pub(crate) fn numbered(filler: &str, number: u64) -> String {
    let mut body = String::with_capacity(filler.len().max(NUMBER));
    body.push_str(&format!("{number:016x}"));
    body.push_str(filler.get(NUMBER..).unwrap_or_default());
    body
}

async fn publish(publisher: Arc<dyn Publish>, flow: Arc<Flow>, filler: Arc<str>) -> Result<()> {
    while let Some(number) = flow.next().await {
        publisher.publish(&numbered(&filler, number)).await?;
    }
    Ok(())
}

async fn read(mut reader: Box<dyn Read>, flow: Arc<Flow>, came: Arc<Mutex<Marks>>) -> Result<()> {
    loop {
        let mut times = Times::default();
        let seen = |body: &[u8]| flow.seen(body, &came, &mut times);
        let settled = reader.read(&mut { seen }).await?;
        if flow.counting.happened(settled) {
            flow.settled.fetch_add(settled, Ordering::Relaxed);
        }
        if times.count() > 0 {
            flow.times.lock().unwrap_or_else(PoisonError::into_inner).merge(times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_carries_its_number_and_keeps_its_length() {
        let filler = Dice::new(0).text(128);
        let body = numbered(&filler, 0xbeef);
        assert_eq!((body.len(), number(body.as_bytes())), (128, Some(0xbeef)));
        assert_eq!(number(b"short"), None);
    }

    #[tokio::test]
    async fn room_is_given_back_when_the_last_reader_has_a_message() {
        let (flow, mut times) = (Flow::new(2, 1), Times::default());
        let [one, other] = [(); 2].map(|()| Mutex::<Marks>::default());
        let first = numbered("", flow.next().await.unwrap());
        let counts = || (flow.doubled.load(Ordering::Relaxed), flow.received.load(Ordering::Relaxed));
        flow.seen(first.as_bytes(), &one, &mut times);
        // A second copy to the same reader is not the other's.
        flow.seen(first.as_bytes(), &one, &mut times);
        assert_eq!((flow.room.available_permits(), counts()), (0, (1, 1)));
        flow.seen(first.as_bytes(), &other, &mut times);
        assert_eq!((flow.room.available_permits(), counts()), (1, (1, 2)));
        flow.seen(numbered("", 77).as_bytes(), &other, &mut times);
        assert_eq!(counts(), (2, 2), "nobody has published that");
    }
}
