//! A daemon on a disk that is really full, and on one that cannot be written: small file systems of their own, in a mount
//! namespace of their own, where the system lets us have one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon on a file system of its own.
struct House {
    child: Child,
    /// Its directory as it is seen from here.
    home: PathBuf,
    _dir: TempDir,
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell in a mount namespace of its own, which does `script` in `$TENURE_HOME`.
fn apart(home: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .env("TENURE_HOME", home)
        .env("TENURE_BROKER", "ws://127.0.0.1:9")
        .env("TENURE", env!("CARGO_BIN_EXE_tenure"))
        .stdin(Stdio::null());
    command
}

/// Whether there are such namespaces here.
fn can_mount(home: &Path) -> bool {
    let tried =
        apart(home, r#"mount -t tmpfs -o size=1m none "$TENURE_HOME""#).stderr(Stdio::null()).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("not tried: this system gives no mount namespace (unshare --map-root-user --mount)");
    }
    can
}

/// A daemon on a disk of six megabytes, half of which are taken by a file called `ballast`.
async fn small() -> Option<House> {
    let dir = TempDir::new().unwrap();
    if !can_mount(dir.path()) {
        return None;
    }
    let script = r#"mount -t tmpfs -o size=6m none "$TENURE_HOME" && head -c 3000000 /dev/zero > "$TENURE_HOME/ballast" \
                    && exec "$TENURE" daemon up --foreground --log error"#;
    let child = apart(dir.path(), script).stdout(Stdio::null()).spawn().unwrap();
    // Who is not in the namespace sees it through the process.
    let inside = dir.path().strip_prefix("/").unwrap();
    let home = Path::new("/proc").join(child.id().to_string()).join("root").join(inside);
    let house = House { child, home, _dir: dir };
    answers(&house).await;
    Some(house)
}

/// Waits until the daemon answers.
async fn answers(house: &House) {
    let there = async {
        while tokio::net::UnixStream::connect(house.home.join("daemon.sock")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("the daemon never answered");
}

fn message(number: usize) -> Value {
    json!({"to": "topic:jobs", "body": "x".repeat(20_000), "clientMessageId": number.to_string()})
}

async fn rows(client: &Client) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), 0);
    loop {
        let (status, page) = client.get(&format!("/v1/outbox?after={after}")).await;
        assert_eq!(status, 200, "{page}");
        let id = |row: &Value| row["clientMessageId"].as_str().unwrap().to_owned();
        ids.extend(page["rows"].as_array().unwrap().iter().map(id));
        let Some(next) = page["next"].as_u64() else { return ids };
        after = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_507_and_takes_nothing_and_loses_nothing() {
    let Some(house) = small().await else { return };
    let client = Client::new(house.home.join("daemon.sock"));
    let mut taken = Vec::new();
    let refused = loop {
        assert!(taken.len() < 1_000, "the disk never fills");
        let (status, problem) = client.post("/v1/send", &message(taken.len())).await;
        if status != 202 {
            assert_eq!((status, &problem["code"]), (507, &json!("insufficient_storage")), "{problem}");
            assert_eq!(problem["retryable"], true);
            break taken.len();
        }
        taken.push(taken.len().to_string());
    };
    assert!(refused > 10, "{refused} fit");
    assert_eq!(rows(&client).await, taken, "what was refused is not there, what was taken is");
    assert_eq!(client.post("/v1/send", &message(0)).await.0, 202, "a retry needs no room");
    std::fs::remove_file(house.home.join("ballast")).unwrap();
    let (status, sent) = client.post("/v1/send", &message(refused)).await;
    assert_eq!((status, &sent["status"]), (202, &json!("queued")), "with room it goes on: {sent}");
    taken.push(refused.to_string());
    assert_eq!(rows(&client).await, taken);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = TempDir::new().unwrap();
    if !can_mount(dir.path()) {
        return;
    }
    let script =
        r#"mount -t tmpfs -o size=1m,ro none "$TENURE_HOME" && exec "$TENURE" daemon up --foreground"#;
    let output = apart(dir.path(), script).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("Read-only file system") && told.contains(dir.path().to_str().unwrap()), "{told}");
}

/// A write that fails leaves open what is on the disk: files may grow to a size and no further here, which SQLite takes for
/// an error of the disk.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_write_that_failed_nothing_more_is_taken_and_everybody_is_told_why() {
    let dir = TempDir::new().unwrap();
    let script = "trap '' XFSZ; ulimit -f 256; exec \"$TENURE\" daemon up --foreground --log error";
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("TENURE_HOME", dir.path()).env("TENURE", env!("CARGO_BIN_EXE_tenure"));
    command.env("TENURE_BROKER", "ws://127.0.0.1:9").stdin(Stdio::null()).stdout(Stdio::null());
    let home = dir.path().to_owned();
    let house = House { child: command.spawn().unwrap(), home, _dir: dir };
    answers(&house).await;
    let client = Client::new(house.home.join("daemon.sock"));
    let mut number = 0;
    let (status, first) = loop {
        assert!(number < 1_000, "the file grows and grows");
        let (status, answer) = client.post("/v1/send", &message(number)).await;
        if status != 202 {
            break (status, answer);
        }
        number += 1;
    };
    assert_eq!((status, &first["retryable"]), (503, &json!(false)), "{first}");
    for _ in 0..2 {
        let (status, later) = client.post("/v1/send", &message(number)).await;
        assert_eq!((status, &later["detail"]), (503, &first["detail"]), "the same for everybody: {later}");
    }
    let (_, health) = client.get("/v1/health").await;
    assert_eq!(health["outbox"]["fault"], first["detail"], "{health}");
    let (_, status) = client.get("/v1/status").await;
    assert_eq!(status["outbox"]["fault"], first["detail"], "{status}");
    assert_eq!(status["inbox"]["fault"], Value::Null, "{status}");
    assert_eq!(rows(&client).await.len(), number, "what was taken is there");
}
