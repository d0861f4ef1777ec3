//! Names against everything that can happen: one holder each, never gone within a lease, and whoever listens knows what
//! whoever asks is told.

use std::collections::{BTreeMap, BTreeSet};
use tenure_proto::ids::SessionKey;

use proptest::prelude::*;
use tenure_proto::event::EventBody;
use tenure_proto::name::ServiceName;
use tenure_proto::service::{
    Service, ServiceEventKind, ServiceMetadata, ServiceOffer, ServiceRenewParams, ServiceWithdrawParams,
    ServicesListParams,
};

use crate::input::{Banned, Call};
use crate::tests::services::offer;
use crate::tests::world::{Disk, Frame, World, knock, session};
use crate::*;

#[derive(Clone, Debug)]
enum Act {
    Offer { who: u8, name: u8, hide: bool, degraded: bool },
    Withdraw { who: u8, name: u8 },
    Close(u8),
    Come(u8),
    Bye(u8),
    Ban(u8),
    Pass(u64),
    Disk(Disk),
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let who = || 2..5u8;
    let act = prop_oneof![
        10 => (who(), 0..3u8, 0..5u8, any::<bool>())
            .prop_map(|(who, name, hide, degraded)| Act::Offer { who, name, hide: hide == 0, degraded }),
        3 => (who(), 0..3u8).prop_map(|(who, name)| Act::Withdraw { who, name }),
        3 => who().prop_map(Act::Close),
        5 => who().prop_map(Act::Come),
        1 => who().prop_map(Act::Bye),
        1 => who().prop_map(Act::Ban),
        6 => prop_oneof![0..500u64, 3_000..7_000u64, 25_000..40_000u64, 80_000..100_000u64].prop_map(Act::Pass),
        2 => prop_oneof![Just(Disk::Commits), Just(Disk::Holds), Just(Disk::Fails)].prop_map(Act::Disk),
        1 => Just(Act::Restart),
    ];
    proptest::collection::vec(act, 1..60)
}

/// What a watcher knows from the snapshot and events alone.
#[derive(Default)]
struct Mirror {
    version: u64,
    services: BTreeMap<ServiceName, Service>,
}

struct Stage {
    world: World,
    conns: BTreeMap<u8, ConnId>,
    watcher: ConnId,
    mirror: Mirror,
}

impl Stage {
    fn new() -> Stage {
        let mut world = World::new();
        let watcher = world.join(1);
        Stage { world, conns: BTreeMap::new(), watcher, mirror: Mirror::default() }
    }

    fn conn(&self, who: u8) -> Option<ConnId> {
        self.conns.get(&who).copied().filter(|conn| self.world.is_open(*conn) && self.carries(*conn))
    }

    fn carries(&self, conn: ConnId) -> bool {
        self.world.mesh.sessions.carried_by(conn).is_some()
    }

    fn play(&mut self, act: &Act) {
        match act {
            Act::Offer { who, name, hide, degraded } => {
                let Some(conn) = self.conn(*who) else { return };
                let metadata = ServiceMetadata { hide: *hide, ..Default::default() };
                let one = ServiceOffer { metadata, degraded: *degraded, ..offer(&format!("n{name}")) };
                self.world.ask(conn, Call::ServiceRenew(ServiceRenewParams { services: vec![one] }));
            }
            Act::Withdraw { who, name } => {
                let Some(conn) = self.conn(*who) else { return };
                let names = vec![format!("n{name}")];
                self.world.ask(conn, Call::ServiceWithdraw(ServiceWithdrawParams { names }));
            }
            Act::Close(who) => {
                if let Some(conn) = self.conn(*who) {
                    self.world.close(conn, false);
                }
            }
            Act::Come(who) if self.conn(*who).is_none() => {
                let conn = self.world.hello(knock(*who));
                self.conns.insert(*who, conn);
            }
            Act::Come(_) => {}
            Act::Bye(who) => {
                if let Some(conn) = self.conn(*who) {
                    self.world.bye(conn);
                }
            }
            Act::Ban(who) => {
                self.world.ban(Banned::Session(session(*who)));
                self.world.unban(Banned::Session(session(*who)));
            }
            Act::Pass(ms) => self.world.advance(*ms),
            Act::Disk(disk) => self.world.disk(*disk),
            Act::Restart => {
                self.world.disk(Disk::Commits);
                self.world.restart(usize::MAX);
                self.conns.clear();
                self.watcher = self.world.join(1);
                let services = &self.world.answer(self.watcher).snapshot.as_ref().unwrap().services;
                self.mirror.services =
                    services.iter().map(|service| (service.name.clone(), service.clone())).collect();
                self.mirror.version = self.world.answer(self.watcher).state_version.services.get();
            }
        }
    }

