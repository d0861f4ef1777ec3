//! Messages by way of the command, with real processes: what is sent arrives once, what is interrupted is not lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Instant;

use common::proc::Proc;
use common::{Broker, World, join, patience};
use serde_json::Value;
use tenure_client::Start;

/// A broker and the commands that speak with it.
struct Stage {
    /// Before the directory that its files are in: it says so when they are taken away.
    broker: Broker,
    world: World,
    url: String,
}

impl Stage {
    async fn new() -> Stage {
        let world = World::new();
        let broker = world.broker().await;
        let url = format!("ws://{}", broker.addr);
        Stage { world, broker, url }
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.world.tenure(args);
        command.env("TENURE_BROKER", &self.url);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("run tenure")
    }

    /// Runs a command that must go well; what it printed.
    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same with input.
    fn fed(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(args);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Lines of JSON that a command prints.
    fn lines(&self, args: &[&str]) -> Vec<Value> {
        self.good(args).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    fn spawn(&self, name: &str, args: &[&str]) -> Proc {
        Proc::spawn(name, self.command(args))
    }

    fn member(&self) -> String {
        let keys: Value = serde_json::from_str(&self.good(&["keys", "--json"])).unwrap();
        keys["member"].as_str().unwrap().to_owned()
    }

    /// The figures of a group, as soon as they are like this.
    fn group(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let groups: Value = serde_json::from_str(&self.good(&["groups", "--json"])).unwrap();
            let found = groups.as_array().unwrap().iter().find(|group| group["name"] == name).cloned();
            if let Some(group) = found.clone().filter(&is) {
                return group;
            }
            assert!(start.elapsed() < patience(), "{name} is {found:?}");
        }
    }

    /// Entries that a topic ever had.
    fn entries(&self, topic: &str) -> u64 {
        let topics: Value = serde_json::from_str(&self.good(&["topics", "--json"])).unwrap();
        let found = topics.as_array().unwrap().iter().find(|info| info["name"] == topic).cloned();
        found.map_or(0, |info| info["entries"].as_u64().unwrap())
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a process has said this on stderr.
async fn says(process: &Proc, text: &str) {
    let start = Instant::now();
    while !process.stderr().contains(text) {
        assert!(start.elapsed() < patience(), "it never said {text:?}: {}", process.stderr());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

fn bodies(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["body"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_waits_in_the_inbox_and_is_printed_once() {
    let stage = Stage::new().await;
    assert_eq!(stage.good(&["inbox"]), "", "nothing yet, and the session is known from now on");
    let to = format!("session:{}", stage.member());
    for (body, priority) in [("one", "low"), ("two", "next"), ("three", "now"), ("four", "next")] {
        let id = stage.good(&["send", &to, body, "--priority", priority]);
        assert_eq!(id.trim().len(), 26, "{id}");
    }
    let looked = stage.lines(&["inbox", "--no-ack", "--json"]);
    assert_eq!(bodies(&looked), ["three", "two", "four", "one"]);
    assert_eq!(bodies(&stage.lines(&["inbox", "--limit", "1", "--json"])), ["three"]);
    let line = stage.good(&["inbox", "--limit", "1"]);
    assert!(line.starts_with("next  ") && line.ends_with("  two\n"), "{line}");
    assert_eq!(bodies(&stage.lines(&["inbox", "--json"])), ["four", "one"]);
    assert_eq!(stage.good(&["inbox"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_can_be_said_of_a_message_arrives() {
    let stage = Stage::new().await;
    let to = format!("member:{}", stage.member());
    let options = ["--key", "k", "--reply-to", "r", "--content-type", "text/plain", "--ttl", "10m"];
    let more = ["--meta", r#"{"build": 417}"#, "--id", "deploy-417", "--json"];
    let sent = stage.lines(&[&["send", &to, "a\nb"][..], &options, &more].concat());
    assert_eq!(
        (sent[0]["duplicate"].clone(), &sent[0]["clientMessageId"]),
        (false.into(), &"deploy-417".into())
    );
    let again = stage.lines(&[&["send", &to, "a\nb"][..], &options, &more].concat());
    assert_eq!((again[0]["duplicate"].clone(), &again[0]["id"]), (true.into(), &sent[0]["id"]));
    let other = stage.run(&["send", &to, "another", "--id", "deploy-417"]);
    assert_eq!(other.status.code(), Some(4), "{}", stderr(&other));
    assert!(stderr(&other).contains("idempotency_key_reused"), "{}", stderr(&other));
    let bytes = stage.fed(&["send", &to, "-"], b"\xff\x00");
    assert!(bytes.status.success(), "{}", stderr(&bytes));
    let read = stage.lines(&["inbox", "--member", "--json", "--no-ack"]);
    let message = &read[0];
    assert_eq!(message["body"], "a\nb");
    let facts = ["key", "replyTo", "contentType"].map(|fact| message[fact].as_str().unwrap());
    assert_eq!(facts, ["k", "r", "text/plain"]);
    assert_eq!(message["meta"]["build"], 417);
    assert!(message["expiresAt"].as_u64().unwrap() - message["sentAt"].as_u64().unwrap() <= 600_000);
    assert_eq!(read[1]["bodyB64"], "/wA=");
    let text = stage.good(&["inbox", "--member"]);
    assert!(text.contains("  a\\nb\n") && text.contains("  base64:/wA=\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_means_one_session_or_nothing_is_sent() {
    let stage = Stage::new().await;
    let unknown = stage.run(&["send", "alice", "hi"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let mut alice = stage.spawn("alice", &["inbox", "--as", "alice", "--follow", "--json"]);
    let start = Instant::now();
    let id = loop {
        let output = stage.run(&["send", "alice", "hi"]);
        if output.status.success() {
            break String::from_utf8(output.stdout).unwrap().trim().to_owned();
        }
        assert!(output.status.code() == Some(2) && start.elapsed() < patience(), "{}", stderr(&output));
    };
    let came = alice.until("the message", |line| line["body"] == "hi").await;
    assert_eq!(came["id"], id.as_str());
    // Somebody else of the same name, elsewhere.
    let elsewhere = World::new();
    let _other = elsewhere.joined("alice", stage.broker.addr).await;
    let _bob = elsewhere.joined("bob", stage.broker.addr).await;
    let ambiguous = stage.run(&["send", "alice", "which?"]);
    assert_eq!((ambiguous.status.code(), ambiguous.stdout.len()), (Some(2), 0));
    assert_eq!(stderr(&ambiguous).matches("session:").count(), 2, "{}", stderr(&ambiguous));
    let unknown = stage.run(&["send", "carol", "hello?"]);
    assert_eq!((unknown.status.code(), unknown.stdout.len()), (Some(2), 0));
    assert!(stderr(&unknown).contains("bob") && stderr(&unknown).contains("alice"), "{}", stderr(&unknown));
    alice.signal("INT");
    assert_eq!(alice.exit_code().await, Some(0));
    assert_eq!(alice.seen().len(), 1, "nothing was sent to anybody");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_could_read_is_not_acked() {
    let stage = Stage::new().await;
    stage.good(&["inbox"]);
    let to = format!("session:{}", stage.member());
    for body in ["one", "two", "three"] {
        stage.good(&["send", &to, body]);
    }
    let mut child = stage.command(&["inbox"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0), "a reader that went away is the end, not an error");
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [&["inbox"][..], &["inbox", "--follow"]] {
        let output = stage.command(args).stdin(Stdio::null()).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "a full disk is one: {}", stderr(&output));
        assert!(stderr(&output).contains("write to standard output"), "{}", stderr(&output));
    }
    assert_eq!(bodies(&stage.lines(&["inbox", "--json"])), ["one", "two", "three"]);
    stage.good(&["pub", "posts", "one"]);
    let sub = ["sub", "posts", "--from", "earliest", "--count", "1"];
    let output = stage.command(&sub).stdin(Stdio::null()).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_can_wait_until_its_message_is_settled() {
    let stage = Stage::new().await;
    stage.good(&["inbox"]);
    let to = format!("session:{}", stage.member());
    let mut sender = stage.spawn("sender", &["send", &to, "please", "--wait=delivered", "--json"]);
    let mut reader = stage.spawn("reader", &["inbox", "--follow", "--json"]);
    reader.until("the message", |line| line["body"] == "please").await;
    let sent = sender.until("its fate", |line| line["state"] == "delivered").await;
    assert_eq!(sent["duplicate"], false);
    assert_eq!(sender.exit_code().await, Some(0));
    // Nobody reads the member's inbox: waiting is over when the sender says so, and the message stays.
    let member = format!("member:{}", stage.member());
    let mut sender = stage.spawn("sender", &["send", &member, "later", "--wait=delivered", "--json"]);
    stage_has(&stage, "later");
    sender.signal("INT");
    assert_eq!(sender.exit_code().await, Some(1));
    assert_eq!(sender.seen()[0]["state"], "accepted");
    let topic = stage.run(&["send", "topic:jobs", "x", "--wait=delivered"]);
    assert_eq!(topic.status.code(), Some(2), "{}", stderr(&topic));
}

/// Waits until the member's inbox has a message that says this.
fn stage_has(stage: &Stage, body: &str) {
    let start = Instant::now();
    let log = format!("inbox/m/{}", stage.member());
    loop {
        let output = stage.run(&["history", &log, "--json"]);
        if String::from_utf8_lossy(&output.stdout).contains(&format!("\"{body}\"")) {
            return;
        }
        assert!(start.elapsed() < patience(), "{}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_killed_half_way_is_published_once() {
    let stage = Stage::new().await;
    let file = stage.world.home().join("lines.txt");
    let lines: Vec<String> = (1..=2_000).map(|n| format!("line {n}")).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let (session, _events) = join(stage.broker.addr, "watcher").await;
    for attempt in 0..20 {
        let topic = format!("lines-{attempt}");
        let mut first = session.subscribe(&topic).await.unwrap();
        let mut publisher = stage.spawn("publisher", &["pub", &topic, "-f", file]);
        tokio::time::timeout(patience(), first.next_message()).await.unwrap().unwrap().ack().await.unwrap();
        publisher.signal("KILL");
        publisher.exit_code().await;
        let published = stage.entries(&topic);
        if published >= 2_000 {
            // It was faster than the signal.
            continue;
        }
        let output = stage.run(&["pub", &topic, "-f", file, "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (new, old) = (summary["published"].as_u64().unwrap(), summary["duplicates"].as_u64().unwrap());
        assert_eq!((new + old, old >= published), (2_000, true), "{summary}, {published} before");
        assert!(
            stderr(&output).contains(&format!("published {new}, duplicates {old}, in ")),
            "{}",
            stderr(&output)
        );
        let entries = stage.lines(&["history", &topic, "--json"]);
        let distinct: BTreeSet<&str> = bodies(&entries).into_iter().collect();
        assert_eq!((entries.len(), distinct), (2_000, lines.iter().map(String::as_str).collect()));
        return;
    }
    panic!("it was never killed in the middle");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_a_pipe_are_named_by_a_prefix() {
    let stage = Stage::new().await;
    let summary = |output: &Output| -> (u64, u64) {
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        (summary["published"].as_u64().unwrap(), summary["duplicates"].as_u64().unwrap())
    };
    let args = ["pub", "jobs", "-", "--id-prefix", "night-1", "--json"];
    assert_eq!(summary(&stage.fed(&args, b"a\nb\n\nd\xff")), (4, 0));
    assert_eq!(summary(&stage.fed(&args, b"a\nb\n\nd\xff\ne\n")), (1, 4));
    let changed = stage.fed(&args, b"a\nb\n\nD\n");
    assert_eq!((changed.status.code(), summary(&changed)), (Some(4), (0, 3)), "{}", stderr(&changed));
    assert!(stderr(&changed).contains("line 4: idempotency_key_reused"), "{}", stderr(&changed));
    assert_eq!(summary(&stage.fed(&["pub", "jobs", "-", "--json"], b"a\n")), (1, 0), "without one it is new");
    stage.good(&["pub", "jobs", "one more"]);
    let raw = stage.run(&["history", "jobs", "--raw"]).stdout;
    assert_eq!(raw, b"a\nb\n\nd\xff\ne\na\none more\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_a_group_share_the_work() {
    let stage = Stage::new().await;
    let args = ["sub", "jobs", "--group", "workers", "--prefetch", "1", "--json"];
    let mut workers = [stage.spawn("first", &args), stage.spawn("second", &args)];
    for worker in &workers {
        says(worker, "following jobs").await;
    }
    let input: String = (0..200).map(|n| format!("{n}\n")).collect();
    assert!(stage.fed(&["pub", "jobs", "-"], input.as_bytes()).status.success());
    stage.group("workers", |group| group["depth"] == 0 && group["members"] == 2);
    let mut seqs = Vec::new();
    for worker in &mut workers {
        worker.signal("INT");
        assert_eq!(worker.exit_code().await, Some(0));
        let own: Vec<u64> = worker.seen().iter().map(|line| line["seq"].as_u64().unwrap()).collect();
        assert!(!own.is_empty() && own.is_sorted(), "{own:?}");
        seqs.extend(own);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=200).collect::<Vec<u64>>(), "each once, all of them");
    stage.group("workers", |group| group["members"] == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_follower_did_not_print_goes_back() {
    let stage = Stage::new().await;
    let input: String = (1..=500).map(|n| format!("{n}\n")).collect();
    assert!(stage.fed(&["pub", "jobs", "-"], input.as_bytes()).status.success());
    let args = ["sub", "jobs", "--group", "crew", "--from", "earliest", "--raw"];
    let some = stage.good(&[&args[..], &["--count", "120"]].concat());
    assert_eq!(some.lines().last(), Some("120"));
    let group = stage.group("crew", |group| group["members"] == 0);
    assert_eq!((&group["depth"], &group["unsettled"]), (&380.into(), &0.into()));
    let looked = stage.good(&[&args[..], &["--count", "5", "--no-ack"]].concat());
    assert_eq!(looked, "121\n122\n123\n124\n125\n");
    let rest = stage.good(&[&args[..], &["--count", "380"]].concat());
    assert_eq!((rest.lines().next(), rest.lines().last()), (Some("121"), Some("500")));
    // Without a group there is nothing to share: from where one says, everything.
    let all = stage.good(&["sub", "jobs", "--from", "498", "--count", "3", "--raw"]);
    assert_eq!(all, "498\n499\n500\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_and_their_history_are_listed() {
    let stage = Stage::new().await;
    assert_eq!(stage.good(&["topics"]), "");
    assert_eq!(
        stage.good(&["topics", "--create", "wide", "--partitions", "4", "--retention", "1d"]),
        "wide\n"
    );
    let other = stage.run(&["topics", "--create", "wide", "--partitions", "5"]);
    assert_eq!(other.status.code(), Some(4), "{}", stderr(&other));
    for n in 0..8 {
        stage.good(&["pub", "wide", &n.to_string(), "--key", "same"]);
    }
    let table = stage.good(&["topics"]);
    assert!(table.contains("wide  4           8        0       1d"), "{table}");
    let logs: Vec<Vec<Value>> =
        (0..4).map(|p| stage.lines(&["history", &format!("topic/wide/{p}"), "--json"])).collect();
    assert_eq!(logs.iter().filter(|log| log.len() == 8).count(), 1, "one key, one partition");
    let log = logs.iter().find(|log| !log.is_empty()).unwrap()[0]["log"].as_str().unwrap().to_owned();
    let part = stage.good(&["history", &log, "--from", "3", "--limit", "2", "--raw"]);
    assert_eq!(part, "2\n3\n");
    let foreign = stage.run(&["history", &format!("inbox/s/{}", "ab".repeat(32))]);
    assert_eq!(foreign.status.code(), Some(4), "{}", stderr(&foreign));
    assert_eq!(stage.run(&["history", "nowhere"]).status.code(), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_retried_and_dropped() {
    let stage = Stage::new().await;
    for body in ["one", "two", "three"] {
        stage.good(&["pub", "jobs", body]);
    }
    let (session, _events) = join(stage.broker.addr, "worker").await;
    let mut jobs = session.subscribe("jobs").group("crew").from(Start::Earliest).await.unwrap();
    for _ in 0..3 {
        jobs.next_message().await.unwrap().dead("cannot parse it").await.unwrap();
    }
    let letters = stage.lines(&["dead", "list", "jobs", "--json"]);
    let seqs: Vec<u64> = letters.iter().map(|letter| letter["message"]["seq"].as_u64().unwrap()).collect();
    assert_eq!((seqs, &letters[0]["reason"]), (vec![1, 2, 3], &"cannot parse it".into()));
    let table = stage.good(&["dead", "list", "topic/jobs/0", "--limit", "2"]);
    assert!(
        table.contains("cannot parse it") && table.contains("two") && !table.contains("three"),
        "{table}"
    );
    assert_eq!(stage.good(&["dead", "retry", "jobs", "2"]), "2\n");
    let again = tokio::time::timeout(patience(), jobs.next_message()).await.unwrap().unwrap();
    assert_eq!(again.text(), Some("two"));
    again.ack().await.unwrap();
    let missing = stage.run(&["dead", "retry", "jobs", "2", "3"]);
    assert_eq!((missing.status.code(), &missing.stdout[..]), (Some(1), &b"3\n"[..]), "{}", stderr(&missing));
    let again = tokio::time::timeout(patience(), jobs.next_message()).await.unwrap().unwrap();
    again.dead("still not").await.unwrap();
    assert_eq!(stage.lines(&["dead", "drop", "jobs", "1", "--json"])[0]["dropped"], 1);
    assert_eq!(stage.run(&["dead", "drop", "jobs", "1"]).status.code(), Some(1));
    assert_eq!(stage.lines(&["dead", "drop", "jobs", "--all", "--json"])[0]["dropped"], 1);
    assert_eq!(stage.good(&["dead", "list", "jobs"]), "");
}

#[test]
fn what_cannot_be_meant_is_refused_without_a_broker() {
    let world = World::new();
    for args in [
        &["send", "session:alice", "x"][..],
        &["send", "topic:No Topic", "x"],
        &["send", "", "x"],
        &["send", "alice"],
        &["send", "alice", "x", "--priority", "soon"],
        &["send", "alice", "x", "--meta", "[1]"],
        &["send", "alice", "x", "--ttl", "10"],
        &["send", "alice", "x", "--id", "run:1"],
        &["send", "topic:a", "x", "--wait=delivered"],
        &["send", "topic:a", "x", "--fallback", "fail"],
        &["inbox", "--limit", "0"],
        &["inbox", "--status", "asleep"],
        &["sub", "No Topic"],
        &["sub", "jobs", "--from", "yesterday"],
        &["sub", "jobs", "--prefetch", "0"],
        &["pub", "jobs"],
        &["pub", "jobs", "x", "-f", "y"],
        &["pub", "jobs", "-f", "no-such-file"],
        &["pub", "jobs", "-", "--id-prefix", "run:"],
        &["history", "jobs/0"],
        &["topics", "--partitions", "3"],
        &["topics", "--create", "jobs", "--partitions", "0"],
        &["dead", "retry", "jobs"],
        &["dead", "drop", "jobs", "1", "--all"],
        &["check", "--data-dir", "no-such-directory"],
    ] {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn every_command_of_messages_says_when_nobody_answers() {
    let world = World::new();
    let commands: [&[&str]; 7] = [
        &["send", "alice", "x"],
        &["inbox"],
        &["sub", "jobs"],
        &["pub", "jobs", "x"],
        &["history", "jobs"],
        &["topics"],
        &["dead", "list", "jobs"],
    ];
    std::thread::scope(|scope| {
        for args in commands {
            let world = &world;
            scope.spawn(move || {
                let output = world.run(&[args, &["--broker", "ws://127.0.0.1:1"]].concat());
                assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
            });
        }
    });
}
