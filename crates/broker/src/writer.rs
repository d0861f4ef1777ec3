//! The store's one writer: a thread that takes what is waiting of all meshes and makes it one transaction; when that is on
//! the disk they are told, by `syncing` if there is more to write meanwhile. What is one mesh's part of a transaction, and
//! what is lost with one that fails, is `tenure_mesh::store::group_commit`'s to say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenure_mesh::Input;
use tenure_mesh::effect::WriteId;
use tenure_mesh::store::group_commit::{Asking, BATCH, Batch, Load, Queued, Taking};
use tenure_mesh::store::record::StoreWrite;
use tenure_proto::name::MeshName;
use tenure_store::{Store, Write};
use tokio::sync::{mpsc, oneshot};

use crate::StartError;
use crate::checkpoint::Bell;
use crate::mesh_task::MeshMsg;
use crate::shared::Shared;
use crate::syncing::{Staged, Syncing, Tally, Teller};

/// How often the run's uptime is recorded.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often it is in the beginning, and how long that is: a broker in a crash loop must not look as if it never ran.
const FIRST_HEARTBEATS: Duration = Duration::from_secs(1);
const BEGINNING: Duration = Duration::from_secs(10);

/// How long after the last record of a run's uptime the next is due, in a run that usually records it every `usual`.
fn beat_in(uptime: Duration, usual: Duration) -> Duration {
    if uptime < BEGINNING { usual.min(FIRST_HEARTBEATS) } else { usual }
}

/// What waits, shared by both ends of the queue.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    writes: AtomicUsize,
    bytes: AtomicUsize,
}

impl Waiting {
    pub(crate) fn load(&self) -> Load {
        Load { writes: self.writes.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    fn add(&self, load: Load) {
        self.writes.fetch_add(load.writes, Ordering::Relaxed);
        self.bytes.fetch_add(load.bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, load: Load) {
        self.writes.fetch_sub(load.writes, Ordering::Relaxed);
        self.bytes.fetch_sub(load.bytes, Ordering::Relaxed);
    }
}

/// Something that is done with the store.
type Work = dyn FnOnce(&mut dyn Store) + Send;

/// What the writer's thread is asked.
enum Asked {
    /// To write, for the mesh of this lane.
    Write(Arc<Lane>, Queued),
    /// To do something with the store between two transactions; a person waits for it.
    Do(Box<Work>),
}

/// Whose writes they are.
#[derive(Debug)]
pub(crate) struct Lane {
    number: u64,
    mesh: MeshName,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its writer.
    inputs: mpsc::WeakSender<MeshMsg>,
}

impl Lane {
    /// Tells the mesh, if it is still there and there is something to tell.
    pub(crate) fn tell(&self, input: Option<Input>) {
        if let (Some(input), Some(inputs)) = (input, self.inputs.upgrade()) {
            // The mesh never waits for us, so this wait is for a queue that drains.
            let _ = inputs.blocking_send(MeshMsg::Input(input));
        }
    }
}

/// The one writer of a broker, for all its meshes.
#[derive(Clone)]
pub(crate) struct WriterHandle {
    /// Bounded by `waiting`; the standard bounded queue would hold memory for its bound from the start.
    queue: Sender<Asked>,
    waiting: Arc<Waiting>,
    lanes: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for WriterHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriterHandle").finish_non_exhaustive()
    }
}

impl WriterHandle {
    /// The way of one mesh to it.
    pub(crate) fn lane(&self, mesh: MeshName, inputs: &mpsc::Sender<MeshMsg>) -> Writes {
        let number = self.lanes.fetch_add(1, Ordering::Relaxed);
        let lane = Arc::new(Lane { number, mesh, inputs: inputs.downgrade() });
        Writes { lane, writer: self.clone(), asking: Asking::default() }
    }

    /// Does something with the store, in the writer's thread; nothing when that is gone.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Store) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, told) = oneshot::channel();
        let work = Box::new(move |store: &mut dyn Store| _ = answer.send(work(store)));
        self.queue.send(Asked::Do(work)).ok()?;
        told.await.ok()
    }
}

/// How a mesh's task reaches the writer.
#[derive(Debug)]
pub(crate) struct Writes {
    lane: Arc<Lane>,
    writer: WriterHandle,
    asking: Asking,
}

impl Writes {
    /// Lets a write wait its turn. Never blocks. A write for which there is no room fails in its turn. `false` when
    /// the writer is gone, and then nothing that waits is answered any more.
    pub(crate) fn push(&mut self, id: WriteId, write: StoreWrite) -> bool {
        let WriterHandle { queue, waiting, shared, .. } = &self.writer;
        let since = shared.clock.at().0 + 1;
        let _ = shared.oldest_write.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        let queued = self.asking.ask(id, write, waiting.load());
        waiting.add(queued.load());
        queue.send(Asked::Write(self.lane.clone(), queued)).is_ok()
    }

