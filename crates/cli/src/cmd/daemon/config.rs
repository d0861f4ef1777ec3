//! What a daemon is told: flags over environment over `daemon.toml` over defaults, checked before anything starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use tenure_client::{Options, random_key};
use tenure_daemon::outbox::Cap;
use tenure_daemon::{Config, MeshChoice};

use super::super::{Where, authority, hostname};
use crate::exit::Failure;
use crate::home::Home;

/// The least that a file of the daemon may be told to hold.
const CAP_LEAST: u64 = 1024 * 1024;
/// Meshes of one daemon.
const MESHES: usize = 64;

/// Where a daemon's configuration comes from besides its file.
#[derive(Clone, Debug, Args)]
pub(super) struct Sources {
    #[command(flatten)]
    at: Where,
    /// What peers see of the daemon's own session [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Listen here besides the Unix socket, on loopback only: --tcp 127.0.0.1:7410; calls need the token in daemon.token
    #[arg(long, value_name = "ADDR:PORT")]
    tcp: Option<SocketAddr>,
    /// Read this file instead of daemon.toml in the configuration directory
    #[arg(long, value_name = "FILE", env = "TENURE_DAEMON_CONFIG")]
    config: Option<PathBuf>,
    /// What to log, such as info or tenure_daemon=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "TENURE_LOG")]
    log: Option<String>,
    /// How to log: pretty or json [default: pretty]
    #[arg(long, value_name = "FORMAT", env = "TENURE_LOG_FORMAT")]
    log_format: Option<String>,
}

/// A checked configuration, and how to log.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) config: Config,
    pub(super) log: String,
    pub(super) log_json: bool,
}

/// What the file may say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    tcp: Option<SocketAddr>,
    #[serde(default)]
    allowed_origins: Vec<String>,
    outbox_cap_bytes: Option<u64>,
    inbox_cap_bytes: Option<u64>,
    max_age_hours: Option<u64>,
    /// Whether programs beside the file are run with what comes.
    #[serde(default)]
    hooks: bool,
    log: Option<String>,
    log_format: Option<String>,
    #[serde(default)]
    mesh: Vec<Mesh>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mesh {
    name: String,
    broker: String,
    /// Whom to believe about a broker at `wss://`, a PEM file.
    ca: Option<PathBuf>,
}

impl Sources {
    /// Everything together, checked.
    pub(super) fn check(&self, home: &Home) -> Result<Checked, Failure> {
        let (file, from) = self.file(home)?;
        let bad = |field: &str, why: String| Failure::Usage(format!("{from}: {field}: {why}"));
        let meshes = match (&self.at.broker, &self.at.mesh, file.mesh.is_empty()) {
            (None, None, false) => file.mesh,
            // Who names a mesh or a broker means that one alone.
            _ => {
                let (name, broker) = (self.at.mesh().to_owned(), self.at.broker().to_owned());
                vec![Mesh { name, broker, ca: self.at.ca().map(Path::to_owned) }]
            }
        };
        if meshes.len() > MESHES {
            return Err(bad("mesh", format!("a daemon is in at most {MESHES} meshes")));
        }
        let name = self.name.clone().or(file.name).or_else(hostname).unwrap_or_else(|| "daemon".to_owned());
        let mut choices: Vec<MeshChoice> = Vec::new();
        for mesh in meshes {
            let choice = choice(mesh, &name).map_err(|(field, why)| bad(field, why))?;
            if choices.iter().any(|other| other.name == choice.name) {
                return Err(bad("mesh.name", format!("{} is there twice", choice.name)));
            }
            choices.push(choice);
        }
        let cap = |field: &str, bytes: Option<u64>, cap: Cap| match bytes {
            Some(bytes) if bytes < CAP_LEAST => Err(bad(field, format!("at least {CAP_LEAST} bytes"))),
            bytes => Ok(bytes.map_or(cap, |bytes| Cap { bytes })),
        };
        let first = choices.remove(0);
        let mut config = Config::new(home.path().to_owned(), first, &name);
        config.meshes.extend(choices);
        config.tcp = self.tcp.or(file.tcp);
        if config.tcp.is_some_and(|addr| !addr.ip().is_loopback()) {
            return Err(bad(
                "tcp",
                "the daemon listens on loopback only: its token is not encrypted".to_owned(),
            ));
        }
        config.allowed_origins = file.allowed_origins;
        config.outbox_cap = cap("outbox_cap_bytes", file.outbox_cap_bytes, config.outbox_cap)?;
        config.inbox_cap = cap("inbox_cap_bytes", file.inbox_cap_bytes, config.inbox_cap)?;
        config.max_age_hours = file.max_age_hours;
        config.hooks = file.hooks.then(|| home.config_dir());
        if config.max_age_hours == Some(0) {
            return Err(bad("max_age_hours", "at least 1".to_owned()));
        }
        let log = self.log.clone().or(file.log).unwrap_or_else(|| "info".to_owned());
        let log_json = match self.log_format.clone().or(file.log_format).as_deref() {
            None | Some("pretty") => false,
            Some("json") => true,
            Some(other) => return Err(bad("log_format", format!("json or pretty, not {other:?}"))),
        };
        Ok(Checked { config, log, log_json })
    }

