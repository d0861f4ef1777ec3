//! `cargo xtask soak`: the six scenarios with real processes and the real clock.
//!
//! The same tests run in `cargo xtask test` with times scaled down; here nothing is scaled, so a run takes
//! minutes and proves the defaults: lease 90 s, stale 75 s, ping and tick 30 s.
//!
//! `cargo xtask soak kill --cycles N` kills a release broker under load, again and again, and compares what senders
//! were told with what readers got; `--dir DIR` puts its data on the disk that is to be trusted. `cargo xtask soak
//! daemon --cycles N` kills daemons too, and compares what their clients were told with the receiver's inbox.
//!
//! `cargo xtask soak restart [--kill]` replaces the broker under a thousand sessions, drained or killed, and counts what
//! anybody could notice. `cargo xtask soak drops --clients N` cuts readers off every fifteen seconds during a steady
//! publish. `cargo xtask soak attack` hoards the memory and the connections of a broker with 1,024 open files, for two minutes.

use std::process::ExitCode;

use anyhow::Result;

use crate::{bench, run};

const SCENARIOS: &[&str] = &["test", "--release", "--package", "tenure-cli", "--test", "scenarios", "--"];

/// Runs all six at once, with further arguments for the test binary; or kills.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if args.first().is_some_and(|arg| ["kill", "restart", "drops", "attack"].contains(&arg.as_str())) {
        return bench::measure(args);
    }
    if let Some((name, rest)) = args.split_first().filter(|(name, _)| *name == "daemon") {
        let command = format!("{name}-kill");
        return bench::measure(&[&[command], rest].concat());
    }
    let mut tests = run::cargo(SCENARIOS);
    tests.args(["--nocapture", "--test-threads", "6"]).args(args).env("TENURE_SOAK", "real");
    run::forward(&mut tests)
}
