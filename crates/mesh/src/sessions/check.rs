//! What must hold between the indexes of sessions at any moment.

use std::collections::{BTreeMap, BTreeSet};

use tenure_proto::ids::SessionKey;
use tenure_proto::limits::CONTEST_REPLACEMENTS;

use crate::Mesh;
use crate::sessions::lease::{Lease, State};

impl Mesh {
    /// Looks at every lease. `flushed` when nothing may be left to hand out.
    pub(crate) fn check_sessions(&self, flushed: bool) {
        self.check_sockets();
        self.check_waiting();
        self.check_handing_out(flushed);
        self.check_deadlines();

        let mut members = BTreeMap::new();
        for lease in self.sessions.leases.values() {
            *members.entry(lease.member).or_insert(0) += 1;
            assert!(lease.takeovers.len() <= CONTEST_REPLACEMENTS);
        }
        assert_eq!(self.sessions.members, members);
        let here = |(_, lease): &(&SessionKey, &Lease)| !matches!(lease.state, State::Beginning(_));
        let leased: Vec<_> = self.sessions.leases.iter().filter(here).map(|(session, _)| *session).collect();
        let (shown, more) = self.sessions.presence.page(None, usize::MAX);
        assert!(!more);
        assert_eq!(shown.iter().map(|peer| peer.get().session).collect::<Vec<_>>(), leased);
        assert!(self.sessions.startup.all_in(&leased));
    }

    fn check_sockets(&self) {
        let mut online = BTreeMap::new();
        for (session, lease) in &self.sessions.leases {
            if let State::Online(carrier) = &lease.state {
                online.insert(carrier.conn, *session);
                assert!(lease.granted_until.is_none());
            }
        }
        assert_eq!(self.sessions.conns, online, "sockets and online leases");
    }

    fn check_waiting(&self) {
        let (mut knocking, mut awaiting, mut joining) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for (session, lease) in &self.sessions.leases {
            let (State::Beginning(waiting) | State::Returning(waiting) | State::Ending(_, waiting)) =
                &lease.state
            else {
                continue;
            };
            awaiting.insert(*session);
            if matches!(lease.state, State::Beginning(_)) {
                joining.insert(*session);
            }
            if let Some(knock) = waiting {
                knocking.insert(knock.conn, *session);
            }
        }
        assert_eq!(self.sessions.knocking, knocking, "sockets that wait and the leases they wait for");
        assert!(self.sessions.joining.keys().eq(&joining));
        let compared = self.sessions.comparing.iter().map(|(session, (conn, _))| (*conn, *session)).collect();
        assert_eq!(self.sessions.compared_conns, compared, "sockets whose hello is compared");
        assert!(self.sessions.comparing.values().all(|(_, read)| self.store.purpose(*read).is_some()));
        let queued = self.store.check();
        let distinct: BTreeSet<_> = queued.iter().copied().collect();
        assert_eq!((distinct, queued.len()), (awaiting.clone(), awaiting.len()), "one write each");
    }

    fn check_handing_out(&self, flushed: bool) {
        assert!(self.sessions.ready.is_disjoint(&self.sessions.caught_up));
        assert!(!flushed || self.sessions.ready.is_empty(), "flushed, yet somebody has something coming");
        for (session, lease) in &self.sessions.leases {
            lease.stream.check();
            let State::Online(carrier) = &lease.state else {
                assert!(!self.sessions.ready.contains(session) && !self.sessions.caught_up.contains(session));
                continue;
            };
            if carrier.unflushed.is_none() {
                assert!(
                    self.sessions.ready.contains(session) || self.sessions.caught_up.contains(session),
                    "forgotten"
                );
            } else {
                assert!(!self.sessions.caught_up.contains(session));
            }
            if flushed && carrier.unflushed.is_none() {
                assert_eq!(lease.stream.presence(), self.sessions.presence.version(), "not caught up");
                assert_eq!(lease.stream.services(), self.services.feed().version(), "not caught up");
                assert!(!lease.stream.has_pending());
                assert_eq!(lease.stream.health(), self.sessions.health_version, "not told how the broker is");
            }
        }
    }

    /// Every lease that a watchdog minds has a deadline, never later than it must be; no other has one.
    fn check_deadlines(&self) {
        let mut deadlines = self.sessions.deadlines.clone();
        let mut set = BTreeMap::new();
        while let Some(due) = deadlines.next() {
            set.extend(deadlines.pop_due(due).map(|session| (session, due)));
        }
        for (session, lease) in &self.sessions.leases {
            match lease.due(&self.config) {
                Some(due) => {
                    assert!(set.remove(session).is_some_and(|at| at <= due), "{session:?} unwatched")
                }
                None => assert!(!set.contains_key(session)),
            }
        }
        assert!(set.is_empty(), "a deadline of nobody");
    }
}
