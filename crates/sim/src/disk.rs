//! The disk under a broker: the store that ships, on files that can be full, slow, unreadable, unsynced and torn.
//!
//! A crash keeps what was synced. Of a transaction that was being written it keeps nothing, all, or (SQLite) any
//! mixture of the sectors that differ: the files before and after it are compared, and a new directory is made with
//! some sectors of each. Nothing of SQLite is replaced; it recovers from that by itself.

use std::path::Path;

use tenure_mesh::access::RestoredAccess;
use tenure_mesh::store::record::{RestoredMessages, StoreFound, StoreOutcome, StoreRead, StoreWrite};
use tenure_proto::name::MeshName;
use tenure_store::{Identity, Memory, Run, Sqlite, Store, StoreError, StoreReader, StoredLease, Write};

use crate::rng::Rng;

const SECTOR: usize = 512;
/// Bytes of a page in the log, with its header.
const FRAME: u64 = 4_096 + 24;
/// Bytes at the head of the log, by which its pages are known as its own.
const LOG_HEAD: usize = 32;
const DATABASE: &str = "tenure.db";
const LOG: &str = "tenure.db-wal";
const MARK: &str = "tenure.mark";

/// Why the world cannot go on: the machine that runs it failed, not the broker in it.
pub(crate) type Broken = anyhow::Error;

/// What is under the store.
enum Ground {
    Memory(Memory),
    Files(tempfile::TempDir),
}

/// What a crash leaves of the transaction that was being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    All,
    Sectors,
}

/// A store as it was at some time.
pub(crate) struct Copied {
    /// When.
    pub(crate) at: u64,
    ground: CopiedGround,
}

enum CopiedGround {
    Memory(Memory),
    Files(Image),
}

/// A disk with a store on it.
pub(crate) struct Disk {
    ground: Ground,
    store: Option<Box<dyn Store>>,
    reader: Option<Box<dyn StoreReader>>,
    mesh: MeshName,
    /// Whether the mark beside the store is its own, and not what an earlier one left.
    own_mark: bool,
    /// Writes find no room.
    pub(crate) full: bool,
    /// Reads fail.
    pub(crate) blind: bool,
    /// The next write meets a failed sync.
    pub(crate) sync_fails: bool,
    /// A sync has failed: nothing is written until the next start, which may find what met it.
    pub(crate) poisoned: bool,
    unknown: Vec<Write>,
    rng: Rng,
}

/// What a start finds.
pub(crate) struct Found {
    pub(crate) run: Run,
    pub(crate) identity: Identity,
    pub(crate) leases: Vec<StoredLease>,
    pub(crate) messages: RestoredMessages,
    pub(crate) access: RestoredAccess,
    pub(crate) findings: Vec<String>,
    /// Whether it was refused first, because something that was acknowledged is missing, and an operator accepted that.
    pub(crate) loss_accepted: bool,
}

impl Disk {
    pub(crate) fn new(sqlite: bool, mesh: MeshName, rng: Rng) -> Result<Disk, Broken> {
        let ground = if sqlite { Ground::Files(directory()?) } else { Ground::Memory(Memory::new()) };
        Ok(Disk {
            ground,
            store: None,
            reader: None,
            mesh,
            own_mark: true,
            full: false,
            blind: false,
            sync_fails: false,
            poisoned: false,
            unknown: Vec::new(),
            rng,
        })
    }

    /// Opens the store and reads what a broker reads at its start.
    pub(crate) fn start(&mut self, wall: u64, fresh: &Identity) -> Result<Found, Broken> {
        let mut loss_accepted = false;
        let mut store: Box<dyn Store> = match &self.ground {
            Ground::Memory(memory) => Box::new(memory.clone()),
            Ground::Files(dir) => Box::new(match Sqlite::open(dir.path()) {
                Err(StoreError::Lost(_)) => {
                    loss_accepted = true;
                    Sqlite::accept_loss(dir.path(), "sim")?;
                    Sqlite::open(dir.path())?
                }
                opened => opened?,
            }),
        };
        let findings = store.check()?;
        let identity = store.identity(fresh)?;
        let run = store.begin_run(wall)?;
        let leases = store.leases()?.into_iter().filter(|lease| lease.row.mesh == self.mesh).collect();
        let messages = store.restore(&self.mesh)?;
        let access = store.access(&self.mesh)?;
        self.reader = Some(store.reader()?);
        self.store = Some(store);
        self.own_mark = true;
        self.poisoned = false;
        self.sync_fails = false;
        Ok(Found { run, identity, leases, messages, access, findings, loss_accepted })
    }

