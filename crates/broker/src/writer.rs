//! The store's one writer: a thread that takes what is waiting of all meshes, commits it as one transaction, and tells
//! them. What is one mesh's part of a transaction, and what is lost with one that fails, is `core::writing`'s to say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenure_core::accept::Accepted;
use tenure_core::effect::WriteId;
use tenure_core::record::{StoreOutcome, StoreWrite};
use tenure_core::writing::{Asking, BATCH, Batch, Load, Queued, Taking};
use tenure_proto::name::MeshName;
use tenure_store::{Store, StoreError, Write};
use tokio::sync::{mpsc, oneshot};

use crate::checkpoint::Bell;
use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// How often the run's uptime is recorded.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// What waits, shared by both ends of the queue.
#[derive(Debug, Default)]
struct Waiting {
    writes: AtomicUsize,
    bytes: AtomicUsize,
}

impl Waiting {
    fn load(&self) -> Load {
        Load { writes: self.writes.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    fn add(&self, load: Load) {
        self.writes.fetch_add(load.writes, Ordering::Relaxed);
        self.bytes.fetch_add(load.bytes, Ordering::Relaxed);
    }

    fn sub(&self, load: Load) {
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
struct Lane {
    number: u64,
    mesh: MeshName,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its writer.
    inputs: mpsc::WeakSender<MeshMsg>,
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

/// Starts the writer thread on `store`. It ends when nobody can ask it any more.
pub(crate) fn start(
    store: Box<dyn Store>,
    run: u64,
    shared: Arc<Shared>,
    bell: Bell,
) -> std::io::Result<(WriterHandle, std::thread::JoinHandle<()>)> {
    let (queue, queued) = channel();
    let waiting = Arc::new(Waiting::default());
    let beat = HEARTBEAT.min(Duration::from_millis(shared.house.config.lease_ttl_ms / 3));
    let beaten = Instant::now();
    let handle =
        WriterHandle { queue, waiting: waiting.clone(), lanes: Arc::default(), shared: shared.clone() };
    let lanes = BTreeMap::new();
    let writer = Writer { store, run, waiting, shared, bell, beat, beaten, lanes, last_lane: 0 };
    let thread =
        std::thread::Builder::new().name("tenure-writer".to_owned()).spawn(move || writer.run(&queued))?;
    Ok((handle, thread))
}

struct Writer {
    store: Box<dyn Store>,
    run: u64,
    waiting: Arc<Waiting>,
    shared: Arc<Shared>,
    /// Rung after each commit.
    bell: Bell,
    /// How often the run's uptime is recorded, and when it was last.
    beat: Duration,
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
            if self.lanes.values().all(Queue::is_empty) {
                match asked.recv_timeout(self.beat.saturating_sub(self.beaten.elapsed())) {
                    Ok(first) => self.sort(first),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            asked.try_iter().for_each(|next| self.sort(next));
            let batches = self.fill();
            self.commit(batches);
        }
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
        self.waiting.sub(batch.load());
        if self.shared.store_sound.swap(false, Ordering::Relaxed) {
            tracing::error!(event = "store_failed", "the store's writer is too far behind");
        }
        self.tell(lane, batch, Err(()));
    }

    fn commit(&mut self, mut batches: Vec<(u64, Batch)>) {
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
        if self.beaten.elapsed() >= self.beat {
            self.beaten = Instant::now();
            let frozen_ms = self.shared.frozen_ms.load(Ordering::Relaxed);
            let uptime_ms = self.shared.clock.at().0.saturating_sub(frozen_ms);
            writes.push(Write::Heartbeat { run: self.run, uptime_ms });
        }
        if writes.is_empty() {
            // All that was taken is lost with what failed before.
            return batches.iter().for_each(|(_, batch)| self.waiting.sub(batch.load()));
        }
        let outcome = self.store.apply(&writes);
        batches.iter().for_each(|(_, batch)| self.waiting.sub(batch.load()));
        let idle = self.waiting.load().writes == 0;
        let since = if idle { 0 } else { self.shared.clock.at().0 + 1 };
        self.shared.oldest_write.store(since, Ordering::Relaxed);
        self.note(&outcome, writes.len());
        if let Ok(outcomes) = &outcome {
            self.count(&writes, outcomes);
        }
        let mut outcomes = outcome.map(Vec::into_iter);
        for ((lane, batch), count) in batches.into_iter().zip(counts) {
            let part = outcomes.as_mut().map(|all| all.by_ref().take(count).collect()).map_err(|_| ());
            self.tell(lane, batch, part);
        }
    }

    fn note(&self, outcome: &tenure_store::Result<Vec<StoreOutcome>>, writes: usize) {
        let was_sound = self.shared.store_sound.swap(outcome.is_ok(), Ordering::Relaxed);
        self.shared.metrics.commits.inc();
        self.shared.metrics.writes.inc_by(writes as u64);
        match outcome {
            Ok(_) => {
                self.bell.ring();
                if !was_sound {
                    tracing::info!(event = "store_recovered");
                }
            }
            Err(error) => {
                self.shared.metrics.failed_commits.inc();
                // Said once: a full disk fails every transaction until a person has looked.
                if was_sound {
                    let poisoned = matches!(error, StoreError::Poisoned(_));
                    tracing::error!(event = "store_failed", poisoned, %error);
                }
            }
        }
    }

    fn count(&self, writes: &[Write], outcomes: &[StoreOutcome]) {
        let metrics = &self.shared.metrics;
        for (write, outcome) in writes.iter().zip(outcomes) {
            let Write::Mesh { write: StoreWrite::Accept(accept), .. } = write else { continue };
            match outcome {
                StoreOutcome::Accepted(Accepted::Fresh { .. }) => {
                    metrics.accepted.inc();
                    metrics.accepted_bytes.inc_by(accept.envelope.body.as_bytes().len() as u64);
                }
                StoreOutcome::Accepted(Accepted::Duplicate(_)) => _ = metrics.duplicates.inc(),
                StoreOutcome::Accepted(Accepted::Reused(_)) => _ = metrics.conflicts.inc(),
                _ => {}
            }
        }
    }

    fn tell(&mut self, lane: u64, batch: Batch, outcome: Result<Vec<StoreOutcome>, ()>) {
        let Some(queue) = self.lanes.get_mut(&lane) else { return };
        if let Some(input) = queue.taking.done(batch, outcome)
            && let Some(inputs) = queue.lane.inputs.upgrade()
        {
            // The mesh never waits for us, so this wait is for a queue that drains.
            let _ = inputs.blocking_send(MeshMsg::Input(input));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use ed25519_dalek::SigningKey;
    use tenure_core::host::Doors;
    use tenure_core::record::{RestoredMessages, TopicRecord};
    use tenure_core::{House, Input};
    use tenure_store::{Checkpointer, Identity, Memory, Result, Run, StoreReader, StoredLease};

    use super::*;
    use crate::Config;
    use crate::clock::Clock;

    /// A store that cannot write while it is told so.
    struct Flaky {
        inner: Memory,
        broken: Arc<AtomicBool>,
    }

    impl Store for Flaky {
        fn kind(&self) -> &'static str {
            "flaky"
        }
        fn identity(&mut self, fresh: &Identity) -> Result<Identity> {
            self.inner.identity(fresh)
        }
        fn begin_run(&mut self, now_wall_ms: u64) -> Result<Run> {
            self.inner.begin_run(now_wall_ms)
        }
        fn apply(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
            if self.broken.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable("no room".into()));
            }
            self.inner.apply(batch)
        }
        fn restore(&mut self, mesh: &MeshName) -> Result<RestoredMessages> {
            self.inner.restore(mesh)
        }
        fn meshes(&mut self) -> Result<Vec<MeshName>> {
            self.inner.meshes()
        }
        fn access(&mut self, mesh: &MeshName) -> Result<tenure_core::access::RestoredAccess> {
            self.inner.access(mesh)
        }
        fn reader(&self) -> Result<Box<dyn StoreReader>> {
            self.inner.reader()
        }
        fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>> {
            self.inner.checkpointer()
        }
        fn leases(&mut self) -> Result<Vec<StoredLease>> {
            self.inner.leases()
        }
        fn check(&mut self) -> Result<Vec<String>> {
            self.inner.check()
        }
    }

    fn topic(n: u64) -> (WriteId, StoreWrite) {
        let name = format!("t{n}").parse().unwrap();
        let record = TopicRecord { name, partitions: 1, retention_ms: None, created_at: n };
        (WriteId(n), StoreWrite::PutTopic(record))
    }

    fn told(inputs: &mut mpsc::Receiver<MeshMsg>) -> (bool, u64) {
        match inputs.blocking_recv() {
            Some(MeshMsg::Input(Input::Committed { through, .. })) => (true, through.0),
            Some(MeshMsg::Input(Input::Failed { through })) => (false, through.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_asked_for_before_a_failure_was_heard_fails_with_it() {
        let (key, config) = (SigningKey::from_bytes(&[1; 32]), Config::ephemeral(60_000));
        let house = House {
            broker_id: House::id_of(&key),
            version: String::new(),
            cluster: "c".parse().unwrap(),
            key,
            secure: false,
            relay: None,
            doors: Doors::loopback(1, &[], &[]),
            rooms: Default::default(),
            config: config.mesh.clone().into(),
        };
        let shared = Shared::new(config, Clock::start(), house, None, 1, "flaky");
        let broken = Arc::new(AtomicBool::new(false));
        let store = Flaky { inner: Memory::new(), broken: broken.clone() };
        let mesh: MeshName = "default".parse().unwrap();
        let (sender, mut inputs) = mpsc::channel(16);
        let (handle, thread) = start(Box::new(store), 1, shared.clone(), Bell::default()).unwrap();
        let mut writes = handle.lane(mesh, &sender);
        drop(handle);
        let push = |writes: &mut Writes, n| {
            let (id, write) = topic(n);
            assert!(writes.push(id, write));
        };
        push(&mut writes, 1);
        assert_eq!(told(&mut inputs), (true, 1));
        broken.store(true, Ordering::Relaxed);
        push(&mut writes, 2);
        assert_eq!(told(&mut inputs), (false, 2));
        assert!(!shared.store_sound.load(Ordering::Relaxed));
        // The mesh has not heard of it when it asks for more, which may rest on what was lost.
        broken.store(false, Ordering::Relaxed);
        push(&mut writes, 3);
        push(&mut writes, 4);
        assert_eq!(writes.fail_all(), WriteId(4));
        push(&mut writes, 5);
        assert_eq!(told(&mut inputs), (true, 5), "one failure is told once");
        assert!(shared.store_sound.load(Ordering::Relaxed));
        assert_eq!(shared.metrics.failed_commits.get(), 1);
        drop(writes);
        thread.join().unwrap();
        assert_eq!(shared.metrics.writes.get(), 3, "what was dropped was never tried");
    }
}
