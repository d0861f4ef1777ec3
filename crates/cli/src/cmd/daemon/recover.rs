//! `tenure daemon recover`: save what can be read of a damaged outbox.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use indicatif::ProgressBar;
use serde_json::json;
use tenure_daemon::outbox::{Lost, Salvage};
use tenure_daemon::{Recovered, recover};

use crate::exit::Failure;
use crate::home::Home;
use crate::output::{print, println, safe, sentence, table};

/// Save what can be read of a damaged outbox into a new one.
///
/// Every row that is whole and matches its checksum is taken over as it was. The damaged file is kept, under a dated name;
/// nothing is deleted. Needs the daemon ended. Exit code 0 if the outbox is sound or everything was saved, 1 if something
/// was lost: those rows are printed.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let home = Home::find()?.absolute()?;
    let spinner = ProgressBar::new_spinner().with_message("reading the outbox");
    spinner.enable_steady_tick(Duration::from_millis(120));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
    let recovered = recover(home.path(), u64::try_from(now).unwrap_or(u64::MAX));
    spinner.finish_and_clear();
    match recovered.map_err(|error| Failure::Failed(error.to_string()))? {
        Recovered::Nothing => {
            if args.json {
                println(&json!({"sound": true, "saved": 0, "lost": []}).to_string());
            }
            eprintln!("there is no outbox in {}: nothing to save", home.path().display());
            Ok(())
        }
        Recovered::Sound => {
            if args.json {
                println(&json!({"sound": true, "lost": []}).to_string());
            }
            eprintln!("the outbox is sound, and left as it is");
            Ok(())
        }
        Recovered::Saved { salvage, why, kept } => {
            if args.json {
                println(&report(&salvage, &why, &kept.display().to_string()));
            } else {
                eprintln!("the outbox was damaged: {}", sentence(&why));
                eprintln!("it is kept as {}", kept.display());
                println(&format!("saved {}, lost {}", salvage.saved, count(&salvage)));
                if !salvage.lost.is_empty() {
                    let rows: Vec<Vec<String>> = salvage.lost.iter().map(row).collect();
                    print(&table(&["ROW", "STATUS", "ID", "WHY"], &rows));
                }
            }
            verdict(&salvage)
        }
    }
}

/// Rows that are lost, whether their numbers are known or not.
fn count(salvage: &Salvage) -> u64 {
    salvage.lost.len() as u64 + salvage.missing
}

fn verdict(salvage: &Salvage) -> Result<(), Failure> {
    match (count(salvage), salvage.maybe_more) {
        (0, false) => Ok(()),
        (0, true) => Err(Failure::Failed(
            "nobody can say whether there were more rows: the lists of them are damaged too".to_owned(),
        )),
        (lost, false) => Err(Failure::Failed(format!("{lost} rows are lost; send them again if you must"))),
        (lost, true) => Err(Failure::Failed(format!(
            "{lost} rows are lost, and maybe more: the lists of them are damaged too"
        ))),
    }
}

fn row(lost: &Lost) -> Vec<String> {
    let text = |text: &Option<String>| safe(text.as_deref().unwrap_or("?"));
    vec![lost.row.to_string(), text(&lost.status), text(&lost.client_message_id), sentence(&lost.why)]
}

fn report(salvage: &Salvage, why: &str, kept: &str) -> String {
    let lost = |lost: &Lost| json!({"row": lost.row, "status": lost.status, "clientMessageId": lost.client_message_id, "why": lost.why});
    let lost: Vec<_> = salvage.lost.iter().map(lost).collect();
    let (more, missing) = (salvage.maybe_more, salvage.missing);
    json!({"sound": false, "why": why, "kept": kept, "saved": salvage.saved, "lost": lost, "missing": missing,
           "maybeMore": more})
    .to_string()
}
