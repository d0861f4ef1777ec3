//! A session's event stream: numbering, what may be replayed, where each feed's cursor stands.
//!
//! A position is (epoch, seq). A number is given when an event leaves for the socket, so what a client sees on
//! one socket has no gaps. What left but may not have arrived is remembered — the ring — and on resume the
//! stream is wound back to what the client has: presence and services by moving their cursors, everything else by
//! putting the events back in front of those that wait.
//!
//! Health is one fact: a session is told the newest, when it is not the one it was told last. So changes coalesce, and
//! whoever was away is told when it is back.
//!
//! The ring never stores steps of a versioned map: such an event is a (seq, version) pair, and consecutive pairs are
//! one run.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::event::{EventBody, HealthEvent, Receipt, Resync, ResyncWhat};
use tenure_proto::ids::RunId;
use tenure_proto::limits::{RING_BYTES, RING_EVENTS};

use crate::services::service;
use crate::sessions::presence::Delta;

/// Direct events that may wait for a session; one more breaks the stream (a resync, never silence).
pub const PENDING_EVENTS: usize = RING_EVENTS;

/// Events of runs, and their bytes, that may wait for a session besides; the rest waits in the runs' own rings. One
/// that is larger goes alone. Fewer than a batch has, so that other things find room beside them.
pub const FED_EVENTS: usize = 64;
/// See [`FED_EVENTS`].
pub const FED_BYTES: usize = 256 * 1024;
/// Bytes of a health event, about.
const HEALTH_BYTES: usize = 64;
/// Bytes of a receipt, about.
const RECEIPT_BYTES: usize = 192;
/// Bytes of a resync, about.
const RESYNC_BYTES: usize = 64;

/// An event with the room it takes in the ring.
#[derive(Clone, Debug)]
struct Direct {
    event: Arc<EventBody>,
    bytes: usize,
    /// Whether it was taken from elsewhere because there was room: it counts apart, and breaks nothing.
    fed: bool,
}

impl Direct {
    /// The version of health that it tells.
    fn health(&self) -> Option<u64> {
        match &*self.event {
            EventBody::Health(health) => Some(health.version.get()),
            _ => None,
        }
    }
}

/// A versioned map whose steps a session is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    Presence,
    Services,
}

/// Of each map the version that a session has.
type Cursors = [u64; 2];

/// What left for the socket.
#[derive(Clone, Debug)]
enum Sent {
    /// `len` steps of a map: numbers `seq..`, versions `version..`, both by ones.
    Steps { map: Map, seq: u64, version: u64, len: u64 },
    /// Any other event worth replaying.
    Direct { seq: u64, direct: Direct },
}

/// The event stream of one lease.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Which numbering this is; a new one after every break in continuity.
    epoch: u64,
    /// The last number given.
    last_seq: u64,
    /// The version of each map that was last sent.
    cursors: Cursors,
    /// The version of health last sent; 0 when it is to be sent whatever that was.
    health: u64,
    /// Events that wait to leave.
    pending: VecDeque<Direct>,
    pending_bytes: usize,
    /// Those of them that were fed: how many, and their bytes.
    fed: (usize, usize),
    /// What left since the client's last known seq.
    ring: VecDeque<Sent>,
    ring_events: u64,
    ring_bytes: usize,
    /// The newest number that cannot be replayed any more.
    floor_seq: u64,
    /// The version of each map as of `floor_seq`.
    floor_cursors: Cursors,
    /// The version of health as of `floor_seq`.
    floor_health: u64,
    /// Set when an event had to be dropped: the next attach must resync.
    broken: bool,
    /// Whether receipts found no room: their receiver is told to ask for what it awaits.
    unreceipted: bool,
}

impl Stream {
    /// A new numbering for a client that has presence at `version`.
    pub fn new(epoch: u64, version: u64) -> Stream {
        Stream {
            epoch,
            last_seq: 0,
            cursors: [version, 0],
            health: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            fed: (0, 0),
            ring: VecDeque::new(),
            ring_events: 0,
            ring_bytes: 0,
            floor_seq: 0,
            floor_cursors: [version, 0],
            floor_health: 0,
            broken: false,
            unreceipted: false,
        }
    }

    /// The same for a client that has health at `version`.
    pub fn with_health(self, version: u64) -> Stream {
        Stream { health: version, floor_health: version, ..self }
    }

    /// The same for a client that has services at `version`.
    pub fn with_services(mut self, version: u64) -> Stream {
        self.cursors[Map::Services as usize] = version;
        self.floor_cursors[Map::Services as usize] = version;
        self
    }

    /// Which numbering this is.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number the next event will get.
    pub fn next_seq(&self) -> u64 {
        self.last_seq + 1
    }

