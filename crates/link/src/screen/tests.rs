//! A screen against a mesh that changes at random, over a wire that loses, doubles and delays.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::json;
use tenure_proto::event::{PresenceEvent, PresenceKind, Resync};
use tenure_proto::hello::StateVersion;
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::method::{GroupsHealth, StoreHealth};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, Profile, SharedPeer};
use tenure_proto::service::{ServiceKind, ServiceState};

use super::*;

/// The truth: three versioned facts, and what of them has been sent.
#[derive(Clone, Default)]
struct Truth {
    peers: BTreeMap<SessionKey, SharedPeer>,
    services: BTreeMap<ServiceName, Service>,
    degraded: bool,
    version: [u64; 3],
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Peer(u8, u8),
    Leave(u8),
    Serve(u8, bool),
    Withdraw(u8),
    Turn,
    /// The wire: the next event is lost, comes twice, or an old one comes again.
    Lose,
    Double,
    Late(usize),
    /// The broker says that something must be read again.
    Resync,
    /// The socket breaks, and a hello brings a snapshot.
    Attach,
    /// What is missing is asked for, and the answer comes after so many further acts.
    Read(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..4u8, 0..3u8).prop_map(|(n, name)| Act::Peer(n, name)),
        2 => (0..4u8).prop_map(Act::Leave),
        4 => (0..4u8, any::<bool>()).prop_map(|(n, stale)| Act::Serve(n, stale)),
        2 => (0..4u8).prop_map(Act::Withdraw),
        3 => Just(Act::Turn),
        2 => Just(Act::Lose),
        2 => Just(Act::Double),
        2 => (0..40usize).prop_map(Act::Late),
        1 => Just(Act::Resync),
        1 => Just(Act::Attach),
        3 => (0..4usize).prop_map(Act::Read),
    ];
    proptest::collection::vec(act, 1..80)
}

fn n(number: u64) -> U53 {
    U53::saturating(number)
}

fn service(key: u8, stale: bool) -> Service {
    Service {
        first_seen_at: None,
        last_renewed_at: None,
        expires_at: None,
        name: format!("s{key}").parse().unwrap(),
        kind: ServiceKind::Run,
        state: if stale { ServiceState::Stale } else { ServiceState::Online },
        degraded: false,
        session: SessionKey([key; 32]),
        member: MemberKey([9; 32]),
        metadata: Default::default(),
    }
}

impl Truth {
    fn status(&self) -> HealthStatus {
        if self.degraded { HealthStatus::Degraded } else { HealthStatus::Ok }
    }

    fn state_version(&self) -> StateVersion {
        let [presence, services, health] = self.version.map(n);
        StateVersion { presence, services, health }
    }

    fn step(&mut self, which: usize) -> (U53, U53) {
        self.version[which] += 1;
        (n(self.version[which] - 1), n(self.version[which]))
    }

    /// Changes, and gives the event that tells of it.
    fn change(&mut self, act: Act) -> Option<EventBody> {
        Some(match act {
            Act::Peer(key, name) => {
                let session = SessionKey([key; 32]);
                let profile = Profile::named(format!("n{name}"));
                let peer = Peer::new(session, MemberKey([9; 32]), "i".parse().unwrap(), 0, &profile);
                let peer = SharedPeer::new(peer);
                let joined = self.peers.insert(session, peer.clone()).is_none();
                let kind = if joined { PresenceKind::Joined } else { PresenceKind::Updated };
                let (base, version) = self.step(0);
                EventBody::Presence(PresenceEvent { kind, peer, base, version })
            }
            Act::Leave(key) => {
                let peer = self.peers.remove(&SessionKey([key; 32]))?;
                let (base, version) = self.step(0);
                EventBody::Presence(PresenceEvent { kind: PresenceKind::Left, peer, base, version })
            }
            Act::Serve(key, stale) => {
                let service = service(key, stale);
                self.services.insert(service.name.clone(), service.clone());
                let kind = if stale { ServiceEventKind::Stale } else { ServiceEventKind::Online };
                let (base, version) = self.step(1);
                EventBody::Service(ServiceEvent { kind, service, base, version })
            }
            Act::Withdraw(key) => {
                let service = self.services.remove(&service(key, false).name)?;
                let (base, version) = self.step(1);
                EventBody::Service(ServiceEvent { kind: ServiceEventKind::Gone, service, base, version })
            }
            Act::Turn => {
                self.degraded = !self.degraded;
                let (_, version) = self.step(2);
                EventBody::Health(HealthEvent { status: self.status(), version })
            }
            _ => return None,
        })
    }

    fn hello(&self) -> SessionEvent {
        let peers: Vec<_> = self.peers.values().collect();
        let services: Vec<_> = self.services.values().collect();
        let hello = json!({
            "protocol": 1, "broker": {"id": "b", "version": "0"}, "connId": "c1", "sessionId": "01".repeat(32),
            "lease": "kept", "resume": {"outcome": "resumed", "token": "t"}, "leaseTtlMs": 90_000,
            "policy": {"pingIntervalMs": 30_000, "staleAfterMs": 75_000, "tickIntervalMs": 30_000,
                "maxPayload": 1, "maxBufferedBytes": 1, "maxBufferedMessages": 1, "maxInflight": 1,
                "durability": "fsync"},
            "features": {}, "events": {"epoch": "e1", "nextSeq": 1, "replay": "resync"},
            "snapshot": {"presence": peers, "services": services, "subscriptions": [], "queues": [],
                "health": self.status(), "uptimeMs": 1},
            "stateVersion": self.state_version(),
        });
        SessionEvent::Attached(Box::new(serde_json::from_value(hello).unwrap()))
    }

