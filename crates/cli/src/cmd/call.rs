//! `tenure call`: ask an agent something and print its answer as it comes.

mod screen;

use std::io::ErrorKind;
use std::pin::Pin;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::Value;
use tenure_client::proto::codec::Codec;
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::proto::limits::{RUN_KEY_BYTES, RUN_TIMEOUT_MAX_MS};
use tenure_client::proto::message::Address;
use tenure_client::proto::run::RunStartParams;
use tenure_client::{Answer, Body, CallError, RunStream};
use tokio::time::Instant;

use self::screen::Screen;
use super::Where;
use super::guest::{Guest, Stay, Who, user};
use super::names::{self, Target, resolve};
use super::send::stdin;
use crate::exit::Failure;
use crate::output::sentence;
use crate::signals::{Signals, interruptible};
use crate::span;

/// How long the broker may take to hear that an answer is wanted no more.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long a run that is cancelled may take to end, the broker's absence included; then it is left to itself.
const CANCELLING: Duration = Duration::from_secs(5);

/// Call an agent and print its answer as it comes.
///
/// TO is session:<hex>, member:<hex>, or the display name of somebody who is here; a name that means nobody or several is
/// refused with those it might mean. Whoever answers runs there (`tenure serve`, or a program) gets INPUT. Each piece of the
/// answer is printed when it comes, a string as a line and anything else as JSON, and at the end the result, if there is one
/// and it does not say what the pieces said, line by line.
///
/// Broken connections and restarts of the broker do not end it. Interrupt it, and the run is cancelled; interrupt it again, or
/// let five seconds pass in which it does not end, and it is left to itself. Killed, it leaves the run at work: the same --key finds it again. The result of a run is kept
/// for a day after its end; its pieces only in the broker's memory, the last 1 MiB of them, and for a minute after the end.
/// What of an answer is gone is made good from a result that says all of it, as that of `tenure serve` does up to 1 MiB;
/// what follows a gap is therefore printed at the end. Where nothing makes it good, the code is 1.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure call reviewer 'is main green?'
  git diff | tenure call reviewer - --timeout 30m
  tenure call solver '{\"n\": 8}' --json | jq .
  tenure call builder release --key release-417   # run twice, built once

Exit codes: 7 when the run failed or was cancelled, also because whoever read the answer went away; 1 when part of the
answer is gone or could not be written; the others as everywhere.")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Who is called: session:<hex>, member:<hex>, or a display name
    #[arg(value_parser = names::target)]
    to: Target,
    /// What they are asked: JSON if it is, else a string; - reads standard input
    input: String,
    /// INPUT is a string, whatever it looks like
    #[arg(long)]
    text: bool,
    /// How long the run may take before the broker ends it, such as 30m; at most a day [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    /// Your own key for it, such as release-417: called twice with one key, it is one run [default: a new ULID]
    #[arg(long, value_parser = key)]
    key: Option<String>,
    /// Print one JSON object a line: that it started, each piece, the end
    #[arg(long)]
    json: bool,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = span::parse(text)?;
    if time.is_zero() || time > Duration::from_millis(RUN_TIMEOUT_MAX_MS) {
        return Err("a run may take from 1ms to 1d".to_owned());
    }
    Ok(time)
}

