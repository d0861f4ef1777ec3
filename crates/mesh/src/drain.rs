//! Stopping without surprise: tell everybody the truth, let what is on its way arrive, close, say when done.
//!
//! A socket is closed when its client has been told everything, waits for no answer, and has nothing in hand that it
//! could still settle; at the deadline whatever it waits for. Nobody is handed anything more meanwhile: it would be in
//! hand when the socket closes; a new subscription is refused for that reason, and sends are accepted until the end. So a
//! drain lasts as long as its slowest reader works, and no longer than its deadline.
//! Runs are not waited for: they go on through a restart.
//! Who comes back meanwhile has a moment to say what it has to say, but is not waited for.

use std::collections::BTreeSet;

use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::{EventBody, Shutdown};
use tenure_proto::ids::{ConnId, SessionKey};
use tenure_proto::number::U53;

use crate::Mesh;
use crate::conn::admit::Refusal;
use crate::effect::{Effect, Note};
use crate::sessions::lease::{Carrier, Lease, Muted, State};

/// Sessions are asked to come back spread over so many microseconds each, which is what a returning one costs a
/// broker that has one core for it; at most over a third of a lease.
const RETURN_EACH_US: u64 = 400;
/// What a session is asked to wait at least.
const RETURN_AFTER_MS: u64 = 250;
/// How long who comes back during a drain may stay with nothing to wait for: it has not had the time to ask.
const MOMENT_MS: u64 = 250;
/// What somebody who was turned away is asked to wait when no restart was announced.
const TRY_AGAIN_MS: u64 = 1_000;

/// A drain under way.
#[derive(Debug)]
pub(crate) struct Drain {
    reason: String,
    /// When a broker is expected to be back, if one is.
    restart_at: Option<Millis>,
    deadline: Millis,
    /// Over how many milliseconds sessions come back.
    spread: u64,
    /// Sessions that may have come to their end since the last look; at most all that are online.
    looked_for: BTreeSet<SessionKey>,
    /// Who came back, and until when it may stay with nothing to wait for.
    back: Deadlines<SessionKey>,
    over: bool,
}

impl Drain {
    fn new(now: Millis, reason: String, restart_in_ms: Option<u64>, deadline_ms: u64, spread: u64) -> Drain {
        let (restart_at, deadline) = (restart_in_ms.map(|ms| now.plus(ms)), now.plus(deadline_ms));
        let (looked_for, back, over) = (BTreeSet::new(), Deadlines::default(), false);
        Drain { reason, restart_at, deadline, spread, looked_for, back, over }
    }

    pub(crate) fn due(&self) -> Option<Millis> {
        (!self.over).then(|| self.back.next().map_or(self.deadline, |due| due.min(self.deadline)))
    }

    /// What a session is asked to wait from now on. Its key says where in the crowd it is.
    fn reconnect_after(&self, now: Millis, session: &SessionKey) -> u64 {
        let wait = self.restart_at.map_or(RETURN_AFTER_MS, |at| at.since(now));
        wait.max(RETURN_AFTER_MS) + self.slot(session)
    }

    fn slot(&self, session: &SessionKey) -> u64 {
        let [a, b, c, d, ..] = session.0;
        u64::from(u32::from_be_bytes([a, b, c, d])) * self.spread / u64::from(u32::MAX)
    }

    /// What a session that is here is told that wants to begin reading something.
    pub(crate) fn not_now(&self, now: Millis, session: &SessionKey) -> WireError {
        let text = "this broker is stopping and hands out nothing more; subscribe again after the reconnect";
        WireError::new(ErrorCode::Draining, text).retry_after(self.reconnect_after(now, session))
    }

    /// What a hello is told that no token speaks for.
    pub(crate) fn refusal(&self, now: Millis, session: &SessionKey) -> Refusal {
        let wait = match self.restart_at {
            Some(_) => self.reconnect_after(now, session),
            None => TRY_AGAIN_MS + self.slot(session),
        };
        let error = WireError::new(ErrorCode::Draining, "this broker is stopping; try again in a moment");
        Refusal::new(error.retry_after(wait), Reason::Draining)
    }
}

