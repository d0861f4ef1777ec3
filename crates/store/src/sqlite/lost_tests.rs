//! Attacks on the files of a store that holds acknowledged messages: each is told, with the count; and what a crash
//! leaves never is.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use tenure_kit::durable::{Loss, LossCause, Mark};
use tenure_mesh::messages::envelope::{Body, Envelope, Lane};
use tenure_mesh::store::record::StoreWrite;

use super::*;
use crate::Checking;
use crate::conformance::Engine;
use crate::conformance::messages::{accept, fill, plain, seqs, topic, write};

const DATABASE: &str = "tenure.db";
const LOG: &str = "tenure.db-wal";
const MARK: &str = "tenure.mark";

/// The files as a killed process leaves them: a copy of them while the store is open.
fn killed(from: &Path) -> TempDir {
    let left = TempDir::new().unwrap();
    for file in [DATABASE, LOG, MARK] {
        if from.join(file).exists() {
            fs::copy(from.join(file), left.path().join(file)).unwrap();
        }
    }
    left
}

fn message(n: u64) -> Write {
    write(StoreWrite::Accept(Arc::new(accept(topic("t"), plain(n)))))
}

/// What a killed process leaves that had acknowledged `count` messages, one by one.
fn acknowledged(count: u64) -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    for n in 0..count {
        store.apply(&[message(n)]).unwrap();
    }
    killed(dir.path())
}

fn loss(dir: &Path) -> Loss {
    match Sqlite::open(dir) {
        Err(StoreError::Lost(loss)) => loss,
        other => panic!("{other:?}"),
    }
}

fn change(dir: &Path, file: &str, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(dir.join(file)).unwrap();
    how(&mut bytes);
    fs::write(dir.join(file), bytes).unwrap();
}

/// Attacks the files; what is then said, and what is there once the loss was accepted.
fn attack(how: impl FnOnce(&Path)) -> (Loss, usize) {
    let dir = acknowledged(60);
    how(dir.path());
    // SQLite makes an empty log where there is none; it says as little.
    let read = |file| fs::read(dir.path().join(file)).ok().filter(|bytes| !bytes.is_empty());
    let files = || [DATABASE, LOG, MARK].map(read);
    let before = files();
    let lost = loss(dir.path());
    let findings = Sqlite::findings(dir.path()).unwrap();
    assert!(findings[0].contains("acknowledged data is lost"), "{findings:?}");
    assert_eq!(loss(dir.path()), lost, "it is said again");
    assert!(files() == before, "nothing is changed by looking");
    let accepted = Sqlite::accept_loss(dir.path(), "20261117").unwrap().unwrap();
    assert_eq!(accepted.loss, lost);
    assert!(accepted.kept.iter().all(|kept| kept.exists()));
    assert!(!accepted.kept.is_empty());
    assert_eq!(Sqlite::accept_loss(dir.path(), "later").unwrap(), None, "accepted once");
    let mut store = dir.open();
    assert_eq!(store.check(), Ok(vec![]));
    let there = seqs(&store, &topic("t"), Lane(0)).len();
    store.apply(&[message(1_000)]).unwrap();
    drop(store);
    assert_eq!(seqs(&dir.open(), &topic("t"), Lane(0)).len(), there + 1);
    (lost, there)
}

#[test]
fn a_flipped_bit_in_the_middle_of_the_log_is_told() {
    let (lost, there) = attack(|dir| {
        change(dir, LOG, |log| {
            let middle = log.len() / 2;
            log[middle] ^= 1;
        });
    });
    assert_eq!(lost.cause, LossCause::LogDamaged);
    assert_eq!(lost.messages, Some(60 - there as u64));
    assert!((20..40).contains(&there), "{there}");
}

#[test]
fn a_log_that_was_cut_in_half_is_told() {
    let (lost, there) = attack(|dir| change(dir, LOG, |log| log.truncate(log.len() / 2)));
    assert_eq!((lost.cause, lost.messages), (LossCause::EndMissing, Some(60 - there as u64)));
    assert!((20..40).contains(&there), "{there}");
}

