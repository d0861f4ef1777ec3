//! A client's mirror of presence: a snapshot, then deltas, by the rule that makes late and doubled arrivals
//! harmless. A version at or below ours is old news; a base beyond ours means something was missed.

use std::collections::BTreeMap;

use tenure_proto::event::{EventBody, PresenceEvent, PresenceKind, ResyncWhat};
use tenure_proto::hello::HelloResult;
use tenure_proto::ids::SessionKey;
use tenure_proto::method::PresenceListResult;
use tenure_proto::peer::SharedPeer;

use super::SessionEvent;

/// Who is here, as far as this client knows.
#[derive(Clone, Debug, Default)]
pub struct PeerMap {
    version: u64,
    peers: BTreeMap<SessionKey, SharedPeer>,
    /// Pages of a refetch so far.
    refetch: Option<BTreeMap<SessionKey, SharedPeer>>,
    missing: bool,
}

/// What an event did to the mirror.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerChange {
    /// Nothing.
    None,
    /// Everything may be different.
    Replaced,
    /// One peer joined, left or changed.
    Peer(PresenceKind, SharedPeer),
}

impl PeerMap {
    /// The peers in the order of their keys.
    pub fn peers(&self) -> impl Iterator<Item = &SharedPeer> {
        self.peers.values()
    }

    /// Whether `presence.list` must be read (again), page by page, into [`PeerMap::page`].
    pub fn needs_fetch(&self) -> bool {
        self.missing
    }

    /// Takes in what the session heard.
    pub fn apply(&mut self, event: &SessionEvent) -> PeerChange {
        match event {
            SessionEvent::Attached(hello) => self.attached(hello),
            SessionEvent::Event { body, .. } => match body.as_ref() {
                EventBody::Presence(event) => self.step(event),
                EventBody::Resync(resync) if resync.what.contains(&ResyncWhat::Presence) => {
                    self.missing = true;
                    PeerChange::None
                }
                _ => PeerChange::None,
            },
            _ => PeerChange::None,
        }
    }

    /// Takes in one page of `presence.list`; `first` starts over. Done when the page has no `next`.
    pub fn page(&mut self, page: &PresenceListResult, first: bool) -> PeerChange {
        if first {
            self.refetch = Some(BTreeMap::new());
            // Steps that happen while pages are read have higher versions and are laid over them.
            self.version = page.state_version.presence.get();
        }
        let Some(fetched) = &mut self.refetch else { return PeerChange::None };
        fetched.extend(page.peers.iter().map(|peer| (peer.get().session, peer.clone())));
        if page.next.is_some() {
            return PeerChange::None;
        }
        self.peers = self.refetch.take().unwrap_or_default();
        self.missing = false;
        PeerChange::Replaced
    }

    fn attached(&mut self, hello: &HelloResult) -> PeerChange {
        let Some(snapshot) = &hello.snapshot else { return PeerChange::None };
        self.version = hello.state_version.presence.get();
        self.peers = snapshot.presence.iter().map(|peer| (peer.get().session, peer.clone())).collect();
        self.missing = snapshot.more;
        self.refetch = None;
        PeerChange::Replaced
    }

    fn step(&mut self, event: &PresenceEvent) -> PeerChange {
        if event.version.get() <= self.version {
            return PeerChange::None;
        }
        if event.base.get() > self.version {
            self.missing = true;
        }
        self.version = event.version.get();
        for map in [Some(&mut self.peers), self.refetch.as_mut()].into_iter().flatten() {
            match event.kind {
                PresenceKind::Left => map.remove(&event.peer.get().session),
                _ => map.insert(event.peer.get().session, event.peer.clone()),
            };
        }
        PeerChange::Peer(event.kind, event.peer.clone())
    }
}
