//! What must hold between the fields of a mesh at any moment: every index says the same, everything is bounded.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::census::Count;
use tenure_proto::limits::CONTEST_REPLACEMENTS;

use crate::*;

impl Mesh {
    /// Looks at everything. `flushed` when nothing may be left to hand out.
    pub(crate) fn check(&self, flushed: bool) {
        self.check_sockets();
        self.check_waiting();
        self.check_handing_out(flushed);
        self.check_deadlines();
        self.check_services();
        if flushed {
            assert!(self.census().iter().all(Count::fits), "{:?}", self.census());
        }

        let mut members = BTreeMap::new();
        for lease in self.leases.values() {
            *members.entry(lease.member).or_insert(0) += 1;
            assert!(lease.takeovers.len() <= CONTEST_REPLACEMENTS);
        }
        assert_eq!(self.members, members);
        let here = |(_, lease): &(&SessionKey, &Lease)| !matches!(lease.state, State::Beginning(_));
        let leased: Vec<_> = self.leases.iter().filter(here).map(|(session, _)| *session).collect();
        let (shown, more) = self.presence.page(None, usize::MAX);
        assert!(!more);
        assert_eq!(shown.iter().map(|peer| peer.get().session).collect::<Vec<_>>(), leased);
        assert!(self.startup.waiting.iter().all(|session| leased.contains(session)));
    }

    fn check_sockets(&self) {
        let mut online = BTreeMap::new();
        for (session, lease) in &self.leases {
            if let State::Online(carrier) = &lease.state {
                online.insert(carrier.conn, *session);
                assert!(lease.granted_until.is_none());
            }
        }
        assert_eq!(self.conns, online, "sockets and online leases");
    }

    fn check_waiting(&self) {
        let (mut knocking, mut awaiting, mut joining) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for (session, lease) in &self.leases {
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
        assert_eq!(self.knocking, knocking, "sockets that wait and the leases they wait for");
        assert!(self.joining.keys().eq(&joining));
        let compared = self.comparing.iter().map(|(session, (conn, _))| (*conn, *session)).collect();
        assert_eq!(self.compared_conns, compared, "sockets whose hello is compared");
        assert!(self.comparing.values().all(|(_, read)| self.messages.reads.contains_key(read)));
        let queued: Vec<_> = self
            .awaiting
            .iter()
            .filter_map(|(_, who)| match who {
                Awaiting::Lease(session) => Some(*session),
                _ => None,
            })
            .collect();
        let distinct: BTreeSet<_> = queued.iter().copied().collect();
        assert_eq!((distinct, queued.len()), (awaiting.clone(), awaiting.len()), "one write each");
        assert!(self.awaiting.iter().zip(self.awaiting.iter().skip(1)).all(|(a, b)| a.0 <= b.0));
        assert!(self.awaiting.back().is_none_or(|(id, _)| *id <= self.last_write));
    }

    fn check_handing_out(&self, flushed: bool) {
        assert!(self.ready.is_disjoint(&self.caught_up));
        assert!(!flushed || self.ready.is_empty(), "flushed, yet somebody has something coming");
        for (session, lease) in &self.leases {
            lease.stream.check();
            let State::Online(carrier) = &lease.state else {
                assert!(!self.ready.contains(session) && !self.caught_up.contains(session));
                continue;
            };
            if carrier.unflushed.is_none() {
                assert!(self.ready.contains(session) || self.caught_up.contains(session), "forgotten");
            } else {
                assert!(!self.caught_up.contains(session));
            }
            if flushed && carrier.unflushed.is_none() {
                assert_eq!(lease.stream.presence(), self.presence.version(), "not caught up");
                assert_eq!(lease.stream.services(), self.services.feed.version(), "not caught up");
                assert!(!lease.stream.has_pending());
                assert_eq!(lease.stream.health(), self.health_version, "not told how the broker is");
            }
        }
    }

    /// Each name has one holder, whose lease lives; peers see of each session what it offers for all to see; whoever
    /// may be stale is looked at no later than somebody must be told.
    fn check_services(&self) {
        let services = &self.services;
        let mut owned: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut due = services.due.clone();
        let mut set = BTreeMap::new();
        while let Some(at) = due.next() {
            set.extend(due.pop_due(at).map(|id| (id, at)));
        }
        for (name, slot) in &services.slots {
            assert!(self.leases.contains_key(&slot.session), "{name} outlives its lease");
            assert_eq!(services.names.get(&slot.id), Some(name));
            assert!(slot.facts.is_some() || slot.writes > 0, "{name} is held for nothing");
            assert!(slot.writes > 0 || slot.wanted == slot.facts);
            let at = set.remove(&slot.id);
            let told = slot.told_due().filter(|_| slot.facts.is_some());
            assert!(told.is_none_or(|told| at.is_some_and(|at| at <= told)), "{name} is not watched");
            owned.entry(slot.session).or_default().insert(name.clone());
        }
        assert!(set.is_empty(), "a deadline of no service");
        assert_eq!(services.owned, owned);
        assert_eq!(services.names.len(), services.slots.len());
        let (peers, _) = self.presence.page(None, usize::MAX);
        for peer in peers {
            let hidden = |name: &&_| services.feed.get(name).is_none();
            let names = owned.get(&peer.get().session).into_iter().flatten().filter(|name| !hidden(name));
            assert!(names.eq(&peer.get().services), "what {:?} offers", peer.get().session);
        }
        let mut waiting = BTreeSet::new();
        for slot in services.slots.values() {
            waiting.extend(slot.waiting.iter().copied());
            let mine = services.routes.all.values().filter(|route| route.slot == slot.id);
            assert_eq!(mine.count(), slot.streams());
        }
        assert!(waiting.iter().all(|key| services.routes.due.has(key)));
        assert_eq!(waiting.len(), services.routes.due.len());
    }

    /// Every lease that a watchdog minds has a deadline, never later than it must be; no other has one.
    fn check_deadlines(&self) {
        let mut deadlines = self.deadlines.clone();
        let mut set = BTreeMap::new();
        while let Some(due) = deadlines.next() {
            set.extend(deadlines.pop_due(due).map(|session| (session, due)));
        }
        for (session, lease) in &self.leases {
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