#[test]
fn a_log_that_lost_its_last_frame_is_told() {
    let frame = 24 + PAGE_BYTES as usize;
    let (lost, there) = attack(|dir| change(dir, LOG, |log| log.truncate(log.len() - frame)));
    assert_eq!((lost.messages, lost.writes, there), (Some(1), Some(1), 59));
}

#[test]
fn a_log_that_was_removed_is_told() {
    let (lost, there) = attack(|dir| fs::remove_file(dir.join(LOG)).unwrap());
    assert_eq!((lost.cause, lost.messages, there), (LossCause::EndMissing, Some(60), 0));
}

#[test]
fn a_damaged_header_of_the_log_is_told() {
    let (lost, there) = attack(|dir| change(dir, LOG, |log| log[18] ^= 1));
    assert_eq!((lost.cause, lost.messages, there), (LossCause::LogHeaderDamaged, Some(60), 0));
}

#[test]
fn a_database_that_was_removed_is_told_whatever_else_is_left() {
    for others in [&[][..], &[LOG]] {
        let (lost, there) = attack(|dir| {
            fs::remove_file(dir.join(DATABASE)).unwrap();
            others.iter().for_each(|file| fs::remove_file(dir.join(file)).unwrap());
        });
        assert_eq!((lost.cause, lost.messages, there), (LossCause::DatabaseGone, Some(60), 0));
    }
}

#[test]
fn an_older_copy_and_another_store_are_told() {
    let dir = TempDir::new().unwrap();
    fill(&mut dir.open(), &topic("t"), 0..10);
    let old = fs::read(dir.path().join(DATABASE)).unwrap();
    fill(&mut dir.open(), &topic("t"), 10..17);
    fs::write(dir.path().join(DATABASE), &old).unwrap();
    let older = loss(dir.path());
    assert_eq!((older.cause, older.messages), (LossCause::EndMissing, Some(7)));
    let other = TempDir::new().unwrap();
    fill(&mut other.open(), &topic("t"), 0..99);
    fs::copy(other.path().join(DATABASE), dir.path().join(DATABASE)).unwrap();
    assert_eq!(loss(dir.path()).cause, LossCause::DatabaseReplaced);
    fs::remove_file(dir.path().join(MARK)).unwrap();
    // A backup of the database alone has no mark.
    assert_eq!(seqs(&dir.open(), &topic("t"), Lane(0)).len(), 99);
}

/// What a killed process leaves whose log was copied twice into its file, and the file as of the first time.
fn folded_twice() -> (TempDir, Vec<u8>) {
    let dir = TempDir::new().unwrap();
    fill(&mut dir.open(), &topic("t"), 0..10);
    let old = fs::read(dir.path().join(DATABASE)).unwrap();
    fill(&mut dir.open(), &topic("t"), 10..20);
    let mut store = dir.open();
    (20..60).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    (killed(dir.path()), old)
}

/// Files that must be refused, and left as they are, until the loss is accepted; which keeps the log as it is too.
fn is_refused(dir: &TempDir) -> (Loss, usize) {
    let files = || [DATABASE, LOG, MARK].map(|file| fs::read(dir.path().join(file)).ok());
    let before = files();
    let lost = loss(dir.path());
    let findings = Sqlite::findings(dir.path()).unwrap();
    assert!(findings.len() == 1 && findings[0].contains("acknowledged data is lost"), "{findings:?}");
    assert_eq!(Sqlite::lost(dir.path()), Ok(Some(lost.clone())));
    assert!(files() == before, "nothing is changed by looking");
    assert_eq!(Sqlite::accept_loss(dir.path(), "20261117").unwrap().unwrap().loss, lost);
    assert_eq!(fs::read(dir.path().join(format!("{LOG}.lost-20261117"))).ok(), before[1]);
    let mut store = dir.open();
    assert_eq!(store.check(), Ok(vec![]));
    let there = seqs(&store, &topic("t"), Lane(0)).len();
    store.apply(&[message(1_000)]).unwrap();
    drop(store);
    assert_eq!(seqs(&dir.open(), &topic("t"), Lane(0)).len(), there + 1);
    (lost, there)
}

