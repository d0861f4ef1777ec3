//! Requests of a session that is here.

use std::ops::Bound::{Excluded, Unbounded};

use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::{EventBody, Notice};
use tenure_proto::ids::{ConnId, RequestId, SessionKey};
use tenure_proto::limits::PRESENCE_PAGE;
use tenure_proto::method::{
    GroupsHealth, HealthResult, PingResult, PresenceListParams, PresenceListResult, StoreHealth,
};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, ProfilePatch, SharedPeer, Transport};

use crate::Mesh;
use crate::access::operating::Asker;
use crate::effect::{Answer, Effect};
use crate::input::Call;
use crate::messages::reads::Purpose;
use crate::messages::settle::How;
use crate::sessions::lease::State;
use crate::store::record::StoreRead;

impl Mesh {
    pub(crate) fn call(
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
        let refused = self.forbidden(session, &call).or_else(|| self.count_request(session, &call));
        if let Some(error) = refused {
            effects.push(Effect::Respond { conn, request, outcome: Err(error) });
            return self.reschedule(session);
        }
        let outcome = match call {
            Call::Bye => return self.bye(conn, request, effects),
            Call::Ping => Ok(Answer::Ping(PingResult { ts: U53::saturating(self.shown) })),
            Call::PresenceList(params) => self.presence_list(now, &params),
            Call::ProfileSet(patch) => self.profile_set(session, &patch),
            Call::ServicesList(params) => self.services_list(&params),
            Call::ServiceRenew(params) => {
                self.renew(now, conn, request, session, &params, effects);
                return self.reschedule(session);
            }
            Call::ServiceWithdraw(params) => {
                self.withdraw(conn, request, session, &params, effects);
                return self.reschedule(session);
            }
            Call::RelayOpen(params) => {
                self.relay_open(now, conn, request, session, params, effects);
                return self.reschedule(session);
            }
            Call::Health(store) => {
                self.health(conn, &request, store, effects);
                return self.reschedule(session);
            }
            other => {
                self.message_call(now, conn, request, session, other, effects);
                return self.reschedule(session);
            }
        };
        effects.push(Effect::Respond { conn, request, outcome });
        self.reschedule(session);
    }

