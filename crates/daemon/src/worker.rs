//! Who works on a file: one thread that writes, and shares a commit among all that waits; one that reads.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use crate::db::DbError;

/// Jobs that may wait; one more is told that this is too many.
const WAITING: usize = 4_096;
/// Jobs of one commit.
const BATCH: usize = 1_024;

/// Tells who asked, once it is known whether what the job did is on the disk.
type Tell = Box<dyn FnOnce(Result<(), DbError>) + Send>;
/// Work, and what it came to.
type Work = Box<dyn FnOnce(&Connection) -> (Result<(), DbError>, Tell) + Send>;

/// Work inside a transaction that others share.
struct Job {
    work: Work,
    /// Whether what it did before it failed must be undone.
    undo: bool,
}

/// A thread with a connection.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// An answer that is on its way.
pub(crate) type Pending<T> = oneshot::Receiver<Result<T, DbError>>;

impl Worker {
    /// A thread that writes: what waits is one transaction, and everybody in it is answered after its sync.
    pub(crate) fn writer(name: &str, connection: Connection) -> Result<Worker, DbError> {
        Worker::start(name, move |jobs| write(connection, &jobs))
    }

    /// A thread that reads: every job sees one moment.
    pub(crate) fn reader(name: &str, connection: Connection) -> Result<Worker, DbError> {
        Worker::start(name, move |jobs| read(connection, &jobs))
    }

    fn start(name: &str, run: impl FnOnce(Receiver<Job>) + Send + 'static) -> Result<Worker, DbError> {
        let (queue, jobs) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(jobs));
        let thread = thread.map_err(|error| DbError::Unavailable(format!("start a thread: {error}")))?;
        Ok(Worker { queue: Some(queue), thread: Some(thread) })
    }

    /// Has `work` done, all of it or nothing. It is decided whether or not the answer is waited for.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, DbError> + Send + 'static,
    ) -> Pending<T> {
        self.enqueue(true, work)
    }

    /// The same for work that leaves nothing of meaning behind when it fails. It needs no savepoint, with which SQLite
    /// copies every page that is touched: for a small row that costs as much as the row.
    pub(crate) fn submit_plain<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, DbError> + Send + 'static,
    ) -> Pending<T> {
        self.enqueue(false, work)
    }

    fn enqueue<T: Send + 'static>(
        &self,
        undo: bool,
        work: impl FnOnce(&Connection) -> Result<T, DbError> + Send + 'static,
    ) -> Pending<T> {
        let (answer, answered) = oneshot::channel();
        let work = Box::new(move |connection: &Connection| {
            let (done, outcome) = match work(connection) {
                Ok(value) => (Ok(()), Ok(value)),
                Err(error) => (Err(error.clone()), Err(error)),
            };
            let tell = move |committed: Result<(), DbError>| {
                // Nobody listens any more: then nobody is told.
                let _ = answer.send(committed.and(outcome));
            };
            (done, Box::new(tell) as Tell)
        });
        let job = Job { work, undo };
        let refused = match self.queue.as_ref().map(|queue| queue.try_send(job)) {
            Some(Ok(())) => return answered,
            Some(Err(TrySendError::Full(_))) => "too much waits for the disk",
            Some(Err(TrySendError::Disconnected(_))) | None => "the file is closed",
        };
        let (answer, answered) = oneshot::channel();
        let _ = answer.send(Err(DbError::Unavailable(refused.to_owned())));
        answered
    }
}

impl Drop for Worker {
    /// Waits until everything that was asked for is on the disk.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for an answer; a thread that died without one is `Unavailable`.
pub(crate) async fn answer<T>(pending: Pending<T>) -> Result<T, DbError> {
    pending.await.unwrap_or_else(|_| Err(DbError::Unavailable("the file is closed".to_owned())))
}

fn write(mut connection: Connection, jobs: &Receiver<Job>) {
    let mut poisoned: Option<DbError> = None;
    while let Ok(first) = jobs.recv() {
        let batch: Vec<Job> = std::iter::once(first).chain(jobs.try_iter().take(BATCH - 1)).collect();
        let mut told = Vec::with_capacity(batch.len());
        let outcome = match &poisoned {
            Some(error) => Err(error.clone()),
            None => commit(&mut connection, batch, &mut told),
        };
        if let Err(error @ DbError::Poisoned(_)) = &outcome {
            poisoned = Some(error.clone());
        }
        told.into_iter().for_each(|tell: Tell| tell(outcome.clone()));
    }
}

/// One transaction around all of `batch`. A job that fails is undone alone; jobs that were not reached drop their
/// answer, which says the same as a failure.
fn commit(connection: &mut Connection, batch: Vec<Job>, told: &mut Vec<Tell>) -> Result<(), DbError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Prepared once: for a small job the words of a savepoint would cost as much as its work.
    let say = |words: &str| transaction.prepare_cached(words)?.execute([]).map(drop);
    for Job { work, undo } in batch {
        if undo {
            say("SAVEPOINT job")?;
        }
        let (done, tell) = work(&transaction);
        told.push(tell);
        match done {
            Err(error @ DbError::Poisoned(_)) => return Err(error),
            // SQLite has undone everything by itself.
            Err(error) if transaction.is_autocommit() => return Err(error),
            Err(_) if undo => say("ROLLBACK TO job")?,
            Ok(()) | Err(_) => {}
        }
        if undo {
            say("RELEASE job")?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn read(mut connection: Connection, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        if let Ok(view) = connection.transaction() {
            let (_, tell) = (job.work)(&view);
            tell(Ok(()));
        }
    }
}
