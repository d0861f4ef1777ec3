//! What only this engine can get wrong: files, locks, versions, damage.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_mesh::store::record::StoreRead;
use tenure_proto::MemberKey;

use super::*;
use crate::conformance::{Engine, identity, lease, put, suite};

impl Engine for TempDir {
    type Store = Sqlite;

    fn new() -> TempDir {
        TempDir::new().unwrap()
    }

    fn open(&self) -> Sqlite {
        Sqlite::open(self.path()).unwrap()
    }

    fn starve(store: &mut Sqlite, starving: bool) {
        let connection = &store.connection;
        let pages: u32 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let limit = if starving { pages } else { 1 << 30 };
        connection.pragma_update(None, "max_page_count", limit).unwrap();
    }
}

suite!(TempDir);

fn database(dir: &TempDir) -> PathBuf {
    dir.path().join("tenure.db")
}

/// A closed store with an identity, two runs and a few pages of leases.
fn filled() -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.identity(&identity(1)).unwrap();
    store.begin_run(0).unwrap();
    store.begin_run(0).unwrap();
    store.apply(&(0..100).map(|n| put(&lease("m", n))).collect::<Vec<_>>()).unwrap();
    dir
}

/// Changes a closed store behind its back.
fn tamper(dir: &TempDir, sql: &str) {
    Connection::open(database(dir)).unwrap().execute_batch(sql).unwrap();
}

/// Everything a broker does at its start; the first error, if any.
fn start(dir: &Path) -> Result<()> {
    let mut store = Sqlite::open(dir)?;
    store.identity(&identity(2))?;
    store.begin_run(0)?;
    store.leases()?;
    Ok(())
}

#[test]
fn a_row_of_the_audit_log_stays_as_it_was_written() {
    let dir = filled();
    let database = Connection::open(database(&dir)).unwrap();
    let columns = "(seq, mesh, at, who, origin, act, subject, outcome, details)";
    let insert =
        format!("INTO audit {columns} VALUES (NULL, 1, 1, 'operator', '', 'ban.set', '', 'ok', '{{}}')");
    database.execute(&format!("INSERT {insert}"), []).unwrap();
    database.execute(&format!("INSERT OR REPLACE {insert}"), []).unwrap();
    let other = insert.replace("NULL", "1").replace("'ok'", "'forbidden'");
    for change in [
        "DELETE FROM audit".to_owned(),
        "UPDATE audit SET outcome = 'forbidden'".to_owned(),
        format!("INSERT OR REPLACE {other}"),
        format!("REPLACE {other}"),
        format!("INSERT OR IGNORE {other}"),
        format!("INSERT {other} ON CONFLICT (seq) DO UPDATE SET outcome = 'forbidden'"),
    ] {
        let error = database.execute(&change, []).unwrap_err().to_string();
        assert!(error.contains("append-only"), "{change}: {error}");
    }
    let kept = "SELECT count(*) FROM audit WHERE outcome = 'ok'";
    assert_eq!(database.query_row(kept, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
}

#[test]
fn a_directory_has_one_holder() {
    let dir = TempDir::new().unwrap();
    let first = dir.open();
    assert_eq!(Sqlite::open(dir.path()).unwrap_err(), StoreError::Locked);
    drop(first);
    assert_eq!(dir.open().kind(), "sqlite");
}

#[test]
fn being_refused_leaves_the_holder_alone() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    for n in 0..3 {
        assert_eq!(Sqlite::open(dir.path()).unwrap_err(), StoreError::Locked);
        store.apply(&[put(&lease("m", n))]).unwrap();
    }
    assert_eq!(store.leases().unwrap().len(), 3);
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("a/b");
    let mut store = Sqlite::open(&dir).unwrap();
    store.identity(&identity(1)).unwrap();
    assert_eq!(mode(&dir), 0o700);
    for file in ["tenure.db", "tenure.db-wal", "tenure.db-shm", "tenure.lock", "tenure.mark"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
}

#[test]
fn a_place_that_cannot_be_a_directory_is_unavailable() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Sqlite::open(&file), Err(StoreError::Unavailable(_))));
    assert!(matches!(Sqlite::open(&file.join("below")), Err(StoreError::Unavailable(_))));
}

