//! Requests of a session that is here.

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::{EventBody, Notice};
use tenure_proto::ids::{ConnId, RequestId, SessionKey};
use tenure_proto::limits::PRESENCE_PAGE;
use tenure_proto::method::{
    GroupsHealth, HealthResult, PingResult, PresenceListParams, PresenceListResult, StoreHealth,
};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, ProfilePatch, SharedPeer, Transport};

use crate::effect::{Answer, Effect};
use crate::input::Call;
use crate::lease::State;
use crate::time::Millis;

use super::Mesh;

impl Mesh {
    pub(super) fn call(
        &mut self,
        now: Millis,
        conn: ConnId,
        request: RequestId,
        call: Call,
        effects: &mut Vec<Effect>,
    ) {
        let Some(session) = self.conns.get(&conn).copied() else {
            // The socket has just lost its session; its `closing` is on the way and says why.
            let error =
                WireError::new(ErrorCode::LeaseExpired, "this socket does not carry the session any more");
            effects.push(Effect::Respond { conn, request, outcome: Err(error) });
            return;
        };
        let outcome = match call {
            Call::Bye => return self.bye(conn, request, effects),
            Call::Ping => Ok(Answer::Ping(PingResult { ts: U53::saturating(self.wall) })),
            Call::PresenceList(params) => self.presence_list(now, &params),
            Call::ProfileSet(patch) => self.profile_set(session, &patch),
            Call::Health(store) => Ok(self.health(store)),
        };
        effects.push(Effect::Respond { conn, request, outcome });
        self.reschedule(session);
    }

    /// Says that a frame made no sense, in the only way there is when it had no id: as a notice.
    pub(super) fn complain(&mut self, conn: ConnId, message: String) {
        let Some(session) = self.conns.get(&conn).copied() else { return };
        let bytes = message.len() + 64;
        let notice = Notice { code: ErrorCode::BadRequest.as_str().to_owned(), message };
        self.tell(session, EventBody::Notice(notice), bytes);
    }

    fn presence_list(&self, now: Millis, params: &PresenceListParams) -> Result<Answer, WireError> {
        let limit = params.limit.map_or(PRESENCE_PAGE as u64, U53::get);
        if limit == 0 || limit > PRESENCE_PAGE as u64 {
            return Err(WireError::bad_request(format!("limit must be between 1 and {PRESENCE_PAGE}")));
        }
        let (mut peers, more) = self.presence.page(params.after.as_ref(), limit as usize);
        let next = if more { peers.last().map(|p| p.get().session) } else { None };
        if params.debug {
            peers = peers.iter().map(|peer| SharedPeer::new(self.debugged(now, peer.get()))).collect();
        }
        let state_version = self.state_version();
        Ok(Answer::PresenceList(Box::new(PresenceListResult { peers, next, state_version })))
    }

    /// The peer with what we usually do not show: the state of its socket and the end of its lease.
    fn debugged(&self, now: Millis, peer: &Peer) -> Peer {
        let mut peer = peer.clone();
        if let Some(lease) = self.leases.get(&peer.session) {
            let online = matches!(lease.state, State::Online(_));
            peer.transport = Some(if online { Transport::Online } else { Transport::Grace });
            peer.lease_until = Some(U53::saturating(self.wall + lease.until(&self.config).since(now)));
        }
        peer
    }

    fn profile_set(&mut self, session: SessionKey, patch: &ProfilePatch) -> Result<Answer, WireError> {
        let Some(old) = self.presence.get(&session) else { return Ok(Answer::Empty) };
        let old = old.get();
        let profile = old.profile().patched(patch);
        profile.check()?;
        if profile == old.profile() {
            return Ok(Answer::Empty);
        }
        let fresh = Peer {
            services: old.services.clone(),
            ..Peer::new(session, old.member, old.instance_id.clone(), old.joined_at.get(), &profile)
        };
        self.presence.update(fresh);
        if let Some(lease) = self.leases.get_mut(&session) {
            lease.dirty = true;
        }
        Ok(Answer::Empty)
    }

    fn health(&self, store: StoreHealth) -> Answer {
        Answer::Health(Box::new(HealthResult {
            status: self.health_status(),
            broker_id: self.broker_id.clone(),
            uptime_ms: U53::saturating(self.uptime_ms()),
            sessions: U53::saturating(self.leases.len() as u64),
            groups: GroupsHealth::default(),
            store,
            draining: self.is_draining(),
        }))
    }
}
