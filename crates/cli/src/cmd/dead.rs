//! `tenure dead`: what nobody could settle.

use std::collections::BTreeSet;

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;
use tenure_client::proto::dead::{
    DeadDropParams, DeadDropResult, DeadLetter, DeadListParams, DeadListResult, DeadRetryParams,
    DeadRetryResult,
};
use tenure_client::proto::limits::PAGE;
use tenure_client::proto::log::LogName;
use tenure_client::proto::method::Method;
use tenure_client::proto::number::U53;

use super::Where;
use super::guest::Guest;
use super::names;
use super::show::said;
use crate::exit::Failure;
use crate::output::{emit_json, print, println, safe, table, unread};
use crate::span;

/// List, retry or drop dead letters: messages that nobody could settle.
///
/// Dead letters are messages that nobody could settle: handed out too often, expired, or given up by their reader.
/// They stay for 30 days. LOG is the name of a topic (its partition 0) or a log in full, as `tenure history` takes it.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure dead list jobs
  tenure dead retry jobs 17 42
  tenure dead drop topic/jobs/3 --all
  tenure dead list inbox/s/a77a…b53a --as alice --json")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Speak as the session of this name, whose key is kept here: for its inbox. A process that holds it is told that
    /// it was replaced
    #[arg(long = "as", value_name = "NAME", global = true)]
    speak_as: Option<String>,
    /// Print JSON: list prints one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the dead letters of a log, oldest first: tenure dead list jobs
    List {
        /// The topic or log
        #[arg(value_parser = names::log)]
        log: LogName,
        /// Print at most so many: --limit 10 [default: all]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Have dead letters handed out again: tenure dead retry jobs 17 42
    Retry(Which),
    /// Delete dead letters for good: tenure dead drop jobs --all
    Drop(Which),
}

#[derive(Debug, ClapArgs)]
struct Which {
    /// The topic or log
    #[arg(value_parser = names::log)]
    log: LogName,
    /// Their numbers
    #[arg(value_name = "SEQ", required_unless_present = "all")]
    seqs: Vec<u64>,
    /// All that there are now
    #[arg(long, conflicts_with = "seqs")]
    all: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    crate::block_on(async move {
        let (Verb::List { log, .. } | Verb::Retry(Which { log, .. }) | Verb::Drop(Which { log, .. })) =
            &args.verb;
        let guest = args.at.ask_about(log, args.speak_as.as_deref(), "tenure dead").await?;
        let outcome = match &args.verb {
            Verb::List { log, limit } => list(&guest, log, *limit, args.json).await,
            Verb::Retry(which) => retry(&guest, which, args.json).await,
            Verb::Drop(which) => discard(&guest, which, args.json).await,
        };
        guest.leave().await;
        outcome
    })
}

/// One page of them, and where the next begins.
async fn page(
    guest: &Guest,
    log: &LogName,
    after: Option<U53>,
    limit: u64,
) -> Result<DeadListResult, Failure> {
    let limit = Some(U53::saturating(limit.min(PAGE as u64)));
    let params = DeadListParams { log: log.to_string(), after, limit };
    let page = guest.session.request(Method::DeadList, params).await;
    page.map_err(|error| guest.failure(&error))
}

async fn list(guest: &Guest, log: &LogName, limit: Option<u64>, json: bool) -> Result<(), Failure> {
    let mut left = limit.unwrap_or(u64::MAX);
    let (mut after, mut rows) = (None, Vec::new());
    while left > 0 {
        let DeadListResult { mut letters, next } = page(guest, log, after, left).await?;
        // Letters of one entry come together, even past the limit.
        letters.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left = left.saturating_sub(letters.len() as u64);
        for letter in &letters {
            if !json {
                rows.push(row(letter));
            } else if let Err(error) = emit_json(&json!(letter)) {
                return unread(&error);
            }
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    match (json, rows.is_empty()) {
        (true, _) => {}
        (false, true) => eprintln!("{log} has no dead letters"),
        (false, false) => {
            print(&table(&["SEQ", "GROUP", "ATTEMPTS", "REASON", "AGE", "FROM", "BODY"], &rows))
        }
    }
    Ok(())
}

fn row(letter: &DeadLetter) -> Vec<String> {
    let DeadLetter { message, group, attempts, reason, at } = letter;
    let group = group.as_ref().map_or("-".to_owned(), ToString::to_string);
    let age = span::short(span::since(at.get()));
    let mut row = vec![message.seq.get().to_string(), group, attempts.to_string()];
    row.extend([safe(reason), age, safe(&message.from.name), safe(&said(message))]);
    row
}

/// Their numbers in pages: those that were named, or one page at a time of those that there are.
struct Seqs<'a> {
    which: &'a Which,
    after: Option<U53>,
    named: std::slice::Chunks<'a, u64>,
    over: bool,
}

impl<'a> Seqs<'a> {
    fn new(which: &'a Which) -> Seqs<'a> {
        Seqs { which, after: None, named: which.seqs.chunks(PAGE), over: false }
    }

    async fn next(&mut self, guest: &Guest) -> Result<Option<Vec<U53>>, Failure> {
        if !self.which.all {
            return Ok(self.named.next().map(|seqs| seqs.iter().copied().map(U53::saturating).collect()));
        }
        if self.over {
            return Ok(None);
        }
        let DeadListResult { letters, next } = page(guest, &self.which.log, self.after, PAGE as u64).await?;
        (self.after, self.over) = (next, next.is_none());
        let seqs: BTreeSet<U53> = letters.iter().map(|letter| letter.message.seq).collect();
        Ok(Some(seqs.into_iter().collect()).filter(|seqs: &Vec<U53>| !seqs.is_empty()))
    }
}

async fn retry(guest: &Guest, which: &Which, json: bool) -> Result<(), Failure> {
    let mut sum = DeadRetryResult::default();
    let mut pages = Seqs::new(which);
    while let Some(seqs) = pages.next(guest).await? {
        let params = DeadRetryParams { log: which.log.to_string(), seqs };
        let result: Result<DeadRetryResult, _> = guest.session.request(Method::DeadRetry, params).await;
        let result = result.map_err(|error| guest.failure(&error))?;
        sum.retried.extend(result.retried);
        sum.missing.extend(result.missing);
    }
    if json {
        println(&json!(sum).to_string());
    } else {
        eprintln!("{} go back to {}", sum.retried.len(), which.log);
        sum.retried.iter().for_each(|seq| println(&seq.get().to_string()));
    }
    // Among all of them somebody else may have been faster.
    if sum.missing.is_empty() || which.all {
        return Ok(());
    }
    let missing: Vec<String> = sum.missing.iter().map(|seq| seq.get().to_string()).collect();
    Err(Failure::Failed(format!("{} has no dead letter {}", which.log, missing.join(", "))))
}

async fn discard(guest: &Guest, which: &Which, json: bool) -> Result<(), Failure> {
    let mut dropped = 0;
    let mut pages = Seqs::new(which);
    while let Some(seqs) = pages.next(guest).await? {
        let params = DeadDropParams { log: which.log.to_string(), seqs };
        let result: Result<DeadDropResult, _> = guest.session.request(Method::DeadDrop, params).await;
        dropped += result.map_err(|error| guest.failure(&error))?.dropped.get();
    }
    if json {
        println(&json!({"dropped": dropped}).to_string());
    } else {
        eprintln!("{dropped} dead letters of {} are gone for good", which.log);
    }
    if dropped == 0 && !which.all {
        return Err(Failure::Failed(format!("{} has none of these dead letters", which.log)));
    }
    Ok(())
}
