//! `cargo xtask bench`: measurements of the `tenure` binary as it ships.
//!
//! The binary is built first, in release, because it is what gets measured; `tenure-bench` starts it and
//! drives it from outside.

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::run;

/// Builds `tenure`, then hands the arguments to `tenure-bench`.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if args.is_empty() {
        bail!(
            "say what to measure: sessions, services, storm, accept, growth, fanout, slow, daemon or offline"
        );
    }
    measure(args)
}

/// Builds both and runs `tenure-bench` with `args`. In one build: apart, each would compile all they share anew, for its
/// own choice of features.
pub(crate) fn measure(args: &[String]) -> Result<ExitCode> {
    let both = ["build", "--release", "--quiet", "--package", "tenure-cli", "--package", "tenure-bench"];
    run::succeed(&mut run::cargo(&both))?;
    let bench = run::target_directory()?.join("release").join("tenure-bench");
    run::forward(Command::new(bench).args(args))
}
