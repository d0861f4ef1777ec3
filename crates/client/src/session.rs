//! What an application holds: a session and its events.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::link::{End, SessionEvent};
use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::frame::Response;
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::PRESENCE_PAGE;
use tenure_proto::method::{Empty, HealthResult, Method, PingResult, PresenceListParams, PresenceListResult};
use tenure_proto::number::U53;
use tenure_proto::peer::{Peer, ProfilePatch};
use tokio::sync::{mpsc, oneshot};

use crate::driver::{Command, Driver, MakeRequest};
use crate::options::{Options, OptionsError};

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
    commands: mpsc::Sender<Command>,
    session: SessionKey,
    member: MemberKey,
    codec: Codec,
    timeout_ms: u64,
}

/// The events of a session, in order.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<Told>,
    /// What was heard while connecting.
    first: Option<SessionEvent>,
    end: Option<End>,
}

impl Session {
    /// Starts a session and returns at once; [`SessionEvent::Attached`] says when it is in.
    pub fn start(options: Options) -> Result<(Session, Events), OptionsError> {
        let mut seed = [0u8; 8];
        getrandom::fill(&mut seed).map_err(|_| OptionsError::Entropy)?;
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (told, events) = mpsc::channel(EVENTS);
        let session = Session {
            commands,
            session: options.link.session(),
            member: options.link.member(),
            codec: options.link.codec,
            timeout_ms: options.timeout_ms,
        };
        let driver = Driver::new(options, u64::from_le_bytes(seed), told);
        tokio::spawn(driver.run(inbox));
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

    /// Makes any request.
    pub async fn request<P, R>(&self, method: Method, params: P) -> Result<R, WireError>
    where
        P: Serialize + Send + 'static,
        R: DeserializeOwned,
    {
        let timeout_ms = self.timeout_ms;
        self.ask(Box::new(move |link, now, effects| link.request(now, method, &params, timeout_ms, effects)))
            .await
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
        self.ask::<Empty>(Box::new(move |link, now, effects| {
            link.set_profile(now, &patch, timeout_ms, effects)
        }))
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

    /// Cuts the transport as a broken network would, to see what happens: nothing, if all is well.
    pub async fn sever(&self) {
        let _ = self.commands.send(Command::Sever).await;
    }

    async fn ask<R: DeserializeOwned>(&self, make: MakeRequest) -> Result<R, WireError> {
        let over = || WireError::new(ErrorCode::LeaseExpired, "the session is over");
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Request(make, answer)).await.map_err(|_| over())?;
        let frame = answered.await.map_err(|_| over())??;
        let response: Response<R> = self.codec.decode(&frame)?;
        match (response.result, response.error) {
            (Some(result), _) => Ok(result),
            (None, Some(error)) => Err(error),
            (None, None) => Err(WireError::new(ErrorCode::Internal, "the broker's answer is empty")),
        }
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
