//! Presence: what every watcher is told of the others, and whether that can be.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Life, Seen, Slot};

use super::world::World;
use super::{Court, who};

/// How long the answer to a hello may be under way.
const HELLO_MS: u64 = 30_000;

/// A peer in the eyes of a watcher.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    here: bool,
    /// How many ends of its lease the watcher has accounted for.
    ends: usize,
}

/// What a process knows of the others.
#[derive(Debug, Default)]
struct Watch {
    epoch: Option<String>,
    /// Numberings that were in force before.
    past: BTreeSet<String>,
    last_seq: u64,
    version: Option<u64>,
    /// Whether everybody is in `peers`.
    whole: bool,
    peers: BTreeMap<String, Peer>,
    /// How many ends each session had when the broker answered the hello whose answer is still to come.
    knocked: Option<BTreeMap<Slot, usize>>,
}

/// What processes know of each other.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    watches: BTreeMap<Life, Watch>,
    alive: Option<Vec<Life>>,
}

impl Watchers {
    pub(super) fn see(&mut self, seen: &Seen, world: &mut World, court: &mut Court) {
        match seen {
            Seen::Admitted(life, ..) => {
                // What it is told of the others may be as old as a hello that waits for the disk.
                let now = world.now;
                let old = |ends: &Vec<u64>| ends.partition_point(|end| end + HELLO_MS < now);
                let ends = || world.sessions.iter().map(|(slot, session)| (*slot, old(&session.ends)));
                let watch = self.watches.entry(*life).or_default();
                watch.knocked.get_or_insert_with(|| ends().collect());
            }
            Seen::Attached { life, complete, snapshot, epoch: (epoch, first), .. } => {
                let watch = self.watches.entry(*life).or_default();
                let knocked = watch.knocked.take();
                match (complete, snapshot) {
                    (true, None) => watch.goes_on(*life, epoch, *first, court),
                    (false, Some((peers, whole))) => {
                        watch.begins(*life, (epoch, *first), peers, *whole, knocked, world, court);
                    }
                    (true, Some(_)) | (false, None) => {
                        let text =
                            format!("{} got a snapshot beside a complete stream, or neither", who(*life));
                        court.accuse("stream", text);
                    }
                }
            }
            Seen::Event(life, seq, name) => {
                let watch = self.watches.entry(*life).or_default();
                watch.numbered(*life, *seq, court);
                if name == "resync" {
                    (watch.whole, watch.version) = (false, None);
                }
            }
            Seen::Service { life, seq, .. } => {
                self.watches.entry(*life).or_default().numbered(*life, *seq, court);
            }
            Seen::Presence { life, seq, kind, session, versions } => {
                let watch = self.watches.entry(*life).or_default();
                watch.numbered(*life, *seq, court);
                watch.versioned(*life, *versions, court);
                watch.step(*life, kind, session, world, court);
            }
            Seen::Killed(life) | Seen::Ended(life, _) => _ = self.watches.remove(life),
            Seen::Rest { alive, .. } => self.alive = Some(alive.clone()),
            Seen::Present(life, sessions) => self.check_present(*life, sessions, world, court),
            _ => {}
        }
    }

    /// In the end everybody sees those who are here, and nobody else.
    fn check_present(&self, life: Life, sessions: &BTreeSet<String>, world: &World, court: &mut Court) {
        let alive: BTreeSet<Slot> = self.alive.iter().flatten().map(|life| life.slot).collect();
        for (slot, role) in world.slots() {
            let present = sessions.contains(&role.session);
            let over = world.session(slot).is_none_or(|session| session.must_have_ended(&world.broker));
            if alive.contains(&slot) && !present {
                let text = format!("session {} is here, and {} does not see it", slot.0, who(life));
                court.accuse("presence", text);
            } else if present && over && !alive.contains(&slot) {
                let text = format!("session {} is long gone, and {} sees it", slot.0, who(life));
                court.accuse("presence", text);
            }
        }
        if let Some(watch) = self.watches.get(&life).filter(|watch| watch.whole && self.alive.is_some()) {
            let here: BTreeSet<&String> =
                watch.peers.iter().filter(|(_, peer)| peer.here).map(|(session, _)| session).collect();
            let differs = |session: &&String| here.contains(session) != sessions.contains(*session);
            // Who may come or go at this moment is not looked at.
            let certain = |session: &&String| {
                let session = world.slot(session).and_then(|slot| world.session(slot));
                session.is_some_and(|session| !session.may_have_ended(&world.broker))
            };
            for session in here.iter().copied().chain(sessions).filter(differs).filter(certain) {
                let text =
                    format!("{} was told otherwise by events about {session} than by the list", who(life));
                court.accuse("presence", text);
            }
        }
    }
}

