//! What this machine keeps: keys, in files that only their owner can read.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tenure_client::SigningKey;
use tenure_client::proto::text;

use crate::exit::Failure;

/// The directory of `TENURE_HOME`, or the place XDG gives to data.
#[derive(Clone, Debug)]
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn find() -> Result<Home, Failure> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = var("TENURE_HOME")
            .or_else(|| var("XDG_DATA_HOME").map(|dir| dir.join("tenure")))
            .or_else(|| var("HOME").map(|dir| dir.join(".local/share/tenure")));
        home.map(|home| Home(warned(home)))
            .ok_or_else(|| Failure::Usage("set TENURE_HOME: there is no HOME to put keys in".to_owned()))
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The same, wherever the process goes.
    pub(crate) fn absolute(self) -> Result<Home, Failure> {
        let path = std::path::absolute(&self.0);
        path.map(Home).map_err(|error| Failure::Failed(format!("find {}: {error}", self.0.display())))
    }

    /// Where configuration is: with everything else if `TENURE_HOME` says where that is, else the place XDG gives to it.
    pub(crate) fn config_dir(&self) -> PathBuf {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if var("TENURE_HOME").is_some() {
            return self.0.clone();
        }
        let config = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|dir| dir.join(".config")));
        config.map_or_else(|| self.0.clone(), |dir| dir.join("tenure"))
    }

    /// Where a broker on this machine keeps its state.
    pub(crate) fn broker_dir(&self) -> PathBuf {
        self.0.join("broker")
    }

    pub(crate) fn keys_dir(&self) -> PathBuf {
        self.0.join("keys")
    }

    pub(crate) fn member_path(&self) -> PathBuf {
        self.keys_dir().join("member.key")
    }

    fn sessions_dir(&self) -> PathBuf {
        self.keys_dir().join("sessions")
    }

    /// The member's key, made on first use.
    pub(crate) fn member_key(&self) -> Result<SigningKey, Failure> {
        key_at(&self.member_path())
    }

    /// The key of the session called `name`, made on first use: the same name is the same session, so that its
    /// address stays while the process comes and goes.
    pub(crate) fn session_key(&self, mesh: &str, name: &str) -> Result<SigningKey, Failure> {
        let file = format!("{mesh}.{}.key", text::hex(name.as_bytes()));
        if file.len() > 255 {
            return Err(Failure::Usage("the session's name is too long to keep a key for it".to_owned()));
        }
        key_at(&self.sessions_dir().join(file))
    }

    /// Names of the sessions that have keys here, with their meshes.
    pub(crate) fn sessions(&self) -> Vec<(String, String, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(self.sessions_dir()) else { return Vec::new() };
        let mut found: Vec<_> = entries.flatten().filter_map(|entry| named(&entry.path())).collect();
        found.sort();
        found
    }
}

/// Says once when everybody on this machine could put keys into `home`. A daemon does not start there.
fn warned(home: PathBuf) -> PathBuf {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        if let Some((dir, mode)) = tenure_daemon::open_to_all(&home) {
            let dir = dir.display();
            eprintln!(
                "warning: everybody on this machine can put keys into {dir} (mode {mode:04o}); run `chmod 700 {dir}`"
            );
        }
    });
    home
}

fn named(path: &Path) -> Option<(String, String, PathBuf)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".key")?;
    let (mesh, hex) = stem.rsplit_once('.')?;
    let name = String::from_utf8(text::unhex(hex)?).ok()?;
    Some((mesh.to_owned(), name, path.to_owned()))
}

/// The key in the file at `path`; a new one is made, readable by its owner only, when there is none.
pub(crate) fn key_at(path: &Path) -> Result<SigningKey, Failure> {
    let failed =
        |what: &str, error: std::io::Error| Failure::Failed(format!("{what} {}: {error}", path.display()));
    match std::fs::read_to_string(path) {
        Ok(text) => {
            warn_if_open(path);
            let seed = text::unhex_array(text.trim());
            let help = || Failure::Failed(format!("{} is not a key: 64 hex digits", path.display()));
            seed.map(|seed| SigningKey::from_bytes(&seed)).ok_or_else(help)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match make_key(path) {
            Ok(key) => Ok(key),
            // Another process was faster: its key is the key.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => key_at(path),
            Err(error) => Err(failed("make", error)),
        },
        Err(error) => Err(failed("read", error)),
    }
}

/// Says so when others than the owner can get at a key.
fn warn_if_open(path: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(path) {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            let path = path.display();
            eprintln!("warning: others can read the key {path} (mode {mode:03o}); run `chmod 600 {path}`");
        }
    }
}

/// Writes a new key aside and links it into place, so that nobody ever reads half of one.
fn make_key(path: &Path) -> std::io::Result<SigningKey> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
    if let Some(dir) = path.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir)?;
    }
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    writeln!(file, "{}", text::hex(&seed))?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&aside, path);
    std::fs::remove_file(&aside)?;
    linked?;
    Ok(SigningKey::from_bytes(&seed))
}
