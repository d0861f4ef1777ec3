//! What is wrong with the store besides that it cannot write: entries that are damaged, and what a check of it found.
//! Health is `degraded` meanwhile and says why.

use crate::Mesh;

/// Bytes of a reason that health repeats; the broker's log has all of it.
const REASON_BYTES: usize = 512;

/// What is wrong with the store.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// Damaged entries that readers came to since the start, or since the last check that found none.
    damaged: u64,
    /// What the shell found out about the files, in a sentence.
    reason: Option<String>,
}

impl Trouble {
    pub(crate) fn is_none(&self) -> bool {
        self.damaged == 0 && self.reason.is_none()
    }

    /// What the shell found out about the files, if anything.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// A sentence for each thing that is wrong.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let count = self.damaged;
        let damaged = (count > 0).then(|| {
            format!(
                "readers met {count} damaged entries, which are dead letters; see `tenure dead list` and `tenure check --running`"
            )
        });
        damaged.into_iter().chain(self.reason.clone())
    }
}

impl Mesh {
    /// The shell has checked the store: what is wrong with it now, if anything. A store without findings has no damaged
    /// entries either.
    pub(crate) fn store_checked(&mut self, reason: Option<String>) {
        let reason = reason.map(|mut reason| {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES));
            reason
        });
        let changed = self.trouble.reason != reason || (reason.is_none() && self.trouble.damaged > 0);
        if reason.is_none() {
            self.trouble.damaged = 0;
        }
        self.trouble.reason = reason;
        if changed {
            self.health_changed();
        }
    }

    /// A reader came to entries that do not match their checksum.
    pub(crate) fn met_damage(&mut self, entries: usize) {
        if entries > 0 {
            self.trouble.damaged = self.trouble.damaged.saturating_add(entries as u64);
            self.health_changed();
        }
    }

    /// Health is something else than it was: everybody who is here is told.
    pub(crate) fn health_changed(&mut self) {
        self.health_version += 1;
        for session in self.conns.values().copied().collect::<Vec<_>>() {
            self.tell_health(session);
        }
    }
}
