//! Streams to services: given, waited for, counted, cut; and tickets to the relay.

use std::collections::BTreeSet;

use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::SessionKey;
use tenure_proto::limits::{RELAY_WAIT_MS, STREAMS_WAITING_PER_SERVICE};
use tenure_proto::name::ServiceName;
use tenure_proto::service::{RelayOpenParams, RelayRole, ServiceState};

use crate::Mesh;
use crate::access::Right;
use crate::effect::{Answer, Effect};
use crate::reply::{Caller, Reply, lease_ended};
use crate::services::route::{self, By, Opening, Route, RouteId, RouteKey, Target, Want};
use crate::sessions::lease::State;

impl Mesh {
    /// Streams that are open or wait.
    pub fn streams(&self) -> usize {
        self.services.routes.all.len()
    }

    /// A shell wants a stream now.
    pub(crate) fn route(&mut self, now: Millis, route: RouteId, name: ServiceName, want: Want, by: By) {
        let key = RouteKey::Shell(route);
        if let Err(error) = self.may_ask(by) {
            return self.effects.push_back(Effect::Routed { route, outcome: Err(error) });
        }
        if self.services.routes.all.contains_key(&key) {
            let error = WireError::new(ErrorCode::Conflict, "this stream was asked for before");
            return self.effects.push_back(Effect::Routed { route, outcome: Err(error) });
        }
        self.seek(now, key, name, want, None);
    }

    /// Whether somebody may have any stream: by what holds now of its address or its lease, not when it was given a ticket.
    fn may_ask(&self, by: By) -> Result<(), WireError> {
        match by {
            By::Address(from) if self.access.is_address_banned(from) => {
                Err(WireError::new(ErrorCode::Banned, "your address is banned here; ask the operator"))
            }
            By::Address(_) => Ok(()),
            By::Session(session) if self.is_banned(&session) => Err(crate::access::bans::refusal().error),
            By::Session(session) => match self.sessions.lease(&session) {
                Some(lease) if !lease.kicked && !matches!(lease.state, State::Ending(..)) => {
                    self.may(session, Right::Run)
                }
                _ => Err(WireError::new(ErrorCode::LeaseExpired, "this session's lease has ended")),
            },
        }
    }

    /// A stream that a shell wanted is over, or nobody wants it any more.
    pub(crate) fn route_gone(&mut self, route: RouteId) {
        self.forget_route(RouteKey::Shell(route));
    }

    fn forget_route(&mut self, key: RouteKey) -> Option<Route> {
        let route = self.services.routes.all.remove(&key)?;
        let waited = self.services.routes.due.has(&key);
        self.services.routes.due.clear(&key);
        if let Some(slot) = self.services.slots.get_mut(&route.name).filter(|slot| slot.id == route.slot) {
            if waited {
                slot.waiting.remove(&key);
            } else {
                slot.open = slot.open.saturating_sub(1);
            }
        }
        Some(route)
    }

    /// Gives a stream, lets it wait, or says why not.
    fn seek(&mut self, now: Millis, key: RouteKey, name: ServiceName, want: Want, caller: Option<Caller>) {
        match self.look_up(now, &name, want) {
            Err(error) => match (key, caller) {
                (RouteKey::Shell(route), _) => {
                    self.effects.push_back(Effect::Routed { route, outcome: Err(error) })
                }
                (RouteKey::Asked(_), Some(caller)) => self.answer(caller.reply_to(), Err(error)),
                (RouteKey::Asked(_), None) => {}
            },
            Ok((id, state)) => {
                let Some(slot) = self.services.slots.get_mut(&name) else { return };
                slot.waiting.insert(key);
                self.services.routes.all.insert(key, Route { name, want, slot: id, caller });
                self.services.routes.due.set(key, now.plus(RELAY_WAIT_MS));
                if state == ServiceState::Online {
                    self.serve_waiting(id);
                }
            }
        }
    }

    /// Whether a service is there, speaks so, and has room for one more.
    fn look_up(&self, now: Millis, name: &ServiceName, want: Want) -> Result<(u64, ServiceState), WireError> {
        let slot = self.services.slots.get(name).filter(|slot| !self.is_doomed(&slot.session));
        let Some((slot, facts)) = slot.and_then(|slot| Some((slot, slot.facts.as_ref()?))) else {
            return Err(route::not_found(name));
        };
        if facts.kind != want.kind() {
            return Err(route::wrong_kind(name, facts.kind));
        }
        if slot.streams() >= self.config.max_streams_per_service {
            let text = format!("the service {name} has as many streams as it may; try again in a moment");
            return Err(route::busy(&text));
        }
        let state = slot.state(now);
        let stale = state == ServiceState::Stale;
        if stale && slot.waiting.len() >= STREAMS_WAITING_PER_SERVICE {
            let text = format!("the service {name} is away, and enough wait for it; try again in a moment");
            return Err(route::busy(&text));
        }
        self.services.routes.has_room(stale)?;
        Ok((slot.id, state))
    }