    /// Takes in what the watcher was told, and holds it against what was so before.
    fn listen(&mut self, before: &BTreeSet<(ServiceName, SessionKey)>) {
        let leases: BTreeSet<SessionKey> = self.world.mesh.sessions.keys().copied().collect();
        let frames = std::mem::take(&mut self.world.socket_mut(self.watcher).frames);
        for frame in frames {
            let Frame::Event(_, EventBody::Service(event)) = frame else { continue };
            assert_eq!(event.base.get(), self.mirror.version, "a step that follows the last");
            assert!(event.version.get() > event.base.get());
            self.mirror.version = event.version.get();
            let (name, holder) = (event.service.name.clone(), event.service.session);
            match event.kind {
                ServiceEventKind::Gone => {
                    assert!(self.mirror.services.remove(&name).is_some(), "{name} was not there");
                }
                _ => {
                    let old = self.mirror.services.insert(name.clone(), event.service);
                    let same = old.is_none_or(|old| old.session == holder);
                    assert!(same, "{name} changed hands without having gone");
                }
            }
        }
        // Who held a name and still has its lease is not seen to have lost it, unless it said so itself.
        for (name, holder) in before.iter().filter(|(_, holder)| leases.contains(holder)) {
            let held = self.world.mesh.service_holder(name);
            assert_eq!(held, Some(*holder), "{name}");
        }
    }

    /// Whoever asks is told of the same names as whoever listens; only states may be newer.
    fn compare(&mut self) {
        let answer = self.world.ask(self.watcher, Call::ServicesList(ServicesListParams::default()));
        let Some(Ok(Answer::ServicesList(list))) = answer else { panic!("{answer:?}") };
        assert_eq!(list.state_version.services.get(), self.mirror.version);
        let plain = |service: &Service| (service.name.clone(), service.session, service.degraded);
        let listed: Vec<_> = list.services.iter().map(plain).collect();
        let heard: Vec<_> = self.mirror.services.values().map(plain).collect();
        assert_eq!(listed, heard);
    }
}

fn run(acts: &[Act]) {
    let mut stage = Stage::new();
    for act in acts {
        // A lease that ends, and what its session or an operator does to it, may take names away.
        let takes =
            matches!(act, Act::Withdraw { .. } | Act::Bye(_) | Act::Ban(_) | Act::Restart | Act::Disk(_));
        let held = stage.world.mesh.services.slots();
        let held = held.filter(|(_, slot)| slot.facts.is_some() && slot.wanted.is_some());
        // So may time, if its session is here and does not renew it.
        let until = match act {
            Act::Pass(ms) => stage.world.mesh.clock.now().plus(*ms),
            _ => stage.world.mesh.clock.now(),
        };
        let held = held.filter(|(_, slot)| slot.ends_at() > until);
        let before = held.map(|(name, slot)| (name.clone(), slot.session)).collect();
        let ends = |stage: &Stage| stage.world.store.log.iter().filter(|(_, begins)| !begins).count();
        let earlier = ends(&stage);
        stage.play(act);
        let before = if takes || ends(&stage) > earlier { BTreeSet::new() } else { before };
        stage.listen(&before);
        stage.compare();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_name_has_one_holder_and_everybody_knows_the_same(acts in acts()) {
        run(&acts);
    }
}
