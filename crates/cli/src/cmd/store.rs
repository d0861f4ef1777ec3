//! `tenure store`: what an operator does with the files of a broker that does not run.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;
use tenure_store::{Sqlite, StoreError};

use crate::exit::Failure;
use crate::home::Home;
use crate::output::println;

/// Look after the store of a broker that is not running.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start again with what is left of a store that lost acknowledged data.
    ///
    /// Without --accept-loss it only says what is missing. With it, what is left is what counts from now on: the write-ahead
    /// log and the high-water mark are kept aside, under names that end in `.lost-` and a date. Try first to put missing files
    /// back, or to restore a backup. Exit code 0: nothing is missing, or the loss is accepted; 1: data is missing and the loss
    /// is not accepted; 2: there is no store, a broker has it open, or the database itself is damaged.
    #[command(after_help = "Example: tenure store recover --data-dir ./tenure-data --accept-loss")]
    Recover(Recover),
}

#[derive(Debug, ClapArgs)]
struct Recover {
    /// Go on without what is missing
    #[arg(long)]
    accept_loss: bool,
    /// Where the store is: --data-dir ./tenure-data [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Command::Recover(args) = &args.command;
    let dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => Home::find()?.broker_dir(),
    };
    let name = dir.display();
    if !["tenure.db", "tenure.mark"].iter().any(|file| dir.join(file).exists()) {
        return Err(Failure::Usage(format!(
            "there is no store in {name}; name its directory with --data-dir"
        )));
    }
    let refused = |error: StoreError| match error {
        StoreError::Locked => Failure::Usage(format!("a broker has {name} open; stop it, then try again")),
        error => Failure::Usage(format!("{name}: {error}")),
    };
    let nothing = || {
        let told = json!({"lost": false}).to_string();
        println(if args.json { &told } else { "nothing is missing: there is nothing to accept" });
    };
    if !args.accept_loss {
        return match Sqlite::lost(&dir).map_err(refused)? {
            None => {
                nothing();
                Ok(())
            }
            Some(loss) => {
                let told = json!({"lost": true, "accepted": false, "messages": loss.messages, "writes": loss.writes});
                if args.json {
                    println(&told.to_string());
                }
                Err(Failure::Failed(format!("{loss}; accept that with --accept-loss")))
            }
        };
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let Some(done) = Sqlite::accept_loss(&dir, &now.to_string()).map_err(refused)? else {
        nothing();
        return Ok(());
    };
    let kept: Vec<String> = done.kept.iter().map(|path| path.display().to_string()).collect();
    if args.json {
        let (messages, writes) = (done.loss.messages, done.loss.writes);
        let told =
            json!({"lost": true, "accepted": true, "messages": messages, "writes": writes, "kept": kept});
        println(&told.to_string());
    } else {
        println(&format!("accepted: {}", done.loss));
        kept.iter().for_each(|path| println(&format!("kept: {path}")));
    }
    Ok(())
}
