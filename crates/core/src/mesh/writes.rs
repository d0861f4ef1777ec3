//! Leases begin and end through the store: what waits for it, and what its answers mean.

use tenure_proto::ids::SessionKey;

use crate::effect::{Effect, LeaseWrite, WriteId};
use crate::input::LeaseRecord;
use crate::lease::State;
use crate::time::Millis;

use super::Mesh;

impl Mesh {
    /// Asks for a write; nobody waits for it.
    pub(super) fn write(&mut self, write: LeaseWrite, effects: &mut Vec<Effect>) -> WriteId {
        self.last_write.0 += 1;
        effects.push(Effect::Write { id: self.last_write, write });
        self.last_write
    }

    /// Asks for a write that the lease of `session` waits for.
    pub(super) fn write_and_await(
        &mut self,
        session: SessionKey,
        write: LeaseWrite,
        effects: &mut Vec<Effect>,
    ) {
        let id = self.write(write, effects);
        self.awaiting.push_back((id, session));
    }

    /// Everything up to `through` is on disk.
    pub(super) fn committed(&mut self, now: Millis, through: WriteId, effects: &mut Vec<Effect>) {
        self.store_is(true);
        while let Some(session) = self.next_awaiting(through) {
            match self.leases.get(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.begun(now, session, effects),
                Some(State::Ending(..)) => self.ended(now, session, effects),
                _ => {}
            }
        }
    }

    /// Nothing up to `through` that was still open is on disk.
    pub(super) fn failed(&mut self, now: Millis, through: WriteId, effects: &mut Vec<Effect>) {
        self.store_is(false);
        // What nobody waited for is lost as well: whoever is here is told to the store again in a while.
        let mut again = Vec::new();
        for (session, lease) in self.leases.iter_mut().filter(|(_, lease)| lease.touched) {
            (lease.dirty, lease.stored) = (true, now);
            again.push(*session);
        }
        for session in again {
            self.reschedule(session);
        }
        while let Some(session) = self.next_awaiting(through) {
            match self.leases.get(&session).map(|lease| &lease.state) {
                Some(State::Beginning(_)) => self.not_begun(session, effects),
                Some(State::Ending(..)) => self.not_ended(now, session, effects),
                _ => {}
            }
        }
    }

    /// Whether the store can write is everybody's business: it is part of health.
    fn store_is(&mut self, sound: bool) {
        if self.store_sound == sound {
            return;
        }
        self.store_sound = sound;
        self.health_version += 1;
        for session in self.conns.values().copied().collect::<Vec<_>>() {
            self.tell_health(session);
        }
    }

    fn next_awaiting(&mut self, through: WriteId) -> Option<SessionKey> {
        let (id, session) = *self.awaiting.front()?;
        if id > through {
            return None;
        }
        self.awaiting.pop_front();
        Some(session)
    }

    /// Tells the store, once a run, that this lease was attached.
    pub(super) fn touch(&mut self, session: SessionKey, effects: &mut Vec<Effect>) {
        let Some(lease) = self.leases.get_mut(&session) else { return };
        if lease.touched {
            return;
        }
        lease.touched = true;
        let write = LeaseWrite::Touch(session, lease.id.clone());
        self.write(write, effects);
    }

    /// Tells the store what a lease looks like now.
    pub(super) fn store_particulars(&mut self, now: Millis, session: SessionKey, effects: &mut Vec<Effect>) {
        let Some(peer) = self.presence.get(&session) else { return };
        let peer = peer.get();
        let Some(lease) = self.leases.get_mut(&session) else { return };
        lease.dirty = false;
        lease.stored = now;
        let record = LeaseRecord {
            session,
            lease: lease.id.clone(),
            member: lease.member,
            instance: lease.instance.clone(),
            profile: peer.profile(),
            caps: lease.caps.clone(),
            joined_at: peer.joined_at.get(),
        };
        self.write(LeaseWrite::Put(Box::new(record)), effects);
    }
}
