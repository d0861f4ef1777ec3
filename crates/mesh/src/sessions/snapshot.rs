//! What a screen is drawn from: everything that a session may see, at one moment, and the versions that it has.

use tenure_proto::hello::{HealthStatus, Queue, Snapshot, StateVersion};
use tenure_proto::ids::{SessionKey, SubId};
use tenure_proto::limits::{PRESENCE_PAGE, SERVICES_PAGE, SNAPSHOT_RUNS};
use tenure_proto::number::U53;

use crate::Mesh;
use crate::access::Right;
use crate::messages::subs::Sub;

impl Mesh {
    /// What a client that begins anew is told at once.
    pub(crate) fn snapshot(&mut self, session: SessionKey) -> Snapshot {
        let (services, next) = self.services.page(self.clock.now(), false, None, SERVICES_PAGE);
        let subs = self.sessions.leases.get(&session).map(|lease| &lease.subs);
        let subscriptions =
            subs.into_iter().flat_map(|subs| subs.iter()).filter_map(|(id, sub)| sub.view(id));
        let depth = |sub: &Sub| sub.groups.iter().map(|id| self.messages.depth_of(*id)).sum();
        let queue =
            |(id, sub): (&SubId, &Sub)| Queue { sub_id: id.clone(), depth: U53::saturating(depth(sub)) };
        let queues = subs.into_iter().flat_map(|subs| subs.iter()).map(queue).collect();
        let (presence, more) = self.sessions.presence.page(None, PRESENCE_PAGE);
        let (runs, more_runs) = match self.may(session, Right::Run) {
            Ok(()) => self.runs_page(session, None, SNAPSHOT_RUNS),
            Err(_) => (Vec::new(), None),
        };
        Snapshot {
            presence,
            more,
            services,
            more_services: next.is_some(),
            subscriptions: subscriptions.collect(),
            queues,
            runs,
            more_runs: more_runs.is_some(),
            health: self.health_status(),
            uptime_ms: U53::saturating(self.clock.uptime_ms()),
        }
    }

    /// How far each kind of state is.
    pub(crate) fn state_version(&self) -> StateVersion {
        StateVersion {
            presence: U53::saturating(self.sessions.presence.version()),
            services: U53::saturating(self.services.feed().version()),
            health: U53::saturating(self.sessions.health_version),
        }
    }

    /// Why the broker is degraded, if it is: a sentence for each reason.
    pub(crate) fn health_reason(&self) -> Option<String> {
        let unsound =
            || "the store cannot write: look at the broker's log, and at the room on its disk".to_owned();
        let store = (!self.store.is_sound()).then(unsound);
        let clock = self.clock_doubt().map(|doubt| doubt.to_string());
        let reasons: Vec<String> =
            store.into_iter().chain(clock).chain(self.store.trouble().reasons()).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// How the broker is.
    pub(crate) fn health_status(&self) -> HealthStatus {
        let sound = self.store.is_sound() && !self.clock.is_doubted() && self.store.trouble().is_none();
        match (&self.drain, sound) {
            (Some(_), _) => HealthStatus::Draining,
            (None, false) => HealthStatus::Degraded,
            (None, true) => HealthStatus::Ok,
        }
    }
}
