//! Whether the files of a store are all there: asked before a start changes anything, and what an operator does if not.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, params};
use tenure_kit::durable::{Evidence, Ledger, Loss, LossCause, MarkState, judge, judge_files};

use super::dir::DataDir;
use super::fault::Fault;
use super::{BUSY_TIMEOUT, PREPARED_STATEMENTS, Sqlite, check, integer, schema};
use crate::durable::{self, MarkFile};
use crate::{Result, StoreError};

/// What was done about a store that had lost something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedLoss {
    /// What is missing.
    pub loss: Loss,
    /// Where the files are now that say so.
    pub kept: Vec<PathBuf>,
}

/// The mark of the store in `dir`.
pub(super) fn mark(dir: &DataDir) -> Result<MarkFile> {
    let cannot = |error| StoreError::Unavailable(format!("read {}: {error}", dir.mark().display()));
    MarkFile::open(&dir.mark()).map_err(cannot)
}

/// Opens the database in `dir`, which is made if there never was one, and judges it. The connection changes nothing by itself,
/// not even when it is closed.
pub(super) fn examine(dir: &DataDir, mark: MarkState) -> Result<Connection, Fault> {
    inspect(dir, &mut evidence(dir, mark)?)
}

fn evidence(dir: &DataDir, mark: MarkState) -> Result<Evidence> {
    let unreadable = |error| StoreError::Unavailable(format!("read its write-ahead log: {error}"));
    durable::evidence(&dir.database(), mark).map_err(unreadable)
}

/// As [`examine`]; adds what it finds to the evidence.
fn inspect(dir: &DataDir, evidence: &mut Evidence) -> Result<Connection, Fault> {
    judge_files(evidence).map_err(StoreError::Lost)?;
    if dir.is_empty() {
        judge(&Evidence { mark: evidence.mark, ..Evidence::default() }).map_err(StoreError::Lost)?;
    }
    dir.make_database()?;
    // No URI flag: a path is a path, whatever it looks like.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(dir.database(), flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    schema::refuse_unknown(&connection)?;
    evidence.ledger = durable::ledger(&connection)?;
    evidence.marked = durable::is_marked(&connection)?;
    judge(evidence).map_err(StoreError::Lost)?;
    Ok(connection)
}

/// Keeps the ledger, in the transaction that it counts; and whether there is a mark on the disk, once there is.
pub(super) fn put_ledger(connection: &Connection, ledger: &Ledger, marked: bool) -> Result<(), Fault> {
    connection
        .prepare_cached(
            "UPDATE ledger SET writes = ?1, messages = ?2, marked = max(marked, ?3) WHERE one = 1",
        )?
        .execute(params![integer(ledger.writes), integer(ledger.messages), marked])?;
    Ok(())
}

impl Sqlite {
    /// What the store in `dir` has lost, if anything. Changes nothing.
    pub fn lost(dir: &Path) -> Result<Option<Loss>> {
        let dir = DataDir::hold(dir)?;
        match examine(&dir, mark(&dir)?.state()).map_err(Fault::reading) {
            Ok(_) => Ok(None),
            Err(StoreError::Lost(loss)) => Ok(Some(loss)),
            Err(error) => Err(error),
        }
    }

    /// Accepts that the store in `dir` has lost something: what is there is what counts from now on. Its log and its mark are
    /// kept aside, their names ending in `.lost-` and `date`. A log that does not belong to the database is only kept aside; of any
    /// other the good part is copied into it. Nothing is done, and nothing given, if nothing was lost.
    pub fn accept_loss(dir: &Path, date: &str) -> Result<Option<AcceptedLoss>> {
        let dir = DataDir::hold(dir)?;
        let mut evidence = evidence(&dir, mark(&dir)?.state())?;
        let loss = match inspect(&dir, &mut evidence).map_err(Fault::reading) {
            Ok(_) => return Ok(None),
            Err(StoreError::Lost(loss)) => loss,
            Err(error) => return Err(error),
        };
        let cannot = |error| StoreError::Unavailable(format!("keep the damaged files aside: {error}"));
        let mut kept = Vec::new();
        for path in [dir.log(), dir.mark()] {
            let aside = durable::beside(&path, &format!(".lost-{date}"));
            match fs::copy(&path, &aside) {
                Ok(_) => kept.push(aside),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(error)),
            }
        }
        // What is behind the damage, or belongs to a database that is gone, would be judged again. The log goes first: with the
        // mark a start still refuses.
        let keeps_log = !dir.is_empty() && evidence.mismatch().is_none();
        let gone = if keeps_log { vec![dir.mark()] } else { vec![dir.log(), dir.mark()] };
        for path in gone.iter().filter(|path| path.exists()) {
            fs::remove_file(path).map_err(cannot)?;
        }
        if !dir.is_empty() {
            forget_tail(&dir)?;
        }
        drop(Sqlite::open_held(dir)?);
        Ok(Some(AcceptedLoss { loss, kept }))
    }

    /// What is wrong with the store in `dir`, which no broker has open; empty when it is sound. One that has lost something is
    /// left as it is.
    pub fn findings(dir: &Path) -> Result<Vec<String>> {
        use crate::Store;
        let held = DataDir::hold(dir)?;
        let mark = mark(&held)?;
        match examine(&held, mark.state()).map_err(Fault::reading) {
            Err(StoreError::Lost(loss)) => {
                let is = if loss.cause.is_certain() { "is" } else { "may be" };
                let mut findings = vec![format!("acknowledged data {is} lost: {loss}")];
                // The rest as far as it reads, on a connection that changes nothing. What reads of a file and a log that do not
                // belong together means nothing.
                let one = !matches!(loss.cause, LossCause::FileBehindLog | LossCause::LogBehindFile);
                if one
                    && !held.is_empty()
                    && let Ok(connection) = plain(&held)
                    && matches!(schema::is_current(&connection), Ok(true))
                {
                    findings.extend(check::findings(&connection).map_err(Fault::reading)?);
                }
                Ok(findings)
            }
            Err(error) => Err(error),
            Ok(connection) => {
                drop(connection);
                Sqlite::open_held(held)?.check()
            }
        }
    }
}

/// A connection to a database whatever its files say; it changes nothing by itself.
fn plain(dir: &DataDir) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(dir.database(), flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Copies the good part of the log into the main file and cuts the log, so that nothing behind the damage is found again. The
/// next start makes a new mark, and must not miss the old one.
fn forget_tail(dir: &DataDir) -> Result<()> {
    let settle = || -> Result<(), Fault> {
        let connection = plain(dir)?;
        super::durable(&connection)?;
        if durable::is_marked(&connection)? {
            connection.execute("UPDATE ledger SET marked = 0", [])?;
        }
        super::settle_log(&connection).map(drop)
    };
    settle().map_err(Fault::reading)
}
