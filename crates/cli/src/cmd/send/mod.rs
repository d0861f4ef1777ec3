//! `tenure send`: one message to somebody, through the daemon when one runs.

mod local;

use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tenure_client::proto::event::ReceiptState;
use tenure_client::proto::ids::ClientMessageId;
use tenure_client::proto::limits::INBOX_TTL_MS;
use tenure_client::proto::message::{Address, Fallback, Meta, Priority, Recipient, SendResult};
use tenure_client::{Body, SendBuilder};

use super::Where;
use super::guest::{Guest, Stay, Who, user};
use super::names::{self, Target, resolve};
use super::way::Way;
use crate::exit::Failure;
use crate::output::{println, sentence};
use crate::signals::{Signals, interruptible};
use crate::span;

/// The most that is read from standard input: far beyond what any broker takes.
const STDIN_BYTES: u64 = 256 * 1024 * 1024;

/// Send one message and print its id.
///
/// When a daemon runs, the message is handed to it: it is on this machine's disk when the command returns, reaches the
/// broker as soon as that can be reached, and arrives once; what is printed is the sender's id, which `tenure outbox show`
/// takes, or with --wait the broker's. When none runs, it goes straight to the broker, and the broker's id is printed once
/// the message is on its disk.
///
/// TO is session:<hex>, member:<hex>, topic:<name>, or the display name of somebody who is here. A name that means
/// nobody or several is refused with those it might mean, and nothing is sent.
///
/// The sender is the daemon's own session, or the one of --session or --as. Without a daemon, and unless --as says
/// otherwise, it is a session of this machine's member that ends with the command: answers reach you at member:<hex>
/// (`tenure keys`, `tenure inbox --member`).
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure send alice 'the build is red' --priority now
  git diff | tenure send topic:reviews - --content-type text/x-diff --key parser
  tenure send member:52ae…78b9 yes --reply-to 01J9… --wait=delivered --ttl 10m
  tenure send alice 'deployed' --id deploy-417   # run twice, sent once
  tenure send topic:jobs x --wait --timeout 10s || echo 'queued, and not at the broker yet'")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    way: Way,
    /// Who gets it: session:<hex>, member:<hex>, topic:<name>, or a display name
    #[arg(value_parser = names::target)]
    to: Target,
    /// What it says; - reads standard input, which need not be text
    body: String,
    /// How urgent it is: now is handed out always, next unless the reader is busy, low only when it is idle
    #[arg(long, value_enum, default_value = "next")]
    priority: PriorityArg,
    /// What chooses its partition of a topic: the same key, the same partition, in order; such as order-17
    #[arg(long)]
    key: Option<String>,
    /// The id of the message that it answers
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
    /// Facts beside the body, a JSON object: '{"build": 417}'
    #[arg(long, value_name = "JSON", value_parser = meta)]
    meta: Option<Meta>,
    /// What the body is, such as application/json
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How long it may wait for its reader, such as 10m; an inbox keeps it for 7d otherwise
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    ttl: Option<Duration>,
    /// How long it must wait, such as 5s
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    delay: Option<Duration>,
    /// If the receiving session ends first: hold it for the key, give it to the member, or fail
    #[arg(long, value_enum, default_value = "hold")]
    fallback: FallbackArg,
    /// Your own id for it, such as deploy-417: sent twice with one id, it is one message [default: a new ULID]
    #[arg(long, value_parser = names::message_id)]
    id: Option<ClientMessageId>,
    /// Wait until the broker has it (--wait), or until the receiver has settled it (--wait=delivered)
    #[arg(
        long,
        value_enum,
        value_name = "FOR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "accepted"
    )]
    wait: Option<Wait>,
    /// Wait at most so long, then end with code 6; the message stays [default: as long as it may wait itself]
    #[arg(long, value_name = "TIME", value_parser = span::parse, requires = "wait")]
    timeout: Option<Duration>,
    /// Speak as the session of this name, whose key is kept here: answers reach its inbox. A process that holds it
    /// is told that it was replaced
    #[arg(long = "as", value_name = "NAME")]
    speak_as: Option<String>,
    /// Print everything that was answered as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PriorityArg {
    Now,
    Next,
    Low,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FallbackArg {
    Hold,
    Member,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wait {
    Accepted,
    Delivered,
}

impl PriorityArg {
    fn value(self) -> Priority {
        match self {
            PriorityArg::Now => Priority::Now,
            PriorityArg::Next => Priority::Next,
            PriorityArg::Low => Priority::Low,
        }
    }
}

impl FallbackArg {
    fn value(self) -> Fallback {
        match self {
            FallbackArg::Hold => Fallback::Hold,
            FallbackArg::Member => Fallback::Member,
            FallbackArg::Fail => Fallback::Fail,
        }
    }
}

fn meta(text: &str) -> Result<Meta, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let inbox_of_one = !matches!(&args.to, Target::Address(Address::Member(_) | Address::Topic(_)));
    if !inbox_of_one && args.fallback != FallbackArg::Hold {
        let text = "only a session ends, so only a message to one has a --fallback; leave it out";
        return Err(Failure::Usage(text.to_owned()));
    }
    let to_topic = matches!(&args.to, Target::Address(Address::Topic(_)));
    if to_topic && args.wait == Some(Wait::Delivered) {
        let text = "a topic has any number of readers, so nobody can say when it is delivered; --wait alone waits for the broker";
        return Err(Failure::Usage(text.to_owned()));
    }
    let body = if args.body == "-" { stdin()? } else { Body::Text(args.body.clone()) };
    interruptible(async move |mut signals| {
        if let Some(through) = args.way.through(&args.at, args.speak_as.as_deref(), None).await? {
            return local::send(&through, &args, body, &mut signals).await;
        }
        let name = user();
        let who = args.speak_as.as_deref().map_or(Who::Visit(&name), Who::Named);
        let guest = signals.unless(args.at.enter(who, Stay::default())).await?;
        let outcome = send(&guest, &args, body, &mut signals).await;
        guest.leave_soon(&mut signals).await;
        outcome
    })
}

