//! Visits: sessions that last as long as somebody listens to their events, and leave no trace.
//!
//! Who makes one lets it go when it is done. A program that is killed cannot; so a visit that nobody has listened to for a
//! while is let go as well, and what a daemon that was killed left of its visits is cleared away when the next one starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_outbox::arrival::Recipient;

use crate::sessions::Local;
use crate::shared::Shared;

/// How often somebody looks: a visit that nobody listened to between two looks ends.
const LOOK: Duration = Duration::from_secs(30);

/// Who listens to a visit.
#[derive(Debug, Default)]
pub(crate) struct Visit {
    listeners: AtomicUsize,
    /// Whether nobody has listened since the last look.
    unheard: AtomicBool,
}

impl Visit {
    /// Whether nobody has listened since this was last asked.
    fn is_over(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) == 0 && self.unheard.swap(true, Ordering::Relaxed)
    }
}

/// Somebody who listens to the events of a session, as long as this lives.
#[derive(Debug)]
pub(crate) struct Listening(Arc<Local>);

impl Listening {
    /// Somebody listens to `local`.
    pub(crate) fn to(local: Arc<Local>) -> Listening {
        if let Some(visit) = &local.visit {
            visit.listeners.fetch_add(1, Ordering::Relaxed);
            visit.unheard.store(false, Ordering::Relaxed);
        }
        Listening(local)
    }
}

impl std::ops::Deref for Listening {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.0
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(visit) = &self.0.visit {
            visit.unheard.store(false, Ordering::Relaxed);
            visit.listeners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Lets visits go that nobody listens to, until the daemon stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    for session in shared.sessions.take_left() {
        forget(&shared, Recipient::Session(session)).await;
    }
    let mut look = tokio::time::interval(LOOK);
    loop {
        // Both are cancel-safe: they only wait.
        tokio::select! {
            _ = look.tick() => {}
            () = shared.stopping.cancelled() => return,
        }
        for local in shared.sessions.all() {
            if local.visit.as_ref().is_some_and(Visit::is_over) {
                let closed = shared.sessions.close(&local.mesh, &local.key);
                tracing::info!(event = "visit_ended", session = %local.key, ok = closed.is_ok(), "nobody listens");
                local.queue.ring();
            }
        }
    }
}

/// Forgets the letters of a visit that is over.
pub(crate) async fn forget(shared: &Shared, recipient: Recipient) {
    while matches!(shared.inbox.forget(recipient).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_ends_when_nobody_listened_from_one_look_to_the_next() {
        let visit = Visit::default();
        assert!(!visit.is_over(), "it has just begun");
        assert!(visit.is_over());
        visit.listeners.store(1, Ordering::Relaxed);
        visit.unheard.store(false, Ordering::Relaxed);
        assert!(!visit.is_over() && !visit.is_over(), "somebody listens");
        visit.listeners.store(0, Ordering::Relaxed);
        assert!(!visit.is_over(), "somebody did since the last look");
        assert!(visit.is_over());
    }
}