#[test]
fn an_older_file_under_a_newer_log_is_told() {
    let (dir, old) = folded_twice();
    let right = fs::read(dir.path().join(DATABASE)).unwrap();
    fs::write(dir.path().join(DATABASE), &old).unwrap();
    assert_eq!(loss(dir.path()).messages, Some(50));
    fs::write(dir.path().join(DATABASE), &right).unwrap();
    let sound = killed(dir.path());
    assert_eq!(seqs(&sound.open(), &topic("t"), Lane(0)).len(), 60, "put back, all is there");
    fs::write(dir.path().join(DATABASE), &old).unwrap();
    let (lost, there) = is_refused(&dir);
    assert_eq!((lost.cause, there), (LossCause::FileBehindLog, 10));
}

#[test]
fn an_older_file_under_a_newer_log_is_told_without_a_mark() {
    let (dir, old) = folded_twice();
    fs::write(dir.path().join(DATABASE), old).unwrap();
    fs::remove_file(dir.path().join(MARK)).unwrap();
    let (lost, there) = is_refused(&dir);
    assert_eq!((lost.cause, lost.messages, there), (LossCause::FileBehindLog, None, 10));
}

#[test]
fn the_file_of_another_store_under_a_log_is_told() {
    let (dir, _) = folded_twice();
    let other = TempDir::new().unwrap();
    fill(&mut other.open(), &topic("t"), 0..99);
    fs::copy(other.path().join(DATABASE), dir.path().join(DATABASE)).unwrap();
    let (lost, there) = is_refused(&dir);
    assert_eq!((lost.cause, lost.messages, there), (LossCause::FileBehindLog, None, 99));
}

#[test]
fn an_older_log_under_a_newer_file_is_told_and_not_copied_into_it() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    (0..10).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    let old = fs::read(dir.path().join(LOG)).unwrap();
    (10..30).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    drop(store);
    fs::write(dir.path().join(LOG), old).unwrap();
    let (lost, there) = is_refused(&dir);
    assert_eq!((lost.cause, lost.messages, there), (LossCause::LogBehindFile, Some(0), 30));
    assert!(lost.to_string().ends_with("nothing is missing without it"), "{lost}");
}

/// An older pair of file and log belongs together, whatever the mark says.
#[test]
fn an_older_file_with_its_own_log_is_copied_when_the_loss_is_accepted() {
    let dir = TempDir::new().unwrap();
    fill(&mut dir.open(), &topic("t"), 0..10);
    let mut store = dir.open();
    (10..20).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    let old = backup(dir.path());
    (20..50).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    drop(store);
    put_back(dir.path(), &old[..2]);
    let lost = loss(dir.path());
    assert_eq!((lost.cause, lost.messages), (LossCause::EndMissing, Some(30)));
    assert!(Sqlite::accept_loss(dir.path(), "20261117").unwrap().is_some());
    assert_eq!(seqs(&dir.open(), &topic("t"), Lane(0)).len(), 20);
}

