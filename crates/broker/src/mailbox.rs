//! A socket's mailbox: how the mesh's task hands things to a connection without ever waiting for it.
//!
//! It has no capacity of its own because its contents are bounded by what puts them there: at most one batch of
//! events that has not left yet, one answer per request (and the connection stops reading at its limit), one
//! close. Idle it holds no memory, which matters when there are many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::conn::Out;
use tokio::sync::Notify;

/// A socket's mailbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailbox(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: Mutex<VecDeque<Out>>,
    filled: Notify,
}

impl Mailbox {
    /// Puts something in.
    pub(crate) fn put(&self, out: Out) {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(out);
        self.0.filled.notify_one();
    }

    /// Takes everything out; waits until there is something. Cancel-safe: nothing is taken before it returns.
    pub(crate) async fn take(&self) -> VecDeque<Out> {
        loop {
            let all = std::mem::take(&mut *self.0.queue.lock().unwrap_or_else(PoisonError::into_inner));
            if !all.is_empty() {
                return all;
            }
            self.0.filled.notified().await;
        }
    }
}
