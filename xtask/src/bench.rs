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
            "say what to measure: sessions, services, relay, storm, accept, growth, fanout, slow, daemon or offline"
        );
    }
    if args[0] == "relay" {
        return measure(&[args, &beside()?].concat());
    }
    measure(args)
}

/// The tunnels that the relay is measured beside, installed from their sources, and how the bench is told of them.
fn beside() -> Result<Vec<String>> {
    let root = run::target_directory()?.join("tools");
    let mut found = Vec::new();
    for (program, package) in [("bore", "bore-cli"), ("rathole", "rathole")] {
        let binary = root.join("bin").join(program);
        if !binary.exists() {
            eprintln!("{program} is missing: cargo install {package}");
            let mut install = Command::new("cargo");
            install.args(["install", "--quiet", package]).arg("--root").arg(&root);
            match package {
                // What it would need OpenSSL for is not measured; its lock is too old for today's compiler.
                "rathole" => _ = install.args(["--no-default-features", "--features", "server,client,noise"]),
                _ => _ = install.arg("--locked"),
            }
            if let Err(error) = run::succeed(&mut install) {
                eprintln!("{program} is left out: {error}");
                continue;
            }
        }
        found.extend([format!("--{program}"), binary.display().to_string()]);
    }
    Ok(found)
}

/// Builds both and runs `tenure-bench` with `args`. In one build: apart, each would compile all they share anew, for its
/// own choice of features.
pub(crate) fn measure(args: &[String]) -> Result<ExitCode> {
    let both = ["build", "--release", "--quiet", "--package", "tenure-cli", "--package", "tenure-bench"];
    run::succeed(&mut run::cargo(&both))?;
    let bench = run::target_directory()?.join("release").join("tenure-bench");
    run::forward(Command::new(bench).args(args))
}
