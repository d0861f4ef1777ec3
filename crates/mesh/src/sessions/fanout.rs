//! Handing out events: who gets what, in which order, and never more than a socket can take.
//!
//! A socket holds at most one batch that has not left yet. While it does, whatever happens moves no memory:
//! presence waits as a cursor, direct events in the bounded stream. So a slow reader costs only itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::Reason;
use tenure_proto::event::{EventBody, HealthEvent, Receipt, ResyncWhat};
use tenure_proto::ids::{ConnId, SessionKey};
use tenure_proto::number::U53;
use tenure_proto::peer::Status;

use crate::Mesh;
use crate::effect::{Batch, Effect};
use crate::messages::pull::{self, Pull};
use crate::services::service;
use crate::sessions::lease::{Muted, State};
use crate::sessions::presence::Catchup;

/// Direct events in one batch.
const BATCH_EVENTS: usize = 128;
/// Sessions that one flush hands out to; the rest have their turn in the next, so that a post with ten thousand
/// readers does not keep inputs waiting.
const SESSIONS_PER_FLUSH: usize = 1_024;

/// What watchers at the same cursor are told, worked out once for all of them.
#[derive(Debug, Default)]
struct Deltas {
    presence: BTreeMap<u64, Catchup>,
    services: BTreeMap<u64, service::Catchup>,
}

impl Mesh {
    /// Whether the last flush left sessions for the next, which should then come soon.
    pub fn is_busy(&self) -> bool {
        self.sessions.busy
    }

    /// Hands out what the inputs since the last flush have caused, to a bounded number of sessions.
    pub fn flush(&mut self) {
        let from = self.effects.len();
        self.rouse_readers();
        if self.sessions.has_news() | self.services.has_news() {
            let everybody = std::mem::take(&mut self.sessions.caught_up);
            self.sessions.ready.extend(everybody);
        }
        let mut deltas = Deltas::default();
        let mut left = SESSIONS_PER_FLUSH.min(self.sessions.ready.len());
        while left > 0
            && let Some(session) = self.next_ready()
        {
            left -= 1;
            self.sessions.ready.remove(&session);
            self.sessions.last_served = Some(session);
            self.hand_out(session, &mut deltas);
        }
        if self.sessions.ready.is_empty() {
            self.sessions.last_served = None;
        }
        self.finish_round();
        self.count_answers(from);
        self.check_drain(self.clock.now());
        self.sessions.busy = !self.sessions.ready.is_empty() || self.messages.has_wakes();
    }

