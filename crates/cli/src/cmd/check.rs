//! `tenure check`: whether the data of a broker is sound.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use indicatif::{HumanBytes, ProgressBar};
use serde_json::json;
use tenure_store::{Sqlite, StoreError};

use crate::exit::Failure;
use crate::home::Home;
use crate::output::{line, println};

/// Check the store of a broker that is not running.
///
/// Every page and every value is read, and every message is held against its checksum and its record; each finding is a
/// line. Exit code 0: sound; 1: there are findings; 2: it could not be checked, because there is no store or a broker has
/// it open.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure check --data-dir ./tenure-data || echo restore the backup")]
pub(crate) struct Args {
    /// Where the store is: --data-dir ./tenure-data [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => Home::find()?.broker_dir(),
    };
    let name = dir.display();
    let file = dir.join("tenure.db");
    // Opening would make one. Where the mark is, there was one.
    let size = match std::fs::metadata(&file) {
        Ok(file) => file.len(),
        Err(_) if dir.join("tenure.mark").exists() => 0,
        Err(error) => return Err(Failure::Usage(format!("there is no store in {name}: {error}"))),
    };
    let spinner = ProgressBar::new_spinner().with_message(format!("checking {}", HumanBytes(size)));
    spinner.enable_steady_tick(Duration::from_millis(120));
    let checked = Sqlite::findings(&dir);
    spinner.finish_and_clear();
    let findings = match checked {
        Ok(findings) => findings,
        // So damaged that nothing more can be said.
        Err(StoreError::Corrupt(finding)) => vec![finding],
        Err(StoreError::Locked) => {
            return Err(Failure::Usage(format!("a broker has {name} open; stop it, then check again")));
        }
        Err(error) => return Err(Failure::Usage(format!("{name} cannot be checked: {error}"))),
    };
    if args.json {
        let data_dir = name.to_string();
        println(&json!({"dataDir": data_dir, "bytes": size, "findings": findings}).to_string());
    } else {
        findings.iter().for_each(|finding| println(&line(finding)));
    }
    match findings.len() {
        0 if args.json => Ok(()),
        0 => {
            println(&format!("sound: {name}, {}", HumanBytes(size)));
            Ok(())
        }
        1 => Err(Failure::Failed(format!("1 finding in {name}"))),
        many => Err(Failure::Failed(format!("{many} findings in {name}"))),
    }
}
