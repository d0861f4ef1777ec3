//! The store's one writer: a thread that takes what is waiting, commits it as one transaction, and tells the
//! mesh. What is one transaction, and what is lost with one that fails, is `core::writing`'s to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenure_core::accept::Accepted;
use tenure_core::effect::WriteId;
use tenure_core::record::{StoreOutcome, StoreWrite};
use tenure_core::writing::{Asking, Batch, Load, Queued, Taking};
use tenure_proto::name::MeshName;
use tenure_store::{Store, StoreError, Write};
use tokio::sync::mpsc;

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

/// How the mesh's task reaches the writer.
#[derive(Debug)]
pub(crate) struct Writes {
    /// Bounded by `waiting`; the standard bounded queue would hold memory for its bound from the start.
    queue: Sender<Queued>,
    waiting: Arc<Waiting>,
    asking: Asking,
    shared: Arc<Shared>,
}

impl Writes {
    /// Lets a write wait its turn. Never blocks. A write for which there is no room fails in its turn. `false` when
    /// the writer is gone, and then nothing that waits is answered any more.
    pub(crate) fn push(&mut self, id: WriteId, write: StoreWrite) -> bool {
        let since = self.shared.clock.at().0 + 1;
        let _ = self.shared.oldest_write.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        // Nobody else adds to what waits.
        let queued = self.asking.ask(id, write, self.waiting.load());
        self.waiting.add(queued.load());
        self.queue.send(queued).is_ok()
    }

    /// The mesh is about to hear of a failure, of everything that it has asked for: gives the last of that.
    pub(crate) fn fail_all(&mut self) -> WriteId {
        self.asking.fail_all()
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
        Writes { queue, waiting: waiting.clone(), asking: Asking::default(), shared: shared.clone() };
    let taking = Taking::default();
    let writer = Writer { store, mesh, run, waiting, shared, inputs, bell, beat, beaten, taking };
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
    taking: Taking,
}

impl Writer {
    fn run(mut self, queued: &Receiver<Queued>) {
        loop {
            let first = if self.taking.is_holding() {
                None
            } else {
                match queued.recv_timeout(self.beat.saturating_sub(self.beaten.elapsed())) {
                    Ok(first) => Some(first),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            };
            let batch = self.taking.fill(first.into_iter().chain(queued.try_iter()));
            if batch.is_refused() { self.refuse(batch) } else { self.commit(batch) }
        }
    }

    /// Fails a write for which there was no room.
    fn refuse(&mut self, batch: Batch) {
        self.waiting.sub(batch.load());
        if self.shared.store_sound.swap(false, Ordering::Relaxed) {
            tracing::error!(event = "store_failed", "the store's writer is too far behind");
        }
        self.tell(batch, Err(()));
    }

    fn commit(&mut self, mut batch: Batch) {
        let mut writes = Vec::with_capacity(batch.writes.len() + 1);
        let of_mesh = |write| Write::Mesh { mesh: self.mesh.clone(), run: self.run, write };
        writes.extend(std::mem::take(&mut batch.writes).into_iter().map(of_mesh));
        if self.beaten.elapsed() >= self.beat {
            self.beaten = Instant::now();
            let frozen_ms = self.shared.frozen_ms.load(Ordering::Relaxed);
            let uptime_ms = self.shared.clock.at().0.saturating_sub(frozen_ms);
            writes.push(Write::Heartbeat { run: self.run, uptime_ms });
        }
        if writes.is_empty() {
            // All that was taken is lost with what failed before.
            return self.waiting.sub(batch.load());
        }
        let outcome = self.store.apply(&writes);
        self.waiting.sub(batch.load());
        let idle = self.waiting.load().writes == 0;
        let since = if idle { 0 } else { self.shared.clock.at().0 + 1 };
        self.shared.oldest_write.store(since, Ordering::Relaxed);
        self.note(&outcome, writes.len());
        if let Ok(outcomes) = &outcome {
            self.count(&writes, outcomes);
        }
        self.tell(batch, outcome);
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

    fn tell<E>(&mut self, batch: Batch, outcome: Result<Vec<StoreOutcome>, E>) {
        if let Some(input) = self.taking.done(batch, outcome)
            && let Some(inputs) = self.inputs.upgrade()
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
            secure: false,
            relay: None,
            doors: Doors::loopback(1, &[], &[]),
            mesh: "default".parse().unwrap(),
            config: config.mesh.clone(),
        };
        let shared = Shared::new(config, Clock::start(), house, None, 1, "flaky");
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
