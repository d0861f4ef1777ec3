//! The Tenure server: a shell around the rules of `tenure-mesh`.
//!
//! What this crate is for: sockets, timers, the store's writer thread, HTTP health and metrics. It parses bytes,
//! calls the rules, carries out effects. [`Broker::start`] is the way in.
//!
//! What it promises: no lock is held across an await; one task owns a mesh's state and never waits for a socket;
//! every queue has a bound; several brokers run in one process without sharing anything.
//!
//! What it never does: decide. Whether a hello is admitted, a lease has ended or a socket is stale is asked of
//! the rules.
//!
//! Where to read next: [`config`] for the knobs, `mesh_task` for the owner of the state, `socket` for what carries
//! one connection, `writer` for the store.

mod admin;
mod checkpoint;
mod checks;
mod clock;
pub mod config;
mod connections;
mod descriptors;
mod entropy;
mod guard;
mod http;
mod listen;
mod log;
mod mailbox;
mod mesh_task;
mod meshes;
mod metrics;
mod peer;
mod reader;
mod relay;
mod routes;
mod shared;
mod socket;
mod stop;
mod syncing;
mod tls;
mod writer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ed25519_dalek::SigningKey;
use tenure_kit::clock::Clocks;
use tenure_kit::host::Doors;
use tenure_mesh::House;
use tenure_proto::name::MeshName;
use tenure_store::{Identity, Memory, Sqlite, Store, StoreError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use connections::Connections;
use meshes::Maker;
use shared::Shared;
use tls::Tls;

pub use admin::document;
pub use config::{Config, ConfigProblem, RawConfig, RawDays, StoreChoice};
pub use relay::RelayConfig;
pub use stop::{DEADLINE_MAX_MS, Hurry, RESTART_IN_MAX_MS, Stop, Stopping};
pub use tenure_mesh::access::setting::resolved as setting_name;
pub use tls::TlsProblem;

/// The one mesh of a broker that runs open on loopback.
const OPEN_MESH: &str = "default";

/// The meshes to begin with: those that somebody made, or the one that is open to this machine; and whether it is that.
fn mesh_names(store: &mut dyn Store, config: &Config) -> Result<(Vec<MeshName>, bool), StartError> {
    let made = store.meshes()?;
    if !made.is_empty() {
        return Ok((made, false));
    }
    if !config.listen.ip().is_loopback() {
        return Err(StartError::NoMesh(config.listen));
    }
    let open = OPEN_MESH.parse().map_err(|_| StartError::Store(StoreError::Corrupt("mesh".into())))?;
    Ok((vec![open], true))
}

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store would not open.
    #[error("open the store: {0}")]
    Store(#[from] StoreError),
    /// The address cannot be listened on.
    #[error("listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// Anybody who can reach the address could join.
    #[error(
        "{0} can be reached from elsewhere, and this broker has no mesh yet: start it on 127.0.0.1, make one with \
         `tenure mesh create NAME`, then start it here"
    )]
    NoMesh(SocketAddr),
    /// The system gave no randomness.
    #[error("draw randomness: {0}")]
    Entropy(getrandom::Error),
    /// The certificate cannot be used.
    #[error("use the certificate: {0}")]
    Tls(#[from] TlsProblem),
    /// The operator's token cannot be kept.
    #[error("keep the operator's token: {0}")]
    Token(#[source] std::io::Error),
    /// A thread would not start.
    #[error("start a thread for the store: {0}")]
    Thread(#[source] std::io::Error),
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    addr: SocketAddr,
    relay_addr: Option<SocketAddr>,
    tasks: TaskTracker,
    /// Ends with the listener, when the broker stops.
    listening: JoinHandle<TcpListener>,
    /// The store's: they end when the meshes' tasks have.
    threads: Vec<std::thread::JoinHandle<()>>,
    tls: Option<Arc<Tls>>,
    open: bool,
}

impl Broker {
    /// Opens the store, restores what it remembers, and listens. When this returns, the broker is ready.
    pub async fn start(config: Config) -> Result<Broker, StartError> {
        let mut store: Box<dyn Store> = match &config.store {
            StoreChoice::Memory => Box::new(Memory::new()),
            StoreChoice::Sqlite(dir) => Box::new(Sqlite::open(dir)?),
        };
        let clock = clock::Clock::start();
        let identity = store.identity(&fresh_identity(config.resume_key)?)?;
        let key = SigningKey::from_bytes(&config.resume_key.unwrap_or(identity.broker_key));
        let (names, open) = mesh_names(store.as_mut(), &config)?;
        let now = clock.now();
        let run = store.begin_run(now.wall)?;
        let clocks = Clocks::at_start(now, run.believed_at);
        let restore = |name: &MeshName| meshes::restore(store.as_mut(), name.clone(), run.number);
        let beginnings = names.iter().map(restore).collect::<Result<Vec<_>, _>>()?;
        let listener = listen::bind(config.listen).map_err(|e| StartError::Listen(config.listen, e))?;
        let addr = listener.local_addr().map_err(|e| StartError::Listen(config.listen, e))?;
        let relay = relay_listener(&config)?;
        let doors = Doors::loopback(addr.port(), &config.public_hosts, &config.allowed_origins)
            .also(&addr.to_string());
        let kind = store.kind();
        let readers = (0..reader::READERS).map(|_| store.reader()).collect::<Result<Vec<_>, _>>()?;
        let (checkpointer, guard) = (store.checkpointer()?, store.guard()?);
        let checker = store.reader()?;
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let tasks = TaskTracker::new();
        let house = House {
            broker_id: House::id_of(&key),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: identity.cluster_id,
            key,
            secure: config.tls.is_some() || config.behind_proxy,
            relay: relay.as_ref().map(|(_, addr)| relay::address(config.relay.domains.example(), *addr)),
            doors,
            rooms: BTreeMap::new(),
            config: Arc::new(config.mesh.clone()),
        };
        let operator = admin::token::operator(&config).map_err(StartError::Token)?;
        let (boot, files) = ((run.number, random()?), descriptors::raise());
        let shared = Shared::new(config, (clock, clocks), house, operator, boot, kind, files);
        let (bell, checkpoints) =
            checkpoint::start(checkpointer, shared.clone()).map_err(StartError::Thread)?;
        let (watching, guarding) = guard::start(guard, shared.clone()).map_err(StartError::Thread)?;
        let (readers, mut threads) = reader::start(readers, &shared).map_err(StartError::Thread)?;
        let (writer, thread) = writer::start(store, run.number, shared.clone(), bell.with(watching))?;
        threads.push(thread);
        threads.extend(checkpoints.into_iter().chain(guarding));
        threads.push(checks::start(checker, shared.clone()).map_err(StartError::Thread)?);
        let maker = Maker { run: run.number, writer, readers, tasks: tasks.clone() };
        for beginning in beginnings {
            maker.start(&shared, beginning);
        }
        shared.meshes.set_maker(maker);
        if let Some(tls) = &tls {
            tasks.spawn(tls::watch(tls.clone(), shared.stopping.clone()));
        }
        tasks.spawn(Connections::watch(shared.clone()));
        let listen = listen::run(listener, shared.clone(), tls.clone(), tasks.clone());
        let listening = tasks.spawn(tokio::task::unconstrained(listen));
        let relay_addr = relay.as_ref().map(|(_, addr)| *addr);
        if let Some((listener, addr)) = relay {
            tracing::info!(event = "relay_listening", %addr);
            tasks.spawn(relay::run(listener, shared.clone(), tasks.clone()));
        }
        shared.ready.store(true, Ordering::Release);
        Ok(Broker { shared, addr, relay_addr, tasks, listening, threads, tls, open })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// For whoever stops it and cannot wait.
    pub fn hurry(&self) -> Hurry {
        Hurry(self.shared.clone())
    }

    /// Where services are reached over HTTP, if anywhere.
    pub fn relay_addr(&self) -> Option<SocketAddr> {
        self.relay_addr
    }

    /// Whether it began with a mesh that any key of this machine may join.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Reads the certificate again now, if there is one. One that cannot be used leaves the old one in place, and is logged.
    pub fn reload(&self) {
        if let Some(tls) = &self.tls {
            tls.reload();
        }
    }

    /// Waits until an operator has asked it to stop. It drains from then on; [`Broker::stop`] sees it to the end.
    pub async fn told_to_stop(&self) -> Stopping {
        let mut stop = self.shared.stop.subscribe();
        match stop.wait_for(Option::is_some).await.map(|stopping| stopping.clone()) {
            Ok(Some(stopping)) => stopping,
            // The sender is ours: it does not go before we do.
            _ => std::future::pending().await,
        }
    }

    /// Stops in good order, promising what is configured; what was begun before goes on as it was.
    pub async fn stop(self, reason: &str) {
        let restart_in_ms = self.shared.config.restart_in_ms;
        let reason = reason.to_owned();
        self.stop_as(Stop { reason, restart_in_ms, ..Stop::default() }).await;
    }

    /// Stops in good order: new sessions are turned away, everybody is told, what is on its way arrives, leases
    /// stay in the store for the next start. Who is told to stop twice does what it was told first.
    pub async fn stop_as(mut self, stop: Stop) {
        let drained = self.shared.drained.notified();
        if self.shared.begin_stop(stop).await.is_some() {
            drained.await;
        }
        self.shared.stopping.cancel();
        self.shared.meshes.stop();
        self.shared.checks.end();
        self.tasks.close();
        self.tasks.wait().await;
        // Whoever dials while the store closes is not told that nobody is here before that is so.
        let listener = self.listening.await;
        let threads = std::mem::take(&mut self.threads);
        // They end when the mesh's task has dropped their queues; the writer has only to sync what is left.
        let join = move || threads.into_iter().for_each(|thread| _ = thread.join());
        let _ = tokio::task::spawn_blocking(join).await;
        drop(listener);
    }
}

/// Listens for whoever wants services over HTTP, if that is configured.
fn relay_listener(config: &Config) -> Result<Option<(TcpListener, SocketAddr)>, StartError> {
    let Some(wanted) = config.relay.listen else { return Ok(None) };
    let problem = |error| StartError::Listen(wanted, error);
    let listener = listen::bind(wanted).map_err(problem)?;
    let addr = listener.local_addr().map_err(problem)?;
    Ok(Some((listener, addr)))
}

/// A broker without its mesh would look alive and answer nobody: it is better dead, and started again.
pub(crate) async fn die_with(mesh: tokio::task::JoinHandle<()>) {
    if mesh.await.is_err_and(|error| error.is_panic()) {
        // Whatever becomes of the words: what killed the mesh may be that nothing can be logged.
        let _end = Abort;
        tracing::error!(
            event = "mesh_panicked",
            "this is a bug; the broker stops so that it can be started again"
        );
    }
}

/// Ends the process when it goes.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn random() -> Result<u64, StartError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(StartError::Entropy)?;
    Ok(u64::from_le_bytes(bytes))
}

fn fresh_identity(resume_key: Option<[u8; 32]>) -> Result<Identity, StartError> {
    let mut cluster = [0u8; 16];
    let mut broker_key = [0u8; 32];
    getrandom::fill(&mut cluster).map_err(StartError::Entropy)?;
    getrandom::fill(&mut broker_key).map_err(StartError::Entropy)?;
    let cluster_id = tenure_proto::text::hex(&cluster);
    let cluster_id =
        cluster_id.parse().map_err(|_| StartError::Store(StoreError::Corrupt("cluster id".into())))?;
    Ok(Identity { cluster_id, broker_key: resume_key.unwrap_or(broker_key) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// A log that cannot be written, and takes whoever writes with it.
    struct Full;

    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            panic!("no space left")
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// In the process that is to end.
    fn lose_the_mesh() {
        let log = tracing_subscriber::fmt().with_writer(|| Full).finish();
        tracing::subscriber::set_global_default(log).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mesh = tokio::spawn(async { panic!("a bug") });
            let _ = tokio::spawn(die_with(mesh)).await;
        });
    }

    #[test]
    fn a_broker_without_its_mesh_ends_also_if_it_cannot_say_so() {
        const INSIDE: &str = "TENURE_TEST_LOSE_THE_MESH";
        if std::env::var_os(INSIDE).is_some() {
            return lose_the_mesh();
        }
        let own = "tests::a_broker_without_its_mesh_ends_also_if_it_cannot_say_so";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        // SIGABRT.
        assert_eq!(output.status.signal(), Some(6), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