    /// Commits a batch, or says that it cannot. A beat is the run's uptime, and the wall clock if it is believed.
    pub(crate) fn commit(
        &mut self,
        run: u64,
        batch: &[StoreWrite],
        beat: Option<(u64, Option<u64>)>,
    ) -> Result<Vec<StoreOutcome>, StoreError> {
        let batch = self.writes(run, batch, beat);
        if self.poisoned {
            return Err(StoreError::Poisoned("a sync failed".to_owned()));
        }
        if std::mem::take(&mut self.sync_fails) {
            self.poisoned = true;
            self.unknown = batch;
            return Err(StoreError::Poisoned("a sync failed".to_owned()));
        }
        if self.full {
            return Err(StoreError::Unavailable("the disk is full".to_owned()));
        }
        match &mut self.store {
            Some(store) => store.apply(&batch),
            None => Err(StoreError::Unavailable("there is no store".to_owned())),
        }
    }

    fn writes(&self, run: u64, batch: &[StoreWrite], beat: Option<(u64, Option<u64>)>) -> Vec<Write> {
        let of_mesh = |write: &StoreWrite| Write::Mesh { mesh: self.mesh.clone(), run, write: write.clone() };
        let heartbeat = beat.map(|(uptime_ms, believed_at)| Write::Heartbeat { run, uptime_ms, believed_at });
        batch.iter().map(of_mesh).chain(heartbeat).collect()
    }

    pub(crate) fn read(&mut self, read: &StoreRead) -> StoreFound {
        let reader = self.reader.as_mut().filter(|_| !self.blind);
        reader.and_then(|reader| reader.read(&self.mesh, read).ok()).unwrap_or(StoreFound::Unavailable)
    }

    /// The broker dies while `batch` is being written.
    pub(crate) fn crash(&mut self, run: u64, batch: &[StoreWrite], left: Left) -> Result<(), Broken> {
        let mut batch = self.writes(run, batch, None);
        if self.poisoned {
            // What met the failed sync may be on disk after all; what came later never was tried.
            batch = std::mem::take(&mut self.unknown);
        } else if self.full {
            batch.clear();
        }
        match &mut self.ground {
            Ground::Memory(_) => {
                // The model has no sectors: a torn transaction is none.
                if let (Left::All, Some(store)) = (left, &mut self.store) {
                    store.apply(&batch)?;
                }
            }
            Ground::Files(dir) => {
                let before = Image::of(dir.path())?;
                if let (Left::All | Left::Sectors, Some(store), false) =
                    (left, &mut self.store, batch.is_empty())
                {
                    store.apply(&batch)?;
                }
                let after = Image::of(dir.path())?;
                let fresh = directory()?;
                let image = if left == Left::Sectors { before.torn(&after, &mut self.rng) } else { after };
                image.write(fresh.path())?;
                (self.store, self.reader) = (None, None);
                *dir = fresh;
            }
        }
        (self.store, self.reader) = (None, None);
        Ok(())
    }

    /// The broker stops in good order.
    pub(crate) fn close(&mut self) {
        (self.store, self.reader) = (None, None);
    }

    /// A consistent copy of the store as it is now.
    pub(crate) fn copy(&self, at: u64) -> Result<Copied, Broken> {
        let ground = match &self.ground {
            Ground::Memory(memory) => CopiedGround::Memory(memory.copy()),
            Ground::Files(dir) => CopiedGround::Files(Image::of(dir.path())?),
        };
        Ok(Copied { at, ground })
    }

    /// A copy takes the place of the store, which nobody has open; `marked` with the mark that was beside it, else beside
    /// the mark there is.
    pub(crate) fn restore(&mut self, copied: Copied, marked: bool) -> Result<(), Broken> {
        self.unknown.clear();
        self.own_mark = marked;
        self.ground = match copied.ground {
            CopiedGround::Memory(memory) => Ground::Memory(memory),
            CopiedGround::Files(mut image) => {
                let dir = directory()?;
                if let (Ground::Files(old), false) = (&self.ground, marked) {
                    image.mark = Image::of(old.path())?.mark;
                }
                image.write(dir.path())?;
                Ground::Files(dir)
            }
        };
        Ok(())
    }

    /// Nothing is left of the store, which nobody has open, but perhaps its mark.
    pub(crate) fn wipe(&mut self, marked: bool) -> Result<(), Broken> {
        self.unknown.clear();
        self.ground = match &self.ground {
            Ground::Memory(_) => Ground::Memory(Memory::new()),
            Ground::Files(old) => {
                let (dir, mark) = (directory()?, Image::of(old.path())?.mark);
                if marked && !mark.is_empty() {
                    std::fs::write(dir.path().join(MARK), &mark)?;
                }
                Ground::Files(dir)
            }
        };
        Ok(())
    }

