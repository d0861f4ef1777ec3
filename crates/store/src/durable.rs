//! The files beside a SQLite database that tell whether it lost something: its high-water mark, and its write-ahead log
//! as it lies there. The rule that judges them is `tenure_kit::durable`'s; the daemon's outbox uses this too.
//!
//! The mark is a file of two slots, written in turn and each with its checksum, so that a torn write leaves the other.
//! It is written after every sync of the log and synced at least once a second: a killed process leaves the exact mark,
//! a loss of power one that is a second old.
//!
//! While a database is open nobody else may change its files. A [`Watch`] sees that they are removed or replaced, a
//! [`Stamped`] that the main file is written over, a [`LogWatch`] that the log is, and a [`MarkFile`] looks after itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use tenure_kit::durable::wal::{FRAME_HEAD_BYTES, HEADER_BYTES, Header, LogState, Scanner, page_number};
use tenure_kit::durable::{Evidence, Ledger, MARK_BYTES, Mark, MarkState, ledger_on};

/// The table that holds the ledger: a step of a schema.
pub const LEDGER: &str = "
-- How many transactions were committed and messages accepted, counted in the same transactions: one row. The file
-- beside this one whose name ends in mark has the same counts, as of its last sync.
CREATE TABLE ledger (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    store    BLOB NOT NULL CHECK (length(store) = 16),      -- tells this database from any other
    writes   INTEGER NOT NULL,
    messages INTEGER NOT NULL
) STRICT;
INSERT INTO ledger (one, store, writes, messages) VALUES (1, randomblob(16), 0, 0);
";

/// The column that says that a mark was on the disk: a step of a schema.
pub const MARKED: &str = "
-- Whether the file beside this one whose name ends in mark was ever on the disk. A start that misses it then knows.
ALTER TABLE ledger ADD COLUMN marked INTEGER NOT NULL DEFAULT 0;
";

/// How often a [`MarkFile`] is to be synced, and a [`Watch`] to look: twice as often as is promised.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(500);

/// Bytes between the two slots: no disk writes them together.
const SLOT_BYTES: usize = 4096;
/// Bytes that are read from the log at once.
const READ_BYTES: usize = 1024 * 1024;

/// The ledger of an open database; nothing if it has none.
pub fn ledger(connection: &Connection) -> rusqlite::Result<Option<Ledger>> {
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'ledger'";
    if !connection.prepare(known)?.exists([])? {
        return Ok(None);
    }
    let row = "SELECT store, writes, messages FROM ledger WHERE one = 1";
    connection.query_row(row, [], of_row).optional()
}

/// Whether an open database says that its mark was on the disk.
pub fn is_marked(connection: &Connection) -> rusqlite::Result<bool> {
    let known = "SELECT 1 FROM pragma_table_info('ledger') WHERE name = 'marked'";
    if !connection.prepare(known)?.exists([])? {
        return Ok(false);
    }
    let row = "SELECT marked FROM ledger WHERE one = 1";
    Ok(connection
        .query_row(row, [], |row| row.get::<_, i64>(0))
        .optional()?
        .is_some_and(|marked| marked != 0))
}

/// The ledger in a row of `store, writes, messages`.
pub fn of_row(row: &Row<'_>) -> rusqlite::Result<Ledger> {
    let count = |index| row.get::<_, i64>(index).map(|count| u64::try_from(count).unwrap_or(0));
    Ok(Ledger { store: row.get(0)?, writes: count(1)?, messages: count(2)? })
}

/// What the files of the database at this path say, as far as that can be told before SQLite opens them with their log: not what
/// reads then, and whether it was marked. Changes nothing, and reads the whole log. Nobody of this process may have the
/// database open: a handle that is closed here would drop the locks that SQLite holds.
pub fn evidence(database: &Path, mark: MarkState) -> io::Result<Evidence> {
    let base = base(database);
    let (log, log_from) = scan_log(database, base.map(|(page, _)| page))?;
    let base = base.map(|(_, ledger)| ledger);
    Ok(Evidence { mark, base, log_from, log, ..Evidence::default() })
}

