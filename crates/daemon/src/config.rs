//! What a daemon is told before it starts: validated values, no strings of the operator's to parse.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tenure_proto::name::MeshName;

use crate::outbox::{CAP, Cap};
use crate::serve::PATIENCE;

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its state lives: keys, files, the socket.
    pub home: PathBuf,
    /// The meshes it is in; the first is meant when a request names none. At least one.
    pub meshes: Vec<MeshChoice>,
    /// What peers see of the daemon's own session.
    pub name: String,
    /// A loopback address to listen on besides the Unix socket.
    pub tcp: Option<SocketAddr>,
    /// Origins that may call over TCP; every other is refused.
    pub allowed_origins: Vec<String>,
    /// How much the outbox may hold.
    pub outbox_cap: Cap,
    /// How much the inbox may hold.
    pub inbox_cap: Cap,
    /// Hours that a message may wait for the broker, unless the broker's memory says otherwise.
    pub max_age_hours: Option<u64>,
    /// A directory whose programs are run with what comes: `on-message`, `on-dm`, `on-topic-NAME`. None are, unless
    /// this is set.
    pub hooks: Option<PathBuf>,
    /// How long a client may take for a request's head, and then for its body.
    pub patience: Duration,
    /// Lines that the log of this process could not write: whoever writes the log counts, the daemon tells.
    pub log_lines_lost: Arc<AtomicU64>,
}

/// A mesh, and where its broker is.
#[derive(Clone, Debug)]
pub struct MeshChoice {
    /// The mesh.
    pub name: MeshName,
    /// Its broker: `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub broker: String,
    /// Whom to believe about a broker at `wss://`, certificates in PEM; absent is whom this system believes.
    pub authority: Option<Vec<u8>>,
}

impl Config {
    /// A daemon in `home`, in one mesh.
    pub fn new(home: PathBuf, mesh: MeshChoice, name: &str) -> Config {
        Config {
            home,
            meshes: vec![mesh],
            name: name.to_owned(),
            tcp: None,
            allowed_origins: Vec::new(),
            outbox_cap: CAP,
            inbox_cap: CAP,
            max_age_hours: None,
            hooks: None,
            patience: PATIENCE,
            log_lines_lost: Arc::default(),
        }
    }
}