#[test]
fn every_write_is_synced() {
    let dir = TempDir::new().unwrap();
    let store = dir.open();
    let pragma = |name: &str| -> String {
        store
            .connection
            .query_row(&format!("SELECT \"{name}\" || '' FROM pragma_{name}"), [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(pragma("journal_mode"), "wal");
    assert_eq!(pragma("synchronous"), "1", "NORMAL: SQLite syncs what it copies, commits are synced by us");
    assert_eq!(pragma("foreign_keys"), "0");
    drop(store);
    let mut store = dir.open();
    assert!(store.log.is_settled());
    store.begin_run(0).unwrap();
    assert!(store.log.is_settled());
    store.apply(&[put(&lease("m", 1))]).unwrap();
    assert!(store.log.is_settled());
    TempDir::starve(&mut store, true);
    assert!(store.stage(&(0..=255).map(|n| put(&lease("m", n))).collect::<Vec<_>>()).is_err());
    assert!(store.log.is_settled(), "what was undone keeps no reader waiting");
    TempDir::starve(&mut store, false);
    store.stage(&[put(&lease("m", 2))]).unwrap();
    assert!(!store.log.is_settled());
    store.syncer().unwrap().unwrap().sync().unwrap();
    assert!(store.log.is_settled());
}

#[test]
fn a_reader_tells_nobody_of_what_is_not_on_the_disk() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    for poisoned in [false, true] {
        store.stage(&[put(&lease("m", 1))]).unwrap();
        let mut reader = store.reader().unwrap();
        let (answer, answered) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mesh, limit) = ("m".parse().unwrap(), 1);
                let fates = StoreRead::Fates { member: MemberKey([1; 32]), ids: Vec::new() };
                for read in [StoreRead::Expired { now: 0, limit }, fates] {
                    answer.send(reader.read(&mesh, &read)).unwrap();
                }
            });
            store.log.until_awaited();
            assert!(answered.try_recv().is_err());
            if poisoned {
                let first = store.log.poison("first".to_owned());
                assert_eq!(store.log.poison("second".to_owned()), first, "the first cause is told");
                assert_eq!(store.log.sync(), Err(first));
            } else {
                store.log.sync().unwrap();
            }
            assert!(answered.recv().unwrap().is_ok(), "reads go on");
            let fates = answered.recv().unwrap();
            let in_doubt = matches!(fates, Err(StoreError::Unavailable(_)));
            assert_eq!(in_doubt, poisoned, "nobody is told that it is accepted: {fates:?}");
        });
    }
    assert!(store.apply(&[]).is_err());
    assert!(store.checkpointer().unwrap().unwrap().run().is_err(), "nobody copies any more");
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let dir = filled();
    let newer = schema::SUPPORTED + 1;
    tamper(&dir, &format!("PRAGMA user_version = {newer}; PRAGMA journal_mode = DELETE;"));
    let before = fs::read(database(&dir)).unwrap();
    let refused = StoreError::Newer { found: newer, supported: schema::SUPPORTED };
    assert_eq!(Sqlite::open(dir.path()).unwrap_err(), refused);
    assert_eq!(fs::read(database(&dir)).unwrap(), before);
}

#[test]
fn a_strangers_database_is_refused() {
    let dir = TempDir::new().unwrap();
    tamper(&dir, "CREATE TABLE theirs (x); PRAGMA user_version = 1;");
    assert!(matches!(Sqlite::open(dir.path()), Err(StoreError::Corrupt(_))));
}

#[test]
fn a_start_that_was_killed_before_its_schema_goes_on() {
    let dir = TempDir::new().unwrap();
    fs::write(database(&dir), "").unwrap();
    start(dir.path()).unwrap();
}

/// A copy of the files between two writes is what a killed process leaves.
#[test]
fn what_a_killed_process_left_is_all_there_and_out_of_the_log() {
    let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    store.apply(&(0..100).map(|n| put(&lease("m", n))).collect::<Vec<_>>()).unwrap();
    for file in ["tenure.db", "tenure.db-wal", "tenure.mark"] {
        fs::copy(dir.path().join(file), left.path().join(file)).unwrap();
    }
    let log = left.path().join("tenure.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    let mut found = left.open();
    assert_eq!(fs::metadata(&log).unwrap().len(), 0);
    assert_eq!(found.leases(), store.leases());
    assert_eq!(found.begin_run(0).unwrap().number, 2);
}

#[test]
fn a_log_without_its_database_is_corrupt_and_kept() {
    for content in [&b""[..], b"S"] {
        let dir = filled();
        fs::write(database(&dir), content).unwrap();
        // With it, this would be a loss that is counted.
        fs::remove_file(dir.path().join("tenure.mark")).unwrap();
        let log = dir.path().join("tenure.db-wal");
        fs::write(&log, "what SQLite would delete").unwrap();
        assert!(matches!(Sqlite::open(dir.path()), Err(StoreError::Corrupt(_))));
        assert!(log.exists());
    }
}

#[test]
fn a_writer_with_a_database_shell_makes_it_unavailable_for_a_while() {
    let dir = filled();
    let mut store = dir.open();
    store.connection.busy_timeout(Duration::ZERO).unwrap();
    let shell = Connection::open(database(&dir)).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(store.begin_run(0), Err(StoreError::Unavailable(_))));
    assert_eq!(store.leases().unwrap().len(), 100, "reads go on");
    shell.execute_batch("ROLLBACK").unwrap();
    assert_eq!(store.begin_run(0).unwrap().number, 3);
}

