//! Attacks on the files of an outbox that has accepted rows: a start refuses, with the count; `recover` saves what is left.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tenure_kit::durable::Mark;
use tenure_store::durable::{MarkFile, beside};

use super::{CAP, DbError, Outbox, answer, insert, open};
use crate::outbox::copy_files;
use crate::recover::{Recovered, recover};

const ROWS: u64 = 40;
const FRAME: usize = 24 + 4096;

/// What a killed daemon leaves that has accepted rows, one by one.
async fn killed() -> TempDir {
    let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let outbox = open(dir.path());
    for n in 0..ROWS {
        insert(&outbox, &format!("id {n}"), "body").await;
    }
    copy_files(dir.path(), left.path());
    drop(outbox);
    left
}

fn change(dir: &Path, file: &str, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(dir.join(file)).unwrap();
    how(&mut bytes);
    fs::write(dir.join(file), bytes).unwrap();
}

/// Attacks the files; how many rows are then there, of which nothing more is missing than was said.
async fn attack(how: impl FnOnce(&Path)) -> u64 {
    let dir = killed().await;
    how(dir.path());
    // SQLite makes an empty log where there is none; it says as little.
    let log = || fs::read(dir.path().join("outbox.db-wal")).ok().filter(|bytes| !bytes.is_empty());
    let before = log();
    let error = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(
        matches!(&error, DbError::Corrupt(why) if why.contains("lost rows that were accepted")),
        "{error}"
    );
    assert_eq!(log(), before, "nothing is changed by looking");
    let salvage = match recover(dir.path(), 1_794_805_200_000).unwrap() {
        Recovered::Saved { salvage, .. } => salvage,
        other => panic!("{other:?}"),
    };
    assert_eq!(salvage.saved + salvage.missing, ROWS, "{salvage:?}");
    let outbox = open(dir.path());
    let there = outbox.list(None, 0, 1_000).await.unwrap().len() as u64;
    assert_eq!(there, salvage.saved);
    if there > 0 {
        let (row, _) = insert(&outbox, "new", "body").await;
        assert_eq!(row, ROWS + 1, "no number is given out twice");
    }
    there
}

#[tokio::test]
async fn a_log_that_is_damaged_cut_or_gone_is_told() {
    let flipped = attack(|dir| {
        change(dir, "outbox.db-wal", |log| {
            let middle = log.len() / 2;
            log[middle] ^= 1;
        });
    });
    assert!((10..30).contains(&flipped.await));
    let cut = attack(|dir| change(dir, "outbox.db-wal", |log| log.truncate(log.len() / 2)));
    assert!((10..30).contains(&cut.await));
    let last = attack(|dir| change(dir, "outbox.db-wal", |log| log.truncate(log.len() - FRAME)));
    assert_eq!(last.await, ROWS - 1);
    assert_eq!(attack(|dir| change(dir, "outbox.db-wal", |log| log[18] ^= 1)).await, 0);
    assert_eq!(attack(|dir| fs::remove_file(dir.join("outbox.db-wal")).unwrap()).await, 0);
    assert_eq!(attack(|dir| fs::remove_file(dir.join("outbox.db")).unwrap()).await, 0);
}

/// Files that must be refused, and left as they are; `recover` then saves as many rows as there are in the file alone.
fn is_refused(dir: &TempDir, why: &str, saved: u64) {
    let files =
        || ["outbox.db", "outbox.db-wal", "outbox.mark"].map(|file| fs::read(dir.path().join(file)).ok());
    let before = files();
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(
        matches!(&refused, DbError::Corrupt(told) if told.contains("lost rows that were accepted") && told.contains(why)),
        "{refused}"
    );
    assert!(refused.to_string().contains("put the right file back"), "{refused}");
    assert!(files() == before, "nothing is changed by looking");
    let Recovered::Saved { salvage, kept, .. } = recover(dir.path(), 1_794_805_200_000).unwrap() else {
        panic!("it is not sound")
    };
    assert_eq!((salvage.saved, &salvage.lost), (saved, &vec![]), "{salvage:?}");
    let kept_log = beside(&kept, "-wal");
    assert_eq!([fs::read(&kept).ok(), fs::read(kept_log).ok()], before[..2], "both are kept as they were");
    open(dir.path());
}

