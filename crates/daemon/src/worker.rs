//! Who works on a file: one thread that writes, and shares a commit among all that waits; one that reads.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use tenure_kit::durable::Ledger;
use tenure_store::durable::{TICK, Watch, beside};
use tokio::sync::oneshot;

use crate::db::DbError;
use crate::disk::{Claim, Disk, LOOK};
use crate::keeper::Keeper;

/// Jobs that may wait; one more is told that this is too many.
const WAITING: usize = 4_096;
/// Jobs of one commit.
const BATCH: usize = 1_024;
/// Jobs of one commit while the disk is full: each must fit into a log that cannot grow.
const FULL_BATCH: usize = 4;

/// Tells who asked, once it is known whether what the job did is on the disk.
type Tell = Box<dyn FnOnce(Result<(), DbError>) + Send>;
/// Work, and what it came to; without a connection, why there is none.
type Work = Box<dyn FnOnce(Result<&Connection, DbError>) -> (Result<(), DbError>, Tell) + Send>;

/// Work inside a transaction that others share.
struct Job {
    work: Work,
    /// Whether what it did before it failed must be undone.
    undo: bool,
}

impl Job {
    /// Tells who asked that it was not done.
    fn refuse(self, error: &DbError) {
        let (_, tell) = (self.work)(Err(error.clone()));
        tell(Ok(()));
    }
}

/// A thread with a connection.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Why nothing is written any more, once that is so.
    fault: Arc<OnceLock<DbError>>,
}

/// An answer that is on its way.
pub(crate) type Pending<T> = oneshot::Receiver<Result<T, DbError>>;

impl Worker {
    /// A thread that writes: what waits is one transaction, and everybody in it is answered after its sync. It sees to it
    /// that a full `disk` is told, and makes what room it can. With a keeper each transaction is counted, and the keeper
    /// looks after the file from this thread.
    pub(crate) fn writer(
        name: &str,
        connection: Connection,
        (disk, claim): (Arc<Disk>, Claim),
        keeper: Option<Keeper>,
    ) -> Result<Worker, DbError> {
        let file = name.to_owned();
        let path = connection.path().filter(|_| keeper.is_none()).map(PathBuf::from);
        let place = Watch::new(path.into_iter().flat_map(|path| [beside(&path, "-wal"), path]));
        Worker::start(name, move |jobs, fault| {
            Writer { file, connection, disk, claim, keeper, place }.run(&jobs, fault);
        })
    }

    /// A thread that reads: every job sees one moment.
    pub(crate) fn reader(name: &str, connection: Connection) -> Result<Worker, DbError> {
        Worker::start(name, move |jobs, _| read(connection, &jobs))
    }