    /// The answers to everything that a screen can ask.
    fn answers(&self) -> (PresenceListResult, ServicesListResult, HealthResult) {
        let state_version = self.state_version();
        let peers = self.peers.values().cloned().collect();
        let health = HealthResult {
            reason: None,
            status: self.status(),
            broker_id: "b".to_owned(),
            uptime_ms: n(1),
            sessions: n(1),
            groups: GroupsHealth::default(),
            store: StoreHealth { kind: "memory".to_owned(), lag_ms: n(0) },
            draining: false,
            state_version,
        };
        let services = self.services.values().cloned().collect();
        (
            PresenceListResult { peers, next: None, state_version },
            ServicesListResult { services, next: None, state_version },
            health,
        )
    }
}

fn event(body: EventBody) -> SessionEvent {
    SessionEvent::Event { seq: 1, body: Box::new(body) }
}

/// A broker's answer and its events keep their order on one socket, but for `health`, whose answer waits for the store.
fn read_all(
    screen: &mut Screen,
    truth: &Truth,
    overtaken: &mut VecDeque<(usize, HealthResult)>,
    later: usize,
) {
    let (peers, services, health) = truth.answers();
    let missing = screen.missing();
    if missing.contains(&ResyncWhat::Presence) {
        screen.presence_read(&peers, true);
    }
    if missing.contains(&ResyncWhat::Services) {
        screen.services_read(&services, true);
    }
    overtaken.push_back((later, health));
}

fn assert_equal(screen: &Screen, truth: &Truth) {
    let peers: Vec<_> = screen.peers().peers().collect();
    assert_eq!(peers, truth.peers.values().collect::<Vec<_>>());
    assert_eq!(screen.services().collect::<Vec<_>>(), truth.services.values().collect::<Vec<_>>());
    assert_eq!(screen.health(), Some(truth.status()));
}

fn play(acts: &[Act]) {
    let (mut truth, mut screen) = (Truth::default(), Screen::default());
    truth.version = [1; 3];
    screen.apply(&truth.hello());
    let (mut told, mut overtaken) = (Vec::new(), VecDeque::new());
    let (mut lose, mut double) = (false, false);
    for act in acts {
        match *act {
            Act::Lose => lose = true,
            Act::Double => double = true,
            Act::Late(back) => {
                let old: Option<&EventBody> = told.len().checked_sub(back + 1).and_then(|at| told.get(at));
                old.map(|old| screen.apply(&event(old.clone())));
            }
            Act::Resync => {
                let what = vec![ResyncWhat::Presence, ResyncWhat::Services, ResyncWhat::Health];
                screen.apply(&event(EventBody::Resync(Resync { what })));
            }
            Act::Attach => {
                overtaken.clear();
                screen.apply(&truth.hello());
            }
            Act::Read(later) => read_all(&mut screen, &truth, &mut overtaken, later),
            change => {
                let Some(body) = truth.change(change) else { continue };
                told.push(body.clone());
                let times = if std::mem::take(&mut lose) { 0 } else { 1 + usize::from(double) };
                double = false;
                for _ in 0..times {
                    screen.apply(&event(body.clone()));
                }
            }
        }
        overtaken.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        while let Some((_, health)) = overtaken.pop_front_if(|(left, _)| *left == 0) {
            screen.health_read(&health);
        }
    }
    // What was lost shows with the next change of its kind, at the latest; then what is missing is read.
    for change in [Act::Peer(0, 0), Act::Serve(0, false), Act::Turn] {
        let body = truth.change(change).unwrap();
        screen.apply(&event(body));
    }
    read_all(&mut screen, &truth, &mut overtaken, 0);
    for (_, health) in overtaken {
        screen.health_read(&health);
    }
    assert_eq!(screen.missing(), []);
    assert_equal(&screen, &truth);
    // And nothing that comes late or twice changes it any more.
    for old in told {
        screen.apply(&event(old));
        assert_eq!(screen.missing(), []);
        assert_equal(&screen, &truth);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_screen_is_the_mesh_whatever_is_lost_doubled_or_late(acts in acts()) {
        play(&acts);
    }
}

#[test]
fn an_answer_that_was_overtaken_is_not_believed() {
    let mut truth = Truth { version: [1; 3], ..Truth::default() };
    let mut screen = Screen::default();
    screen.apply(&truth.hello());
    let (_, services, health) = truth.answers();
    for change in [Act::Turn, Act::Serve(1, false)] {
        screen.apply(&event(truth.change(change).unwrap()));
    }
    screen.health_read(&health);
    screen.services_read(&services, true);
    assert_equal(&screen, &truth);
}