fn key(text: &str) -> Result<String, String> {
    if !RunStartParams::is_key(text) {
        return Err(format!("a key is 1 to {RUN_KEY_BYTES} printable ASCII characters"));
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if matches!(&args.to, Target::Address(Address::Topic(_))) {
        let text = "a topic has any number of readers and cannot be called; name a session or a member";
        return Err(Failure::Usage(text.to_owned()));
    }
    let input = input(&args)?;
    interruptible(async move |mut signals| {
        let name = user();
        let stay = Stay { talks: true, ..Stay::default() };
        let guest = signals.unless(args.at.enter(Who::Visit(&name), stay)).await?;
        let outcome = call(&guest, &args, input, &mut signals).await;
        guest.leave_soon(&mut signals).await;
        outcome
    })
}

fn input(args: &Args) -> Result<Value, Failure> {
    let text = match args.input.as_str() {
        "-" => match stdin()? {
            Body::Text(text) => text,
            Body::Bytes(_) => return Err(Failure::Usage("the input of a run is text or JSON".to_owned())),
        },
        text => text.to_owned(),
    };
    if args.text || serde_json::from_str::<Value>(&text).is_err() {
        return Ok(Value::String(text));
    }
    // What two readers would read differently is refused here as everywhere.
    Codec::Json.decode(text.as_bytes()).map_err(|error| {
        let error = sentence(&error.to_string());
        Failure::Usage(format!("INPUT is no good JSON: {error}; with --text it is a string"))
    })
}

async fn call(guest: &Guest, args: &Args, input: Value, signals: &mut Signals) -> Result<(), Failure> {
    let to = signals.unless(resolve(guest, &args.to)).await?;
    let mut call = guest.session.call(to, input);
    if let Some(timeout) = args.timeout {
        call = call.timeout(timeout);
    }
    if let Some(key) = &args.key {
        call = call.key(key);
    }
    let key = call.idempotency_key().unwrap_or_default().to_owned();
    // The call is not resumed after a signal, so it need not be cancel-safe: its key finds the run.
    let mut stream = tokio::select! {
        stream = call => stream.map_err(|error| failure(guest, error))?,
        () = signals.recv() => {
            let text = format!("stopped before the broker had answered; the run may be at work: --key {key} finds it");
            return Err(Failure::Failed(text));
        }
    };
    let mut screen = Screen::new(args.json);
    let mut printed = screen.started(stream.run_id(), &key);
    let mut cancelling: Option<Cancelling> = None;
    let mut cancelled = None;
    loop {
        if let Err(error) = printed {
            return Err(unread(&stream, &error).await);
        }
        printed = Ok(());
        // All are cancel-safe.
        tokio::select! {
            answer = stream.next() => match answer {
                Ok(Answer::Chunk { data, gap }) => printed = screen.chunk(data, gap),
                Ok(Answer::End { result, gap }) => {
                    let pieces = tokio::select! {
                        pieces = pieces(guest, &stream), if screen.misses(gap) => pieces,
                        () = signals.recv(), if screen.misses(gap) => None,
                        else => None,
                    };
                    return screen.end(&result, gap, pieces);
                }
                Err(error) => {
                    // How it ended is said by the exit code in any case.
                    let _ = screen.error(&error);
                    return Err(failure(guest, error));
                }
            },
            outcome = heard(&mut cancelling) => {
                cancelling = None;
                match outcome {
                    // While the broker is away it waits, and is said again when that is back.
                    Err(error) if error.code != ErrorCode::Unavailable => return Err(guest.failure(&error)),
                    _ => {}
                }
            }
            () = signals.recv() => {
                if cancelled.is_some() {
                    return Err(left(&stream, &key));
                }
                cancelled = Some(Instant::now() + CANCELLING);
                eprintln!("cancelling the run; interrupt again to leave it");
                cancelling = Some(Box::pin(stream.cancel()));
            }
            () = until(cancelled) => return Err(left(&stream, &key)),
        }
    }
}

/// A run that is not waited for any longer.
fn left(stream: &RunStream, key: &str) -> Failure {
    let run = stream.run_id();
    Failure::Failed(format!("left {run} to itself: --key {key} finds it"))
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

type Cancelling = Pin<Box<dyn Future<Output = Result<(), WireError>> + Send>>;

/// What the broker says to the cancelling, if there is one.
async fn heard(cancelling: &mut Option<Cancelling>) -> Result<(), WireError> {
    match cancelling {
        Some(cancelling) => cancelling.await,
        None => std::future::pending().await,
    }
}

/// How many pieces the answer had.
async fn pieces(guest: &Guest, stream: &RunStream) -> Option<u64> {
    guest.session.run_get(stream.run_id()).await.ok().map(|run| run.last_seq.get())
}

/// Nobody reads what it says: then nobody needs it, and the run is cancelled.
async fn unread(stream: &RunStream, error: &std::io::Error) -> Failure {
    let what = match tokio::time::timeout(LAST_WORD, stream.cancel()).await {
        Ok(Ok(())) => "the run was told to stop",
        _ => "the run could not be told to stop",
    };
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Run(format!("nobody reads the answer any more; {what}")),
        _ => Failure::Failed(format!("write to standard output: {error}; {what}")),
    }
}

/// What the end of a call means for the exit code, its text made safe for a terminal.
fn failure(guest: &Guest, error: CallError) -> Failure {
    match error {
        CallError::Failed(_) | CallError::Cancelled => Failure::Run(sentence(&error.to_string())),
        CallError::Refused(error) => guest.failure(&error),
        CallError::Session(end) => Failure::from(end),
    }
}