#[tokio::test]
async fn an_older_file_under_a_newer_log_is_told_and_the_other_way_round() {
    let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let outbox = open(dir.path());
    insert(&outbox, "one", "body").await;
    let old_log = fs::read(dir.path().join("outbox.db-wal")).unwrap();
    drop(outbox);
    let old = fs::read(dir.path().join("outbox.db")).unwrap();
    let outbox = open(dir.path());
    insert(&outbox, "two", "body").await;
    drop(outbox);
    let right = fs::read(dir.path().join("outbox.db")).unwrap();
    let outbox = open(dir.path());
    for n in 0..ROWS {
        insert(&outbox, &format!("id {n}"), "body").await;
    }
    copy_files(dir.path(), left.path());
    drop(outbox);
    assert_eq!(fs::read(left.path().join("outbox.db")).unwrap(), right);
    for file in ["outbox.db", "outbox.db-wal"] {
        let (dir, put) = (TempDir::new().unwrap(), if file == "outbox.db" { &old } else { &old_log });
        copy_files(left.path(), dir.path());
        fs::write(dir.path().join(file), put).unwrap();
        if file == "outbox.db" {
            is_refused(&dir, "the database file is an older copy", 1);
        } else {
            is_refused(&dir, "the write-ahead log is an older copy", 2);
        }
    }
    assert_eq!(open(left.path()).census().await.unwrap().pending, ROWS + 2, "the right files have it all");
}

#[tokio::test]
async fn the_file_of_another_outbox_under_a_log_is_told() {
    let (dir, other) = (killed().await, TempDir::new().unwrap());
    let outbox = open(other.path());
    insert(&outbox, "one", "body").await;
    drop(outbox);
    fs::copy(other.path().join("outbox.db"), dir.path().join("outbox.db")).unwrap();
    is_refused(&dir, "of another store", 1);
}

#[tokio::test]
async fn what_a_kill_leaves_is_opened() {
    let dir = killed().await;
    assert_eq!(open(dir.path()).census().await.unwrap().pending, ROWS);
}

#[tokio::test]
async fn a_clean_stop_leaves_nothing_in_the_log() {
    let dir = TempDir::new().unwrap();
    let outbox = open(dir.path());
    insert(&outbox, "one", "body").await;
    // The reader has the file open too from its first question on.
    outbox.census().await.unwrap();
    drop(outbox);
    assert_eq!(fs::metadata(dir.path().join("outbox.db-wal")).map_or(0, |log| log.len()), 0);
}

