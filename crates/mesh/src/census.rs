//! What those who test a mesh may see of it: where every session stands, and how full everything is.

use tenure_kit::census::Count;
use tenure_kit::time::Millis;
use tenure_proto::ids::{ConnId, SessionKey};
use tenure_proto::limits::{
    CONTEST_REPLACEMENTS, MAX_INFLIGHT, RING_BYTES, RING_EVENTS, SUBSCRIPTIONS_PER_SESSION,
};

use crate::Mesh;
use crate::access::admin::OPERATIONS_MAX;
use crate::access::setting::SETTINGS;
use crate::messages::group::OPEN_MAX;
use crate::messages::subs::{Sub, Subs};
use crate::sessions::lease::{Lease, State};
use crate::sessions::stream::{FED_BYTES, FED_EVENTS, PENDING_EVENTS};
use crate::store::retry_queue::{OWED_MAX, OWED_PER_SESSION};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The store is being told of its lease, and peers are not yet; with the socket whose hello waits, if it is there.
    Knocking(Option<ConnId>),
    /// This socket carries it.
    Online(ConnId),
    /// No socket carries it; somebody may just be coming back.
    Grace {
        /// When its lease ends if nobody comes back, on the shell's clock. A freeze that is noticed later moves it.
        until: Millis,
    },
    /// The store is being told of the end of its lease; with the socket whose hello waits for that, if there is one.
    Ending(Option<ConnId>),
}

impl Mesh {
    /// Every session that has a lease, or is about to, and where it stands.
    pub fn sessions_by_state(&self) -> impl Iterator<Item = (SessionKey, SessionState)> + '_ {
        self.sessions.leases().map(|(session, lease)| {
            let state = match &lease.state {
                State::Beginning(knock) => SessionState::Knocking(knock.as_ref().map(|knock| knock.conn)),
                State::Online(carrier) => SessionState::Online(carrier.conn),
                State::Grace | State::Returning(_) => {
                    SessionState::Grace { until: self.clock.shell(lease.until(&self.config)) }
                }
                State::Ending(_, knock) => SessionState::Ending(knock.as_ref().map(|knock| knock.conn)),
            };
            (*session, state)
        })
    }

    /// How often a consumer group was looked at because its log grew or somebody listed it: what posts and lists cost
    /// beyond themselves.
    pub fn group_visits(&self) -> u64 {
        self.messages.visits()
    }

    /// How full everything is that has a bound, after a flush. Looks at everything once.
    pub fn census(&self) -> Vec<Count> {
        let (leases, bound) = (self.sessions.len(), self.sessions.most());
        let requests = bound.saturating_mul(MAX_INFLIGHT as usize);
        let (readings, proving, parked) = self.messages.sizes();
        let count = |what, size, bound| Count { what, size, bound };
        let mut counts = vec![
            count("sockets whose tags are proven", proving, self.store.reading()),
            count("settings", self.settings.len(), SETTINGS.len()),
            // Each of a lease, of a request, of a group that changed or of a service that ends.
            count(
                "writes that are awaited",
                self.store.waiting(),
                (requests + leases + OPERATIONS_MAX + self.services.len())
                    .saturating_add(readings + self.runs.living()),
            ),
            count(
                "writes that are owed",
                self.store.retries.len(),
                bound.saturating_mul(OWED_PER_SESSION).saturating_add(OWED_MAX),
            ),
            // Each of a request, of a group or of a hello, and one for what expires.
            count(
                "reads that are awaited",
                self.store.reading(),
                requests.saturating_add(readings + 1 + OPERATIONS_MAX + self.sessions.comparing()),
            ),
        ];
        self.access.count(&mut counts, leases, self.store.waiting());
        self.sessions.count(&mut counts, self.config.max_sessions);
        self.count_sessions(&mut counts);
        self.services.count(&mut counts);
        self.messages.count(&mut counts, &self.config, self.settings.base());
        self.runs.count(&mut counts);
        let held: usize =
            self.sessions.leases().flat_map(|(_, l)| l.subs.iter()).map(|(_, sub)| sub.in_hand()).sum();
        counts.push(count("deliveries that wait for their claims", parked, held));
        counts
    }

    /// What every session has, of the one that has most.
    fn count_sessions(&self, counts: &mut Vec<Count>) {
        let leases = || self.sessions.leases().map(|(_, lease)| lease);
        let subs = || leases().flat_map(|lease| lease.subs.iter()).map(|(_, sub)| sub);
        let fetches = |subs: &Subs| subs.iter().map(|(_, sub)| sub.fetches.len()).sum::<usize>();
        let pushed = |sub: &Sub| (sub.pushed(), sub.prefetch as usize);
        // What is fetched is bounded as it is taken; what a client says it has must be open in one of its groups.
        let in_hand = |sub: &Sub| (sub.in_hand(), sub.groups.len().saturating_mul(OPEN_MAX));
        counts.extend([
            Count::fullest(
                "takeovers of a session",
                leases().map(|lease| (lease.takeovers.len(), CONTEST_REPLACEMENTS)),
            ),
            Count::fullest(
                "subscriptions of a session",
                leases().map(|lease| (lease.subs.asked_for(), SUBSCRIPTIONS_PER_SESSION)),
            ),
            Count::fullest("pushed to a subscription and in hand", subs().map(pushed)),
            Count::fullest("in hand of a subscription", subs().map(in_hand)),
            Count::fullest(
                "fetches of a session that wait",
                leases().map(|lease| (fetches(&lease.subs), MAX_INFLIGHT as usize)),
            ),
        ]);
        // What is sent again after a break waits in front of what waited already.
        let bounds = [
            ("events that wait for a session", PENDING_EVENTS + RING_EVENTS),
            ("bytes of events that wait for a session", 2 * RING_BYTES),
            ("events that can be replayed to a session", RING_EVENTS),
            ("bytes of events that can be replayed to a session", RING_BYTES),
            ("events of runs that wait for a session", FED_EVENTS + RING_EVENTS),
            // Of one that goes alone JSON may take some thirty times the memory of its text.
            ("bytes of runs that wait for a session", FED_BYTES + RING_BYTES + 32 * self.config.max_payload),
        ];
        for (index, (what, bound)) in bounds.into_iter().enumerate() {
            let size = |lease: &Lease| lease.stream.sizes()[index];
            counts.push(Count::fullest(what, leases().map(|lease| (size(lease), bound))));
        }
    }
}
