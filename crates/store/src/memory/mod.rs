//! The model: every rule of the store in its shortest form, kept in memory.
//!
//! What it is for: to say what the other engines must do, and to stand in for them where a test or a simulation
//! needs no disk.
//!
//! What it promises: the same answers as every other engine. It can also be told to fail, as a disk does.
//!
//! What it never does: outlive its process, forget runs, or keep a second user out; handles share one state, so
//! a test restarts a broker by giving it another handle.
//!
//! Where to read next: [`Store`] for what each method promises, `messages` for what writes do, `reads` for what
//! reads find.

mod access;
mod clear;
mod lease_ends;
mod messages;
mod reads;
mod runs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_mesh::access::RestoredAccess;
use tenure_mesh::sessions::lease::unattended_ms;
use tenure_mesh::store::record::{RestoredMessages, StoreFound, StoreOutcome, StoreRead, StoreWrite};
use tenure_proto::{MeshName, SessionKey};

use crate::{
    Checking, Checkpointer, Identity, LeaseRow, Result, Run, Store, StoreError, StoreReader, StoredLease,
    Write,
};
use access::{Access, Audit};
use lease_ends::LeaseEnds;
use messages::Messages;

/// A store in memory. A clone is another handle on the same state.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    identity: Option<Identity>,
    /// Uptime by run.
    runs: BTreeMap<u64, u64>,
    /// When the wall clock was last believed.
    believed_at: Option<u64>,
    leases: BTreeMap<(MeshName, SessionKey), LeaseRow>,
    meshes: BTreeMap<MeshName, Messages>,
    access: BTreeMap<MeshName, Access>,
    audit: Audit,
    lease_ends: LeaseEnds,
    /// Writes answer [`StoreError::Unavailable`].
    failing: bool,
    /// Writes answer [`StoreError::Poisoned`].
    poisoned: bool,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// A store of its own with the same contents, as a backup is: what is written to one is not in the other.
    pub fn copy(&self) -> Memory {
        Memory { state: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Makes every write answer [`StoreError::Unavailable`] and do nothing, like a full disk, or ends that.
    /// Reads go on.
    pub fn fail_writes(&self, failing: bool) {
        self.lock().failing = failing;
    }

    /// Makes every write answer [`StoreError::Poisoned`] and do nothing, for good, like a failed sync. Reads go
    /// on.
    pub fn poison(&self) {
        self.lock().poisoned = true;
    }

    /// No method leaves the state half changed, so what a panicking test left behind is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        state.writable()?;
        Ok(state)
    }
}

impl State {
    fn writable(&self) -> Result<()> {
        if self.poisoned {
            Err(StoreError::Poisoned("it was told to".to_owned()))
        } else if self.failing {
            Err(StoreError::Unavailable("it was told to fail".to_owned()))
        } else {
            Ok(())
        }
    }

    fn last_run(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(run, _)| *run)
    }

    fn spent_ms(&self, touched_run: u64) -> u64 {
        let between = self.runs.range(..self.last_run()).filter(|(run, _)| **run > touched_run);
        between.fold(0, |sum: u64, (_, uptime_ms)| sum.saturating_add(unattended_ms(*uptime_ms)))
    }

    fn apply(&mut self, write: &Write) -> StoreOutcome {
        match write {
            Write::Mesh { mesh, run, write } => self.apply_to_mesh(mesh, *run, write),
            Write::Heartbeat { run, uptime_ms, believed_at } => {
                self.believed_at = believed_at.or(self.believed_at);
                if let Some(uptime) = self.runs.get_mut(run) {
                    *uptime = (*uptime).max(*uptime_ms);
                }
                StoreOutcome::Done
            }
        }
    }

    fn apply_to_mesh(&mut self, mesh: &MeshName, run: u64, write: &StoreWrite) -> StoreOutcome {
        match write {
            StoreWrite::PutLease(record) => {
                self.leases.insert((mesh.clone(), record.session), LeaseRow::of_record(mesh, record, run));
            }
            StoreWrite::EndLease(end) => {
                let key = (mesh.clone(), end.session);
                if self.leases.get(&key).is_none_or(|row| row.lease != end.lease) {
                    return StoreOutcome::Done;
                }
                self.leases.remove(&key);
                self.lease_ends.add(mesh, end);
            }
            StoreWrite::TouchLease(session, lease) => {
                let found = self.leases.get_mut(&(mesh.clone(), *session));
                if let Some(row) = found.filter(|row| row.lease == *lease) {
                    row.touched_run = row.touched_run.max(run);
                }
            }
            StoreWrite::Sweep { now, dead_before, runs_before, .. } => {
                let ends = self.lease_ends.forget(*dead_before);
                let swept = self.meshes.values_mut();
                let swept = swept.map(|mesh| mesh.sweep(*now, *dead_before) + mesh.sweep_runs(*runs_before));
                return StoreOutcome::Count { rows: swept.sum::<u64>() + ends, more: false };
            }
            StoreWrite::Access(write) => {
                self.access.entry(mesh.clone()).or_default().apply(&write.changes);
                self.audit.append(mesh, write.audit.as_ref());
                return StoreOutcome::Done;
            }
            _ => {}
        }
        self.meshes.entry(mesh.clone()).or_default().apply(write)
    }
}

