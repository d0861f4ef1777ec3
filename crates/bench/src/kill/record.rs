//! What was seen, in files that nothing but the recorder touches: a line is written before its event goes on.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// A message as somebody saw it: an accept by its sender, a delivery by its reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Seen {
    /// The log it is in.
    pub(super) log: String,
    /// Its number there.
    pub(super) seq: u64,
    /// The broker's id.
    pub(super) id: String,
    /// The sender's id.
    pub(super) client_id: String,
}

/// A file of lines.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    file: Mutex<File>,
    count: AtomicU64,
}

impl Ledger {
    fn create(path: PathBuf) -> Result<Ledger> {
        let file = File::create_new(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Ledger { path, file: Mutex::new(file), count: AtomicU64::new(0) })
    }

    /// Writes it down; when this returns, the line is with the system.
    pub(super) fn write(&self, seen: &Seen) -> Result<()> {
        let Seen { log, seq, id, client_id } = seen;
        let line = format!("{log}\t{seq}\t{id}\t{client_id}\n");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).context("write the record")?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Lines so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Everything that was written, in order.
    pub(super) fn read(&self) -> Result<Vec<Seen>> {
        let file = File::open(&self.path).context("read the record")?;
        BufReader::new(file)
            .lines()
            .map(|line| parse(&line?).context("a line of the record does not read"))
            .collect()
    }
}

fn parse(line: &str) -> Option<Seen> {
    let mut fields = line.split('\t').map(str::to_owned);
    let (log, seq) = (fields.next()?, fields.next()?.parse().ok()?);
    Some(Seen { log, seq, id: fields.next()?, client_id: fields.next()? })
}

/// Both files.
#[derive(Debug)]
pub(super) struct Record {
    /// What senders were told.
    pub(super) accepted: Ledger,
    /// What readers were given, after the SDK has dropped repeats.
    pub(super) received: Ledger,
}

impl Record {
    pub(super) fn create(dir: &Path) -> Result<Record> {
        Ok(Record {
            accepted: Ledger::create(dir.join("accepted"))?,
            received: Ledger::create(dir.join("received"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::create(dir.path()).unwrap();
        let seen = Seen { log: "topic/a/0".into(), seq: 7, id: "I".into(), client_id: "c-1".into() };
        record.accepted.write(&seen).unwrap();
        record.accepted.write(&seen).unwrap();
        assert_eq!(record.accepted.read().unwrap(), [seen.clone(), seen]);
        assert_eq!((record.accepted.count(), record.received.count()), (2, 0));
    }
}
