//! All that a screen shows of a mesh, drawn from the hello's snapshot and the event stream alone: who is here, what is
//! offered, how the broker is.
//!
//! Each of the three has a version. A change at or below the one we have is old news, whether it comes late or twice; a
//! change whose base is beyond ours tells that something was missed, and that list must be read again. An answer that is
//! older than what we know is not believed either: it was overtaken on its way.

use std::collections::BTreeMap;

use tenure_proto::event::{EventBody, HealthEvent, ResyncWhat};
use tenure_proto::hello::{HealthStatus, HelloResult};
use tenure_proto::method::{HealthResult, PresenceListResult};
use tenure_proto::name::ServiceName;
use tenure_proto::service::{Service, ServiceEvent, ServiceEventKind, ServicesListResult};

use crate::{PeerChange, PeerMap, SessionEvent};

/// What a screen shows of a mesh.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    peers: PeerMap,
    health: Option<HealthStatus>,
    health_version: u64,
    health_missing: bool,
    services: BTreeMap<ServiceName, Service>,
    services_version: u64,
    services_missing: bool,
    /// Pages of a list of services that is being read.
    services_pages: Option<BTreeMap<ServiceName, Service>>,
}

impl Screen {
    /// Who is here.
    pub fn peers(&self) -> &PeerMap {
        &self.peers
    }

    /// What is offered, in the order of names.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// How the broker is; nothing before the first hello is answered.
    pub fn health(&self) -> Option<HealthStatus> {
        self.health
    }

    /// What must be read again: `presence.list` and `services.list` page by page, `health`.
    pub fn missing(&self) -> Vec<ResyncWhat> {
        let all = [
            (self.peers.needs_fetch(), ResyncWhat::Presence),
            (self.services_missing, ResyncWhat::Services),
            (self.health_missing, ResyncWhat::Health),
        ];
        all.into_iter().filter(|(missing, _)| *missing).map(|(_, what)| what).collect()
    }

    /// Takes in what the session heard; says what became of peers.
    pub fn apply(&mut self, event: &SessionEvent) -> PeerChange {
        match event {
            SessionEvent::Attached(hello) => self.attached(hello),
            SessionEvent::Event { body, .. } => match body.as_ref() {
                EventBody::Health(event) => self.turned(*event),
                EventBody::Service(event) => self.stepped(event),
                EventBody::Resync(resync) => {
                    self.services_missing |= resync.what.contains(&ResyncWhat::Services);
                    self.health_missing |= resync.what.contains(&ResyncWhat::Health);
                }
                _ => {}
            },
            _ => {}
        }
        self.peers.apply(event)
    }

    /// Takes in one page of `presence.list`; `first` starts over.
    pub fn presence_read(&mut self, page: &PresenceListResult, first: bool) -> PeerChange {
        self.peers.page(page, first)
    }

    /// Takes in the answer to `health`.
    pub fn health_read(&mut self, answer: &HealthResult) {
        let version = answer.state_version.health.get();
        if version >= self.health_version {
            (self.health, self.health_version, self.health_missing) = (Some(answer.status), version, false);
        }
    }

    /// Takes in one page of `services.list`; `first` starts over, and is not believed when it was overtaken on its
    /// way. Done when the page has no `next`.
    pub fn services_read(&mut self, page: &ServicesListResult, first: bool) {
        let version = page.state_version.services.get();
        if first {
            self.services_pages = (version >= self.services_version).then(BTreeMap::new);
            // Steps that happen while pages are read have higher versions and are laid over them.
            self.services_version = self.services_version.max(version);
        }
        let Some(pages) = &mut self.services_pages else { return };
        let untimed = |service: &Service| (service.name.clone(), service.clone().without_times());
        pages.extend(page.services.iter().map(untimed));
        if page.next.is_none() {
            self.services = self.services_pages.take().unwrap_or_default();
            self.services_missing = false;
        }
    }

    /// A hello was answered: its versions replace what we had, even when lower.
    fn attached(&mut self, hello: &HelloResult) {
        self.health_version = hello.state_version.health.get();
        self.services_version = hello.state_version.services.get();
        if let Some(snapshot) = &hello.snapshot {
            (self.health, self.health_missing) = (Some(snapshot.health), false);
            let named = |service: &Service| (service.name.clone(), service.clone());
            self.services = snapshot.services.iter().map(named).collect();
            (self.services_missing, self.services_pages) = (snapshot.more_services, None);
        }
    }

    /// Health is one fact, so the newest is all of it.
    fn turned(&mut self, HealthEvent { status, version }: HealthEvent) {
        if version.get() > self.health_version {
            (self.health, self.health_version, self.health_missing) = (Some(status), version.get(), false);
        }
    }

    fn stepped(&mut self, event: &ServiceEvent) {
        if event.version.get() <= self.services_version {
            return;
        }
        self.services_missing |= event.base.get() > self.services_version;
        self.services_version = event.version.get();
        for map in [Some(&mut self.services), self.services_pages.as_mut()].into_iter().flatten() {
            let name = event.service.name.clone();
            match event.kind {
                ServiceEventKind::Gone => map.remove(&name),
                _ => map.insert(name, event.service.clone()),
            };
        }
    }
}

#[cfg(test)]
mod tests;
