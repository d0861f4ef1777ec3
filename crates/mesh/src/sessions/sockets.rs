//! What a session's sockets tell: that it lives, and that it has gone into grace.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::ids::{ConnId, SessionKey};

use crate::Mesh;
use crate::effect::{Effect, Note};
use crate::sessions::lease::State;

impl Mesh {
    /// Something was heard from a socket.
    pub(crate) fn alive(&mut self, conn: ConnId, heard: Millis) {
        let heard = self.clock.thawed(heard);
        let Some(session) = self.sessions.conns.get(&conn).copied() else { return };
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            lease.heard(heard);
        }
        if self.services.is_overdue(&session) {
            self.prove_services(session, heard);
        }
    }

    /// Sets when the watchdog looks at a lease next.
    pub(crate) fn reschedule(&mut self, session: SessionKey) {
        match self.sessions.leases.get(&session).and_then(|lease| lease.due(&self.config)) {
            Some(due) => self.sessions.deadlines.set(session, due.min(self.token_due(&session))),
            None => self.sessions.deadlines.clear(&session),
        }
    }

    /// A socket is gone: the lease goes into grace. Nothing that a peer can see happens here.
    pub(crate) fn closed(&mut self, conn: ConnId, reason: &'static str) {
        let Some(session) = self.sessions.conns.remove(&conn) else {
            return self.closed_while_waiting(conn);
        };
        self.sessions.caught_up.remove(&session);
        self.sessions.ready.remove(&session);
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        if matches!(lease.state, State::Online(_)) {
            lease.state = State::Grace;
            if mutant::on(Mutant::LeftAtClose) {
                self.sessions.presence.leave(&session);
            }
            let client = lease.client.clone();
            let (subscriptions, in_hand) = lease.subs.sizes();
            let note = Note::GraceEntered { session, conn, client, reason, subscriptions, in_hand };
            self.effects.push_back(Effect::Note(note));
            self.lose_services(self.clock.now(), session);
            self.set_aside(session);
        }
        self.reschedule(session);
    }

    /// Drops a socket by our own decision.
    pub(crate) fn hang_up(&mut self, conn: ConnId, closing: Closing, note: &'static str) {
        self.closed(conn, note);
        self.effects.push_back(Effect::Close { conn, closing });
    }

    pub(crate) fn hang_up_for(&mut self, conn: ConnId, reason: Reason) {
        self.hang_up(conn, Closing::new(reason), reason.as_str());
    }
}
