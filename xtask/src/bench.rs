//! `cargo xtask bench`: measurements of the `tenure` binary as it ships.
//!
//! The binary is built first, in release, because it is what gets measured; `tenure-bench` starts it and
//! drives it from outside.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run;

/// Builds `tenure`, then hands the arguments to `tenure-bench`.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if args.is_empty() {
        bail!("say what to measure: sessions, storm, accept, growth, fanout, daemon or offline");
    }
    measure(args)
}

/// Builds both and runs `tenure-bench` with `args`.
pub(crate) fn measure(args: &[String]) -> Result<ExitCode> {
    run::succeed(&mut run::cargo(&["build", "--release", "--quiet", "--package", "tenure-cli"]))?;
    let mut bench = run::cargo(&["run", "--release", "--quiet", "--package", "tenure-bench", "--"]);
    run::forward(bench.args(args))
}