    fn start(
        name: &str,
        run: impl FnOnce(Receiver<Job>, &OnceLock<DbError>) + Send + 'static,
    ) -> Result<Worker, DbError> {
        let (queue, jobs) = sync_channel(WAITING);
        let fault = Arc::<OnceLock<DbError>>::default();
        let told = Arc::clone(&fault);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(jobs, &told));
        let thread = thread.map_err(|error| DbError::Unavailable(format!("start a thread: {error}")))?;
        Ok(Worker { queue: Some(queue), thread: Some(thread), fault })
    }

    /// Why nothing is written any more, if that is so.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.get().map(DbError::to_string)
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
        let work = Box::new(move |connection: Result<&Connection, DbError>| {
            let (done, outcome) = match connection.and_then(work) {
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

/// The thread that writes.
struct Writer {
    file: String,
    connection: Connection,
    disk: Arc<Disk>,
    claim: Claim,
    keeper: Option<Keeper>,
    /// The place of a file that has no keeper: what is written to a file that was removed is lost.
    place: Watch,
}

impl Writer {
    fn run(mut self, jobs: &Receiver<Job>, fault: &OnceLock<DbError>) {
        // Whoever opened the file may have written to it since.
        self.keeper.iter_mut().for_each(Keeper::wrote);
        loop {
            // Somebody must look after the files, and whether a full disk still is.
            let first = match (&self.keeper, self.disk.is_full()) {
                (Some(_), _) => jobs.recv_timeout(TICK),
                (None, true) => jobs.recv_timeout(LOOK),
                (None, false) => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let first = match first {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.disk.look();
            if let Some(first) = first {
                let more = if self.disk.is_full() { FULL_BATCH } else { BATCH } - 1;
                let rest = jobs.try_iter().take(more);
                let batch = std::iter::once(first).chain(rest).collect();
                if fault.get().is_none()
                    && let Some(Err(error)) = self.keeper.as_mut().map(Keeper::look_at_file)
                {
                    self.fail(&error, fault);
                }
                self.batch(batch, fault);
            }
            if let (Some(keeper), None) = (&mut self.keeper, fault.get())
                && let Err(error) = keeper.tick(&self.connection)
            {
                self.fail(&error, fault);
            }
        }
        self.close(fault);
    }

    fn batch(&mut self, batch: Vec<Job>, fault: &OnceLock<DbError>) {
        let mut batch = batch.into_iter();
        if let Some(error) = fault.get() {
            return batch.for_each(|job| job.refuse(error));
        }
        let mut told = Vec::with_capacity(batch.len());
        let marked = self.keeper.as_ref().map(Keeper::is_marked);
        let outcome = commit(&mut self.connection, &mut batch, &mut told, marked);
        let outcome = outcome.map(|ledger| {
            if let (Some(keeper), Some(ledger)) = (&mut self.keeper, ledger) {
                keeper.committed(ledger);
            }
        });
        // A file that was removed keeps nothing, so the callers must not be told that their work is on the disk.
        let mut outcome = outcome.and_then(|()| self.place.look().map_err(DbError::Poisoned));
        if let Err(error @ DbError::Poisoned(_)) = &outcome {
            self.fail(error, fault);
        }
        match &outcome {
            Ok(()) => self.disk.committed(&self.connection),
            Err(DbError::Full(why)) => {
                self.disk.ran_out(&self.file, &self.connection, self.claim);
                outcome = Err(DbError::Full(self.disk.told().unwrap_or_else(|| why.clone())));
            }
            Err(_) => {}
        }
        // What is written to the file from a fault on, or once somebody was told, is not to be taken for ours.
        if fault.get().is_none() {
            self.keeper.iter_mut().for_each(Keeper::wrote);
        }
        told.into_iter().for_each(|tell: Tell| tell(outcome.clone()));
        if let Err(error) = &outcome {
            // What was not reached fails for the same reason.
            batch.for_each(|job| job.refuse(error));
        }
    }

    /// Nothing is written from here on. That is on record before anybody hears of it: the process may be killed at any time.
    fn fail(&mut self, error: &DbError, fault: &OnceLock<DbError>) {
        self.keeper.iter_mut().for_each(Keeper::give_up);
        if fault.set(error.clone()).is_ok() {
            tracing::error!(event = "disk_failed", file = self.file, %error);
        }
    }

    /// Nothing comes any more: the log goes into the file, unless that is not ours to write any more.
    fn close(mut self, fault: &OnceLock<DbError>) {
        let looked = self.keeper.as_mut().map_or(Ok(()), |keeper| keeper.look_closely(&self.connection));
        if let Err(error) = &looked {
            self.fail(error, fault);
        }
        if fault.get().is_some() {
            // Nothing else can be done if this fails, and closing is still safe.
            let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            // Somebody may have written over the mark since.
            self.keeper.iter_mut().for_each(Keeper::give_up);
            return;
        }
        // Closing would do it too, unless another program has the file open. What cannot be copied now is copied at the next
        // start.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        self.keeper.iter_mut().for_each(Keeper::sync);
    }
}

/// One transaction around all of `batch`, and its count in a file with a keeper, which says whether it is `marked`. A job that fails is undone alone; jobs that were not
/// reached stay in `batch`.
fn commit(
    connection: &mut Connection,
    batch: &mut impl Iterator<Item = Job>,
    told: &mut Vec<Tell>,
    marked: Option<bool>,
) -> Result<Option<Ledger>, DbError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Prepared once: for a small job the words of a savepoint would cost as much as its work.
    let say = |words: &str| transaction.prepare_cached(words)?.execute([]).map(drop);
    for Job { work, undo } in batch {
        if undo && let Err(error) = say("SAVEPOINT job") {
            let error = DbError::from(error);
            told.push(work(Err(error.clone())).1);
            return Err(error);
        }
        let (done, tell) = work(Ok(&transaction));
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
    let ledger = marked.map(|marked| Keeper::count(&transaction, marked)).transpose()?;
    transaction.commit()?;
    Ok(ledger)
}

fn read(mut connection: Connection, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        match connection.transaction() {
            Ok(view) => {
                let (_, tell) = (job.work)(Ok(&view));
                tell(Ok(()));
            }
            Err(error) => job.refuse(&error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use tenure_store::durable::{LEDGER, MARKED};

    use super::*;
    use crate::db::{Schema, open_kept};

    fn disk(dir: &std::path::Path) -> (Arc<Disk>, Claim) {
        (Arc::new(Disk::open(dir)), Claim::Reserve)
    }

    fn disk_fails(_: &Connection) -> Result<(), DbError> {
        Err(DbError::Poisoned("input/output error".to_owned()))
    }

    #[tokio::test]
    async fn after_a_failed_sync_everybody_is_told_that_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let connection = Connection::open_in_memory().unwrap();
        let worker = Worker::writer("w", connection, disk(dir.path()), None).unwrap();
        let ((go, wait), (begin, begun)) = (channel::<()>(), channel::<()>());
        // The writer is kept busy until all of the others wait, and so share a batch.
        let busy = worker.submit(move |_| {
            let _ = (begin.send(()), wait.recv());
            Ok(())
        });
        begun.recv().unwrap();
        let before = worker.submit(|_| Ok(1));
        let fails = worker.submit(disk_fails);
        let not_reached = worker.submit(|_| Ok(2));
        go.send(()).unwrap();
        assert_eq!(answer(busy).await, Ok(()));
        let poisoned = DbError::Poisoned("input/output error".to_owned());
        assert_eq!(answer(before).await, Err(poisoned.clone()), "it shared the commit");
        assert_eq!(answer(fails).await, Err(poisoned.clone()));
        assert_eq!(answer(not_reached).await, Err(poisoned.clone()));
        assert_eq!(answer(worker.submit(|_| Ok(3))).await, Err(poisoned.clone()), "nor later");
        assert_eq!(worker.fault(), Some(poisoned.to_string()));
    }

    #[tokio::test]
    async fn what_is_written_to_a_file_right_after_an_answer_is_not_the_writers() {
        let notes = "CREATE TABLE notes (n INTEGER PRIMARY KEY AUTOINCREMENT)";
        let schema = Schema { application_id: 1, steps: Box::leak(Box::new([LEDGER, MARKED, notes])) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let (connection, keeper) = open_kept(&path, schema).unwrap();
        let worker = Worker::writer("w", connection, disk(dir.path()), Some(keeper)).unwrap();
        let (written, is_written) = channel();
        // The answer itself writes: it is done before the writer goes on.
        let write = move |_: Result<(), DbError>| {
            let mut file = std::fs::File::options().append(true).open(&path).unwrap();
            file.write_all(b"x").unwrap();
            written.send(()).unwrap();
        };
        let work: Work = Box::new(move |_| (Ok(()), Box::new(write)));
        assert!(worker.queue.as_ref().unwrap().try_send(Job { work, undo: false }).is_ok());
        is_written.recv().unwrap();
        let refused = answer(worker.submit(|_| Ok(()))).await.unwrap_err();
        assert!(
            matches!(&refused, DbError::Poisoned(why) if why.contains("a.db was overwritten")),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn jobs_of_a_batch_that_cannot_begin_are_told_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let held = Connection::open(&path).unwrap();
        held.execute_batch("BEGIN IMMEDIATE").unwrap();
        let connection = Connection::open(&path).unwrap();
        connection.busy_timeout(std::time::Duration::ZERO).unwrap();
        let worker = Worker::writer("w", connection, disk(dir.path()), None).unwrap();
        let refused = answer(worker.submit(|_| Ok(()))).await.unwrap_err();
        assert!(matches!(&refused, DbError::Unavailable(why) if why.contains("locked")), "{refused}");
        held.execute_batch("ROLLBACK").unwrap();
        assert_eq!(answer(worker.submit(|_| Ok(()))).await, Ok(()), "it was not for good");
        assert_eq!(worker.fault(), None);
    }
}
