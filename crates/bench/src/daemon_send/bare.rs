//! The floor: rows like the daemon's into a file like the daemon's, and nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::{Connection, TransactionBehavior};
use tenure_daemon::outbox::{CAP, Outbox};

use super::TARGET;
use crate::commit::{Floor, drive};
use crate::ids::{Dice, ULID, spell, wall_ms};
use crate::sample::Window;

/// A file with the daemon's table, indexes and settings.
pub(super) struct Bare {
    connection: Connection,
    dice: Dice,
    payload: String,
}

/// What differs between rows.
#[derive(Clone, Debug)]
struct Row {
    id: String,
    print: [u8; 32],
}

const INSERT: &str = "INSERT INTO outbox (mesh, client_message_id, sender_session, request_fingerprint, payload, crc, \
                      target, priority, lane, enqueued_at, attempts, next_attempt_at, status) \
                      VALUES ('default', ?1, ?2, ?3, ?4, 7, ?5, 'next', 1, ?6, 0, ?6, 'pending')";

impl Bare {
    pub(super) fn new(dir: &Path, body: usize) -> Result<Bare> {
        std::fs::create_dir_all(dir)?;
        // The daemon makes the table, so that it is the daemon's.
        drop(Outbox::open(dir, CAP).context("make the file")?);
        let connection = Connection::open(dir.join("outbox.db")).context("open the file")?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "wal_autocheckpoint", 4_000)?;
        let mut dice = Dice::new(3);
        // A frozen request is the body and what it says of itself.
        let payload = format!("{}{}", "x".repeat(200), dice.text(body));
        Ok(Bare { connection, dice, payload })
    }

    /// One insert a commit, one after the other: how many a second.
    pub(super) fn single(&mut self, (warm_up, length): (Duration, Duration)) -> Result<f64> {
        let window = Window::after(warm_up, length);
        let mut count = 0u64;
        while Instant::now() < window.until {
            let rows = [row(&mut self.dice)];
            insert(&mut self.connection, &self.payload, &rows)?;
            count += u64::from(window.has(Instant::now()));
        }
        Ok(count as f64 / window.seconds())
    }

    /// One commit for all that so many producers wait for.
    pub(super) fn group(&mut self, producers: usize, times: (Duration, Duration)) -> Result<Floor> {
        let Bare { connection, dice, payload } = self;
        drive(producers, times, || row(dice), |rows: &[Row]| insert(connection, payload, rows))
    }
}

fn row(dice: &mut Dice) -> Row {
    let mut id = [0; ULID];
    spell(wall_ms(), dice.entropy(), &mut id);
    let mut print = [0; 32];
    print.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&dice.roll().to_le_bytes()));
    Row { id: String::from_utf8_lossy(&id).into_owned(), print }
}

fn insert(connection: &mut Connection, payload: &str, rows: &[Row]) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut statement = transaction.prepare_cached(INSERT)?;
        let wall = i64::try_from(wall_ms()).unwrap_or(i64::MAX);
        for row in rows {
            statement.execute((&row.id, [7u8; 32], row.print, payload.as_bytes(), TARGET, wall))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_count_what_was_committed() {
        let dir = tempfile::tempdir().unwrap();
        let mut bare = Bare::new(dir.path(), 100).unwrap();
        let times = (Duration::ZERO, Duration::from_millis(200));
        let single = bare.single(times).unwrap() * 0.2;
        let group = bare.group(3, times).unwrap().sample.count as f64;
        let rows: f64 =
            bare.connection.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).unwrap();
        assert!(single > 0.0 && group > 0.0 && single + group <= rows + 0.5, "{single} {group} {rows}");
    }
}
