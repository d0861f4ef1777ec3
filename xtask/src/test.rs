//! `cargo xtask test`: everything a change must pass, in the order that fails soonest.
//!
//! Needs Rust; python3 and PyPI for the last step, which is left out, and says so, where they are not. nextest is used where it is installed, because it runs each test in its own
//! process; `cargo test` runs the same tests without it.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{run, schemathesis, tidy};

const FMT: &[&str] = &["fmt", "--all", "--", "--check"];
const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
const NEXTEST: &[&str] = &["nextest", "run", "--workspace", "--locked"];
const PLAIN_TESTS: &[&str] = &["test", "--workspace", "--locked", "--lib", "--bins", "--tests"];
const DOC_TESTS: &[&str] = &["test", "--workspace", "--doc", "--locked"];

/// Runs every step and stops at the first that fails.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    let extra = runner_args(args)?;
    let started = Instant::now();
    step("fmt", || cargo(FMT, &[]))?;
    step("clippy", || cargo(CLIPPY, &[]))?;
    step("tidy", tidy::check)?;
    let tests = if run::works(&mut run::cargo(&["nextest", "--version"])) { NEXTEST } else { PLAIN_TESTS };
    step("tests", || cargo(tests, extra))?;
    step("doc tests", || cargo(DOC_TESTS, &[]))?;
    step("schemathesis", schemathesis::quick)?;
    eprintln!("xtask test: all steps passed in {} s", started.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

/// What follows `--`; anything before it is a mistake worth naming.
fn runner_args(args: &[String]) -> Result<&[String]> {
    match args.split_first() {
        None => Ok(&[]),
        Some((dashes, extra)) if dashes == "--" => Ok(extra),
        Some((arg, _)) => {
            bail!("`test` does not know `{arg}`; arguments for the test runner go after `--`")
        }
    }
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("==> {name}");
    work().with_context(|| format!("step `{name}` failed"))
}

fn cargo(args: &[&str], extra: &[String]) -> Result<()> {
    run::succeed(run::cargo(args).args(extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    #[test]
    fn arguments_after_the_dashes_go_to_the_runner() {
        assert!(runner_args(&[]).expect("none").is_empty());
        assert_eq!(runner_args(&strings(&["--", "lease", "-v"])).expect("two"), ["lease", "-v"]);
        let args = strings(&["lease"]);
        let error = runner_args(&args).expect_err("no dashes");
        assert!(error.to_string().contains("`lease`"), "{error}");
    }

    #[test]
    fn a_failing_step_is_named() {
        let error = step("fmt", || bail!("not formatted")).expect_err("the step fails");
        assert_eq!(format!("{error:#}"), "step `fmt` failed: not formatted");
    }
}
