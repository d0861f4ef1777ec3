//! Stopping a broker, with real processes: who is told what, what still arrives, and what a hurry costs.
//!
//! A reader that has a message in hand keeps a drain open; with a deadline that no test waits for, whatever ends it
//! earlier is what the test is about.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use common::host::{mode, until};
use common::proc::Proc;
use common::raw::Raw;
use common::tap::Tap;
use common::{Broker, World, join, patience};
use serde_json::{Value, json};
use tenure_client::proto::canonical::{member_key, session_key};
use tenure_client::proto::event::{EventBody, Shutdown};
use tenure_client::proto::hello::InboxChoice;
use tenure_client::proto::{ErrorCode, SessionKey};
use tenure_client::{Events, Options, Received, Session, SessionEvent, Subscription, random_key};

/// A deadline that nobody here waits for.
const NEVER: &str = "5m";

fn drain(world: &World, addr: SocketAddr, args: &[&str]) -> Proc {
    let url = format!("ws://{addr}");
    let args = [&["drain", "--json", "--broker", &url], args].concat();
    Proc::spawn("drain", world.tenure(&args))
}

async fn drained(mut drain: Proc) -> Value {
    let line = drain.until("drained", |line| line["event"] == "drained").await;
    assert_eq!(drain.exit_code().await, Some(0), "{}", drain.stderr());
    line
}

/// What the session is told of the end of its broker.
async fn shutdown(events: &mut Events) -> Shutdown {
    let told = async {
        loop {
            if let SessionEvent::Event { body, .. } = events.next().await.expect("not the end")
                && let EventBody::Shutdown(shutdown) = *body
            {
                return shutdown;
            }
        }
    };
    tokio::time::timeout(patience(), told).await.expect("shutdown")
}

async fn attached(events: &mut Events) {
    let back = async { while !matches!(events.next().await, Ok(SessionEvent::Attached(_))) {} };
    tokio::time::timeout(patience(), back).await.expect("attached again");
}

/// Somebody with one message in hand.
struct Reader {
    session: Session,
    events: Events,
    inbox: Subscription,
    in_hand: Received,
}

impl Reader {
    async fn new(addr: SocketAddr, sender: &Session) -> Reader {
        let options = Options::new(&format!("ws://{addr}"), random_key().expect("a key"), "reader");
        let options = options.expect("options").inbox(InboxChoice::Session);
        let (session, events) = Session::connect(options).await.expect("joined");
        let mut inbox = session.inbox().expect("its inbox");
        sender.send(session.key(), "first").await.expect("accepted");
        let in_hand = next(&mut inbox).await;
        Reader { session, events, inbox, in_hand }
    }

    fn key(&self) -> SessionKey {
        self.session.key()
    }
}

async fn next(inbox: &mut Subscription) -> Received {
    tokio::time::timeout(patience(), inbox.next_message()).await.expect("in time").expect("a message")
}