    /// The presence version last sent.
    pub fn presence(&self) -> u64 {
        self.cursors[Map::Presence as usize]
    }

    /// The version of services last sent.
    pub fn services(&self) -> u64 {
        self.cursors[Map::Services as usize]
    }

    /// The version of health last sent; 0 when it is to be sent whatever that was.
    pub fn health(&self) -> u64 {
        self.health
    }

    /// Health is to be sent again, whatever was sent.
    pub fn owe_health(&mut self) {
        self.health = 0;
    }

    /// Lets health be the next event that leaves.
    pub fn tell_health(&mut self, health: HealthEvent) {
        self.health = health.version.get();
        self.pending_bytes += HEALTH_BYTES;
        let event = Arc::new(EventBody::Health(health));
        self.pending.push_front(Direct { event, bytes: HEALTH_BYTES, fed: false });
    }

    /// Something that was to come cannot: its owner resyncs it.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    /// Whether an event had to be dropped.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Events that wait and their bytes; events that can be replayed and theirs; events that wait and were fed, and
    /// theirs.
    pub(crate) fn sizes(&self) -> [usize; 6] {
        let (waiting, (fed, fed_bytes)) = (self.pending.len() - self.fed.0, self.fed);
        [waiting, self.pending_bytes, self.ring_events as usize, self.ring_bytes, fed, fed_bytes]
    }

