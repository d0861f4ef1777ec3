//! `cargo xtask deps`: what cargo-deny thinks of the dependencies, by the rules in `deny.toml`.
//!
//! `tidy` checks licences and sources by itself and needs no tool; this adds bans and duplicate versions.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run;

/// Runs cargo-deny, or says how to get it.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`deps` takes no arguments, got `{arg}`");
    }
    if !run::works(&mut run::cargo(&["deny", "--version"])) {
        bail!("cargo-deny is not installed; `cargo install --locked cargo-deny` gets it");
    }
    run::forward(&mut run::cargo(&["deny", "check", "licenses", "bans", "sources"]))
}
