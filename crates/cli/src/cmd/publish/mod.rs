//! `tenure pub`: one message to a topic, or one for each line of a file, many at a time.

mod source;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tenure_client::proto::WireError;
use tenure_client::proto::message::SendResult;
use tenure_client::proto::name::TopicName;
use tenure_client::{Body, Publisher, Sending};

use super::Where;
use super::guest::{Guest, Stay, Who, user};
use super::names;
use crate::exit::Failure;
use crate::output::println;
use crate::signals::{Signals, interruptible};
use source::{Line, Source};

/// Sends in flight at once.
const WINDOW: usize = 1_024;
/// Bytes of them that may wait for an answer at once.
const WINDOW_BYTES: usize = 32 * 1024 * 1024;
/// How long a line may take, breaks and restarts of the broker included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Publish one message, or one for each line of a file or of standard input, in their order.
///
/// A file can be published again after anything, also after kill -9, without doubles: the id of each line comes from
/// the file's content and the line's number, so what was published before is counted as duplicates. Standard input
/// needs --id-prefix for that. The first line that is refused for good ends the command and is named; lines that were on
/// their way with it may be published.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure pub builds 'parser: green'
  tenure pub jobs -f jobs.txt                          # interrupted? run it again
  tenure pub jobs -f jobs.txt --id-prefix second-time  # the same lines once more, on purpose
  seq 1000 | tenure pub jobs - --id-prefix night-1 --key numbers")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// The topic; made if it is not there
    #[arg(value_parser = names::topic)]
    topic: TopicName,
    /// What the message says; - publishes each line of standard input
    #[arg(required_unless_present = "file")]
    body: Option<String>,
    /// Publish each line of this file: -f jobs.txt
    #[arg(short, long, value_name = "FILE", conflicts_with = "body")]
    file: Option<PathBuf>,
    /// Begin the ids with this, followed by the line's number, instead of deriving them: --id-prefix night-1
    #[arg(long, value_name = "TEXT", value_parser = source::prefix)]
    id_prefix: Option<String>,
    /// What chooses the partition of all of them, so that their order holds: --key order-17
    #[arg(long)]
    key: Option<String>,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

/// What became of the lines.
#[derive(Debug, Default)]
struct Tally {
    published: u64,
    duplicates: u64,
    last: Option<SendResult>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let source = match (&args.file, args.body.as_deref()) {
        (Some(path), _) => Source::file(path, &args.topic, args.id_prefix.clone())?,
        (None, Some("-")) => Source::stdin(args.id_prefix.clone()),
        (None, body) => Source::one(body.unwrap_or_default(), args.id_prefix.clone()),
    };
    interruptible(async move |mut signals| {
        let name = user();
        let talks = std::io::stderr().is_terminal();
        let stay = Stay { patience: PATIENCE, talks, ..Stay::default() };
        let guest = signals.unless(args.at.enter(Who::Visit(&name), stay)).await?;
        let outcome = publish(&guest, &args, source, &mut signals).await;
        guest.leave_soon(&mut signals).await;
        outcome
    })
}

async fn publish(
    guest: &Guest,
    args: &Args,
    mut source: Source,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let publisher = guest.session.publisher(args.topic.as_str()).map_err(|error| guest.failure(&error))?;
    let publisher = publisher.window(WINDOW);
    let bar = bar(source.total);
    let (start, mut tally) = (Instant::now(), Tally::default());
    // `pump` is not resumed after a signal, so it need not be cancel-safe: `tally` keeps what was answered.
    let outcome = tokio::select! {
        outcome = pump(guest, args, &publisher, &mut source, &mut tally, &bar) => outcome,
        () = signals.recv() => Err(Failure::Failed("interrupted".to_owned())),
    };
    bar.finish_and_clear();
    // A whole batch has no ids worth printing; a single message has.
    if let (true, Some(result), true) = (source.single, &tally.last, outcome.is_ok()) {
        println(&if args.json { json!(result).to_string() } else { result.id.to_string() });
        return outcome;
    }
    let (Tally { published, duplicates, .. }, seconds) = (&tally, start.elapsed().as_secs_f64());
    let rate = (published + duplicates) as f64 / seconds.max(0.001);
    eprintln!("published {published}, duplicates {duplicates}, in {seconds:.1} s ({rate:.0}/s)");
    if args.json {
        let summary = json!({"published": published, "duplicates": duplicates, "seconds": seconds,
            "complete": outcome.is_ok()});
        println(&summary.to_string());
    }
    if matches!(outcome, Err(Failure::Failed(_) | Failure::Unreachable(_))) && source.repeats() {
        eprintln!("run it again to go on: what is published already is not published twice");
    }
    outcome
}

