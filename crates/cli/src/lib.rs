//! The `tenure` command: every subcommand, and what they share.
//!
//! What this crate is for: the terminal. stdout is data, stderr is talk; `--json` is for programs; exit codes
//! are documented in [`exit`].
//!
//! What it never does: speak the protocol itself. Commands use the SDK, the broker's own crate, and nothing
//! that another program could not.
//!
//! Where to read next: one file per command in `cmd`.

/// In place of the standard library's, which panics when stderr is closed or a file on a full disk: talk that nobody can
/// hear is no reason to end what a command is for.
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::output::talk(format_args!($($words)*)) };
}

mod cmd;
mod events;
pub mod exit;
pub mod flaky;
mod home;
mod local;
mod log;
mod notify;
mod operator;
mod output;
mod reaper;
mod signals;
mod span;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::Failure;

/// Sessions that outlive their sockets.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 fine; 1 failed; 2 wrong usage; 3 another process took the session over; \
                        4 the broker or the daemon refused; 5 the broker or the daemon cannot be reached; 6 not in time; \
                        7 the run failed or was cancelled; 130 or 143 ended at once by a second signal."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker: on loopback, open, with an embedded store, unless told otherwise
    Broker(Box<cmd::broker::Args>),
    /// See three sessions live through twenty broken connections
    Demo(cmd::demo::Args),
    /// Hold a session in the foreground and print what it sees
    Session(cmd::session::Args),
    /// List who is here
    Peers(cmd::peers::Args),
    Services(cmd::services::Args),
    /// Say how the broker is
    Status(cmd::status::Args),
    // The rest speak for themselves: what they say of their arguments is also their help.
    Send(Box<cmd::send::Args>),
    Inbox(cmd::inbox::Args),
    Call(Box<cmd::call::Args>),
    Serve(cmd::serve::Args),
    Runs(cmd::runs::Args),
    Sub(cmd::sub::Args),
    Pub(cmd::publish::Args),
    History(cmd::history::Args),
    Topics(cmd::topics::Args),
    Groups(cmd::groups::Args),
    Dead(cmd::dead::Args),
    Check(cmd::check::Args),
    Store(cmd::store::Args),
    Drain(cmd::drain::Args),
    Expose(cmd::expose::Args),
    Connect(cmd::connect::Args),
    Mesh(cmd::mesh::Args),
    Invite(cmd::invite::Args),
    Join(cmd::join::Args),
    Members(cmd::members::Args),
    Token(cmd::token::Args),
    Kick(cmd::kick::Args),
    Ban(cmd::ban::Args),
    Unban(cmd::ban::UnbanArgs),
    Settings(cmd::settings::Args),
    Audit(cmd::audit::Args),
    Clock(cmd::clock::Args),
    Daemon(Box<cmd::daemon::Args>),
    Outbox(cmd::outbox::Args),
    /// Show the keys of this machine
    Keys(cmd::keys::Args),
    /// Kill what is named on standard input when that ends: the process beside `serve`
    #[command(hide = true)]
    Reap,
}

/// Parses the command line, runs the command, gives its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Broker(args) => cmd::broker::run(*args),
        Command::Demo(args) => cmd::demo::run(args),
        Command::Session(args) => cmd::session::run(args),
        Command::Peers(args) => cmd::peers::run(args),
        Command::Services(args) => cmd::services::run(args),
        Command::Status(args) => cmd::status::run(args),
        Command::Send(args) => cmd::send::run(*args),
        Command::Inbox(args) => cmd::inbox::run(args),
        Command::Call(args) => cmd::call::run(*args),
        Command::Serve(args) => cmd::serve::run(args),
        Command::Runs(args) => cmd::runs::run(args),
        Command::Sub(args) => cmd::sub::run(args),
        Command::Pub(args) => cmd::publish::run(args),
        Command::History(args) => cmd::history::run(args),
        Command::Topics(args) => cmd::topics::run(args),
        Command::Groups(args) => cmd::groups::run(args),
        Command::Dead(args) => cmd::dead::run(args),
        Command::Check(args) => cmd::check::run(&args),
        Command::Store(args) => cmd::store::run(&args),
        Command::Drain(args) => cmd::drain::run(&args),
        Command::Expose(args) => cmd::expose::run(args),
        Command::Connect(args) => cmd::connect::run(args),
        Command::Mesh(args) => cmd::mesh::run(&args),
        Command::Invite(args) => cmd::invite::run(&args),
        Command::Join(args) => cmd::join::run(args),
        Command::Members(args) => cmd::members::run(&args),
        Command::Token(args) => cmd::token::run(&args),
        Command::Kick(args) => cmd::kick::run(&args),
        Command::Ban(args) => cmd::ban::run(&args),
        Command::Unban(args) => cmd::ban::lift(&args),
        Command::Settings(args) => cmd::settings::run(&args),
        Command::Audit(args) => cmd::audit::run(&args),
        Command::Clock(args) => cmd::clock::run(&args),
        Command::Daemon(args) => cmd::daemon::run(*args),
        Command::Outbox(args) => cmd::outbox::run(&args),
        Command::Keys(args) => cmd::keys::run(&args),
        Command::Reap => reaper::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tenure: {}", output::lines(&failure.to_string()));
            failure.code()
        }
    }
}

/// Runs `work` on a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime()?.block_on(work)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers()?)
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("start the runtime: {error}")))
}

/// Worker threads that may be asked for.
const WORKERS_MAX: usize = 1_024;

/// One for each core but one: that is for the store, which writes in a thread of its own. `TOKIO_WORKER_THREADS` says otherwise.
fn workers() -> Result<usize, Failure> {
    let Some(said) = std::env::var_os("TOKIO_WORKER_THREADS") else {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok((cores - 1).clamp(1, WORKERS_MAX));
    };
    let count =
        said.to_str().and_then(|said| said.parse().ok()).filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| Failure::Usage(format!("TOKIO_WORKER_THREADS is a number from 1 to {WORKERS_MAX}")))
}