    /// The mesh is about to hear of a failure, of everything that it has asked for: gives the last of that.
    pub(crate) fn fail_all(&mut self) -> WriteId {
        self.asking.fail_all()
    }
}

/// Starts the writer thread on `store`. It ends when nobody can ask it any more, and all that it wrote is told.
pub(crate) fn start(
    store: Box<dyn Store>,
    run: u64,
    shared: Arc<Shared>,
    bell: Bell,
) -> Result<(WriterHandle, std::thread::JoinHandle<()>), StartError> {
    let (queue, queued) = channel();
    let waiting = Arc::new(Waiting::default());
    let beat = HEARTBEAT.min(Duration::from_millis(shared.house.config.lease_ttl_ms / 3));
    let started = Instant::now();
    let handle =
        WriterHandle { queue, waiting: waiting.clone(), lanes: Arc::default(), shared: shared.clone() };
    let lanes = BTreeMap::new();
    let teller = Arc::new(Teller { waiting, shared, bell });
    let syncing = match (store.syncer()?, store.syncer()?) {
        (Some(here), Some(there)) => {
            Some(Syncing::start(here, there, teller.clone()).map_err(StartError::Thread)?)
        }
        _ => None,
    };
    let writer = Writer { store, run, teller, syncing, beat, started, beaten: started, lanes, last_lane: 0 };
    let thread = std::thread::Builder::new()
        .name("tenure-writer".to_owned())
        .spawn(move || writer.run(&queued))
        .map_err(StartError::Thread)?;
    Ok((handle, thread))
}

struct Writer {
    store: Box<dyn Store>,
    run: u64,
    teller: Arc<Teller>,
    /// Nothing if the store syncs while it writes.
    syncing: Option<Syncing>,
    /// How often the run's uptime is recorded, since when it runs, and when it was recorded last.
    beat: Duration,
    started: Instant,
    beaten: Instant,
    /// One for each mesh that has written.
    lanes: BTreeMap<u64, Queue>,
    /// The lane that was served first in the last round: the next begins behind it.
    last_lane: u64,
}

/// What waits of one mesh, taken from the queue of all.
struct Queue {
    lane: Arc<Lane>,
    /// Bounded, with what is still in the queue, by `waiting`.
    queued: VecDeque<Queued>,
    taking: Taking,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.queued.is_empty() && !self.taking.is_holding()
    }
}

