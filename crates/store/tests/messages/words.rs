//! Short words for what tests say and expect.

use tenure_mesh::conn::admit::{Admission, TokenVerdict, Voucher};
use tenure_mesh::effect::{Answer, Push};
use tenure_mesh::input::Call;
use tenure_mesh::messages::prepare::prepare;
use tenure_mesh::store::record::DeadEntry;
use tenure_mesh::{Input, MeshConfig};
use tenure_proto::dead::{DeadDropParams, DeadListParams, DeadRetryParams, DeadRetryResult};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::{HelloReconcile, InboxChoice};
use tenure_proto::ids::{ConnId, MemberKey, RequestId, SessionKey, Tag};
use tenure_proto::log::LogName;
use tenure_proto::message::{
    Address, Fallback, NackParams, Priority, SendParams, SendResult, SendState, SendStatusParams,
    SettleResult, TagsParams,
};
use tenure_proto::number::U53;
use tenure_proto::peer::{Profile, ProfilePatch, Status};
use tenure_proto::reconcile::{ReconcileParams, ReconcileResult};
use tenure_proto::subscribe::{AckMode, FetchParams, From, SubscribeParams, SubscribeResult};
use tenure_proto::topic::TopicCreateParams;

use super::world::{Engine, Outcome, World};

/// Session `n`.
pub(crate) fn session(n: u8) -> SessionKey {
    SessionKey([n; 32])
}

/// The member of session `n`: sessions share one in tens, and its key is none of theirs.
pub(crate) fn member(n: u8) -> MemberKey {
    MemberKey([200 + n / 10; 32])
}

pub(crate) fn inbox(n: u8) -> LogName {
    LogName::Session(session(n))
}

pub(crate) fn topic(name: &str) -> Address {
    Address::Topic(name.parse().unwrap())
}

pub(crate) fn to(n: u8) -> Address {
    Address::Session(session(n))
}

/// Session `n` in its first process, without a token.
pub(crate) fn knock(n: u8) -> Admission {
    Admission {
        mesh: "default".parse().unwrap(),
        member: member(n),
        session: session(n),
        instance: format!("i{n}").parse().unwrap(),
        profile: Profile::named(format!("s{n}")),
        inbox: InboxChoice::Session,
        voucher: Voucher::Attested(None),
        token: TokenVerdict::Absent,
        position: None,
        reconcile: None,
        positions: Vec::new(),
        client: "test/1".into(),
        counted: false,
        presented: Default::default(),
        from: None,
    }
}

/// A message to `to` under the sender's id `id`, which is its body too.
pub(crate) fn letter(to: Address, id: &str) -> SendParams {
    SendParams {
        to,
        body: Some(id.to_owned()),
        body_b64: None,
        client_message_id: id.parse().unwrap(),
        priority: Priority::Next,
        key: None,
        reply_to: None,
        meta: None,
        content_type: None,
        ttl_ms: None,
        delay_ms: None,
        fallback: Fallback::Hold,
        fingerprint: None,
    }
}

pub(crate) fn ms(ms: u64) -> Option<U53> {
    Some(U53::saturating(ms))
}

pub(crate) fn subscription(topic: &str, group: Option<&str>) -> SubscribeParams {
    SubscribeParams {
        topic: topic.parse().unwrap(),
        group: group.map(|name| name.parse().unwrap()),
        partition: None,
        prefetch: 32,
        ack_mode: AckMode::Manual,
        from: From::New,
    }
}

pub(crate) fn nacked(tags: Vec<Tag>) -> NackParams {
    NackParams { tags, delay_ms: None, dead: false, reason: None }
}

pub(crate) fn tag(push: &Push) -> Tag {
    push.tag().to_tag()
}

/// What a delivery says.
pub(crate) fn body(push: &Push) -> String {
    String::from_utf8(push.entry.envelope.body.as_bytes().to_vec()).unwrap()
}

pub(crate) fn bodies(pushes: &[Push]) -> Vec<String> {
    pushes.iter().map(body).collect()
}

/// A code and whether it may be tried again.
#[track_caller]
pub(crate) fn code(outcome: &Outcome) -> ErrorCode {
    outcome.as_ref().expect_err("a refusal").code
}

/// A world in memory with the defaults.
pub(crate) fn world() -> World {
    World::new(Engine::memory(), MeshConfig::default())
}

impl World {
    /// Session `n` joins.
    #[track_caller]
    pub(crate) fn join(&mut self, n: u8) -> ConnId {
        let conn = self.dial(knock(n));
        self.hello(conn);
        conn
    }

    /// The hello of the process that was on `conn`, with its token.
    #[track_caller]
    pub(crate) fn resuming(&self, n: u8, conn: ConnId) -> Admission {
        let hello = self.hello(conn);
        let position = Some((hello.epoch.clone(), self.socket(conn).last_seq));
        Admission { token: TokenVerdict::Selects(hello.lease_id.clone()), position, ..knock(n) }
    }

    /// The process that was on `conn` comes back with its token.
    #[track_caller]
    pub(crate) fn resume(&mut self, n: u8, conn: ConnId) -> ConnId {
        let admission = self.resuming(n, conn);
        let conn = self.dial(admission);
        self.hello(conn);
        conn
    }

    /// The same, and says what it has.
    #[track_caller]
    pub(crate) fn resume_with(
        &mut self,
        n: u8,
        conn: ConnId,
        params: ReconcileParams,
    ) -> (ConnId, ReconcileResult) {
        let admission = self.resuming(n, conn);
        self.reconciling(admission, params)
    }

