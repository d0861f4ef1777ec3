//! `tenure drain`: stop a broker without surprise.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_broker::{DEADLINE_MAX_MS, RESTART_IN_MAX_MS};
use tenure_client::proto::limits::REASON_BYTES;

use super::Where;
use super::status::duration;
use crate::exit::Failure;
use crate::operator::{Operator, Silence};
use crate::output::{line, println};
use crate::span;

/// The route.
const DRAIN: &str = "/v1/admin/drain";
/// How often to look whether the broker is gone.
const LOOK: Duration = Duration::from_millis(50);
/// How long after its deadline a broker may take to close its store.
const AFTER: Duration = Duration::from_secs(30);

/// Stop a broker in good order: everybody is told when to come back, what is on its way arrives, nobody blinks.
///
/// Asks with the operator's token: TENURE_ADMIN_TOKEN, or the one that the broker keeps in its data directory. Returns
/// when the broker is gone, or another is in its place; exit code 6 when that takes too long. That one that is gone has ended in
/// good order, and was not killed meanwhile, only its own log tells.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure drain --restart-in 5s && tenure broker")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Promise that a broker is back after this time: --restart-in 5s, at most 1h; without it none is promised
    #[arg(long, value_name = "TIME", value_parser = restart_in)]
    restart_in: Option<Duration>,
    /// How long what is on its way may take, at most 5m
    #[arg(long, value_name = "TIME", value_parser = deadline, default_value = "3s")]
    deadline: Duration,
    /// Why, as every session is told, in at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "maintenance", value_parser = reason)]
    reason: String,
    /// Where the broker keeps its state, and the operator's token [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn restart_in(text: &str) -> Result<Duration, String> {
    within(text, RESTART_IN_MAX_MS, "a restart is promised for within 1h")
}

fn deadline(text: &str) -> Result<Duration, String> {
    within(text, DEADLINE_MAX_MS, "what is on its way may take at most 5m")
}

fn within(text: &str, most_ms: u64, else_say: &str) -> Result<Duration, String> {
    let time = span::parse(text)?;
    if time > Duration::from_millis(most_ms) { Err(else_say.to_owned()) } else { Ok(time) }
}

fn reason(text: &str) -> Result<String, String> {
    if text.len() > REASON_BYTES {
        return Err(format!("a reason has at most {REASON_BYTES} bytes"));
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let operator = Operator::find(&args.at, args.data_dir.as_deref())?;
    crate::block_on(drain(args, &operator))
}

async fn drain(args: &Args, operator: &Operator) -> Result<(), Failure> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut asked = json!({"reason": args.reason, "deadlineMs": ms(args.deadline)});
    if let Some(time) = args.restart_in {
        asked["restartInMs"] = json!(ms(time));
    }
    let began = Instant::now();
    let answer = operator.call(Method::POST, DRAIN, Some(&asked)).await;
    let answer = answer.map_err(|silence| operator.unreached(&silence))?;
    if answer.status == StatusCode::NOT_FOUND {
        return Err(operator.unmanaged());
    }
    let mut under_way = answer.good()?;
    let deadline = Duration::from_millis(under_way["deadlineMs"].as_u64().unwrap_or_default());
    while !is_gone(operator).await {
        if began.elapsed() > deadline + AFTER {
            return Err(Failure::Late(
                "the broker was told to stop and is still there; see its log".to_owned(),
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
    let took = ms(began.elapsed());
    if args.json {
        under_way["event"] = json!("drained");
        under_way["tookMs"] = json!(took);
        println(&under_way.to_string());
        return Ok(());
    }
    println(&told(&under_way, took));
    Ok(())
}

/// Whether the broker that was asked is not there any more.
async fn is_gone(operator: &Operator) -> bool {
    match operator.call(Method::GET, DRAIN, None).await {
        // It listens until its store is closed, unless it was killed: that cannot be told from here.
        Err(Silence::Nobody) => true,
        Err(Silence::Lost(_)) => false,
        Ok(answer) => answer.body["draining"] != true,
    }
}

fn told(under_way: &Value, took: u64) -> String {
    let sessions = match under_way["sessions"].as_u64().unwrap_or_default() {
        1 => "1 session was".to_owned(),
        many => format!("{many} sessions were"),
    };
    let already = match under_way["begun"] == true {
        true => String::new(),
        false => {
            format!(" It was stopping already ({}).", line(under_way["reason"].as_str().unwrap_or_default()))
        }
    };
    format!(
        "{sessions} told; the broker was gone after {}; its log says how it ended.{already}",
        duration(took)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_many_were_told_and_who_was_first() {
        let one = json!({"begun": true, "sessions": 1});
        assert_eq!(
            told(&one, 412),
            "1 session was told; the broker was gone after 412 ms; its log says how it ended."
        );
        let late = json!({"begun": false, "sessions": 3, "reason": "terminated"});
        assert_eq!(
            told(&late, 2_000),
            "3 sessions were told; the broker was gone after 2 s; its log says how it ended. It was stopping already (terminated)."
        );
    }
}