/// The process dies while the log is copied into the file, or the power goes: any sectors of the file before and after. Also
/// while one reader held a part of the log back, so that the copy before was not of one moment.
#[test]
fn no_mixture_of_a_copy_of_the_log_is_taken_for_another_file() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(25));
    let plan = (1u64..40, 1u64..40, any::<u64>(), any::<bool>(), any::<bool>());
    runner
        .run(&plan, |(first, second, seed, cut, held)| {
            let dir = TempDir::new().unwrap();
            let mut store = dir.open();
            (0..first).for_each(|n| _ = store.apply(&[large(n)]).unwrap());
            let shell = Connection::open(dir.path().join(DATABASE)).unwrap();
            if held {
                shell.execute_batch("BEGIN; SELECT * FROM ledger").unwrap();
            }
            (first..first + second).for_each(|n| _ = store.apply(&[large(n)]).unwrap());
            let before = killed(dir.path());
            store.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            let files = [before.path(), dir.path()].map(|dir| fs::read(dir.join(DATABASE)).unwrap());
            fs::write(before.path().join(DATABASE), mixture(&files[0], &files[1], seed, cut)).unwrap();
            let mut found = Sqlite::open(before.path()).unwrap();
            prop_assert_eq!(found.check(), Ok(vec![]));
            prop_assert_eq!(seqs(&found, &topic("t"), Lane(0)).len() as u64, first + second);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_flipped_bit_is_told_even_without_a_mark() {
    let dir = acknowledged(60);
    fs::remove_file(dir.path().join(MARK)).unwrap();
    change(dir.path(), LOG, |log| {
        let middle = log.len() / 2;
        log[middle] ^= 1;
    });
    let lost = loss(dir.path());
    assert_eq!((lost.cause, lost.messages), (LossCause::LogDamaged, None));
    assert!(lost.writes.unwrap() > 20, "{lost:?}");
}

/// What a mark that is gone or does not read leaves open, with half of the log cut off beside it.
#[test]
fn a_mark_that_is_missing_or_does_not_read_is_told() {
    type Attack = (fn(&Path), LossCause);
    let attacks: [Attack; 3] = [
        (|mark| fs::remove_file(mark).unwrap(), LossCause::MarkGone),
        (|mark| fs::write(mark, vec![0; 8192]).unwrap(), LossCause::MarkDamaged),
        (|mark| fs::write(mark, "").unwrap(), LossCause::MarkDamaged),
    ];
    for (attacked, cause) in attacks {
        let dir = acknowledged(60);
        change(dir.path(), LOG, |log| log.truncate(log.len() / 2));
        attacked(&dir.path().join(MARK));
        let lost = loss(dir.path());
        assert_eq!((lost.cause, lost.messages, lost.writes), (cause, None, None));
        assert_eq!(loss(dir.path()), lost, "it is said again");
        let said = Sqlite::open(dir.path()).unwrap_err().to_string();
        assert!(said.contains("may have lost") && said.contains("recover --accept-loss"), "{said}");
        let findings = Sqlite::findings(dir.path()).unwrap();
        assert!(findings[0].contains("acknowledged data may be lost"), "{findings:?}");
        assert_eq!(Sqlite::accept_loss(dir.path(), "20261117").unwrap().unwrap().loss, lost);
        let mut store = dir.open();
        assert!((20..40).contains(&seqs(&store, &topic("t"), Lane(0)).len()));
        store.apply(&[message(1_000)]).unwrap();
        drop(store);
        assert_eq!(Sqlite::findings(dir.path()), Ok(vec![]), "there is a new one");
    }
}

#[test]
fn a_store_that_never_had_a_mark_is_opened_without_one() {
    let dir = acknowledged(10);
    fs::remove_file(dir.path().join(MARK)).unwrap();
    // As a program left it that did not say whether there was one.
    let connection = Connection::open(dir.path().join(DATABASE)).unwrap();
    connection.execute("UPDATE ledger SET marked = 0", []).unwrap();
    drop(connection);
    let mut store = dir.open();
    assert_eq!(store.check(), Ok(vec![]));
    assert_eq!(seqs(&store, &topic("t"), Lane(0)).len(), 10);
    // From the next write on it is missed.
    store.apply(&[message(10)]).unwrap();
    let left = killed(dir.path());
    fs::remove_file(left.path().join(MARK)).unwrap();
    assert_eq!(loss(left.path()).cause, LossCause::MarkGone);
}

#[test]
fn a_clean_stop_leaves_nothing_in_the_log() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    let (reader, checkpointer) = (store.reader().unwrap(), store.checkpointer().unwrap());
    fill(&mut store, &topic("t"), 0..10);
    assert!(fs::metadata(dir.path().join(LOG)).unwrap().len() > 0);
    drop(store);
    assert_eq!(fs::metadata(dir.path().join(LOG)).map_or(0, |log| log.len()), 0);
    drop((reader, checkpointer));
    let _ = fs::remove_file(dir.path().join(LOG));
    assert_eq!(seqs(&dir.open(), &topic("t"), Lane(0)).len(), 10, "the main file has it all");
}

#[test]
fn files_that_are_removed_or_replaced_poison_the_store() {
    for file in [DATABASE, LOG, MARK, "tenure.db-shm", "tenure.lock"] {
        for replaced in [false, true] {
            let dir = TempDir::new().unwrap();
            let mut store = dir.open();
            let mut guard = store.guard().unwrap().unwrap();
            store.apply(&[message(1)]).unwrap();
            guard.look().unwrap();
            let path = dir.path().join(file);
            let copy = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            if replaced {
                fs::write(dir.path().join("other"), copy).unwrap();
                fs::rename(dir.path().join("other"), &path).unwrap();
            }
            let poisoned = guard.look().unwrap_err();
            assert!(matches!(&poisoned, StoreError::Poisoned(why) if why.contains(file)), "{poisoned}");
            assert_eq!(store.apply(&[message(2)]).unwrap_err(), poisoned, "nothing is acknowledged any more");
        }
    }
}

/// The files that a backup has.
fn backup(dir: &Path) -> Vec<(&'static str, Vec<u8>)> {
    [DATABASE, LOG, MARK].map(|file| (file, fs::read(dir.join(file)).unwrap())).into()
}

/// Writes over files as `cp` does: they stay the same files.
fn put_back(dir: &Path, files: &[(&str, Vec<u8>)]) {
    files.iter().for_each(|(file, bytes)| fs::write(dir.join(file), bytes).unwrap());
}

/// Looks after the store until its guard says what is wrong; nothing is acknowledged then, nothing copied at the end, and the
/// next start says what is missing.
fn is_noticed(dir: &TempDir, mut store: Sqlite, file: &str, acknowledged: u64) {
    let poisoned = store.guard().unwrap().unwrap().look().unwrap_err();
    assert!(matches!(&poisoned, StoreError::Poisoned(why) if why.contains(file)), "{poisoned}");
    assert_eq!(store.apply(&[message(10_000)]).unwrap_err(), poisoned, "nothing is acknowledged any more");
    let files = [DATABASE, LOG].map(|file| fs::read(dir.path().join(file)).unwrap());
    drop(store);
    let left = [DATABASE, LOG].map(|file| fs::read(dir.path().join(file)).unwrap());
    assert!(files == left, "a store that stopped writing copies nothing");
    let lost = loss(dir.path());
    if lost.cause == LossCause::Overwritten {
        return;
    }
    assert_eq!(Sqlite::accept_loss(dir.path(), "20261117").unwrap().unwrap().loss, lost);
    let there = seqs(&dir.open(), &topic("t"), Lane(0)).len() as u64;
    assert_eq!(lost.messages, Some(acknowledged - there));
    assert!(there < acknowledged);
}

#[cfg(unix)]
#[test]
fn a_log_that_is_cut_while_it_is_in_use_poisons_the_store() {
    // With and without a write behind it, which makes the file long again; also one that a guard never saw before.
    for (writes, looked) in [(0, true), (5, true), (0, false), (5, false)] {
        let dir = TempDir::new().unwrap();
        let mut store = dir.open();
        let mut guard = store.guard().unwrap().unwrap();
        (0..50).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
        if looked {
            guard.look().unwrap();
        }
        fs::OpenOptions::new().write(true).truncate(true).open(dir.path().join(LOG)).unwrap();
        (50..50 + writes).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
        assert!(looked || guard.look().is_err());
        if looked {
            is_noticed(&dir, store, LOG, 50 + writes);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_log_that_is_written_over_in_its_middle_is_not_copied_at_a_stop() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    (0..200).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    let log = fs::OpenOptions::new().write(true).open(dir.path().join(LOG)).unwrap();
    let length = log.metadata().unwrap().len();
    std::os::unix::fs::FileExt::write_all_at(&log, &[0; 6_000], length / 2).unwrap();
    assert!(matches!(store.look_closely(), Err(StoreError::Poisoned(_))));
    drop(store);
    assert!(fs::metadata(dir.path().join(LOG)).unwrap().len() >= length, "it is as it was");
    assert_eq!(loss(dir.path()).cause, LossCause::LogDamaged);
}

#[cfg(unix)]
#[test]
fn an_older_log_over_the_one_in_use_poisons_the_store() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    (0..20).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    let old = backup(dir.path());
    (20..50).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    store.guard().unwrap().unwrap().look().unwrap();
    put_back(dir.path(), &old[1..2]);
    // What follows is written behind a hole, and the file is as long as it should be.
    (50..60).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    is_noticed(&dir, store, LOG, 60);
}

#[cfg(unix)]
#[test]
fn an_older_copy_over_the_database_in_use_poisons_the_store() {
    for all in [false, true] {
        let dir = TempDir::new().unwrap();
        let mut store = dir.open();
        (0..20).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
        let old = backup(dir.path());
        let mut checkpointer = store.checkpointer().unwrap().unwrap();
        let n = super::message_tests::fill_log(&mut store, 20, i64::try_from(LOG_PAGES).unwrap());
        checkpointer.run().unwrap();
        store.guard().unwrap().unwrap().look().unwrap();
        put_back(dir.path(), if all { &old } else { &old[..1] });
        (n..n + 10).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
        if all {
            // It holds the directory as the store does.
            drop(checkpointer);
            is_noticed(&dir, store, DATABASE, n + 10);
        } else {
            assert!(store.guard().unwrap().unwrap().look().is_err());
            assert!(checkpointer.run().is_err(), "nothing is copied into it");
        }
    }
}

/// What the log shows after a failed sync may not be on the disk: a start goes on only once it is written anew.
#[test]
fn a_log_whose_sync_failed_is_copied_before_its_mark_is_forgotten() {
    let dir = acknowledged(20);
    let path = dir.path().join(MARK);
    let mut mark = MarkFile::open(&path).unwrap();
    mark.write(Mark { poisoned: true, ..mark.mark().unwrap() }).unwrap();
    // Another program looks at one moment of the file, which needs the log.
    let shell = Connection::open(dir.path().join(DATABASE)).unwrap();
    shell.execute_batch("BEGIN; SELECT * FROM ledger").unwrap();
    let refused = Sqlite::open(dir.path()).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unavailable(why) if why.contains("close the program")),
        "{refused}"
    );
    assert!(MarkFile::open(&path).unwrap().mark().unwrap().poisoned);
    drop(shell);
    drop(Sqlite::open(dir.path()).unwrap());
    assert!(!MarkFile::open(&path).unwrap().mark().unwrap().poisoned);
}

