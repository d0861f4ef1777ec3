//! What an application holds: a session and its events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_link::{End, SessionEvent, SubHandle};
use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::frame::Response;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::limits::PRESENCE_PAGE;
use tenure_proto::message::{HistoryParams, HistoryResult};
use tenure_proto::method::{Empty, HealthResult, Method, PingResult, PresenceListParams, PresenceListResult};
use tenure_proto::name::{GroupName, TopicName};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, ProfilePatch};
use tenure_proto::run::{RunGetResult, RunIdParams, RunInfo, RunsListParams, RunsListResult};
use tenure_proto::service::{
    RelayOpenParams, RelayOpenResult, Service, ServiceKind, ServicesListParams, ServicesListResult,
};
use tenure_proto::subscribe::TopicCreateParams;
use tenure_proto::topic::{GroupDeleteParams, TopicDeleteParams};
use tokio::sync::{mpsc, oneshot};

use crate::call::CallBuilder;
use crate::driver::{Command, Driver, MakeRequest};
use crate::endpoint::Endpoint;
use crate::ids::Mint;
use crate::offer::OfferBuilder;
use crate::options::{Options, OptionsError};
use crate::received::Hands;
use crate::relay::Identity;
use crate::send::{Body, Publisher, SendBuilder, To};
use crate::serve::{Run, RunError, RunSlot, ServeBuilder};
use crate::subscription::{InboxError, InboxSlot, SubscribeBuilder, Subscription};

/// Commands that may wait for the session's task.
const COMMANDS: usize = 64;
/// Events between the session's task and the application; the task itself holds more.
const EVENTS: usize = 16;

pub(crate) enum Told {
    Event(SessionEvent),
    End(End),
}

/// Why a session could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The options do not hold together.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The broker will not have this session.
    #[error(transparent)]
    Ended(End),
}

/// A session in a mesh. Clones speak for the same session; when the last is dropped, it says goodbye.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) hands: Hands,
    pub(crate) ids: Arc<Mint>,
    pub(crate) codec: Codec,
    pub(crate) timeout_ms: u64,
    session: SessionKey,
    member: MemberKey,
    inbox: Option<InboxSlot>,
    member_inbox: Option<InboxSlot>,
    pub(crate) runs: Option<RunSlot>,
    identity: Identity,
    endpoint: Endpoint,
}

/// The events of a session, in order; messages are not among them, they have streams of their own. An application
/// that wants none of them drops it. One that holds it reads it: while a thousand wait, nothing more is read from
/// the broker, messages included.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<Told>,
    /// What was heard while connecting.
    first: Option<SessionEvent>,
    end: Option<End>,
}

impl Session {
    /// Starts a session and returns at once; [`SessionEvent::Attached`] says when it is in.
    pub fn start(mut options: Options) -> Result<(Session, Events), OptionsError> {
        let mut seed = [0u8; 8];
        getrandom::fill(&mut seed).map_err(|_| OptionsError::Entropy)?;
        if options.serves && options.link.inbox == InboxChoice::None {
            options.link.inbox = InboxChoice::Session;
        }
        let (serves, endpoint) = (options.serves, options.endpoint.clone());
        let identity = Identity::new(&options.link).map_err(|_| OptionsError::Entropy)?;
        let (commands, asked) = mpsc::channel(COMMANDS);
        let (hands, settling) = mpsc::unbounded_channel();
        let (told, events) = mpsc::channel(EVENTS);
        let (session, member) = (options.link.session(), options.link.member());
        let (codec, timeout_ms, inbox) = (options.link.codec, options.timeout_ms, options.link.inbox);
        let mut driver = Driver::new(options, u64::from_le_bytes(seed), told, hands.clone());
        let mut slot = |handle| Arc::new(Mutex::new(Some(driver.inbox(handle))));
        let own = matches!(inbox, InboxChoice::Session | InboxChoice::Both);
        let members = matches!(inbox, InboxChoice::Member | InboxChoice::Both);
        let inbox = own.then(|| slot(SubHandle::INBOX));
        let member_inbox = members.then(|| slot(SubHandle::MEMBER));
        let runs = serves.then(|| Arc::new(Mutex::new(Some(driver.runs()))));
        let ids = Arc::default();
        let session = Session {
            commands,
            hands,
            ids,
            codec,
            timeout_ms,
            session,
            member,
            inbox,
            member_inbox,
            runs,
            identity,
            endpoint,
        };
        tokio::spawn(driver.run(asked, settling));
        Ok((session, Events { events, first: None, end: None }))
    }