/// Keeps the window full until every line is answered, or one is refused; then waits for those on their way.
async fn pump(
    guest: &Guest,
    args: &Args,
    publisher: &Publisher,
    source: &mut Source,
    tally: &mut Tally,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let mut flight = Flight::default();
    let (mut open, mut outcome) = (true, Ok(()));
    while open || !flight.sent.is_empty() {
        // Both are cancel-safe: what is unanswered stays in `flight`, and `recv` takes no line when it loses.
        tokio::select! {
            biased;
            (line, answer) = flight.answer(), if !flight.sent.is_empty() => match answer {
                Ok(result) => {
                    tally.count(result);
                    bar.inc(1);
                }
                Err(error) => {
                    open = false;
                    outcome = outcome.and(Err(refused(guest, source, line, &error)));
                }
            },
            line = source.lines.recv(), if open && !flight.full() => match line {
                None => open = false,
                Some(Err(failure)) => (open, outcome) = (false, outcome.and(Err(failure))),
                Some(Ok(Line { number, bytes })) => {
                    let size = bytes.len();
                    let mut message = publisher.publish(body(bytes));
                    if let Some(id) = source.id(number) {
                        message = message.id(&id);
                    }
                    if let Some(key) = &args.key {
                        message = message.key(key);
                    }
                    match message.enqueue().await {
                        Ok(sending) => flight.push(number, size, sending),
                        Err(error) => {
                            (open, outcome) = (false, outcome.and(Err(refused(guest, source, number, &error))));
                        }
                    }
                }
            },
        }
    }
    outcome
}

/// A refusal with the line it is about.
fn refused(guest: &Guest, source: &Source, line: u64, error: &WireError) -> Failure {
    match guest.failure(error) {
        failure if source.single => failure,
        Failure::Unreachable(text) => Failure::Unreachable(format!("line {line}: {text}")),
        failure => Failure::Refused(format!("line {line}: {failure}")),
    }
}

impl Tally {
    fn count(&mut self, result: SendResult) {
        if result.duplicate {
            self.duplicates += 1;
        } else {
            self.published += 1;
        }
        self.last = Some(result);
    }
}

/// Lines on their way, in their order.
#[derive(Debug, Default)]
struct Flight {
    sent: VecDeque<(u64, usize, Sending)>,
    bytes: usize,
}

impl Flight {
    fn full(&self) -> bool {
        self.sent.len() >= WINDOW || self.bytes >= WINDOW_BYTES
    }

    fn push(&mut self, line: u64, size: usize, sending: Sending) {
        self.bytes += size;
        self.sent.push_back((line, size, sending));
    }

    /// The answer to the oldest; never, if there is none. Cancel-safe.
    async fn answer(&mut self) -> (u64, Result<SendResult, WireError>) {
        let Some((line, size, sending)) = self.sent.front_mut() else { return std::future::pending().await };
        let answer = sending.await;
        let (line, size) = (*line, *size);
        self.sent.pop_front();
        self.bytes -= size;
        (line, answer)
    }
}

/// Text if it is, else bytes.
pub(crate) fn body(bytes: Vec<u8>) -> Body {
    String::from_utf8(bytes).map_or_else(|error| Body::Bytes(error.into_bytes()), Body::Text)
}

/// Progress with a rate, on a terminal; elsewhere nothing.
fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{bar:40} {human_pos}/{human_len} {per_sec} {eta} {msg}"),
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos} {per_sec} {elapsed} {msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
