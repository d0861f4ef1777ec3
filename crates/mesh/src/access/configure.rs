//! Other numbers for a mesh that runs.
//!
//! What a client was told in its hello is kept until its next one ([`Terms`](crate::config::Terms)); everything else
//! holds from here on: for what begins, is sent, handed out or swept after this. What is in hand keeps its deadline.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::limits::STARTUP_GRACE_MS;

use crate::Mesh;
use crate::access::RestoredAccess;
use crate::access::setting::{self, Values};
use crate::config::MeshConfig;
use crate::effect::{Effect, Note};

/// What operators have set while the mesh ran, and the broker's own numbers under it.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The broker's own.
    pub(super) base: Arc<MeshConfig>,
    /// How often operators have set something.
    pub(super) version: u64,
    /// At most one for each setting that there is.
    pub(super) values: Values,
}

impl Settings {
    /// What a store remembers, on a broker with these numbers of its own; the numbers that hold, and why not all that
    /// operators had set does.
    pub(crate) fn recall(
        base: MeshConfig,
        restored: &RestoredAccess,
    ) -> (Settings, MeshConfig, Option<String>) {
        let mut values = restored.settings.clone();
        // One that an earlier program took is no reason to forget the others.
        let mut unset = setting::weed(&mut values);
        if mutant::on(Mutant::OwnNumbersAtStart) {
            values.clear();
        }
        let config = setting::apply(&base, &values).unwrap_or_else(|error| {
            // The broker was started with other numbers since, and those win.
            unset.push(error.message);
            base.clone()
        });
        let settings = Settings { base: Arc::new(base), version: restored.settings_version, values };
        (settings, config, (!unset.is_empty()).then(|| unset.join("; ")))
    }

    pub(crate) fn base(&self) -> &MeshConfig {
        &self.base
    }

    /// How many are set.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

impl Mesh {
    /// Takes up other numbers, which hold together. `now` is on the shell's clock. Looks at every lease and log once: it is
    /// a person's doing.
    pub(crate) fn configure(&mut self, now: Millis, config: MeshConfig) {
        self.config = Arc::new(config);
        self.sessions.bound(self.config.max_sessions);
        self.clock.retune(self.config.lease_ttl_ms, now);
        let grace_ms = self.config.reconnect_grace_ms;
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            // A grace that was to be long ends within the new one; what a start has found has its own least.
            let least = if self.sessions.is_restored(&session) { STARTUP_GRACE_MS } else { 0 };
            let release_by = self.clock.now().plus(grace_ms.max(least));
            if let Some(lease) = self.sessions.lease_mut(&session) {
                lease.subs.release_at = lease.subs.release_at.map(|at| at.min(release_by));
            }
            self.reschedule(session);
        }
        self.messages.prune_anew();
        self.upkeep_soon();
        self.effects.push_back(Effect::Note(Note::Configured));
    }
}
