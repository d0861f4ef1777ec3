//! One correct client process: what it knows of its event stream and of who is here, and what it can demand.

use std::collections::BTreeMap;
use tenure_proto::ids::{Epoch, LeaseId, SessionKey};

use tenure_proto::error::WireError;
use tenure_proto::event::{EventBody, PresenceEvent, PresenceKind};
use tenure_proto::hello::{HealthStatus, Replay};
use tenure_proto::method::PresenceListResult;
use tenure_proto::peer::SharedPeer;

use crate::conn::admit::{Admission, TokenVerdict};
use crate::effect::HelloAnswer;
use crate::tests::world::knock;
use crate::*;

/// A view of who is here, with the version it is at.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) version: u64,
    pub(crate) peers: BTreeMap<SessionKey, SharedPeer>,
}

impl View {
    fn apply(&mut self, event: &PresenceEvent) {
        self.version = event.version.get();
        let session = event.peer.get().session;
        match event.kind {
            PresenceKind::Left => self.peers.remove(&session),
            _ => self.peers.insert(session, event.peer.clone()),
        };
    }

    /// What a person would see: who is here, called what. The rest may age until somebody asks.
    pub(crate) fn names(&self) -> Vec<(SessionKey, &str)> {
        self.peers.iter().map(|(session, peer)| (*session, peer.get().name.as_str())).collect()
    }
}

fn by_session(peers: &[SharedPeer]) -> BTreeMap<SessionKey, SharedPeer> {
    peers.iter().map(|peer| (peer.get().session, peer.clone())).collect()
}

/// A process that holds a session's key.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) instance: String,
    pub(crate) token: Option<LeaseId>,
    /// Its epoch and the last event it has.
    pub(crate) position: Option<(Epoch, u64)>,
    /// Snapshot and events, nothing else: must be told without a contradiction.
    pub(crate) told: View,
    /// The mirror by the client's rule, which may also have been read from a list.
    pub(crate) mirror: View,
    /// How the broker is, and the version of that.
    pub(crate) health: (u64, HealthStatus),
    /// The last direct event it has.
    pub(crate) direct: u64,
}

impl Process {
    pub(crate) fn new(instance: String) -> Process {
        let (told, mirror) = (View::default(), View::default());
        let health = (0, HealthStatus::Ok);
        Process { instance, token: None, position: None, told, mirror, health, direct: 0 }
    }

    pub(crate) fn hello(&self, n: u8, name: &str, token: TokenVerdict) -> Admission {
        let position = self.position.clone().filter(|_| token != TokenVerdict::Absent);
        let instance = self.instance.parse().unwrap();
        let mut admission = Admission { token, position, instance, ..knock(n) };
        admission.profile.name = name.to_owned();
        admission
    }

    /// The hello was answered. `directs` is the last direct event before that; `complete` what must be.
    pub(crate) fn attached(&mut self, answer: &HelloAnswer, directs: u64) {
        let next_seq = answer.next_seq;
        self.token = Some(answer.lease_id.clone());
        let (version, health) = (answer.state_version.presence.get(), answer.state_version.health.get());
        match answer.replay {
            Replay::Complete => {
                assert!(answer.snapshot.is_none());
                assert_eq!(self.position, Some((answer.epoch.clone(), next_seq - 1)), "goes on where it was");
                assert_eq!(version, self.told.version, "the replay goes on from what the client has");
                assert_eq!(health, self.health.0, "and so does health");
                self.mirror = self.told.clone();
            }
            Replay::Resync => {
                assert_eq!(next_seq, 1);
                assert_ne!(self.position.as_ref().map(|p| &p.0), Some(&answer.epoch), "a new epoch");
                let snapshot = answer.snapshot.as_ref().expect("a resync brings a snapshot");
                assert!(!snapshot.more);
                self.told = View { version, peers: by_session(&snapshot.presence) };
                self.mirror = self.told.clone();
                self.health = (health, snapshot.health);
                self.direct = directs;
            }
        }
        assert!(self.told.peers.contains_key(&answer.session) || answer.replay == Replay::Complete);
        self.position = Some((answer.epoch.clone(), next_seq - 1));
    }

    /// An event came; what it told of presence is given back.
    pub(crate) fn heard(&mut self, seq: u64, body: &EventBody) -> Option<(PresenceKind, SessionKey)> {
        let (_, last_seq) = self.position.as_mut().expect("events come after the hello's answer");
        assert_eq!(seq, *last_seq + 1, "a gap on one socket");
        *last_seq = seq;
        match body {
            EventBody::Presence(event) => Some(self.stepped(event)),
            EventBody::Notice(notice) => {
                assert_eq!(notice.code, (self.direct + 1).to_string(), "lost, doubled or out of order");
                self.direct += 1;
                None
            }
            EventBody::Health(health) => {
                assert!(health.version.get() > self.health.0, "old news");
                self.health = (health.version.get(), health.status);
                None
            }
            EventBody::Tick(_) => None,
            other => panic!("nothing here causes {other:?}"),
        }
    }

    fn stepped(&mut self, event: &PresenceEvent) -> (PresenceKind, SessionKey) {
        let session = event.peer.get().session;
        assert_eq!(event.base.get(), self.told.version, "the base is the version last sent");
        assert!(event.version > event.base, "versions rise");
        let known = self.told.peers.contains_key(&session);
        assert_eq!(known, event.kind != PresenceKind::Joined, "{:?} of {session:?}", event.kind);
        self.told.apply(event);
        if event.version.get() > self.mirror.version {
            assert!(event.base.get() <= self.mirror.version, "nothing was missed");
            self.mirror.apply(event);
        }
        (event.kind, session)
    }

    /// It has read the list.
    pub(crate) fn listed(&mut self, answer: Result<Answer, WireError>) {
        let Ok(Answer::PresenceList(list)) = answer else { panic!("{answer:?}") };
        let PresenceListResult { peers, next, state_version } = *list;
        assert!(next.is_none());
        self.mirror = View { version: state_version.presence.get(), peers: by_session(&peers) };
    }
}
