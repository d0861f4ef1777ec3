//! `tenure daemon down`: end the daemon in good order.

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_daemon::{Holder, holder};

use crate::exit::Failure;
use crate::home::Home;
use crate::output::println;
use crate::span;

/// How often somebody looks whether it is gone.
const LOOK: Duration = Duration::from_millis(50);

/// End the daemon, and return when it is gone.
///
/// Requests are answered to their end, and what was taken stays on disk for the next start. If none runs, that is said
/// and is fine. Exit code 1 if it does not end in time.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// How long to wait for it to end
    #[arg(long, value_name = "TIME", value_parser = span::parse, default_value = "30s")]
    timeout: Duration,
    /// Print JSON: {"stopped": true}, or false if none ran
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let home = Home::find()?;
    let who = || holder(home.path()).map_err(|error| Failure::Failed(error.to_string()));
    let Some(first) = who()? else {
        if args.json {
            println(&json!({"stopped": false}).to_string());
        } else {
            eprintln!("no daemon runs in {}", home.path().display());
        }
        return Ok(());
    };
    end(&first)?;
    let since = Instant::now();
    while who()?.is_some_and(|now| now == first) {
        if since.elapsed() >= args.timeout {
            return Err(Failure::Failed(format!(
                "{first} was asked to end and still runs; wait, or kill it: what it answered is on disk"
            )));
        }
        std::thread::sleep(LOOK);
    }
    if args.json {
        println(&json!({"stopped": true, "pid": first.pid}).to_string());
    } else {
        eprintln!("the daemon is down: {first} has ended");
    }
    Ok(())
}

/// Asks the process to end. While it holds the lock, its number is no other process's.
fn end(holder: &Holder) -> Result<(), Failure> {
    let pid = holder.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::Failed(format!("{holder} holds the lock; try again")))?;
    match kill_process(pid, Signal::TERM) {
        // It was faster.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::Failed(format!("end {holder}: {error}"))),
    }
}