impl Store for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn identity(&mut self, fresh: &Identity) -> Result<Identity> {
        let mut state = self.lock();
        if let Some(identity) = &state.identity {
            return Ok(identity.clone());
        }
        state.writable()?;
        Ok(state.identity.insert(fresh.clone()).clone())
    }

    fn begin_run(&mut self, now_wall_ms: u64) -> Result<Run> {
        let mut state = self.write()?;
        let number = state.last_run() + 1;
        state.runs.insert(number, 0);
        let believed_at = state.believed_at;
        // The first run believes the clock that it finds, and may end before its first beat.
        state.believed_at.get_or_insert(now_wall_ms);
        Ok(Run { number, started_at: now_wall_ms, believed_at })
    }

    fn apply(&mut self, batch: &[Write]) -> Result<Vec<StoreOutcome>> {
        let mut state = self.write()?;
        Ok(batch.iter().map(|write| state.apply(write)).collect())
    }

    fn restore(&mut self, mesh: &MeshName) -> Result<RestoredMessages> {
        Ok(self.lock().meshes.get(mesh).map(Messages::restore).unwrap_or_default())
    }

    fn meshes(&mut self) -> Result<Vec<MeshName>> {
        let state = self.lock();
        let founded = state.access.iter().filter(|(_, access)| access.is_founded());
        Ok(founded.map(|(name, _)| name.clone()).collect())
    }

    fn access(&mut self, mesh: &MeshName) -> Result<RestoredAccess> {
        Ok(self.lock().access.get(mesh).map(Access::restore).unwrap_or_default())
    }

    fn reader(&self) -> Result<Box<dyn StoreReader>> {
        Ok(Box::new(Reader(self.clone())))
    }

    fn checkpointer(&self) -> Result<Option<Box<dyn Checkpointer>>> {
        Ok(None)
    }

    fn leases(&mut self) -> Result<Vec<StoredLease>> {
        let state = self.lock();
        let stored =
            |row: &LeaseRow| StoredLease { row: row.clone(), spent_ms: state.spent_ms(row.touched_run) };
        Ok(state.leases.values().map(stored).collect())
    }

    fn check(&mut self) -> Result<Vec<String>> {
        let state = self.lock();
        Ok(state.leases.values().filter_map(|row| row.impossible_run(state.last_run())).collect())
    }
}

/// A reader of a store in memory.
#[derive(Debug)]
struct Reader(Memory);

impl StoreReader for Reader {
    fn read(&mut self, mesh: &MeshName, read: &StoreRead) -> Result<StoreFound> {
        let state = self.0.lock();
        if let StoreRead::Audit { before, limit } = read {
            return Ok(state.audit.read(mesh, *before, *limit));
        }
        if let StoreRead::LeaseEnds { before, limit } = read {
            return Ok(state.lease_ends.read(mesh, *before, *limit));
        }
        Ok(state.meshes.get(mesh).map_or_else(|| Messages::default().read(read), |mesh| mesh.read(read)))
    }

    fn check(&mut self) -> Result<Vec<String>> {
        self.0.check()
    }

    fn check_slice(&mut self, checking: &mut Checking) -> Result<bool> {
        self.0.check()?.into_iter().for_each(|finding| checking.report.add(finding));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Engine, identity, lease, put, suite};

    impl Engine for Memory {
        type Store = Memory;

        fn new() -> Memory {
            Memory::new()
        }

        fn open(&self) -> Memory {
            self.clone()
        }

        fn starve(store: &mut Memory, starving: bool) {
            store.fail_writes(starving);
        }
    }

    suite!(Memory);

    #[test]
    fn poisoned_stops_writes_for_good_and_reads_go_on() {
        let mut store = Memory::new();
        store.identity(&identity(1)).unwrap();
        store.apply(&[put(&lease("m", 1))]).unwrap();
        store.poison();
        store.fail_writes(false);
        assert!(matches!(store.begin_run(0), Err(StoreError::Poisoned(_))));
        assert!(matches!(store.apply(&[]), Err(StoreError::Poisoned(_))));
        assert_eq!(store.identity(&identity(2)), Ok(identity(1)));
        assert_eq!(store.leases().unwrap().len(), 1);
    }
}
