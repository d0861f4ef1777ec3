//! `cargo xtask bench`: measurements of the `tenure` binary as it ships.
//!
//! The binary is built first, in release, because it is what gets measured; `tenure-bench` starts it and
//! drives it from outside. `compare` is a workspace of its own, `bench/compare`, with the client libraries of the peers that we are
//! compared with; [`crate::peers`] installs those, `bench test` tests it.

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::{peers, run};

/// Builds `tenure`, then hands the arguments to `tenure-bench`.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    match args.first().map(String::as_str) {
        None => bail!(
            "say what to measure: sessions, services, relay, storm, accept, growth, fanout, slow, daemon, offline or \
             compare; `setup` installs what `compare` needs, `test` tests it"
        ),
        Some("setup") => peers::setup(&args[1..]),
        Some("compare") => compare(args),
        Some("test") => test(&args[1..]),
        Some("relay") => measure(&[args, &beside()?].concat()),
        Some(_) => measure(args),
    }
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
    run::forward(released("tenure-bench")?.args(args))
}

/// The same with the clients of our peers, and what [`peers::setup`] put where they are looked for.
fn compare(args: &[String]) -> Result<ExitCode> {
    run::succeed(&mut run::cargo(&["build", "--release", "--quiet", "--package", "tenure-cli"]))?;
    run::succeed(&mut beside_peers(&["build", "--release", "--quiet", "--locked"]))?;
    let mut command = released("tenure-compare")?;
    command.args(args);
    if !args.iter().any(|arg| arg.starts_with("--peers")) {
        command.arg("--peers").arg(peers::folder()?);
    }
    if !args.iter().any(|arg| arg.starts_with("--page")) {
        command.arg("--page").arg(run::target_directory()?.join("bench-compare.html"));
    }
    run::forward(&mut command)
}

/// Formats, lints and tests of `bench/compare`, which `cargo xtask test` does not build.
fn test(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`bench test` takes no arguments, got `{arg}`");
    }
    run::succeed(&mut beside_peers(&["fmt", "--", "--check"]))?;
    run::succeed(&mut beside_peers(&["clippy", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    run::succeed(&mut beside_peers(&["test", "--locked"]))?;
    Ok(ExitCode::SUCCESS)
}

/// Cargo in the workspace of `bench/compare`.
fn beside_peers(args: &[&str]) -> Command {
    let mut command = run::cargo(args);
    command.current_dir(run::root().join("bench/compare"));
    command
}

fn released(program: &str) -> Result<Command> {
    Ok(Command::new(run::target_directory()?.join("release").join(program)))
}