#[tokio::test]
async fn files_that_are_removed_poison_the_outbox_within_a_second() {
    for file in ["outbox.db", "outbox.db-wal", "outbox.mark"] {
        let dir = TempDir::new().unwrap();
        let outbox = open(dir.path());
        insert(&outbox, "one", "body").await;
        fs::remove_file(dir.path().join(file)).unwrap();
        let noticed = async {
            while outbox.fault().is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap();
        assert!(outbox.fault().unwrap().contains(file), "{:?}", outbox.fault());
        let request = super::request("two", "topic:a", "body");
        assert!(matches!(outbox.accept(request, 10).await, Err(DbError::Poisoned(_))));
    }
}

/// Waits until the outbox says what is wrong with its files.
async fn noticed(outbox: &Outbox) -> String {
    let noticed = async {
        while outbox.fault().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap();
    outbox.fault().unwrap()
}

#[tokio::test]
async fn a_mark_that_is_removed_with_the_other_files_is_written_again() {
    for waited in [true, false] {
        let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let outbox = open(dir.path());
        insert(&outbox, "one", "body").await;
        for file in ["outbox.db", "outbox.db-wal", "outbox.mark"] {
            fs::remove_file(dir.path().join(file)).unwrap();
        }
        let refused = |dir: &Path| {
            let refused = Outbox::open(dir, CAP).unwrap_err();
            assert!(
                matches!(&refused, DbError::Corrupt(why) if why.contains("1 accepted messages")),
                "{refused}"
            );
        };
        if waited {
            noticed(&outbox).await;
            fs::copy(dir.path().join("outbox.mark"), left.path().join("outbox.mark")).unwrap();
            refused(left.path());
        }
        drop(outbox);
        refused(dir.path());
    }
}

#[tokio::test]
async fn files_that_are_written_over_poison_the_outbox_and_the_next_start_says_so() {
    for file in ["outbox.db", "outbox.db-wal"] {
        let dir = TempDir::new().unwrap();
        let outbox = open(dir.path());
        insert(&outbox, "one", "body").await;
        let old = fs::read(dir.path().join(file)).unwrap();
        insert(&outbox, "two", "body").await;
        // As `cp` does it: the same file with what it was before.
        fs::write(dir.path().join(file), if file == "outbox.db" { old } else { Vec::new() }).unwrap();
        let fault = noticed(&outbox).await;
        assert!(fault.contains(file) && fault.contains("overwritten"), "{fault}");
        drop(outbox);
        let refused = Outbox::open(dir.path(), CAP).unwrap_err();
        assert!(matches!(&refused, DbError::Corrupt(why) if why.contains("lost rows")), "{refused}");
    }
}

/// What the mark in a directory says.
fn mark(dir: &Path) -> Mark {
    MarkFile::open(&dir.join("outbox.mark")).unwrap().mark().unwrap()
}

/// A process that is killed does not close its files: what the next start must know is on record before that.
#[tokio::test]
async fn a_file_that_is_written_over_before_a_commit_is_on_record_at_once() {
    let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let outbox = open(dir.path());
    insert(&outbox, "one", "body").await;
    let old = fs::read(dir.path().join("outbox.db")).unwrap();
    for n in 0..ROWS {
        insert(&outbox, &format!("id {n}"), "body").await;
    }
    fs::write(dir.path().join("outbox.db"), old).unwrap();
    // Two: the second must not take the file for ours.
    for id in ["two", "three"] {
        let refused = outbox.accept(super::request(id, "topic:a", "body"), 10).await.unwrap_err();
        assert!(
            matches!(&refused, DbError::Poisoned(why) if why.contains("outbox.db was overwritten")),
            "{refused}"
        );
    }
    copy_files(dir.path(), left.path());
    let refused = Outbox::open(left.path(), CAP).unwrap_err();
    assert!(matches!(&refused, DbError::Corrupt(why) if why.contains("lost rows")), "{refused}");
}

#[tokio::test]
async fn a_write_that_failed_is_on_record_at_once() {
    let (dir, left) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let outbox = open(dir.path());
    insert(&outbox, "one", "body").await;
    assert!(!mark(dir.path()).poisoned);
    let fails = |_: &_| Err::<(), _>(DbError::Poisoned("input/output error".to_owned()));
    answer(outbox.writer.submit(fails)).await.unwrap_err();
    copy_files(dir.path(), left.path());
    let found = mark(left.path());
    assert_eq!((found.poisoned, found.overwritten, found.ledger.messages), (true, false, 1));
}

/// After a failed sync the system shows frames of the log that never reached the disk, and a process that is killed leaves them to
/// the next one. What that one promises must not hang on them.
#[tokio::test]
async fn a_start_chains_nothing_behind_frames_that_may_not_be_on_the_disk() {
    let (dir, left) = (killed().await, TempDir::new().unwrap());
    let before = fs::read(dir.path().join("outbox.db-wal")).unwrap();
    let outbox = open(dir.path());
    insert(&outbox, "new", "body").await;
    copy_files(dir.path(), left.path());
    // The power goes, and with it what was in the log at the start and was not written anew since.
    change(left.path(), "outbox.db-wal", |log| {
        if log.starts_with(&before) {
            log[..before.len()].fill(0);
        }
    });
    let census = Outbox::open(left.path(), CAP).unwrap().census().await.unwrap();
    assert_eq!(census.pending, ROWS + 1);
}

/// Such a log must be copied, and so the next start does not go on while that is not possible.
#[tokio::test]
async fn a_log_whose_write_failed_is_copied_before_its_mark_is_forgotten() {
    let dir = killed().await;
    let mut file = MarkFile::open(&dir.path().join("outbox.mark")).unwrap();
    file.write(Mark { poisoned: true, ..file.mark().unwrap() }).unwrap();
    // Another program looks at one moment of the file, which needs the log.
    let shell = rusqlite::Connection::open(dir.path().join("outbox.db")).unwrap();
    shell.execute_batch("BEGIN; SELECT * FROM ledger").unwrap();
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(matches!(&refused, DbError::Unavailable(why) if why.contains("outbox.db")), "{refused}");
    assert!(mark(dir.path()).poisoned);
    drop(shell);
    let outbox = open(dir.path());
    assert!(!mark(dir.path()).poisoned);
    assert_eq!(outbox.census().await.unwrap().pending, ROWS);
}

#[tokio::test]
async fn a_mark_that_does_not_read_is_told_and_recovered_from() {
    let dir = killed().await;
    fs::write(dir.path().join("outbox.mark"), vec![0; 8192]).unwrap();
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(matches!(&refused, DbError::Corrupt(why) if why.contains("may have lost rows")), "{refused}");
    let Recovered::Saved { salvage, .. } = recover(dir.path(), 1_794_805_200_000).unwrap() else {
        panic!("nothing was saved")
    };
    assert_eq!(salvage.saved, ROWS);
    assert_eq!(open(dir.path()).census().await.unwrap().pending, ROWS);
}

#[tokio::test]
async fn a_mark_that_is_missing_is_told_whatever_else_is_done_to_the_log() {
    for cut in [false, true] {
        let dir = killed().await;
        fs::remove_file(dir.path().join("outbox.mark")).unwrap();
        if cut {
            change(dir.path(), "outbox.db-wal", |log| log.truncate(log.len() / 2));
        }
        let refused = Outbox::open(dir.path(), CAP).unwrap_err();
        assert!(matches!(&refused, DbError::Corrupt(why) if why.contains("may have lost rows")), "{refused}");
        let Recovered::Saved { salvage, .. } = recover(dir.path(), 1_794_805_200_000).unwrap() else {
            panic!("it is not sound")
        };
        assert!(salvage.maybe_more, "nothing says how many there were: {salvage:?}");
        open(dir.path());
    }
}

#[tokio::test]
async fn a_log_that_is_written_over_in_its_middle_is_not_copied_at_a_stop() {
    let dir = TempDir::new().unwrap();
    let outbox = open(dir.path());
    for n in 0..ROWS {
        insert(&outbox, &format!("id {n}"), "body").await;
    }
    // The reader has the file open too from its first question on, and may be the last to close it.
    outbox.census().await.unwrap();
    write_over_the_middle(&dir.path().join("outbox.db-wal"));
    let files = || ["outbox.db", "outbox.db-wal"].map(|file| fs::read(dir.path().join(file)).ok());
    let before = files();
    drop(outbox);
    assert!(files() == before, "an outbox that stopped writing copies nothing");
    let refused = Outbox::open(dir.path(), CAP).unwrap_err();
    assert!(matches!(&refused, DbError::Corrupt(why) if why.contains("lost rows")), "{refused}");
}

/// Writes zeros into the middle of a file that is in use.
fn write_over_the_middle(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 6_000], middle).unwrap();
}

/// What the outbox itself does to its files, until its log was copied and begun anew a few times.
#[tokio::test]
async fn nothing_that_the_outbox_does_itself_is_taken_for_somebody_elses() {
    let dir = TempDir::new().unwrap();
    let outbox = open(dir.path());
    let log = dir.path().join("outbox.db-wal");
    let salt = || fs::read(&log).map(|log| log.get(16..20).map(<[u8]>::to_vec)).unwrap();
    let (mut seen, mut renewals, body) = (None, 0, "x".repeat(60_000));
    for n in 0.. {
        insert(&outbox, &format!("id {n}"), &body).await;
        assert_eq!(outbox.fault(), None);
        if n % 50 == 0 {
            let found = salt();
            renewals += u32::from(found != seen);
            seen = found;
            assert!(n < 10_000, "the log was never begun anew");
        }
        if renewals > 3 {
            break;
        }
    }
    drop(outbox);
    drop(open(dir.path()));
}
