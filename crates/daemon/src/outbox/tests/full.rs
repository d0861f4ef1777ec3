//! An outbox on a disk without a free byte: a small file system of its own, in a mount namespace of its own, where the system
//! lets us have one. The test runs itself there once more.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// Says to the inner run where its disk is.
const DISK: &str = "TENURE_TEST_SMALL_DISK";
/// Mounts a disk of six megabytes, and goes on there.
const SCRIPT: &str =
    r#"mount -t tmpfs -o size=6m,mode=700 none "$TENURE_TEST_SMALL_DISK" || exit 77; exec "$0" "$@""#;

fn run_inside(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", SCRIPT])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(DISK, dir.path())
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output.map_err(|error| eprintln!("not tried: {error}")) else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(told.contains("all were settled"), "it ran nothing: {told}"),
        Some(77 | 1) if !told.contains("panicked") => eprintln!("not tried, no mount namespace: {told}"),
        code => panic!("{code:?}: {told}{}", String::from_utf8_lossy(&output.stdout)),
    }
}

/// Does something until the disk lets it: a commit that finds it full makes room for the next.
async fn insist<T, F: Future<Output = Result<T, DbError>>>(what: impl Fn() -> F) -> T {
    let since = Instant::now();
    loop {
        match what().await {
            Ok(done) => return done,
            Err(DbError::Full(why)) => assert!(since.elapsed() < Duration::from_secs(20), "{why}"),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn every_row_is_settled_on_a_disk_without_a_free_byte() {
    let Some(dir) = std::env::var_os(DISK).map(std::path::PathBuf::from) else {
        return run_inside("outbox::tests::full::every_row_is_settled_on_a_disk_without_a_free_byte");
    };
    for (round, body) in [20_000, 3_000, 100].into_iter().enumerate() {
        let dir = dir.join(round.to_string());
        fs::create_dir(&dir).unwrap();
        settle_all(&dir, body).await;
        fs::remove_dir_all(&dir).unwrap();
    }
    eprintln!("all were settled");
}

/// A log that must be copied at a start may need more room than there is: the reserve is for that too. One that need not be copied
/// stays as it is.
#[tokio::test]
async fn an_outbox_is_opened_on_a_full_disk_also_if_a_write_to_its_log_failed() {
    let Some(disk) = std::env::var_os(DISK).map(std::path::PathBuf::from) else {
        return run_inside(
            "outbox::tests::full::an_outbox_is_opened_on_a_full_disk_also_if_a_write_to_its_log_failed",
        );
    };
    for failed in [false, true] {
        let (begun, dir) = (disk.join("begun"), disk.join("killed"));
        fs::create_dir(&begun).unwrap();
        let outbox = open(&begun);
        for n in 0..4 {
            insert(&outbox, &n.to_string(), &"x".repeat(60_000)).await;
        }
        if failed {
            let fails = |_: &_| Err::<(), _>(DbError::Poisoned("input/output error".to_owned()));
            answer(outbox.writer.submit(fails)).await.unwrap_err();
        }
        copy_files(&begun, &dir);
        drop(outbox);
        fs::remove_dir_all(&begun).unwrap();
        // Enough is left to open the file, and too little for what its log has.
        let mut rest = fs::File::create(disk.join("rest")).unwrap();
        while rest.write_all(&[1; 4_096]).is_ok() {}
        rest.set_len(rest.metadata().unwrap().len() - 180_000).unwrap();
        let log = fs::metadata(dir.join("outbox.db-wal")).unwrap().len();
        assert!(log > 240_000 && dir.join("reserve").exists(), "{log}");
        let outbox = open(&dir);
        assert_eq!(outbox.census().await.unwrap().pending, 4);
        let left = fs::metadata(dir.join("outbox.db-wal")).unwrap().len();
        assert_eq!((left, outbox.disk_full().is_some()), if failed { (0, true) } else { (log, false) });
        assert_eq!(dir.join("reserve").exists(), !failed);
        drop(outbox);
        fs::remove_dir_all(&dir).unwrap();
        fs::remove_file(disk.join("rest")).unwrap();
    }
    eprintln!("all were settled");
}

async fn settle_all(dir: &Path, body: usize) {
    fs::write(dir.join("ballast"), vec![0; 3_000_000]).unwrap();
    let outbox = open(dir);
    let (text, mut taken, mut lane) = ("x".repeat(body), 0u64, None);
    let refused = loop {
        match outbox.accept(request(&taken.to_string(), "topic:a", &text), 10).await {
            Ok(accepted) => lane = accepted.row.map(|(_, lane)| lane),
            Err(error) => break error,
        }
        taken += 1;
    };
    assert!(matches!(&refused, DbError::Full(why) if why.starts_with("the disk is full")), "{refused}");
    // Somebody else takes all that is left.
    let mut rest = fs::File::create(dir.join("rest")).unwrap();
    while rest.write_all(&[1; 4_096]).is_ok() {}
    let lane = lane.unwrap();
    let mut rows = insist(|| outbox.take(lane, 64)).await;
    while !rows.is_empty() {
        let verdicts = rows.iter().map(|row| (row.id, Verdict::Done(place(row.id)))).collect();
        let settlement = Settlement { lane, verdicts, unsent: Vec::new(), next_attempt_at: 0, take: 64 };
        rows = insist(|| outbox.settle(settlement.clone(), 20)).await.taken;
        let (status, more) = (outbox.disk_full(), outbox.accept(request("new", "topic:a", "x"), 20).await);
        assert!(status.is_some() && matches!(more, Err(DbError::Full(_))), "{more:?}");
    }
    let census = outbox.census().await.unwrap();
    assert_eq!((census.done, census.pending, census.inflight), (taken, 0, 0), "of {body} bytes each");
    for file in ["ballast", "rest"] {
        fs::remove_file(dir.join(file)).unwrap();
    }
    let new = outbox.accept(request("new", "topic:a", "x"), 20).await.unwrap();
    assert_eq!((new.answer, outbox.disk_full()), (Answer::Insert, None), "it goes on by itself");
}