    /// Whose turn it is: after a flush that left some the next after its last, around, so that nobody waits for ever.
    fn next_ready(&self) -> Option<SessionKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self
            .sessions
            .last_served
            .and_then(|last| self.sessions.ready.range((Excluded(last), Unbounded)).next());
        after.or_else(|| self.sessions.ready.first()).copied()
    }

    /// Lets an event wait for one session, and the session's turn come.
    pub(crate) fn tell(&mut self, session: SessionKey, event: EventBody, bytes: usize) {
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            lease.stream.push(Arc::new(event), bytes);
            self.rouse(session);
        }
    }

    /// Lets the receipt of a message wait for its sender.
    pub(crate) fn tell_receipt(&mut self, session: SessionKey, receipt: Receipt) {
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            lease.stream.push_receipt(receipt);
            self.rouse(session);
        }
    }

    /// Lets one session know how the broker is, when its turn comes. Those who are away hear it when they are back.
    pub(crate) fn tell_health(&mut self, session: SessionKey) {
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            lease.stream.owe_health();
        }
        self.rouse(session);
    }

    fn health_event(&self) -> HealthEvent {
        HealthEvent { status: self.health_status(), version: U53::saturating(self.sessions.health_version) }
    }

    /// Whether a session has not been told everything that is not a delivery.
    fn is_behind(&self, session: SessionKey) -> bool {
        let Some(stream) = self.sessions.leases.get(&session).map(|lease| &lease.stream) else {
            return false;
        };
        stream.has_pending()
            || self.runs.has_for(&session)
            || stream.presence() != self.sessions.presence.version()
            || stream.services() != self.services.feed().version()
            || stream.health() != self.sessions.health_version
    }

    fn hand_out(&mut self, session: SessionKey, deltas: &mut Deltas) {
        let (at, moment, health) = (self.clock.now(), self.moment(), self.health_event());
        self.serve_fetches(session);
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let State::Online(carrier) = &mut lease.state else { return };
        if carrier.unflushed.is_some() || carrier.muted == Muted::All {
            // A tick has left meanwhile, or its hello waits: its turn comes after that.
            return;
        }
        if lease.stream.is_broken() {
            let conn = carrier.conn;
            return self.hang_up_for(conn, Reason::SlowConsumer);
        }
        let stream = &mut lease.stream;
        let mut batch = Batch::default();
        let cursor = stream.presence();
        let behind = cursor != self.sessions.presence.version();
        let catchup = behind.then(|| {
            &*deltas.presence.entry(cursor).or_insert_with(|| self.sessions.presence.catch_up(cursor))
        });
        if let Some(Catchup::Resync(version)) = catchup {
            stream.skip_presence(*version);
            stream.resync(ResyncWhat::Presence);
        }
        let (cursor, feed) = (stream.services(), self.services.feed());
        let behind = cursor != feed.version();
        let offers = behind
            .then(|| &*deltas.services.entry(cursor).or_insert_with(|| service::catch_up(feed, cursor)));
        if let Some(service::Catchup::Resync(version)) = offers {
            stream.skip_services(*version);
            stream.resync(ResyncWhat::Services);
        }
        while stream.is_hungry()
            && let Some(feed) = self.runs.feed(&session)
        {
            stream.feed(feed.event, feed.bytes);
        }
        if stream.health() != health.version.get() {
            stream.tell_health(health);
        }
        while batch.direct.len() < BATCH_EVENTS
            && let Some(numbered) = stream.pop()
        {
            batch.direct.push(numbered);
        }
        // Numbered last because it is handed out last.
        if let Some(Catchup::Delta(delta)) = catchup {
            batch.presence = Some((stream.advance_presence(delta), delta.clone()));
        }
        if let Some(service::Catchup::Delta(delta)) = offers {
            batch.services = Some((stream.advance_services(delta), delta.clone()));
        }
        let status = self.sessions.presence.get(&session).map_or(Status::Idle, |peer| peer.get().status);
        // During a drain nobody is handed more: what is in hand is to be settled.
        if carrier.muted == Muted::No && self.drain.is_none() && batch.direct.len() < BATCH_EVENTS {
            let conn = carrier.conn;
            let mut pull = Pull { messages: &mut self.messages, runs: &mut self.runs, moment };
            let mut pushes = pull.pull(session, lease, status);
            Mesh::park(&mut self.messages, &mut lease.subs, conn, &mut pushes);
            batch.pushes = (lease.stream.number_many(pushes.len()), pushes);
        }
        let auto = pull::auto_settled(lease, &batch.pushes.1);
        let State::Online(carrier) = &mut lease.state else { return };
        let steps = batch.presence.is_some() || batch.services.is_some();
        let nothing = batch.direct.is_empty() && !steps && batch.pushes.1.is_empty();
        if nothing {
            let behind = self.is_behind(session);
            let set = if behind { &mut self.sessions.ready } else { &mut self.sessions.caught_up };
            set.insert(session);
            return self.may_be_drained(session);
        }
        carrier.unflushed = Some(at);
        carrier.sent = at;
        carrier.auto = auto;
        self.effects.push_back(Effect::Events { conn: carrier.conn, batch });
        self.reschedule(session);
    }

    /// A socket reads, however slowly: it is given as long again. Its deadline finds that out when it comes.
    pub(crate) fn taken(&mut self, now: Millis, conn: ConnId) {
        let Some(session) = self.sessions.conns.get(&conn) else { return };
        let Some(State::Online(carrier)) =
            self.sessions.leases.get_mut(session).map(|lease| &mut lease.state)
        else {
            return;
        };
        if let Some(since) = &mut carrier.unflushed {
            *since = now;
        }
    }

    /// A socket has taken its batch and may have the next.
    pub(crate) fn flushed(&mut self, now: Millis, conn: ConnId) {
        let Some(session) = self.sessions.conns.get(&conn).copied() else { return };
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let State::Online(carrier) = &mut lease.state else { return };
        let since = carrier.unflushed.take();
        if mutant::on(Mutant::SlowSkips) && since.is_some_and(|since| now.since(since) > 1_000) {
            lease.stream.skip_presence(self.sessions.presence.version());
        }
        carrier.sent = carrier.sent.max(now);
        let auto = std::mem::take(&mut carrier.auto);
        let waiting = !lease.subs.eager.is_empty() || !lease.subs.cleared.is_empty();
        let behind = waiting || self.is_behind(session);
        let set = if behind { &mut self.sessions.ready } else { &mut self.sessions.caught_up };
        set.insert(session);
        self.reschedule(session);
        self.settle_written(session, auto);
        self.may_be_drained(session);
    }
}
