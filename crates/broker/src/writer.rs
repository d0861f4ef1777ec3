//! The store's one writer: a thread that takes what is waiting, commits it as one transaction, and tells the
//! mesh. A lone write commits at once; many share one sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenure_core::Input;
use tenure_core::effect::{LeaseWrite, WriteId};
use tenure_proto::name::MeshName;
use tenure_store::{LeaseRow, Store, StoreError, Write};
use tokio::sync::mpsc;

use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// Writes in one transaction.
const BATCH: usize = 4_096;
/// Writes that may wait; a mesh holds at most one open write per lease, so this is never met by default.
const WAITING: usize = 262_144;
/// How often the run's uptime is recorded.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How the mesh's task reaches the writer.
#[derive(Debug)]
pub(crate) struct Writes {
    /// Bounded by `waiting`; the standard bounded queue would hold memory for its bound from the start.
    queue: Sender<(WriteId, LeaseWrite)>,
    waiting: Arc<AtomicUsize>,
    shared: Arc<Shared>,
}

impl Writes {
    /// Lets a write wait its turn. Never blocks; past the bound the writer is as good as dead, and the mesh
    /// hears of it by the writes that never commit.
    pub(crate) fn push(&self, id: WriteId, write: LeaseWrite) {
        let since = self.shared.clock.at().0 + 1;
        let _ = self.shared.oldest_write.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        let room = self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING;
        if !room || self.queue.send((id, write)).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(event = "writer_unreachable", "the store's writer takes no more writes");
        }
    }
}

/// Starts the writer thread on `store`.
pub(crate) fn start(
    store: Box<dyn Store>,
    mesh: MeshName,
    run: u64,
    shared: Arc<Shared>,
    inputs: mpsc::Sender<MeshMsg>,
) -> std::io::Result<(Writes, std::thread::JoinHandle<()>)> {
    let (queue, queued) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let beat = HEARTBEAT.min(Duration::from_millis(shared.config.mesh.lease_ttl_ms / 3));
    let (inputs, beaten) = (inputs.downgrade(), Instant::now());
    let writes = Writes { queue, waiting: waiting.clone(), shared: shared.clone() };
    let writer = Writer { store, mesh, run, waiting, shared, inputs, beat, beaten };
    let thread =
        std::thread::Builder::new().name("tenure-writer".to_owned()).spawn(move || writer.run(&queued))?;
    Ok((writes, thread))
}

struct Writer {
    store: Box<dyn Store>,
    mesh: MeshName,
    run: u64,
    waiting: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its writer.
    inputs: mpsc::WeakSender<MeshMsg>,
    /// How often the run's uptime is recorded, and when it was last.
    beat: Duration,
    beaten: Instant,
}

impl Writer {
    fn run(mut self, queued: &Receiver<(WriteId, LeaseWrite)>) {
        let mut batch = Vec::new();
        loop {
            match queued.recv_timeout(self.beat.saturating_sub(self.beaten.elapsed())) {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            batch.extend(queued.try_iter().take(BATCH - batch.len()));
            self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
            self.commit(&mut batch);
        }
        self.commit(&mut batch);
    }

    fn commit(&mut self, batch: &mut Vec<(WriteId, LeaseWrite)>) {
        let last = batch.last().map(|(id, _)| *id);
        let mut writes: Vec<Write> = batch.drain(..).map(|(_, write)| self.stored(write)).collect();
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
        let since = if self.waiting.load(Ordering::Relaxed) == 0 { 0 } else { self.shared.clock.at().0 + 1 };
        self.shared.oldest_write.store(since, Ordering::Relaxed);
        let was_sound = self.shared.store_sound.swap(outcome.is_ok(), Ordering::Relaxed);
        self.shared.metrics.commits.inc();
        self.shared.metrics.writes.inc_by(writes.len() as u64);
        match &outcome {
            Ok(()) if !was_sound => tracing::info!(event = "store_recovered"),
            Ok(()) => {}
            Err(error) => {
                self.shared.metrics.failed_commits.inc();
                // Said once: a full disk fails every transaction until a person has looked.
                if was_sound {
                    let poisoned = matches!(error, StoreError::Poisoned(_));
                    tracing::error!(event = "store_failed", poisoned, %error);
                }
            }
        }
        let (Some(through), Some(inputs)) = (last, self.inputs.upgrade()) else { return };
        let input = match outcome {
            Ok(()) => Input::Committed { through },
            Err(_) => Input::Failed { through },
        };
        // The mesh never waits for us, so this wait is for a queue that drains.
        let _ = inputs.blocking_send(MeshMsg::Input(input));
    }

    fn stored(&self, write: LeaseWrite) -> Write {
        let mesh = self.mesh.clone();
        match write {
            LeaseWrite::Put(record) => Write::PutLease(Box::new(LeaseRow {
                mesh,
                session: record.session,
                lease: record.lease,
                member: record.member,
                instance: record.instance,
                profile: record.profile,
                caps: record.caps,
                joined_at: record.joined_at,
                touched_run: self.run,
            })),
            LeaseWrite::Touch(session, lease) => Write::TouchLease { mesh, session, lease, run: self.run },
            LeaseWrite::End(session, lease) => Write::EndLease { mesh, session, lease },
        }
    }
}
