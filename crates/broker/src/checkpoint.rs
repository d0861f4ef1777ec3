//! The thread that tidies up behind the writer: it moves what was committed to where it stays, now and then, so
//! that no commit has to wait for that.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure_store::Checkpointer;

use crate::guard::Watching;
use crate::shared::Shared;

/// Commits that are looked after together.
const EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct State {
    /// Whether something was committed since the last look.
    rung: bool,
    /// Whether nothing will be any more.
    over: bool,
}

/// Rung after every commit; who drops it says that there will be none.
#[derive(Debug, Default)]
pub(crate) struct Bell(Arc<(Mutex<State>, Condvar)>, Option<Watching>);

impl Bell {
    /// The same bell; with it goes the thread that looks after the store's files.
    pub(crate) fn with(mut self, watching: Option<Watching>) -> Bell {
        self.1 = watching;
        self
    }

    /// Something was committed.
    pub(crate) fn ring(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        // Waking a thread costs more than all of this: it is woken for the first of many commits.
        if !std::mem::replace(&mut state.rung, true) {
            changed.notify_one();
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let (state, changed) = &*self.0;
        state.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        changed.notify_one();
    }
}

/// Starts the thread, if the store needs one. It ends when the bell is dropped.
pub(crate) fn start(
    checkpointer: Option<Box<dyn Checkpointer>>,
    shared: Arc<Shared>,
) -> std::io::Result<(Bell, Option<JoinHandle<()>>)> {
    let bell = Bell::default();
    let Some(checkpointer) = checkpointer else { return Ok((bell, None)) };
    let heard = bell.0.clone();
    let thread = std::thread::Builder::new()
        .name("tenure-checkpoint".to_owned())
        .spawn(move || run(checkpointer, &heard, &shared))?;
    Ok((bell, Some(thread)))
}

fn run(mut checkpointer: Box<dyn Checkpointer>, bell: &(Mutex<State>, Condvar), shared: &Shared) {
    let mut sound = true;
    while wait(bell) {
        match checkpointer.run() {
            Ok(done) => {
                sound = true;
                shared.metrics.log_pages.set(done.log_pages as i64);
            }
            // Nothing is lost: the log grows until it works again. Said once.
            Err(error) if sound => {
                sound = false;
                tracing::warn!(event = "checkpoint_failed", %error);
            }
            Err(_) => {}
        }
    }
}

/// Waits until there is something to do, and a little longer for company. `false` when it is over.
fn wait((state, changed): &(Mutex<State>, Condvar)) -> bool {
    let guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    let guard =
        changed.wait_while(guard, |state| !state.rung && !state.over).unwrap_or_else(PoisonError::into_inner);
    let (mut guard, _) =
        changed.wait_timeout_while(guard, EVERY, |state| !state.over).unwrap_or_else(PoisonError::into_inner);
    guard.rung = false;
    !guard.over
}
