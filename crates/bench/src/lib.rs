//! Measurements of Tenure against its floors.
//!
//! What this is for: the questions that decide what one machine carries, and whether it may be trusted with it.
//! `sessions`: what does an idle session cost in memory and processor time, beside a bare WebSocket that does
//! nothing? `storm`: when every socket breaks at once, how long until everybody is back, and what is the time spent
//! on? `accept`: how many messages a second are safe on the disk, beside the disk, the store and a bare WebSocket?
//! `growth`: what do ten million stored messages cost? `fanout`: what does a reader cost the sender? `daemon`: what
//! does a program on this machine wait for? `slow`: what becomes of slow readers? `offline`: how soon is a daemon's backlog at the broker, and who waits for
//! it? `relay`: what does a byte, a request or a stream cost through the relay? And `kill`: is anything lost or doubled when the broker is killed, again and again? `daemon-kill` asks the same
//! of daemons. `restart`: does anybody notice that the broker is replaced? `drops`: does everybody get everything
//! whose network comes and goes?
//!
//! What is measured is the real thing: the `tenure` binary as it ships, in a process of its own, with its
//! embedded store and default intervals. The load of `sessions`, `storm` and `kill` is the Rust SDK, in this
//! process; where a message's cost is the question it is a client with nothing to it ([`wire`]). `cargo xtask
//! bench` builds the binary first.
//!
//! What it never does: decide whether a figure is good. It prints what it saw; floors are measured in the same
//! run, so that ratios hold where digits do not. Only `kill`, `daemon-kill`, `restart` and `drops` have an opinion: nothing
//! lost, nothing doubled, nobody gone.
//!
//! Where to read next: [`sessions`], [`storm`], [`accept`], [`kill`]; then [`fleet`] and [`load`] for the loads,
//! [`commit`] for the floors and [`proc`] for the readings. Whether we are ahead of what people use today is asked by `bench/compare`, a
//! workspace of its own that uses the parts marked hidden here: the client libraries of its peers are none of the product's.

mod accept;
mod attack;
#[doc(hidden)]
pub mod broker;
#[doc(hidden)]
pub mod commit;
mod crypto;
mod daemon;
pub mod daemon_kill;
mod daemon_send;
pub mod drops;
#[doc(hidden)]
pub mod fanout;
#[doc(hidden)]
pub mod fleet;
#[doc(hidden)]
pub mod floor;
mod growth;
mod http;
#[doc(hidden)]
pub mod ids;
pub mod kill;
#[doc(hidden)]
pub mod load;
mod offline;
#[doc(hidden)]
pub mod proc;
mod relay;
#[doc(hidden)]
pub mod report;
pub mod restart;
#[doc(hidden)]
pub mod sample;
mod services;
mod sessions;
mod slow;
mod stored;
mod storm;
mod tunnels;
#[doc(hidden)]
pub mod watcher;
#[doc(hidden)]
pub mod wire;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

pub use broker::BrokerArgs;

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
    /// What services cost that are renewed all the time, and how soon it shows that a publisher died
    Services(services::Args),
    /// How soon everybody is back when all sockets break at once, and when the broker is killed
    Storm(storm::Args),
    /// Durable accepts a second, beside the disk, the store and a bare WebSocket
    Accept(accept::Args),
    /// What stored messages cost: accepts and starts with an empty store and a full one
    Growth(growth::Args),
    /// What readers cost a sender, and how fast they are served
    Fanout(fanout::Args),
    /// Readers of every speed: who is kept, who is let go, and what they cost the broker
    Slow(slow::Args),
    /// Hoarders of memory and of connections: what they cost a broker with few open files, and who comes back meanwhile
    Attack(attack::Args),
    /// A day's backlog of a daemon: how fast it drains, in order, and what a new send waits meanwhile
    Offline(offline::Args),
    /// Bytes, requests and streams through the relay, beside a direct connection and other tunnels
    Relay(relay::Args),
    /// Kill the broker under load, again and again: nothing is lost, nothing comes twice
    Kill(kill::Args),
    /// Durable POST /v1/send a second beside bare SQLite, and one `tenure send` beside a process that does nothing
    Daemon(daemon_send::Args),
    /// Kill daemons and broker under load, again and again: nothing taken is lost, nothing comes twice
    DaemonKill(daemon_kill::Args),
    /// Replace the broker under load, drained or killed: nobody blinks, nothing is lost, nothing comes twice
    Restart(restart::Args),
    /// Readers whose network comes and goes during a steady publish: who gets what, and how late
    Drops(drops::Args),
    /// A broker and a daemon that listens on loopback TCP, until stdin ends
    #[command(hide = true)]
    DaemonHouse(BrokerArgs),
    /// The bare WebSocket server that others are compared with
    #[command(hide = true)]
    FloorServer(floor::Args),
}

/// The program.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Sessions(args) => block_on(sessions::run(args)),
        Command::Services(args) => block_on(services::run(args)),
        Command::Storm(args) => block_on(storm::run(args)),
        Command::Accept(args) => accept::run(&args),
        Command::Growth(args) => growth::run(&args),
        Command::Fanout(args) => fanout::run(&args),
        Command::Slow(args) => block_on(slow::run(args)),
        Command::Attack(args) => block_on(attack::run(args)),
        Command::Offline(args) => block_on(offline::run(args)),
        Command::Relay(args) => block_on(relay::run(args)),
        Command::Kill(args) => block_on(killed(args)),
        Command::Daemon(args) => daemon_send::run(&args),
        Command::DaemonKill(args) => block_on(daemon_killed(args)),
        Command::Restart(args) => block_on(restarted(args)),
        Command::Drops(args) => block_on(dropped(args)),
        Command::DaemonHouse(args) => block_on(async move { daemon::house(&args).await }),
        Command::FloorServer(args) => block_on(floor::serve(args)),
    };
    report_outcome(outcome)
}

/// Says what went wrong, if something did.
#[doc(hidden)]
pub fn report_outcome(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn killed(args: kill::Args) -> Result<()> {
    let outcome = kill::run(&args).await?;
    println!("{outcome}");
    anyhow::ensure!(outcome.is_good(), "a promise was broken");
    Ok(())
}

async fn daemon_killed(args: daemon_kill::Args) -> Result<()> {
    let outcome = daemon_kill::run(&args).await?;
    println!("{outcome}");
    anyhow::ensure!(outcome.is_good(), "a promise was broken");
    Ok(())
}

async fn restarted(args: restart::Args) -> Result<()> {
    let outcome = restart::run(&args).await?;
    println!("{outcome}");
    anyhow::ensure!(outcome.is_good(), "a promise was broken");
    Ok(())
}

async fn dropped(args: drops::Args) -> Result<()> {
    let outcome = drops::run(&args).await?;
    println!("{outcome}");
    anyhow::ensure!(outcome.is_good(), "a promise was broken");
    Ok(())
}

/// Runs `work` with a thread for each core, floors too: one fewer, as `tenure` has, would halve what the echo can do with
/// thousands of frames under way, and a floor is the best that can be had.
#[doc(hidden)]
pub fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let outcome = runtime.block_on(work);
    // Ten thousand sessions have nothing to say to a broker that is gone.
    runtime.shutdown_background();
    outcome
}