/// The ledger in the main file alone, as if it had no log, and the page of its table; nothing if that does not read.
fn base(database: &Path) -> Option<(u32, Ledger)> {
    // So it takes no locks, reads no log, and makes no files.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(immutable(database).ok()?, flags).ok()?;
    connection.pragma_update(None, "trusted_schema", false).ok()?;
    connection.pragma_update(None, "cell_size_check", true).ok()?;
    let page = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'ledger'";
    let page = connection.query_row(page, [], |row| row.get(0)).ok()?;
    Some((page, ledger(&connection).ok()??))
}

/// A URI of the file at this path which says that nobody changes it.
fn immutable(path: &Path) -> io::Result<String> {
    let path = std::path::absolute(path)?;
    let mut uri = if cfg!(windows) { "file:///" } else { "file://" }.to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'\\' if cfg!(windows) => uri.push('/'),
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(*byte))
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    Ok(uri + "?immutable=1")
}

/// What the write-ahead log of the database at this path looks like. Reads all of it. To be asked before SQLite opens the
/// database: a handle that is closed here would drop the locks that SQLite holds in the same process.
pub fn log_state(database: &Path) -> io::Result<LogState> {
    scan_log(database, None).map(|(state, _)| state)
}

/// The same, and the ledger that stands first in the log, if it is on this page of the database.
fn scan_log(database: &Path, page_of_ledger: Option<u32>) -> io::Result<(LogState, Option<Ledger>)> {
    let file = match File::open(beside(database, "-wal")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((LogState::Absent, None)),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length < HEADER_BYTES as u64 {
        return Ok((if length == 0 { LogState::Absent } else { LogState::TornTail }, None));
    }
    let mut first = None;
    let mut log = io::BufReader::with_capacity(READ_BYTES, file);
    let mut header = [0; HEADER_BYTES];
    log.read_exact(&mut header)?;
    let mut scanner = Scanner::new(&header, page_bytes(database)?);
    let (mut head, mut page) = ([0; FRAME_HEAD_BYTES], vec![0; scanner.page_bytes()]);
    let frame = (FRAME_HEAD_BYTES + page.len()) as u64;
    let body = length - HEADER_BYTES as u64;
    for _ in 0..body / frame {
        log.read_exact(&mut head)?;
        log.read_exact(&mut page)?;
        scanner.frame(&head, &page);
        if first.is_none() && scanner.is_good() && Some(page_number(&head)) == page_of_ledger {
            first = ledger_on(&page);
        }
    }
    Ok((scanner.finish(body % frame), first))
}

/// Bytes of a page as the header of the database says.
fn page_bytes(database: &Path) -> io::Result<u32> {
    let mut header = [0; 18];
    let read = File::open(database).and_then(|mut file| file.read_exact(&mut header));
    Ok(match (read, u32::from(header[16]) << 8 | u32::from(header[17])) {
        (Ok(()), 1) => 65_536,
        (Ok(()), bytes) if bytes.is_power_of_two() && bytes >= 512 => bytes,
        _ => 4096,
    })
}

/// `path` with `suffix` behind its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The file that holds the mark.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    /// Nothing until the first write if there was none.
    file: Option<File>,
    /// Of the newest slot.
    number: u64,
    mark: Option<Mark>,
    /// The slots as they must read; nothing of one that is not there or whose last write failed.
    slots: [Option<[u8; MARK_BYTES]>; 2],
    /// Whether something was written since the last sync.
    unsynced: bool,
}

