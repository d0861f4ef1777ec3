//! `tenure serve --exec`, with real processes: what its command says arrives, or the run says that it did not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::pass;
use common::stage::{Stage, gone, piece, pieces, text};
use serde_json::Value;

/// The numbers up to `last`, as the pieces of an answer.
fn numbers(last: u32) -> Vec<Value> {
    (1..=last).map(|n| Value::String(n.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_a_quick_command_says_arrives() {
    let stage = Stage::new().await;
    // All of it is in the pipe when the command has ended, and takes its time from there.
    let _serve = stage.serve("counter", "yes '' | head -n 20000; echo done").await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "counter", "x"]));
    assert_eq!((code, stdout.lines().count()), (Some(0), 20_001), "{stderr}");
    assert!(stdout.ends_with("\ndone\n"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_said_while_the_broker_was_away_is_sent_afterwards() {
    let mut stage = Stage::new().await;
    let (go, pid) = (stage.path("go"), stage.path("pid"));
    let (go, pid) = (go.display(), pid.display());
    // Not more than a broker keeps of an answer: its caller may be back later than who answers.
    let script = format!("echo $$ > {pid}; echo 1; while ! test -e {go}; do sleep 0.05; done; seq 2 2500");
    let _serve = stage.serve("counter", &script).await;
    let mut call = stage.spawn("call", &["call", "counter", "x", "--json"]);
    piece(&mut call, "1").await;
    stage.kill_broker().await;
    std::fs::write(stage.path("go"), "").unwrap();
    gone(&stage.line_of("pid").await).await;
    // Long enough for whoever would give up on it.
    pass(1, 2).await;
    stage.start_broker().await;
    assert_eq!(call.exit_code().await, Some(0), "{}", call.stderr());
    assert_eq!(pieces(&mut call), numbers(2_500));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_behind_is_ended_and_heard_to_the_end() {
    let stage = Stage::new().await;
    let pid = stage.path("pid");
    let script = format!("sleep 1000 & echo $! > {}; (sleep 0.3; echo behind) & echo now", pid.display());
    let _serve = stage.serve("worker", &script).await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "worker", "x"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "now\nbehind\n"), "{stderr}");
    gone(&stage.line_of("pid").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_off_is_an_error() {
    let stage = Stage::new().await;
    let _serve = stage.serve("worker", "while :; do echo more; sleep 0.1; done & echo now").await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "worker", "x"]));
    assert!(code == Some(7) && stderr.contains("went on speaking"), "{code:?} {stderr}");
    assert!(stdout.starts_with("now\n") || stdout.starts_with("more\n"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cut_off_in_the_middle_is_not_begun_again() {
    let stage = Stage::new().await;
    let begun = stage.path("begun");
    let script = format!("echo $$ >> {}; echo $$; sleep 1000", begun.display());
    let mut serve = stage.serve("worker", &script).await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    call.until("a piece", |line| line["event"] == "chunk").await;
    serve.signal("KILL");
    serve.exit_code().await;
    let mut serve = stage.serve("worker", &script).await;
    assert_eq!(call.exit_code().await, Some(7), "{}", call.stderr());
    let end = call.events("end").remove(0);
    assert_eq!(end["error"]["code"], "unavailable", "{end}");
    assert!(end["error"]["message"].as_str().unwrap().contains("cut off"), "{end}");
    assert_eq!(pieces(&mut call).len(), 1);
    assert_eq!(std::fs::read_to_string(&begun).unwrap().lines().count(), 1, "it was begun once");
    let ended = serve.until("the run", |line| line["event"] == "run").await;
    assert_eq!(ended["status"], "error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_which_nothing_was_said_is_begun_again() {
    let stage = Stage::new().await;
    let (begun, go) = (stage.path("begun"), stage.path("go"));
    let script = format!(
        "echo $$ >> {}; while ! test -e {}; do sleep 0.05; done; echo done",
        begun.display(),
        go.display()
    );
    let mut serve = stage.serve("worker", &script).await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    stage.line_of("begun").await;
    serve.signal("KILL");
    serve.exit_code().await;
    let _serve = stage.serve("worker", &script).await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(call.exit_code().await, Some(0), "{}", call.stderr());
    assert_eq!(pieces(&mut call), ["done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_has_started_ends_with_it_when_it_is_killed() {
    let stage = Stage::new().await;
    let (first, second) = (stage.path("first"), stage.path("second"));
    let script = format!(
        "sleep 1000 & echo $! > {}; echo $$ > {}; while ! test -e {}; do sleep 0.05; done",
        first.display(),
        second.display(),
        stage.path("never").display()
    );
    let mut serve = stage.serve("worker", &script).await;
    let _call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    let started = [stage.line_of("first").await, stage.line_of("second").await];
    serve.signal("KILL");
    serve.exit_code().await;
    for pid in started {
        gone(&pid).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_reader_of_its_events_it_stops_in_good_order() {
    let stage = Stage::new().await;
    let pid = stage.path("pid");
    let script =
        format!("read -r what; test $what = quick || {{ echo $$ > {}; sleep 1000; }}", pid.display());
    let args = ["serve", "--json", "--name", "worker", "--exec", &script];
    let mut serve = stage.command(&args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    // It reads one line and goes away.
    BufReader::new(serve.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("ready"), "{ready}");
    let mut slow = stage.spawn("slow", &["call", "worker", "slow\n", "--json"]);
    let command = stage.line_of("pid").await;
    let (code, _, stderr) = text(&stage.run(&["call", "worker", "quick\n"]));
    assert_eq!(code, Some(0), "its end came first: {stderr}");
    assert_eq!(slow.exit_code().await, Some(7), "{}", slow.stderr());
    assert_eq!(slow.events("end")[0]["error"]["code"], "unavailable", "it was told");
    assert_eq!(serve.wait().unwrap().code(), Some(1));
    gone(&command).await;
}
