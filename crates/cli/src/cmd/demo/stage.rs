//! What the demonstration runs on: a broker on a real store, and three sessions each behind a proxy of its own.

use std::time::Duration;

use tempfile::TempDir;
use tenure_broker::{Broker, Config, StoreChoice};
use tenure_client::proto::SessionKey;
use tenure_client::{Options, Session, random_key};
use tokio::sync::mpsc;

use super::score::NAMES;
use super::watcher::{self, News};
use crate::exit::Failure;
use crate::flaky::{Fault, Flaky};

/// How long the three may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// News that may wait to be heard; a session's task waits when there are more.
const NEWS: usize = 64;

pub(super) struct Stage {
    // In the order in which they go: sessions before their proxies, the broker before its directory.
    sessions: Vec<Session>,
    proxies: Vec<Flaky>,
    news: mpsc::Receiver<(usize, News)>,
    broker: Broker,
    dir: TempDir,
}

impl Stage {
    /// Starts everything and waits until all three sessions are in.
    pub(super) async fn set() -> Result<Stage, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("tenure-demo-")
            .tempdir()
            .map_err(|error| Failure::Failed(format!("make a temporary directory: {error}")))?;
        let broker = Broker::start(config(&dir)).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let member = random_key()?;
        let (told, news) = mpsc::channel(NEWS);
        let (mut proxies, mut joined) = (Vec::new(), Vec::new());
        for name in NAMES {
            let proxy = Flaky::start(broker.addr())
                .map_err(|error| Failure::Failed(format!("start a proxy: {error}")))?;
            let url = format!("ws://{}", proxy.addr());
            let options = Options::new(&url, member.clone(), name)?.session_key(random_key()?);
            let connecting = Box::pin(Session::connect(options));
            let connected = tokio::time::timeout(PATIENCE, connecting).await;
            joined.push(connected.map_err(|_| Failure::Failed(format!("{name} could not join in time")))??);
            proxies.push(proxy);
        }
        let keys: Vec<SessionKey> = joined.iter().map(|(session, _)| session.key()).collect();
        let mut sessions = Vec::new();
        for (index, (session, events)) in joined.into_iter().enumerate() {
            tokio::spawn(watcher::watch(index, session.clone(), events, keys.clone(), told.clone()));
            sessions.push(session);
        }
        Ok(Stage { sessions, proxies, news, broker, dir })
    }

    /// The next thing that a session has to say. Cancel-safe.
    pub(super) async fn news(&mut self) -> (usize, News) {
        match self.news.recv().await {
            Some(news) => news,
            // Nobody is left to say anything; each has said so.
            None => std::future::pending().await,
        }
    }

    /// Breaks whatever carries this session now.
    pub(super) fn break_connection(&self, index: usize, fault: Fault) {
        if let Some(proxy) = self.proxies.get(index) {
            proxy.break_all(fault);
        }
    }

    pub(super) fn keys(&self) -> Vec<SessionKey> {
        self.sessions.iter().map(Session::key).collect()
    }

    /// Sends everybody home and removes every trace.
    pub(super) async fn strike(self) {
        let Stage { sessions, proxies, mut news, broker, dir } = self;
        let farewell = async {
            for session in &sessions {
                session.bye().await;
            }
            drop(sessions);
            while news.recv().await.is_some() {}
            drop(proxies);
            broker.stop("the demonstration is over").await;
        };
        // What does not end in time ends with the process.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        drop(dir);
    }
}

/// A broker whose times are those of a demonstration: a lease of 6 s where the default is 90 s.
fn config(dir: &TempDir) -> Config {
    let mut config = Config::ephemeral(6_000);
    config.store = StoreChoice::Sqlite(dir.path().join("broker"));
    config.mesh.ping_interval_ms = 500;
    config.mesh.stale_after_ms = 1_500;
    config.mesh.tick_interval_ms = 500;
    // The sessions name their proxies as the host.
    config.public_hosts = vec!["127.0.0.1:*".to_owned()];
    config
}