#[cfg(unix)]
#[test]
fn a_store_that_is_closed_before_anybody_looked_copies_nothing_into_files_of_others() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    (0..20).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    let old = backup(dir.path());
    (20..50).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    put_back(dir.path(), &old);
    drop(store);
    let lost = loss(dir.path());
    assert_eq!((lost.cause, lost.messages), (LossCause::EndMissing, Some(30)), "the mark is ours again");
}

#[cfg(unix)]
#[test]
fn a_mark_that_is_written_over_poisons_the_store_and_is_written_again() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    let mut guard = store.guard().unwrap().unwrap();
    (0..20).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    guard.look().unwrap();
    fs::write(dir.path().join(MARK), "").unwrap();
    assert!(matches!(guard.look(), Err(StoreError::Poisoned(why)) if why.contains(MARK)));
    fs::write(dir.path().join(MARK), vec![0; 8192]).unwrap();
    assert!(guard.look().is_err());
    let mark = MarkFile::open(&dir.path().join(MARK)).unwrap().mark().unwrap();
    assert_eq!((mark.ledger.messages, mark.poisoned), (20, true), "whoever writes over it writes last");
}

#[test]
fn a_mark_that_is_removed_with_the_other_files_is_written_again() {
    for looked in [true, false] {
        let dir = TempDir::new().unwrap();
        let mut store = dir.open();
        let mut guard = store.guard().unwrap().unwrap();
        (0..5).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
        for file in [DATABASE, LOG, MARK] {
            fs::remove_file(dir.path().join(file)).unwrap();
        }
        if looked {
            assert!(guard.look().is_err());
            let lost = loss(killed(dir.path()).path());
            assert_eq!(
                (lost.cause, lost.messages),
                (LossCause::DatabaseGone, Some(5)),
                "killed right after that"
            );
            // And once more.
            fs::remove_file(dir.path().join(MARK)).unwrap();
            assert!(guard.look().is_err());
            assert_eq!(loss(killed(dir.path()).path()), lost);
            fs::remove_file(dir.path().join(MARK)).unwrap();
        }
        drop(store);
        let lost = loss(dir.path());
        assert_eq!((lost.cause, lost.messages), (LossCause::DatabaseGone, Some(5)));
    }
}

