//! Which sockets and streams are there, and the end of those that must end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tenure_kit::Millis;
use tenure_mesh::conn::buffers::Holding;
use tenure_mesh::services::route::By;
use tenure_mux::{Load, Mux};
use tenure_proto::ids::SessionKey;
use tenure_proto::name::{MeshName, ServiceName};
use tenure_proto::service::RelayRole;
use tokio::sync::Notify;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::routes::Cut;
use crate::shared::Shared;

/// Sockets of one session at the end that asks: one for each service that it uses.
const ASKING_SOCKETS: usize = 64;

/// What ends a stream from outside.
#[derive(Clone, Debug, Default)]
pub(crate) struct CutLine(Arc<(CancellationToken, OnceLock<&'static str>)>);

impl CutLine {
    fn cut(&self, reason: &'static str) {
        let _ = self.0.1.set(reason);
        self.0.0.cancel();
    }

    fn is_over(&self) -> bool {
        self.0.0.is_cancelled()
    }

    /// Waits until it is cut; says why. Cancel-safe.
    pub(crate) async fn is_cut(&self) -> &'static str {
        self.0.0.cancelled().await;
        self.0.1.get().copied().unwrap_or("cut")
    }
}

/// A session, and the mesh that it is in: two meshes may know one key.
pub(crate) type Whose = (MeshName, SessionKey);

#[derive(Debug)]
struct Socket {
    session: Whose,
    role: RelayRole,
    mux: Mux,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Live {
    publisher: Whose,
    /// Who asks; if that is a session, one of the same mesh.
    by: By,
    name: ServiceName,
    line: CutLine,
    /// What it holds: one for each of its ends that a socket of ours carries.
    loads: Vec<Arc<Load>>,
}

impl Live {
    fn bytes(&self) -> usize {
        self.loads.iter().map(|load| load.bytes()).sum()
    }

    /// How long nothing of what it holds has left, in milliseconds.
    fn idle(&self) -> u64 {
        let holding = self.loads.iter().filter(|load| load.bytes() > 0);
        let idle = holding.map(|load| load.idle()).max().unwrap_or_default();
        u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    /// One of each session that publishes, and at most [`ASKING_SOCKETS`] of each that asks.
    sockets: BTreeMap<u64, Socket>,
    /// As many as meshes count.
    streams: BTreeMap<u64, Live>,
    /// Streams of consumers that wait for a publisher's: at most as many as their sockets carry.
    waiting: BTreeMap<u64, (CutLine, Arc<Load>)>,
}

/// The sockets and streams of a relay. The lock is held for a moment, never across an await.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    inner: Mutex<Inner>,
    /// Rung when a socket of a publisher has come.
    came: Notify,
}

impl Streams {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket has come; nothing when its session has as many as it may. A publisher's newest takes the place of the
    /// one before it, which is gone or is about to notice that it is.
    pub(crate) fn attach(
        shared: &Arc<Shared>,
        session: Whose,
        role: RelayRole,
        mux: Mux,
        stop: CancellationToken,
    ) -> Option<Attached> {
        let this = &shared.relay.streams;
        let id = {
            let mut inner = this.inner();
            let ours = inner.sockets.values().filter(|s| s.session == session && s.role == role);
            match role {
                RelayRole::Publish => ours.for_each(|socket| socket.stop.cancel()),
                RelayRole::Connect if ours.count() >= ASKING_SOCKETS => return None,
                RelayRole::Connect => {}
            }
            inner.last += 1;
            let id = inner.last;
            inner.sockets.insert(id, Socket { session, role, mux, stop });
            id
        };
        this.came.notify_waiters();
        Some(Attached { shared: shared.clone(), id })
    }

    /// The socket of whoever answers as `session`; waits until there is one. Bound it in time. Cancel-safe.
    pub(crate) async fn publisher(&self, session: &Whose) -> Mux {
        loop {
            let came = self.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            if let Some(mux) = self.find(session) {
                return mux;
            }
            came.await;
        }
    }

    fn find(&self, session: &Whose) -> Option<Mux> {
        let inner = self.inner();
        let publishes = |socket: &&Socket| {
            socket.session == *session && socket.role == RelayRole::Publish && !socket.mux.is_gone()
        };
        inner.sockets.values().rev().find(publishes).map(|socket| socket.mux.clone())
    }

    /// A stream begins, to `name` of `publisher`.
    pub(crate) fn enter(shared: &Arc<Shared>, publisher: &Whose, by: By, name: &ServiceName) -> Entered {
        let line = CutLine::default();
        let mut inner = shared.relay.streams.inner();
        inner.last += 1;
        let id = inner.last;
        let (publisher, name) = (publisher.clone(), name.clone());
        let loads = Vec::new();
        inner.streams.insert(id, Live { publisher, by, name, line: line.clone(), loads });
        gauge(shared).set(inner.streams.len() as i64);
        drop(inner);
        Entered { shared: shared.clone(), id, line }
    }

    /// A consumer's stream waits for its publisher's, and holds what came for that.
    pub(crate) fn wait(shared: &Arc<Shared>, load: Arc<Load>) -> Waiting {
        let line = CutLine::default();
        let mut inner = shared.relay.streams.inner();
        inner.last += 1;
        let id = inner.last;
        inner.waiting.insert(id, (line.clone(), load));
        drop(inner);
        Waiting { shared: shared.clone(), id, line }
    }

    /// What each stream holds that goes on.
    pub(crate) fn holdings(&self, now: Millis) -> Vec<Holding<u64>> {
        let inner = self.inner();
        let live = inner.streams.iter().filter(|(_, live)| !live.line.is_over());
        let holding = |(id, live): (&u64, &Live)| {
            let (bytes, since) = (live.bytes(), Millis(now.0.saturating_sub(live.idle())));
            (bytes > 0).then_some(Holding { holder: *id, bytes, since })
        };
        let waiting = |(id, (line, load)): (&u64, &(CutLine, Arc<Load>))| {
            let idle = u64::try_from(load.idle().as_millis()).unwrap_or(u64::MAX);
            let (bytes, since) = (load.bytes(), Millis(now.0.saturating_sub(idle)));
            (bytes > 0 && !line.is_over()).then_some(Holding { holder: *id, bytes, since })
        };
        live.filter_map(holding).chain(inner.waiting.iter().filter_map(waiting)).collect()
    }

    /// Ends a stream whose ends do not take what it holds; says how much that is.
    pub(crate) fn let_go(&self, id: u64) -> Option<usize> {
        let inner = self.inner();
        let live = inner.streams.get(&id).map(|live| (&live.line, live.bytes()));
        let waiting = || inner.waiting.get(&id).map(|(line, load)| (line, load.bytes()));
        let (line, bytes) = live.or_else(waiting)?;
        line.cut("it held too much that was not taken");
        Some(bytes)
    }

    /// Ends what must end in `mesh`; says how many streams that were.
    fn cut(&self, mesh: &MeshName, cut: &Cut) -> usize {
        let inner = self.inner();
        let hit = |live: &&Live| match cut {
            _ if live.publisher.0 != *mesh => false,
            Cut::Of { session, name: Some(name), .. } => live.publisher.1 == *session && live.name == *name,
            Cut::Of { session, name: None, .. } => {
                live.publisher.1 == *session || live.by == By::Session(*session)
            }
            Cut::From(network) => matches!(live.by, By::Address(from) if network.holds(from)),
        };
        let reason = match cut {
            Cut::Of { reason, .. } => reason,
            Cut::From(_) => "banned",
        };
        let lines = inner.streams.values().filter(hit).map(|live| live.line.cut(reason)).count();
        if let Cut::Of { session, name: None, .. } = cut {
            let its = |socket: &&Socket| socket.session.0 == *mesh && socket.session.1 == *session;
            inner.sockets.values().filter(its).for_each(|socket| socket.stop.cancel());
        }
        lines
    }

    fn cut_all(&self, mesh: &MeshName, reason: &'static str) {
        let inner = self.inner();
        inner
            .streams
            .values()
            .filter(|live| live.publisher.0 == *mesh)
            .for_each(|live| live.line.cut(reason));
        inner.sockets.values().filter(|socket| socket.session.0 == *mesh).for_each(|s| s.stop.cancel());
    }
}

fn gauge(shared: &Shared) -> &Gauge {
    &shared.metrics.relay_streams
}

/// A socket that is there until this is dropped.
#[derive(Debug)]
pub(crate) struct Attached {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.shared.relay.streams.inner().sockets.remove(&self.id);
    }
}

/// A stream that is there until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    shared: Arc<Shared>,
    id: u64,
    pub(crate) line: CutLine,
}

