//! `cargo xtask soak`: the six scenarios with real processes and the real clock.
//!
//! The same tests run in `cargo xtask test` with times scaled down; here nothing is scaled, so a run takes
//! minutes and proves the defaults: lease 90 s, stale 75 s, ping and tick 30 s.
//!
//! `cargo xtask soak kill --cycles N` kills a release broker under load, again and again, and compares what senders
//! were told with what readers got; `--dir DIR` puts its data on the disk that is to be trusted.

use std::process::ExitCode;

use anyhow::Result;

use crate::{bench, run};

const SCENARIOS: &[&str] = &["test", "--release", "--package", "tenure-cli", "--test", "scenarios", "--"];

/// Runs all six at once, with further arguments for the test binary; or kills.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if args.first().is_some_and(|arg| arg == "kill") {
        return bench::measure(args);
    }
    let mut tests = run::cargo(SCENARIOS);
    tests.args(["--nocapture", "--test-threads", "6"]).args(args).env("TENURE_SOAK", "real");
    run::forward(&mut tests)
}
