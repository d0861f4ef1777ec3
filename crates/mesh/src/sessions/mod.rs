//! Sessions: leases and the hellos that begin, resume and take them over; presence; event streams; the end of a lease.
//!
//! What it never does: keep anything by socket. A socket is a number in a lease's state.
//!
//! Where to read next: [`lease`] for the life of a session, `hello` and `teardown` for its beginning and end, [`presence`]
//! for what others see of it, [`stream`] for event numbers and replay, `fanout` for who is handed what.

pub(crate) mod fanout;
pub mod feed;
pub mod freeze;
pub(crate) mod hello;
pub mod lease;
pub(crate) mod positions;
pub mod presence;
pub(crate) mod snapshot;
pub(crate) mod sockets;
pub(crate) mod startup;
pub mod stream;
pub(crate) mod teardown;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tenure_kit::census::Count;
use tenure_kit::deadline::Deadlines;
use tenure_kit::time::Millis;
use tenure_proto::ids::{ConnId, MemberKey, SessionKey};
use tenure_proto::peer::Peer;

use crate::effect::ReadId;
use crate::sessions::lease::{Lease, State};
use crate::sessions::presence::{DEPARTURES, Presence};
use crate::sessions::startup::Startup;

/// Every session of a mesh: its lease, and the indexes that say the same by another key.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Bounded by `lease_bound`.
    leases: BTreeMap<SessionKey, Lease>,
    /// `max_sessions`, or how many there were when that was lowered, by a start or while it ran.
    lease_bound: usize,
    /// How many leases each member vouches for.
    members: BTreeMap<MemberKey, usize>,
    /// Which session each socket carries: one per online lease.
    conns: BTreeMap<ConnId, SessionKey>,
    /// Sockets whose hello waits for the store: at most one per lease.
    knocking: BTreeMap<ConnId, SessionKey>,
    /// Sessions whose hello waits until the store has said what is at the places that it lists: its socket and its read.
    /// At most one of each session, and as many as there may be sessions.
    comparing: BTreeMap<SessionKey, (ConnId, ReadId)>,
    /// The same by socket.
    compared_conns: BTreeMap<ConnId, SessionKey>,
    deadlines: Deadlines<SessionKey>,
    presence: Presence,
    /// How peers will see leases that begin, once the store has them.
    joining: BTreeMap<SessionKey, Peer>,
    /// Sessions that are online, able to take events, and have them all.
    caught_up: BTreeSet<SessionKey>,
    /// Sessions that are online, able to take events, and have some coming.
    ready: BTreeSet<SessionKey>,
    /// The session that was served last when a flush left some of the ready ones for the next.
    last_served: Option<SessionKey>,
    /// Whether the last flush left some.
    busy: bool,
    /// The presence version at the last flush.
    flushed_version: u64,
    /// The version of the broker's health.
    pub(crate) health_version: u64,
    startup: Startup,
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions { health_version: 1, ..Sessions::default() }
    }

    pub(crate) fn lease(&self, session: &SessionKey) -> Option<&Lease> {
        self.leases.get(session)
    }

    pub(crate) fn lease_mut(&mut self, session: &SessionKey) -> Option<&mut Lease> {
        self.leases.get_mut(session)
    }

    pub(crate) fn is_leased(&self, session: &SessionKey) -> bool {
        self.leases.contains_key(session)
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = (&SessionKey, &Lease)> {
        self.leases.iter()
    }

    pub(crate) fn leases_mut(&mut self) -> impl Iterator<Item = (&SessionKey, &mut Lease)> {
        self.leases.iter_mut()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &SessionKey> {
        self.leases.keys()
    }

    /// Leases in the order of their keys, from here on.
    pub(crate) fn after(&self, from: Bound<SessionKey>) -> impl Iterator<Item = (&SessionKey, &Lease)> {
        self.leases.range((from, Bound::Unbounded))
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// How many leases there may be.
    pub(crate) fn most(&self) -> usize {
        self.lease_bound
    }

    /// There may be so many leases from here on; those that there are stay.
    pub(crate) fn bound(&mut self, most: usize) {
        self.lease_bound = most.max(self.leases.len());
    }

    /// When the watchdog must look at a lease next.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.deadlines.next()
    }

    /// A lease that the watchdog must look at now.
    pub(crate) fn pop_due(&mut self, now: Millis) -> Option<SessionKey> {
        self.deadlines.pop_due(now)
    }

    /// How many hellos wait until the store has compared their positions.
    pub(crate) fn comparing(&self) -> usize {
        self.comparing.len()
    }

    /// Whether a member vouches for a session that has a lease.
    pub(crate) fn vouches(&self, member: &MemberKey) -> bool {
        self.members.contains_key(member)
    }

    /// The session that a socket carries.
    pub(crate) fn carried_by(&self, conn: ConnId) -> Option<SessionKey> {
        self.conns.get(&conn).copied()
    }

    /// The sockets that carry one, in their order.
    #[cfg(test)]
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &ConnId> {
        self.conns.keys()
    }

    /// How many sockets carry a session.
    pub(crate) fn online(&self) -> usize {
        self.conns.len()
    }

    /// Sessions that a socket carries, in the order of their sockets. Looks at all of them once.
    pub(crate) fn all_online(&self) -> Vec<SessionKey> {
        self.conns.values().copied().collect()
    }

    /// Sessions with a hello that waits for the store.
    pub(crate) fn pending_hellos(&self) -> Vec<SessionKey> {
        self.knocking.values().copied().collect()
    }

    pub(crate) fn presence(&self) -> &Presence {
        &self.presence
    }

    pub(crate) fn presence_mut(&mut self) -> &mut Presence {
        &mut self.presence
    }

    /// Whether presence has changed since this was asked last.
    fn has_news(&mut self) -> bool {
        let version = self.presence.version();
        std::mem::replace(&mut self.flushed_version, version) != version
    }

    /// How peers see a session.
    pub(crate) fn peer(&self, session: &SessionKey) -> Option<&Peer> {
        self.presence.get(session).map(|peer| peer.get())
    }

    /// The name of a session; empty if peers do not see it.
    pub(crate) fn name_of(&self, session: &SessionKey) -> String {
        self.peer(session).map(|peer| peer.name.clone()).unwrap_or_default()
    }

    /// Whether a session is online and has all its events.
    pub(crate) fn is_caught_up(&self, session: &SessionKey) -> bool {
        self.caught_up.contains(session)
    }

    /// Lets a session's turn come, if its socket can take anything.
    pub(crate) fn mark_ready(&mut self, session: SessionKey) {
        let Some(lease) = self.leases.get(&session) else { return };
        if matches!(&lease.state, State::Online(carrier) if carrier.unflushed.is_none()) {
            self.caught_up.remove(&session);
            self.ready.insert(session);
        }
    }

    /// Whether a lease was found by this start and its session has not been back.
    pub(crate) fn is_restored(&self, session: &SessionKey) -> bool {
        self.startup.is_awaited(session)
    }

    /// Why what operators had set does not hold after this start.
    pub(crate) fn note_unset(&mut self, reason: Option<String>) {
        self.startup.unset = reason;
    }

    /// How full every index is.
    pub(crate) fn count(&self, counts: &mut Vec<Count>, max_sessions: usize) {
        let (leases, bound) = (self.leases.len(), self.lease_bound);
        let (changes, departures) = self.presence.sizes();
        let served = self.ready.len() + self.caught_up.len();
        let count = |what, size, bound| Count { what, size, bound };
        counts.extend([
            count("leases", leases, bound),
            count("leases that begin", self.joining.len(), leases),
            count("members that vouch", self.members.len(), leases),
            count("sockets", self.conns.len(), leases),
            count("hellos that wait", self.knocking.len(), leases),
            count("hellos that are compared", self.comparing.len(), bound.max(max_sessions)),
            count("deadlines of leases", self.deadlines.len(), leases),
            count("sessions that can take events", served, self.conns.len()),
            count("restored leases that wait", self.startup.awaited(), leases),
            count("changes of presence", changes, 2 * (self.presence.len() + DEPARTURES)),
            count("departures", departures, DEPARTURES),
        ]);
    }
}

#[cfg(test)]
mod check;
