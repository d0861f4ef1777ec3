//! The daemon's directory: made for its owner alone, held by one daemon at a time; keys and other secrets in files
//! that nobody else can read.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use tenure_proto::text;

use crate::clock::Clock;
use crate::disk;
use crate::utc::utc;

/// How often a lock that somebody has is tried, and how long apart: who only looks whether it is held has it for an
/// instant.
const TRIES: u32 = 5;
const APART: Duration = Duration::from_millis(20);
/// Bytes of a lock file that are read.
const LOCK_BYTES: u64 = 256;
/// The bit of a directory's mode by which only the owner of a file in it may remove or replace that.
const STICKY: u32 = 0o1000;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another daemon has it.
    #[error("another daemon runs here: {0}; end it with `tenure daemon down`")]
    Held(Holder),
    /// A file cannot be used.
    #[error("{what} {path}: {error}")]
    File {
        /// What was to be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it was not.
        #[source]
        error: io::Error,
    },
    /// Everybody on this machine can put files there, keys among them.
    #[error(
        "{path} can be written by everybody on this machine (mode {mode:04o}), who could put keys of their own there; \
         run `chmod 700 {path}`", path = .path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A key is not one.
    #[error("{0} is not a key: 64 hex digits")]
    NotAKey(PathBuf),
}

/// Adds to an error what was to be done with which file.
pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    move |error| HomeError::File { what, path: path.to_owned(), error }
}

/// Who has a directory, as far as that was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: Option<u32>,
    /// Since when.
    pub since: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever has just taken it may not have said so yet.
        let Some(pid) = self.pid else { return f.write_str("a process that has not said who it is") };
        write!(f, "process {pid}")?;
        self.since.as_ref().map_or(Ok(()), |since| write!(f, " since {since}"))
    }
}

/// The socket of the daemon whose directory this is.
pub fn socket_path(home: &Path) -> PathBuf {
    home.join("daemon.sock")
}

/// Who has this directory now; nobody, if no daemon runs there.
pub fn holder(home: &Path) -> Result<Option<Holder>, HomeError> {
    let path = lock_path(home);
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file("open", &path)(error)),
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(read_holder(&lock))),
        Err(TryLockError::Error(error)) => Err(file("lock", &path)(error)),
    }
}

/// The first directory of those that hold keys which everybody can write to, and its mode.
pub fn open_to_all(home: &Path) -> Option<(PathBuf, u32)> {
    let keys = home.join("keys");
    let dirs = [home.to_owned(), keys.join("sessions"), keys];
    dirs.into_iter().find_map(|dir| {
        let mode = fs::metadata(&dir).ok()?.permissions().mode() & 0o7777;
        (mode & 0o002 != 0).then_some((dir, mode))
    })
}

pub(crate) fn lock_path(home: &Path) -> PathBuf {
    home.join("daemon.lock")
}

/// What a lock's file says: a process and a moment.
fn read_holder(lock: &File) -> Holder {
    let mut text = String::new();
    let _ = lock.take(LOCK_BYTES).read_to_string(&mut text);
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok());
    Holder { pid, since: words.next().map(str::to_owned) }
}

/// The directory, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    /// Holds the lock by being open; it goes with the process, however that ends.
    _lock: File,
}

impl Home {
    /// Makes the directory if it is missing, and takes it; says who has it if somebody does.
    pub(crate) fn hold(path: &Path) -> Result<Home, HomeError> {
        make_dir(path).map_err(file("make directory", path))?;
        match open_to_all(path) {
            // With the sticky bit others can make files there, but not replace ours.
            Some((path, mode)) if mode & STICKY != 0 => {
                tracing::warn!(event = "home_open", path = %path.display(), mode = format!("{mode:04o}"));
            }
            Some((path, mode)) => return Err(HomeError::Open { path, mode }),
            None => {}
        }
        let lock_path = lock_path(path);
        let mut lock = private().open(&lock_path).map_err(file("open", &lock_path))?;
        let mut tries = 1..TRIES;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries.next().is_some() => std::thread::sleep(APART),
                Err(TryLockError::WouldBlock) => return Err(HomeError::Held(read_holder(&lock))),
                Err(TryLockError::Error(error)) => return Err(file("lock", &lock_path)(error)),
            }
        }
        let who = format!("{} {}\n", std::process::id(), utc(Clock::start().wall()));
        let mut write = || lock.set_len(0).and_then(|()| lock.write_all(who.as_bytes()));
        // What was kept for a full disk is for this as well.
        let written = write().or_else(|error| if disk::release(path) > 0 { write() } else { Err(error) });
        written.map_err(file("write", &lock_path))?;
        Ok(Home { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_path(&self.path)
    }

    /// The member's key, made on first use; the same file that the command uses.
    pub(crate) fn member_key(&self) -> Result<SigningKey, HomeError> {
        self.key(&self.path.join("keys").join("member.key"))
    }

    /// The key of the session called `name`, made on first use; the same file that the command uses.
    pub(crate) fn session_key(&self, mesh: &str, name: &str) -> Result<SigningKey, HomeError> {
        self.key(&self.session_key_path(mesh, name))
    }

    /// Whether there is a key of the session called `name`.
    pub(crate) fn has_session_key(&self, mesh: &str, name: &str) -> bool {
        self.session_key_path(mesh, name).exists()
    }

    fn session_key_path(&self, mesh: &str, name: &str) -> PathBuf {
        let file = format!("{mesh}.{}.key", text::hex(name.as_bytes()));
        self.path.join("keys").join("sessions").join(file)
    }

    fn key(&self, path: &Path) -> Result<SigningKey, HomeError> {
        let seed = self.secret(path)?;
        let seed = text::unhex_array(seed.trim()).ok_or_else(|| HomeError::NotAKey(path.to_owned()))?;
        Ok(SigningKey::from_bytes(&seed))
    }

    /// 64 random hex digits in a file of its own, made on first use.
    pub(crate) fn secret(&self, path: &Path) -> Result<String, HomeError> {
        match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private(path, &random_hex()?)?;
                fs::read_to_string(path).map_err(file("read", path))
            }
            read => read.map_err(file("read", path)),
        }
    }
}

