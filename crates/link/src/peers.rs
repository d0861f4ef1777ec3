//! A client's mirror of presence: a snapshot, then deltas, by the rule that makes late and doubled arrivals
//! harmless. A version at or below ours is old news; a base beyond ours means something was missed.

use std::collections::BTreeMap;

use tenure_proto::event::{EventBody, PresenceEvent, PresenceKind, ResyncWhat};
use tenure_proto::hello::HelloResult;
use tenure_proto::ids::SessionKey;
use tenure_proto::method::PresenceListResult;
use tenure_proto::peer::SharedPeer;

use crate::SessionEvent;

/// Who is here, as far as this client knows.
#[derive(Clone, Debug, Default)]
pub struct PeerMap {
    version: u64,
    peers: BTreeMap<SessionKey, SharedPeer>,
    /// Pages of a refetch so far.
    refetch: Option<BTreeMap<SessionKey, SharedPeer>>,
    missing: bool,
    /// Whether everybody was known at some time; until then, somebody new to us has not joined.
    known: bool,
    /// What was known before a snapshot that is only a part, until the rest is read.
    before: Option<BTreeMap<SessionKey, SharedPeer>>,
}

/// What an event did to the mirror.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerChange {
    /// Nothing.
    None,
    /// The map was read anew; this is what became of peers since, as far as it was not told before. Empty for
    /// the very first map, and for a part of one.
    Replaced(Vec<(PresenceKind, SharedPeer)>),
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
        let fetched = self.refetch.take().unwrap_or_default();
        let old = std::mem::replace(&mut self.peers, fetched);
        self.settle(old)
    }

    fn attached(&mut self, hello: &HelloResult) -> PeerChange {
        let Some(snapshot) = &hello.snapshot else { return PeerChange::None };
        self.version = hello.state_version.presence.get();
        let new = snapshot.presence.iter().map(|peer| (peer.get().session, peer.clone())).collect();
        let old = std::mem::replace(&mut self.peers, new);
        self.refetch = None;
        if !snapshot.more {
            return self.settle(old);
        }
        // Whoever is not in this part need not have left: compare when the rest is read.
        self.missing = true;
        if self.known && self.before.is_none() {
            self.before = Some(old);
        }
        PeerChange::Replaced(Vec::new())
    }

    /// The map is whole again: says what became of those who were known before.
    fn settle(&mut self, old: BTreeMap<SessionKey, SharedPeer>) -> PeerChange {
        self.missing = false;
        let before = self.before.take().unwrap_or(old);
        let known = std::mem::replace(&mut self.known, true);
        PeerChange::Replaced(if known { differences(&before, &self.peers) } else { Vec::new() })
    }

    fn step(&mut self, event: &PresenceEvent) -> PeerChange {
        if event.version.get() <= self.version {
            return PeerChange::None;
        }
        if event.base.get() > self.version {
            self.missing = true;
        }
        self.version = event.version.get();
        let session = event.peer.get().session;
        let had = self.peers.get(&session);
        let same = if event.kind == PresenceKind::Left { had.is_none() } else { had == Some(&event.peer) };
        // A page that was read later than the first may have told this already.
        let told = same && self.known && !self.missing;
        let maps = [Some(&mut self.peers), self.refetch.as_mut(), self.before.as_mut()];
        for map in maps.into_iter().flatten() {
            match event.kind {
                PresenceKind::Left => map.remove(&session),
                _ => map.insert(session, event.peer.clone()),
            };
        }
        if told { PeerChange::None } else { PeerChange::Peer(event.kind, event.peer.clone()) }
    }
}

/// What became of peers from `old` to `new`. Whoever joined anew in between has left as well.
fn differences(
    old: &BTreeMap<SessionKey, SharedPeer>,
    new: &BTreeMap<SessionKey, SharedPeer>,
) -> Vec<(PresenceKind, SharedPeer)> {
    let again = |was: &SharedPeer, is: &SharedPeer| was.get().joined_at != is.get().joined_at;
    let mut found = Vec::new();
    for (session, was) in old {
        if new.get(session).is_none_or(|is| again(was, is)) {
            found.push((PresenceKind::Left, was.clone()));
        }
    }
    for (session, is) in new {
        match old.get(session) {
            Some(was) if !again(was, is) => {
                if was != is {
                    found.push((PresenceKind::Updated, is.clone()));
                }
            }
            _ => found.push((PresenceKind::Joined, is.clone())),
        }
    }
    found
}

#[cfg(test)]
mod tests;
