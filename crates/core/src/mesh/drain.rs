//! Stopping without surprise: tell everybody the truth, let what is on its way arrive, close, say when done.

use tenure_proto::close::{Closing, Reason};
use tenure_proto::event::{EventBody, Shutdown};
use tenure_proto::ids::SessionKey;
use tenure_proto::number::U53;

use crate::effect::Effect;
use crate::lease::{Lease, State};
use crate::time::Millis;

use super::Mesh;

/// Sessions are asked to come back spread over a millisecond each, at most over this.
const RETURN_SPREAD_MS: u64 = 2_000;
/// What a session is asked to wait at least when no restart was announced.
const RETURN_AFTER_MS: u64 = 250;

/// A drain under way.
#[derive(Debug)]
pub(super) struct Drain {
    reason: String,
    restart_in_ms: Option<u64>,
    deadline: Millis,
    deadline_ms: u64,
    spread: u64,
    over: bool,
}

impl Drain {
    pub(super) fn due(&self) -> Option<Millis> {
        (!self.over).then_some(self.deadline)
    }

    fn reconnect_after(&self, session: &SessionKey) -> u64 {
        let [a, b, ..] = session.0;
        let slot = u64::from(u16::from_be_bytes([a, b])) * self.spread / u64::from(u16::MAX);
        self.restart_in_ms.unwrap_or(RETURN_AFTER_MS) + slot
    }
}

impl Mesh {
    pub(super) fn begin_drain(
        &mut self,
        now: Millis,
        reason: String,
        restart_in_ms: Option<u64>,
        deadline_ms: u64,
    ) {
        if self.drain.is_some() {
            return;
        }
        self.health_version += 1;
        // The next start finds private readers where they are now.
        self.messages.floors_due = Some(now);
        let spread = (self.conns.len() as u64).min(RETURN_SPREAD_MS);
        let deadline = now.plus(deadline_ms);
        self.drain = Some(Drain { reason, restart_in_ms, deadline, deadline_ms, spread, over: false });
        for session in self.conns.values().copied().collect::<Vec<_>>() {
            self.say_shutdown(session);
        }
    }

    /// A session that was admitted during a drain is told as well.
    pub(super) fn greet_late(&mut self, session: SessionKey) {
        if self.drain.is_some() {
            self.say_shutdown(session);
        }
    }

    fn say_shutdown(&mut self, session: SessionKey) {
        let Some(drain) = &self.drain else { return };
        let event = EventBody::Shutdown(Shutdown {
            reason: drain.reason.clone(),
            restart_expected_ms: drain.restart_in_ms.map(U53::saturating),
            deadline_ms: U53::saturating(drain.deadline_ms),
            reconnect_after_ms: U53::saturating(drain.reconnect_after(&session)),
        });
        self.tell_health(session);
        self.tell(session, event, 128);
    }

    /// During a drain a socket that has everything is closed.
    pub(super) fn close_if_drained(&mut self, session: SessionKey, effects: &mut Vec<Effect>) {
        if self.drain.is_some() && self.caught_up.contains(&session) {
            self.close_for_drain(session, effects);
        }
    }

    fn close_for_drain(&mut self, session: SessionKey, effects: &mut Vec<Effect>) {
        let Some(drain) = &self.drain else { return };
        let Some(conn) = self.leases.get(&session).and_then(|lease| lease.conn()) else { return };
        let reason = if drain.restart_in_ms.is_some() { Reason::Restart } else { Reason::GoingAway };
        let closing = Closing::new(reason).retry_after(drain.reconnect_after(&session));
        self.hang_up(conn, closing, reason.as_str(), effects);
    }

    /// Ends a drain: everybody is gone, or the deadline has come.
    pub(super) fn check_drain(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        let Some(drain) = &self.drain else { return };
        // Who waits for the store has an open socket as well.
        let busy = !self.conns.is_empty() || !self.awaiting.is_empty();
        if drain.over || (now < drain.deadline && busy) {
            return;
        }
        for session in self.conns.values().copied().collect::<Vec<_>>() {
            self.close_for_drain(session, effects);
        }
        for session in self.knocking.values().copied().collect::<Vec<_>>() {
            self.turn_away(session, super::hello::draining, effects);
        }
        // A lease whose end is on its way to the store must not be put there again behind it.
        let changed = |lease: &Lease| lease.dirty && !matches!(lease.state, State::Ending(..));
        let dirty: Vec<_> = self.leases.iter().filter(|(_, l)| changed(l)).map(|(s, _)| *s).collect();
        for session in dirty {
            self.store_particulars(now, session, effects);
        }
        self.write_everything(effects);
        if let Some(drain) = &mut self.drain {
            drain.over = true;
        }
        effects.push(Effect::Drained);
    }
}
