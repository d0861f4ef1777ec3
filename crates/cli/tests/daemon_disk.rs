//! A daemon on a disk that is really full, and on one that cannot be written: small file systems of their own, in a mount
//! namespace of their own, where the system lets us have one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "../../daemon/tests/http/client.rs"]
#[allow(dead_code)]
mod http;

use std::io::Write;
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

/// A daemon on a disk of six megabytes, half of which are taken by a file called `ballast`, with a broker that is not there.
async fn small() -> Option<House> {
    small_at("ws://127.0.0.1:9").await
}

/// The same with the broker at `url`.
async fn small_at(url: &str) -> Option<House> {
    let dir = TempDir::new().unwrap();
    if !can_mount(dir.path()) {
        return None;
    }
    let script = r#"mount -t tmpfs -o size=6m none "$TENURE_HOME" && head -c 3000000 /dev/zero > "$TENURE_HOME/ballast" \
                    && exec "$TENURE" daemon up --foreground --log error"#;
    let child = apart(dir.path(), script).env("TENURE_BROKER", url).stdout(Stdio::null()).spawn().unwrap();
    // Who is not in the namespace sees it through the process.
    let inside = dir.path().strip_prefix("/").unwrap();
    let home = Path::new("/proc").join(child.id().to_string()).join("root").join(inside);
    let house = House { child, home, _dir: dir };
    answers(&house).await;
    Some(house)
}

/// A daemon in the background on such a disk, logging as it does by itself: with the broker at `url`.
async fn small_in_the_background(url: &str) -> Option<House> {
    let dir = TempDir::new().unwrap();
    if !can_mount(dir.path()) {
        return None;
    }
    // The daemon lives as long as the process that is the first of its namespace.
    let script = r#"mount -t tmpfs -o size=6m none "$TENURE_HOME" && head -c 3000000 /dev/zero > "$TENURE_HOME/ballast" \
                    && "$TENURE" daemon up && exec sleep 1000000"#;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
    command
        .env("TENURE_HOME", dir.path())
        .env("TENURE", env!("CARGO_BIN_EXE_tenure"))
        .env("TENURE_BROKER", url);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let inside = dir.path().strip_prefix("/").unwrap();
    let home = Path::new("/proc").join(child.id().to_string()).join("root").join(inside);
    let house = House { child, home, _dir: dir };
    answers(&house).await;
    Some(house)
}

/// Fills the last page of a file: on a full disk not a byte more can be written to it.
fn fill_page(path: &Path) {
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    while !file.metadata().unwrap().len().is_multiple_of(4_096) {
        file.write_all(b"\n").unwrap();
    }
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

/// Sends until the disk is full, and then fills what is left of it; gives the ids that were taken.
async fn fill(house: &House, client: &Client) -> Vec<String> {
    let mut taken = Vec::new();
    loop {
        assert!(taken.len() < 1_000, "the disk never fills");
        let (status, _) = client.post("/v1/send", &message(taken.len())).await;
        if status != 202 {
            break;
        }
        taken.push(taken.len().to_string());
    }
    let mut rest = std::fs::File::create(house.home.join("rest")).unwrap();
    while rest.write_all(&[1; 4_096]).is_ok() {}
    taken
}

/// A broker that has the port for itself, on a disk with room.
async fn broker_at(world: &common::World, port: u16) -> common::Broker {
    world.broker_at(&format!("127.0.0.1:{port}")).await
}

async fn until(what: &str, client: &Client, path: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let there = async {
        loop {
            last = client.get(path).await.1;
            if is(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, there).await;
    assert!(came.is_ok(), "{what} never came true: {last}");
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_what_was_taken_is_sent_and_what_is_new_waits_for_room() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(house) = small_at(&format!("ws://127.0.0.1:{port}")).await else { return };
    let client = Client::new(house.home.join("daemon.sock"));
    let taken = fill(&house, &client).await;
    assert!(taken.len() > 10, "{} fit", taken.len());
    let (_, health) = client.get("/v1/health").await;
    assert_eq!((&health["outbox"]["space"], &health["inbox"]["space"]), (&json!("full"), &json!("full")));
    let told = health["diskFull"].as_str().unwrap_or_else(|| panic!("{health}"));
    assert!(told.contains("the disk is full: free ") && told.contains("bytes under"), "{told}");
    let (status, problem) = client.post("/v1/send", &message(taken.len())).await;
    assert_eq!(status, 507, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("the disk is full"), "{problem}");
    let (_, daemon) = client.get("/v1/status").await;
    assert_eq!(daemon["diskFull"], health["diskFull"], "{daemon}");

    let world = common::World::new();
    let _broker = broker_at(&world, port).await;
    let sent = |status: &Value| status["outbox"]["done"] == taken.len();
    until("everything sent", &client, "/v1/status", sent).await;
    let (status, again) = client.post("/v1/send", &message(0)).await;
    assert_eq!((status, &again["status"]), (200, &json!("done")), "the settlement is on the disk: {again}");
    assert_eq!(client.post("/v1/send", &message(taken.len())).await.0, 507, "the disk is as full as before");

    for file in ["ballast", "rest"] {
        std::fs::remove_file(house.home.join(file)).unwrap();
    }
    until("room again", &client, "/v1/health", |health| health["diskFull"] == Value::Null).await;
    assert_eq!(client.post("/v1/send", &message(taken.len())).await.0, 202);
    let sent = |status: &Value| status["outbox"]["done"] == taken.len() + 1;
    until("the last one sent", &client, "/v1/status", sent).await;
    let (_, health) = client.get("/v1/health").await;
    assert_eq!(health["outbox"]["space"], "ok", "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_keeps_nothing_from_being_sent() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(house) = small_in_the_background(&format!("ws://127.0.0.1:{port}")).await else { return };
    let client = Client::new(house.home.join("daemon.sock"));
    let taken = fill(&house, &client).await;
    assert!(taken.len() > 10, "{} fit", taken.len());
    let log = house.home.join("daemon.log");
    fill_page(&log);

    let world = common::World::new();
    let _broker = broker_at(&world, port).await;
    let sent = |status: &Value| status["outbox"]["done"] == taken.len();
    until("everything sent", &client, "/v1/status", sent).await;
    let (_, health) = client.get("/v1/health").await;
    assert_eq!(health["connected"], true, "{health}");
    assert!(health["logLinesLost"].as_u64().is_some_and(|lines| lines > 0), "{health}");
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(!written.contains("panicked") && !written.contains("log_lines_lost"), "{written}");

    for file in ["ballast", "rest"] {
        std::fs::remove_file(house.home.join(file)).unwrap();
    }
    until("room again", &client, "/v1/health", |health| health["diskFull"] == Value::Null).await;
    // What is logged next tells how much is missing before it.
    let (status, made) = client.post("/v1/sessions", &json!({"name": "agent"})).await;
    assert!((200..300).contains(&status), "{made}");
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains("event=\"log_lines_lost\" lines="), "{written}");
}

#[test]
fn a_first_start_on_a_full_disk_says_why_it_fails() {
    let dir = TempDir::new().unwrap();
    if !can_mount(dir.path()) {
        return;
    }
    let script = r#"mount -t tmpfs -o size=64k none "$TENURE_HOME" || exit 77
                    head -c 1000000 /dev/zero > "$TENURE_HOME/ballast" 2> /dev/null
                    exec "$TENURE" daemon up"#;
    let output = apart(dir.path(), script).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("No space left on device"), "{told}");
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
