//! The names that sessions of a mesh hold: one holder each, renewed by its session, gone with its lease.
//!
//! A name is taken at once, so that two who race for it are told apart at once, and shown to others when the disk has
//! it. What is held hangs off the session, never off its socket: a break makes a service stale, and the teardown of
//! the lease is what makes it gone. So does a session that is here, shows that it lives, and has stopped to renew it.

pub mod route;
pub(crate) mod routing;
pub mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_kit::census::Count;
use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::SessionKey;
use tenure_proto::limits::{
    SERVICES_PAGE, SERVICES_PAGE_BYTES, SERVICES_PER_MESH, SERVICES_PER_RENEWAL, SERVICES_PER_SESSION,
    STREAMS_PER_MESH, STREAMS_WAITING,
};
use tenure_proto::name::ServiceName;
use tenure_proto::number::U53;
use tenure_proto::peer::Peer;
use tenure_proto::service::{
    Service, ServiceEventKind, ServiceOffer, ServiceRenewParams, ServiceRenewResult, ServiceState,
    ServiceVerdict, ServiceWithdrawParams, ServicesListParams, ServicesListResult,
};

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect, Note};
use crate::reply::{Caller, Reply};
use crate::services::route::Routes;
use crate::services::service::{Facts, Lapse, Slot, Told};
use crate::sessions::feed::Feed;
use crate::sessions::presence::DEPARTURES;
use crate::store::pending::{Awaiting, unavailable};
use crate::store::record::{ServiceRecord, StoreWrite};

/// Services that one call of [`Mesh::tick`] looks at; the rest are due at once.
const SERVICES_PER_TICK: usize = 1_024;

/// The services of one mesh.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// Bounded by [`SERVICES_PER_MESH`], or by what a start found.
    slots: BTreeMap<ServiceName, Slot>,
    /// Their names by number.
    names: BTreeMap<u64, ServiceName>,
    /// Who holds what; at most [`SERVICES_PER_SESSION`] each.
    owned: BTreeMap<SessionKey, BTreeSet<ServiceName>>,
    /// What watchers are told: those that the disk has and that are not hidden.
    feed: Feed<ServiceName, Told>,
    /// When it may be time to say that one is stale, or to end it. Set early rather than moved with every renewal.
    due: Deadlines<u64>,
    /// Sessions with a service that ends after their next proof of life; of those that hold one.
    overdue: BTreeSet<SessionKey>,
    routes: Routes,
    /// The version of the feed at the last flush.
    flushed: u64,
}

/// A `service.renew` that waits for the disk.
#[derive(Debug)]
pub(crate) struct Renewal {
    caller: Caller,
    results: Vec<ServiceVerdict>,
    /// What the disk was asked to have, by number.
    puts: Vec<(u64, Facts)>,
    /// Which of the results hang on it.
    hang: Vec<usize>,
}

/// A `service.withdraw` that waits for the disk, or the end of services that are not renewed.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    /// Who asked; nobody if services end that were not renewed.
    caller: Option<Caller>,
    session: SessionKey,
    ids: Vec<u64>,
}

/// What an offer that breaks no rule came to.
enum Taken {
    /// It was so already.
    Same,
    /// It is what the disk was asked for before.
    Waits,
    /// The disk is to be asked.
    Put(u64, ServiceName, Facts),
}

