//! `tenure runs`: how a run stands.

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;
use tenure_client::proto::ids::RunId;
use tenure_client::proto::run::{RunGetResult, RunState};

use super::Where;
use crate::exit::Failure;
use crate::output::{println, sentence};

/// Ask how a run stands.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print where a run of this member, or one that it answers, stands; an ended one is known for a day
    Get {
        /// The run, as `tenure call --json` prints it
        #[arg(value_parser = run_id)]
        id: RunId,
        /// Print everything that was answered as JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask for a run of this member to be stopped
    Cancel {
        /// The run
        #[arg(value_parser = run_id)]
        id: RunId,
    },
}

fn run_id(text: &str) -> Result<RunId, String> {
    text.parse().map_err(|_| "a run is named by a ULID: 26 letters and digits".to_owned())
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    crate::block_on(async move {
        let guest = args.at.ask("tenure runs").await?;
        match args.verb {
            Verb::Get { id, json } => {
                let outcome = guest.session.run_get(id).await;
                let run = guest.leave_with(outcome).await?;
                println(&if json { json!(run).to_string() } else { line(&run) });
            }
            Verb::Cancel { id } => {
                let outcome = guest.session.run_cancel(id).await;
                guest.leave_with(outcome).await?;
            }
        }
        Ok(())
    })
}

fn line(run: &RunGetResult) -> String {
    let state = match run.state {
        RunState::Queued => "queued",
        RunState::Running => "running",
        RunState::Ok => "ok",
        RunState::Error => "error",
        RunState::Cancelled => "cancelled",
    };
    let said = match (&run.error, &run.result) {
        (Some(error), _) => format!("  {}", sentence(&error.to_string())),
        (None, Some(result)) if !result.is_null() => format!("  {result}"),
        _ => String::new(),
    };
    format!("{state}  {} pieces{said}", run.last_seq.get())
}
