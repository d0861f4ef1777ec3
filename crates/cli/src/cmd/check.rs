//! `tenure check`: whether the data of a broker is sound.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use hyper::{Method, StatusCode};
use indicatif::{HumanBytes, ProgressBar};
use serde_json::json;
use tenure_store::{Sqlite, StoreError};

use super::Where;
use crate::exit::Failure;
use crate::home::Home;
use crate::operator::Operator;
use crate::output::{line, println};

/// The route.
const CHECK: &str = "/v1/admin/check";
/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(200);

/// Check the store of a broker.
///
/// Every page and every value is read, and every message is held against its checksum and its record; each finding is a
/// line. Without --running it needs the broker stopped, and also finds what its log has lost. With --running the broker checks
/// its rows itself, beside its work, and this waits for that; it needs the operator's token, as `tenure drain` does. Exit code 0:
/// sound; 1: there are findings; 2: it could not be checked, because there is no store or a broker has it open.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure check --data-dir ./tenure-data || echo restore the backup
  tenure check --running")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Have a running broker do it
    #[arg(long)]
    running: bool,
    /// Where the store is: --data-dir ./tenure-data [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.running {
        let operator = Operator::find(&args.at, args.data_dir.as_deref())?;
        return crate::block_on(running(args, &operator));
    }
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
    }
    verdict(args, &findings, &name.to_string(), &format!("{name}, {}", HumanBytes(size)))
}

/// Prints findings, unless that was done as JSON, and says how many there are.
fn verdict(args: &Args, findings: &[String], place: &str, sound: &str) -> Result<(), Failure> {
    if !args.json {
        findings.iter().for_each(|finding| println(&line(finding)));
    }
    match findings.len() {
        0 if args.json => Ok(()),
        0 => {
            println(&format!("sound: {sound}"));
            Ok(())
        }
        1 => Err(Failure::Failed(format!("1 finding in {place}"))),
        many => Err(Failure::Failed(format!("{many} findings in {place}"))),
    }
}

/// Has the broker check its store, and waits for that.
async fn running(args: &Args, operator: &Operator) -> Result<(), Failure> {
    let ask = async |method| {
        let answer = operator.call(method, CHECK, None).await;
        let answer = answer.map_err(|silence| operator.unreached(&silence))?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(operator.unmanaged());
        }
        answer.good()
    };
    let spinner = ProgressBar::new_spinner().with_message("the broker checks its store");
    spinner.enable_steady_tick(Duration::from_millis(120));
    let mut state = ask(Method::POST).await?;
    while state["running"] == true {
        tokio::time::sleep(LOOK).await;
        state = ask(Method::GET).await?;
    }
    spinner.finish_and_clear();
    let last = &state["last"];
    if let Some(error) = last["failed"].as_str() {
        return Err(Failure::Usage(format!("the store cannot be checked: {}", line(error))));
    }
    if args.json {
        println(&last.to_string());
    }
    let texts = last["findings"].as_array().into_iter().flatten().filter_map(|text| text.as_str());
    let findings: Vec<String> = texts.map(str::to_owned).collect();
    verdict(args, &findings, "the store of the broker", "the store of the broker")
}
