//! How a command is in a mesh for a while: under which key, and what it says while the broker is away.

use std::time::Duration;

use tenure_client::proto::canonical::session_key;
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::proto::event::EventBody;
use tenure_client::proto::limits::MAX_PAYLOAD_BYTES_FLOOR;
use tenure_client::proto::log::LogName;
use tenure_client::proto::peer::{Peer, Profile, Status};
use tenure_client::{
    End, Events, InboxChoice, Options, ReconcilePolicy, Session, SessionEvent, SubEnd, random_key,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::way::not_the_daemons;
use super::{Where, hostname};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{safe, sentence};
use crate::signals::Signals;

/// What marks a session that is only a command passing by. Nobody means it by a display name.
pub(crate) const VISIT: &str = "visit";
/// How long a goodbye may take: whoever waits for the command to end does not wait for a broker that is away.
const GOODBYE: Duration = Duration::from_secs(3);
/// How long what is done last may take, such as the last acks, when a command was asked to end.
const LAST_THINGS: Duration = Duration::from_secs(2);

/// As which session a command speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who<'a> {
    /// One of its own that nobody else has, and that ends with it.
    Visit(&'a str),
    /// One of its own that others can mean by its name, and that ends with it.
    Own(&'a str),
    /// The session called so, whose key is kept on this machine.
    Named(&'a str),
    /// The member's own, with the member's key.
    Member,
}

/// What a command wants while it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stay {
    /// Which inboxes it reads.
    pub(crate) inbox: InboxChoice,
    /// What peers see of its mood; it decides what an inbox hands out.
    pub(crate) status: Status,
    /// How long a request may take, breaks included.
    pub(crate) patience: Duration,
    /// Whether breaks are worth a word on stderr.
    pub(crate) talks: bool,
    /// Whether it answers runs.
    pub(crate) serves: bool,
}

impl Default for Stay {
    fn default() -> Stay {
        let (inbox, status) = (InboxChoice::None, Status::Idle);
        Stay { inbox, status, patience: Duration::from_secs(30), talks: false, serves: false }
    }
}

/// A session that a command holds; its events are read all the time, so that it never stops the socket.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) session: Session,
    events: JoinHandle<()>,
    attached: watch::Receiver<bool>,
    max_payload: watch::Receiver<usize>,
    /// Why the session is over, once it is.
    end: watch::Receiver<Option<End>>,
}

impl Where {
    /// Joins, or says why that came to nothing.
    pub(crate) async fn enter(&self, who: Who<'_>, stay: Stay) -> Result<Guest, Failure> {
        if matches!(who, Who::Member) {
            not_the_daemons(self).await?;
        }
        let home = Home::find()?;
        let (member, user) = (home.member_key()?, user());
        let (name, key) = match who {
            Who::Visit(name) | Who::Own(name) => (name, Some(random_key()?)),
            Who::Named(name) => (name, Some(home.session_key(self.mesh(), name)?)),
            Who::Member => (user.as_str(), None),
        };
        let tags = if matches!(who, Who::Visit(_)) { vec![VISIT.to_owned()] } else { Vec::new() };
        let profile = Profile { host: hostname(), status: stay.status, tags, ..Profile::named(name) };
        let mut options = self.bringing(Options::new(self.broker(), member, name)?)?;
        if let Some(key) = key {
            options = options.session_key(key);
        }
        if stay.serves {
            options = options.serve_runs();
        }
        let options = options
            .mesh(self.mesh())?
            .profile(profile)?
            .inbox(stay.inbox)
            .reconcile_policy(ReconcilePolicy::RestoreClient)
            .timeout_ms(u64::try_from(stay.patience.as_millis()).unwrap_or(u64::MAX))
            .client("tenure", env!("CARGO_PKG_VERSION"));
        let (session, events) = self.connect(options).await?;
        let (tell, attached) = watch::channel(true);
        let (tell_payload, max_payload) = watch::channel(MAX_PAYLOAD_BYTES_FLOOR);
        let (tell_end, end) = watch::channel(None);
        let talks = stay.talks;
        let events = tokio::spawn(async move {
            let end = listen(events, tell, tell_payload, talks).await;
            tell_end.send_replace(Some(end));
        });
        Ok(Guest { session, events, attached, max_payload, end })
    }

    /// Joins for a few questions.
    pub(crate) async fn ask(&self, name: &str) -> Result<Guest, Failure> {
        self.enter(Who::Visit(name), Stay::default()).await
    }

    /// Joins for questions about `log`: as the session called `name` if there is one, as the member's own if that
    /// is whose inbox it is, and otherwise as nobody in particular.
    pub(crate) async fn ask_about(
        &self,
        log: &LogName,
        name: Option<&str>,
        visit: &str,
    ) -> Result<Guest, Failure> {
        let own = session_key(&Home::find()?.member_key()?);
        let who = match (name, log) {
            (Some(name), _) => Who::Named(name),
            (None, LogName::Session(key)) if *key == own => Who::Member,
            (None, _) => Who::Visit(visit),
        };
        self.enter(who, Stay::default()).await
    }
}

/// Reads events until the session is over; says why it is.
async fn listen(
    mut events: Events,
    attached: watch::Sender<bool>,
    max_payload: watch::Sender<usize>,
    talks: bool,
) -> End {
    let mut told = false;
    loop {
        let event = match events.next().await {
            Ok(event) => event,
            Err(end) => return end,
        };
        match event {
            SessionEvent::Attached(hello) => {
                let bytes = hello.policy.max_payload.get();
                max_payload.send_replace(usize::try_from(bytes).unwrap_or(usize::MAX));
                attached.send_replace(true);
                if talks && std::mem::take(&mut told) {
                    eprintln!("the broker is back");
                }
            }
            SessionEvent::Detached { .. } => _ = attached.send_replace(false),
            SessionEvent::Waiting { reason, .. } => {
                attached.send_replace(false);
                if talks && !std::mem::replace(&mut told, true) {
                    eprintln!("waiting for the broker: {}", sentence(&reason));
                }
            }
            SessionEvent::HistoryRewound { logs } => eprintln!("{}", rewound(&logs)),
            SessionEvent::Event { body, .. } => {
                if let EventBody::Notice(notice) = *body {
                    eprintln!("notice: {}: {}", safe(&notice.code), sentence(&notice.message));
                }
            }
        }
    }
}

/// What somebody at a terminal is told when the broker's store came back with another history.
pub(crate) fn rewound(logs: &[String]) -> String {
    let logs: Vec<String> = logs.iter().map(|log| safe(log)).collect();
    format!(
        "history rewound: the broker's store was wiped, restored or kept in memory only; reading again: {}",
        logs.join(", ")
    )
}

impl Guest {
    /// Everybody who is here to stay: without ourselves and other commands.
    pub(crate) async fn peers(&self) -> Result<Vec<Peer>, Failure> {
        let mut peers = self.session.peers(false).await.map_err(|error| self.failure(&error))?;
        let own = self.session.key();
        peers.retain(|peer| peer.session != own && !peer.tags.iter().any(|tag| tag == VISIT));
        Ok(peers)
    }

    /// Bytes of a body, or of a result, that the broker takes; what every broker takes, until it has said so.
    pub(crate) fn max_payload(&self) -> watch::Receiver<usize> {
        self.max_payload.clone()
    }

    /// What a refusal means for the exit code: one that no broker made is a broker that is away.
    pub(crate) fn failure(&self, error: &WireError) -> Failure {
        if error.code == ErrorCode::Unavailable && !*self.attached.borrow() {
            Failure::Unreachable(format!("the broker is away: {}", sentence(&error.message)))
        } else {
            Failure::Refused(format!("{}: {}", error.code, sentence(&error.message)))
        }
    }

    /// Waits until the session is over though nobody here wanted that: it was kicked, banned, or taken over. Cancel-safe.
    pub(crate) async fn over(&self) -> End {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            // Nobody reads events any more: the command is about to end.
            _ => std::future::pending().await,
        }
    }

    /// Does something last that needs the broker, while that is there and for a short time at most; nothing, if it was not done.
    pub(crate) async fn at_last<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut attached = self.attached.clone();
        // The work is not resumed after it loses, so it need not be cancel-safe; the others only wait.
        tokio::select! {
            biased;
            done = work => Some(done),
            _ = attached.wait_for(|attached| !attached) => None,
            () = tokio::time::sleep(LAST_THINGS) => None,
        }
    }

    /// Says goodbye, and waits until the broker has heard it. One that is away is not waited for.
    pub(crate) async fn leave(self) {
        self.session.bye().await;
        let _ = tokio::time::timeout(GOODBYE, self.events).await;
    }

    /// Says goodbye, and waits for that only while there is somebody to hear it and nobody who is in a hurry.
    pub(crate) async fn leave_soon(self, signals: &mut Signals) {
        if *self.attached.borrow() && !signals.insist() {
            // The goodbye is not resumed after a signal, so it need not be cancel-safe.
            tokio::select! {
                () = self.leave() => {}
                () = signals.recv() => {}
            }
        }
    }

    /// Says goodbye whatever came of the work, and gives that.
    pub(crate) async fn leave_with<T>(self, outcome: Result<T, WireError>) -> Result<T, Failure> {
        let outcome = outcome.map_err(|error| self.failure(&error));
        self.leave().await;
        outcome
    }
}

/// What the end of a stream means, its text made safe for a terminal.
pub(crate) fn ended(end: SubEnd) -> Failure {
    match Failure::from(end) {
        Failure::Refused(text) => Failure::Refused(sentence(&text)),
        other => other,
    }
}

/// Who sits here, for others to see.
pub(crate) fn user() -> String {
    let var = |name| std::env::var(name).ok().filter(|name: &String| !name.is_empty());
    var("USER").or_else(|| var("LOGNAME")).unwrap_or_else(|| "tenure".to_owned())
}
