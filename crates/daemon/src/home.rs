//! The daemon's directory: made for its owner alone, held by one daemon at a time; keys and other secrets in files
//! that nobody else can read.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use tenure_proto::text;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another daemon has it.
    #[error("another daemon runs here: {0}")]
    Held(String),
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
    /// A key is not one.
    #[error("{0} is not a key: 64 hex digits")]
    NotAKey(PathBuf),
}

/// Adds to an error what was to be done with which file.
pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    move |error| HomeError::File { what, path: path.to_owned(), error }
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
        let lock_path = path.join("daemon.lock");
        let mut lock = private().open(&lock_path).map_err(file("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Whoever has just taken it may not have said so yet.
                let _ = lock.read_to_string(&mut holder);
                let holder = if holder.is_empty() { "it does not say who it is" } else { holder.trim() };
                return Err(HomeError::Held(holder.to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(file("lock", &lock_path)(error)),
        }
        let who = format!("process {} holds {}\n", std::process::id(), path.display());
        lock.set_len(0).and_then(|()| lock.write_all(who.as_bytes())).map_err(file("write", &lock_path))?;
        Ok(Home { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("daemon.sock")
    }

    /// The member's key, made on first use; the same file that the command uses.
    pub(crate) fn member_key(&self) -> Result<SigningKey, HomeError> {
        self.key(&self.path.join("keys").join("member.key"))
    }

    /// The key of the session called `name`, made on first use; the same file that the command uses.
    pub(crate) fn session_key(&self, mesh: &str, name: &str) -> Result<SigningKey, HomeError> {
        let file = format!("{mesh}.{}.key", text::hex(name.as_bytes()));
        self.key(&self.path.join("keys").join("sessions").join(file))
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
                write_private(path, &random_hex()?)?;
                fs::read_to_string(path).map_err(file("read", path))
            }
            read => read.map_err(file("read", path)),
        }
    }
}

/// 64 random hex digits.
pub(crate) fn random_hex() -> Result<String, HomeError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| file("draw randomness for", Path::new("a key"))(io::Error::other(error)))?;
    Ok(text::hex(&bytes))
}

/// Writes a file aside, syncs it and puts it in place: nobody ever reads half of one.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), HomeError> {
    if let Some(dir) = path.parent() {
        make_dir(dir).map_err(file("make directory", dir))?;
    }
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = private().truncate(true).open(&aside)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    write().map_err(file("write", path))
}

/// Makes a directory for its owner alone; one that exists keeps the mode its owner gave it.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_second_daemon_is_told_who_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::hold(dir.path()).unwrap();
        let refused = Home::hold(dir.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(home);
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
}