#[cfg(unix)]
#[test]
fn an_older_mark_in_the_place_of_the_own_is_written_over() {
    let dir = TempDir::new().unwrap();
    fill(&mut dir.open(), &topic("t"), 0..10);
    let old = killed(dir.path());
    let mut store = dir.open();
    (10..15).for_each(|n| _ = store.apply(&[message(n)]).unwrap());
    for file in [DATABASE, MARK] {
        fs::rename(old.path().join(file), dir.path().join(file)).unwrap();
    }
    fs::remove_file(dir.path().join(LOG)).unwrap();
    assert!(store.guard().unwrap().unwrap().look().is_err());
    drop(store);
    assert_eq!(loss(dir.path()).messages, Some(5));
}

#[cfg(unix)]
#[test]
fn the_mark_of_another_process_that_has_the_directory_now_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    let mut guard = store.guard().unwrap().unwrap();
    store.apply(&[message(1)]).unwrap();
    for file in [DATABASE, LOG, MARK, "tenure.db-shm", "tenure.lock"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let mut other = dir.open();
    other.apply(&[message(2)]).unwrap();
    assert!(guard.look().is_err() && guard.look().is_err());
    drop(store);
    other.guard().unwrap().unwrap().look().unwrap();
    other.apply(&[message(3)]).unwrap();
}

