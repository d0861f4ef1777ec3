//! Workload 3: latency at a fixed moderate rate.
//!
//! Messages are due at fixed times, whatever became of those before them, and every time is taken from when a message was
//! due: whoever stalls pays for all that was due meanwhile. Both floors are measured the same way. Of what comes, each
//! message counts once; what was spent is read at both ends of the window, like what was due in it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::counting::Marks;
use super::findings::{Case, Findings, Stretch, Workload};
use super::flow::{number, numbered};
use super::peer::{Fut, Peer, Place, Publish, Read, Readers};
use super::pipe::{DIGITS, Pipe};
use super::plan::Plan;
use super::publish::{FLOOR_APPEND, FLOOR_ECHO, Floors};
use super::server::{cpu_seconds, own_cpu_seconds};
use super::systems::{Systems, calm, turns};
use tenure_bench::ids::Dice;
use tenure_bench::sample::{Sample, Times, Window};
use tenure_bench::wire::{self, Wire};

/// Bytes of a body.
const BODY: usize = 1024;
/// Connections that publish, in turn.
const PUBLISHERS: usize = 4;
/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the reader goes on once all is there, to see what comes twice.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(5);
/// Rows of a stretch: to the confirmation, and to the reader.
type Pair = (Stretch, Option<Stretch>);

/// Measures all rounds of all systems.
pub(crate) async fn run(
    plan: &Plan,
    systems: &Systems,
    floors: &Floors,
    findings: &mut Findings,
) -> Result<()> {
    let case = |workload| {
        let readers = if workload == Workload::PacedReceive { "1:1" } else { "" };
        Case { workload, body: BODY, load: plan.rate, readers }
    };
    let (confirm, receive) = (case(Workload::PacedConfirm), case(Workload::PacedReceive));
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: {confirm}", round + 1, plan.rounds);
        findings.round(&confirm, FLOOR_APPEND, appended(plan, floors.dir()).await.map(|pair| pair.0));
        findings.round(&confirm, FLOOR_ECHO, echoed(plan, floors).await.map(|pair| pair.0));
        let all: Vec<_> = systems.keeping().collect();
        for at in turns(confirm.seed(), round, all.len()) {
            tokio::task::block_in_place(|| calm(floors.dir()));
            let Some((kind, peer)) = all.get(at) else { continue };
            match one(plan, *peer, round).await {
                Ok((confirmed, received)) => {
                    findings.round(&confirm, kind.key(), Ok(confirmed));
                    if let Some(received) = received {
                        findings.round(&receive, kind.key(), Ok(received));
                    }
                }
                Err(error) => findings.round(&confirm, kind.key(), Err(error)),
            }
        }
    }
    Ok(())
}

async fn one(plan: &Plan, peer: &dyn Peer, round: usize) -> Result<Pair> {
    let place = Place::new(format!("paced-{round}"), Readers::Competing(1));
    peer.open(&place).await.context("open a place")?;
    let reader = peer.reader(&place, 0).await.context("start a reader")?;
    let publishers = peer.publishers(&place, PUBLISHERS).await.context("start publishers")?;
    let found = stretch(plan, &peer.pids(), publishers, Some(reader)).await;
    peer.close(&place).await.context("close a place")?;
    found
}

async fn appended(plan: &Plan, dir: &Path) -> Result<Pair> {
    stretch(plan, &[], vec![Box::new(Append::start(dir)?)], None).await
}

async fn echoed(plan: &Plan, floors: &Floors) -> Result<Pair> {
    let mut publishers: Vec<Box<dyn Publish>> = Vec::new();
    for _ in 0..PUBLISHERS {
        publishers.push(Box::new(Echo(Pipe::new(Wire::open(&floors.echo().address, "/").await?))));
    }
    stretch(plan, &[floors.echo().pid()], publishers, None).await
}

