//! How the drain of a session hears of new rows: lanes, each once, so that it is never more than there are lanes.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tenure_core::outbox::LaneId;
use tokio::sync::Notify;

/// Lanes that have got a row since somebody last looked.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lanes: Mutex<BTreeSet<LaneId>>,
    bell: Notify,
}

impl Queue {
    /// A row is on the disk, in this lane.
    pub(crate) fn push(&self, lane: LaneId) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).insert(lane);
        self.bell.notify_one();
    }

    /// Makes whoever waits look, though there may be nothing.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits until there is something to look at. Cancel-safe.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// What there is.
    pub(crate) fn take(&self) -> BTreeSet<LaneId> {
        std::mem::take(&mut *self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
