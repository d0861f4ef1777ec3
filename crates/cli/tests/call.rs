//! `tenure call`, with real processes: what it says when it is interrupted, when nobody reads it, and when something is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::stage::{Stage, text};

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