/// Over how many milliseconds so many sessions come back.
fn spread(sessions: usize, lease_ttl_ms: u64) -> u64 {
    (sessions as u64 * RETURN_EACH_US / 1_000).min(lease_ttl_ms / 3)
}

impl Mesh {
    pub(crate) fn begin_drain(
        &mut self,
        now: Millis,
        reason: String,
        restart_in_ms: Option<u64>,
        deadline_ms: u64,
    ) {
        if self.drain.is_some() {
            return;
        }
        self.sessions.health_version += 1;
        // The next start finds private readers where they are now.
        self.messages.write_floors_at(now);
        let sessions = self.sessions.online();
        let told = reason.clone();
        let spread = spread(sessions, self.config.lease_ttl_ms);
        // Whoever is told to go has the time to be told.
        let deadline_ms = deadline_ms.max(MOMENT_MS);
        self.drain = Some(Drain::new(now, reason, restart_in_ms, deadline_ms, spread));
        let note = Note::DrainStarted { reason: told, sessions, restart_in_ms, deadline_ms };
        self.effects.push_back(Effect::Note(note));
        for session in self.sessions.all_online() {
            self.say_shutdown(session);
        }
    }

    /// A drain that is under way ends as soon as everybody can have been told.
    pub(crate) fn hurry(&mut self, now: Millis) {
        if let Some(drain) = &mut self.drain {
            drain.deadline = drain.deadline.min(now.plus(MOMENT_MS));
        }
    }

    /// A session that was admitted during a drain is told as well.
    pub(crate) fn greet_late(&mut self, session: SessionKey) {
        if let Some(drain) = &mut self.drain {
            drain.back.set(session, self.clock.now().plus(MOMENT_MS));
            self.say_shutdown(session);
        }
    }

    fn say_shutdown(&mut self, session: SessionKey) {
        let Some(drain) = &self.drain else { return };
        let now = self.clock.now();
        let event = EventBody::Shutdown(Shutdown {
            reason: drain.reason.clone(),
            restart_expected_ms: drain.restart_at.map(|at| U53::saturating(at.since(now))),
            deadline_ms: U53::saturating(drain.deadline.since(now)),
            reconnect_after_ms: U53::saturating(drain.reconnect_after(now, &session)),
        });
        self.tell_health(session);
        self.tell(session, event, 128);
    }

    /// A socket asks something.
    pub(crate) fn count_question(&mut self, conn: ConnId) {
        if let Some((_, carrier)) = self.carrier(conn) {
            carrier.unanswered = carrier.unanswered.saturating_add(1);
        }
    }

    /// Sockets are answered by the effects from `from` on.
    pub(crate) fn count_answers(&mut self, from: usize) {
        for index in from..self.effects.len() {
            let Some(&Effect::Respond { conn, .. }) = self.effects.get(index) else { continue };
            let Some((session, carrier)) = self.carrier(conn) else { continue };
            carrier.unanswered = carrier.unanswered.saturating_sub(1);
            self.may_be_drained(session);
        }
    }

    fn carrier(&mut self, conn: ConnId) -> Option<(SessionKey, &mut Carrier)> {
        let session = self.sessions.carried_by(conn)?;
        match &mut self.sessions.lease_mut(&session)?.state {
            State::Online(carrier) => Some((session, carrier)),
            _ => None,
        }
    }

    /// Something has happened after which a session may have nothing to wait for.
    pub(crate) fn may_be_drained(&mut self, session: SessionKey) {
        if let Some(drain) = &mut self.drain {
            drain.looked_for.insert(session);
        }
    }

    /// Whether a session has been told everything, waits for no answer, and has nothing in hand to settle.
    fn has_all(&self, session: &SessionKey) -> bool {
        let Some(lease) = self.sessions.lease(session).filter(|_| self.sessions.is_caught_up(session)) else {
            return false;
        };
        let State::Online(carrier) = &lease.state else { return false };
        // A run goes on through a restart: nobody waits for its end.
        let settles = |(group, seq)| self.run_at(group, seq).is_none();
        let in_hand = lease.subs.iter().any(|(_, sub)| sub.pushed_entries().any(settles));
        carrier.unanswered == 0 && carrier.muted == Muted::No && !in_hand
    }