impl Services {
    /// When a service or a stream to one is to be looked at next.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        [self.due.next(), self.routes.due.next()].into_iter().flatten().min()
    }

    /// How many names are held.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What watchers are told.
    pub(crate) fn feed(&self) -> &Feed<ServiceName, Told> {
        &self.feed
    }

    /// Whether watchers have something to be told since this was asked last.
    pub(crate) fn has_news(&mut self) -> bool {
        let version = self.feed.version();
        std::mem::replace(&mut self.flushed, version) != version
    }

    /// Whether a session holds a service that ends after its next proof of life.
    pub(crate) fn is_overdue(&self, session: &SessionKey) -> bool {
        self.overdue.contains(session)
    }

    /// Who holds what, and when each ends at the latest, for tests.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&ServiceName, &Slot)> {
        self.slots.iter()
    }

    pub(crate) fn slot(&self, id: u64) -> Option<(&ServiceName, &Slot)> {
        let name = self.names.get(&id)?;
        Some((name, self.slots.get(name)?))
    }

    fn slot_mut(&mut self, id: u64) -> Option<(ServiceName, &mut Slot)> {
        let name = self.names.get(&id)?.clone();
        self.slots.get_mut(&name).map(|slot| (name, slot))
    }

    fn names_of(&self, session: &SessionKey) -> Vec<ServiceName> {
        self.owned.get(session).into_iter().flatten().cloned().collect()
    }

    /// Those that its peers may know of.
    fn shown_of(&self, session: &SessionKey) -> Vec<ServiceName> {
        let names = self.owned.get(session).into_iter().flatten();
        names.filter(|name| self.feed.get(name).is_some()).cloned().collect()
    }

    pub(crate) fn insert(&mut self, name: ServiceName, slot: Slot) {
        self.names.insert(slot.id, name.clone());
        self.owned.entry(slot.session).or_default().insert(name.clone());
        self.slots.insert(name, slot);
    }

    fn take(&mut self, name: &ServiceName) -> Option<Slot> {
        let slot = self.slots.remove(name)?;
        self.names.remove(&slot.id);
        self.due.clear(&slot.id);
        if let Some(owned) = self.owned.get_mut(&slot.session) {
            owned.remove(name);
            if owned.is_empty() {
                self.owned.remove(&slot.session);
                self.overdue.remove(&slot.session);
            }
        }
        Some(slot)
    }

    /// Looks at a name again when something may be due, and not later than that.
    fn watch(&mut self, id: u64) {
        let due = self.slot(id).and_then(|(_, slot)| slot.due());
        match due {
            Some(due) => self.due.set(id, due),
            None => self.due.clear(&id),
        }
    }

    /// Tells watchers what a name looks like now. A return that somebody needs is told although they were told
    /// nothing else.
    fn publish(&mut self, name: &ServiceName, returned: bool) {
        let Some(slot) = self.slots.get(name) else { return };
        let state = if slot.stale_told { ServiceState::Stale } else { ServiceState::Online };
        let shown = slot.view(name, state).filter(|service| !service.metadata.hide);
        let told = self.feed.get(name).map(|told| told.service.clone());
        match (shown, told) {
            (None, None) => {}
            (None, Some(_)) => _ = self.feed.remove(name),
            (Some(service), None) => {
                let told = Told { service: Arc::new(service), kind: ServiceEventKind::Online };
                self.feed.put(name.clone(), told);
            }
            (Some(service), Some(old)) => {
                let kind = match service.state {
                    state if state == old.state && !returned => ServiceEventKind::Updated,
                    ServiceState::Online => ServiceEventKind::Online,
                    ServiceState::Stale => ServiceEventKind::Stale,
                };
                if returned || service != *old {
                    self.feed.update(name.clone(), Told { service: Arc::new(service), kind });
                }
            }
        }
    }

    /// Up to `limit` services after `after`, with the state that they have now, and after which to go on. Without their times.
    pub(crate) fn page(
        &mut self,
        now: Millis,
        all: bool,
        after: Option<&ServiceName>,
        limit: usize,
    ) -> (Vec<Service>, Option<ServiceName>) {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut bytes = 0;
        let mut page: Vec<Service> = Vec::new();
        for (name, slot) in self.slots.range_mut((after.map_or(Unbounded, Excluded), Unbounded)) {
            let state = slot.state(now);
            let Some(service) = slot.view(name, state).filter(|service| all || !service.metadata.hide) else {
                continue;
            };
            if page.len() >= limit || bytes >= SERVICES_PAGE_BYTES {
                let next = page.last().map(|service| service.name.clone());
                return (page, next);
            }
            slot.stale_shown |= state == ServiceState::Stale && !slot.stale_told;
            bytes += service::weight(&service);
            page.push(service);
        }
        (page, None)
    }
}

impl Mesh {
    /// The version of services, for those who test that nothing happened.
    pub fn services_version(&self) -> u64 {
        self.services.feed.version()
    }

    /// Names that are held, or about to be.
    pub fn services(&self) -> usize {
        self.services.slots.len()
    }

    /// Who holds `name`, according to the disk.
    pub fn service_holder(&self, name: &ServiceName) -> Option<SessionKey> {
        self.services.slots.get(name).filter(|slot| slot.facts.is_some()).map(|slot| slot.session)
    }

