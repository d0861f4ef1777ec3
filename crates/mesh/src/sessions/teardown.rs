//! The end of a lease: the one place where what hangs off it is torn down.

use tenure_kit::time::Millis;
use tenure_proto::close::Reason;
use tenure_proto::error::WireError;
use tenure_proto::ids::{ConnId, MemberKey, SessionKey};

use crate::Mesh;
use crate::effect::{Answer, Effect, Note};
use crate::messages::subs::Subs;
use crate::reply::{Caller, Reply, lease_ended};
use crate::sessions::lease::{Ending, Lease, State};
use crate::store::record::{LeaseEnd, StoreWrite};

impl Mesh {
    /// The lease's time is over, by itself or by an operator: the store is told first.
    pub(crate) fn expire(&mut self, session: SessionKey) {
        let kicked = self.sessions.leases.get(&session).is_some_and(|lease| lease.kicked);
        let ending = match self.is_banned(&session) {
            true => Ending::Banned,
            false if kicked => Ending::Kicked,
            false => Ending::Expired,
        };
        self.begin_end(session, ending);
    }

    /// The client said goodbye.
    pub(crate) fn bye(&mut self, caller: &Caller) -> Result<Reply, WireError> {
        let session = self.sessions.conns.remove(&caller.conn).ok_or_else(lease_ended)?;
        self.sessions.caught_up.remove(&session);
        self.sessions.ready.remove(&session);
        // What it asked before is answered before its socket closes.
        self.finish_round();
        self.begin_end(session, Ending::Bye(caller.conn, caller.request.clone()));
        Ok(Reply::Later)
    }

    fn begin_end(&mut self, session: SessionKey, ending: Ending) {
        let name =
            self.sessions.presence.get(&session).map(|peer| peer.get().name.clone()).unwrap_or_default();
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let (lease_id, why) = (lease.id.clone(), ending.as_str().to_owned());
        let end =
            LeaseEnd { session, lease: lease_id, member: lease.member, name, why, at: self.clock.wall() };
        let write = StoreWrite::EndLease(Box::new(end));
        lease.state = State::Ending(ending, None);
        self.sessions.deadlines.clear(&session);
        self.lose_services(self.clock.now(), session);
        self.write_and_await(session, write);
    }

    /// The store has the end: now it is so for everybody. Whoever came back meanwhile begins anew.
    pub(crate) fn ended(&mut self, now: Millis, session: SessionKey) {
        let Some(mut lease) = self.forget(&session) else { return };
        self.sessions.presence.leave(&session);
        self.end_runs_of(session);
        let (conn, client) = (lease.latest, std::mem::take(&mut lease.client));
        let (subscriptions, in_hand) = lease.subs.sizes();
        if in_hand > 0 && self.sessions.is_restored(&session) {
            self.effects.push_back(Effect::Note(Note::StartupReleased { session, count: in_hand }));
        }
        self.end_reading(session, conn, lease.member, std::mem::take(&mut lease.subs));
        self.settle_startup(&session, None);
        let State::Ending(ending, waiting) = lease.state else { return };
        let reason = ending.as_str();
        match ending {
            Ending::Expired => {
                let client = client.clone();
                let note = Note::GraceExpired { session, conn, client, subscriptions, in_hand };
                self.effects.push_back(Effect::Note(note));
            }
            Ending::Bye(conn, request) => {
                self.effects.push_back(crate::respond(conn, request, Answer::Empty));
                let closing = tenure_proto::Closing::new(Reason::Bye);
                self.effects.push_back(Effect::Close { conn, closing });
            }
            Ending::Banned | Ending::Kicked => {}
        }
        self.end_services(session, reason);
        self.effects.push_back(Effect::Note(Note::LeaseEvicted { session, conn, client, reason }));
        if let Some(knock) = waiting {
            self.sessions.knocking.remove(&knock.conn);
            self.knock(now, knock);
        }
    }

    /// Everything that the session read: what it has in hand goes back, its private places are gone (the store
    /// has dropped them with the lease), and what was to move on when it ended does.
    fn end_reading(&mut self, session: SessionKey, conn: Option<ConnId>, member: MemberKey, subs: Subs) {
        for (id, sub) in subs.iter() {
            self.leave_places(session, conn, id, sub);
        }
        self.leave_member_inbox(session, member);
        self.begin_evacuation(session, member);
    }

    /// Takes a lease out of every index. Presence is the caller's: a lease that never began was never there.
    pub(crate) fn forget(&mut self, session: &SessionKey) -> Option<Lease> {
        let lease = self.sessions.leases.remove(session)?;
        self.sessions.deadlines.clear(session);
        self.sessions.caught_up.remove(session);
        self.sessions.ready.remove(session);
        if let Some(count) = self.sessions.members.get_mut(&lease.member) {
            *count -= 1;
            if *count == 0 {
                self.sessions.members.remove(&lease.member);
            }
        }
        Some(lease)
    }
}