/// Dropped, it tells the other threads that it is over.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A message that fills a good part of a page.
fn large(n: u64) -> Write {
    let envelope = Envelope { body: Body::Text("x".repeat(4_000)), ..plain(n) };
    write(StoreWrite::Accept(Arc::new(accept(topic("t"), envelope))))
}

/// Everything that the store itself does to its files, from several threads, while a guard looks without a rest.
#[test]
fn nothing_that_the_store_does_itself_is_taken_for_somebody_elses() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.begin_run(0).unwrap();
    let (mut guard, mut reader) = (store.guard().unwrap().unwrap(), store.reader().unwrap());
    let mut checkpointer = store.checkpointer().unwrap().unwrap();
    let mut syncer = store.syncer().unwrap().unwrap();
    let over = AtomicBool::new(false);
    let until_over = |mut work: Box<dyn FnMut() + Send>| {
        while !over.load(Ordering::SeqCst) {
            work();
            std::thread::yield_now();
        }
    };
    let pages = |store: &Sqlite| checkpoint::look(&store.connection).unwrap();
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| until_over(Box::new(|| guard.look().unwrap())));
        scope.spawn(|| until_over(Box::new(|| _ = checkpointer.run().unwrap())));
        scope.spawn(|| until_over(Box::new(|| syncer.sync().unwrap())));
        scope.spawn(|| {
            let mut checking = Checking::default();
            until_over(Box::new(move || {
                if reader.check_slice(&mut checking).unwrap() {
                    checking = Checking::default();
                }
            }));
        });
        let (mut n, mut before, mut renewals) = (0, 0, 0);
        while renewals < 3 {
            store.stage(&(n..n + 100).map(large).collect::<Vec<_>>()).unwrap();
            // One that is undone.
            TempDir::starve(&mut store, true);
            let full = store.apply(&(n + 100..n + 200).map(large).collect::<Vec<_>>());
            assert!(matches!(full, Err(StoreError::Unavailable(_))), "{full:?}");
            TempDir::starve(&mut store, false);
            store.apply(&[message(n + 100)]).unwrap();
            n += 101;
            let mut found = pages(&store);
            renewals += u32::from(found.log_pages < before);
            before = found.log_pages;
            // The checkpointer's turn; then the log can begin anew.
            while found.log_pages - found.moved_pages >= LOG_PAGES {
                std::thread::yield_now();
                found = pages(&store);
            }
            assert!(n < 101 * 1_000, "the log was never begun anew");
        }
    });
    store.guard().unwrap().unwrap().look().unwrap();
    drop((store, checkpointer));
    assert_eq!(Sqlite::findings(dir.path()), Ok(vec![]));
}

