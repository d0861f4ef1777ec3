//! What is wrong with the store besides that it cannot write: entries that are damaged, and what a check of it found.
//! Health is `degraded` meanwhile and says why.

use std::collections::BTreeSet;

use tenure_proto::log::LogName;

use crate::Mesh;
use crate::effect::{Effect, Note};

/// Bytes of a reason that health repeats; the broker's log has all of it.
const REASON_BYTES: usize = 512;
/// Damaged entries that are remembered, so that each is told once. Of more a check tells.
const DAMAGED_MAX: usize = 1_024;

/// What is wrong with the store.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// Damaged entries that a read came to since the start, or since the last check that found none; at most [`DAMAGED_MAX`].
    damaged: BTreeSet<(LogName, u64)>,
    /// What the shell found out about the files, in a sentence.
    reason: Option<String>,
}

impl Trouble {
    pub(crate) fn is_none(&self) -> bool {
        self.damaged.is_empty() && self.reason.is_none()
    }

    /// What the shell found out about the files, if anything.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// A sentence for each thing that is wrong.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let count = self.damaged.len();
        let more = if count < DAMAGED_MAX { "" } else { " or more" };
        let damaged = (count > 0).then(|| {
            format!(
                "{count}{more} damaged entries were met; a consumer gets none of them, but a dead letter: see `tenure dead list` and `tenure check --running`"
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
        let changed = self.store.trouble.reason != reason
            || (reason.is_none() && !self.store.trouble.damaged.is_empty());
        if reason.is_none() {
            self.store.trouble.damaged.clear();
        }
        self.store.trouble.reason = reason;
        if changed {
            self.health_changed();
        }
    }

    /// A read came to entries of a log that do not match their checksum. Each is told once.
    pub(crate) fn met_damage(&mut self, log: &LogName, seqs: impl Iterator<Item = u64>) {
        let mut changed = false;
        for seq in seqs {
            if self.store.trouble.damaged.len() < DAMAGED_MAX
                && self.store.trouble.damaged.insert((log.clone(), seq))
            {
                self.effects.push_back(Effect::Note(Note::EntryDamaged { log: log.clone(), seq }));
                changed = true;
            }
        }
        if changed {
            self.health_changed();
        }
    }

    /// Health is something else than it was: everybody who is here is told.
    pub(crate) fn health_changed(&mut self) {
        self.sessions.health_version += 1;
        for session in self.sessions.all_online() {
            self.tell_health(session);
        }
    }
}