    pub(crate) fn services_list(&mut self, params: &ServicesListParams) -> Result<Reply, WireError> {
        let limit = params.limit.map_or(SERVICES_PAGE as u64, U53::get);
        if limit == 0 || limit > SERVICES_PAGE as u64 {
            return Err(WireError::bad_request(format!("limit must be between 1 and {SERVICES_PAGE}")));
        }
        let now = self.clock.now();
        let (mut services, next) = self.services.page(now, params.all, params.after.as_ref(), limit as usize);
        services.iter_mut().for_each(|service| self.time(service));
        let state_version = self.state_version();
        let result = ServicesListResult { services, next, state_version };
        Ok(Reply::Now(Answer::ServicesList(Box::new(result))))
    }

    /// Fills in the times of a service that is listed.
    fn time(&self, service: &mut Service) {
        let Some(slot) = self.services.slots.get(&service.name) else { return };
        let here = self.sessions.lease(&slot.session).is_some_and(|lease| lease.conn().is_some());
        let ends_at = self.clock.wall().saturating_add(slot.ends_at().since(self.clock.now()));
        service.first_seen_at = Some(U53::saturating(slot.since));
        service.last_renewed_at = slot.renewed_at.map(U53::saturating);
        service.expires_at = here.then(|| U53::saturating(ends_at));
    }

