//! The store's readers: a few threads that read what is committed while the writer writes, and tell the mesh.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;

use tenure_mesh::Input;
use tenure_mesh::effect::ReadId;
use tenure_mesh::store::record::{StoreFound, StoreRead};
use tenure_mux::Gate;
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
/// read it is at, and reads no more messages. After that they are counted with the socket that they wait for.
const READ_AHEAD_BYTES: usize = 8 * 1024 * 1024;

/// A read that waits.
type Asked = (Arc<Lane>, ReadId, StoreRead);

/// The reads that wait for a reader, and what was read and not taken.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Reads that bring messages: they wait while sockets hold too much.
    heavy: VecDeque<Asked>,
    /// All others, which wait for nothing but a reader. Both together are bounded by [`WAITING`].
    light: VecDeque<Asked>,
    /// Bytes that readers have read and sockets have not taken.
    ahead: usize,
    /// Set when the last mesh that could ask is gone.
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a read. `false` when the queue is full.
    fn push(&self, asked: Asked) -> bool {
        let mut state = self.state();
        if state.heavy.len() + state.light.len() >= WAITING {
            return false;
        }
        let queue = if asked.2.brings_messages() { &mut state.heavy } else { &mut state.light };
        queue.push_back(asked);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Waits for the next read. `None` when the queue is closed: no mesh would receive the result.
    fn next(self: &Arc<Queue>, gate: &Gate) -> Option<Asked> {
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(light) = state.light.pop_front() {
                return Some(light);
            }
            let room = state.ahead < READ_AHEAD_BYTES && gate.poll_open(&mut cx).is_ready();
            if let Some(heavy) = room.then(|| state.heavy.pop_front()).flatten() {
                return Some(heavy);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts so many bytes as read ahead until the result is dropped.
    fn count(self: &Arc<Queue>, bytes: usize) -> Option<ReadAheadShare> {
        self.state().ahead += bytes;
        (bytes > 0).then(|| ReadAheadShare { queue: self.clone(), bytes })
    }

    fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }
}

impl Wake for Queue {
    /// The gate is open.
    fn wake(self: Arc<Queue>) {
        // A reader that has just asked it waits by the time that this lock is had.
        drop(self.state());
        self.changed.notify_all();
    }
}

/// One read's part of the bytes that are read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadShare {
    queue: Arc<Queue>,
    bytes: usize,
}

impl Drop for ReadAheadShare {
    fn drop(&mut self) {
        self.queue.state().ahead -= self.bytes;
        self.queue.changed.notify_all();
    }
}

/// The right to ask: when all of them are gone the readers end.
#[derive(Debug)]
struct Asking(Arc<Queue>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Whose reads they are.
#[derive(Debug)]
struct Lane {
    mesh: MeshName,
    /// Weak: the mesh lives as long as its sockets need it, not as long as its readers.
    inputs: mpsc::WeakSender<MeshMsg>,
}

/// The readers of one broker, for all its meshes.
#[derive(Clone, Debug)]
pub(crate) struct Readers(Arc<Asking>);

impl Readers {
    /// The way of one mesh to them.
    pub(crate) fn lane(&self, mesh: MeshName, inputs: &mpsc::Sender<MeshMsg>) -> Reads {
        let lane = Arc::new(Lane { mesh, inputs: inputs.downgrade() });
        Reads { lane, asking: self.0.clone() }
    }
}

/// How a mesh's task reaches the readers.
#[derive(Debug)]
pub(crate) struct Reads {
    lane: Arc<Lane>,
    asking: Arc<Asking>,
}

impl Reads {
    /// Lets a read wait its turn. Never blocks for long; `false` when there is no room, and then nothing comes of it.
    pub(crate) fn push(&self, id: ReadId, read: StoreRead) -> bool {
        self.asking.0.push((self.lane.clone(), id, read))
    }
}

/// Starts a thread for each reader. They end when nobody can ask them any more.
pub(crate) fn start(
    readers: Vec<Box<dyn StoreReader>>,
    shared: &Arc<Shared>,
) -> std::io::Result<(Readers, Vec<JoinHandle<()>>)> {
    let queue = Arc::new(Queue::default());
    let asking = Arc::new(Asking(queue.clone()));
    let mut threads = Vec::new();
    for store in readers {
        let reader = Reader { store, queue: queue.clone(), shared: shared.clone(), sound: true };
        let thread = std::thread::Builder::new().name("tenure-reader".to_owned());
        threads.push(thread.spawn(move || reader.run())?);
    }
    Ok((Readers(asking), threads))
}

struct Reader {
    store: Box<dyn StoreReader>,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    /// Whether the last read went well.
    sound: bool,
}

impl Reader {
    fn run(mut self) {
        while let Some((lane, id, read)) = self.queue.next(self.shared.connections.gate()) {
            let found = self.read(&lane.mesh, &read);
            let share = self.queue.count(found.weight());
            let Some(inputs) = lane.inputs.upgrade() else { continue };
            // The mesh never waits for us, so its queue drains.
            let _ = inputs.blocking_send(MeshMsg::Found(Input::Found { id, found }, share));
        }
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
    use tenure_mesh::messages::envelope::Lane as Priority;
    use tenure_proto::log::LogName;

    use super::*;

    fn asked(read: StoreRead) -> Asked {
        let inputs = mpsc::channel(1).0.downgrade();
        (Arc::new(Lane { mesh: "default".parse().unwrap(), inputs }), ReadId(1), read)
    }

    fn page() -> StoreRead {
        let log: LogName = "topic/jobs/0".parse().unwrap();
        StoreRead::Page { log, lane: Priority(0), after: 0, limit: 1, bytes: 1 }
    }

    /// Whether the next read is a page; it is taken in a thread of its own, after `meanwhile`.
    fn next_is_page(queue: &Arc<Queue>, gate: &Arc<Gate>, meanwhile: impl FnOnce()) -> Option<bool> {
        let (queue, gate) = (queue.clone(), gate.clone());
        let reader = std::thread::spawn(move || queue.next(&gate).map(|(.., read)| read.brings_messages()));
        meanwhile();
        reader.join().unwrap()
    }

    #[test]
    fn messages_wait_for_room_and_other_reads_do_not() {
        let (queue, gate) = (Arc::new(Queue::default()), Arc::new(Gate::new(10)));
        let ids = || asked(StoreRead::Ids { places: Vec::new() });
        // Sockets hold too much.
        gate.add(11);
        assert!(queue.push(asked(page())) && queue.push(ids()));
        assert_eq!(next_is_page(&queue, &gate, || {}), Some(false));
        assert_eq!(next_is_page(&queue, &gate, || gate.sub(1)), Some(true));
        // Too much was read that they have not taken.
        assert!(queue.count(0).is_none());
        let share = queue.count(READ_AHEAD_BYTES);
        assert!(queue.push(asked(page())) && queue.push(ids()));
        assert_eq!(next_is_page(&queue, &gate, || {}), Some(false));
        assert_eq!(next_is_page(&queue, &gate, || drop(share)), Some(true));
        assert_eq!(queue.state().ahead, 0);
        // Nobody asks any more.
        assert_eq!(next_is_page(&queue, &gate, || drop(Asking(queue.clone()))), None);
    }

    #[test]
    fn as_many_reads_wait_as_may() {
        let queue = Arc::new(Queue::default());
        for _ in 0..WAITING {
            assert!(queue.push(asked(page())));
        }
        assert!(!queue.push(asked(page())) && !queue.push(asked(StoreRead::Ids { places: Vec::new() })));
    }
}
