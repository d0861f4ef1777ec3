//! `tenure call`, with real processes: what it says when it is interrupted, when nobody reads it, and when something is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::host::until;
use common::patience;
use common::proc::Proc;
use common::stage::{Stage, piece, text};
use serde_json::json;
use tenure_client::{Options, Run, Session, random_key};
use tokio::net::TcpListener;

/// Prints a line and works on.
const AT_WORK: &str = "echo at work; sleep 1000";

/// A call whose broker went away at work, and which then heard an interrupt; with its stage and who answers it.
async fn interrupted_while_away() -> (Stage, Proc, Proc) {
    let mut stage = Stage::new().await;
    let serve = stage.serve("worker", AT_WORK).await;
    let mut call = stage.spawn("call", &["call", "worker", "x", "--json"]);
    piece(&mut call, "at work").await;
    stage.kill_broker().await;
    call.signal("INT");
    until("it is heard", || call.stderr().contains("cancelling the run"));
    (stage, serve, call)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_interrupt_leaves_at_once_whatever_the_broker_does() {
    let (_stage, _serve, mut call) = interrupted_while_away().await;
    call.signal("INT");
    // The broker's answer to the first would have been waited for until it is given up, which has another code.
    assert_eq!(call.exit_code().await, Some(1), "{}", call.stderr());
    assert!(call.stderr().contains("to itself: --key"), "{}", call.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cancelled_while_the_broker_was_away_is_cancelled_when_it_is_back() {
    let (mut stage, _serve, mut call) = interrupted_while_away().await;
    stage.start_broker().await;
    assert_eq!(call.exit_code().await, Some(7), "{}", call.stderr());
    assert_eq!(call.events("end")[0]["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_dialling() {
    let stage = Stage::new().await;
    // Somebody who takes every connection and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    for args in [&["call", "x", "y"][..], &["serve", "--exec", "cat"], &["inbox"], &["sub", "topic"]] {
        let mut command = stage.command(args);
        command.env("TENURE_BROKER", &url);
        let mut process = Proc::spawn(args[0], command);
        let _dialled = tokio::time::timeout(patience(), listener.accept()).await.expect("it dials").unwrap();
        process.signal("INT");
        assert_eq!(process.exit_code().await, Some(1), "{args:?}: {}", process.stderr());
        assert!(process.stderr().contains("stopped before the broker had answered"), "{}", process.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_written_is_a_failure_and_is_wanted_no_more() {
    let stage = Stage::new().await;
    let _serve = stage.serve("worker", AT_WORK).await;
    // The first has a piece of the answer when it fails. The second has only that the run was started, and nobody may have taken
    // it yet: so what became of a run is what joining it says, not what its worker does.
    for args in [&["--key", "words"][..], &["--key", "events", "--json"]] {
        let args = [&["call", "worker", "x"], args].concat();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = stage.command(&args).stdin(Stdio::null()).stdout(full).output().unwrap();
        let (code, _, stderr) = text(&output);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("write to standard output"), "{stderr}");
        let (code, _, stderr) = text(&stage.run(&args));
        assert_eq!(code, Some(7), "{args:?}: {stderr}");
    }
    let mut quick = stage.serve("quick", "true").await;
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = stage.command(&["call", "quick", "x"]).stdout(full).output().unwrap();
    assert_eq!(text(&output).0, Some(0), "there was nothing to write");
    quick.until("the run", |line| line["status"] == "ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_cancels_the_run() {
    let stage = Stage::new().await;
    let go = stage.path("go");
    let script =
        format!("echo one; while ! test -e {}; do sleep 0.05; done; echo two; sleep 1000", go.display());
    let mut serve = stage.serve("worker", &script).await;
    let mut command = stage.command(&["call", "worker", "x"]);
    let mut call =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(call.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    std::fs::write(&go, "").unwrap();
    let (code, _, stderr) = text(&call.wait_with_output().unwrap());
    assert!(code == Some(7) && stderr.contains("nobody reads the answer"), "{code:?} {stderr}");
    let ended = serve.until("the run", |line| line["event"] == "run").await;
    assert_eq!(ended["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_waits_for_its_caller_in_the_result() {
    let mut stage = Stage::new().await;
    let mut serve = stage.serve("worker", "echo one; echo; echo three").await;
    let args = ["call", "worker", "x", "--key", "k"];
    let (code, stdout, stderr) = text(&stage.run(&args));
    assert_eq!((code, stdout.as_str()), (Some(0), "one\n\nthree\n"), "{stderr}");
    serve.until("the run", |line| line["event"] == "run").await;
    // With it go the pieces of the answer.
    stage.restart().await;
    let (code, stdout, stderr) = text(&stage.run(&args));
    assert_eq!((code, stdout.as_str()), (Some(0), "one\n\nthree\n"), "{stderr}");
    let mut call = stage.spawn("call", &["call", "worker", "x", "--key", "k", "--json"]);
    assert_eq!(call.exit_code().await, Some(0), "{}", call.stderr());
    let end = call.events("end").remove(0);
    assert_eq!((&end["result"], &end["gap"]), (&json!("one\n\nthree"), &json!(true)), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_gap_that_nothing_fills_is_not_a_success() {
    let mut stage = Stage::new().await;
    let mut serve = stage.serve("worker", "head -c 1100000 /dev/zero | tr '\\0' x | fold -w 1000").await;
    let args = ["call", "worker", "x", "--key", "k"];
    stage.run(&args);
    serve.until("the run", |line| line["status"] == "ok").await;
    let url = format!("ws://{}", stage.addr);
    let options = Options::new(&url, random_key().unwrap(), "speaker").unwrap().serve_runs();
    let (speaker, events) = Session::connect(options).await.unwrap();
    drop(events);
    let speak = |run: Run| async move {
        run.chunk("one").await?;
        run.chunk("two").await?;
        Ok(json!("done"))
    };
    let serving = tokio::spawn(speaker.serve_runs(speak).into_future());
    let spoken = ["call", "speaker", "x", "--key", "s"];
    let (code, stdout, stderr) = text(&stage.run(&spoken));
    assert_eq!((code, stdout.as_str()), (Some(0), "one\ntwo\ndone\n"), "{stderr}");
    stage.restart().await;
    let (code, stdout, stderr) = text(&stage.run(&args));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("some of its answer is gone"), "{stderr}");
    let (code, stdout, stderr) = text(&stage.run(&spoken));
    assert_eq!((code, stdout.as_str()), (Some(1), "done\n"), "a result is not all of an answer: {stderr}");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_refused_without_a_broker() {
    let stage = Stage::new().await;
    let long = "k".repeat(129);
    for (args, says) in [
        (&["--timeout", "0s"][..], "from 1ms to 1d"),
        (&["--timeout", "2d"], "from 1ms to 1d"),
        (&["--key", ""], "printable ASCII"),
        (&["--key", "é"], "printable ASCII"),
        (&["--key", &long], "printable ASCII"),
    ] {
        let args = [&["call", "x", "y", "--broker", "ws://127.0.0.1:1"], args].concat();
        let (code, _, stderr) = text(&stage.run(&args));
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
    let twice = r#"{"a": 1, "a": 2}"#;
    let (code, _, stderr) = text(&stage.run(&["call", "x", twice, "--broker", "ws://127.0.0.1:1"]));
    assert!(code == Some(2) && stderr.contains("--text"), "{code:?} {stderr}");
    let _serve = stage.serve("cat", "cat").await;
    let (code, stdout, stderr) = text(&stage.run(&["call", "cat", twice, "--text"]));
    assert_eq!((code, stdout.trim_end()), (Some(0), twice), "{stderr}");
}
