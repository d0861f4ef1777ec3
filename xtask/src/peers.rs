//! `cargo xtask bench setup`: the peers that `bench compare` measures beside us, installed by name from Debian and npm.
//!
//! Debian packages go where Debian puts them, and none of their services is started; what npm installs, and a nats-server
//! that is newer than an older Debian's, go into a folder under `target`. Whatever cannot be installed is named, and
//! `compare` will skip it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::{apt, run};

/// Servers that Debian has.
const DEBIAN: &[&str] = &["nats-server", "rabbitmq-server", "redis-server", "mosquitto", "postgresql"];
/// What the packages from npm run on and come by, and the Debian package that has it; asked for only where it is missing, for
/// many have a newer one than Debian's, which comes with an npm of its own.
const NODE: &[(&str, &str)] = &[("node", "nodejs"), ("npm", "npm")];
/// What npm has.
const NPM: &[&str] = &["socket.io", "socket.io-client", "ws"];
/// The first nats-server that can sync every message.
const NATS_MIN: (u32, u32) = (2, 10);
/// The Debian release that has it.
const NATS_SUITE: &str = "trixie";

/// Where peers are that the system does not have.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(run::target_directory()?.join("bench-peers"))
}

/// Installs all of them.
pub(crate) fn setup(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`setup` takes no arguments, got `{arg}`");
    }
    let folder = folder()?;
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut failed = Vec::new();
    let mut attempt = |what: &str, done: Result<()>| match done {
        Ok(()) => println!("{what}: installed"),
        Err(error) => {
            eprintln!("{what}: {error:#}");
            failed.push(what.to_owned());
        }
    };
    let missing = |program: &str| !run::works(Command::new(program).arg("--version"));
    let node = NODE.iter().filter(|(program, _)| missing(program)).map(|(_, package)| package);
    for package in DEBIAN.iter().chain(node) {
        attempt(package, apt::install(package));
    }
    attempt("nats-server with sync_interval", nats(&folder));
    attempt("packages from npm", npm(&folder));
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("not installed, and skipped by `bench compare`: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn npm(folder: &Path) -> Result<()> {
    eprintln!("npm install {} into {}", NPM.join(" "), folder.display());
    run::succeed(Command::new("npm").arg("install").arg("--prefix").arg(folder).args(NPM))
}

/// Fetches a newer nats-server from the next Debian, unless the one that is here will do.
fn nats(folder: &Path) -> Result<()> {
    if nats_version(Path::new("nats-server")).is_ok_and(|version| version >= NATS_MIN) {
        return Ok(());
    }
    eprintln!("nats-server of {NATS_SUITE} into {}", folder.display());
    let scratch = folder.join("apt");
    fs::create_dir_all(scratch.join("lists"))?;
    let sources = scratch.join("sources.list");
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(&sources, format!("deb [signed-by={keys}] http://deb.debian.org/debian {NATS_SUITE} main\n"))?;
    let get = |verb: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(&scratch);
        for (name, value) in [
            ("Dir::Etc::sourcelist", sources.display().to_string()),
            ("Dir::Etc::sourceparts", "-".to_owned()),
            ("Dir::State::lists", scratch.join("lists").display().to_string()),
        ] {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        run::succeed(command.args(verb))
    };
    get(&["update"])?;
    get(&["download", "nats-server"])?;
    let file = fs::read_dir(&scratch)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded nothing")?;
    run::succeed(Command::new("dpkg").arg("-x").arg(file).arg(folder))?;
    fs::remove_dir_all(&scratch)?;
    let version = nats_version(&folder.join("usr/sbin/nats-server"))?;
    if version < NATS_MIN {
        bail!("{NATS_SUITE} has nats-server {}.{} only", version.0, version.1);
    }
    Ok(())
}

fn nats_version(program: &Path) -> Result<(u32, u32)> {
    let said = run::output(Command::new(program).arg("--version"))?;
    parse(&String::from_utf8_lossy(&said)).context("nats-server does not say its version")
}

/// Of `nats-server: v2.10.27`.
fn parse(said: &str) -> Option<(u32, u32)> {
    let mut parts = said.trim().rsplit_once('v')?.1.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_compared_by_its_numbers() {
        assert_eq!(parse("nats-server: v2.10.27\n"), Some((2, 10)));
        assert!(parse("nats-server: v2.9.10").unwrap() < NATS_MIN);
        assert_eq!(parse("no"), None);
    }
}
