//! `tenure serve`: answer runs with a command.

mod exec;

use std::sync::Arc;
use std::time::Instant;

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::proto::message::Priority;
use tenure_client::{InboxChoice, Run, RunError, ServeEnd, Session};
use tokio::sync::{mpsc, watch};

use super::Where;
use super::guest::{Stay, Who, ended};
use crate::exit::Failure;
use crate::output::{emit_json, safe, sentence};
use crate::reaper::Reaper;
use crate::signals::interruptible;

/// What it is called unless told otherwise.
const NAME: &str = "serve";
/// Runs that are answered at once, unless told otherwise.
const JOBS: u8 = 4;
/// The most: no more runs are handed to one session before some of them have ended.
const JOBS_MAX: i64 = 32;

/// Urgent messages that are left in the inbox; one more goes to the dead letters.
const URGENT: usize = 16;

/// Answer each run with a command.
///
/// CMD is run by sh for each run that comes. It gets the input on its standard input, a string as it is and anything else as
/// JSON, and in its environment TENURE_RUN_ID, the run, and TENURE_FROM, the address of who calls. Each line that it prints is
/// a piece of the answer, sent at once; a line of more than 64 KiB is several. When it ends with code 0 the run went well, and
/// its result is all of them, one a line, for who comes later; null when that is more than the broker takes (1 MiB of JSON, unless
/// it says otherwise). Any other end is an error, with the code and the last 4 KiB of what it said
/// on standard error. All that it wrote is sent before its run ends, however long that takes; bytes that are not UTF-8 become
/// U+FFFD. What it leaves running in its process group is killed when that has said nothing for a second; if it goes on
/// speaking for five, the run fails.
///
/// When the caller cancels the run, or its time is over, CMD and everything it has started are told to terminate, and killed
/// two seconds later. When this command ends they are killed, and their runs fail: none is handed to another. So they are when it is
/// itself killed (kill -9), by a process beside it. Started again with the same --name
/// within its lease it is handed their runs once more: those of which something was sent fail, the others begin anew.
///
/// Broken connections and restarts of the broker do not disturb it: what CMD says meanwhile is sent afterwards.
///
/// With --json, output that cannot be written (a reader that went away, a full disk) ends it as a signal does, with code 1.
///
/// Messages that are no runs are left in the inbox (`tenure inbox --as NAME` when this has ended), except that of those sent with
/// --priority now no more than 16 are: the next go to the dead letters, for their senders to see.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure serve --exec 'tr a-z A-Z' --name shouter      # then: tenure call shouter 'be quick'
  tenure serve --exec ./review.sh --name reviewer --jobs 1
  tenure serve --exec 'claude -p' --name claude")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// What answers a run: a command line for sh
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// What it is called by those who call it. Its key is kept here: started again within its lease, it is the same session
    /// [default: serve, with a key of its own]
    #[arg(long)]
    name: Option<String>,
    /// Answer so many runs at once; more wait
    #[arg(long, value_name = "N", default_value_t = JOBS, value_parser = clap::value_parser!(u8).range(1..=JOBS_MAX))]
    jobs: u8,
    /// Print one JSON object a line: that it is ready, and how each run ended
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| {
        let stay = Stay { inbox: InboxChoice::Session, talks: true, serves: true, ..Stay::default() };
        let who = args.name.as_deref().map_or(Who::Own(NAME), Who::Named);
        let guest = signals.unless(args.at.enter(who, stay)).await?;
        let (key, name) = (guest.session.key(), args.name.as_deref().unwrap_or(NAME));
        let (trouble, mut unprinted) = mpsc::channel(1);
        let desk = Arc::new(Desk {
            command: args.exec.clone(),
            json: args.json,
            session: guest.session.clone(),
            max_payload: guest.max_payload(),
            trouble,
            reaper: reaper(),
        });
        let ready = json!({"event": "ready", "name": name, "session": key});
        desk.say(&ready, || format!("answering runs as {}, session:{key}", safe(name)));
        let server = guest.session.serve_runs(move |run| answer(run, Arc::clone(&desk)));
        // None is resumed after it loses, so none needs to be cancel-safe: runs under way end with their server.
        let outcome = tokio::select! {
            end = server.concurrency(usize::from(args.jobs)).into_future() => Err(failure(end)),
            end = leave_lying(&guest.session) => Err(end),
            Some(error) = unprinted.recv() => {
                let text = format!("write to standard output: {error}; no more runs are answered");
                Err(Failure::Failed(text))
            }
            () = signals.recv() => Ok(()),
        };
        guest.leave_soon(&mut signals).await;
        outcome
    })
}