/// 64 random hex digits.
pub(crate) fn random_hex() -> Result<String, HomeError> {
    random().map(|bytes| text::hex(&bytes))
}

/// A key that is on no disk.
pub(crate) fn random_key() -> Result<SigningKey, HomeError> {
    random().map(|seed| SigningKey::from_bytes(&seed))
}

fn random() -> Result<[u8; 32], HomeError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| file("draw randomness for", Path::new("a key"))(io::Error::other(error)))?;
    Ok(bytes)
}

/// Writes a file aside, syncs it and puts it in place: nobody ever reads half of one.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), HomeError> {
    put(path, content, |aside| fs::rename(aside, path))
}

/// Does the same for a file that must not be there yet; if somebody was faster, theirs stays.
fn make_private(path: &Path, content: &str) -> Result<(), HomeError> {
    put(path, content, |aside| {
        let linked = fs::hard_link(aside, path);
        fs::remove_file(aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    })
}

fn put(path: &Path, content: &str, place: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), HomeError> {
    /// Files that were written aside by this process: no two have one name.
    static ASIDE: AtomicU64 = AtomicU64::new(0);
    if let Some(dir) = path.parent() {
        make_dir(dir).map_err(file("make directory", dir))?;
    }
    let number = ASIDE.fetch_add(1, Ordering::Relaxed);
    let aside = path.with_extension(format!("new-{}-{number}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = private().truncate(true).open(&aside)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        place(&aside)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    write().map_err(file("write", path))
}

/// Makes a directory for its owner alone; one that exists keeps the mode its owner gave it.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// How a file is made that nobody else can read.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_directory_that_everybody_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir(dir.path().join("keys")).unwrap();
        for (path, mode) in [(dir.path().to_owned(), 0o777), (dir.path().join("keys"), 0o702)] {
            set(&path, mode);
            let refused = Home::hold(dir.path()).unwrap_err().to_string();
            let told = format!("(mode {mode:04o})");
            assert!(refused.contains(&told) && refused.contains("chmod 700"), "{refused}");
            assert!(!lock_path(dir.path()).exists(), "nothing was made there");
            set(&path, 0o775);
        }
        set(dir.path(), 0o1777);
        Home::hold(dir.path()).expect("a file system in memory has this mode");
    }

    #[test]
    fn the_second_daemon_is_told_who_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::hold(dir.path()).unwrap();
        let refused = Home::hold(dir.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {} since 20", std::process::id())), "{refused}");
        let told = holder(dir.path()).unwrap().unwrap();
        assert_eq!(told.pid, Some(std::process::id()));
        drop(home);
        assert_eq!(holder(dir.path()).unwrap(), None, "what the file says counts only while it is locked");
        assert_eq!(holder(&dir.path().join("nowhere")).unwrap(), None);
        Home::hold(dir.path()).unwrap();
    }

    #[test]
    fn keys_stay_and_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::hold(&dir.path().join("deep").join("er")).unwrap();
        let key = home.member_key().unwrap();
        assert_eq!(home.member_key().unwrap(), key);
        assert_ne!(home.session_key("default", "a").unwrap(), home.session_key("default", "b").unwrap());
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(home.path().join("keys/member.key")), 0o600);
        assert_eq!(mode(home.path().join("keys")), 0o700);
        fs::write(home.path().join("keys/member.key"), "nonsense").unwrap();
        assert!(matches!(home.member_key(), Err(HomeError::NotAKey(_))));
    }

    #[test]
    fn whoever_makes_a_key_at_the_same_time_gets_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::hold(dir.path()).unwrap();
        for name in 0..32 {
            let gate = std::sync::Barrier::new(8);
            let make = || {
                gate.wait();
                home.session_key("default", &name.to_string()).unwrap().to_bytes()
            };
            let keys: BTreeSet<[u8; 32]> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(keys.len(), 1, "session {name} has {} keys", keys.len());
        }
        let files = fs::read_dir(home.path().join("keys/sessions")).unwrap().count();
        assert_eq!(files, 32, "nothing is left lying about");
    }
}
