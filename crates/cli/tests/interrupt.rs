//! Commands that stay, asked to end while their broker is away or does not answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::host::until;
use common::proc::Proc;
use common::stage::{Stage, piece};
use tenure_client::To;

/// How long the end of a command that was asked to end may take: what it promises, and a slow machine.
const SOON: Duration = Duration::from_secs(12);

/// Bytes of a message that is told from everything else that a broker says by its size.
const LETTER: usize = 20_000;

/// The most bytes that wait to be read by one of those who are connected to `addr`.
fn most_unread(addr: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{:04X}", addr.port());
    let waiting = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, unread) = columns.get(4)?.split_once(':')?;
        columns[2].ends_with(&remote).then(|| usize::from_str_radix(unread, 16).ok())?
    };
    table.lines().filter_map(waiting).max().unwrap_or_default()
}

/// A command that is at work: how it is called, and what it says then.
type AtWork = (&'static [&'static str], &'static str);

const COMMANDS: [AtWork; 9] = [
    (&["sub", "jobs", "--group", "crew"], "following jobs"),
    (&["sub", "jobs"], "following jobs"),
    (&["inbox", "--as", "bob", "--follow"], "bob"),
    (&["session", "--name", "carol", "--json"], "attached"),
    (&["serve", "--name", "worker", "--exec", "cat", "--json"], "ready"),
    (&["expose", "9", "--name", "db", "--json"], "ready"),
    (&["connect", "db", "--listen", "127.0.0.1:0", "--json"], "ready"),
    (&["peers", "--watch", "--json"], "here"),
    (&["services", "--watch", "--json"], "here"),
];

/// Starts a command and waits until it is at work.
async fn at_work(stage: &Stage, (args, says): AtWork) -> Proc {
    let mut proc = stage.spawn(&args.join(" "), args);
    let is = |line: &serde_json::Value| line.to_string().contains(says);
    match says {
        // It says nothing: others see it.
        "bob" => until("bob is here", || stage.world.debug_peer(stage.addr, "bob").is_some()),
        "following jobs" => until(says, || proc.stderr().contains(says)),
        says => drop(proc.until(says, is).await),
    }
    proc
}

/// It ends soon, with this code.
async fn ends(proc: &mut Proc, code: i32) {
    let asked = Instant::now();
    let ended = tokio::time::timeout(SOON, proc.exit_code()).await;
    assert!(ended.is_ok(), "{} is there {:?} after it was asked to end", proc.name(), asked.elapsed());
    assert_eq!(ended.unwrap(), Some(code), "{}: {}", proc.name(), proc.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_signal_ends_every_command_while_the_broker_is_away() {
    let mut stage = Stage::new().await;
    let mut procs = Vec::new();
    for command in COMMANDS {
        procs.push(at_work(&stage, command).await);
    }
    stage.kill_broker().await;
    for (number, proc) in procs.iter().enumerate() {
        proc.signal(if number % 2 == 0 { "INT" } else { "TERM" });
    }
    for mut proc in procs {
        ends(&mut proc, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_that_the_broker_never_heard_are_told_and_not_waited_for() {
    let stage = Stage::new().await;
    let (publisher, _events) = common::join(stage.addr, "publisher").await;
    let mut sub = at_work(&stage, COMMANDS[0]).await;
    // It is handed a message, and can look at it only when the broker cannot hear of it any more: its ack stays open.
    sub.signal("STOP");
    publisher.send(To("topic:jobs".parse().unwrap()), "x".repeat(LETTER)).await.unwrap();
    until("the message is with it", || most_unread(stage.addr) > LETTER);
    stage.broker().signal("STOP");
    sub.signal("CONT");
    sub.until("it is printed", |line| line.as_str().is_some_and(|line| line.contains("xxx"))).await;
    sub.signal("INT");
    ends(&mut sub, 5).await;
    let told = sub.stderr();
    assert!(
        told.contains("the broker did not answer the last acks: what was printed last may come again"),
        "{told}"
    );
    stage.broker().signal("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_said_to_be_given_up_only_if_the_broker_answered() {
    let stage = Stage::new().await;
    let (heard, unheard) = ("the lease is given up", "the broker did not answer");
    for (answers, says, other) in [(true, heard, unheard), (false, unheard, heard)] {
        let mut told = stage.world.joined("alice", stage.addr).await;
        let mut plain = stage.spawn("plain", &["session", "--name", "bob"]);
        let is_in = |line: &serde_json::Value| line.as_str().is_some_and(|line| line.starts_with("attached"));
        plain.until("attached", is_in).await;
        if !answers {
            stage.broker().signal("STOP");
        }
        for session in [&mut told, &mut plain] {
            session.signal("INT");
            ends(session, 0).await;
        }
        stage.broker().signal("CONT");
        assert_eq!(told.events("bye")[0]["answered"], answers);
        let last = plain.seen().last().unwrap().to_string();
        assert!(last.contains("bye") && last.contains(says) && !last.contains(other), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_broker_is_away_says_that_its_lease_ends_by_itself() {
    let mut stage = Stage::new().await;
    let mut session = stage.world.joined("alice", stage.addr).await;
    stage.kill_broker().await;
    session.until("detached", |line| line["event"] == "detached").await;
    session.signal("INT");
    ends(&mut session, 0).await;
    let bye = &session.events("bye")[0];
    assert_eq!((&bye["wasIn"], &bye["answered"]), (&true.into(), &false.into()), "{bye}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_command_whatever_it_waits_for() {
    let stage = Stage::new().await;
    // Nobody reads what it prints: it is stuck in the middle of a line.
    let mut command = stage.command(&["sub", "jobs", "--json"]);
    let mut stuck =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = stuck.stderr.take().unwrap();
    let mut words = std::io::BufReader::new(stderr);
    let mut word = String::new();
    std::io::BufRead::read_line(&mut words, &mut word).unwrap();
    assert_eq!(word, "following jobs\n");
    let line = "x".repeat(4_000);
    let lines = vec![line.as_str(); 200].join("\n");
    std::fs::write(stage.path("lines"), lines).unwrap();
    let file = stage.path("lines").display().to_string();
    let published = stage.run(&["pub", "jobs", "--file", &file]);
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    let pid = u64::from(stuck.id());
    let pipe = stuck.stdout.take().unwrap();
    let mut before = 0;
    until("the pipe takes no more", || {
        std::thread::sleep(Duration::from_millis(300));
        let bytes = rustix::io::ioctl_fionread(&pipe).unwrap();
        std::mem::replace(&mut before, bytes) == bytes && bytes > 16 * 1024
    });
    common::host::kill("-INT", pid);
    let asked = Instant::now();
    let status = loop {
        if let Some(status) = stuck.try_wait().unwrap() {
            break status;
        }
        assert!(asked.elapsed() < SOON, "it is there after two interrupts");
        std::thread::sleep(Duration::from_millis(20));
        // Two that come at once are one to a process.
        common::host::kill("-INT", pid);
    };
    assert_eq!(status.code(), Some(130));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_broker_is_away_is_left_to_itself_after_a_while() {
    let mut stage = Stage::new().await;
    let _serve = stage.serve("worker", "echo at work; sleep 1000").await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    piece(&mut call, "at work").await;
    stage.kill_broker().await;
    call.signal("INT");
    ends(&mut call, 1).await;
    assert!(call.stderr().contains("to itself: --key"), "{}", call.stderr());
}