    /// What the file says, and what to call it in an error.
    fn file(&self, home: &Home) -> Result<(File, String), Failure> {
        let path = self.config.clone().unwrap_or_else(|| home.config_dir().join("daemon.toml"));
        let name = path.display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((parse(&path, &text)?, name)),
            // Only a file that was asked for must be there.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.config.is_none() => {
                Ok((File::default(), "configuration".to_owned()))
            }
            Err(error) => Err(Failure::Usage(format!("read {name}: {error}"))),
        }
    }
}

/// Reads the file; an error is one sentence with the line.
fn parse(path: &Path, text: &str) -> Result<File, Failure> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        let why = error.message().trim().replace('\n', " ");
        Failure::Usage(format!("{}{line}: {why}", path.display()))
    })
}

/// A mesh, or the field that is wrong and why.
fn choice(mesh: Mesh, name: &str) -> Result<MeshChoice, (&'static str, String)> {
    let choice = MeshChoice {
        name: mesh
            .name
            .parse()
            .map_err(|error: tenure_client::proto::WireError| ("mesh.name", error.message))?,
        broker: mesh.broker,
        authority: mesh.ca.as_deref().map(authority).transpose().map_err(|why| ("mesh.ca", why))?,
    };
    let key = random_key().map_err(|error| ("name", error.to_string()))?;
    match Options::new(&choice.broker, key.clone(), "daemon") {
        Err(error) => Err(("mesh.broker", error.to_string())),
        Ok(options) => match Options::new(&choice.broker, key, name) {
            Err(error) => Err(("name", error.to_string())),
            Ok(_) => match choice.authority.as_deref().map(|pem| options.authority(pem)) {
                Some(Err(error)) => Err(("mesh.ca", error.to_string())),
                _ => Ok(choice),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_off_unless_asked_for() {
        let hooks = |text: &str| parse(Path::new("daemon.toml"), text).map(|file| file.hooks).unwrap();
        assert_eq!((hooks(""), hooks("hooks = true\n")), (false, true));
    }

    #[test]
    fn the_line_that_is_wrong_is_named() {
        let told = |text: &str| parse(Path::new("daemon.toml"), text).unwrap_err().to_string();
        let unknown = told("name = \"a\"\n\nhoks = true\n");
        assert!(unknown.starts_with("daemon.toml:3: ") && unknown.contains("hoks"), "{unknown}");
        assert!(!unknown.contains('\n'), "{unknown}");
        assert!(told("tcp = \"here\"\n").starts_with("daemon.toml:1: "));
        assert!(told("[[mesh]]\nname = \"a\"\n").contains("broker"));
    }
}
