//! Which way a command goes: through the daemon when one runs, straight to the broker when not.

use clap::Args;
use serde_json::{Value, json};

use super::Where;
use crate::exit::Failure;
use crate::home::Home;
use crate::local::{Local, escaped};

/// How a command gets to the mesh.
#[derive(Clone, Debug, Args)]
pub(crate) struct Way {
    /// Go straight to the broker, also when a daemon runs
    #[arg(long)]
    direct: bool,
    /// Speak for the daemon's session with this token, which `tenure daemon session` prints
    #[arg(long = "session", value_name = "TOKEN", env = "TENURE_SESSION", hide_env_values = true)]
    token: Option<String>,
    /// Say on stderr which way it goes, and why
    #[arg(short, long)]
    verbose: bool,
}

/// The way through the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Through {
    pub(crate) local: Local,
    /// The mesh, if one was asked for; the session's or the daemon's first otherwise.
    pub(crate) mesh: Option<String>,
}

impl Through {
    /// The mesh as the end of a query, after other parameters.
    pub(crate) fn and_mesh(&self) -> String {
        self.mesh.as_deref().map(|mesh| format!("&mesh={}", escaped(mesh))).unwrap_or_default()
    }
}

impl Way {
    /// Whether a session of the daemon's is meant.
    pub(crate) fn has_session(&self) -> bool {
        self.session().is_some()
    }

    /// The token of the session that is meant. A variable that is empty is one that is not set.
    fn session(&self) -> Option<String> {
        self.token.clone().filter(|token| !token.is_empty())
    }

    /// The daemon, if this goes through it. `name` is the session that is meant, `broker_only` what only a broker can do.
    pub(crate) async fn through(
        &self,
        at: &Where,
        name: Option<&str>,
        broker_only: Option<&str>,
    ) -> Result<Option<Through>, Failure> {
        match self.choose(at, name, broker_only).await? {
            Ok(through) => {
                self.say(&format!("through the daemon at {}", through.local.socket().display()));
                Ok(Some(through))
            }
            Err(why) => {
                self.say(&format!("straight to the broker at {}: {why}", at.broker()));
                Ok(None)
            }
        }
    }

    /// The daemon, or why not.
    async fn choose(
        &self,
        at: &Where,
        name: Option<&str>,
        broker_only: Option<&str>,
    ) -> Result<Result<Through, String>, Failure> {
        if self.direct {
            return Ok(Err("--direct".to_owned()));
        }
        if let Some(why) = broker_only {
            return Ok(Err(format!("{why} is the broker's alone")));
        }
        let local = Local::at(&Home::find()?);
        if !local.runs().await? {
            // Whoever has a token means a session that only a daemon has.
            return if self.has_session() {
                Err(local.absent())
            } else {
                Ok(Err("no daemon runs".to_owned()))
            };
        }
        let mesh = match (&at.mesh, &at.broker) {
            // Nothing was asked for in particular.
            (None, None) if name.is_none() => {
                return Ok(Ok(Through { local: local.speaking_as(self.session()), mesh: None }));
            }
            (None, None) => None,
            _ => Some(at.mesh().to_owned()),
        };
        let status = local.get("/v1/status?counts=false").await?;
        let Some(found) = mesh_of(&status, mesh.as_deref()) else {
            return Ok(Err(format!("the daemon is not in the mesh {}", at.mesh())));
        };
        if at.broker.as_deref().is_some_and(|broker| !is_at(found, broker)) {
            return Ok(Err("the daemon's broker is another".to_owned()));
        }
        let Some(name) = name else {
            return Ok(Ok(Through { local: local.speaking_as(self.session()), mesh }));
        };
        let held = |session: &&Value| {
            session["name"] == name && session["mesh"] == found["name"] && session["own"] == false
        };
        if !status["sessions"].as_array().into_iter().flatten().any(|session| held(&session)) {
            return Ok(Err(format!("the daemon has no session called {name:?}")));
        }
        let made = local.post("/v1/sessions", &json!({"mesh": found["name"], "name": name})).await?;
        let token = made["token"].as_str().map(str::to_owned);
        Ok(Ok(Through { local: local.speaking_as(token), mesh }))
    }

    fn say(&self, which: &str) {
        if self.verbose {
            eprintln!("{which}");
        }
    }
}

/// What a status says of a mesh; of the first, if none is named.
fn mesh_of<'a>(status: &'a Value, mesh: Option<&str>) -> Option<&'a Value> {
    let mut meshes = status["meshes"].as_array()?.iter();
    match mesh {
        Some(mesh) => meshes.find(|found| found["name"] == mesh),
        None => meshes.next(),
    }
}

/// Whether the broker of a mesh, as a status tells it, is the one at this address.
fn is_at(mesh: &Value, broker: &str) -> bool {
    mesh["broker"].as_str().is_some_and(|daemons| plain(daemons) == plain(broker))
}

/// An address in one spelling: those of this machine are one, and what is left out is what it means.
fn plain(url: &str) -> String {
    let url = url.trim_end_matches('/').to_ascii_lowercase();
    let (scheme, rest) = url.split_once("://").unwrap_or(("ws", &url));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        _ => (authority, if scheme == "wss" { "443" } else { "80" }),
    };
    let host = if matches!(host, "localhost" | "[::1]") { "127.0.0.1" } else { host };
    format!("{scheme}://{host}:{port}/{path}")
}

/// Refuses to take the session of the member's own key from the daemon that holds it: that would be the daemon's end.
pub(crate) async fn not_the_daemons(at: &Where) -> Result<(), Failure> {
    let home = Home::find()?;
    let local = Local::at(&home);
    if !local.runs().await? {
        // One that starts or stops, or whose socket somebody deleted, holds the session all the same.
        return match tenure_daemon::holder(home.path()) {
            Ok(Some(holder)) => Err(Failure::Unreachable(format!(
                "a daemon holds the member's own session and does not answer: {holder}; end it, or name another \
                 session with --as"
            ))),
            _ => Ok(()),
        };
    }
    let status = local.get("/v1/status?counts=false").await?;
    match mesh_of(&status, Some(at.mesh())) {
        Some(found) if is_at(found, at.broker()) => Err(Failure::Usage(
            "the daemon holds the member's own session; leave out --direct, name another with --as, or end the \
             daemon with `tenure daemon down`"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_broker_has_several_spellings() {
        let one = plain("ws://127.0.0.1:7400");
        for other in ["ws://localhost:7400", "WS://LocalHost:7400/", "ws://[::1]:7400"] {
            assert_eq!(plain(other), one, "{other}");
        }
        assert_eq!(plain("wss://b.example"), plain("wss://b.example:443/"));
        for other in ["ws://127.0.0.1:7401", "wss://127.0.0.1:7400", "ws://127.0.0.1:7400/x", "ws://b:7400"] {
            assert_ne!(plain(other), one, "{other}");
        }
    }
}
