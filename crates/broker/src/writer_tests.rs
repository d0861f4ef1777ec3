//! The writer on a store that fails when it is told so, and whose disk answers when it is told so.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use ed25519_dalek::SigningKey;
use tenure_kit::host::Doors;
use tenure_mesh::House;
use tenure_mesh::store::record::{RestoredMessages, StoreOutcome, TopicRecord};
use tenure_store::{
    Checkpointer, Identity, Memory, Result, Run, StoreError, StoreReader, StoredLease, Syncer,
};

use super::*;
use crate::Config;
use crate::clock::Clock;

/// A store that cannot write while it is told so.
struct Flaky {
    inner: Memory,
    broken: Arc<AtomicBool>,
    /// Told of every transaction that begins, which goes on when the other says so; nothing if it need not wait.
    gate: Option<(Sender<()>, Receiver<()>)>,
    /// Whether the next sync goes well, when that is known; nothing if writing is syncing.
    disk: Option<Arc<Mutex<Receiver<bool>>>>,
}

impl Store for Flaky {
    fn kind(&self) -> &'static str {
        "flaky"
    }
    fn identity(&mut self, fresh: &Identity) -> Result<Identity> {
        self.inner.identity(fresh)
    }
    fn begin_run(&mut self, now_wall_ms: u64) -> Result<Run> {
        self.inner.begin_run(now_wall_ms)
    }
    fn apply(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
        if let Some((begun, go)) = &self.gate {
            begun.send(()).unwrap();
            go.recv().unwrap();
        }
        if self.broken.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("no room".into()));
        }
        self.inner.apply(batch)
    }
    fn syncer(&self) -> Result<Option<Box<dyn Syncer>>> {
        Ok(self.disk.clone().map(|disk| Box::new(Disk(disk)) as Box<dyn Syncer>))
    }
    fn restore(&mut self, mesh: &MeshName) -> Result<RestoredMessages> {
        self.inner.restore(mesh)
    }
    fn meshes(&mut self) -> Result<Vec<MeshName>> {
        self.inner.meshes()
    }
    fn access(&mut self, mesh: &MeshName) -> Result<tenure_mesh::access::RestoredAccess> {
        self.inner.access(mesh)
    }
    fn reader(&self) -> Result<Box<dyn StoreReader>> {
        self.inner.reader()
    }
    fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>> {
        self.inner.checkpointer()
    }
    fn leases(&mut self) -> Result<Vec<StoredLease>> {
        self.inner.leases()
    }
    fn check(&mut self) -> Result<Vec<String>> {
        self.inner.check()
    }
}

/// A disk that takes as long as nobody says how it went.
struct Disk(Arc<Mutex<Receiver<bool>>>);

impl Syncer for Disk {
    fn sync(&mut self) -> Result<()> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).recv() {
            Ok(true) => Ok(()),
            _ => Err(StoreError::Poisoned("a sync failed".to_owned())),
        }
    }
}

fn topic(n: u64) -> (WriteId, StoreWrite) {
    let name = format!("t{n}").parse().unwrap();
    let record = TopicRecord {
        name,
        partitions: 1,
        retention_ms: None,
        created_at: n,
        owner: None,
        state: Default::default(),
    };
    (WriteId(n), StoreWrite::PutTopic(record))
}

/// A writer, the mesh that asks it, and the hands on its store.
struct Fixture {
    writes: Writes,
    inputs: mpsc::Receiver<MeshMsg>,
    _sender: mpsc::Sender<MeshMsg>,
    shared: Arc<Shared>,
    broken: Arc<AtomicBool>,
    /// A transaction has begun.
    begun: Receiver<()>,
    /// Lets it go on.
    go: Sender<()>,
    /// Says how a sync went.
    disk: Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

impl Fixture {
    fn new(syncs: bool) -> Fixture {
        let (key, config) = (SigningKey::from_bytes(&[1; 32]), Config::ephemeral(60_000));
        let house = House {
            broker_id: House::id_of(&key),
            version: String::new(),
            cluster: "c".parse().unwrap(),
            key,
            secure: false,
            relay: None,
            doors: Doors::loopback(1, &[], &[]),
            rooms: Default::default(),
            config: config.mesh.clone().into(),
        };
        let clock = Clock::start();
        let clocks = tenure_kit::clock::Clocks::new(clock.now());
        let shared = Shared::new(config, (clock, clocks), house, None, (1, 1), "flaky", 1_024);
        let broken = Arc::new(AtomicBool::new(false));
        let (disk, went) = channel();
        let (beginning, begun) = channel();
        let (go, going) = channel();
        let store = Flaky {
            inner: Memory::new(),
            broken: broken.clone(),
            gate: syncs.then_some((beginning, going)),
            disk: syncs.then(|| Arc::new(Mutex::new(went))),
        };
        let (sender, inputs) = mpsc::channel(16);
        let (handle, thread) = start(Box::new(store), 1, shared.clone(), Bell::default()).unwrap();
        let writes = handle.lane("default".parse().unwrap(), &sender);
        Fixture { writes, inputs, _sender: sender, shared, broken, begun, go, disk, thread }
    }