    /// Whether there is somebody to wait for. Who waits for the store has an open socket as well.
    fn is_waited_for(&self, drain: &Drain) -> bool {
        // More than came back are here, so one of them has not got all: it would be closed.
        let others = self.sessions.online() > drain.back.len();
        self.store.waiting() > 0
            || others
            || self.sessions.all_online().iter().any(|session| !self.has_all(session))
    }

    fn close_for_drain(&mut self, session: SessionKey) {
        let Some(drain) = &self.drain else { return };
        let Some(conn) = self.sessions.lease(&session).and_then(|lease| lease.conn()) else { return };
        let reason = if drain.restart_at.is_some() { Reason::Restart } else { Reason::GoingAway };
        let closing = Closing::new(reason).retry_after(drain.reconnect_after(self.clock.now(), &session));
        self.hang_up(conn, closing, reason.as_str());
        if mutant::on(Mutant::DrainEndsLeases) {
            self.expire(session);
        }
    }

    /// Closes who has nothing to wait for, and ends the drain: everybody is gone, or the deadline has come.
    pub(crate) fn check_drain(&mut self, now: Millis) {
        let Some(drain) = &mut self.drain else { return };
        while let Some(session) = drain.back.pop_due(now) {
            drain.looked_for.insert(session);
        }
        for session in std::mem::take(&mut drain.looked_for) {
            let stays = self.drain.as_ref().is_some_and(|drain| drain.back.has(&session));
            if !stays && self.has_all(&session) {
                self.close_for_drain(session);
            }
        }
        let Some(drain) = self.drain.as_ref().filter(|drain| !drain.over) else { return };
        if now < drain.deadline && self.is_waited_for(drain) {
            return;
        }
        for session in self.sessions.all_online() {
            self.close_for_drain(session);
        }
        for session in self.sessions.pending_hellos() {
            let refusal = self.drain.as_ref().map(|drain| drain.refusal(now, &session));
            if let Some(refusal) = refusal {
                self.turn_away(session, || refusal);
            }
        }
        self.refuse_compared(now);
        // A lease whose end is on its way to the store must not be put there again behind it.
        let changed = |lease: &Lease| lease.dirty && !matches!(lease.state, State::Ending(..));
        let dirty: Vec<_> = self.sessions.leases().filter(|(_, l)| changed(l)).map(|(s, _)| *s).collect();
        for session in dirty {
            self.store_particulars(now, session);
        }
        self.write_everything();
        if let Some(drain) = &mut self.drain {
            drain.over = true;
        }
        self.effects.push_back(Effect::Drained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of session `n` of many, like any other.
    fn one_of_many(n: u32) -> SessionKey {
        let mut key = [0; 32];
        // Multiplying by an odd number scatters the numbers without giving two the same.
        key[..4].copy_from_slice(&n.wrapping_mul(2_654_435_769).to_be_bytes());
        SessionKey(key)
    }

    #[test]
    fn ten_thousand_are_asked_to_come_back_in_proportion() {
        let spread = spread(10_000, 90_000);
        assert_eq!(spread, 4_000);
        let drain = Drain::new(Millis(7), "upgrade".into(), Some(5_000), 3_000, spread);
        let mut slices = [0; 10];
        for n in 0..10_000 {
            let wait = drain.reconnect_after(Millis(7), &one_of_many(n));
            assert!((5_000..=9_000).contains(&wait), "{wait}");
            slices[(wait as usize - 5_000).min(3_999) / 400] += 1;
        }
        assert!(slices.iter().all(|slice| (900..=1_100).contains(slice)), "{slices:?}");
    }

    #[test]
    fn everybody_is_back_well_within_a_lease() {
        assert_eq!((spread(0, 90_000), spread(3, 90_000), spread(100_000, 90_000)), (0, 1, 30_000));
        let drain = Drain::new(Millis(0), "upgrade".into(), Some(0), 3_000, 0);
        let waits = [0, 5_000].map(|now| drain.reconnect_after(Millis(now), &one_of_many(1)));
        assert_eq!(waits, [RETURN_AFTER_MS; 2], "a broker that is late is not hammered");
    }
}
