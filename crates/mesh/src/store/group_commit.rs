//! Group commit: how what a mesh asks of its store becomes transactions, and what it hears of them.
//!
//! What this is for: the two ends of the way from a mesh to its store's writer. [`Asking`] stands with the mesh,
//! [`Taking`] with the writer; between them is whatever queue the shell has, first in, first out.
//!
//! What it promises: a lone write commits at once, many share one transaction; a mesh that outruns its disk is
//! told so within a bound; when a transaction fails, so does everything that the mesh asked for before it heard of
//! that, because it may rest on what was lost. The epochs of both ends count failures: what is of an older epoch
//! than the writer's is dropped, and [`Asking::fail_all`] says what the mesh must hear has failed.
//!
//! What it never does: write, wait, or count what waits; see [`Load`].

use crate::effect::WriteId;
use crate::input::Input;
use crate::store::record::{StoreOutcome, StoreWrite};

/// Writes in one transaction.
pub const BATCH: usize = 4_096;
/// Bytes of messages in one transaction, unless the first alone is more.
pub const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// Writes that may wait; one more fails.
pub const WAITING: usize = 262_144;
/// Bytes of messages that may wait; past it the next fails.
pub const WAITING_BYTES: usize = 256 * 1024 * 1024;

/// What waits between the two ends, from the moment that it was asked for until its transaction is over. The shell
/// keeps the sum, because only it knows how the two ends share a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Writes.
    pub writes: usize,
    /// Bytes of their messages.
    pub bytes: usize,
}

impl Load {
    /// With so much waiting, is there room for one more?
    fn has_room(self) -> bool {
        self.writes < WAITING && self.bytes < WAITING_BYTES
    }

    /// One more write, of so many bytes.
    fn add(&mut self, bytes: usize) {
        self.writes += 1;
        self.bytes += bytes;
    }
}

/// A write on its way from one end to the other.
#[derive(Debug)]
pub struct Queued {
    id: WriteId,
    /// Failures that the mesh had heard of when it asked.
    epoch: u64,
    /// Nothing if there was no room for it: it fails when its turn comes.
    write: Option<StoreWrite>,
    bytes: usize,
}

impl Queued {
    /// What it adds to what waits.
    pub fn load(&self) -> Load {
        Load { writes: 1, bytes: self.bytes }
    }
}

/// The mesh's end.
#[derive(Debug, Default)]
pub struct Asking {
    /// Failures that the mesh has heard of.
    epoch: u64,
    last: WriteId,
}

impl Asking {
    /// What goes into the queue for a write, while `waiting` is there already. One for which there is no room goes
    /// in as well, without its contents, and fails in its turn.
    pub fn ask(&mut self, id: WriteId, write: StoreWrite, waiting: Load) -> Queued {
        self.last = id;
        let bytes = match &write {
            StoreWrite::Accept(accept) => accept.envelope.weight(),
            StoreWrite::EndRun(ending) => ending.result.as_ref().map_or(0, crate::runs::run::weight),
            _ => 0,
        };
        let epoch = self.epoch;
        if waiting.has_room() {
            Queued { id, epoch, write: Some(write), bytes }
        } else {
            Queued { id, epoch, write: None, bytes: 0 }
        }
    }

    /// The mesh is about to hear of a failure, of everything that it has asked for: gives the last of that, for
    /// [`Input::Failed`]. All that the mesh wanted written by then must have been asked for. What it asks for from here
    /// on does not rest on what was lost.
    pub fn fail_all(&mut self) -> WriteId {
        self.epoch += 1;
        self.last
    }
}

/// The writer's end.
#[derive(Debug, Default)]
pub struct Taking {
    /// Failures that the mesh was told of.
    epoch: u64,
    /// What was taken from the queue and did not fit the last batch.
    held: Option<Queued>,
}

/// What the writer does in one turn.
#[derive(Debug, Default)]
pub struct Batch {
    /// What to commit, in this order, as one transaction; it may be nothing.
    pub writes: Vec<StoreWrite>,
    ids: Vec<WriteId>,
    load: Load,
    refused: bool,
}

impl Batch {
    /// What waits no more when the turn is over.
    pub fn load(&self) -> Load {
        self.load
    }

    /// Whether this is a write for which there was no room: nothing is tried, and the outcome is a failure.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// What the mesh is told of it when it is on disk, with an outcome for each write in their order; nothing if there
    /// was nothing of the mesh's in it.
    pub fn committed(self, outcomes: Vec<StoreOutcome>) -> Option<Input> {
        let through = *self.ids.last()?;
        let told = |(_, outcome): &(WriteId, StoreOutcome)| *outcome != StoreOutcome::Done;
        let outcomes = self.ids.into_iter().zip(outcomes).filter(told).collect();
        Some(Input::Committed { through, outcomes })
    }

    /// What the mesh is told of it when nothing is written any more, and so nothing that rests on it either;
    /// [`Taking::done`] is for failures that writing goes on after.
    pub fn lost(self) -> Option<Input> {
        self.ids.last().map(|through| Input::Failed { through: *through })
    }

    fn push(&mut self, id: WriteId, write: StoreWrite) {
        self.ids.push(id);
        self.writes.push(write);
    }
}

impl Taking {
    /// Whether there is something to do without looking at the queue.
    pub fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Takes what is waiting, up to the bounds of a transaction or to the first that must fail. Nothing that is drawn
    /// from `queue` is lost: what does not fit is first in the next turn.
    pub fn fill(&mut self, queue: impl IntoIterator<Item = Queued>) -> Batch {
        let mut batch = Batch::default();
        let mut bytes = 0;
        for next in self.held.take().into_iter().chain(queue) {
            if next.epoch < self.epoch {
                // It rests on what was lost, and fails with it.
                batch.load.add(next.bytes);
                continue;
            }
            let first = batch.ids.is_empty();
            match next {
                Queued { id, write: None, .. } if first => {
                    batch.load.add(0);
                    batch.ids.push(id);
                    batch.refused = true;
                    break;
                }
                Queued { id, write: Some(write), bytes: more, .. }
                    if first || bytes + more <= BATCH_BYTES =>
                {
                    bytes += more;
                    batch.load.add(more);
                    batch.push(id, write);
                }
                next => {
                    self.held = Some(next);
                    break;
                }
            }
            if batch.ids.len() >= BATCH {
                break;
            }
        }
        batch
    }

    /// What the mesh is told of a batch, now that its transaction is on disk, with an outcome for each write in their
    /// order, or has failed, for whatever reason; nothing if there was nothing of the mesh's in it.
    pub fn done<E>(&mut self, batch: Batch, outcome: Result<Vec<StoreOutcome>, E>) -> Option<Input> {
        match outcome {
            Ok(outcomes) if !batch.refused => batch.committed(outcomes),
            _ => {
                let told = batch.lost()?;
                self.epoch += 1;
                Some(told)
            }
        }
    }
}

#[cfg(test)]
#[path = "group_commit_tests.rs"]
mod tests;
