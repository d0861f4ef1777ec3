//! One file per command, and how they connect.

mod administer;
pub(crate) mod audit;
pub(crate) mod ban;
pub(crate) mod broker;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod connect;
pub(crate) mod daemon;
pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod expose;
pub(crate) mod groups;
mod guest;
pub(crate) mod history;
pub(crate) mod inbox;
pub(crate) mod invite;
pub(crate) mod join;
pub(crate) mod keys;
pub(crate) mod kick;
mod letters;
pub(crate) mod members;
pub(crate) mod mesh;
mod names;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod publish;
mod reader;
pub(crate) mod runs;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod services;
pub(crate) mod session;
pub(crate) mod settings;
mod show;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod sub;
pub(crate) mod token;
pub(crate) mod topics;
mod way;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tenure_client::proto::peer::Profile;
use tenure_client::proto::text::is_control_or_bidi;
use tenure_client::{Endpoint, Events, Options, Session, SessionEvent, random_key};

use crate::exit::Failure;
use crate::home::Home;
use crate::output::sentence;

/// How long a command that only asks waits for the broker.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the broker is, and which mesh.
#[derive(Clone, Debug, Args)]
pub(crate) struct Where {
    /// The broker's address [default: where `tenure join` went, or ws://127.0.0.1:7400]
    #[arg(long, value_name = "URL", env = "TENURE_BROKER", global = true)]
    pub(crate) broker: Option<String>,
    /// The mesh [default: the one that `tenure join` joined, or default]
    #[arg(long, value_name = "NAME", env = "TENURE_MESH", global = true)]
    pub(crate) mesh: Option<String>,
    /// Believe only this authority about a broker at wss://, a PEM file [default: those of the system]
    #[arg(long, value_name = "FILE", env = "TENURE_CA", global = true)]
    pub(crate) ca: Option<PathBuf>,
}

impl Where {
    /// The broker's address.
    pub(crate) fn broker(&self) -> &str {
        let joined = || join::joined().map(|joined| joined.broker.as_str());
        self.broker.as_deref().or_else(joined).unwrap_or("ws://127.0.0.1:7400")
    }

    /// The mesh.
    pub(crate) fn mesh(&self) -> &str {
        // A mesh that was joined is one of its broker's, and of no other.
        let joined = || join::joined().filter(|joined| joined.broker == self.broker());
        self.mesh.as_deref().or_else(|| joined().map(|joined| joined.mesh.as_str())).unwrap_or("default")
    }

    /// Whom to believe about the broker, if not those whom this system believes.
    pub(crate) fn ca(&self) -> Option<&Path> {
        // A variable that is empty is one that is not set.
        let named = self.ca.as_deref().filter(|path| !path.as_os_str().is_empty());
        let joined = || join::joined().filter(|joined| joined.broker == self.broker());
        named.or_else(|| joined().and_then(|joined| joined.ca.as_deref()))
    }

    /// The broker, and whom to believe about it.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Failure> {
        let endpoint = Endpoint::new(self.broker())?;
        match self.ca().map(authority).transpose().map_err(Failure::Usage)? {
            Some(pem) => Ok(endpoint.believing(&pem)?),
            None => Ok(endpoint),
        }
    }

    /// A session of this machine's member that lives as long as one command.
    async fn visit(&self, name: &str) -> Result<(Session, Events), Failure> {
        let options = self
            .bringing(Options::new(self.broker(), Home::find()?.member_key()?, name)?)?
            .session_key(random_key()?)
            .mesh(self.mesh())?
            .profile(Profile {
                host: hostname(),
                tags: vec![guest::VISIT.to_owned()],
                ..Profile::named(name)
            })?
            .client("tenure", env!("CARGO_PKG_VERSION"));
        self.connect(options).await
    }

    /// The same with the bearer token of `TENURE_TOKEN`, if there is one.
    fn bringing(&self, options: Options) -> Result<Options, Failure> {
        let options = self.believing(options)?;
        Ok(match std::env::var("TENURE_TOKEN").ok().filter(|token| !token.is_empty()) {
            Some(token) => options.token(&token),
            None => options,
        })
    }

    /// The same, believing whom it should about the broker.
    fn believing(&self, options: Options) -> Result<Options, Failure> {
        match self.ca().map(authority).transpose().map_err(Failure::Usage)? {
            Some(pem) => Ok(options.authority(&pem)?),
            None => Ok(options),
        }
    }

    /// Joins within the patience of somebody at a terminal.
    async fn connect(&self, options: Options) -> Result<(Session, Events), Failure> {
        let mut last = None;
        let meanwhile = |event: &SessionEvent| {
            if let SessionEvent::Waiting { reason, answered, .. } = event {
                last = Some((sentence(reason), *answered));
            }
        };
        match tokio::time::timeout(PATIENCE, Session::connect_with(options, meanwhile)).await {
            Ok(connected) => Ok(connected?),
            Err(_) => Err(self.unanswered(last)),
        }
    }

    /// Why a visit came to nothing: the last reason, and whether somebody gave it.
    fn unanswered(&self, last: Option<(String, bool)>) -> Failure {
        let why = match last {
            Some((reason, true)) => {
                return Failure::Refused(format!("{} does not let us in: {reason}", self.broker()));
            }
            Some((reason, false)) => format!(" ({reason})"),
            None => String::new(),
        };
        Failure::Unreachable(format!(
            "no broker answers at {}{why}; start one with `tenure broker`, or name another with --broker",
            self.broker()
        ))
    }
}

/// The certificates in a file, or why there are none.
fn authority(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("read the authority {}: {error}", path.display()))
}

/// The machine's name, for peers to see.
fn hostname() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())?;
    Some(shown(name.trim())).filter(|name| !name.is_empty())
}

/// A fact of this machine as others may be shown it: a broker refuses control characters in a profile.
fn shown(text: &str) -> String {
    text.chars().map(|c| if is_control_or_bidi(c) { '\u{fffd}' } else { c }).collect()
}

/// Says goodbye and waits until the broker has heard it.
async fn leave(session: Session, mut events: Events) {
    session.bye().await;
    while events.next().await.is_ok() {}
}