    /// `service.renew`: each offer has its own verdict. What changes nothing is answered at once.
    pub(crate) fn renew(
        &mut self,
        now: Millis,
        caller: &Caller,
        params: &ServiceRenewParams,
    ) -> Result<Reply, WireError> {
        if params.services.len() > SERVICES_PER_RENEWAL {
            let text = format!("a renewal names at most {SERVICES_PER_RENEWAL} services");
            return Err(WireError::bad_request(text));
        }
        let (caller, session) = (caller.clone(), caller.session);
        let mut renewal = Renewal { caller, results: Vec::new(), puts: Vec::new(), hang: Vec::new() };
        let mut records = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, offer) in params.services.iter().enumerate() {
            let twice = || WireError::bad_request("this renewal names the service twice");
            let taken = match seen.insert(&offer.name) {
                true => self.renew_one(now, session, offer),
                false => Err(twice()),
            };
            match &taken {
                Ok(Taken::Same) | Err(_) => {}
                Ok(Taken::Waits) => renewal.hang.push(index),
                Ok(Taken::Put(id, name, facts)) => {
                    renewal.hang.push(index);
                    renewal.puts.push((*id, facts.clone()));
                    let since = self.services.slots.get(name).map_or(self.clock.wall(), |slot| slot.since);
                    records.push(ServiceRecord { name: name.clone(), session, since, facts: facts.clone() });
                }
            }
            let name = crate::conn::frames::clipped(offer.name.clone());
            renewal.results.push(ServiceVerdict { name, ok: taken.is_ok(), error: taken.err() });
        }
        if !records.is_empty() {
            let who = Awaiting::Renewal(Box::new(renewal));
            self.write_for(who, StoreWrite::PutServices(records));
        } else if renewal.hang.is_empty() {
            self.renewed(renewal);
        } else {
            self.await_all(Awaiting::Renewal(Box::new(renewal)), now);
        }
        Ok(Reply::Later)
    }

    /// The one policy point: who, what, how long, and whose name it is, at every renewal, in this order.
    fn renew_one(
        &mut self,
        now: Millis,
        session: SessionKey,
        offer: &ServiceOffer,
    ) -> Result<Taken, WireError> {
        if self.is_banned(&session) {
            return Err(crate::access::bans::refusal().error);
        }
        self.may(session, Right::Serve)?;
        let (name, facts) = service::check(offer, &self.config)?;
        let Some(member) = self.sessions.lease(&session).map(|lease| lease.member) else {
            return Err(WireError::new(ErrorCode::LeaseExpired, "this session's lease has ended"));
        };
        match self.services.slots.get(&name) {
            Some(slot) if slot.session != session => {
                let text =
                    format!("another session holds {name}; choose another name, or renew until it is free");
                return Err(WireError::new(ErrorCode::NameTaken, text));
            }
            Some(slot) if slot.is_leaving() => {
                let text = format!("{name} is being withdrawn; offer it again in a moment");
                return Err(WireError::new(ErrorCode::Busy, text));
            }
            Some(_) => {}
            None => self.take_name(now, session, member, &name)?,
        }
        let Some(slot) = self.services.slots.get_mut(&name) else { return Ok(Taken::Same) };
        let id = slot.id;
        let (returned, changed) = (slot.renew(now, self.clock.wall()), slot.degraded != offer.degraded);
        slot.degraded = offer.degraded;
        let taken = if slot.wanted.as_ref() != Some(&facts) {
            slot.wanted = Some(facts.clone());
            slot.writes += 1;
            Taken::Put(id, name.clone(), facts)
        } else if slot.writes > 0 {
            Taken::Waits
        } else {
            Taken::Same
        };
        if slot.facts.is_some() && (returned || changed) {
            self.services.publish(&name, returned);
        }
        if returned || !self.services.due.has(&id) {
            self.services.watch(id);
        }
        self.serve_waiting(id);
        Ok(taken)
    }

    /// Nobody else can have the name from here on.
    fn take_name(
        &mut self,
        now: Millis,
        session: SessionKey,
        member: tenure_proto::MemberKey,
        name: &ServiceName,
    ) -> Result<(), WireError> {
        let busy = |text: String| Err(WireError::new(ErrorCode::Busy, text));
        if self.services.owned.get(&session).is_some_and(|owned| owned.len() >= SERVICES_PER_SESSION) {
            return busy(format!(
                "a session offers at most {SERVICES_PER_SESSION} services; withdraw one first"
            ));
        }
        if self.services.slots.len() >= SERVICES_PER_MESH {
            return busy(format!("this mesh holds {SERVICES_PER_MESH} services, which is as many as it may"));
        }
        let id = self.next_number();
        self.services.insert(name.clone(), Slot::new(id, session, member, now, self.clock.wall()));
        Ok(())
    }

    /// A renewal is on disk as far as it has to be.
    pub(crate) fn renewed(&mut self, renewal: Renewal) {
        let Renewal { caller, results, puts, .. } = renewal;
        let session = caller.session;
        for (id, facts) in puts {
            let Some((name, slot)) = self.services.slot_mut(id) else { continue };
            slot.writes = slot.writes.saturating_sub(1);
            let other = slot.facts.as_ref().is_some_and(|old| old.kind != facts.kind);
            slot.facts = Some(facts);
            let speaks_otherwise = other && slot.streams() > 0;
            self.services.publish(&name, false);
            self.services.watch(id);
            if speaks_otherwise {
                self.effects.push_back(Effect::Cut { session, name: Some(name), reason: "changed" });
            }
            self.serve_waiting(id);
        }
        self.show_services(session);
        self.answer_if_here(&caller, Ok(Answer::ServiceRenew(ServiceRenewResult { results })));
    }

    /// The disk could not take a renewal: what hung on it is as it was.
    pub(crate) fn not_renewed(&mut self, renewal: Renewal) {
        let Renewal { caller, mut results, puts, hang } = renewal;
        for (id, _) in puts {
            self.unwrite(id);
        }
        for index in hang {
            if let Some(verdict) = results.get_mut(index) {
                (verdict.ok, verdict.error) = (false, Some(unavailable()));
            }
        }
        self.answer_if_here(&caller, Ok(Answer::ServiceRenew(ServiceRenewResult { results })));
    }

    /// A write about a name came to nothing: what is on disk is what is wanted. A name that never was there is free.
    fn unwrite(&mut self, id: u64) {
        let Some((name, slot)) = self.services.slot_mut(id) else { return };
        slot.writes = slot.writes.saturating_sub(1);
        slot.wanted.clone_from(&slot.facts);
        if slot.facts.is_none() && slot.writes == 0 {
            self.drop_name(&name);
        } else {
            self.services.publish(&name, false);
        }
    }

    /// `service.withdraw`: answered when the disk has forgotten them. What is not this session's is no matter.
    pub(crate) fn withdraw(
        &mut self,
        caller: &Caller,
        params: &ServiceWithdrawParams,
    ) -> Result<Reply, WireError> {
        let session = caller.session;
        if params.names.len() > SERVICES_PER_RENEWAL {
            let text = format!("at most {SERVICES_PER_RENEWAL} services are withdrawn at once");
            return Err(WireError::bad_request(text));
        }
        let (mut ids, mut names) = (Vec::new(), Vec::new());
        for name in params.names.iter().filter_map(|name| name.parse::<ServiceName>().ok()) {
            let Some(slot) = self.services.slots.get_mut(&name) else { continue };
            if slot.session == session && slot.wanted.take().is_some() {
                slot.writes += 1;
                ids.push(slot.id);
                names.push(name);
            }
        }
        let withdrawal = Withdrawal { caller: Some(caller.clone()), session, ids };
        let who = Awaiting::Withdrawal(Box::new(withdrawal));
        if names.is_empty() {
            // Those of a withdrawal before this one may be on their way.
            self.await_all(who, self.clock.now());
        } else {
            self.write_for(who, StoreWrite::DropServices(session, names));
        }
        Ok(Reply::Later)
    }

    /// The disk has forgotten them: now they are gone for everybody.
    pub(crate) fn withdrawn(&mut self, withdrawal: Withdrawal) {
        let Withdrawal { caller, session, ids } = withdrawal;
        let reason = if caller.is_some() { "withdrawn" } else { "unrenewed" };
        for id in ids {
            let Some((name, slot)) = self.services.slot_mut(id) else { continue };
            slot.writes = slot.writes.saturating_sub(1);
            self.drop_name(&name);
            if caller.is_none() {
                self.effects.push_back(Effect::Note(Note::ServiceUnrenewed { session, name: name.clone() }));
            }
            self.effects.push_back(Effect::Cut { session, name: Some(name), reason });
        }
        self.show_services(session);
        if let Some(caller) = caller {
            self.answer_if_here(&caller, Ok(Answer::Empty));
        }
    }

    /// The disk could not forget them: they stay.
    pub(crate) fn not_withdrawn(&mut self, withdrawal: Withdrawal) {
        let Withdrawal { caller, session, ids } = withdrawal;
        for id in ids {
            self.unwrite(id);
            if caller.is_none() {
                let now = self.clock.now();
                if let Some((_, slot)) = self.services.slot_mut(id) {
                    slot.lapse_again(now);
                }
                self.services.watch(id);
            }
        }
        self.show_services(session);
        if let Some(caller) = caller {
            self.answer_if_here(&caller, Err(unavailable()));
        }
    }

    /// A name is free from here on.
    fn drop_name(&mut self, name: &ServiceName) {
        self.services.feed.remove(name);
        if let Some(slot) = self.services.take(name) {
            self.turn_off(name, slot.waiting);
        }
    }

    /// A session has lost its socket: what it offers is stale from here on.
    pub(crate) fn lose_services(&mut self, now: Millis, session: SessionKey) {
        for name in self.services.names_of(&session) {
            if mutant::on(Mutant::ServiceGoneAtClose) {
                self.drop_name(&name);
                continue;
            }
            let Some(slot) = self.services.slots.get_mut(&name) else { continue };
            slot.lost = Some(slot.lost.unwrap_or(now));
            let id = slot.id;
            self.services.watch(id);
        }
    }

    /// A socket carries the session again: that renews all that it offers and may offer. The rest stays stale, and is given the
    /// same time to be renewed as before.
    pub(crate) fn regain_services(&mut self, now: Millis, session: SessionKey, serves: bool) {
        for name in self.services.names_of(&session) {
            let Some(slot) = self.services.slots.get_mut(&name) else { continue };
            let id = slot.id;
            slot.attach(now);
            let facts = slot.facts.as_ref().or(slot.wanted.as_ref());
            if !serves || facts.is_some_and(|facts| !service::may_stay(&name, facts, &self.config)) {
                self.services.watch(id);
                continue;
            }
            let returned = slot.renew(now, self.clock.wall());
            if returned {
                self.services.publish(&name, true);
            }
            self.services.watch(id);
            self.serve_waiting(id);
        }
    }

    /// The lease has ended, on disk too: its names are free, and what runs through them ends.
    pub(crate) fn end_services(&mut self, session: SessionKey, reason: &'static str) {
        if !mutant::on(Mutant::NameHeldAfterEnd) {
            for name in self.services.names_of(&session) {
                self.drop_name(&name);
            }
        }
        self.effects.push_back(Effect::Cut { session, name: None, reason });
    }

    /// Says of those that they are stale that have been for long enough, and ends those that are not renewed although their
    /// sessions are here.
    pub(crate) fn fire_services(&mut self, now: Millis) {
        let mut over: BTreeMap<SessionKey, Vec<u64>> = BTreeMap::new();
        for _ in 0..SERVICES_PER_TICK {
            let Some(id) = self.services.due.pop_due(now) else { break };
            let Some((name, slot)) = self.services.slot_mut(id) else { continue };
            if slot.told_due().is_some_and(|due| due <= now) {
                (slot.stale_told, slot.stale_shown) = (true, false);
                self.services.publish(&name, false);
            }
            let Some(slot) = self.services.slots.get_mut(&name) else { continue };
            let session = slot.session;
            if self.sessions.lease(&session).is_none_or(|lease| lease.conn().is_none()) {
                // In grace the lease decides; an attach looks again.
                if let Some(due) = slot.told_due() {
                    self.services.due.set(id, due);
                }
                continue;
            }
            match slot.lapse(now) {
                Lapse::No => {}
                Lapse::Waits => _ = self.services.overdue.insert(session),
                Lapse::Over => {
                    over.entry(session).or_default().push(id);
                    continue;
                }
            }
            self.services.watch(id);
        }
        for (session, ids) in over {
            self.end_unrenewed(session, ids);
        }
    }

    /// A session has shown at `heard` that it lives: what it should have renewed long ago has its last seconds from then on.
    pub(crate) fn prove_services(&mut self, session: SessionKey, heard: Millis) {
        let mut waits = false;
        for name in self.services.names_of(&session) {
            let Some(slot) = self.services.slots.get_mut(&name) else { continue };
            waits |= slot.proven(heard);
            let id = slot.id;
            self.services.watch(id);
        }
        if !waits {
            self.services.overdue.remove(&session);
        }
    }

    /// Services that their session has stopped to renew end: the disk is told first.
    fn end_unrenewed(&mut self, session: SessionKey, ids: Vec<u64>) {
        let (mut ending, mut names) = (Vec::new(), Vec::new());
        for id in ids {
            let Some((name, slot)) = self.services.slot_mut(id) else { continue };
            // What it is just giving up needs no help.
            if slot.wanted.take().is_some() {
                slot.writes += 1;
                ending.push(id);
                names.push(name);
            }
        }
        if !names.is_empty() {
            let withdrawal = Withdrawal { caller: None, session, ids: ending };
            let who = Awaiting::Withdrawal(Box::new(withdrawal));
            self.write_for(who, StoreWrite::DropServices(session, names));
        }
    }

    /// Lets peers see what a session offers, if that is not what they see.
    fn show_services(&mut self, session: SessionKey) {
        let services = self.services.shown_of(&session);
        let Some(old) = self.sessions.peer(&session) else { return };
        if old.services != services {
            let fresh = Peer { services, ..old.clone() };
            self.sessions.presence_mut().update(fresh);
        }
    }

    /// Takes up what the store remembers, after the leases: stale until their sessions are back.
    pub(crate) fn restore_services(&mut self, records: Vec<ServiceRecord>) {
        for ServiceRecord { name, session, since, facts } in records {
            let Some(member) = self.sessions.lease(&session).map(|lease| lease.member) else { continue };
            let id = self.next_number();
            let mut slot = Slot::new(id, session, member, self.clock.now(), since);
            (slot.facts, slot.wanted, slot.lost) = (Some(facts.clone()), Some(facts), Some(self.clock.now()));
            self.services.insert(name.clone(), slot);
            self.services.publish(&name, false);
            self.services.watch(id);
        }
        for session in self.services.owned.keys() {
            let services = self.services.shown_of(session);
            if let Some(peer) = self.sessions.peer(session).cloned() {
                self.sessions.presence_mut().update_quietly(Peer { services, ..peer });
            }
        }
        self.services.flushed = self.services.feed.version();
    }

    /// Answers a session whose socket may have gone meanwhile: then it asks again on the next.
    pub(crate) fn answer_if_here(&mut self, caller: &Caller, outcome: Result<Answer, WireError>) {
        if self.sessions.carried_by(caller.conn) == Some(caller.session) {
            self.answer(caller.reply_to(), outcome);
        }
    }
}

impl Services {
    /// How full everything is.
    pub(crate) fn count(&self, counts: &mut Vec<Count>) {
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

#[cfg(test)]
mod check;
