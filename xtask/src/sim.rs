//! `cargo xtask sim`: whole meshes in virtual time, with everything that can go wrong.
//!
//! With `--mutants` the simulator is built with deliberate bugs in it, apart from every other build, and has to find
//! each of them.

use std::process::ExitCode;

use anyhow::Result;

use crate::run;

const RUN: &[&str] = &["run", "--quiet", "--locked", "--profile", "sim", "--package", "tenure-sim"];
/// What the rules are built with to be wrong on demand, and where that build lies.
const MUTANTS: &str = "--cfg tenure_mutants";
const MUTANTS_DIR: &str = "target/mutants";

/// Builds the simulator and gives it the rest of the line.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    let mut sim = run::cargo(RUN);
    if args.iter().any(|arg| arg.starts_with("--mutant")) {
        sim.args(["--target-dir", MUTANTS_DIR]).env("RUSTFLAGS", MUTANTS);
    }
    run::forward(sim.arg("--").args(args))
}