/// One stretch: what is due is sent by whoever's turn it is.
async fn stretch(
    plan: &Plan,
    pids: &[u32],
    publishers: Vec<Box<dyn Publish>>,
    reader: Option<Box<dyn Read>>,
) -> Result<Pair> {
    let publishers: Vec<Arc<dyn Publish>> = publishers.into_iter().map(Arc::from).collect();
    let filler: Arc<str> = Dice::new(0).text(BODY).into();
    let reads = reader.is_some();
    let window = Window::after(plan.times.0, plan.paced);
    let schedule = Schedule { from: Instant::now(), every: Duration::from_secs(1) / plan.rate.max(1) as u32 };
    let total = ((window.until - schedule.from).as_secs_f64() / schedule.every.as_secs_f64()) as u64;
    let (told, mut due) = mpsc::unbounded_channel();
    // A thread of its own: the runtime's timer counts in milliseconds.
    std::thread::spawn(move || schedule.pace(total, &told));
    let received = Arc::new(Mutex::new(Received::new(total)));
    let mut reading = JoinSet::new();
    if let Some(reader) = reader {
        reading.spawn(read(reader, schedule, window, received.clone()));
    }
    let mut spending = JoinSet::new();
    spending.spawn(spent(window, pids.to_vec()));
    let mut sending = JoinSet::new();
    while let Some(number) = due.recv().await {
        let (publisher, filler) = (publishers[number as usize % publishers.len()].clone(), filler.clone());
        sending.spawn(async move {
            publisher.publish(&numbered(&filler, number)).await?;
            anyhow::Ok((number, Instant::now()))
        });
    }
    let mut confirmed = Times::default();
    let answers = async {
        while let Some(task) = sending.join_next().await {
            let (number, at) = task??;
            if window.has(schedule.due(number)) {
                confirmed.add(at.saturating_duration_since(schedule.due(number)));
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, answers).await.context("answers are missing")??;
    let (server, client) = spending.join_next().await.context("nobody looked at what was spent")??;
    let confirmed = Stretch::new(&Sample::new(window, confirmed), server, client);
    if !reads {
        return Ok((confirmed, None));
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && lock(&received).missing() > 0 {
        if let Some(ended) = reading.try_join_next() {
            ended?.context("the reader ended")?;
        }
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(AFTERMATH).await;
    let mut received = lock(&received);
    let (missing, doubled) = (received.missing(), received.doubled);
    let sample = Sample::new(window, std::mem::take(&mut received.times));
    Ok((confirmed, Some(Stretch { missing, doubled, ..Stretch::new(&sample, server, client) })))
}

/// Processor seconds of these and of ourselves within the window.
async fn spent(window: Window, pids: Vec<u32>) -> (f64, f64) {
    let read = || (cpu_seconds(&pids), own_cpu_seconds());
    tokio::time::sleep_until(window.from.into()).await;
    let before = read();
    tokio::time::sleep_until(window.until.into()).await;
    let after = read();
    (after.0 - before.0, after.1 - before.1)
}

/// What the reader was given, of so many.
struct Received {
    total: u64,
    came: Marks,
    count: u64,
    doubled: u64,
    times: Times,
}

impl Received {
    fn new(total: u64) -> Received {
        Received { total, came: Marks::default(), count: 0, doubled: 0, times: Times::default() }
    }

    fn missing(&self) -> u64 {
        self.total.saturating_sub(self.count)
    }

    /// Notes a number; whether it came for the first time. One that nobody sent came once too often, too.
    fn note(&mut self, number: u64) -> bool {
        let first = number < self.total && self.came.set(number);
        if first {
            self.count += 1;
        } else {
            self.doubled += 1;
        }
        first
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When messages are due.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    from: Instant,
    every: Duration,
}

impl Schedule {
    fn due(&self, number: u64) -> Instant {
        self.from + self.every.mul_f64(number as f64)
    }

    fn pace(&self, total: u64, told: &mpsc::UnboundedSender<u64>) {
        for number in 0..total {
            std::thread::sleep(self.due(number).saturating_duration_since(Instant::now()));
            if told.send(number).is_err() {
                return;
            }
        }
    }
}

async fn read(
    mut reader: Box<dyn Read>,
    schedule: Schedule,
    window: Window,
    received: Arc<Mutex<Received>>,
) -> Result<()> {
    loop {
        let mut seen = |body: &[u8]| {
            let (Some(number), now) = (number(body), Instant::now()) else { return };
            let mut received = lock(&received);
            if received.note(number) && window.has(schedule.due(number)) {
                received.times.add(now.saturating_duration_since(schedule.due(number)));
            }
        };
        reader.read(&mut seen).await?;
    }
}

/// What waits for the disk's floor: bytes, and who wants to know.
type Job = (Vec<u8>, oneshot::Sender<()>);

/// The floor of the disk: what waits together is appended and synced together.
struct Append {
    jobs: Sender<Job>,
}

impl Append {
    fn start(dir: &Path) -> Result<Append> {
        let path = dir.join("paced");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        let (jobs, waiting) = channel();
        std::thread::spawn(move || Append::run(file, &waiting));
        Ok(Append { jobs })
    }

    fn run(mut file: std::fs::File, waiting: &Receiver<Job>) {
        while let Ok(first) = waiting.recv() {
            let batch: Vec<Job> = std::iter::once(first).chain(waiting.try_iter()).collect();
            let bytes: Vec<u8> = batch.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
            if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
                // Whoever waits hears it by the closing of its channel.
                return;
            }
            for (_, done) in batch {
                let _ = done.send(());
            }
        }
    }
}

impl Publish for Append {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let (done, synced) = oneshot::channel();
            self.jobs.send((body.as_bytes().to_vec(), done)).ok().context("the disk's floor is gone")?;
            synced.await.context("the disk's floor is gone")
        })
    }
}

/// The floor of the network: a frame of the same size there, an answer of the same size back.
struct Echo(Pipe);

impl Publish for Echo {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(async move {
            let params = serde_json::json!({ "to": "topic:publish", "body": body });
            self.0.ask(&wire::request(&"0".repeat(DIGITS), "send", params)?).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_does_not_stand_for_what_is_missing() {
        let mut received = Received::new(3);
        assert!(received.note(0) && received.note(2) && !received.note(2) && !received.note(9));
        assert_eq!((received.missing(), received.doubled), (1, 2));
    }
}
