//! Being asked to end: the first signal begins an orderly end, which takes a bounded time; the second ends the command at
//! once, whatever it waits for.
//!
//! Signals are heard by a thread of their own. So a command that is stuck (a broker that does not answer, a pipe that is
//! not read, a name that is not resolved) ends all the same.

use std::process;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::exit::Failure;
use crate::output::lines;

/// How long the orderly end of a command may take, from the first signal on.
const ENDING: Duration = Duration::from_secs(8);
/// How long what is to be said last may take after the second.
const AT_ONCE: Duration = Duration::from_millis(300);
/// How long a command that should have ended may take to be gone; then the process ends where it stands.
const GONE: Duration = Duration::from_secs(1);

/// What was heard so far.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    signals: u32,
    /// The last of them.
    last: i32,
}

/// Signals that ask a command to end.
#[derive(Debug)]
pub(crate) struct Signals {
    heard: watch::Receiver<Heard>,
    /// How many of them were taken note of.
    taken: u32,
}

/// Runs a command that a signal may end. It is told of the first signal; if it is not over [`ENDING`] later, or when a second
/// comes, it is dropped.
pub(crate) fn interruptible<W>(work: impl FnOnce(Signals) -> W) -> Result<(), Failure>
where
    W: Future<Output = Result<(), Failure>>,
{
    let runtime = crate::runtime()?;
    let outcome = runtime.block_on(async {
        let signals = Signals::listen()?;
        let cut = cut_short(signals.heard.clone());
        // The work is not resumed when it is cut short, so it need not be cancel-safe: the command ends.
        tokio::select! {
            biased;
            outcome = work(signals) => outcome,
            failure = cut => Err(failure),
        }
    });
    // What is stuck in a thread is not waited for.
    runtime.shutdown_timeout(GONE);
    outcome
}

/// Why a command that was asked to end is waited for no longer, once that is so.
async fn cut_short(mut heard: watch::Receiver<Heard>) -> Failure {
    let asked = |times: u32| move |heard: &Heard| heard.signals >= times;
    if heard.wait_for(asked(1)).await.is_err() {
        return std::future::pending().await;
    }
    // Both are cancel-safe: they only wait.
    tokio::select! {
        second = heard.wait_for(asked(2)) => {
            let signal = second.map_or(0, |heard| heard.last);
            sleep(AT_ONCE).await;
            Failure::Interrupted(signal)
        }
        () = sleep(ENDING) => {
            let text = format!("the broker did not answer for {} s; ended without it", ENDING.as_secs());
            Failure::Unreachable(text)
        }
    }
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("watch for signals: {error}"));
        let (tell, heard) = watch::channel(Heard::default());
        let (ready, is_ready) = mpsc::channel();
        let hear = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            runtime.block_on(hear(&tell, &ready));
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(hear).map_err(failed)?;
        let ended = || std::io::Error::other("the thread has ended");
        is_ready.recv().unwrap_or_else(|_| Err(ended())).map_err(failed)?;
        Ok(Signals { heard, taken: 0 })
    }

    /// Does something that waits for a broker, unless one of them comes first.
    pub(crate) async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        // The work is not resumed after a signal, so it need not be cancel-safe: the command ends.
        tokio::select! {
            done = work => done,
            () = self.recv() => Err(Failure::Failed("stopped before the broker had answered".to_owned())),
        }
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn recv(&mut self) {
        let taken = self.taken;
        match self.heard.wait_for(|heard| heard.signals > taken).await {
            Ok(_) => self.taken += 1,
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether there was more than one: then nothing is waited for.
    pub(crate) fn insist(&self) -> bool {
        self.heard.borrow().signals > 1
    }
}

/// Tells of every signal, and ends the process if it should have ended by itself and has not.
async fn hear(tell: &watch::Sender<Heard>, ready: &mpsc::Sender<std::io::Result<()>>) {
    let streams = signal(SignalKind::interrupt()).and_then(|i| Ok((i, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match streams {
        Ok(streams) => streams,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let _ = ready.send(Ok(()));
    // No later signal puts it off.
    let mut end = None::<Instant>;
    loop {
        // All are cancel-safe: a signal stays in its stream, and `end` is the same every time.
        let last = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
            () = at(end) => {
                let heard = *tell.borrow();
                let failure = if heard.signals > 1 { Failure::Interrupted(heard.last) } else { stuck() };
                eprintln!("tenure: {}", lines(&failure.to_string()));
                process::exit(failure.number().into())
            }
        };
        let before = tell.borrow().signals;
        let wanted = Instant::now() + if before == 0 { ENDING + GONE } else { AT_ONCE + GONE };
        end = Some(end.map_or(wanted, |end| end.min(wanted)));
        tell.send_replace(Heard { signals: before + 1, last });
    }
}

async fn at(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

fn stuck() -> Failure {
    Failure::Failed("it did not end in time, and was ended".to_owned())
}
