//! Requests of a session that is here.

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
use crate::effect::Answer;
use crate::input::Call;
use crate::messages::reads::Purpose;
use crate::messages::settle::How;
use crate::reply::{Caller, Reply, ReplyTo};
use crate::sessions::lease::State;
use crate::store::record::StoreRead;

impl Mesh {
    /// Carries out a request, and sees to it that it is answered.
    pub(crate) fn call(&mut self, now: Millis, conn: ConnId, request: RequestId, call: Call) {
        let Some(session) = self.sessions.carried_by(conn) else {
            // The socket has just lost its session; its `closing` is on the way and says why.
            let error =
                WireError::new(ErrorCode::LeaseExpired, "this socket does not carry the session any more");
            return self.answer(ReplyTo::Socket(conn, request), Err(error));
        };
        let caller = Caller { conn, request, session };
        if let Some(error) = self.forbidden(session, &call).or_else(|| self.count_request(session, &call)) {
            self.answer(caller.reply_to(), Err(error));
        } else if let Some(call) = self.prove(&caller, call) {
            self.dispatch(now, caller, call);
        }
        self.reschedule(session);
    }

    /// Calls the rule of each method.
    pub(crate) fn dispatch(&mut self, now: Millis, caller: Caller, call: Call) {
        let (caller, session) = (&caller, caller.session);
        let reply = match call {
            Call::Bye => self.bye(caller),
            Call::Ping => {
                Ok(Reply::Now(Answer::Ping(PingResult { ts: U53::saturating(self.clock.shown()) })))
            }
            Call::PresenceList(params) => self.presence_list(now, &params),
            Call::ProfileSet(patch) => self.profile_set(session, &patch),
            Call::ServicesList(params) => self.services_list(&params),
            Call::ServiceRenew(params) => self.renew(now, caller, &params),
            Call::ServiceWithdraw(params) => self.withdraw(caller, &params),
            Call::RelayOpen(params) => self.relay_open(now, caller, params),
            Call::Health(store) => Ok(self.health(caller, store)),
            Call::Send(prepared) => self.send(caller, *prepared),
            Call::RunStart(start) => self.run_start(caller, *start),
            Call::RunChunk(params) => self.run_chunk(caller, params),
            Call::RunEnd(params) => self.run_end(caller, *params),
            Call::RunCancel(params) => self.run_cancel(caller, params.run_id),
            Call::RunGet(params) => self.run_get(caller, params.run_id),
            Call::RunsList(params) => self.runs_list(session, &params),
            Call::Subscribe(params) => self.subscribe(caller, &params),
            Call::Unsubscribe(params) => self.unsubscribe(caller, &params),
            Call::Fetch(params) => self.fetch(caller, &params),
            Call::Ack(params) => self.settle(caller, &params.tags, How::Ack),
            Call::Nack(params) => self.settle(caller, &params.tags, How::Nack(&params)),
            Call::Progress(params) => self.settle(caller, &params.tags, How::Progress),
            Call::Reconcile(params) => self.reconcile_call(now, caller, &params),
            Call::SendStatus(params) => self.send_status(now, caller, params),
            Call::History(params) => self.history(caller, &params),
            Call::TopicsList(params) => self.topics_list(caller.reply_to(), &params),
            Call::TopicsCreate(params) => self.topics_create(now, caller, params),
            Call::TopicsDelete(params) => self.topics_delete(caller, &params.name),
            Call::GroupsList(params) => self.groups_list(caller.reply_to(), &params),
            Call::GroupsDelete(params) => self.groups_delete(caller, &params.topic, &params.group),
            Call::DeadList(params) => self.dead_list(caller, &params),
            Call::DeadRetry(params) => self.dead_retry(caller, &params),
            Call::DeadDrop(params) => self.dead_drop(caller, &params),
        };
        self.reply(caller.reply_to(), reply);
    }

    /// Says that a frame made no sense, in the only way there is when it had no id: as a notice.
    pub(crate) fn complain(&mut self, conn: ConnId, message: String) {
        let Some(session) = self.sessions.carried_by(conn) else { return };
        let bytes = message.len() + 64;
        let notice = Notice { code: ErrorCode::BadRequest.as_str().to_owned(), message };
        self.tell(session, EventBody::Notice(notice), bytes);
    }

    fn presence_list(&self, now: Millis, params: &PresenceListParams) -> Result<Reply, WireError> {
        let limit = params.limit.map_or(PRESENCE_PAGE as u64, U53::get);
        if limit == 0 || limit > PRESENCE_PAGE as u64 {
            return Err(WireError::bad_request(format!("limit must be between 1 and {PRESENCE_PAGE}")));
        }
        let (mut peers, more) = self.sessions.presence().page(params.after.as_ref(), limit as usize);
        let next = if more { peers.last().map(|p| p.get().session) } else { None };
        if params.debug {
            peers = peers.iter().map(|peer| SharedPeer::new(self.debugged(now, peer.get()))).collect();
        }
        let state_version = self.state_version();
        let result = PresenceListResult { peers, next, state_version };
        Ok(Reply::Now(Answer::PresenceList(Box::new(result))))
    }

    /// The peer with what we usually do not show: the state of its socket and the end of its lease.
    pub(crate) fn debugged(&self, now: Millis, peer: &Peer) -> Peer {
        let mut peer = peer.clone();
        if let Some(lease) = self.sessions.lease(&peer.session) {
            let online = matches!(lease.state, State::Online(_));
            peer.transport = Some(if online { Transport::Online } else { Transport::Grace });
            peer.lease_until =
                Some(U53::saturating(self.clock.wall() + lease.until(&self.config).since(now)));
        }
        peer
    }

    fn profile_set(&mut self, session: SessionKey, patch: &ProfilePatch) -> Result<Reply, WireError> {
        let Some(old) = self.sessions.peer(&session) else { return Ok(Reply::Now(Answer::Empty)) };
        let profile = old.profile().patched(patch);
        profile.check()?;
        if profile == old.profile() {
            return Ok(Reply::Now(Answer::Empty));
        }
        let fresh = Peer {
            services: old.services.clone(),
            ..Peer::new(session, old.member, old.instance_id.clone(), old.joined_at.get(), &profile)
        };
        self.sessions.presence_mut().update(fresh);
        if let Some(lease) = self.sessions.lease_mut(&session) {
            lease.dirty = true;
        }
        // Another status opens other lanes.
        self.wake_all(session);
        Ok(Reply::Now(Answer::Empty))
    }

    /// How the broker is; what waits in groups, and for how long, is partly the store's to say.
    fn health(&mut self, caller: &Caller, store: StoreHealth) -> Reply {
        let (depth, places) = self.messages.behind();
        let health = Box::new(HealthResult {
            status: self.health_status(),
            reason: self.health_reason(),
            broker_id: self.numbering.broker_id().to_owned(),
            uptime_ms: U53::saturating(self.clock.uptime_ms()),
            sessions: U53::saturating(self.sessions.len() as u64),
            groups: GroupsHealth { depth: U53::saturating(depth), oldest_ms: U53::default() },
            store,
            draining: self.is_draining(),
            state_version: self.state_version(),
        });
        if places.is_empty() {
            return Reply::Now(Answer::Health(health));
        }
        self.read(Purpose::Health(caller.reply_to(), health), StoreRead::Oldest { places });
        Reply::Later
    }
}