    /// Gives those their streams who waited for a service that can be reached, if it can.
    pub(crate) fn serve_waiting(&mut self, id: u64) {
        let now = self.clock.now();
        let Some(name) = self.services.names.get(&id).cloned() else { return };
        let Some(slot) = self.services.slots.get_mut(&name) else { return };
        let Some(kind) = slot.facts.as_ref().map(|facts| facts.kind) else { return };
        if slot.waiting.is_empty() || slot.state(now) == ServiceState::Stale {
            return;
        }
        let (session, member) = (slot.session, slot.member);
        for key in std::mem::take(&mut slot.waiting) {
            let fits = self.services.routes.all.get(&key).is_some_and(|route| route.want.kind() == kind);
            let target = Target { session, member, name: name.clone(), kind };
            let outcome = if fits { Ok(target) } else { Err(route::wrong_kind(&name, kind)) };
            self.settle_route(key, outcome);
        }
    }

    /// Those who wait for a name that is free now wait in vain.
    pub(crate) fn turn_off(&mut self, name: &ServiceName, waiting: BTreeSet<RouteKey>) {
        for key in waiting {
            self.settle_route(key, Err(route::not_found(name)));
        }
    }

    /// Answers somebody who waits. A shell's stream counts from here on until it is over; a ticket does not.
    fn settle_route(&mut self, key: RouteKey, outcome: Result<Target, WireError>) {
        self.services.routes.due.clear(&key);
        match key {
            RouteKey::Shell(route) => {
                if outcome.is_err() {
                    self.services.routes.all.remove(&key);
                } else if let Some(route) = self.services.routes.all.get(&key)
                    && let Some(slot) = self.services.slots.get_mut(&route.name)
                {
                    slot.open += 1;
                }
                self.effects.push_back(Effect::Routed { route, outcome });
            }
            RouteKey::Asked(_) => {
                let route = self.services.routes.all.remove(&key);
                let Some(caller) = route.and_then(|route| route.caller) else { return };
                let outcome = outcome.and_then(|Target { session: peer, name, .. }| {
                    self.opening(caller.session, RelayRole::Connect, Some(name), Some(peer))
                });
                self.answer_if_here(&caller, outcome);
            }
        }
    }

    /// Those give up who have waited long enough.
    pub(crate) fn fire_routes(&mut self, now: Millis) {
        while let Some(key) = self.services.routes.due.pop_due(now) {
            let Some(route) = self.services.routes.all.get(&key) else { continue };
            let (name, id) = (route.name.clone(), route.slot);
            if let Some(slot) = self.services.slots.get_mut(&name).filter(|slot| slot.id == id) {
                slot.waiting.remove(&key);
            }
            self.settle_route(key, Err(route::unavailable(&name)));
        }
    }

    /// `relay.open`: what a ticket will say, now or when the service is back.
    pub(crate) fn relay_open(
        &mut self,
        now: Millis,
        caller: &Caller,
        params: RelayOpenParams,
    ) -> Result<Reply, WireError> {
        let session = caller.session;
        match (params.role, params.name) {
            (RelayRole::Publish, name) => {
                self.may_publish(session, name.as_ref())?;
                self.opening(session, RelayRole::Publish, name, None).map(Reply::Now)
            }
            (RelayRole::Connect, None) => Err(WireError::bad_request("say which service: name is missing")),
            (RelayRole::Connect, Some(name)) => {
                self.may(session, Right::Run)?;
                let key = RouteKey::Asked(self.next_number());
                self.seek(now, key, name, Want::Tcp, Some(caller.clone()));
                Ok(Reply::Later)
            }
        }
    }

    fn may_publish(&self, session: SessionKey, name: Option<&ServiceName>) -> Result<(), WireError> {
        self.may(session, Right::Serve)?;
        match name {
            Some(name) if self.service_holder(name) != Some(session) => {
                let text = format!("this session does not hold {name}; offer it with service.renew first");
                Err(WireError::new(ErrorCode::NotFound, text))
            }
            _ => Ok(()),
        }
    }

    fn opening(
        &mut self,
        session: SessionKey,
        role: RelayRole,
        name: Option<ServiceName>,
        peer: Option<SessionKey>,
    ) -> Result<Answer, WireError> {
        let member = self.sessions.lease(&session).ok_or_else(lease_ended)?.member;
        let (run, id) = (self.numbering.boot().run, self.next_number());
        Ok(Answer::RelayOpen(Box::new(Opening { role, session, member, name, peer, run, id })))
    }
}