    /// Says that a frame made no sense, in the only way there is when it had no id: as a notice.
    pub(crate) fn complain(&mut self, conn: ConnId, message: String) {
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
    pub(crate) fn debugged(&self, now: Millis, peer: &Peer) -> Peer {
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
        // Another status opens other lanes.
        self.wake_all(session);
        Ok(Answer::Empty)
    }

    /// Calls about messages; those with tags that cannot be judged yet wait for the store.
    fn message_call(
        &mut self,
        now: Millis,
        conn: ConnId,
        request: RequestId,
        session: SessionKey,
        call: Call,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(call) = self.prove(conn, &request, session, call, effects) {
            self.answer_message(now, conn, request, session, call, effects);
        }
    }

    /// Most are answered later, by the store.
    pub(crate) fn answer_message(
        &mut self,
        now: Millis,
        conn: ConnId,
        request: RequestId,
        session: SessionKey,
        call: Call,
        effects: &mut Vec<Effect>,
    ) {
        let outcome = match call {
            Call::Send(prepared) => return self.send(conn, request, session, *prepared, effects),
            Call::RunStart(start) => return self.run_start(conn, request, session, *start, effects),
            Call::RunChunk(params) => self.run_chunk(conn, &request, session, params, effects),
            Call::RunEnd(params) => self.run_end(conn, &request, session, *params, effects),
            Call::RunCancel(params) => self.run_cancel(conn, &request, session, params.run_id, effects),
            Call::RunGet(params) => self.run_get(conn, &request, session, params.run_id, effects),
            Call::RunsList(params) => self.runs_list(session, &params).map(Some),
            Call::Subscribe(params) => return self.subscribe(conn, request, session, &params, effects),
            Call::Ack(params) => {
                return self.settle(conn, request, session, &params.tags, How::Ack, effects);
            }
            Call::Nack(params) => {
                let how = How::Nack(&params);
                return self.settle(conn, request, session, &params.tags, how, effects);
            }
            Call::Progress(params) => {
                return self.settle(conn, request, session, &params.tags, How::Progress, effects);
            }
            Call::Reconcile(params) => {
                return self.reconcile_call(now, conn, request, session, &params, effects);
            }
            Call::Unsubscribe(params) => {
                self.unsubscribe(conn, request.clone(), session, &params, effects).map(|()| None)
            }
            Call::Fetch(params) => self.fetch(conn, &request, session, &params),
            Call::SendStatus(params) => {
                self.send_status(now, conn, &request, session, params, effects).map(|()| None)
            }
            Call::History(params) => self.history(conn, &request, session, &params, effects).map(|()| None),
            Call::TopicsList(params) => {
                let asker = Asker::Socket(conn, request.clone());
                self.topics_list(asker, &params, effects).map(|()| None)
            }
            Call::GroupsList(params) => {
                let asker = Asker::Socket(conn, request.clone());
                self.groups_list(asker, &params, effects).map(|()| None)
            }
            Call::TopicsDelete(params) => {
                let asker = Asker::Socket(conn, request.clone());
                self.topics_delete(asker, session, &params.name, effects).map(|()| None)
            }
            Call::GroupsDelete(params) => {
                let asker = Asker::Socket(conn, request.clone());
                let (topic, group) = (&params.topic, &params.group);
                self.groups_delete(asker, session, topic, group, effects).map(|()| None)
            }
            Call::TopicsCreate(params) => {
                self.topics_create(now, conn, &request, session, params, effects).map(|()| None)
            }
            Call::DeadList(params) => {
                self.dead_list(conn, &request, session, &params, effects).map(|()| None)
            }
            Call::DeadRetry(params) => {
                self.dead_retry(conn, &request, session, &params, effects).map(|()| None)
            }
            Call::DeadDrop(params) => {
                self.dead_drop(conn, &request, session, &params, effects).map(|()| None)
            }
            Call::Bye | Call::Ping | Call::PresenceList(_) | Call::ProfileSet(_) => return,
            Call::ServicesList(_) | Call::Health(_) => return,
            Call::ServiceRenew(_) | Call::ServiceWithdraw(_) | Call::RelayOpen(_) => return,
        };
        if let Some(outcome) = outcome.transpose() {
            effects.push(Effect::Respond { conn, request, outcome });
        }
    }

    /// How the broker is; what waits in groups, and for how long, is partly the store's to say.
    fn health(&mut self, conn: ConnId, request: &RequestId, store: StoreHealth, effects: &mut Vec<Effect>) {
        // The oldest of so many groups that are behind, among so many that are looked at: enough to see trouble.
        const BEHIND: usize = 256;
        const LOOKED_AT: usize = 4_096;
        let depth = self.messages.backlog.depth();
        let mut places = Vec::new();
        let from = self.messages.health_at.take().map_or(Unbounded, Excluded);
        for (looked, (id, reading)) in
            (1..).zip(self.messages.readings.range((from, Unbounded)).take(LOOKED_AT))
        {
            if self.messages.depth(reading).0 > 0 && places.len() < BEHIND {
                let record = &reading.record;
                places.push((record.log.clone(), record.lane, reading.group.floor()));
            }
            // Where there may be more, the next look goes on after this one.
            self.messages.health_at = (looked == LOOKED_AT).then_some(*id);
        }
        let health = Box::new(HealthResult {
            status: self.health_status(),
            reason: self.health_reason(),
            broker_id: self.broker_id.clone(),
            uptime_ms: U53::saturating(self.uptime_ms()),
            sessions: U53::saturating(self.leases.len() as u64),
            groups: GroupsHealth { depth: U53::saturating(depth), oldest_ms: U53::default() },
            store,
            draining: self.is_draining(),
            state_version: self.state_version(),
        });
        if places.is_empty() {
            return effects.push(crate::respond(conn, request.clone(), Answer::Health(health)));
        }
        self.read(Purpose::Health(conn, request.clone(), health), StoreRead::Oldest { places }, effects);
    }
}
