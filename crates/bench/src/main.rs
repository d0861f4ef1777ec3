//! Measurements of Tenure against its floors.
//!
//! What this is for: two questions that decide how many sessions one machine carries. `sessions`: what does an
//! idle session cost in memory and processor time, beside a bare WebSocket that does nothing? `storm`: when
//! every socket breaks at once, how long until everybody is back, and what is the time spent on?
//!
//! What is measured is the real thing: the `tenure` binary as it ships, in a process of its own, with its
//! embedded store and default intervals. The load is the Rust SDK, in this process. `cargo xtask bench` builds
//! the binary first.
//!
//! What it never does: decide whether a figure is good. It prints what it saw; floors are measured in the same
//! run, so that ratios hold where digits do not.
//!
//! Where to read next: [`sessions`], [`storm`], then [`fleet`] for the load and [`proc`] for the readings.

mod broker;
mod crypto;
mod fleet;
mod floor;
mod proc;
mod report;
mod sessions;
mod storm;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Measure the `tenure` binary as it ships.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What an idle session costs: memory and processor time, beside a bare WebSocket
    Sessions(sessions::Args),
    /// How soon everybody is back when all sockets break at once, and when the broker is killed
    Storm(storm::Args),
    /// The bare WebSocket server that `sessions` compares with
    #[command(hide = true)]
    FloorServer,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Sessions(args) => block_on(sessions::run(args)),
        Command::Storm(args) => block_on(storm::run(args)),
        Command::FloorServer => block_on(floor::serve()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `work` on a runtime like the one that the `tenure` binary uses.
fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let outcome = runtime.block_on(work);
    // Ten thousand sessions have nothing to say to a broker that is gone.
    runtime.shutdown_background();
    outcome
}