impl Writer {
    fn run(mut self, asked: &Receiver<Asked>) {
        loop {
            if self.is_idle() {
                match asked.recv_timeout(self.beat_in().saturating_sub(self.beaten.elapsed())) {
                    Ok(first) => self.sort(first),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            asked.try_iter().for_each(|next| self.sort(next));
            let batches = self.fill();
            if let Some(staged) = self.stage(batches) {
                asked.try_iter().for_each(|next| self.sort(next));
                self.settle(staged);
            }
        }
        if let Some(syncing) = self.syncing {
            syncing.join();
        }
        // The next start compares the wall clock with when this run ended; if it cannot be written, with the last beat.
        if self.store.apply(&[heartbeat(self.run, &self.teller.shared)]).is_ok() {
            self.teller.bell.ring();
        }
        if let Err(error) = self.store.look_closely()
            && self.teller.shared.store_sound.swap(false, Ordering::Relaxed)
        {
            tracing::error!(event = "store_failed", poisoned = true, %error, "the next start refuses");
        }
    }

    /// How long after the last record of the run's uptime the next is due.
    fn beat_in(&self) -> Duration {
        beat_in(self.beaten.duration_since(self.started), self.beat)
    }

    /// Whether nothing waits.
    fn is_idle(&self) -> bool {
        self.lanes.values().all(Queue::is_empty)
    }

    /// Puts what was asked where it waits, or does it.
    fn sort(&mut self, asked: Asked) {
        match asked {
            Asked::Do(work) => work(self.store.as_mut()),
            Asked::Write(lane, queued) => {
                let fresh =
                    || Queue { lane: lane.clone(), queued: VecDeque::new(), taking: Taking::default() };
                self.lanes.entry(lane.number).or_insert_with(fresh).queued.push_back(queued);
            }
        }
    }

    /// What is one transaction: what waits of each mesh, in turn, until it is enough.
    fn fill(&mut self) -> Vec<(u64, Batch)> {
        let (mut batches, mut writes, mut refused) = (Vec::new(), 0, Vec::new());
        let behind = self.lanes.range(self.last_lane + 1..).chain(self.lanes.range(..=self.last_lane));
        let order: Vec<u64> =
            behind.filter(|(_, queue)| !queue.is_empty()).map(|(number, _)| *number).collect();
        self.last_lane = order.first().copied().unwrap_or_default();
        for number in order {
            let Some(queue) = self.lanes.get_mut(&number).filter(|_| writes < BATCH) else { break };
            let batch = queue.taking.fill(std::iter::from_fn(|| queue.queued.pop_front()));
            writes += batch.writes.len();
            let kind = if batch.is_refused() { &mut refused } else { &mut batches };
            kind.push((number, batch));
        }
        for (number, batch) in refused {
            self.refuse(number, batch);
        }
        batches
    }

    /// Fails a write for which there was no room.
    fn refuse(&mut self, lane: u64, batch: Batch) {
        self.catch_up();
        self.teller.waiting.sub(batch.load());
        if self.teller.shared.store_sound.swap(false, Ordering::Relaxed) {
            tracing::error!(event = "store_failed", "the store's writer is too far behind");
        }
        self.fail(lane, batch);
    }

    /// Makes one transaction of it all. Nothing if there is nothing to write, or it failed and everybody knows.
    fn stage(&mut self, mut batches: Vec<(u64, Batch)>) -> Option<Staged> {
        let mut writes =
            Vec::with_capacity(batches.iter().map(|(_, batch)| batch.writes.len()).sum::<usize>() + 1);
        let mut counts = Vec::with_capacity(batches.len());
        for (lane, batch) in &mut batches {
            let before = writes.len();
            if let Some(queue) = self.lanes.get(lane) {
                let of_mesh = |write| Write::Mesh { mesh: queue.lane.mesh.clone(), run: self.run, write };
                writes.extend(std::mem::take(&mut batch.writes).into_iter().map(of_mesh));
            }
            counts.push(writes.len() - before);
        }
        let shared = &self.teller.shared;
        if self.beaten.elapsed() >= self.beat_in() {
            self.beaten = Instant::now();
            writes.push(heartbeat(self.run, shared));
        }
        if writes.is_empty() {
            // All that was taken is lost with what failed before.
            batches.iter().for_each(|(_, batch)| self.teller.waiting.sub(batch.load()));
            return None;
        }
        let outcomes = match self.store.stage(&writes) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.catch_up();
                let load = batches.iter().map(|(_, batch)| batch.load());
                self.teller.over(load, writes.len(), Err(&error));
                batches.into_iter().for_each(|(lane, batch)| self.fail(lane, batch));
                return None;
            }
        };
        let tally = Tally::of(&writes, &outcomes);
        let mut outcomes = outcomes.into_iter();
        let parts = batches.into_iter().zip(counts).filter_map(|((lane, batch), count)| {
            let outcomes = outcomes.by_ref().take(count).collect();
            Some((self.lanes.get(&lane)?.lane.clone(), batch, outcomes))
        });
        Some(Staged { parts: parts.collect(), tally })
    }

    /// Sees to it that everybody is told when it is on the disk. A lone write waits for nobody: it is synced here, at once.
    fn settle(&mut self, staged: Staged) {
        let idle = self.is_idle();
        match &mut self.syncing {
            None => self.teller.committed(staged),
            Some(syncing) if idle && syncing.is_idle() => syncing.sync_here(staged),
            Some(syncing) => syncing.hand(staged),
        }
    }

    /// Waits until what went well is told, so that a failure is told, and noted, behind it.
    fn catch_up(&self) {
        self.syncing.iter().for_each(Syncing::catch_up);
    }

    /// Tells a mesh that its part has failed; what it asked for before it heard of that fails too.
    fn fail(&mut self, lane: u64, batch: Batch) {
        let Some(queue) = self.lanes.get_mut(&lane) else { return };
        let told = queue.taking.done(batch, Err(()));
        queue.lane.tell(told);
    }
}

/// How long the run has lasted, and the wall clock if it is believed.
fn heartbeat(run: u64, shared: &Shared) -> Write {
    let uptime_ms = shared.uptime_ms();
    let (now, clocks) = shared.clocks();
    let believed_at = (!clocks.are_astray()).then_some(now.wall);
    Write::Heartbeat { run, uptime_ms, believed_at }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
