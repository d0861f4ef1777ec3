//! The store's one writer: a thread that takes what is waiting, commits it as one transaction, and tells the
//! mesh. A lone write commits at once; many share one sync.
//!
//! When a transaction fails, so does everything that the mesh asked for before it heard of that, because it may
//! rest on what was lost. The epochs of both ends count failures: what is of an older epoch than the writer's is
//! dropped, and the mesh's task tells the mesh that all of it failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenure_core::Input;
use tenure_core::accept::Accepted;
use tenure_core::effect::WriteId;
use tenure_core::record::{StoreOutcome, StoreWrite};
use tenure_proto::name::MeshName;
use tenure_store::{Store, StoreError, Write};
use tokio::sync::mpsc;

use crate::checkpoint::Bell;
use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// Writes in one transaction.
const BATCH: usize = 4_096;
/// Bytes of messages in one transaction, unless the first alone is more.
const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// Writes that may wait; one more fails.
const WAITING: usize = 262_144;
/// Bytes of messages that may wait; past it the next fails.
const WAITING_BYTES: usize = 256 * 1024 * 1024;
/// How often the run's uptime is recorded.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A write that waits its turn.
#[derive(Debug)]
struct Queued {
    id: WriteId,
    /// Failures that the mesh had heard of when it asked.
    epoch: u64,
    /// Nothing if there was no room for it: it fails when its turn comes.
    write: Option<StoreWrite>,
    bytes: usize,
}

/// What waits, shared by both ends of the queue.
#[derive(Debug, Default)]
struct Waiting {
    writes: AtomicUsize,
    bytes: AtomicUsize,
}

/// How the mesh's task reaches the writer.
#[derive(Debug)]
pub(crate) struct Writes {
    /// Bounded by `waiting`; the standard bounded queue would hold memory for its bound from the start.
    queue: Sender<Queued>,
    waiting: Arc<Waiting>,
    epoch: u64,
    last: WriteId,
    shared: Arc<Shared>,
}

impl Writes {
    /// Lets a write wait its turn. Never blocks. A write for which there is no room fails in its turn. `false` when
    /// the writer is gone, and then nothing that waits is answered any more.
    pub(crate) fn push(&mut self, id: WriteId, write: StoreWrite) -> bool {
        self.last = id;
        let since = self.shared.clock.at().0 + 1;
        let _ = self.shared.oldest_write.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        let size = match &write {
            StoreWrite::Accept(accept) => accept.envelope.weight(),
            _ => 0,
        };
        let before = self.waiting.writes.fetch_add(1, Ordering::Relaxed);
        let held = self.waiting.bytes.fetch_add(size, Ordering::Relaxed);
        let fits = before < WAITING && held < WAITING_BYTES;
        if !fits {
            self.waiting.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        let (write, bytes) = if fits { (Some(write), size) } else { (None, 0) };
        self.queue.send(Queued { id, epoch: self.epoch, write, bytes }).is_ok()
    }

    /// The mesh is about to hear of a failure, of everything that it has asked for: gives the last of that. What it
    /// asks for from here on does not rest on what was lost.
    pub(crate) fn fail_all(&mut self) -> WriteId {
        self.epoch += 1;
        self.last
    }
}

/// Starts the writer thread on `store`.
pub(crate) fn start(
    store: Box<dyn Store>,
    mesh: MeshName,
    run: u64,
    shared: Arc<Shared>,
    inputs: &mpsc::Sender<MeshMsg>,
    bell: Bell,
) -> std::io::Result<(Writes, std::thread::JoinHandle<()>)> {
    let (queue, queued) = channel();
    let waiting = Arc::new(Waiting::default());
    let beat = HEARTBEAT.min(Duration::from_millis(shared.house.config.lease_ttl_ms / 3));
    let (inputs, beaten) = (inputs.downgrade(), Instant::now());
    let writes =
        Writes { queue, waiting: waiting.clone(), epoch: 0, last: WriteId(0), shared: shared.clone() };
    let writer =
        Writer { store, mesh, run, waiting, shared, inputs, bell, beat, beaten, epoch: 0, held: None };
    let thread =
        std::thread::Builder::new().name("tenure-writer".to_owned()).spawn(move || writer.run(&queued))?;
    Ok((writes, thread))
}

struct Writer {
    store: Box<dyn Store>,
    mesh: MeshName,
    run: u64,
    waiting: Arc<Waiting>,
    shared: Arc<Shared>,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its writer.
    inputs: mpsc::WeakSender<MeshMsg>,
    /// Rung after each commit.
    bell: Bell,
    /// How often the run's uptime is recorded, and when it was last.
    beat: Duration,
    beaten: Instant,
    /// Failures that the mesh was told of.
    epoch: u64,
    /// What was taken from the queue and did not fit the last batch.
    held: Option<Queued>,
}

impl Writer {
    fn run(mut self, queued: &Receiver<Queued>) {
        let mut batch = Vec::new();
        loop {
            let first = match self.held.take() {
                Some(held) => Some(held),
                None => match queued.recv_timeout(self.beat.saturating_sub(self.beaten.elapsed())) {
                    Ok(first) => Some(first),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                },
            };
            match first {
                Some(lost) if lost.epoch < self.epoch => self.taken(1, lost.bytes),
                Some(Queued { id, write: None, .. }) => self.refuse(id),
                first => {
                    self.fill(&mut batch, first, queued);
                    self.commit(&mut batch);
                }
            }
        }
    }

