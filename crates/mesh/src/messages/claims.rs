//! Deliveries of groups that several may read: each is pushed when its claim is on disk, so that after a crash nobody
//! else is handed what somebody has in hand.

use tenure_kit::time::Millis;
use tenure_proto::ids::{ConnId, SessionKey, SubId};

use crate::Mesh;
use crate::effect::Push;
use crate::messages::Messages;
use crate::messages::subs::Subs;
use crate::store::pending::Awaiting;

impl Mesh {
    /// Whether a subscription was handed entries that have not been pushed, because their claims are on their way to
    /// the disk. A `fetch` that finds nothing else is answered after them: nothing waits, when it says so.
    pub(crate) fn is_claiming(&self, session: SessionKey, sub: &SubId) -> bool {
        let sub = self.sessions.lease(&session).and_then(|lease| lease.subs.get(sub));
        sub.is_some_and(|sub| !sub.claiming.is_empty())
    }

    /// Deliveries of contended groups leave when their claims are on disk.
    pub(crate) fn await_claims(&mut self, now: Millis) {
        let Messages { parked, dirty, readings, .. } = &mut self.messages;
        let (told, untold): (Vec<_>, Vec<_>) =
            std::mem::take(parked).into_iter().partition(|(_, push)| !dirty.contains(&push.group));
        // What has been settled or given back since, or was for a socket that is gone, is not pushed any more.
        let sessions = &self.sessions;
        let wanted = |(conn, push): &(ConnId, Push)| {
            let lease = sessions.lease(&push.session).filter(|lease| lease.conn() == Some(*conn));
            let sub = lease.and_then(|lease| lease.subs.get(&push.sub));
            let reading = readings.get(&push.group);
            sub.is_some_and(|sub| sub.holds(push.group, push.entry.seq))
                && reading.is_some_and(|reading| reading.is_current(push))
        };
        parked.extend(untold.into_iter().filter(wanted));
        if !told.is_empty() {
            self.await_all(Awaiting::Pushes(told), now);
        }
    }

    /// Claims are on disk: their deliveries are the next to be pushed, if that socket still carries the session.
    pub(crate) fn clear_pushes(&mut self, pushes: Vec<(ConnId, Push)>) {
        for (conn, push) in pushes {
            let session = push.session;
            let Some(lease) = self.sessions.lease_mut(&session).filter(|lease| lease.conn() == Some(conn))
            else {
                continue;
            };
            lease.subs.cleared.push_back(push);
            self.rouse(session);
        }
    }

    /// A fetch that could not be answered: what it took is pushed.
    pub(crate) fn push_instead(&mut self, pushes: Vec<Push>) {
        for push in pushes {
            let Some(lease) = self.sessions.lease_mut(&push.session) else { continue };
            if let Some(sub) = lease.subs.get_mut(&push.sub)
                && sub.holds(push.group, push.entry.seq)
            {
                sub.unread.insert((push.group, push.entry.seq));
                lease.subs.eager.insert(push.sub);
                self.rouse(push.session);
            }
        }
    }

    /// Holds back deliveries whose claims must be on disk first.
    pub(crate) fn park(messages: &mut Messages, subs: &mut Subs, conn: ConnId, pushes: &mut Vec<Push>) {
        let contended = |push: &mut Push| {
            let fresh = !push.cleared;
            fresh && messages.readings.get(&push.group).is_some_and(|reading| reading.is_contended())
        };
        let parked: Vec<Push> = pushes.extract_if(.., contended).collect();
        for push in &parked {
            if let Some(sub) = subs.get_mut(&push.sub) {
                sub.claiming.insert((push.group, push.entry.seq));
            }
        }
        messages.parked.extend(parked.into_iter().map(|push| (conn, Push { cleared: true, ..push })));
    }
}
