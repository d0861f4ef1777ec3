//! Other numbers for a mesh that runs.
//!
//! What a client was told in its hello is kept until its next one ([`Terms`](crate::config::Terms)); everything else
//! holds from here on: for what begins, is sent, handed out or swept after this. What is in hand keeps its deadline.

use std::sync::Arc;

use tenure_kit::time::Millis;
use tenure_proto::limits::STARTUP_GRACE_MS;

use crate::Mesh;
use crate::access::setting;
use crate::config::MeshConfig;
use crate::effect::{Effect, Note};

impl Mesh {
    /// Takes up other numbers of the broker's own; what operators have set is set on top of them.
    pub(crate) fn rebase(&mut self, now: Millis, base: MeshConfig, effects: &mut Vec<Effect>) {
        match setting::apply(&base, &self.settings.values) {
            Ok(config) => {
                self.base = Arc::new(base);
                self.configure(now, config, effects);
            }
            Err(error) => effects.push(Effect::Note(Note::ConfigRefused { reason: error.message })),
        }
    }

    /// Takes up other numbers, if they hold together. `now` is on the shell's clock. Looks at every lease and log
    /// once: it is a person's doing.
    pub(crate) fn configure(&mut self, now: Millis, config: MeshConfig, effects: &mut Vec<Effect>) {
        if let Err(error) = config.check() {
            return effects.push(Effect::Note(Note::ConfigRefused { reason: error.to_string() }));
        }
        self.config = Arc::new(config);
        self.lease_bound = self.config.max_sessions.max(self.leases.len());
        self.thaw.retune(self.config.lease_ttl_ms, now);
        let grace_ms = self.config.reconnect_grace_ms;
        for session in self.leases.keys().copied().collect::<Vec<_>>() {
            // A grace that was to be long ends within the new one; what a start has found has its own least.
            let least = if self.startup.waiting.contains(&session) { STARTUP_GRACE_MS } else { 0 };
            let release_by = self.now.plus(grace_ms.max(least));
            if let Some(lease) = self.leases.get_mut(&session) {
                lease.subs.release_at = lease.subs.release_at.map(|at| at.min(release_by));
            }
            self.reschedule(session);
        }
        self.messages.logs.prune_anew();
        self.upkeep_soon();
        effects.push(Effect::Note(Note::Configured));
    }
}
