//! What the tasks of a daemon share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_kit::secret;
use tenure_outbox::LaneId;
use tenure_proto::ids::SessionKey;
use tenure_proto::name::MeshName;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::Config;
use crate::drain;
use crate::home::Home;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::reader;
use crate::sessions::{Local, SessionError, Sessions};

/// Requests that are worked on at once.
pub(crate) const REQUESTS: usize = 64;
/// Of those, requests that wait for the broker.
pub(crate) const ASKING: usize = 32;
/// Streams of events that are open at once.
pub(crate) const STREAMS: usize = 32;

/// How long the last words of tasks may take when the daemon stops.
const STOP: Duration = Duration::from_secs(5);

/// What the tasks of a daemon share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) sessions: Sessions,
    pub(crate) requests: Semaphore,
    pub(crate) asking: Semaphore,
    pub(crate) streams: Arc<Semaphore>,
    /// The number of the newest letter.
    pub(crate) arrived: watch::Sender<u64>,
    pub(crate) stopping: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// What calls over TCP must bring, if they may come.
    pub(crate) token: OnceLock<Arc<str>>,
    /// Last: files are closed before the directory is let go.
    pub(crate) home: Home,
}

impl Shared {
    /// Whether a query string has a token of ours in it, whatever it is called there.
    pub(crate) fn token_in(&self, query: &str) -> bool {
        let shown = |token: &str| secret::shown_in_query(token, query);
        self.token.get().is_some_and(|token| shown(token))
            || self.sessions.all().iter().any(|local| shown(&local.token()))
    }

    /// Lets the daemon's own sessions, and every other that there was, do their work.
    pub(crate) fn start_sessions(self: &Arc<Self>) {
        for local in self.sessions.all() {
            self.start_session(local);
        }
    }

    /// The session called `name`, at work.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        mesh: &MeshName,
        name: &str,
    ) -> Result<Arc<Local>, SessionError> {
        let local = self.sessions.make(&self.home, mesh, name)?;
        self.start_session(Arc::clone(&local));
        Ok(local)
    }

    /// A visit called `name`, at work.
    pub(crate) fn open_visit(
        self: &Arc<Self>,
        mesh: &MeshName,
        name: &str,
    ) -> Result<Arc<Local>, SessionError> {
        let local = self.sessions.visit(mesh, name)?;
        self.start_session(Arc::clone(&local));
        Ok(local)
    }

    /// Takes a session up again that is over.
    pub(crate) fn revive_session(self: &Arc<Self>, over: &Local) -> Result<(), SessionError> {
        let local = self.sessions.revive(&self.home, over)?;
        tracing::warn!(event = "session_revived", session = %local.key, "it was over, and is taken up again");
        self.start_session(local);
        Ok(())
    }

    fn start_session(self: &Arc<Self>, local: Arc<Local>) {
        if local.at_work.swap(true, Ordering::Relaxed) {
            return;
        }
        reader::start(self, &local);
        self.tasks.spawn(drain::run(Arc::clone(self), Arc::clone(&local)));
        tracing::info!(event = "session_started", session = %local.key, mesh = %local.mesh, name = local.name);
    }

    /// A row is on the disk: its sender's drain hears of it; that of the daemon's own session, if the sender is not
    /// here any more.
    pub(crate) fn queued(&self, mesh: &MeshName, sender: &SessionKey, lane: LaneId) {
        let tell = |local: Arc<Local>| local.queue.push(lane);
        // Twice: it may just have gone, or become another.
        let told = (0..2).any(|_| self.sessions.get(mesh, sender).is_some_and(tell));
        if !told && let Some(own) = self.sessions.own(mesh) {
            tell(own);
        }
    }

    /// Ends what works for sessions; their leases stay at the broker for the next start, but for visits.
    pub(crate) async fn stop_sessions(&self) {
        let sessions = self.sessions.all();
        sessions.iter().for_each(|local| local.leaving.cancel());
        self.tasks.close();
        if tokio::time::timeout(STOP, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                event = "stop_incomplete",
                "not everything was written down in time; it is sent again"
            );
        }
        for local in sessions {
            match local.visit {
                Some(_) => local.client.bye().await,
                None => local.client.part().await,
            }
        }
    }
}
