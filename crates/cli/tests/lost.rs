//! A broker whose disk lost or damaged something, as an operator meets it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::World;
use common::proc::Proc;
use rusqlite::Connection;
use serde_json::Value;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A broker that may log errors.
async fn broker(world: &World) -> (Proc, SocketAddr) {
    let mut proc = Proc::spawn("broker", world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    (proc, ready["listen"].as_str().unwrap().parse().unwrap())
}

fn at(world: &World, addr: SocketAddr, args: &[&str]) -> Output {
    world.tenure(args).env("TENURE_BROKER", format!("ws://{addr}")).output().unwrap()
}

fn publish(world: &World, addr: SocketAddr, count: u64) {
    for n in 0..count {
        let sent = at(world, addr, &["pub", "jobs", &n.to_string()]);
        assert!(sent.status.success(), "{}", text(&sent));
    }
}

fn lines(world: &World, addr: SocketAddr, args: &[&str]) -> Vec<Value> {
    let output = at(world, addr, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A broker that accepted messages is killed, and half of its log cut off; the directory of its store, and the log as it was.
async fn cut(world: &World) -> (PathBuf, Vec<u8>) {
    let (mut broker, addr) = broker(world).await;
    publish(world, addr, 20);
    broker.signal("KILL");
    broker.exit_code().await;
    let dir = world.home().join("broker");
    let log = std::fs::read(dir.join("tenure.db-wal")).unwrap();
    std::fs::write(dir.join("tenure.db-wal"), &log[..log.len() / 2]).unwrap();
    (dir, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lost_its_end_refuses_until_the_loss_is_accepted() {
    let world = World::new();
    let (dir, log) = cut(&world).await;
    let refused = world.run(&["broker", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = text(&refused);
    assert!(
        said.contains("accepted messages") && said.contains("tenure store recover --accept-loss"),
        "{said}"
    );
    let checked = world.run(&["check"]);
    assert_eq!(checked.status.code(), Some(1), "{}", text(&checked));
    assert!(text(&checked).contains("acknowledged data is lost"), "{}", text(&checked));
    let looked = world.run(&["store", "recover", "--json"]);
    assert_eq!(looked.status.code(), Some(1), "{}", text(&looked));
    let missing: Value = serde_json::from_slice(&looked.stdout).unwrap();
    let missing = missing["messages"].as_u64().unwrap();
    assert!((1..20).contains(&missing), "{missing}");
    // Put back, nothing is missing.
    let half = std::fs::read(dir.join("tenure.db-wal")).unwrap();
    std::fs::write(dir.join("tenure.db-wal"), &log).unwrap();
    assert!(text(&world.run(&["store", "recover", "--accept-loss"])).contains("nothing is missing"));
    std::fs::write(dir.join("tenure.db-wal"), half).unwrap();
    let accepted = world.run(&["store", "recover", "--accept-loss"]);
    assert_eq!(accepted.status.code(), Some(0), "{}", text(&accepted));
    let (_second, addr) = broker(&world).await;
    let there = lines(&world, addr, &["history", "jobs", "--json"]).len() as u64;
    assert_eq!(there + missing, 20);
    publish(&world, addr, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_database_under_a_newer_log_is_refused_and_the_log_is_not_copied_into_it() {
    let world = World::new();
    let file = |name: &str| world.home().join("broker").join(name);
    for _ in 0..2 {
        // What the last round of this leaves is the older file.
        let _ = std::fs::copy(file("tenure.db"), world.home().join("old.db"));
        let (mut broker, addr) = broker(&world).await;
        publish(&world, addr, 5);
        broker.signal("TERM");
        broker.exit_code().await;
    }
    let (mut last, addr) = broker(&world).await;
    publish(&world, addr, 10);
    last.signal("KILL");
    last.exit_code().await;
    let read =
        || ["tenure.db", "tenure.db-wal", "tenure.mark"].map(|name| std::fs::read(file(name)).unwrap());
    let right = read();
    std::fs::copy(world.home().join("old.db"), file("tenure.db")).unwrap();
    let wrong = read();
    let refused = world.run(&["broker", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = text(&refused);
    for part in [
        "older copy than the write-ahead log",
        "15 accepted messages",
        "Put the right files back",
        "--accept-loss",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let checked = world.run(&["check"]);
    assert_eq!(checked.status.code(), Some(1), "{}", text(&checked));
    assert_eq!(world.run(&["store", "recover"]).status.code(), Some(1));
    assert!(read() == wrong, "nothing is changed by looking");
    // Put back, all is there.
    std::fs::write(file("tenure.db"), &right[0]).unwrap();
    let (mut put_back, addr) = broker(&world).await;
    assert_eq!(lines(&world, addr, &["history", "jobs", "--json"]).len(), 20);
    put_back.signal("TERM");
    put_back.exit_code().await;
    // Else the log is kept as it is, and the database goes on alone.
    for (name, bytes) in ["tenure.db", "tenure.db-wal", "tenure.mark"].iter().zip(&wrong) {
        std::fs::write(file(name), bytes).unwrap();
    }
    let accepted = world.run(&["store", "recover", "--accept-loss", "--json"]);
    assert_eq!(accepted.status.code(), Some(0), "{}", text(&accepted));
    let accepted: Value = serde_json::from_slice(&accepted.stdout).unwrap();
    assert_eq!(std::fs::read(accepted["kept"][0].as_str().unwrap()).unwrap(), wrong[1]);
    let (_alone, addr) = broker(&world).await;
    assert_eq!(lines(&world, addr, &["history", "jobs", "--json"]).len(), 5);
    publish(&world, addr, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_removed_under_a_running_broker_stop_it_and_the_next_start_says_so() {
    let world = World::new();
    let (mut broker, addr) = broker(&world).await;
    publish(&world, addr, 1);
    for file in ["tenure.db", "tenure.db-wal", "tenure.db-shm", "tenure.mark"] {
        std::fs::remove_file(world.home().join("broker").join(file)).unwrap();
    }
    let start = Instant::now();
    while get(addr, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < common::patience(), "it was never noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let sent = at(&world, addr, &["pub", "jobs", "late"]);
    assert!(!sent.status.success(), "{}", text(&sent));
    assert!(broker.stderr().contains("was removed while it was in use"), "{}", broker.stderr());
    broker.signal("TERM");
    broker.exit_code().await;
    let refused = world.run(&["broker", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("the database file is missing"), "{}", text(&refused));
}

/// Waits until the broker says that its store cannot write; what it says.
async fn unready(addr: SocketAddr) -> String {
    let start = Instant::now();
    loop {
        let answer = get(addr, "/readyz");
        // That it cannot write may be noticed before the reason is.
        if answer.contains("cannot write: ") {
            return answer;
        }
        assert!(start.elapsed() < common::patience(), "it was never noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_written_over_stop_it_from_acknowledging_and_the_next_start_says_so() {
    let world = World::new();
    let dir = world.home().join("broker");
    for whole in [false, true] {
        let (mut broker, addr) = broker(&world).await;
        publish(&world, addr, 5);
        let files = ["tenure.db", "tenure.db-wal", "tenure.mark"];
        let backup = files.map(|file| (file, std::fs::read(dir.join(file)).unwrap()));
        publish(&world, addr, 5);
        if whole {
            backup.iter().for_each(|(file, bytes)| std::fs::write(dir.join(file), bytes).unwrap());
        } else {
            std::fs::write(dir.join("tenure.db-wal"), "").unwrap();
        }
        let answer = unready(addr).await;
        assert!(answer.contains("overwritten or cut while it was in use"), "{answer}");
        let sent = at(&world, addr, &["pub", "jobs", "late"]);
        assert!(!sent.status.success(), "{}", text(&sent));
        broker.signal("TERM");
        broker.exit_code().await;
        let refused = world.run(&["broker", "--listen", "127.0.0.1:0"]);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("tenure store recover --accept-loss"), "{}", text(&refused));
        let accepted = world.run(&["store", "recover", "--accept-loss"]);
        assert_eq!(accepted.status.code(), Some(0), "{}", text(&accepted));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_does_not_read_is_why_health_is_degraded() {
    let world = World::new();
    let (mut first, addr) = broker(&world).await;
    let body = "x".repeat(3_000);
    for _ in 0..20 {
        assert!(at(&world, addr, &["pub", "jobs", &body]).status.success());
    }
    first.signal("TERM");
    first.exit_code().await;
    let file = world.home().join("broker/tenure.db");
    let leaf = "SELECT pageno, pgsize FROM dbstat WHERE name = 'entries' AND pagetype = 'leaf' ORDER BY pageno LIMIT 1";
    let (page, size): (usize, usize) = Connection::open(&file)
        .unwrap()
        .query_row(leaf, [], |row| Ok((row.get::<_, u32>(0)? as usize, row.get::<_, u32>(1)? as usize)))
        .unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[(page - 1) * size..page * size].fill(0x5a);
    std::fs::write(&file, bytes).unwrap();
    let (broker, addr) = broker(&world).await;
    let read = at(&world, addr, &["history", "jobs"]);
    assert!(!read.status.success() || broker.stderr().contains("store_read_failed"), "{}", text(&read));
    let start = Instant::now();
    loop {
        let status = at(&world, addr, &["status", "--json"]);
        if text(&status).contains("degraded") {
            assert!(text(&status).contains("does not read"), "{}", text(&status));
            break;
        }
        assert!(start.elapsed() < common::patience(), "{}\n{}", text(&status), broker.stderr());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_mark_is_gone_or_does_not_read_refuses() {
    let world = World::new();
    let (dir, _) = cut(&world).await;
    std::fs::write(dir.join("tenure.mark"), vec![0; 8192]).unwrap();
    for _ in 0..2 {
        let refused = world.run(&["broker", "--listen", "127.0.0.1:0"]);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        let said = text(&refused);
        assert!(said.contains("high-water mark") && said.contains("recover --accept-loss"), "{said}");
        let _ = std::fs::remove_file(dir.join("tenure.mark"));
    }
    let accepted = world.run(&["store", "recover", "--accept-loss"]);
    assert_eq!(accepted.status.code(), Some(0), "{}", text(&accepted));
    let (_second, addr) = broker(&world).await;
    publish(&world, addr, 1);
}

/// Changes the store of a running broker behind its back.
fn tamper(dir: &Path, sql: &str) {
    let database = Connection::open(dir.join("tenure.db")).unwrap();
    database.busy_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(database.execute(sql, []).unwrap(), 1, "{sql}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_broker_tells_of_damage() {
    let world = World::new();
    let (broker, addr) = broker(&world).await;
    publish(&world, addr, 8);
    let dir = world.home().join("broker");
    let check = || at(&world, addr, &["check", "--running"]);
    let sound = check();
    assert_eq!(sound.status.code(), Some(0), "{}", text(&sound));
    assert!(text(&sound).starts_with("sound: "), "{}", text(&sound));
    tamper(&dir, "UPDATE entries SET body = 'x' WHERE place & 137438953471 = 7");
    tamper(&dir, "DELETE FROM dedupe WHERE place & 137438953471 = 3");
    tamper(&dir, "DELETE FROM entries WHERE place & 137438953471 = 3");
    let found = check();
    assert_eq!(found.status.code(), Some(1), "{}", text(&found));
    for finding in
        ["topic/jobs/0 seq 3: the entry and its dedupe record are both gone", "topic/jobs/0 seq 7: its bytes"]
    {
        assert!(text(&found).contains(finding), "no {finding:?} in {}", text(&found));
    }
    assert!(get(addr, "/metrics").contains("\ntenure_atomicity_violations_total 1\n"));
    assert!(broker.stderr().contains("store_finding"), "{}", broker.stderr());

    let history = lines(&world, addr, &["history", "jobs", "--json"]);
    let damaged: Vec<&Value> = history.iter().filter(|line| line["damaged"] == true).collect();
    assert_eq!(damaged.len(), 1, "{history:?}");
    assert_eq!((&damaged[0]["seq"], &damaged[0]["reason"]), (&7.into(), &"damaged".into()));
    let read = ["sub", "jobs", "--group", "crew", "--from", "earliest", "--count", "6", "--json"];
    assert_eq!(lines(&world, addr, &read).len(), 6);
    let dead = lines(&world, addr, &["dead", "list", "jobs", "--json"]);
    assert!(dead.iter().any(|letter| text_of(letter).contains("damaged")), "{dead:?}");
    let start = Instant::now();
    while !broker.stderr().contains("entry_damaged") {
        assert!(start.elapsed() < common::patience(), "{}", broker.stderr());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(get(addr, "/metrics").contains("\ntenure_entries_damaged_total 1\n"));
    let status = at(&world, addr, &["status", "--json"]);
    assert!(text(&status).contains("degraded"), "{}", text(&status));
}

/// `history` showed the damage to its caller only: health stayed `ok`, and no line was logged.
#[tokio::test(flavor = "multi_thread")]
async fn damage_that_only_history_reads_is_told_once() {
    let world = World::new();
    let (broker, addr) = broker(&world).await;
    publish(&world, addr, 3);
    tamper(&world.home().join("broker"), "UPDATE entries SET body = 'x' WHERE place & 137438953471 = 2");
    for _ in 0..2 {
        let history = lines(&world, addr, &["history", "jobs", "--json"]);
        assert_eq!(history.iter().filter(|line| line["damaged"] == true).count(), 1, "{history:?}");
        let status = at(&world, addr, &["status", "--json"]);
        assert!(
            text(&status).contains("degraded") && text(&status).contains("1 damaged"),
            "{}",
            text(&status)
        );
    }
    assert!(get(addr, "/metrics").contains("\ntenure_entries_damaged_total 1\n"));
    assert_eq!(broker.stderr().matches("entry_damaged").count(), 1, "{}", broker.stderr());
}

fn text_of(value: &Value) -> String {
    value.to_string()
}

/// A shell in a mount namespace of its own, which does `script`.
fn apart(home: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .env("TENURE_HOME", home)
        .env("TENURE", env!("CARGO_BIN_EXE_tenure"))
        .stdin(Stdio::null());
    command
}

/// A broker that finds its disk full starts, shows what it has, refuses what is new, and takes it again when there is room.
#[test]
fn a_broker_starts_on_a_full_disk() {
    let world = World::new();
    let home: PathBuf = world.home().to_owned();
    let tried =
        apart(&home, r#"mount -t tmpfs -o size=1m none "$TENURE_HOME""#).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("not tried: this system gives no mount namespace (unshare --map-root-user --mount)");
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = r#"
        mount -t tmpfs -o size=6m none "$TENURE_HOME" || exit 90
        trap 'kill -9 $B 2>/dev/null' EXIT
        start() { "$TENURE" broker --listen "$AT" --relay-listen off & B=$!; }
        try() { i=0; while ! "$@"; do i=$((i + 1)); [ $i -gt 150 ] && return 1; sleep 0.2; done; }
        start; try "$TENURE" pub t hello || exit 91
        kill -TERM $B; wait $B
        head -c 20000000 /dev/zero > "$TENURE_HOME/ballast"
        start; try "$TENURE" history t | grep -q hello || exit 92
        rm "$TENURE_HOME/ballast"; try "$TENURE" pub t again || exit 93
        kill -TERM $B; wait $B || exit 94
        "$TENURE" check || exit 95
    "#;
    let at = format!("127.0.0.1:{port}");
    let output =
        apart(&home, script).env("AT", &at).env("TENURE_BROKER", format!("ws://{at}")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}
