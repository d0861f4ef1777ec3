//! How the drain of a session hears of new rows: lanes, each once, so that it is never more than there are lanes.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_outbox::LaneId;
use tokio::sync::Notify;

/// Lanes that have got a row since somebody last looked; none once nobody looks any more.
#[derive(Debug)]
pub(crate) struct Queue {
    lanes: Mutex<Option<BTreeSet<LaneId>>>,
    bell: Notify,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { lanes: Mutex::new(Some(BTreeSet::new())), bell: Notify::new() }
    }
}

impl Queue {
    /// A row is on the disk, in this lane; `false` if nobody looks here any more, and another must be told.
    pub(crate) fn push(&self, lane: LaneId) -> bool {
        let open = self.lanes().as_mut().map(|lanes| lanes.insert(lane)).is_some();
        self.bell.notify_one();
        open
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
        self.lanes().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody looks here from now on: what nobody has looked at, for who does instead.
    pub(crate) fn close(&self) -> BTreeSet<LaneId> {
        self.lanes().take().unwrap_or_default()
    }

    fn lanes(&self) -> MutexGuard<'_, Option<BTreeSet<LaneId>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
