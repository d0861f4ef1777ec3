//! The daemon as a whole: started, watched, stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_kit::host::Doors;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::Config;
use crate::db::DbError;
use crate::disk::Disk;
use crate::home::{Home, HomeError};
use crate::hooks;
use crate::inbox::{Inbox, PutAside};
use crate::ipc::{self, Door};
use crate::listen;
use crate::outbox::Outbox;
use crate::recover::is_unfinished;
use crate::serve;
use crate::sessions::{SessionError, Sessions};
use crate::shared::{ASKING, REQUESTS, STREAMS, Shared};
use crate::stranded;
use crate::upkeep;
use crate::visits;

/// How long requests may take to be answered when the daemon stops.
pub(crate) const STOP: Duration = Duration::from_secs(5);

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory cannot be used, or another daemon has it.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The outbox cannot be used. It holds what was promised, so nothing goes on without it.
    #[error("open the outbox: {0}{hint}", hint = hint(.0))]
    Outbox(#[source] DbError),
    /// A new outbox is not in its place yet.
    #[error("a recovery of the outbox was interrupted; run `tenure daemon recover` to finish it")]
    Unrecovered,
    /// The inbox cannot be used.
    #[error("open the inbox: {0}")]
    Inbox(#[source] DbError),
    /// A session cannot be started.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The address cannot be listened on.
    #[error("listen on {0}: {1}")]
    Listen(String, #[source] std::io::Error),
}

/// What to do about an outbox that does not open.
fn hint(error: &DbError) -> &'static str {
    match error {
        DbError::Corrupt(_) => "; run `tenure daemon recover` to save what can be read",
        _ => "",
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    tcp: Option<SocketAddr>,
    put_aside: Option<PutAside>,
    /// Servers end by themselves once they are told to stop.
    servers: TaskTracker,
}

impl Daemon {
    /// Takes the directory, opens what it holds, joins the meshes and listens. When this returns, requests are
    /// answered; whether the broker can be reached is another matter.
    pub async fn start(config: Config) -> Result<Daemon, StartError> {
        let home = Home::hold(&config.home)?;
        let clock = Clock::start();
        if is_unfinished(home.path()) {
            return Err(StartError::Unrecovered);
        }
        let disk = Arc::new(Disk::open(home.path()));
        let outbox =
            Outbox::open_on(Arc::clone(&disk), home.path(), config.outbox_cap).map_err(StartError::Outbox)?;
        let (inbox, put_aside) =
            Inbox::open_on(disk, home.path(), config.inbox_cap, clock.wall()).map_err(StartError::Inbox)?;
        let tasks = TaskTracker::new();
        let sessions = Sessions::start(&config, &home, &tasks)?;
        let newest = inbox.newest().await.map_err(StartError::Inbox)?;
        let shared = Arc::new(Shared {
            clock,
            outbox,
            inbox,
            sessions,
            requests: Semaphore::new(REQUESTS),
            asking: Semaphore::new(ASKING),
            streams: Arc::new(Semaphore::new(STREAMS)),
            arrived: watch::channel(newest).0,
            stopping: CancellationToken::new(),
            tasks,
            token: OnceLock::new(),
            config,
            home,
        });
        let servers = TaskTracker::new();
        let tcp = match shared.config.tcp {
            Some(addr) => Some(serve_tcp(&shared, addr, &servers).await?),
            None => None,
        };
        let path = shared.home.socket();
        let listener =
            listen::unix(&path).map_err(|error| StartError::Listen(path.display().to_string(), error))?;
        let (patience, stopping) = (shared.config.patience, shared.stopping.clone());
        servers.spawn(serve::run(listener, ipc::router(&shared), patience, stopping));
        shared.tasks.spawn(upkeep::run(Arc::clone(&shared)));
        shared.tasks.spawn(visits::run(Arc::clone(&shared)));
        shared.tasks.spawn(stranded::tell(Arc::clone(&shared)));
        match shared.config.hooks.clone() {
            Some(dir) => drop(shared.tasks.spawn(hooks::run(Arc::clone(&shared), dir, newest))),
            None => hooks::forget(shared.home.path()),
        }
        shared.start_sessions();
        Ok(Daemon { shared, tcp, put_aside, servers })
    }

    /// The state that its tasks share.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.shared.home.socket()
    }

    /// Where it listens besides.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The damaged inbox that was put aside at the start, if there was one.
    pub fn put_aside(&self) -> Option<&PutAside> {
        self.put_aside.as_ref()
    }

    /// Waits until the daemon cannot do its work in any mesh any more, and says why in one sentence: a broker that does not
    /// promise enough, or will not have this member. Whoever runs it then ends with a code that is not zero. While one mesh
    /// is left it goes on, and what is for the others waits on the disk.
    pub async fn failed(&self) -> String {
        let own = self.shared.sessions.all().into_iter().filter(|local| local.own);
        let waits = own.map(|local| {
            let mut standing = local.standing.clone();
            async move {
                let failed = standing.wait_for(|standing| standing.lost().is_some()).await;
                match failed.ok().and_then(|standing| standing.why_not()) {
                    Some(why) => format!("mesh {}: {why}", local.mesh),
                    None => std::future::pending().await,
                }
            }
        });
        futures_util::future::join_all(waits).await.join("; ")
    }

    /// Stops in good order: no request is left half-answered, what was promised is on the disk, sessions stay as
    /// leases at the broker for the next start.
    pub async fn stop(self) {
        self.shared.stopping.cancel();
        self.servers.close();
        if tokio::time::timeout(STOP, self.servers.wait()).await.is_err() {
            tracing::warn!(event = "stop_incomplete", "some clients did not let go of their connections");
        }
        self.shared.stop_sessions().await;
        let _ = std::fs::remove_file(self.shared.home.socket());
    }
}

async fn serve_tcp(
    shared: &Arc<Shared>,
    addr: SocketAddr,
    servers: &TaskTracker,
) -> Result<SocketAddr, StartError> {
    let failed = |error| StartError::Listen(addr.to_string(), error);
    let listener = listen::tcp(addr).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let token = shared.home.secret(&shared.home.path().join("daemon.token"))?;
    let token: Arc<str> = token.trim().into();
    let _ = shared.token.set(Arc::clone(&token));
    let door = Door {
        doors: Arc::new(Doors::loopback(bound.port(), &[], &[]).also(&bound.to_string())),
        origins: shared.config.allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect(),
        token,
    };
    let (patience, stopping) = (shared.config.patience, shared.stopping.clone());
    servers.spawn(serve::run(listener, ipc::router_over_tcp(shared, door), patience, stopping));
    Ok(bound)
}
