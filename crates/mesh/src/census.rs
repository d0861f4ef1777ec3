//! What those who test a mesh may see of it: where every session stands, and how full everything is.

use tenure_kit::census::Count;
use tenure_kit::rate::ACCOUNTS;
use tenure_kit::time::Millis;
use tenure_proto::ids::{ConnId, SessionKey};
use tenure_proto::limits::{
    CONTEST_REPLACEMENTS, MAX_INFLIGHT, MEMBERS_MAX, RING_BYTES, RING_EVENTS, SERVICES_PER_MESH,
    SERVICES_PER_SESSION, STREAMS_PER_MESH, STREAMS_WAITING, SUBSCRIPTIONS_PER_SESSION, TOPICS_MAX,
};

use crate::Mesh;
use crate::access::admin::OPERATIONS_MAX;
use crate::access::bans::BANS_MAX;
use crate::access::setting::SETTINGS;
use crate::access::{INVITES_MAX, TOKENS_MAX};
use crate::messages::Messages;
use crate::messages::deleting::TOMBS_MAX;
use crate::messages::group::OPEN_MAX;
use crate::messages::log::{TAIL_BYTES, TAIL_ENTRIES};
use crate::messages::pages::{PAGE_ENTRIES, PAGES};
use crate::messages::subs::{Sub, Subs};
use crate::services::Services;
use crate::sessions::lease::{Lease, State};
use crate::sessions::presence::DEPARTURES;
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
        self.leases.iter().map(|(session, lease)| {
            let state = match &lease.state {
                State::Beginning(knock) => SessionState::Knocking(knock.as_ref().map(|knock| knock.conn)),
                State::Online(carrier) => SessionState::Online(carrier.conn),
                State::Grace | State::Returning(_) => {
                    SessionState::Grace { until: self.thaw.shell(lease.until(&self.config)) }
                }
                State::Ending(_, knock) => SessionState::Ending(knock.as_ref().map(|knock| knock.conn)),
            };
            (*session, state)
        })
    }

    /// How often a consumer group was looked at because its log grew or somebody listed it: what posts and lists cost
    /// beyond themselves.
    pub fn group_visits(&self) -> u64 {
        self.messages.visits
    }

    /// How full everything is that has a bound, after a flush. Looks at everything once.
    pub fn census(&self) -> Vec<Count> {
        debug_assert_eq!(self.messages.backlog.depth(), self.messages.counted_backlog());
        let (leases, bound) = (self.leases.len(), self.lease_bound);
        let requests = bound.saturating_mul(MAX_INFLIGHT as usize);
        let readings = self.messages.readings.len();
        let (changes, departures) = self.presence.sizes();
        let served = self.ready.len() + self.caught_up.len();
        let count = |what, size, bound| Count { what, size, bound };
        let mut counts = vec![
            count("leases", leases, bound),
            count("leases that begin", self.joining.len(), leases),
            count("members that vouch", self.members.len(), leases),
            count("sockets", self.conns.len(), leases),
            count("hellos that wait", self.knocking.len(), leases),
            count("hellos that are compared", self.comparing.len(), bound.max(self.config.max_sessions)),
            count("sockets whose tags are proven", self.proving.len(), self.messages.reads.len()),
            count("deadlines of leases", self.deadlines.len(), leases),
            count("sessions that can take events", served, self.conns.len()),
            count("restored leases that wait", self.startup.waiting.len(), leases),
            count("bans", self.bans.len(), BANS_MAX),
            count("members on the roll", self.roll.members.len(), MEMBERS_MAX),
            count("invites", self.roll.invites.len(), INVITES_MAX),
            count("tokens", self.roll.tokens.len(), TOKENS_MAX),
            count("uses of invites that wait", self.roll.pending(), leases + self.awaiting.len()),
            count("changes of members that wait", self.roll.changing(), self.awaiting.len()),
            count("settings", self.settings.values.len(), SETTINGS.len()),
            count("rates of members", self.quota.sends.len().max(self.quota.requests.len()), ACCOUNTS),
            count("changes of presence", changes, 2 * (self.presence.len() + DEPARTURES)),
            count("departures", departures, DEPARTURES),
            // Each of a lease, of a request, of a group that changed or of a service that ends.
            count(
                "writes that are awaited",
                self.awaiting.len(),
                (requests + leases + OPERATIONS_MAX + self.services.slots.len())
                    .saturating_add(readings + self.messages.runs.living()),
            ),
            count(
                "writes that are owed",
                self.messages.owed.len(),
                bound.saturating_mul(OWED_PER_SESSION).saturating_add(OWED_MAX),
            ),
            // Each of a request, of a group or of a hello, and one for what expires.
            count(
                "reads that are awaited",
                self.messages.reads.len(),
                requests.saturating_add(readings + 1 + OPERATIONS_MAX + self.comparing.len()),
            ),
        ];
        self.count_sessions(&mut counts);
        self.services.count(&mut counts);
        self.messages.count(&mut counts);
        let (going, tombs) = self.deleted_topics();
        counts.push(count("topics that are going", going + self.messages.topics.len(), TOPICS_MAX));
        counts.push(count("logs of deleted topics", tombs, TOMBS_MAX));
        let per_member = self.config.max_topics_per_member.max(self.base.max_topics_per_member);
        let made = self.messages.makers.values().map(|made| (*made, per_member));
        counts.push(Count::fullest("topics of a member", made));
        // Lowered while it runs, a bound holds for what is made from then on.
        let per_topic = self.config.max_groups_per_topic.max(self.base.max_groups_per_topic);
        let per_member = self.config.max_groups_per_member.max(self.base.max_groups_per_member);
        self.messages.crews.count(per_topic, per_member, &mut counts);
        self.messages.runs.count(&mut counts);
        let held: usize =
            self.leases.values().flat_map(|l| l.subs.iter()).map(|(_, sub)| sub.in_hand()).sum();
        counts.push(count("deliveries that wait for their claims", self.messages.parked.len(), held));
        counts
    }

    /// What every session has, of the one that has most.
    fn count_sessions(&self, counts: &mut Vec<Count>) {
        let leases = || self.leases.values();
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

impl Services {
    fn count(&self, counts: &mut Vec<Count>) {
        let (changes, departures) = self.feed.sizes();
        let count = |what, size, bound| Count { what, size, bound };
        counts.extend([
            count("services", self.slots.len(), SERVICES_PER_MESH),
            count("services by number", self.names.len(), self.slots.len()),
            count("sessions that offer services", self.owned.len(), self.slots.len()),
            Count::fullest(
                "services of a session",
                self.owned.values().map(|owned| (owned.len(), SERVICES_PER_SESSION)),
            ),
            count("changes of services", changes, 2 * (self.feed.len() + DEPARTURES)),
            count("services that went", departures, DEPARTURES),
            count("deadlines of services", self.due.len(), self.slots.len()),
            count("sessions with overdue services", self.overdue.len(), self.owned.len()),
            count("streams to services", self.routes.all.len(), STREAMS_PER_MESH),
            count("streams that wait for services", self.routes.due.len(), STREAMS_WAITING),
        ]);
    }
}

impl Messages {
    fn count(&self, counts: &mut Vec<Count>) {
        let (entries, bytes) = self.logs.tail_sizes();
        let count = |what, size, bound| Count { what, size, bound };
        let readings = || self.readings.values();
        counts.extend([
            count("topics", self.topics.len(), TOPICS_MAX),
            count("deadlines of groups", self.deadlines.len(), self.readings.len()),
            count(
                "groups that the store does not know",
                self.dirty.len() + self.lagging.len(),
                self.readings.len(),
            ),
            count("entries of tails", entries, TAIL_ENTRIES),
            count("bytes of tails", bytes, TAIL_BYTES),
            count("inboxes that are being cleared", self.upkeep.evacuations(), self.logs.iter().count()),
            Count::fullest("open entries of a group", readings().map(|r| (r.group.open_len(), OPEN_MAX))),
            Count::fullest("dead letters that are back", readings().map(|r| (r.spared.len(), OPEN_MAX))),
            count("pages", readings().filter(|r| !r.page.is_empty()).count(), PAGES),
            Count::fullest("entries of a page", readings().map(|r| (r.page.len(), PAGE_ENTRIES as usize))),
            Count::fullest(
                "entries that are read again",
                readings().map(|r| (r.again.len(), r.group.open_len())),
            ),
            Count::fullest("entries to be read again", readings().map(|r| (r.wanted.len(), OPEN_MAX))),
        ]);
    }
}
