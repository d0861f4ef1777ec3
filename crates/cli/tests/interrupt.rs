//! Commands that stay, asked to end while their broker is away or does not answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::host::until;
use common::proc::Proc;
use common::stage::{Stage, piece};

/// How long the end of a command that was asked to end may take: what it promises, and a slow machine.
const SOON: Duration = Duration::from_secs(12);

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
    for proc in &procs {
        proc.signal(if procs.len() % 2 == 0 { "INT" } else { "TERM" });
    }
    for mut proc in procs {
        ends(&mut proc, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_that_the_broker_never_heard_are_told_and_not_waited_for() {
    let stage = Stage::new().await;
    let mut sub = at_work(&stage, COMMANDS[0]).await;
    // It cannot answer, and nobody knows yet that it will not.
    stage.broker().signal("STOP");
    sub.signal("INT");
    ends(&mut sub, 0).await;
    stage.broker().signal("CONT");
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