/// All of standard input: text if it is, else bytes.
pub(super) fn stdin() -> Result<Body, Failure> {
    if std::io::stdin().is_terminal() {
        eprintln!("type the message, then Ctrl-D");
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES + 1).read_to_end(&mut bytes);
    let read = read.map_err(|error| Failure::Failed(format!("read standard input: {error}")))?;
    if read as u64 > STDIN_BYTES {
        return Err(Failure::Usage(format!("a message of more than {STDIN_BYTES} bytes is not one")));
    }
    Ok(super::publish::body(bytes))
}

async fn send(guest: &Guest, args: &Args, body: Body, signals: &mut Signals) -> Result<(), Failure> {
    let to = signals.unless(resolve(guest, &args.to)).await?;
    let first = describe(guest.session.send(to.clone(), body.clone()), args);
    let id = first.message_id().cloned();
    // The send is not resumed after a signal, so it need not be cancel-safe: with its id it can be made again.
    let accepted = tokio::select! {
        accepted = first.send() => accepted.map_err(|error| guest.failure(&error))?,
        () = signals.recv() => {
            let again = id.as_ref().map(|id| format!(": send it again with --id {id}, and it is sent once"));
            let text = format!("stopped before the broker had answered; it may have it{}", again.unwrap_or_default());
            return Err(Failure::Failed(text));
        }
    };
    if accepted.duplicate {
        eprintln!("it was sent before and is not sent again");
    } else if accepted.recipient == Some(Recipient::Gone) {
        eprintln!("the receiver is not here; the message waits");
    }
    let mut result = json!(accepted);
    result["clientMessageId"] = json!(id);
    if args.wait != Some(Wait::Delivered) {
        println(&if args.json { result.to_string() } else { accepted.id.to_string() });
        return Ok(());
    }
    if !args.json {
        println(&accepted.id.to_string());
    }
    // The same message once more: a duplicate, whose fate is asked for as well as waited for.
    let again = describe(guest.session.send(to, body), args);
    let again = match &id {
        Some(id) => again.id(id.as_str()),
        None => again,
    };
    let outcome = delivered(guest, again, args, &accepted, signals).await;
    if args.json {
        let (state, reason) = match &outcome {
            Ok((state, reason)) => (json!(state), reason.clone()),
            Err(_) => (json!("accepted"), None),
        };
        result["state"] = state;
        if let Some(reason) = reason {
            result["reason"] = Value::String(reason);
        }
        println(&result.to_string());
    }
    match outcome? {
        (ReceiptState::Delivered, _) => Ok(()),
        (state, reason) => {
            let word = if state == ReceiptState::Dead { "is a dead letter" } else { "has expired" };
            let more = reason.filter(|reason| state == ReceiptState::Dead && !reason.is_empty());
            let reason = more.map(|reason| format!(": {}", sentence(&reason))).unwrap_or_default();
            Err(Failure::Failed(format!("it {word}{reason}")))
        }
    }
}

fn describe(builder: SendBuilder, args: &Args) -> SendBuilder {
    let mut builder = builder.priority(args.priority.value()).fallback(args.fallback.value());
    if let Some(id) = &args.id {
        builder = builder.id(id.as_str());
    }
    if let Some(key) = &args.key {
        builder = builder.key(key);
    }
    if let Some(reply_to) = &args.reply_to {
        builder = builder.reply_to(reply_to);
    }
    if let Some(meta) = &args.meta {
        builder = builder.meta(meta.clone());
    }
    if let Some(content_type) = &args.content_type {
        builder = builder.content_type(content_type);
    }
    if let Some(ttl) = args.ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(delay) = args.delay {
        builder = builder.delay(delay);
    }
    builder
}

/// Waits for the receipt, as long as the message itself may wait.
async fn delivered(
    guest: &Guest,
    again: SendBuilder,
    args: &Args,
    accepted: &SendResult,
    signals: &mut Signals,
) -> Result<(ReceiptState, Option<String>), Failure> {
    let life = args.ttl.unwrap_or(Duration::from_millis(INBOX_TTL_MS)) + args.delay.unwrap_or_default();
    let spinner = spinner("accepted; waiting until it is settled");
    let since = Instant::now();
    // A minute more: what happens when it expires is also an answer.
    let receipt = again.send_and_wait_delivered(life + Duration::from_secs(60));
    let late = async {
        match args.timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    // The wait for the receipt is not resumed, so it need not be cancel-safe; the others only wait.
    let receipt = tokio::select! {
        receipt = receipt => receipt.map_err(|error| guest.failure(&error)),
        () = signals.recv() => {
            Err(Failure::Failed(format!("stopped waiting; {} is accepted and may still be delivered", accepted.id)))
        }
        () = late => Err(Failure::Late(format!("not in time; {} is accepted and may still be delivered", accepted.id))),
    };
    spinner.finish_and_clear();
    let receipt = receipt?;
    if receipt.state == ReceiptState::Delivered {
        eprintln!("delivered after {:.1} s", since.elapsed().as_secs_f64());
    }
    Ok((receipt.state, receipt.reason))
}

/// Something that turns on a terminal and is nothing elsewhere.
fn spinner(message: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
