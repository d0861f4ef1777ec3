//! What must hold between services, leases and what peers see, at any moment.

use std::collections::{BTreeMap, BTreeSet};

use crate::Mesh;

impl Mesh {
    /// Each name has one holder, whose lease lives; peers see of each session what it offers for all to see; whoever
    /// may be stale is looked at no later than somebody must be told.
    pub(crate) fn check_services(&self) {
        let services = &self.services;
        let mut owned: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut due = services.due.clone();
        let mut set = BTreeMap::new();
        while let Some(at) = due.next() {
            set.extend(due.pop_due(at).map(|id| (id, at)));
        }
        for (name, slot) in &services.slots {
            assert!(self.sessions.is_leased(&slot.session), "{name} outlives its lease");
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
        let (peers, _) = self.sessions.presence().page(None, usize::MAX);
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
}