impl Watch {
    /// The stream goes on where it was.
    fn goes_on(&mut self, life: Life, epoch: &str, first: u64, court: &mut Court) {
        if self.epoch.as_deref() != Some(epoch) {
            let text =
                format!("{} was told that its stream is complete, in another epoch ({epoch})", who(life));
            court.accuse("stream", text);
            self.epoch = Some(epoch.to_owned());
        } else if first <= self.last_seq {
            let text = format!("{} is to get event {first} again, and has {}", who(life), self.last_seq);
            court.accuse("stream", text);
        }
        self.last_seq = first.saturating_sub(1);
    }

    #[allow(clippy::too_many_arguments)]
    fn begins(
        &mut self,
        life: Life,
        (epoch, first): (&String, u64),
        peers: &BTreeSet<String>,
        whole: bool,
        knocked: Option<BTreeMap<Slot, usize>>,
        world: &World,
        court: &mut Court,
    ) {
        if first != 1 || self.epoch.as_ref() == Some(epoch) || self.past.contains(epoch) {
            let text = format!("{} got a new stream that begins at {first} of epoch {epoch}", who(life));
            court.accuse("stream", text);
        }
        self.past.extend(self.epoch.replace(epoch.clone()));
        (self.last_seq, self.version, self.whole) = (first.saturating_sub(1), None, whole);
        let ends = |slot: Slot| knocked.as_ref().and_then(|knocked| knocked.get(&slot)).copied().unwrap_or(0);
        self.peers.clear();
        for (slot, role) in world.slots() {
            let here = peers.contains(&role.session);
            self.peers.insert(role.session.clone(), Peer { here, ends: ends(slot) });
        }
        for session in peers {
            self.peers.entry(session.clone()).or_default().here = true;
        }
        if whole && world.role(life.slot).is_some_and(|role| !peers.contains(&role.session)) {
            court.accuse("presence", format!("{} is not in its own snapshot", who(life)));
        }
    }

    /// Numbers rise, and never start over within an epoch. Those of messages are not heard of here.
    fn numbered(&mut self, life: Life, seq: u64, court: &mut Court) {
        if seq <= self.last_seq {
            let text = format!("{} got event {seq} after event {}", who(life), self.last_seq);
            court.accuse("stream", text);
        }
        self.last_seq = seq;
    }

    fn versioned(&mut self, life: Life, (base, version): (u64, u64), court: &mut Court) {
        let known = self.version.unwrap_or(base);
        if base > known || version <= known || version <= base {
            let text = format!("{} is at version {known} and got one from {base} to {version}", who(life));
            court.accuse("stream", text);
        }
        self.version = Some(version);
    }

    fn step(&mut self, life: Life, kind: &str, session: &str, world: &mut World, court: &mut Court) {
        let whole = self.whole;
        let peer = self.peers.entry(session.to_owned()).or_default();
        let expected = kind != "joined";
        if whole && peer.here != expected {
            let text = format!(
                "{} heard that {session} {kind}, and it was {} already",
                who(life),
                if peer.here { "here" } else { "gone" }
            );
            court.accuse("presence", text);
        }
        peer.here = kind != "left";
        let Some(slot) = world.slot(session) else { return };
        let broker = &world.broker;
        let state = world.sessions.entry(slot).or_default();
        match kind {
            "left" => {
                let over = peer.ends < state.ends.len();
                let now = state.may_have_ended(broker) && peer.ends == state.ends.len();
                if !over && !now {
                    let text = format!(
                        "{} heard that session {} left, whose lease could not have ended",
                        who(life),
                        slot.0
                    );
                    court.accuse("presence", text);
                }
                peer.ends += 1;
            }
            // It had ended, and nobody was told of its new beginning.
            "joined" if peer.ends > state.ends.len() => state.began_unseen(world.now),
            _ => {}
        }
    }
}