async fn again(world: &World, mut broker: Broker, code: Option<i32>) -> Broker {
    assert_eq!(broker.proc.exit_code().await, code, "{}", broker.proc.stderr());
    let addr = broker.addr.to_string();
    world.broker_at(&addr).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_restart_is_seen_by_nobody() {
    let world = World::new();
    let broker = world.broker().await;
    let addr = broker.addr;
    let mut watcher = world.joined("watcher", addr).await;
    let mut alice = world.joined("alice", addr).await;
    watcher.sees("joined", "alice").await;
    let line = drained(drain(&world, addr, &["--restart-in", "500ms", "--reason", "upgrade"])).await;
    assert_eq!((&line["sessions"], &line["begun"]), (&json!(2), &json!(true)), "{line}");
    assert_eq!((&line["restartInMs"], &line["reason"]), (&json!(500), &json!("upgrade")), "{line}");
    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "it is gone when the command says so");
    assert!(world.run(&["check"]).status.success(), "and so is its hold on the store");
    let broker = again(&world, broker, Some(0)).await;
    for session in [&mut watcher, &mut alice] {
        let back = session.attached().await;
        assert_eq!((&back["lease"], &back["outcome"]), (&json!("kept"), &json!("resumed")));
    }
    let _marker = join(broker.addr, "marker").await;
    watcher.sees("joined", "marker").await;
    assert_eq!(watcher.kinds_of("alice"), ["joined"]);
    assert_eq!(mode(&world.home().join("broker/admin.token")), 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_hand_is_settled_during_a_drain_and_does_not_come_again() {
    let world = World::new();
    let broker = world.broker().await;
    let addr = broker.addr;
    let (sender, _events) = join(addr, "sender").await;
    let mut reader = Reader::new(addr, &sender).await;
    let draining = drain(&world, addr, &["--restart-in", "1s", "--deadline", NEVER]);
    let told = shutdown(&mut reader.events).await;
    assert_eq!(told.restart_expected_ms.map(|ms| ms.get()), Some(1_000));
    assert_eq!((told.reason.as_str(), told.deadline_ms.get()), ("maintenance", 300_000));
    reader.in_hand.ack().await.expect("taken and kept");
    drained(draining).await;
    let _broker = again(&world, broker, Some(0)).await;
    sender.send(reader.session.key(), "second").await.expect("accepted");
    let second = next(&mut reader.inbox).await;
    assert_eq!(second.text(), Some("second"), "the first was settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_drain_nobody_new_gets_in_and_it_is_told_when() {
    let world = World::new();
    let broker = world.broker().await;
    let addr = broker.addr;
    let (sender, _events) = join(addr, "sender").await;
    let mut reader = Reader::new(addr, &sender).await;
    let first = drain(&world, addr, &["--restart-in", "1m", "--deadline", NEVER]);
    shutdown(&mut reader.events).await;
    let (mut raw, key) = (Raw::connect(addr).await, random_key().unwrap());
    let refused = raw.say(&raw.hello(&key, member_key(&key), session_key(&key))).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Draining);
    let wait = refused.retry_after_ms.map(|ms| ms.get()).expect("when to come back");
    let closing = raw.closing().await;
    assert_eq!((closing.code, closing.reason.as_str()), (1013, "draining"));
    assert_eq!(closing.retry_after_ms.map(|ms| ms.get()), Some(wait));
    assert!(wait <= 60_000 && wait > 60_000 - patience().as_millis() as u64, "{wait}");
    // Whoever asks to drain what drains hears what is under way.
    let tap = Tap::start(addr).await;
    let _second = drain(&world, tap.addr, &["--reason", "again"]);
    until("told", || tap.has_heard(r#""begun":false"#) && tap.has_heard(r#""reason":"maintenance""#));
    reader.in_hand.ack().await.expect("taken");
    let first = drained(first).await;
    assert_eq!((&first["begun"], &first["restartInMs"]), (&json!(true), &json!(60_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_a_drain_stops_at_once() {
    let world = World::new();
    let mut broker = world.broker().await;
    let (sender, _events) = join(broker.addr, "sender").await;
    let mut reader = Reader::new(broker.addr, &sender).await;
    let draining = drain(&world, broker.addr, &["--deadline", NEVER]);
    shutdown(&mut reader.events).await;
    broker.proc.signal("TERM");
    assert_eq!(broker.proc.exit_code().await, Some(0), "{}", broker.proc.stderr());
    drained(draining).await;
    // What was in hand still is.
    let broker = world.broker_at(&broker.addr.to_string()).await;
    attached(&mut reader.events).await;
    reader.in_hand.ack().await.expect("still its own");
    sender.send(reader.session.key(), "second").await.expect("accepted");
    assert_eq!(next(&mut reader.inbox).await.text(), Some("second"));
    drop(broker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_does_not_wait_for_the_first() {
    let world = World::new();
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--restart-in-ms", "200"];
    let mut proc = Proc::spawn("broker", world.tenure(&args));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let addr: SocketAddr = ready["listen"].as_str().unwrap().parse().unwrap();
    let (sender, _events) = join(addr, "sender").await;
    let mut reader = Reader::new(addr, &sender).await;
    proc.signal("TERM");
    let told = shutdown(&mut reader.events).await;
    assert_eq!(
        (told.reason.as_str(), told.restart_expected_ms.map(|ms| ms.get())),
        ("terminated", Some(200))
    );
    proc.signal("TERM");
    assert_eq!(proc.exit_code().await, Some(0), "{}", proc.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_a_drain_loses_nothing() {
    let world = World::new();
    let broker = world.broker().await;
    let addr = broker.addr;
    let (sender, _events) = join(addr, "sender").await;
    let mut reader = Reader::new(addr, &sender).await;
    let url = format!("ws://{addr}");
    let args = ["drain", "--broker", &url, "--restart-in", "200ms", "--deadline", NEVER];
    let mut draining = Proc::spawn("drain", world.tenure(&args));
    shutdown(&mut reader.events).await;
    // A drain takes what it is given: whoever comes back with a good token may send.
    sender.send(reader.key(), "second").await.expect("accepted");
    sender.send(reader.key(), "third").await.expect("accepted");
    broker.kill().await;
    assert_eq!(draining.exit_code().await, Some(0), "it is gone: {}", draining.stderr());
    let said = draining.seen()[0].as_str().unwrap().to_owned();
    assert!(said.contains("its log says how it ended"), "whether it ended well is not known here: {said}");
    let _broker = world.broker_at(&addr.to_string()).await;
    assert_eq!(reader.in_hand.text(), Some("first"));
    reader.in_hand.ack().await.expect("still its own");
    for text in ["second", "third"] {
        let message = next(&mut reader.inbox).await;
        assert_eq!(message.text(), Some(text));
        message.ack().await.expect("taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_told_when_it_is_ready_and_when_it_stops() {
    let world = World::new();
    let path = world.home().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(patience())).unwrap();
    let mut heard = [0; 512];
    let mut hear = || {
        let read = manager.recv(&mut heard).expect("the manager is told");
        String::from_utf8_lossy(&heard[..read]).into_owned()
    };
    let mut command = world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut proc = Proc::spawn("broker", command);
    let ready = hear();
    assert!(ready.starts_with("READY=1\nSTATUS=listening on ws://127.0.0.1:"), "{ready}");
    proc.signal("TERM");
    let stopping = hear();
    assert!(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=33000000\nSTATUS=draining"), "{stopping}");
    assert_eq!(proc.exit_code().await, Some(0));
    // A drain that may take longer says so, whatever TimeoutStopSec is.
    let mut command = world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut proc = Proc::spawn("broker", command);
    let line = proc.until("ready", |line| line["event"] == "ready").await;
    let addr = line["listen"].as_str().unwrap().parse().unwrap();
    assert!(hear().starts_with("READY=1\n"));
    drained(drain(&world, addr, &["--deadline", NEVER])).await;
    let stopping = hear();
    assert!(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=330000000\n"), "{stopping}");
}

#[test]
fn what_cannot_be_drained_says_why() {
    let world = World::new();
    let fails = |args: &[&str], code: i32, says: &str| {
        let output = world.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?} does not say {says:?}: {said}");
    };
    fails(&["drain", "--restart-in", "soon"], 2, "a time is a number");
    fails(&["drain", "--restart-in", "2h"], 2, "within 1h");
    fails(&["drain", "--deadline", "10m"], 2, "at most 5m");
    fails(&["drain", "--reason", &"x".repeat(257)], 2, "at most 256 bytes");
    fails(&["drain"], 2, "TENURE_ADMIN_TOKEN");
    fails(&["drain", "--broker", "http://x"], 2, "ws://HOST:PORT");
    let nowhere = ["drain", "--broker", "ws://127.0.0.1:1"];
    let output = world.tenure(&nowhere).env("TENURE_ADMIN_TOKEN", "0123456789abcdef").output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_an_operator_says_so() {
    let world = World::new();
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--store", "memory"];
    let mut proc = Proc::spawn("broker", world.tenure(&args));
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let url = format!("ws://{}", ready["listen"].as_str().unwrap());
    let mut command = world.tenure(&["drain", "--broker", &url]);
    let output = command.env("TENURE_ADMIN_TOKEN", "0123456789abcdef").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("not_found: the broker at") && said.contains("TENURE_ADMIN_TOKEN"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused() {
    let world = World::new();
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let mut command = world.tenure(&["drain", "--broker", &url]);
    let output = command.env("TENURE_ADMIN_TOKEN", "not-the-token-of-it").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("unauthorized: this is not the operator's token"), "{said}");
    assert!(world.run(&["status", "--broker", &url]).status.success(), "it is still there");
}

/// The unit in the manual is one that systemd takes.
#[test]
fn the_unit_in_the_manual_is_sound() {
    let manual =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/broker.md"))
            .unwrap();
    let (_, rest) = manual.split_once("```ini\n").expect("a unit");
    let (unit, _) = rest.split_once("```").unwrap();
    assert!(unit.contains("Type=notify\n") && unit.contains("Restart=always\n"), "{unit}");
    let unit = unit.replace("/usr/local/bin/tenure", env!("CARGO_BIN_EXE_tenure"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure-broker.service");
    std::fs::write(&path, unit).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() {
        Err(error) => eprintln!("the unit was not verified: systemd-analyze: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("tenure-broker")).collect();
            assert!(ours.is_empty(), "{said}");
        }
    }
}
