//! `tenure history`: what a log has.

use clap::Args as ClapArgs;
use serde_json::json;
use tenure_client::proto::limits::PAGE;
use tenure_client::proto::log::LogName;
use tenure_client::proto::message::{DamagedEntry, HistoryParams};
use tenure_client::proto::number::U53;

use super::Where;
use super::guest::Guest;
use super::names;
use super::show::Format;
use crate::exit::Failure;
use crate::output::{emit, emit_json, safe, unread};

/// Print what a log has, oldest first, whoever has read it. Nothing is taken from anybody.
///
/// LOG is the name of a topic (its partition 0), or a log in full: topic/<name>/<partition>, inbox/s/<session hex>,
/// inbox/m/<member hex>. An inbox is read by its owner only: name the session with --as.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure history builds
  tenure history topic/jobs/3 --from 120 --limit 10 --json
  tenure history inbox/s/a77a…b53a --as alice")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// The topic or log
    #[arg(value_parser = names::log)]
    log: LogName,
    /// The number of the first entry: --from 120 [default: the oldest there is]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Print at most so many: --limit 10 [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Speak as the session of this name, whose key is kept here: for its inbox. A process that holds it is told that
    /// it was replaced
    #[arg(long = "as", value_name = "NAME")]
    speak_as: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    crate::block_on(async move {
        let guest = args.at.ask_about(&args.log, args.speak_as.as_deref(), "tenure history").await?;
        let outcome = pages(&guest, &args).await;
        guest.leave().await;
        outcome
    })
}

async fn pages(guest: &Guest, args: &Args) -> Result<(), Failure> {
    let show = args.format.show();
    let mut from = args.from.map(U53::saturating);
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = Some(U53::saturating(left.min(PAGE as u64)));
        let params = HistoryParams { log: args.log.to_string(), from, limit };
        let page = guest.session.history(params).await.map_err(|error| guest.failure(&error))?;
        left = left.saturating_sub((page.messages.len() + page.damaged.len()) as u64);
        let mut damaged = page.damaged.iter().peekable();
        for message in &page.messages {
            while let Some(entry) = damaged.next_if(|entry| entry.seq < message.seq) {
                gap(args, entry)?;
            }
            if let Err(error) = emit(&show.line(message, json!({}))) {
                return unread(&error);
            }
        }
        damaged.try_for_each(|entry| gap(args, entry))?;
        if page.next.is_none() {
            return Ok(());
        }
        from = page.next;
    }
    Ok(())
}

/// Says that an entry cannot be shown: on stdout as an object for programs, else beside what is.
fn gap(args: &Args, entry: &DamagedEntry) -> Result<(), Failure> {
    let (log, seq, reason) = (args.log.to_string(), entry.seq.get(), &entry.reason);
    if !args.format.json {
        eprintln!("{log} seq {seq} cannot be shown: {}; see `tenure dead`", safe(reason));
        return Ok(());
    }
    let object = json!({"log": log, "seq": seq, "damaged": true, "reason": reason});
    emit_json(&object).or_else(|error| unread(&error))
}
