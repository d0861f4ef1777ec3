//! What strangers wrote, on a terminal of ours: nothing of it is acted on, and JSON stays JSON.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::host::{Host, NOWHERE};
use common::stage::{Stage, text};
use serde_json::Value;
use tenure_client::Start;
use tenure_client::proto::text::is_control_or_bidi;

/// ESC, C1 CSI, DEL, a line break and marks that turn the direction of text.
const EVIL: &str = "a\u{1b}[2J\u{9b}2J\u{7f}\nb\u{202e}c\u{2066}d\u{200f}e\u{2028}f";

/// Nothing on these lines acts on a terminal, but for line breaks of ours.
fn is_tame(what: &str, output: &str) {
    let bad = output.chars().find(|c| is_control_or_bidi(*c) && *c != '\n');
    assert_eq!(bad, None, "{what}: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_passes_on_what_a_stranger_wrote() {
    let stage = Stage::new().await;
    let run = |args: &[&str]| {
        let (code, stdout, stderr) = text(&stage.run(args));
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
        is_tame(&args.join(" "), &stdout);
        is_tame(&args.join(" "), &stderr);
        stdout
    };
    run(&["send", "topic:jobs", EVIL]);
    run(&["send", "topic:jobs", EVIL, "--key", "k"]);
    let own = serde_json::from_str::<Value>(&run(&["keys", "--json"])).unwrap();
    let own = format!("session:{}", own["member"].as_str().unwrap());
    // The session must have been there once.
    run(&["inbox"]);
    run(&["send", &own, EVIL]);
    run(&["send", &own, EVIL]);
    let body = |line: &str| serde_json::from_str::<Value>(line).unwrap()["body"].clone();
    run(&["history", "jobs"]);
    for line in run(&["history", "jobs", "--json"]).lines() {
        assert_eq!(body(line), EVIL, "it is spelled, not changed");
    }
    run(&["sub", "jobs", "--from", "earliest", "--count", "2"]);
    assert_eq!(body(run(&["sub", "jobs", "--from", "earliest", "--count", "1", "--json"]).trim()), EVIL);
    run(&["inbox", "--limit", "1"]);
    assert_eq!(body(run(&["inbox", "--json"]).trim()), EVIL);
    let raw = stage.run(&["sub", "jobs", "--from", "earliest", "--count", "1", "--raw"]);
    assert_eq!(raw.stdout, format!("{EVIL}\n").into_bytes(), "--raw is byte by byte");
    let (worker, _events) = common::join(stage.addr, "worker").await;
    let mut jobs = worker.subscribe("jobs").group("crew").from(Start::Earliest).await.unwrap();
    jobs.next_message().await.unwrap().dead(EVIL).await.unwrap();
    run(&["dead", "list", "jobs"]);
    let letter: Value = serde_json::from_str(run(&["dead", "list", "jobs", "--json"]).trim()).unwrap();
    assert_eq!(letter["message"]["body"], EVIL);
    run(&["dead", "drop", "jobs", "--all"]);
    for act in [&["kick", &own][..], &["ban", &own, "--reason", EVIL], &["unban", &own]] {
        // Whether it is done or refused, it stands in the audit log.
        let (_, stdout, stderr) = text(&stage.run(act));
        is_tame(act[0], &(stdout + &stderr));
    }
    for list in [&["audit"][..], &["audit", "--json"], &["audit", "--sessions"], &["ban"], &["ban", "--json"]]
    {
        run(list);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_a_row_of_the_outbox_does_nothing_to_a_terminal() {
    let host = Host::new(NOWHERE);
    host.good(&["daemon", "up"]);
    host.good(&["send", "topic:jobs", EVIL]);
    host.good(&["daemon", "down"]);
    // As a broker might have put it.
    let outbox = rusqlite::Connection::open(host.path("outbox.db")).unwrap();
    outbox.execute("UPDATE outbox SET status = 'dead', last_error = ?1", [EVIL]).unwrap();
    drop(outbox);
    host.good(&["daemon", "up"]);
    let run = |args: &[&str], good: bool| {
        let (code, stdout, stderr) = text(&host.run(args));
        assert_eq!(code == Some(0), good, "{args:?}: {stderr}");
        is_tame(&args.join(" "), &stdout);
        is_tame(&args.join(" "), &stderr);
        stdout
    };
    assert!(run(&["outbox", "list"], true).contains("dead"));
    let row: Value = serde_json::from_str(run(&["outbox", "list", "--json"], true).trim()).unwrap();
    assert_eq!(row["lastError"], EVIL, "it is spelled, not changed");
    run(&["outbox", "show", "#1"], true);
    run(&["outbox", "show", "#1", "--json"], true);
    run(&["outbox", "show", EVIL], false);
    run(&["outbox", "drop", EVIL], false);
    run(&["outbox", "drop", "#1", "--json"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_would_act_on_terminals_is_refused() {
    let stage = Stage::new().await;
    for flag in ["--description", "--tag"] {
        let (code, stdout, stderr) = text(&stage.run(&["expose", "9", "--name", "db", flag, EVIL, "--json"]));
        assert!(code.is_some_and(|code| code != 0) && stderr.contains("U+001B"), "{code:?}: {stderr}");
        is_tame(flag, &(stdout + &stderr));
    }
    let args = ["expose", "9", "--name", "db", "--description", "a base", "--json"];
    let mut offered = stage.spawn("expose", &args);
    offered.until("ready", |line| line["event"] == "ready").await;
    for list in [&["services"][..], &["services", "--all"], &["services", "--json"]] {
        let (code, stdout, stderr) = text(&stage.run(list));
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains("a base"), "{stdout}");
        is_tame(&list.join(" "), &(stdout + &stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_json_is_spelled() {
    let stage = Stage::new().await;
    // Pieces of an answer are text; what stands in them is passed on as it is, unless it is JSON.
    let _serve = stage.serve("echo", "cat").await;
    let asked = serde_json::json!({"deep": [EVIL]}).to_string();
    let (code, stdout, stderr) = text(&stage.run(&["call", "echo", &asked, "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    is_tame("call --json", &stdout);
    let said: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let chunks = said.iter().filter(|line| line["event"] == "chunk");
    let said: Vec<&str> = chunks.map(|line| line["data"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&said.join("\n")).unwrap()["deep"][0], EVIL);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_that_would_act_on_terminals_is_refused() {
    let stage = Stage::new().await;
    for (flag, field) in [("--summary", "summary"), ("--role", "role"), ("--tag", "tags")] {
        let output = stage.run(&["session", "--name", "eve", flag, EVIL]);
        let (code, _, stderr) = text(&output);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(&format!("profile.{field} has U+001B")), "{stderr}");
        is_tame(flag, &stderr);
    }
    let strange = stage.path("a\u{1b}[2Jb");
    std::fs::create_dir(&strange).unwrap();
    let mut command = stage.command(&["session", "--name", "eve", "--json"]);
    command.current_dir(&strange);
    let mut eve = common::proc::Proc::spawn("eve", command);
    eve.attached().await;
    let (code, peers, _) = text(&stage.run(&["peers", "--json"]));
    assert_eq!(code, Some(0));
    assert!(peers.contains("a\u{fffd}[2Jb"), "a directory's name is made plain: {peers}");
    for list in [&["peers"][..], &["peers", "--all"], &["peers", "--json"]] {
        let (code, stdout, stderr) = text(&stage.run(list));
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains("eve"), "{stdout}");
        is_tame(&list.join(" "), &(stdout + &stderr));
    }
}
