//! The thread that looks after the store's files: twice a second it makes the high-water mark durable and sees whether
//! every file is still what it was. A store whose files were removed, replaced or written over stops writing at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use tenure_store::durable::TICK;
use tenure_store::{Guard, StoreError};

use crate::shared::Shared;

/// Dropped, it ends the thread.
#[derive(Debug)]
pub(crate) struct Watching {
    _until: Sender<()>,
}

/// Starts the thread, if the store needs one.
pub(crate) fn start(
    guard: Option<Box<dyn Guard>>,
    shared: Arc<Shared>,
) -> std::io::Result<(Option<Watching>, Option<JoinHandle<()>>)> {
    let Some(mut guard) = guard else { return Ok((None, None)) };
    let (until, ended) = channel::<()>();
    let (mut sound, mut lost) = (true, false);
    let run = move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
            match guard.look() {
                Ok(()) => sound = true,
                // Said once. It looks on: whoever writes over the files may not be done with them.
                Err(error @ StoreError::Poisoned(_)) => {
                    let sound = shared.store_sound.swap(false, Ordering::Relaxed);
                    if std::mem::replace(&mut lost, true) {
                        continue;
                    }
                    if sound {
                        tracing::error!(event = "store_failed", poisoned = true, %error);
                    }
                    shared.checks.lose(&shared, &error.to_string());
                }
                // Nothing is lost: a later look writes it. Said once.
                Err(error) if sound => {
                    sound = false;
                    tracing::warn!(event = "mark_failed", %error);
                }
                Err(_) => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name("tenure-guard".to_owned()).spawn(run)?;
    Ok((Some(Watching { _until: until }), Some(thread)))
}