#[test]
fn runs_that_nothing_needs_are_deleted() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    let runs = |store: &Sqlite| -> Vec<u64> {
        let mut statement = store.connection.prepare("SELECT run FROM runs").unwrap();
        let runs = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        runs.map(|run| run.unwrap() as u64).collect()
    };
    (0..3).for_each(|_| _ = store.begin_run(0).unwrap());
    assert_eq!(runs(&store), [3], "no lease, no past");
    let row = crate::LeaseRow { touched_run: 3, ..lease("m", 1) };
    store.apply(&[put(&row)]).unwrap();
    (0..3).for_each(|_| _ = store.begin_run(0).unwrap());
    assert_eq!(runs(&store), [4, 5, 6], "the run a lease was touched in does not count for it");
}

#[test]
fn a_file_that_is_no_database_is_corrupt() {
    for content in [&b"not a database, but longer than a header: "[..], &[0xff; 5000], b"SQLite format 3\0"] {
        let dir = TempDir::new().unwrap();
        fs::write(database(&dir), content.repeat(3)).unwrap();
        let error = Sqlite::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
    }
}

#[test]
fn a_file_that_lost_its_end_is_corrupt() {
    let dir = filled();
    let whole = fs::read(database(&dir)).unwrap();
    let page = PAGE_BYTES as usize;
    let cut = [2, 50, 99, 100, 511, 512, 4096, page - 1, page, page + 1, whole.len() / 2, whole.len() - page];
    for length in cut {
        fs::write(database(&dir), &whole[..length]).unwrap();
        let error = start(dir.path()).expect_err(&format!("{length} bytes"));
        assert!(matches!(error, StoreError::Corrupt(_)), "{length} bytes: {error:?}");
    }
}

/// Flips bytes all over the file. Damage to a value's bytes cannot always be seen, damage to a page always can;
/// whatever happens, it is an answer.
#[test]
fn a_file_with_flipped_bytes_never_panics() {
    let dir = filled();
    let whole = fs::read(database(&dir)).unwrap();
    let mark = fs::read(dir.path().join("tenure.mark")).unwrap();
    let mut seen = 0;
    for at in (0..whole.len()).step_by(149) {
        let mut flipped = whole.clone();
        flipped[at..].iter_mut().take(16).for_each(|byte| *byte ^= 0xa5);
        fs::write(database(&dir), &flipped).unwrap();
        let outcome = start(dir.path());
        assert!(
            !matches!(outcome, Err(StoreError::Poisoned(_) | StoreError::Locked)),
            "at {at}: {outcome:?}"
        );
        if let Ok(mut store) = Sqlite::open(dir.path()) {
            let findings = store.check();
            seen += usize::from(findings.is_err() || findings.is_ok_and(|findings| !findings.is_empty()));
        } else {
            seen += 1;
        }
        for leftover in ["tenure.db-wal", "tenure.db-shm", "tenure.db-journal"] {
            let _ = fs::remove_file(dir.path().join(leftover));
        }
        fs::write(dir.path().join("tenure.mark"), &mark).unwrap();
    }
    assert!(seen > 20, "only {seen} were found");
}

#[test]
fn a_page_of_garbage_is_corrupt_to_readers_and_a_finding_to_check() {
    let dir = filled();
    let mut whole = fs::read(database(&dir)).unwrap();
    let last = "SELECT max(pageno) FROM dbstat WHERE name = 'leases' AND pagetype = 'leaf'";
    let last: u32 = Connection::open(database(&dir)).unwrap().query_row(last, [], |row| row.get(0)).unwrap();
    let page = PAGE_BYTES as usize;
    whole[(last as usize - 1) * page..last as usize * page].fill(0x5a);
    fs::write(database(&dir), whole).unwrap();
    let mut store = dir.open();
    assert!(matches!(store.leases(), Err(StoreError::Corrupt(_))));
    let findings = store.check().unwrap();
    assert!(!findings.is_empty());
}

#[test]
fn what_does_not_read_is_named() {
    let dir = filled();
    tamper(
        &dir,
        "PRAGMA ignore_check_constraints = ON;
        UPDATE leases SET profile = '{}' WHERE session = (SELECT min(session) FROM leases);
        UPDATE leases SET touched_run = -1 WHERE session = (SELECT max(session) FROM leases);
        UPDATE identity SET broker_key = x'00';",
    );
    let mut store = dir.open();
    assert!(matches!(store.leases(), Err(StoreError::Corrupt(why)) if why.contains("profile")));
    assert!(matches!(store.identity(&identity(2)), Err(StoreError::Corrupt(_))));
    let findings = store.check().unwrap().join("\n");
    for word in ["profile", "touched_run", "identity: "] {
        assert!(findings.contains(word), "no {word} in:\n{findings}");
    }
}

#[test]
fn a_thousand_findings_are_counted_not_told() {
    let dir = filled();
    tamper(&dir, "UPDATE leases SET touched_run = 9;
        INSERT INTO leases SELECT 'n', session, lease, member, instance, profile, caps, joined_at, 9 FROM leases;");
    let findings = dir.open().check().unwrap();
    assert_eq!(findings.len(), 101);
    assert_eq!(findings.last().unwrap(), "and 100 more");
}