impl MarkFile {
    /// Reads the file at `path`, if there is one.
    pub fn open(path: &Path) -> io::Result<MarkFile> {
        let (path, slots) = (path.to_owned(), [None; 2]);
        let mut none = MarkFile { path, file: None, number: 0, mark: None, slots, unsynced: false };
        let mut file = match OpenOptions::new().read(true).write(true).open(&none.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(none),
            Err(error) => return Err(error),
        };
        for slot in 0..2 {
            let mut bytes = [0; MARK_BYTES];
            file.seek(SeekFrom::Start((slot * SLOT_BYTES) as u64))?;
            // A file that is too short has no such slot.
            if file.read_exact(&mut bytes).is_err() {
                continue;
            }
            none.slots[slot] = Some(bytes);
            if let Some((number, mark)) = Mark::decode(&bytes)
                && (none.mark.is_none() || number > none.number)
            {
                (none.number, none.mark) = (number, Some(mark));
            }
        }
        none.file = Some(file);
        Ok(none)
    }

    /// The mark, if there is one that reads.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// The file, as a start judges it.
    pub fn state(&self) -> MarkState {
        match (&self.file, self.mark) {
            (_, Some(mark)) => MarkState::Read(mark),
            (Some(_), None) => MarkState::Damaged,
            (None, None) => MarkState::Absent,
        }
    }

    /// Writes a mark over the older slot, and makes the file if there is none. Not synced.
    pub fn write(&mut self, mark: Mark) -> io::Result<()> {
        if self.mark == Some(mark) { Ok(()) } else { self.put(mark) }
    }

    /// Writes the mark once more, if there is one and somebody else has written over it, or removed or replaced the file. What is at
    /// its place is replaced only if the directory is still ours: else another process may use that.
    pub fn restate(&mut self, ours: bool) -> io::Result<()> {
        let (Some(file), Some(mark)) = (&self.file, self.mark) else { return Ok(()) };
        match identity(&self.path) {
            Ok(found) if found == identity_of(&file.metadata()?) => {
                if self.look().is_err() {
                    self.put(mark)?;
                }
                Ok(())
            }
            Ok(_) if !ours => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => self.remake(mark),
        }
    }

    fn put(&mut self, mark: Mark) -> io::Result<()> {
        let number = self.number + 1;
        let (bytes, slot) = (mark.encode(number), (number % 2) as usize);
        let Some(file) = &mut self.file else { return self.remake(mark) };
        // Until it is written nobody knows what is there.
        self.slots[slot] = None;
        file.seek(SeekFrom::Start((slot * SLOT_BYTES) as u64))?;
        file.write_all(&bytes)?;
        self.slots[slot] = Some(bytes);
        (self.number, self.mark, self.unsynced) = (number, Some(mark), true);
        Ok(())
    }

    /// Puts a new file in the place of the mark, with this one in it.
    fn remake(&mut self, mark: Mark) -> io::Result<()> {
        let number = self.number + 1;
        let (bytes, slot) = (mark.encode(number), (number % 2) as usize);
        self.file = Some(make(&self.path, slot, &bytes)?);
        self.slots = [None; 2];
        self.slots[slot] = Some(bytes);
        (self.number, self.mark, self.unsynced) = (number, Some(mark), true);
        Ok(())
    }

