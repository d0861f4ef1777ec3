//! A socket's mailbox: how the mesh's task hands things to a connection without ever waiting for it.
//!
//! It has no capacity of its own because its contents are bounded by what puts them there: at most one batch of
//! events that has not left yet, one answer per request (and the connection stops reading at its limit), one
//! close. Idle it holds no memory, which matters when there are many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_mesh::conn::Out;
use tokio::sync::Notify;

use crate::reader::ReadAheadShare;

/// A socket's mailbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` once the mailbox is shut.
    queue: Mutex<Option<Queue>>,
    filled: Notify,
}

/// The contents of a mailbox.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) outs: VecDeque<Out>,
    /// Shares of the read-ahead bound, held until the socket has counted the bytes as its own.
    pub(crate) read_ahead: Vec<Arc<Vec<ReadAheadShare>>>,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner { queue: Mutex::new(Some(Queue::default())), filled: Notify::new() }
    }
}

impl Mailbox {
    fn queue(&self) -> MutexGuard<'_, Option<Queue>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in, unless it is shut.
    pub(crate) fn put(&self, out: Out) {
        self.put_read(out, None);
    }

    /// Puts something in that was read just now, unless it is shut.
    pub(crate) fn put_read(&self, out: Out, read_ahead: Option<&Arc<Vec<ReadAheadShare>>>) {
        if let Some(queue) = &mut *self.queue() {
            queue.outs.push_back(out);
            queue.read_ahead.extend(read_ahead.cloned());
            self.0.filled.notify_one();
        }
    }

    /// Drops what is in it and whatever is put in later: its socket is closing, which may take a while.
    pub(crate) fn shut(&self) {
        *self.queue() = None;
    }

    /// Takes everything out; waits until there is something. Cancel-safe: nothing is taken before it returns.
    pub(crate) async fn take(&self) -> Queue {
        loop {
            let all = self.queue().as_mut().map(std::mem::take).unwrap_or_default();
            if !all.outs.is_empty() {
                return all;
            }
            self.0.filled.notified().await;
        }
    }
}
