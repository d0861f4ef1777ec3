//! The end of a lease: the one place where what hangs off it is torn down.

use tenure_proto::close::Reason;
use tenure_proto::ids::{ConnId, RequestId, SessionKey};

use crate::effect::{Answer, Effect, LeaseWrite, Note};
use crate::lease::{Ending, Lease, State};
use crate::time::Millis;

use super::Mesh;

impl Mesh {
    /// The lease's time is over: the store is told first.
    pub(super) fn expire(&mut self, session: SessionKey, effects: &mut Vec<Effect>) {
        self.begin_end(session, Ending::Expired, effects);
    }

    /// The client said goodbye.
    pub(super) fn bye(&mut self, conn: ConnId, request: RequestId, effects: &mut Vec<Effect>) {
        let Some(session) = self.conns.remove(&conn) else { return };
        self.caught_up.remove(&session);
        self.ready.remove(&session);
        self.begin_end(session, Ending::Bye(conn, request), effects);
    }

    fn begin_end(&mut self, session: SessionKey, ending: Ending, effects: &mut Vec<Effect>) {
        let Some(lease) = self.leases.get_mut(&session) else { return };
        lease.state = State::Ending(ending, None);
        let write = LeaseWrite::End(session, lease.id.clone());
        self.deadlines.clear(&session);
        self.write_and_await(session, write, effects);
    }

    /// The store has the end: now it is so for everybody. Whoever came back meanwhile begins anew.
    pub(super) fn ended(&mut self, now: Millis, session: SessionKey, effects: &mut Vec<Effect>) {
        let Some(lease) = self.forget(&session) else { return };
        self.presence.leave(&session);
        self.settle_startup(&session, false, effects);
        let State::Ending(ending, waiting) = lease.state else { return };
        let reason = match ending {
            Ending::Expired => {
                effects.push(Effect::Note(Note::GraceExpired { session }));
                "expired"
            }
            Ending::Bye(conn, request) => {
                effects.push(super::respond(conn, request, Answer::Empty));
                let closing = tenure_proto::Closing::new(Reason::Bye);
                effects.push(Effect::Close { conn, closing });
                "bye"
            }
        };
        effects.push(Effect::Note(Note::LeaseEvicted { session, reason }));
        if let Some(knock) = waiting {
            self.knocking.remove(&knock.conn);
            self.hello(now, knock.conn, knock.request, knock.admission, effects);
        }
    }

    /// Takes a lease out of every index. Presence is the caller's: a lease that never began was never there.
    pub(super) fn forget(&mut self, session: &SessionKey) -> Option<Lease> {
        let lease = self.leases.remove(session)?;
        self.deadlines.clear(session);
        self.caught_up.remove(session);
        self.ready.remove(session);
        if let Some(count) = self.members.get_mut(&lease.member) {
            *count -= 1;
            if *count == 0 {
                self.members.remove(&lease.member);
            }
        }
        Some(lease)
    }
}