/// What ends our commands if we are killed; without it they would go on.
fn reaper() -> Option<Arc<Reaper>> {
    let started = Reaper::start();
    if let Err(error) = &started {
        eprintln!("warning: killed with SIGKILL, this would leave its commands running: {error}");
    }
    started.ok()
}

/// Leaves messages that are no runs to whoever reads the inbox later; but urgent ones share their lane with runs, and past
/// a bound they make way.
async fn leave_lying(session: &Session) -> Failure {
    let mut inbox = match session.inbox() {
        Ok(inbox) => inbox,
        Err(error) => return Failure::Failed(error.to_string()),
    };
    let (mut lying, mut urgent) = (Vec::new(), 0);
    loop {
        let message = match inbox.next_message().await {
            Ok(message) => message,
            Err(end) => return ended(end),
        };
        if message.priority == Priority::Now {
            urgent += 1;
        }
        if message.priority == Priority::Now && urgent > URGENT {
            // Nobody waits for it: what became of it the sender is told.
            drop(message.dead("this session answers runs and reads no messages"));
        } else {
            eprintln!("a message from {} waits in the inbox", safe(&message.from.name));
            lying.push(message);
        }
    }
}

fn failure(end: ServeEnd) -> Failure {
    match end {
        ServeEnd::Session(end) => Failure::from(end),
        ServeEnd::NotAsked | ServeEnd::Taken => Failure::Failed(end.to_string()),
    }
}

/// What the answers to all runs share.
struct Desk {
    command: String,
    json: bool,
    session: Session,
    /// Bytes of a result.
    max_payload: watch::Receiver<usize>,
    /// That nobody can read what is said; the first time is enough.
    trouble: mpsc::Sender<std::io::Error>,
    /// What ends our commands if we are killed.
    reaper: Option<Arc<Reaper>>,
}

impl Desk {
    /// Says something: to programs on stdout, to people on stderr.
    fn say(&self, event: &Value, words: impl FnOnce() -> String) {
        if !self.json {
            eprintln!("{}", words());
        } else if let Err(error) = emit_json(event) {
            let _ = self.trouble.try_send(error);
        }
    }
}

async fn answer(run: Run, desk: Arc<Desk>) -> Result<Value, RunError> {
    let (id, from, since, settled) = (run.id, safe(&run.from.name), Instant::now(), run.settled());
    let outcome = match cut_off(&run, &desk.session).await {
        Some(error) => Err(error),
        None => {
            let most = *desk.max_payload.borrow();
            exec::answer(run, &desk.command, most, desk.reaper.as_ref()).await
        }
    };
    let (status, error) = match &outcome {
        Ok(_) => ("ok", None),
        Err(RunError::Cancelled) => ("cancelled", None),
        Err(RunError::Failed(error)) => ("error", Some(error.clone())),
    };
    let took = since.elapsed().as_secs_f64();
    // When the broker has its end: whatever comes of saying this, that comes first.
    tokio::spawn(async move {
        settled.await;
        let event = json!({"event": "run", "runId": id, "from": from, "status": status, "error": error});
        desk.say(&event, || {
            let why = error.map(|error| format!(": {}", sentence(&error.to_string()))).unwrap_or_default();
            format!("{id} from {from}: {status} after {took:.1} s{why}")
        });
    });
    outcome
}

/// Why a run is not answered from the beginning, if a process before this one has said something of it: its caller has that,
/// and would take the two for one answer.
async fn cut_off(run: &Run, session: &Session) -> Option<RunError> {
    if !run.redelivered {
        return None;
    }
    match session.run_get(run.id).await {
        Ok(known) if known.last_seq.get() == 0 => None,
        Ok(_) => {
            let text = "its command was cut off with the process that ran it; call again under another key";
            Some(RunError::Failed(WireError::new(ErrorCode::Unavailable, text)))
        }
        Err(error) => Some(RunError::Failed(error)),
    }
}
