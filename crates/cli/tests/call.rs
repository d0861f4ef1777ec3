//! `tenure call`, with real processes: what it says when it is interrupted, when nobody reads it, and when something is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::stage::{Stage, text};

/// Prints a line and works on.
const AT_WORK: &str = "echo at work; sleep 1000";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_written_is_a_failure_and_is_wanted_no_more() {
    let stage = Stage::new().await;
    let mut serve = stage.serve("worker", AT_WORK).await;
    for args in [&["call", "worker", "x"][..], &["call", "worker", "x", "--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = stage.command(args).stdin(Stdio::null()).stdout(full).output().unwrap();
        let (code, _, stderr) = text(&output);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("write to standard output"), "{stderr}");
        let ended = serve.until("the run", |line| line["event"] == "run").await;
        assert_eq!(ended["status"], "cancelled");
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
