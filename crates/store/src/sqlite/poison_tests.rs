//! A real I/O error in a write, from a real kernel: the store stops writing, goes on reading, and loses nothing
//! that it acknowledged.
//!
//! The error comes from a limit on the size of files, which SQLite sees as a failed write. Only a shell can set
//! it without unsafe code, so the test starts itself again through one.

use std::path::Path;
use std::process::Command;

use tenure_proto::SessionKey;
use tenure_proto::peer::Profile;

use crate::conformance::{lease, put};
use crate::{LeaseRow, Sqlite, Store, StoreError, Write};

/// Names the data directory to the process whose files are limited.
const DIR: &str = "TENURE_TEST_POISON_DIR";
/// More than the limit can hold.
const LEASES_MAX: u32 = 100_000;

#[test]
fn an_io_error_poisons_the_store() {
    if let Some(dir) = std::env::var_os(DIR) {
        return write_until_poisoned(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    // Blocks of 512 or 1024 bytes, depending on the shell; making the tables takes its share. The signal would kill;
    // ignored, the write fails.
    let script = "trap '' XFSZ; ulimit -f 2000; exec \"$0\" an_io_error_poisons_the_store --nocapture";
    let me = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", script]).arg(me).env(DIR, dir.path()).output().unwrap();
    let talk = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{talk}\n{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged: usize =
        talk.lines().find_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()).unwrap();

    // A new process, without the limit: as after a restart with the disk mended. The write that failed may be
    // there or not; those before it must be.
    let mut store = Sqlite::open(dir.path()).unwrap();
    let found = store.leases().unwrap().len();
    assert!(found == acknowledged || found == acknowledged + 1, "{acknowledged} acknowledged, {found} found");
    assert_eq!(store.check(), Ok(vec![]));
    store.apply(&[large(LEASES_MAX)]).unwrap();
}

fn write_until_poisoned(dir: &Path) {
    let mut store = Sqlite::open(dir).unwrap();
    store.begin_run(0).unwrap();
    let (acknowledged, error) = (0..LEASES_MAX)
        .find_map(|n| Some((n as usize, store.apply(&[large(n)]).err()?)))
        .expect("the limit is reached");
    assert!(matches!(&error, StoreError::Poisoned(_)), "{error:?}");
    assert!(acknowledged > 10, "only {acknowledged} writes before the limit");

    assert_eq!(store.apply(&[]).unwrap_err(), error, "the first cause is told again");
    assert_eq!(store.begin_run(0).unwrap_err(), error);
    assert_eq!(store.leases().unwrap().len(), acknowledged, "reads go on, without the write that failed");
    drop(store);
    let log = std::fs::metadata(dir.join("tenure.db-wal")).unwrap();
    assert!(log.len() > 0, "closing it writes nothing either");
    println!("\nacknowledged {acknowledged}");
}

fn large(n: u32) -> Write {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    let profile = Profile { summary: Some("x".repeat(1000)), ..Profile::named("n") };
    put(&LeaseRow { session: SessionKey(key), profile, ..lease("m", 1) })
}
