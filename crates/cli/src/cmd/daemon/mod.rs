//! `tenure daemon`: the daemon of this machine, from its start to its end.

mod config;
mod down;
mod log;
mod logs;
mod recover;
mod service;
mod session;
mod status;
mod unit;
mod up;

use clap::{Args as ClapArgs, Subcommand};

use crate::exit::Failure;

/// Run the daemon of this machine: what is handed to it is on disk before the answer, and reaches the broker once.
///
/// One for each user. It keeps everything under TENURE_HOME and reads daemon.toml in the configuration directory:
/// TENURE_HOME if that is set, else ~/.config/tenure. While it runs, send, inbox and peers go through it.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure daemon up                       # in the background; ends with `tenure daemon down`
  tenure daemon status --json
  tenure daemon logs -f
  tenure daemon install-service          # start it with every login, by systemd or launchd
  tenure daemon recover                  # when the outbox is damaged: save what can be read")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(Box<up::Args>),
    Down(down::Args),
    Status(status::Args),
    Logs(logs::Args),
    Session(session::Args),
    InstallService(service::Install),
    Uninstall(service::Uninstall),
    Recover(recover::Args),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Up(args) => up::run(&args),
        Verb::Down(args) => down::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Logs(args) => logs::run(&args),
        Verb::Session(args) => session::run(&args),
        Verb::InstallService(args) => service::install(&args),
        Verb::Uninstall(args) => service::uninstall(&args),
        Verb::Recover(args) => recover::run(&args),
    }
}
