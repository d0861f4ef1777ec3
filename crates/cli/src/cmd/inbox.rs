//! `tenure inbox`: the messages that wait for somebody here, at the daemon when one runs.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use tenure_client::proto::limits::PAGE;
use tenure_client::proto::peer::Status;
use tenure_client::{InboxChoice, Item, Received, Subscription};

use super::Where;
use super::guest::{Guest, Stay, Who, ended};
use super::letters::{self, Want};
use super::reader::{Done, Reader};
use super::show::Format;
use super::way::Way;
use crate::exit::Failure;
use crate::signals::{Signals, interruptible};

/// Print the messages that wait, and ack each once it is printed: what was not printed is not lost.
///
/// Whose inbox? Unless told otherwise that of the member's own session, whose address is session:<the member's key>
/// (`tenure keys`); with --as that of the session of this name; with --member the one that all sessions of the member
/// share. The same key is the same session: a process that holds it is told that it was replaced.
///
/// While a daemon runs it receives for the member: then this prints what the daemon has kept and nobody has seen, of the
/// member's own session and of the member (--member: of the latter alone), and marks it as seen. --as and --session read
/// for another session that the daemon holds.
///
/// A line is: priority, sender, age, what it says.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure inbox                         # what waits for session:<member's key>
  tenure inbox --as alice --follow     # be alice, and print what comes
  tenure inbox --member --limit 1 --json
  tenure inbox --no-ack                # look, and leave everything where it is
  tenure inbox --follow --status dnd   # only what is sent with --priority now")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    way: Way,
    /// Read the inbox of the session of this name, whose key is kept here: --as alice
    #[arg(long = "as", value_name = "NAME")]
    speak_as: Option<String>,
    /// Read the inbox that all sessions of the member share; each message goes to one of them
    #[arg(long)]
    member: bool,
    /// Stay, and print what comes; without it the command ends when nothing waits
    #[arg(long)]
    follow: bool,
    /// Ack what was printed (the default)
    #[arg(long, overrides_with = "no_ack")]
    ack: bool,
    /// Print without acking: everything is there again afterwards. With --follow no more than 32 of each priority come
    #[arg(long, overrides_with = "ack")]
    no_ack: bool,
    /// Print at most so many: --limit 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// What others see meanwhile; with --follow it also decides what comes: working and dnd only `now`
    #[arg(long, value_enum, default_value = "idle")]
    status: StatusArg,
    #[command(flatten)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusArg {
    Idle,
    Working,
    Dnd,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| {
        let broker_only = (args.status != StatusArg::Idle).then_some("--status");
        if let Some(through) = args.way.through(&args.at, args.speak_as.as_deref(), broker_only).await? {
            let mut want = Want {
                show: args.format.show(),
                follow: args.follow,
                marks: !args.no_ack,
                limit: args.limit,
                member: args.member,
                topic: None,
            };
            return letters::read(&through, &mut want, &mut signals).await;
        }
        let who = match (&args.speak_as, args.member) {
            (Some(name), _) => Who::Named(name),
            (None, true) => Who::Visit("tenure inbox"),
            (None, false) => Who::Member,
        };
        let stay = Stay {
            inbox: if args.member { InboxChoice::Member } else { InboxChoice::Session },
            status: match args.status {
                StatusArg::Idle => Status::Idle,
                StatusArg::Working => Status::Working,
                StatusArg::Dnd => Status::Dnd,
            },
            talks: args.follow,
            ..Stay::default()
        };
        let guest = signals.unless(args.at.enter(who, stay)).await?;
        let mut reader = Reader::new(args.format.show(), !args.no_ack, args.limit);
        let outcome = read(&guest, &args, &mut reader, &mut signals).await;
        let done = *outcome.as_ref().unwrap_or(&Done::Enough);
        let settled = reader.finish(done, &guest, &mut signals).await;
        guest.leave_soon(&mut signals).await;
        outcome.and(settled)
    })
}

async fn read(
    guest: &Guest,
    args: &Args,
    reader: &mut Reader,
    signals: &mut Signals,
) -> Result<Done, Failure> {
    let inbox = if args.member { guest.session.member_inbox() } else { guest.session.inbox() };
    let mut inbox = inbox.map_err(|error| Failure::Failed(error.to_string()))?;
    if args.follow {
        return reader.follow(&mut inbox, signals).await;
    }
    // `drain` is not resumed after a signal, so it need not be cancel-safe: the reader keeps the acks of what it has
    // printed, and the rest goes back.
    tokio::select! {
        done = drain(guest, &mut inbox, reader) => done,
        () = signals.recv() => Ok(Done::Asked),
    }
}

/// Prints what waits: what the broker hands out by itself and what has to be pulled, in the order of priority and
/// then of sending.
async fn drain(guest: &Guest, inbox: &mut Subscription, reader: &mut Reader) -> Result<Done, Failure> {
    loop {
        let limit = reader.left().map_or(PAGE, |left| usize::try_from(left).unwrap_or(PAGE).min(PAGE));
        let mut batch = inbox.fetch(limit).await.map_err(|error| guest.failure(&error))?;
        // What was handed out before this answer is here by now.
        batch.extend(handed_out(inbox).await?);
        if batch.is_empty() {
            if reader.is_fresh() {
                eprintln!("nothing waits");
            }
            return Ok(Done::Enough);
        }
        batch.sort_by_key(|message| (message.priority, message.seq));
        for message in batch {
            if let Some(done) = reader.take(message)? {
                return Ok(done);
            }
        }
        // So that no more is in hand than one batch, however much waits.
        reader.settle().await?;
    }
}

/// What has come without being asked for, without waiting.
async fn handed_out(inbox: &mut Subscription) -> Result<Vec<Received>, Failure> {
    let mut messages = Vec::new();
    while let Ok(item) = tokio::time::timeout(Duration::ZERO, inbox.next()).await {
        if let Item::Message(message) = item.map_err(ended)? {
            messages.push(message);
        }
    }
    Ok(messages)
}
