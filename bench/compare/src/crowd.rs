//! Many sessions of one system, and what happened to them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::peer::Fut;

/// Sessions that are connected, subscribed to what is theirs, and come back by themselves.
pub(crate) trait Crowd: Send + Sync {
    /// How many.
    fn count(&self) -> usize;

    /// What they wrote down.
    fn notes(&self) -> &Arc<Notes>;

    /// What a session is here, in a sentence.
    fn what(&self) -> &'static str;

    /// How long a client must stand before it has forgotten that its last socket broke, and waits no longer than the first
    /// time: a storm is no series of failures.
    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    /// Why nobody comes back here, where that is so.
    fn no_return(&self) -> Option<&'static str> {
        None
    }

    /// Whether its sessions can be sent anything.
    fn sends(&self) -> bool {
        true
    }

    /// Breaks every socket without a word.
    fn cut(&self) -> Fut<'_, ()>;

    /// Sends message `number` to session `to`; comes back when it is confirmed.
    fn send<'a>(&'a self, to: usize, number: u64) -> Fut<'a, ()>;

    /// Presence events that a watcher has seen so far; nothing where there is no presence. A cut spares the watcher, a
    /// restart does not: what it missed meanwhile it must find out.
    fn presence(&self) -> Option<u64>;

    /// How presence is had here.
    fn presence_by(&self) -> &'static str;
}

/// What the sessions of a crowd write down.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// When a session was attached last, by its number.
    attached: Vec<Option<Instant>>,
    /// How often each message came.
    received: Vec<u32>,
}

impl Notes {
    /// For so many sessions.
    pub(crate) fn new(count: usize) -> Arc<Notes> {
        let inner = Inner { attached: vec![None; count], received: Vec::new() };
        Arc::new(Notes { inner: Mutex::new(inner) })
    }

    /// A session has a socket again, or for the first time, and what it reads goes on.
    pub(crate) fn attached(&self, index: usize) {
        self.attached_at(index, Instant::now());
    }

    /// The same, as of then.
    pub(crate) fn attached_at(&self, index: usize, then: Instant) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = inner.attached.get_mut(index) {
            *at = Some(then);
        }
    }

    /// A session's application was given message `number`.
    pub(crate) fn received(&self, number: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number as usize;
        if inner.received.len() <= number {
            inner.received.resize(number + 1, 0);
        }
        inner.received[number] = inner.received[number].saturating_add(1);
    }

    /// When each session that was attached after `since` was.
    pub(crate) fn back_since(&self, since: Instant) -> Vec<Instant> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.attached.iter().flatten().filter(|at| **at > since).copied().collect()
    }

    /// How many were ever attached.
    pub(crate) fn ever(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.attached.iter().flatten().count()
    }

    /// How often each of these messages came.
    pub(crate) fn copies(&self, numbers: &[u64]) -> Vec<u32> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.iter().map(|number| inner.received.get(*number as usize).copied().unwrap_or(0)).collect()
    }

    /// How many messages came more than once, whether or not they were confirmed: nobody sent any of them twice.
    pub(crate) fn doubled(&self) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.received.iter().filter(|copies| **copies > 1).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_tell_who_is_back_and_what_came_twice() {
        let notes = Notes::new(3);
        notes.attached(0);
        let cut = Instant::now();
        notes.attached(1);
        notes.received(4);
        notes.received(4);
        assert_eq!((notes.ever(), notes.back_since(cut).len()), (2, 1));
        notes.received(5);
        assert_eq!(notes.copies(&[3, 4, 5]), vec![0, 2, 1]);
        assert_eq!(notes.doubled(), 1);
    }
}
