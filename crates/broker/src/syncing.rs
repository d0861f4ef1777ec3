//! Waiting for the disk beside the writer: a thread that syncs one transaction and tells the meshes of it, while the writer
//! fills the next.
//!
//! One transaction is being synced and one is staged behind it, never more: what comes meanwhile shares the one after. A
//! sync that fails is the last: the store is poisoned, and all that was staged is lost with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tenure_mesh::messages::accept::Accepted;
use tenure_mesh::store::group_commit::{Batch, Load};
use tenure_mesh::store::record::{StoreOutcome, StoreWrite};
use tenure_store::{StoreError, Syncer, Write};

use crate::checkpoint::Bell;
use crate::shared::Shared;
use crate::writer::{Lane, Waiting};

/// A transaction that is over and need not be on the disk yet.
pub(crate) struct Staged {
    /// Each mesh's part, and what came of it.
    pub(crate) parts: Vec<(Arc<Lane>, Batch, Vec<StoreOutcome>)>,
    pub(crate) tally: Tally,
}

/// What a transaction counts for, once it is on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    writes: usize,
    accepted: u64,
    accepted_bytes: u64,
    duplicates: u64,
    conflicts: u64,
}

impl Tally {
    /// Counts `writes` by what came of them.
    pub(crate) fn of(writes: &[Write], outcomes: &[StoreOutcome]) -> Tally {
        let mut tally = Tally { writes: writes.len(), ..Tally::default() };
        for (write, outcome) in writes.iter().zip(outcomes) {
            let Write::Mesh { write: StoreWrite::Accept(accept), .. } = write else { continue };
            match outcome {
                StoreOutcome::Accepted(Accepted::Fresh { .. }) => {
                    tally.accepted += 1;
                    tally.accepted_bytes += accept.envelope.body.as_bytes().len() as u64;
                }
                StoreOutcome::Accepted(Accepted::Duplicate(_)) => tally.duplicates += 1,
                StoreOutcome::Accepted(Accepted::Reused(_)) => tally.conflicts += 1,
                _ => {}
            }
        }
        tally
    }
}

/// What is done when a transaction is on the disk, or lost.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) shared: Arc<Shared>,
    /// Rung after each commit.
    pub(crate) bell: Bell,
}

impl Teller {
    /// It is on the disk.
    pub(crate) fn committed(&self, staged: Staged) {
        let Staged { parts, tally } = staged;
        self.over(parts.iter().map(|(_, batch, _)| batch.load()), tally.writes, Ok(()));
        let metrics = &self.shared.metrics;
        metrics.accepted.inc_by(tally.accepted);
        metrics.accepted_bytes.inc_by(tally.accepted_bytes);
        metrics.duplicates.inc_by(tally.duplicates);
        metrics.conflicts.inc_by(tally.conflicts);
        for (lane, batch, outcomes) in parts {
            lane.tell(batch.committed(outcomes));
        }
    }

    /// It may be on the disk or not, and nothing is written any more.
    fn lost(&self, staged: Staged, error: &StoreError) {
        let Staged { parts, tally } = staged;
        self.over(parts.iter().map(|(_, batch, _)| batch.load()), tally.writes, Err(error));
        for (lane, batch, _) in parts {
            lane.tell(batch.lost());
        }
    }

    /// A transaction of so many writes is over: it waits no more, and how it went is noted.
    pub(crate) fn over(
        &self,
        loads: impl Iterator<Item = Load>,
        writes: usize,
        outcome: Result<(), &StoreError>,
    ) {
        loads.for_each(|load| self.waiting.sub(load));
        let idle = self.waiting.load().writes == 0;
        let since = if idle { 0 } else { self.shared.clock.at().0 + 1 };
        self.shared.oldest_write.store(since, Ordering::Relaxed);
        let was_sound = self.shared.store_sound.swap(outcome.is_ok(), Ordering::Relaxed);
        self.shared.metrics.commits.inc();
        self.shared.metrics.writes.inc_by(writes as u64);
        match outcome {
            Ok(()) => {
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
}

/// The writer's way to the thread that syncs, and how it syncs without it.
pub(crate) struct Syncing {
    syncer: Box<dyn Syncer>,
    teller: Arc<Teller>,
    /// Holds nothing: the writer waits here until what is being synced is told.
    queue: SyncSender<Option<Staged>>,
    /// Transactions that the thread was handed, and how many of them it has told.
    handed: u64,
    told: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Syncing {
    /// Starts the thread, which syncs with `there`.
    pub(crate) fn start(
        here: Box<dyn Syncer>,
        there: Box<dyn Syncer>,
        teller: Arc<Teller>,
    ) -> std::io::Result<Syncing> {
        let (queue, staged) = sync_channel(0);
        let told = Arc::new(AtomicU64::new(0));
        let (counted, telling) = (told.clone(), teller.clone());
        let thread = std::thread::Builder::new()
            .name("tenure-syncer".to_owned())
            .spawn(move || run(there, &staged, &telling, &counted))?;
        Ok(Syncing { syncer: here, teller, queue, handed: 0, told, thread })
    }

    /// Whether all that was handed over is told.
    pub(crate) fn is_idle(&self) -> bool {
        self.told.load(Ordering::Acquire) == self.handed
    }

    /// Syncs in the writer's thread. Only when all that was handed over is told, so that meshes hear in order.
    pub(crate) fn sync_here(&mut self, staged: Staged) {
        sync(self.syncer.as_mut(), staged, &self.teller);
    }

    /// Hands a transaction to the thread; waits until the one before it is told.
    pub(crate) fn hand(&mut self, staged: Staged) {
        match self.queue.send(Some(staged)) {
            Ok(()) => self.handed += 1,
            Err(unheard) => _ = unheard.0.map(|staged| self.sync_here(staged)),
        }
    }

    /// Waits until all that was handed over is told.
    pub(crate) fn catch_up(&self) {
        if !self.is_idle() {
            // It is taken when the thread has nothing else to do.
            let _ = self.queue.send(None);
        }
    }

    /// Waits until everything is told.
    pub(crate) fn join(self) {
        drop(self.queue);
        // A thread that panicked has said so.
        let _ = self.thread.join();
    }
}

fn run(mut syncer: Box<dyn Syncer>, queue: &Receiver<Option<Staged>>, teller: &Teller, told: &AtomicU64) {
    while let Ok(next) = queue.recv() {
        if let Some(staged) = next {
            sync(syncer.as_mut(), staged, teller);
            told.fetch_add(1, Ordering::Release);
        }
    }
}

fn sync(syncer: &mut dyn Syncer, staged: Staged, teller: &Teller) {
    match syncer.sync() {
        Ok(()) => teller.committed(staged),
        Err(error) => teller.lost(staged, &error),
    }
}