    /// Takes what is waiting, up to the bounds of a transaction or to the first that must fail.
    fn fill(&mut self, batch: &mut Vec<Queued>, first: Option<Queued>, queued: &Receiver<Queued>) {
        let mut bytes = 0;
        for next in first.into_iter().chain(queued.try_iter()) {
            if next.write.is_none() || (bytes + next.bytes > BATCH_BYTES && !batch.is_empty()) {
                self.held = Some(next);
                return;
            }
            bytes += next.bytes;
            batch.push(next);
            if batch.len() >= BATCH {
                return;
            }
        }
    }

    /// Fails a write for which there was no room.
    fn refuse(&mut self, id: WriteId) {
        self.taken(1, 0);
        if self.shared.store_sound.swap(false, Ordering::Relaxed) {
            tracing::error!(event = "store_failed", "the store's writer is too far behind");
        }
        self.fail(id);
    }

    fn taken(&self, writes: usize, bytes: usize) {
        self.waiting.writes.fetch_sub(writes, Ordering::Relaxed);
        self.waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn commit(&mut self, batch: &mut Vec<Queued>) {
        let (count, bytes) = (batch.len(), batch.iter().map(|queued| queued.bytes).sum());
        let (mut ids, mut writes) = (Vec::with_capacity(count), Vec::with_capacity(count + 1));
        for Queued { id, write, .. } in batch.drain(..) {
            let Some(write) = write else { continue };
            ids.push(id);
            writes.push(Write::Mesh { mesh: self.mesh.clone(), run: self.run, write });
        }
        if self.beaten.elapsed() >= self.beat {
            self.beaten = Instant::now();
            let frozen_ms = self.shared.frozen_ms.load(Ordering::Relaxed);
            let uptime_ms = self.shared.clock.at().0.saturating_sub(frozen_ms);
            writes.push(Write::Heartbeat { run: self.run, uptime_ms });
        }
        if writes.is_empty() {
            return;
        }
        let outcome = self.store.apply(&writes);
        self.taken(count, bytes);
        let idle = self.waiting.writes.load(Ordering::Relaxed) == 0;
        let since = if idle { 0 } else { self.shared.clock.at().0 + 1 };
        self.shared.oldest_write.store(since, Ordering::Relaxed);
        self.note(&outcome, writes.len());
        let Some(through) = ids.last().copied() else { return };
        match outcome {
            Ok(outcomes) => {
                self.count(&writes, &outcomes);
                let told = |(_, outcome): &(WriteId, StoreOutcome)| *outcome != StoreOutcome::Done;
                let outcomes: Vec<_> = ids.into_iter().zip(outcomes).filter(told).collect();
                self.tell(Input::Committed { through, outcomes });
            }
            Err(_) => self.fail(through),
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

    /// Nothing up to `through` took effect, and nothing else will that was asked for before this is heard.
    fn fail(&mut self, through: WriteId) {
        self.epoch += 1;
        self.tell(Input::Failed { through });
    }

    fn tell(&self, input: Input) {
        if let Some(inputs) = self.inputs.upgrade() {
            // The mesh never waits for us, so this wait is for a queue that drains.
            let _ = inputs.blocking_send(MeshMsg::Input(input));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use ed25519_dalek::SigningKey;
    use tenure_core::House;
    use tenure_core::host::Doors;
    use tenure_core::record::{RestoredMessages, TopicRecord};
    use tenure_store::{Checkpointer, Identity, Memory, Result, Run, Settings, StoreReader, StoredLease};

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
        fn reader(&self) -> Result<Box<dyn StoreReader>> {
            self.inner.reader()
        }
        fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>> {
            self.inner.checkpointer()
        }
        fn leases(&mut self) -> Result<Vec<StoredLease>> {
            self.inner.leases()
        }
        fn settings(&mut self) -> Result<Settings> {
            self.inner.settings()
        }
        fn put_setting(&mut self, version: u64, key: &str, value: Option<serde_json::Value>) -> Result<u64> {
            self.inner.put_setting(version, key, value)
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
            doors: Doors::loopback(1, &[], &[]),
            mesh: "default".parse().unwrap(),
            config: config.mesh.clone(),
        };
        let shared = Shared::new(config, Clock::start(), house, "flaky");
        let broken = Arc::new(AtomicBool::new(false));
        let store = Flaky { inner: Memory::new(), broken: broken.clone() };
        let mesh: MeshName = "default".parse().unwrap();
        let (sender, mut inputs) = mpsc::channel(16);
        let (mut writes, thread) =
            start(Box::new(store), mesh.clone(), 1, shared.clone(), &sender, Bell::default()).unwrap();
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
