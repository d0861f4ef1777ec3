//! A socket's mailbox: how the mesh's task hands things to a connection without ever waiting for it.
//!
//! It has no capacity of its own because its contents are bounded by what puts them there: at most one batch of
//! events that has not left yet, one answer per request (and the connection stops reading at its limit), one
//! close. Idle it holds no memory, which matters when there are many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::conn::Out;
use tokio::sync::Notify;

/// A socket's mailbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` once the mailbox is shut.
    queue: Mutex<Option<VecDeque<Out>>>,
    filled: Notify,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner { queue: Mutex::new(Some(VecDeque::new())), filled: Notify::new() }
    }
}

impl Mailbox {
    fn queue(&self) -> MutexGuard<'_, Option<VecDeque<Out>>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in, unless it is shut.
    pub(crate) fn put(&self, out: Out) {
        if let Some(queue) = &mut *self.queue() {
            queue.push_back(out);
            self.0.filled.notify_one();
        }
    }

    /// Drops what is in it and whatever is put in later: its socket is closing, which may take a while.
    pub(crate) fn shut(&self) {
        *self.queue() = None;
    }

    /// Takes everything out; waits until there is something. Cancel-safe: nothing is taken before it returns.
    pub(crate) async fn take(&self) -> VecDeque<Out> {
        loop {
            let all = self.queue().as_mut().map(std::mem::take).unwrap_or_default();
            if !all.is_empty() {
                return all;
            }
            self.0.filled.notified().await;
        }
    }
}
