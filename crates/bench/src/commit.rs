//! Group commit without sockets: the floors of `accept`.
//!
//! One writer takes what is waiting, at most as much as the broker's writer does, commits it, and answers; the
//! producers, as many as there are senders, each have one thing outstanding at a time. What a commit is, the
//! caller says: `raw` appends the same bytes to a file and syncs, `store` is the broker's own store.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tenure_mesh::messages::accept::Accepted;
use tenure_mesh::store::record::StoreOutcome;
use tenure_store::{Checkpointer, Sqlite, Store, Write};

use crate::sample::{Sample, Times, Window};
use crate::stored::Maker;

/// Writes in one transaction, as in the broker's writer.
const BATCH: usize = 4_096;
/// How often the log of the store is looked after, as in the broker.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(200);

/// What a floor came to.
#[derive(Clone, Debug, Default)]
pub struct Floor {
    pub sample: Sample,
    /// The commits themselves, without the way to the writer and back.
    pub commit_p50_ms: f64,
}

/// Appends of `bytes` bytes with a sync for each batch.
pub fn raw(dir: &Path, bytes: usize, producers: usize, times: (Duration, Duration)) -> Result<Floor> {
    let path = dir.join("raw");
    let mut file: File = OpenOptions::new().create(true).write(true).truncate(true).open(&path)?;
    let mut batch = vec![0x5a; bytes * producers.min(BATCH)];
    let floor = drive(
        producers,
        times,
        || (),
        |items: &[()]| {
            // Not all the same, should the disk look.
            batch[..8].copy_from_slice(&(items.len() as u64).to_le_bytes());
            file.write_all(&batch[..bytes * items.len()])?;
            file.sync_data()?;
            Ok(())
        },
    )?;
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(floor)
}

/// Accepts through the broker's store.
pub(crate) fn store(
    store: &mut Sqlite,
    checkpointer: &mut dyn Checkpointer,
    maker: &mut Maker,
    producers: usize,
    times: (Duration, Duration),
) -> Result<Floor> {
    let (over, done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while done.recv_timeout(CHECKPOINT_EVERY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if let Err(error) = checkpointer.run() {
                    eprintln!("the store's log is not copied: {error}");
                }
            }
        });
        let floor = drive(
            producers,
            times,
            || maker.accept(),
            |batch: &[Write]| {
                let outcomes = store.apply(batch).map_err(|error| anyhow!("{error}"))?;
                let fresh = |outcome: &&StoreOutcome| {
                    matches!(outcome, StoreOutcome::Accepted(Accepted::Fresh { .. }))
                };
                ensure!(outcomes.iter().filter(fresh).count() == batch.len(), "the store refused an accept");
                Ok(())
            },
        );
        drop(over);
        floor
    })
}

/// Lets `producers` each have one thing of `make` outstanding at a time, and commits what waits.
pub fn drive<T: Send>(
    producers: usize,
    (warm_up, length): (Duration, Duration),
    make: impl FnMut() -> T + Send,
    mut commit: impl FnMut(&[T]) -> Result<()>,
) -> Result<Floor> {
    let window = Window::after(warm_up, length);
    let (queue, queued) = channel();
    let (answer, answers) = channel();
    std::thread::scope(|scope| {
        let producing = scope.spawn(move || produce(producers, window, make, &queue, &answers));
        let (mut items, mut slots) = (Vec::new(), Vec::new());
        let mut commits = Times::default();
        while let Ok((slot, item)) = queued.recv() {
            slots.push(slot);
            items.push(item);
            for (slot, item) in queued.try_iter().take(BATCH - 1) {
                slots.push(slot);
                items.push(item);
            }
            let before = Instant::now();
            commit(&items)?;
            if window.has(before) {
                commits.add(before.elapsed());
            }
            items.clear();
            // The producers may have gone home.
            let _ = answer.send(std::mem::take(&mut slots));
        }
        let times = producing.join().map_err(|_| anyhow!("the producers failed"))?;
        Ok(Floor { sample: Sample::new(window, times), commit_p50_ms: commits.at(0.5) })
    })
}

fn produce<T>(
    producers: usize,
    window: Window,
    mut make: impl FnMut() -> T,
    queue: &Sender<(usize, T)>,
    answers: &Receiver<Vec<usize>>,
) -> Times {
    let mut times = Times::default();
    let mut sent = vec![Instant::now(); producers];
    for slot in 0..producers {
        if queue.send((slot, make())).is_err() {
            return times;
        }
    }
    let mut outstanding = producers;
    while outstanding > 0 {
        let Ok(slots) = answers.recv() else { return times };
        let now = Instant::now();
        for slot in slots {
            if window.has(now) {
                times.add(now - sent[slot]);
            }
            sent[slot] = now;
            if now >= window.until || queue.send((slot, make())).is_err() {
                outstanding -= 1;
            }
        }
    }
    times
}

/// Opens the store in `dir` with a checkpointer beside it, as the broker does.
pub fn open(dir: &Path) -> Result<(Sqlite, Box<dyn Checkpointer>)> {
    let store = Sqlite::open(dir).map_err(|error| anyhow!("open the store: {error}"))?;
    let checkpointer = store.checkpointer().map_err(|error| anyhow!("open the store: {error}"))?;
    Ok((store, checkpointer.context("the store has no checkpointer")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_floors_count_what_was_committed() {
        let dir = tempfile::tempdir().unwrap();
        let times = (Duration::from_millis(10), Duration::from_millis(100));
        assert!(raw(dir.path(), 700, 3, times).unwrap().sample.count > 0);
        let (mut sqlite, mut checkpointer) = open(&dir.path().join("store")).unwrap();
        let mut maker = Maker::new(&mut sqlite, "load", 512, 3).unwrap();
        let floor = store(&mut sqlite, &mut *checkpointer, &mut maker, 3, times).unwrap();
        assert!(floor.sample.count > 0 && floor.commit_p50_ms > 0.0);
    }
}