impl Entered {
    /// It also holds what this says.
    pub(crate) fn holds(&self, load: Arc<Load>) {
        if let Some(live) = self.shared.relay.streams.inner().streams.get_mut(&self.id) {
            live.loads.push(load);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut inner = self.shared.relay.streams.inner();
        inner.streams.remove(&self.id);
        gauge(&self.shared).set(inner.streams.len() as i64);
    }
}

/// A consumer's stream that waits; over when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    id: u64,
    pub(crate) line: CutLine,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.relay.streams.inner().waiting.remove(&self.id);
    }
}

/// Cuts what a mesh says must end, until it says nothing more.
pub(crate) async fn listen_for_cuts(shared: Arc<Shared>, mesh: MeshName, mut cuts: Receiver<Cut>) {
    let stop = shared.stopping.clone();
    loop {
        // Both are cancel-safe.
        let cut = tokio::select! {
            cut = cuts.recv() => cut,
            () = stop.cancelled() => return,
        };
        match cut {
            Ok(cut) => {
                let streams = shared.relay.streams.cut(&mesh, &cut);
                match cut {
                    _ if streams == 0 => {}
                    Cut::Of { session, reason, .. } => {
                        tracing::info!(event = "streams_cut", %mesh, %session, reason, streams);
                    }
                    Cut::From(network) => {
                        tracing::info!(event = "streams_cut", %mesh, %network, reason = "banned", streams);
                    }
                }
            }
            // Nobody knows which: rather all than one that must not go on.
            Err(RecvError::Lagged(_)) => shared.relay.streams.cut_all(&mesh, "too many were cut at once"),
            Err(RecvError::Closed) => return,
        }
    }
}