    fn push(&mut self, n: u64) {
        let (id, write) = topic(n);
        assert!(self.writes.push(id, write));
    }

    /// What the mesh hears next: whether it was written, and through which write.
    fn told(&mut self) -> (bool, u64) {
        match self.inputs.blocking_recv() {
            Some(MeshMsg::Input(Input::Committed { through, .. })) => (true, through.0),
            Some(MeshMsg::Input(Input::Failed { through })) => (false, through.0),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for two writes that become two transactions; when this returns, the sync of the first waits for the disk and
    /// the second has begun.
    fn pipeline(&mut self) {
        self.push(1);
        self.begun.recv().unwrap();
        self.push(2);
        self.go.send(()).unwrap();
        self.begun.recv().unwrap();
    }

    /// Whether the mesh has heard nothing yet.
    fn is_quiet(&mut self) -> bool {
        self.inputs.try_recv().is_err()
    }

    fn sound(&self) -> bool {
        self.shared.store_sound.load(Ordering::Relaxed)
    }

    /// Asks no more, and waits for the writer's end.
    fn end(self) -> Arc<Shared> {
        // One more transaction, if somebody holds them: the last record of the run's uptime.
        let _ = self.go.send(());
        drop(self.writes);
        self.thread.join().unwrap();
        self.shared
    }
}

#[test]
fn what_was_asked_for_before_a_failure_was_heard_fails_with_it() {
    let mut it = Fixture::new(false);
    it.push(1);
    assert_eq!(it.told(), (true, 1));
    it.broken.store(true, Ordering::Relaxed);
    it.push(2);
    assert_eq!(it.told(), (false, 2));
    assert!(!it.sound());
    // The mesh has not heard of it when it asks for more, which may rest on what was lost.
    it.broken.store(false, Ordering::Relaxed);
    it.push(3);
    it.push(4);
    assert_eq!(it.writes.fail_all(), WriteId(4));
    it.push(5);
    assert_eq!(it.told(), (true, 5), "one failure is told once");
    assert!(it.sound());
    assert_eq!(it.shared.metrics.failed_commits.get(), 1);
    let shared = it.end();
    assert_eq!(shared.metrics.writes.get(), 3, "what was dropped was never tried");
}

#[test]
fn the_next_transaction_is_written_while_the_disk_takes_the_last() {
    let mut it = Fixture::new(true);
    it.pipeline();
    assert!(it.is_quiet(), "nothing is told before it is synced");
    it.go.send(()).unwrap();
    for n in [1, 2] {
        it.disk.send(true).unwrap();
        assert_eq!(it.told(), (true, n), "each after its sync, in order");
    }
    let shared = it.end();
    assert_eq!(shared.metrics.commits.get(), 2);
}

#[test]
fn a_lone_write_is_told_after_its_sync() {
    let mut it = Fixture::new(true);
    it.push(1);
    it.begun.recv().unwrap();
    it.go.send(()).unwrap();
    assert!(it.is_quiet());
    it.disk.send(true).unwrap();
    assert_eq!(it.told(), (true, 1));
    it.end();
}

#[test]
fn a_failure_is_told_behind_what_went_well_before_it() {
    let mut it = Fixture::new(true);
    it.pipeline();
    it.broken.store(true, Ordering::Relaxed);
    it.go.send(()).unwrap();
    it.disk.send(true).unwrap();
    assert_eq!(it.told(), (true, 1));
    assert_eq!(it.told(), (false, 2));
    assert!(!it.sound(), "and noted behind it");
    // Writing goes on.
    it.broken.store(false, Ordering::Relaxed);
    it.writes.fail_all();
    it.push(3);
    it.begun.recv().unwrap();
    it.go.send(()).unwrap();
    it.disk.send(true).unwrap();
    assert_eq!(it.told(), (true, 3));
    it.end();
}

#[test]
fn all_that_is_staged_is_lost_with_a_failed_sync() {
    let mut it = Fixture::new(true);
    it.pipeline();
    it.go.send(()).unwrap();
    for n in [1, 2] {
        it.disk.send(false).unwrap();
        assert_eq!(it.told(), (false, n));
    }
    assert!(!it.sound());
    let shared = it.end();
    assert_eq!(shared.metrics.failed_commits.get(), 2);
}

#[test]
fn uptime_is_recorded_every_second_for_the_first_ten() {
    let beats = |usual_ms: u64| {
        let mut at = Duration::ZERO;
        let mut next = || {
            at += beat_in(at, Duration::from_millis(usual_ms));
            at.as_millis()
        };
        (0..12).map(|_| next()).collect::<Vec<_>>()
    };
    assert_eq!(
        beats(5_000),
        [1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000, 15_000, 20_000]
    );
    assert_eq!(beats(100)[..3], [100, 200, 300], "a short lease needs it more often");
}