    /// Whether the file still says what was written to it, else what became of it. One that cannot be read now says nothing.
    pub fn look(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        for (slot, known) in self.slots.iter().enumerate() {
            let Some(known) = known else { continue };
            let mut bytes = [0; MARK_BYTES];
            match read_at(file, (slot * SLOT_BYTES) as u64, &mut bytes) {
                Ok(()) if bytes != *known => return Err(overwritten(&self.path)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(overwritten(&self.path));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A handle to sync with, so that a writer need not wait for that; nothing when all is synced.
    pub fn unsynced(&mut self) -> io::Result<Option<File>> {
        match &self.file {
            Some(file) if self.unsynced => {
                let handle = file.try_clone()?;
                self.unsynced = false;
                Ok(Some(handle))
            }
            _ => Ok(None),
        }
    }

    /// Whether nobody has to wait for the disk.
    #[cfg(test)]
    pub(crate) fn is_synced(&self) -> bool {
        !self.unsynced
    }

    /// Waits until the mark is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.unsynced()?.map_or(Ok(()), |file| file.sync_data())
    }
}

/// Makes the file with room for both slots, which later writes then need not find. Aside, and whole when it is put in its
/// place: so one that is there and does not read is damaged.
fn make(path: &Path, slot: usize, mark: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut bytes = vec![0; 2 * SLOT_BYTES];
    let at = slot * SLOT_BYTES;
    bytes[at..at + mark.len()].copy_from_slice(mark);
    let aside = beside(path, ".new");
    let mut file = options.open(&aside)?;
    let made = file.write_all(&bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if let Err(error) = made {
        let _ = fs::remove_file(&aside);
        return Err(error);
    }
    if cfg!(unix)
        && let Some(dir) = path.parent()
    {
        File::open(dir)?.sync_all()?;
    }
    Ok(file)
}

/// Files that must stay where they are while they are open.
#[derive(Debug, Default)]
pub struct Watch {
    files: Vec<(PathBuf, (u64, u64))>,
}

impl Watch {
    /// Watches those of `paths` that exist.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Watch {
        let files = paths.into_iter().filter_map(|path| Some((path.clone(), identity(&path).ok()??)));
        Watch { files: files.collect() }
    }

    /// Whether each path still leads to the file that is open, else what became of it. A path that cannot be looked at
    /// now says nothing.
    pub fn look(&self) -> Result<(), String> {
        for (path, known) in &self.files {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            match identity(path) {
                Ok(Some(found)) if found != *known => {
                    return Err(format!("{name} was replaced while it was in use"));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(format!("{name} was removed while it was in use"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A file that changes only when its owner says so: its length, and when it was last written. SQLite writes the main file
/// of a database with a write-ahead log in checkpoints only; who makes those takes the stamp anew after each.
#[derive(Debug)]
pub struct Stamped {
    path: PathBuf,
    /// Nothing while it cannot be looked at.
    known: Option<Stamp>,
}

/// Bytes, and the time of the last write in seconds and nanoseconds.
type Stamp = (u64, i64, i64);

impl Stamped {
    /// The file at `path` as it is now.
    pub fn new(path: PathBuf) -> Stamped {
        let known = stamp(&path);
        Stamped { path, known }
    }

    /// The owner has written to it.
    pub fn take(&mut self) {
        self.known = stamp(&self.path);
    }

    /// Whether nobody else has. To be asked while the owner does not write. A file that cannot be looked at says nothing.
    pub fn look(&self) -> Result<(), String> {
        match (self.known, stamp(&self.path)) {
            (Some(known), Some(found)) if known != found => Err(overwritten(&self.path)),
            _ => Ok(()),
        }
    }
}

/// Where the system keeps it exactly.
fn stamp(path: &Path) -> Option<Stamp> {
    #[cfg(unix)]
    return fs::metadata(path).ok().map(|metadata| {
        use std::os::unix::fs::MetadataExt;
        (metadata.size(), metadata.mtime(), metadata.mtime_nsec())
    });
    #[cfg(not(unix))]
    return path.is_file().then_some((0, 0, 0));
}

/// A write-ahead log that only its writer changes. Frames that were committed stay as they are until all are copied and the
/// log is begun anew, which changes its header in one way only; and the file is never shorter than what is in it.
#[derive(Debug)]
pub struct LogWatch {
    path: PathBuf,
    file: File,
    /// As of the last look.
    known: Option<Known>,
}

/// What a log must still have: its header, and the head of the frame that was its last.
#[derive(Debug)]
struct Known {
    header: Header,
    frame: u64,
    head: [u8; FRAME_HEAD_BYTES],
}

impl LogWatch {
    /// Watches the log at `path`. SQLite holds no locks on it, so another handle does no harm.
    pub fn open(path: &Path) -> io::Result<LogWatch> {
        Ok(LogWatch { path: path.to_owned(), file: File::open(path)?, known: None })
    }

    /// Whether nobody but the writer has changed the log, in which it has so many frames, as SQLite counts them. To be asked
    /// while the writer does not write. A log that cannot be read now says nothing.
    pub fn look(&mut self, frames: u64) -> Result<(), String> {
        if frames == 0 {
            // Begun anew, and nothing written yet.
            self.known = None;
            return Ok(());
        }
        match self.compare(frames) {
            Ok(true) => Ok(()),
            Ok(false) => Err(overwritten(&self.path)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(overwritten(&self.path)),
            Err(_) => Ok(()),
        }
    }

    /// As [`LogWatch::look`], and whether each of the frames is the one that was written. To be asked before the log is copied
    /// into the database for good: what is damaged in it would be damaged there, and no start could tell. Reads all of it.
    pub fn read(&mut self, frames: u64) -> Result<(), String> {
        self.look(frames)?;
        match self.is_good(frames) {
            Ok(true) => Ok(()),
            Ok(false) => Err(overwritten(&self.path)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(overwritten(&self.path)),
            Err(_) => Ok(()),
        }
    }

    fn is_good(&self, frames: u64) -> io::Result<bool> {
        if frames == 0 {
            return Ok(true);
        }
        let mut header = [0; HEADER_BYTES];
        read_at(&self.file, 0, &mut header)?;
        let Some(page_bytes) = Header::read(&header).map(|header| header.page_bytes()) else {
            return Ok(false);
        };
        let mut scanner = Scanner::new(&header, u32::try_from(page_bytes).unwrap_or(0));
        let mut frame = vec![0; FRAME_HEAD_BYTES + scanner.page_bytes()];
        let mut at = HEADER_BYTES as u64;
        for _ in 0..frames {
            read_at(&self.file, at, &mut frame)?;
            at += frame.len() as u64;
            let (head, page) = frame.split_at(FRAME_HEAD_BYTES);
            let mut heading = [0; FRAME_HEAD_BYTES];
            heading.copy_from_slice(head);
            scanner.frame(&heading, page);
        }
        Ok(scanner.is_good())
    }

    fn compare(&mut self, frames: u64) -> io::Result<bool> {
        let mut header = [0; HEADER_BYTES];
        read_at(&self.file, 0, &mut header)?;
        let Some(header) = Header::read(&header) else { return Ok(false) };
        let place =
            |frame: u64| HEADER_BYTES as u64 + (frame - 1) * (FRAME_HEAD_BYTES as u64 + header.page_bytes());
        if self.file.metadata()?.len() < place(frames + 1) {
            return Ok(false);
        }
        let mut same = false;
        if let Some(known) = &self.known {
            same = header == known.header;
            let mut head = [0; FRAME_HEAD_BYTES];
            if same {
                read_at(&self.file, place(known.frame), &mut head)?;
            }
            if !header.follows(&known.header) || (same && (frames < known.frame || head != known.head)) {
                return Ok(false);
            }
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        read_at(&self.file, place(frames), &mut head)?;
        let own = header.is_of(&head);
        self.known = own.then_some(Known { header, frame: frames, head });
        // Somebody's database shell may have begun the log anew with a write of its own, and then the last frame of ours is
        // behind it.
        Ok(own || !same)
    }
}

/// Reads bytes at a place, where that moves no other reader.
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, at);
    #[cfg(not(unix))]
    return Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!("{file:?} at {at}: {} bytes", bytes.len()),
    ));
}

fn overwritten(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    format!("{name} was overwritten or cut while it was in use")
}

/// What tells the file at `path` from any other.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    fs::metadata(path).map(|metadata| identity_of(&metadata))
}

/// Device and number of a file, where the system has such.
fn identity_of(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    #[cfg(unix)]
    return Some((
        std::os::unix::fs::MetadataExt::dev(metadata),
        std::os::unix::fs::MetadataExt::ino(metadata),
    ));
    #[cfg(not(unix))]
    return metadata.is_file().then_some((0, 0));
}

/// Whether the open file has no name any more.
pub fn is_removed(file: &File) -> bool {
    #[cfg(unix)]
    return file.metadata().is_ok_and(|metadata| std::os::unix::fs::MetadataExt::nlink(&metadata) == 0);
    #[cfg(not(unix))]
    return false;
}
