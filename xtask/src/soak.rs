//! `cargo xtask soak`: the six scenarios with real processes and the real clock.
//!
//! The same tests run in `cargo xtask test` with times scaled down; here nothing is scaled, so a run takes
//! minutes and proves the defaults: lease 90 s, stale 75 s, ping and tick 30 s.

use std::process::ExitCode;

use anyhow::Result;

use crate::run;

const SCENARIOS: &[&str] = &["test", "--release", "--package", "tenure-cli", "--test", "scenarios", "--"];

/// Runs all six at once; further arguments go to the test binary.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    let mut tests = run::cargo(SCENARIOS);
    tests.args(["--nocapture", "--test-threads", "6"]).args(args).env("TENURE_SOAK", "real");
    run::forward(&mut tests)
}
