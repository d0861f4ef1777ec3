//! `cargo xtask vectors`: the committed files that hold every implementation to one wire.
//!
//! The example `vectors` of `tenure-proto` writes `vectors/*.json` and `schemas/*.json`; with `--check` it
//! writes nothing and fails when a file is not what the code would write today.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run;

const EXAMPLE: &[&str] =
    &["run", "--quiet", "--package", "tenure-proto", "--features", "schema", "--example", "vectors", "--"];

/// Writes the files anew, or checks them.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.iter().find(|arg| *arg != "--check") {
        bail!("`vectors` knows only `--check`, got `{arg}`");
    }
    run::forward(run::cargo(EXAMPLE).args(args))
}
