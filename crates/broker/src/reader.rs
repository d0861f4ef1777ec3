//! The store's readers: a few threads that read what is committed while the writer writes, and tell the mesh.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tenure_core::Input;
use tenure_core::effect::ReadId;
use tenure_core::record::{StoreFound, StoreRead};
use tenure_proto::name::MeshName;
use tenure_store::{StoreError, StoreReader};
use tokio::sync::mpsc;

use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// Readers of one broker.
pub(crate) const READERS: usize = 2;
/// Reads that may wait for one; one more is answered that the store cannot read now.
const WAITING: usize = 16_384;

/// Bytes of messages that may be read before the sockets that they go to have taken them; past it each reader finishes the
/// read it is at, and waits. After that they are counted with the socket that they wait for.
const READ_AHEAD_BYTES: usize = 8 * 1024 * 1024;

/// Bytes that readers have read and sockets have not taken.
#[derive(Debug, Default)]
struct ReadAhead {
    bytes: Mutex<usize>,
    less: Condvar,
}

impl ReadAhead {
    fn bytes(&self) -> MutexGuard<'_, usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room, and counts so many bytes until the result is dropped.
    fn count(self: &Arc<ReadAhead>, bytes: usize) -> Option<ReadAheadShare> {
        if bytes == 0 {
            return None;
        }
        let mut all = self.bytes();
        while *all >= READ_AHEAD_BYTES {
            all = self.less.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
        *all += bytes;
        Some(ReadAheadShare { ahead: self.clone(), bytes })
    }
}

/// One read's part of the bytes that are read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadShare {
    ahead: Arc<ReadAhead>,
    bytes: usize,
}

impl Drop for ReadAheadShare {
    fn drop(&mut self) {
        *self.ahead.bytes() -= self.bytes;
        self.ahead.less.notify_all();
    }
}

/// A read that waits.
type Asked = (Arc<Lane>, ReadId, StoreRead);

/// Whose reads they are.
#[derive(Debug)]
struct Lane {
    mesh: MeshName,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its readers.
    inputs: mpsc::WeakSender<MeshMsg>,
}

/// The readers of one broker, for all its meshes.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    /// Bounded by `waiting`.
    queue: Sender<Asked>,
    waiting: Arc<AtomicUsize>,
}

impl Readers {
    /// The way of one mesh to them.
    pub(crate) fn lane(&self, mesh: MeshName, inputs: &mpsc::Sender<MeshMsg>) -> Reads {
        let lane = Arc::new(Lane { mesh, inputs: inputs.downgrade() });
        Reads { lane, queue: self.queue.clone(), waiting: self.waiting.clone() }
    }
}

/// How a mesh's task reaches the readers.
#[derive(Debug)]
pub(crate) struct Reads {
    lane: Arc<Lane>,
    /// Bounded by `waiting`, which all meshes share.
    queue: Sender<Asked>,
    waiting: Arc<AtomicUsize>,
}

impl Reads {
    /// Lets a read wait its turn. Never blocks; `false` when there is no room, and then nothing comes of it.
    pub(crate) fn push(&self, id: ReadId, read: StoreRead) -> bool {
        let room = self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING;
        let taken = room && self.queue.send((self.lane.clone(), id, read)).is_ok();
        if !taken {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}

/// Starts a thread for each reader. They end when nobody can ask them any more.
pub(crate) fn start(
    readers: Vec<Box<dyn StoreReader>>,
    shared: &Arc<Shared>,
) -> std::io::Result<(Readers, Vec<JoinHandle<()>>)> {
    let (queue, queued) = channel();
    let queued = Arc::new(Mutex::new(queued));
    let waiting = Arc::new(AtomicUsize::new(0));
    let ahead = Arc::new(ReadAhead::default());
    let mut threads = Vec::new();
    for store in readers {
        let reader = Reader {
            store,
            queued: queued.clone(),
            waiting: waiting.clone(),
            ahead: ahead.clone(),
            shared: shared.clone(),
            sound: true,
        };
        let thread = std::thread::Builder::new().name("tenure-reader".to_owned());
        threads.push(thread.spawn(move || reader.run())?);
    }
    Ok((Readers { queue, waiting }, threads))
}

struct Reader {
    store: Box<dyn StoreReader>,
    /// One of the readers waits here, the others for the lock: whoever is free takes the next.
    queued: Arc<Mutex<Receiver<Asked>>>,
    waiting: Arc<AtomicUsize>,
    /// Shared by all readers of the broker.
    ahead: Arc<ReadAhead>,
    shared: Arc<Shared>,
    /// Whether the last read went well.
    sound: bool,
}

impl Reader {
    fn run(mut self) {
        while let Some((lane, id, read)) = self.next() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let found = self.read(&lane.mesh, &read);
            // Neither meshes nor sockets wait for us: what these waits are for is on its way.
            let weight = found.weight();
            if weight > 0 {
                self.shared.connections.gate().wait();
            }
            let share = self.ahead.count(weight);
            let Some(inputs) = lane.inputs.upgrade() else { continue };
            let _ = inputs.blocking_send(MeshMsg::Found(Input::Found { id, found }, share));
        }
    }

    fn next(&self) -> Option<Asked> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    fn read(&mut self, mesh: &MeshName, read: &StoreRead) -> StoreFound {
        self.shared.metrics.reads.inc();
        match self.store.read(mesh, read) {
            Ok(found) => {
                self.sound = true;
                found
            }
            Err(error) => {
                self.shared.metrics.failed_reads.inc();
                if std::mem::replace(&mut self.sound, false) {
                    tracing::error!(event = "store_read_failed", %error);
                }
                if let StoreError::Corrupt(what) = &error {
                    self.shared.checks.met_damage(&self.shared, what);
                }
                StoreFound::Unavailable
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nothing_is_read_ahead_of_the_bound() {
        let (ahead, given_back) = (Arc::new(ReadAhead::default()), Arc::new(AtomicBool::new(false)));
        assert!(ahead.count(0).is_none());
        let first = ahead.count(READ_AHEAD_BYTES - 1).unwrap();
        // One that does not fit may pass the bound, once.
        let second = ahead.count(READ_AHEAD_BYTES).unwrap();
        let (reader, seen) = (ahead.clone(), given_back.clone());
        let third = std::thread::spawn(move || (reader.count(1).map(drop), seen.load(Ordering::SeqCst)));
        drop(first);
        given_back.store(true, Ordering::SeqCst);
        drop(second);
        assert_eq!(third.join().unwrap(), (Some(()), true));
        assert_eq!(*ahead.bytes(), 0);
    }
}