    /// The log of the store, which nobody has open, loses what was written to it after `copied`, and half a frame stays.
    /// Says whether it could: what was copied into the main file meanwhile is safe, what was never synced was
    /// never acknowledged, and beside the mark of another store nothing tells of a loss.
    pub(crate) fn cut_log(&mut self, copied: Copied) -> Result<bool, Broken> {
        let (Ground::Files(dir), CopiedGround::Files(then)) = (&mut self.ground, &copied.ground) else {
            return self.restore(copied, true).map(|()| true);
        };
        let mut image = Image::of(dir.path())?;
        let same = image.database == then.database && image.log.starts_with(&then.log);
        if !same || !self.own_mark || image.log.len() == then.log.len() || image.mark == then.mark {
            return Ok(false);
        }
        let torn = self.rng.below(2 * FRAME) as usize % (image.log.len() - then.log.len());
        let torn = torn.min(FRAME as usize - 1);
        image.log.truncate(then.log.len() + torn);
        let fresh = directory()?;
        image.write(fresh.path())?;
        self.unknown.clear();
        *dir = fresh;
        Ok(true)
    }

    /// The broker dies while it starts: the log may be half copied into the main file.
    pub(crate) fn crash_in_recovery(&mut self, wall: u64, fresh: &Identity) -> Result<(), Broken> {
        let before = match &self.ground {
            Ground::Files(dir) => Some(Image::of(dir.path())?),
            Ground::Memory(_) => None,
        };
        self.start(wall, fresh)?;
        if let (Some(before), Ground::Files(dir)) = (before, &mut self.ground) {
            let after = Image::of(dir.path())?;
            let directory = directory()?;
            let mut image = before.clone();
            if self.rng.chance(500) {
                // While the log is copied: it is whole, the main file is a mixture.
                image.database = mix(&before.database, &after.database, &mut self.rng);
            } else {
                // After that: the run's first write may or may not be there.
                image = after;
            }
            image.write(directory.path())?;
            (self.store, self.reader) = (None, None);
            *dir = directory;
        }
        (self.store, self.reader) = (None, None);
        Ok(())
    }
}

/// The files of a store at one moment.
#[derive(Clone, Debug, Default)]
struct Image {
    database: Vec<u8>,
    log: Vec<u8>,
    /// Written behind each sync.
    mark: Vec<u8>,
}

impl Image {
    fn of(dir: &Path) -> Result<Image, Broken> {
        let read = |name: &str| match std::fs::read(dir.join(name)) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        Ok(Image { database: read(DATABASE)?, log: read(LOG)?, mark: read(MARK)? })
    }

    /// What a crash between the two may leave: some of the sectors that differ. What is not synced is not marked.
    fn torn(&self, after: &Image, rng: &mut Rng) -> Image {
        let mark = self.mark.clone();
        let database = if self.database == after.database {
            after.database.clone()
        } else {
            // The main file changes only after the log is synced.
            let database = mix(&self.database, &after.database, rng);
            return Image { database, log: after.log.clone(), mark };
        };
        let mut log = self.log.clone();
        if let (Some(old), Some(new)) = (log.get_mut(..LOG_HEAD), after.log.get(..LOG_HEAD)) {
            // A log that is begun anew has its new head synced before anything is written over the old pages.
            old.copy_from_slice(new);
        }
        Image { database, log: mix(&log, &after.log, rng), mark }
    }

    fn write(&self, dir: &Path) -> Result<(), Broken> {
        std::fs::write(dir.join(DATABASE), &self.database)?;
        if !self.log.is_empty() {
            std::fs::write(dir.join(LOG), &self.log)?;
        }
        if !self.mark.is_empty() {
            std::fs::write(dir.join(MARK), &self.mark)?;
        }
        Ok(())
    }
}

/// Sectors of either; a prefix of the new ones as often as any mixture.
fn mix(before: &[u8], after: &[u8], rng: &mut Rng) -> Vec<u8> {
    let sectors = after.len().max(before.len()).div_ceil(SECTOR);
    let cut = rng.chance(500).then(|| rng.below(after.len() as u64 + 1) as usize);
    let mut mixed = Vec::with_capacity(after.len());
    for sector in 0..sectors {
        let range = |of: &[u8]| {
            let start = (sector * SECTOR).min(of.len());
            start..(start + SECTOR).min(of.len())
        };
        let (old, new) = (&before[range(before)], &after[range(after)]);
        match cut {
            Some(cut) if sector * SECTOR + new.len() <= cut => mixed.extend_from_slice(new),
            Some(cut) if sector * SECTOR < cut => {
                // Within a sector, up to a byte: then what was there.
                let keep = cut - sector * SECTOR;
                mixed.extend_from_slice(&new[..keep.min(new.len())]);
                if old.len() > keep {
                    mixed.extend_from_slice(&old[keep..]);
                }
            }
            Some(_) => mixed.extend_from_slice(old),
            None if old == new || rng.chance(500) => mixed.extend_from_slice(new),
            // Never written, though the file is longer: what was there, which may be half a sector, and zeros.
            None => {
                mixed.extend_from_slice(old);
                mixed.extend(std::iter::repeat_n(0, new.len().saturating_sub(old.len())));
            }
        }
    }
    mixed
}

/// A directory in memory where there is one, as syncs to a real disk would be most of a run's time.
fn directory() -> Result<tempfile::TempDir, Broken> {
    let memory = Path::new("/dev/shm");
    Ok(if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? })
}