    /// Starts a session and waits until it is in, or until it is clear that it never will be. While the broker
    /// cannot be reached this goes on trying: wrap it in a timeout to give up.
    pub async fn connect(options: Options) -> Result<(Session, Events), ConnectError> {
        Session::connect_with(options, |_| {}).await
    }

    /// Does what [`Session::connect`] does, and shows `meanwhile` what happens until the session is in: each
    /// [`SessionEvent::Waiting`] says why it is not.
    pub async fn connect_with(
        options: Options,
        mut meanwhile: impl FnMut(&SessionEvent) + Send,
    ) -> Result<(Session, Events), ConnectError> {
        let (session, mut events) = Session::start(options)?;
        loop {
            match events.next().await {
                Ok(event @ SessionEvent::Attached(_)) => {
                    events.first = Some(event);
                    return Ok((session, events));
                }
                Ok(event) => meanwhile(&event),
                Err(end) => return Err(ConnectError::Ended(end)),
            }
        }
    }

    /// This session's key.
    pub fn key(&self) -> SessionKey {
        self.session
    }

    /// Its member's key.
    pub fn member(&self) -> MemberKey {
        self.member
    }

    /// Where its broker is.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who it is to the other end of a relayed stream.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A message to somebody: describe it further, then await it.
    ///
    /// ```no_run
    /// # use tenure_client::{Session, proto::{SessionKey, WireError, message::Priority}};
    /// # async fn example(session: Session, peer: SessionKey) -> Result<(), WireError> {
    /// let accepted = session.send(peer, "the build is red").priority(Priority::Now).await?;
    /// println!("{} is number {} of {}", accepted.id, accepted.seq.get(), accepted.log);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(&self, to: impl Into<To>, body: impl Into<Body>) -> SendBuilder {
        SendBuilder::new(self.clone(), to.into(), body.into(), None)
    }

    /// A handle that sends to `topic`, many at a time.
    ///
    /// ```no_run
    /// # use tenure_client::{Session, proto::WireError};
    /// # async fn example(session: Session) -> Result<(), WireError> {
    /// let jobs = session.publisher("jobs")?;
    /// jobs.publish("one").await?;
    /// let mut answers = Vec::new();
    /// for n in 0..1_000 {
    ///     answers.push(jobs.publish(n.to_string()).key("a").enqueue().await?);
    /// }
    /// for answer in answers {
    ///     answer.await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn publisher(&self, topic: &str) -> Result<Publisher, WireError> {
        Publisher::new(self.clone(), topic)
    }

    /// Reads a topic: describe how, then await the stream.
    ///
    /// ```no_run
    /// # use tenure_client::{Session, Item, Start};
    /// # async fn example(session: Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut jobs = session.subscribe("jobs").group("workers").prefetch(8).from(Start::Earliest).await?;
    /// let end = loop {
    ///     match jobs.next().await {
    ///         Ok(Item::Message(job)) => {
    ///             println!("{}", job.text().unwrap_or("?"));
    ///             job.ack().await?;
    ///         }
    ///         Ok(Item::Gap { from, to, .. }) => println!("{from} to {to} are gone"),
    ///         Err(end) => break end,
    ///     }
    /// };
    /// println!("over: {end}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, topic: &str) -> SubscribeBuilder {
        SubscribeBuilder::new(self.clone(), topic)
    }

    /// This session's inbox, if its options asked for it ([`Options::inbox`]). One reader at a time.
    ///
    /// ```no_run
    /// # use tenure_client::Session;
    /// # async fn example(session: Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut inbox = session.inbox()?;
    /// let message = inbox.next_message().await?;
    /// session.send(message.from.session, "got it").reply_to(message.id).await?;
    /// message.ack().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn inbox(&self) -> Result<Subscription, InboxError> {
        let slot = self.inbox.as_ref().ok_or(InboxError::NotAsked)?;
        Subscription::inbox(self.clone(), slot)
    }

    /// The member's inbox, if this session's options asked for it; its sessions compete for what is in it.
    pub fn member_inbox(&self) -> Result<Subscription, InboxError> {
        let slot = self.member_inbox.as_ref().ok_or(InboxError::NotAsked)?;
        Subscription::inbox(self.clone(), slot)
    }

    /// A call to somebody: describe it further, then await the stream of its answer.
    ///
    /// ```no_run
    /// # use tenure_client::{Answer, CallError, Session, proto::SessionKey};
    /// # async fn example(session: Session, agent: SessionKey) -> Result<(), CallError> {
    /// let mut answer = session.call(agent, "what is new?").key("news-417").await?;
    /// loop {
    ///     match answer.next().await? {
    ///         Answer::Chunk { data, .. } => println!("{data}"),
    ///         Answer::End { result, .. } => break println!("in the end: {result}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, to: impl Into<To>, input: impl Into<Value>) -> CallBuilder {
        CallBuilder::new(self.clone(), to.into(), input.into())
    }

    /// Answers the runs that come to this session, if its options asked for them ([`Options::serve_runs`]): each is handed
    /// to `handler` once, sixteen at a time. What it returns ends the run; so does a panic, or dropping the server, with an
    /// error.
    ///
    /// ```no_run
    /// # use tenure_client::{RunError, Session};
    /// # async fn example(session: Session) {
    /// let server = session.serve_runs(|run| async move {
    ///     let text = run.input.as_str().ok_or_else(|| RunError::failed("ask in words"))?;
    ///     for word in text.split_whitespace() {
    ///         if run.is_cancelled() {
    ///             return Err(RunError::Cancelled);
    ///         }
    ///         run.chunk(word.to_uppercase()).await?;
    ///     }
    ///     Ok(text.len().into())
    /// });
    /// println!("over: {}", server.concurrency(4).await);
    /// # }
    /// ```
    pub fn serve_runs<H, F>(&self, handler: H) -> ServeBuilder<H>
    where
        H: Fn(Run) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Value, RunError>> + Send + 'static,
    {
        ServeBuilder::new(self.clone(), handler)
    }

    /// Offers a service under `name`: describe it further, then await it. It is this session's once the broker says so,
    /// and for as long as the session lives and what this gives is held.
    ///
    /// ```no_run
    /// # use tenure_client::{Session, proto::service::ServiceKind};
    /// # async fn example(session: Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut db = session.offer("db", ServiceKind::Tcp).description("the team's database").await?;
    /// match db.verdict().await? {
    ///     Ok(()) => println!("db is ours"),
    ///     Err(error) => println!("not yet: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn offer(&self, name: impl Into<String>, kind: ServiceKind) -> OfferBuilder {
        OfferBuilder::new(self.clone(), name.into(), kind)
    }

    /// One page of what is offered.
    pub async fn services_page(&self, params: ServicesListParams) -> Result<ServicesListResult, WireError> {
        self.request(Method::ServicesList, params).await
    }

    /// What is offered in the mesh, by name; with `all` also what is hidden.
    pub async fn services(&self, all: bool) -> Result<Vec<Service>, WireError> {
        let mut services = Vec::new();
        let mut params = ServicesListParams { all, ..ServicesListParams::default() };
        loop {
            let page = self.services_page(params.clone()).await?;
            services.extend(page.services);
            match page.next {
                Some(next) => params.after = Some(next),
                None => return Ok(services),
            }
        }
    }

    /// A ticket to the relay, good once; for a service that is away this waits some seconds.
    pub async fn relay_open(&self, params: RelayOpenParams) -> Result<RelayOpenResult, WireError> {
        self.request(Method::RelayOpen, params).await
    }

    /// How a run stands, for its caller's member and its callee's; an ended one is known for a day.
    pub async fn run_get(&self, run_id: RunId) -> Result<RunGetResult, WireError> {
        self.request(Method::RunGet, RunIdParams { run_id }).await
    }

    /// One page of the runs under way that this member called or this session answers. A broker that has no such list
    /// answers `unknown_method`; the feature `runs` tells by `list`.
    pub async fn runs_page(&self, params: RunsListParams) -> Result<RunsListResult, WireError> {
        self.request(Method::RunsList, params).await
    }

    /// The runs under way that this member called or this session answers, oldest first.
    pub async fn runs(&self) -> Result<Vec<RunInfo>, WireError> {
        let (mut runs, mut params) = (Vec::new(), RunsListParams::default());
        loop {
            let page = self.runs_page(params).await?;
            runs.extend(page.runs);
            let Some(next) = page.next else { return Ok(runs) };
            params = RunsListParams { after: Some(next), limit: None };
        }
    }

    /// Asks for a run of this member to be stopped.
    pub async fn run_cancel(&self, run_id: RunId) -> Result<(), WireError> {
        self.request::<_, Empty>(Method::RunCancel, RunIdParams { run_id }).await.map(|_| ())
    }

    /// What a log has, whoever has read it.
    pub async fn history(&self, params: HistoryParams) -> Result<HistoryResult, WireError> {
        self.request(Method::History, params).await
    }

    /// Makes a topic, if it is not there: the way to have one with several partitions.
    pub async fn topic_create(&self, params: TopicCreateParams) -> Result<(), WireError> {
        self.request::<_, Empty>(Method::TopicsCreate, params).await.map(|_| ())
    }

    /// Deletes a topic: one that this member made and that is empty, or any if it is an operator. Returns when it is gone; its
    /// readers end with [`SubEnd::Deleted`](crate::SubEnd::Deleted). Made again, its numbers go on.
    pub async fn topic_delete(&self, name: TopicName) -> Result<(), WireError> {
        self.request::<_, Empty>(Method::TopicsDelete, TopicDeleteParams { name }).await.map(|_| ())
    }

    /// Deletes a shared group that this member made, or any if it is an operator. Its readers end with
    /// [`SubEnd::Deleted`](crate::SubEnd::Deleted).
    pub async fn group_delete(&self, topic: TopicName, group: GroupName) -> Result<(), WireError> {
        let params = GroupDeleteParams { topic, group };
        self.request::<_, Empty>(Method::GroupsDelete, params).await.map(|_| ())
    }

    /// Makes any request.
    pub async fn request<P, R>(&self, method: Method, params: P) -> Result<R, WireError>
    where
        P: Serialize + Send + 'static,
        R: DeserializeOwned,
    {
        let timeout_ms = self.timeout_ms;
        self.ask(Box::new(move |link, now| link.request(now, method, &params, timeout_ms))).await
    }

    /// One page of who is here.
    pub async fn presence_page(&self, params: PresenceListParams) -> Result<PresenceListResult, WireError> {
        self.request(Method::PresenceList, params).await
    }

    /// Everybody who is here; with `debug` also the state of their sockets and leases.
    pub async fn peers(&self, debug: bool) -> Result<Vec<Peer>, WireError> {
        let mut peers = Vec::new();
        let mut after = None;
        loop {
            let limit = Some(U53::saturating(PRESENCE_PAGE as u64));
            let page = self.presence_page(PresenceListParams { after, limit, debug }).await?;
            peers.extend(page.peers.iter().map(|peer| peer.get().clone()));
            after = page.next;
            if after.is_none() {
                return Ok(peers);
            }
        }
    }

    /// Changes what peers see.
    pub async fn set_profile(&self, patch: ProfilePatch) -> Result<(), WireError> {
        let timeout_ms = self.timeout_ms;
        self.ask::<Empty>(Box::new(move |link, now| link.set_profile(now, &patch, timeout_ms)))
            .await
            .map(|_| ())
    }

    /// How the broker is.
    pub async fn health(&self) -> Result<HealthResult, WireError> {
        self.request(Method::Health, Empty {}).await
    }

    /// The broker's wall clock: a round trip.
    pub async fn ping(&self) -> Result<PingResult, WireError> {
        self.request(Method::Ping, Empty {}).await
    }

    /// Says goodbye: peers see `left` at once, and the events end with [`End::Bye`].
    pub async fn bye(&self) {
        let _ = self.commands.send(Command::Bye).await;
    }

    /// Goes without a word, as a process that is killed would: peers notice nothing until the lease runs out, and whoever
    /// has the key can take the session up before. The events end with [`End::Bye`].
    pub async fn part(&self) {
        let _ = self.commands.send(Command::Part).await;
    }

    /// Cuts the transport as a broken network would, to see what happens: nothing, if all is well.
    pub async fn sever(&self) {
        self.cut_off(Duration::ZERO).await;
    }

    /// The same with a network that stays away for so long: dials fail meanwhile.
    pub async fn cut_off(&self, away: Duration) {
        let _ = self.commands.send(Command::Sever(away)).await;
    }

    async fn ask<R: DeserializeOwned>(&self, make: MakeRequest) -> Result<R, WireError> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Request(make, answer)).await.map_err(|_| over())?;
        read(self.codec, &answered.await.map_err(|_| over())??)
    }
}

/// The session does not answer any more.
pub(crate) fn over() -> WireError {
    WireError::new(ErrorCode::LeaseExpired, "the session is over")
}

/// What a response says.
pub(crate) fn read<R: DeserializeOwned>(codec: Codec, frame: &[u8]) -> Result<R, WireError> {
    let response: Response<R> = codec.decode(frame)?;
    match (response.result, response.error) {
        (Some(result), _) => Ok(result),
        (None, Some(error)) => Err(error),
        (None, None) => Err(WireError::new(ErrorCode::Internal, "the broker's answer is empty")),
    }
}

impl Events {
    /// The next event; after the last one the reason for the end, every time. Cancel-safe.
    pub async fn next(&mut self) -> Result<SessionEvent, End> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        match self.events.recv().await {
            Some(Told::Event(event)) => Ok(event),
            Some(Told::End(end)) => Err(self.end.insert(end).clone()),
            // The task ends by telling why; without that it was torn down with its runtime.
            None => Err(self.end.insert(End::Bye).clone()),
        }
    }
}
