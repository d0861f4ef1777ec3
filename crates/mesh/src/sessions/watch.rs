//! Watchdogs: what happens when a lease's deadline comes.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::Reason;
use tenure_proto::event::{EventBody, Tick};
use tenure_proto::ids::SessionKey;
use tenure_proto::number::U53;

use crate::Mesh;
use crate::effect::{Batch, Effect};
use crate::sessions::lease::{Muted, State, Verdict};

impl Mesh {
    /// Looks at a lease whose deadline has come. Deadlines are set early rather than moved with every frame, so
    /// often there is nothing to do but to set the next one.
    pub(crate) fn watch(&mut self, now: Millis, session: SessionKey) {
        let Some(lease) = self.sessions.leases.get(&session) else { return };
        if lease.dirty && now.since(lease.stored) >= self.config.lease_ttl_ms / 3 {
            self.store_particulars(now, session);
        }
        // It is let in no longer, as if the token had been revoked.
        if self.token_end(&session).is_some_and(|end| end <= self.clock.shown()) {
            return self.evict(session, Reason::Kicked);
        }
        let Some(lease) = self.sessions.leases.get(&session) else { return };
        match &lease.state {
            State::Grace if now >= lease.until(&self.config) && !mutant::on(Mutant::LeaseNeverEnds) => {
                return self.expire(session);
            }
            State::Grace if lease.subs.release_at.is_some_and(|due| now >= due) => {
                self.release_crews(session);
            }
            State::Online(carrier) => {
                let conn = carrier.conn;
                let muted = carrier.muted;
                match lease.watch(carrier, &self.config, now) {
                    Verdict::Stale => return self.hang_up_for(conn, Reason::Stale),
                    Verdict::Slow => {
                        self.hang_up_for(conn, Reason::SlowConsumer);
                        if mutant::on(Mutant::SlowEndsLease) {
                            self.expire(session);
                        }
                        return;
                    }
                    Verdict::Fine { ping, tick } => {
                        if let Muted::Deliveries { until } = muted
                            && now >= until
                        {
                            // It said that it would list what it has, and did not.
                            self.mute(session, Muted::No);
                            self.list_is_late(session);
                        }
                        if ping {
                            self.ping(now, session);
                        }
                        if tick {
                            self.send_tick(now, session);
                        }
                    }
                }
            }
            _ => {}
        }
        self.reschedule(session);
    }

    /// When the token ends that a session came by, Unix milliseconds.
    fn token_end(&self, session: &SessionKey) -> Option<u64> {
        self.access.token_end(self.sessions.leases.get(session)?.token.as_ref()?)
    }

    /// The moment at which that is to be looked at: the wall clock decides then, and may have been set meanwhile.
    pub(crate) fn token_due(&self, session: &SessionKey) -> Millis {
        let left = |end: u64| self.clock.now().plus(end.saturating_sub(self.clock.shown()));
        self.token_end(session).map_or(Millis(u64::MAX), left)
    }

    fn ping(&mut self, now: Millis, session: SessionKey) {
        let Some(State::Online(carrier)) =
            self.sessions.leases.get_mut(&session).map(|lease| &mut lease.state)
        else {
            return;
        };
        carrier.pinged = now;
        self.effects.push_back(Effect::Ping { conn: carrier.conn });
    }

    fn send_tick(&mut self, now: Millis, session: SessionKey) {
        let shown = self.clock.shown();
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let State::Online(carrier) = &mut lease.state else { return };
        carrier.sent = now;
        carrier.unflushed = Some(now);
        let event = Arc::new(EventBody::Tick(Tick { ts: U53::saturating(shown) }));
        let direct = vec![(lease.stream.number(), event)];
        let batch = Batch { direct, ..Batch::default() };
        self.effects.push_back(Effect::Events { conn: carrier.conn, batch });
        self.sessions.caught_up.remove(&session);
    }
}