    #[track_caller]
    pub(crate) fn reconciling(
        &mut self,
        admission: Admission,
        params: ReconcileParams,
    ) -> (ConnId, ReconcileResult) {
        let reconcile = Some(HelloReconcile::Now(Box::new(params)));
        let conn = self.dial(Admission { reconcile, ..admission });
        let result = self.hello(conn).reconcile.clone().expect("a result");
        (conn, *result)
    }

    pub(crate) fn sending(&mut self, params: SendParams) -> Result<Call, WireError> {
        let id = self.next_message();
        let prepared = prepare(params, id, self.wall, self.config.max_payload)?;
        Ok(Call::Send(Box::new(prepared)))
    }

    /// Sends, and is answered at once.
    #[track_caller]
    pub(crate) fn send(&mut self, conn: ConnId, params: SendParams) -> Outcome {
        let call = self.sending(params)?;
        self.call(conn, call)
    }

    /// Sends, and the message is accepted for the first time.
    #[track_caller]
    pub(crate) fn post(&mut self, conn: ConnId, params: SendParams) -> SendResult {
        match self.send(conn, params) {
            Ok(Answer::Send(result)) => *result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask_send(&mut self, conn: ConnId, params: SendParams) -> RequestId {
        let call = self.sending(params).unwrap();
        self.ask(conn, call)
    }

    #[track_caller]
    pub(crate) fn subscribe(&mut self, conn: ConnId, params: SubscribeParams) -> SubscribeResult {
        match self.call(conn, Call::Subscribe(params)) {
            Ok(Answer::Subscribe(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn settle(&mut self, conn: ConnId, call: Call) -> SettleResult {
        match self.call(conn, call) {
            Ok(Answer::Settle(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn ack(&mut self, conn: ConnId, pushes: &[Push]) -> SettleResult {
        self.settle(conn, Call::Ack(TagsParams { tags: pushes.iter().map(tag).collect() }))
    }

    /// Acks, and all of it counts.
    #[track_caller]
    pub(crate) fn ack_all(&mut self, conn: ConnId, pushes: &[Push]) {
        let result = self.ack(conn, pushes);
        assert_eq!((result.settled.len(), result.stale.len()), (pushes.len(), 0), "{result:?}");
    }

    /// Acks until nothing more comes; what it was.
    #[track_caller]
    pub(crate) fn drain(&mut self, conn: ConnId) -> Vec<String> {
        let mut got = Vec::new();
        loop {
            let pushes = self.pushes(conn);
            if pushes.is_empty() {
                return got;
            }
            got.extend(bodies(&pushes));
            self.ack_all(conn, &pushes);
        }
    }

    #[track_caller]
    pub(crate) fn nack(&mut self, conn: ConnId, push: &Push) {
        let result = self.settle(conn, Call::Nack(nacked(vec![tag(push)])));
        assert_eq!(result.stale, []);
    }

    #[track_caller]
    pub(crate) fn fetch(&mut self, conn: ConnId, sub: &str, limit: u64) -> Vec<Push> {
        let limit = U53::saturating(limit);
        match self.call(conn, Call::Fetch(FetchParams { sub_id: sub.parse().unwrap(), limit })) {
            Ok(Answer::Fetch(pushes)) => pushes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn set_status(&mut self, conn: ConnId, status: Status) {
        let patch = ProfilePatch { status: Some(status), ..ProfilePatch::default() };
        self.call(conn, Call::ProfileSet(Box::new(patch))).unwrap();
    }

    /// The fates of messages, in words.
    #[track_caller]
    pub(crate) fn status(&mut self, conn: ConnId, ids: &[&str]) -> Vec<(SendState, Option<String>)> {
        let client_message_ids = ids.iter().map(|id| id.parse().unwrap()).collect();
        match self.call(conn, Call::SendStatus(SendStatusParams { client_message_ids })) {
            Ok(Answer::SendStatus(result)) => {
                result.statuses.into_iter().map(|status| (status.state, status.reason)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn dead(&mut self, conn: ConnId, log: &LogName) -> Vec<DeadEntry> {
        let params = DeadListParams { log: log.to_string(), after: None, limit: None };
        match self.call(conn, Call::DeadList(params)) {
            Ok(Answer::DeadList((letters, _))) => letters,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn dead_retry(&mut self, conn: ConnId, log: &LogName, seqs: &[u64]) -> DeadRetryResult {
        let seqs = seqs.iter().copied().map(U53::saturating).collect();
        match self.call(conn, Call::DeadRetry(DeadRetryParams { log: log.to_string(), seqs })) {
            Ok(Answer::DeadRetry(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn dead_drop(&mut self, conn: ConnId, log: &LogName, seqs: &[u64]) -> u64 {
        let seqs = seqs.iter().copied().map(U53::saturating).collect();
        match self.call(conn, Call::DeadDrop(DeadDropParams { log: log.to_string(), seqs })) {
            Ok(Answer::DeadDrop(result)) => result.dropped.get(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn create(&mut self, conn: ConnId, name: &str, partitions: u32, retention: Option<u64>) {
        let retention_ms = retention.map(U53::saturating);
        let params = TopicCreateParams { name: name.parse().unwrap(), partitions, retention_ms };
        self.call(conn, Call::TopicsCreate(params)).unwrap();
    }

    #[track_caller]
    pub(crate) fn bye(&mut self, conn: ConnId) {
        assert!(matches!(self.call(conn, Call::Bye), Ok(Answer::Empty)));
    }

    /// Several requests of one socket before anything is handed out; their ids.
    pub(crate) fn ask_all(&mut self, conn: ConnId, calls: Vec<Call>) -> Vec<RequestId> {
        let (inputs, requests): (Vec<Input>, Vec<RequestId>) =
            calls.into_iter().map(|call| self.request(conn, call)).unzip();
        self.tell_all(inputs);
        requests
    }
}