#[test]
fn a_removed_log_is_noticed_by_the_next_sync() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.apply(&[message(1)]).unwrap();
    fs::remove_file(dir.path().join(LOG)).unwrap();
    assert!(matches!(store.apply(&[message(2)]), Err(StoreError::Poisoned(_))));
}

#[test]
fn the_mark_of_a_store_that_was_poisoned_says_so() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    store.apply(&[message(1)]).unwrap();
    store.log.poison("test".to_owned());
    let mark = MarkFile::open(&dir.path().join(MARK)).unwrap().mark().unwrap();
    assert!(mark.poisoned);
    assert_eq!(mark.ledger.messages, 1);
    drop(store);
    drop(dir.open());
    assert!(!MarkFile::open(&dir.path().join(MARK)).unwrap().mark().unwrap().poisoned);
}

/// A copy of the log, or a commit, finds that the files are not what they were: it writes the mark and does not wait for it.
#[test]
fn the_mark_of_a_store_that_was_poisoned_is_on_the_disk_once_the_guard_has_looked() {
    let dir = TempDir::new().unwrap();
    let mut store = dir.open();
    let mut guard = store.guard().unwrap().unwrap();
    store.apply(&[message(1)]).unwrap();
    guard.look().unwrap();
    assert!(store.log.is_mark_synced());
    let poisoned = store.log.poison_overwritten("test".to_owned());
    assert!(!store.log.is_mark_synced(), "the writer does not wait for it");
    assert_eq!(guard.look().unwrap_err(), poisoned);
    assert!(store.log.is_mark_synced());
    assert!(MarkFile::open(&dir.path().join(MARK)).unwrap().mark().unwrap().overwritten);
}

/// Two transactions are unsynced when the power goes: their sectors are there or not, in any mixture, and the mark is of
/// any earlier moment. That is never taken for damage, and nothing that was synced is missing.
#[test]
fn no_mixture_of_the_unsynced_end_is_taken_for_damage() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
    let plan = (1u64..6, 1u64..5, 1u64..5, any::<u64>(), any::<bool>(), 0u64..6);
    runner
        .run(&plan, |(synced, third, fourth, seed, cut, marked)| {
            let dir = TempDir::new().unwrap();
            let mut store = dir.open();
            let mut marks = vec![fs::read(dir.path().join(MARK)).unwrap()];
            for n in 0..synced {
                store.apply(&[message(n)]).unwrap();
                marks.push(fs::read(dir.path().join(MARK)).unwrap());
            }
            let before = fs::read(dir.path().join(LOG)).unwrap();
            store.stage(&(0..third).map(|n| message(100 + n)).collect::<Vec<_>>()).unwrap();
            store.stage(&(0..fourth).map(|n| message(200 + n)).collect::<Vec<_>>()).unwrap();
            let after = fs::read(dir.path().join(LOG)).unwrap();
            let left = killed(dir.path());
            fs::write(left.path().join(LOG), mixture(&before, &after, seed, cut)).unwrap();
            let mark = marks.len() - 1 - (marked as usize).min(marks.len() - 1);
            fs::write(left.path().join(MARK), &marks[mark]).unwrap();
            let mut found = Sqlite::open(left.path()).unwrap();
            let there = seqs(&found, &topic("t"), Lane(0)).len() as u64;
            prop_assert!(there >= synced, "{there} of {synced}");
            prop_assert_eq!(found.check(), Ok(vec![]));
            Ok(())
        })
        .unwrap();
}

/// A prefix of what was written, or any of its sectors; the others are as before, or zeros where there was nothing.
fn mixture(before: &[u8], after: &[u8], seed: u64, cut: bool) -> Vec<u8> {
    if cut {
        let from = before.len().min(after.len());
        return after[..from + (seed % (after.len() - from + 1) as u64) as usize].to_vec();
    }
    let mut state = seed | 1;
    let mut mixed = before.to_vec();
    mixed.resize(after.len().max(before.len()), 0);
    for sector in (0..after.len()).step_by(512) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = (sector + 512).min(after.len());
        if state >> 63 == 1 {
            mixed[sector..end].copy_from_slice(&after[sector..end]);
        }
    }
    mixed
}