    /// Whether a direct event waits.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.unreceipted
    }

    /// Lets an event wait its turn. Past the bound the stream is broken instead: its owner resyncs it.
    pub fn push(&mut self, event: Arc<EventBody>, bytes: usize) {
        if !self.has_room(bytes) {
            self.broken = true;
            return;
        }
        self.pending_bytes += bytes;
        self.pending.push_back(Direct { event, bytes, fed: false });
    }

    /// Lets a receipt wait its turn. It is a hint at what the store knows: past the bound, and until what waits has left,
    /// one `resync` stands for all.
    pub fn push_receipt(&mut self, receipt: Receipt) {
        if self.unreceipted || !self.has_room(RECEIPT_BYTES) {
            self.unreceipted = true;
            return;
        }
        self.push(Arc::new(EventBody::Receipt(receipt)), RECEIPT_BYTES);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.pending.len() - self.fed.0 < PENDING_EVENTS && self.pending_bytes + bytes <= RING_BYTES
    }

    /// Says that receipts are missing, when all that came before them has left.
    fn own_up(&mut self) {
        if self.pending.is_empty() && std::mem::take(&mut self.unreceipted) {
            self.resync(ResyncWhat::Receipts);
        }
    }

    /// Lets the word wait its turn that something is to be read again.
    pub fn resync(&mut self, what: ResyncWhat) {
        self.push(Arc::new(EventBody::Resync(Resync { what: vec![what] })), RESYNC_BYTES);
    }

    /// Whether it can be fed: what is fed waits elsewhere while it cannot, so that a slow reader breaks nothing.
    pub fn is_hungry(&self) -> bool {
        self.fed.0 < FED_EVENTS && self.fed.1 < FED_BYTES
    }

    /// Lets an event wait its turn that could wait elsewhere; only while [`Stream::is_hungry`].
    pub fn feed(&mut self, event: Arc<EventBody>, bytes: usize) {
        self.fed = (self.fed.0 + 1, self.fed.1 + bytes);
        self.pending.push_back(Direct { event, bytes, fed: true });
    }

    /// Takes back what was fed of a run and has not left: it is fed anew from elsewhere in the run.
    pub fn unfeed(&mut self, run: RunId) {
        let of_it = |event: &EventBody| matches!(event, EventBody::Run(event) if event.run_id == run);
        self.pending.retain(|direct| {
            let goes = direct.fed && of_it(&direct.event);
            if goes {
                self.fed = (self.fed.0 - 1, self.fed.1 - direct.bytes);
            }
            !goes
        });
    }

    /// Takes the next waiting event out, numbered and remembered.
    pub fn pop(&mut self) -> Option<(u64, Arc<EventBody>)> {
        self.own_up();
        let direct = self.pending.pop_front()?;
        if direct.fed {
            self.fed = (self.fed.0 - 1, self.fed.1 - direct.bytes);
        } else {
            self.pending_bytes -= direct.bytes;
        }
        self.last_seq += 1;
        let event = direct.event.clone();
        self.ring_events += 1;
        self.ring_bytes += direct.bytes;
        self.ring.push_back(Sent::Direct { seq: self.last_seq, direct });
        self.trim();
        Some((self.last_seq, event))
    }

    /// Numbers an event that is not worth replaying (a tick).
    pub fn number(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Numbers `count` events that are not replayed because their claims are (deliveries); returns the first.
    pub fn number_many(&mut self, count: usize) -> u64 {
        let first = self.last_seq + 1;
        self.last_seq += count as u64;
        first
    }

    /// Numbers the steps of a presence delta; returns the first number. The delta must start at our cursor.
    pub fn advance_presence(&mut self, delta: &Delta) -> u64 {
        self.advance(Map::Presence, delta.version, delta.steps.iter().map(|step| step.version))
    }

    /// The same for a delta of services.
    pub fn advance_services(&mut self, delta: &service::Delta) -> u64 {
        self.advance(Map::Services, delta.version, delta.steps.iter().map(|step| step.version))
    }

    fn advance(&mut self, map: Map, version: u64, steps: impl Iterator<Item = u64>) -> u64 {
        let first = self.last_seq + 1;
        for version in steps {
            self.last_seq += 1;
            self.remember(map, self.last_seq, version);
        }
        self.cursors[map as usize] = version;
        self.trim();
        first
    }

    /// The client will read presence again; its cursor jumps to `version`.
    pub fn skip_presence(&mut self, version: u64) {
        self.skip(Map::Presence, version);
    }

    /// The same for services.
    pub fn skip_services(&mut self, version: u64) {
        self.skip(Map::Services, version);
    }

    fn skip(&mut self, map: Map, version: u64) {
        self.cursors[map as usize] = version;
        // What was sent before the jump cannot be wound back to: the steps in between are gone.
        self.ring.clear();
        (self.ring_events, self.ring_bytes) = (0, 0);
        (self.floor_seq, self.floor_cursors, self.floor_health) = (self.last_seq, self.cursors, self.health);
    }

    fn remember(&mut self, map: Map, seq: u64, version: u64) {
        self.ring_events += 1;
        if let Some(Sent::Steps { map: of, seq: s, version: v, len }) = self.ring.back_mut()
            && *of == map
            && *s + *len == seq
            && *v + *len == version
        {
            *len += 1;
            return;
        }
        self.ring.push_back(Sent::Steps { map, seq, version, len: 1 });
    }

    /// Forgets the oldest until the ring is within its bounds.
    fn trim(&mut self) {
        while self.ring_events > RING_EVENTS as u64 || self.ring_bytes > RING_BYTES {
            let Some(oldest) = self.ring.front_mut() else { return };
            self.ring_events -= 1;
            match oldest {
                Sent::Steps { map, seq, version, len } => {
                    self.floor_seq = *seq;
                    self.floor_cursors[*map as usize] = *version;
                    (*seq, *version, *len) = (*seq + 1, *version + 1, *len - 1);
                    if *len == 0 {
                        self.ring.pop_front();
                    }
                }
                Sent::Direct { seq, direct } => {
                    self.floor_seq = *seq;
                    self.floor_health = direct.health().unwrap_or(self.floor_health);
                    self.ring_bytes -= direct.bytes;
                    self.ring.pop_front();
                }
            }
        }
    }

    /// Winds back to what the client has, so that everything after `last_seq` leaves again, renumbered.
    /// `false` when it cannot: something after it was forgotten, or it claims more than was sent.
    pub fn rewind(&mut self, last_seq: u64) -> bool {
        if self.broken || last_seq < self.floor_seq || last_seq > self.last_seq {
            return false;
        }
        let mut again = VecDeque::new();
        let (mut cursors, mut health) = (self.floor_cursors, self.floor_health);
        for sent in std::mem::take(&mut self.ring) {
            match sent {
                Sent::Steps { map, seq, version, len } if seq <= last_seq => {
                    cursors[map as usize] = version + len.min(last_seq - seq + 1) - 1;
                }
                Sent::Direct { seq, direct } if seq <= last_seq => {
                    health = direct.health().unwrap_or(health);
                }
                // The newest is told instead, if it is not what the client has.
                Sent::Direct { direct, .. } if direct.health().is_some() => {}
                Sent::Direct { direct, .. } => again.push_back(direct),
                Sent::Steps { .. } => {}
            }
        }
        if mutant::on(Mutant::RingLost) {
            again.clear();
            cursors = self.cursors;
        }
        // Nothing was skipped silently: a cursor beyond its last told step means steps that cancelled out,
        // and those cancel out again.
        (self.cursors, self.health) = (cursors, health);
        for direct in &again {
            if direct.fed {
                self.fed = (self.fed.0 + 1, self.fed.1 + direct.bytes);
            } else {
                self.pending_bytes += direct.bytes;
            }
        }
        again.append(&mut self.pending);
        self.pending = again;
        (self.ring_events, self.ring_bytes) = (0, 0);
        let last_seq = if mutant::on(Mutant::SeqRestarts) { 0 } else { last_seq };
        (self.last_seq, self.floor_seq, self.floor_cursors) = (last_seq, last_seq, cursors);
        self.floor_health = health;
        true
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
