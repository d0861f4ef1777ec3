//! Other numbers for a mesh that runs.
//!
//! What a client was told in its hello is kept until its next one ([`Terms`](crate::config::Terms)); everything else
//! holds from here on: for what begins, is sent, handed out or swept after this. What is in hand keeps its deadline.

use std::sync::Arc;

use tenure_kit::time::Millis;
use tenure_proto::limits::STARTUP_GRACE_MS;

use crate::Mesh;
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
    pub(crate) fn new(base: Arc<MeshConfig>) -> Settings {
        Settings { base, version: 0, values: Values::new() }
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
    /// Takes up other numbers of the broker's own; what operators have set is set on top of them.
    pub(crate) fn rebase(&mut self, now: Millis, base: MeshConfig) {
        match setting::apply(&base, &self.settings.values) {
            Ok(config) => {
                self.settings.base = Arc::new(base);
                self.configure(now, config);
            }
            Err(error) => self.effects.push_back(Effect::Note(Note::ConfigRefused { reason: error.message })),
        }
    }

    /// Takes up other numbers, if they hold together. `now` is on the shell's clock. Looks at every lease and log
    /// once: it is a person's doing.
    pub(crate) fn configure(&mut self, now: Millis, config: MeshConfig) {
        let taken = self.take_up(now, config);
        let note = taken.map_or_else(|reason| Note::ConfigRefused { reason }, |()| Note::Configured);
        self.effects.push_back(Effect::Note(note));
    }

    /// The same without a note of it: what operators had set is taken up at a start.
    pub(crate) fn take_up(&mut self, now: Millis, config: MeshConfig) -> Result<(), String> {
        config.check().map_err(|error| error.to_string())?;
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
        Ok(())
    }
}
