//! The systems that are compared, each in a file of its own.

mod mosquitto;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod socketio;
mod tenure;
mod ws;

use std::path::PathBuf;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::peer::{Answer, Peer};
use super::server::{Line, find_program};
use tenure_bench::broker::BrokerArgs;

/// Where systems are found, and where their data goes.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) broker: BrokerArgs,
    /// What `cargo xtask bench setup` installed that is not the system's.
    pub(crate) peers: Option<PathBuf>,
}

impl Ground {
    /// A folder for a system's data, on the disk that is measured.
    fn fresh_dir(&self) -> Result<TempDir> {
        self.broker.fresh_dir()
    }

    /// Where programs are that the system does not have, or has too old.
    fn folders(&self) -> Vec<PathBuf> {
        let Some(peers) = &self.peers else { return Vec::new() };
        ["usr/sbin", "usr/bin"].iter().map(|folder| peers.join(folder)).collect()
    }
}

/// Every system there is to compare, ourselves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Tenure,
    TenureSdk,
    NatsAlways,
    NatsDefault,
    RabbitQuorum,
    RabbitClassic,
    RedisAlways,
    RedisEverysec,
    Mosquitto,
    Postgres,
    SocketIo,
    Ws,
    FloorWs,
}

impl Kind {
    /// All of them, in the order of tables.
    pub(crate) const ALL: [Kind; 13] = [
        Kind::Tenure,
        Kind::TenureSdk,
        Kind::NatsAlways,
        Kind::NatsDefault,
        Kind::RabbitQuorum,
        Kind::RabbitClassic,
        Kind::RedisAlways,
        Kind::RedisEverysec,
        Kind::Mosquitto,
        Kind::Postgres,
        Kind::SocketIo,
        Kind::Ws,
        Kind::FloorWs,
    ];

    /// Its name for programs, also on the command line.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Kind::Tenure => "tenure",
            Kind::TenureSdk => "tenure-sdk",
            Kind::NatsAlways => "nats-always",
            Kind::NatsDefault => "nats-default",
            Kind::RabbitQuorum => "rabbitmq-quorum",
            Kind::RabbitClassic => "rabbitmq-classic",
            Kind::RedisAlways => "redis-always",
            Kind::RedisEverysec => "redis-everysec",
            Kind::Mosquitto => "mosquitto",
            Kind::Postgres => "postgres",
            Kind::SocketIo => "socketio",
            Kind::Ws => "ws",
            Kind::FloorWs => "floor-ws",
        }
    }

    /// Whether it keeps messages at all; the others are there for sockets and presence.
    pub(crate) fn keeps_messages(self) -> bool {
        !matches!(self, Kind::SocketIo | Kind::Ws | Kind::FloorWs)
    }

    /// Whether its sessions are worth counting: of two configurations that differ in syncing only, one is enough.
    pub(crate) fn has_sessions(self) -> bool {
        !matches!(self, Kind::Tenure | Kind::NatsDefault | Kind::RabbitQuorum | Kind::RedisEverysec)
    }

    /// Whether it is the less durable one of two configurations, which a quick run leaves out where it takes long.
    pub(crate) fn is_second(self) -> bool {
        matches!(self, Kind::NatsDefault | Kind::RabbitClassic | Kind::RedisEverysec)
    }

    /// Starts it with fresh data; why not, when it is not installed.
    pub(crate) async fn start(self, ground: &Ground) -> Result<Answer<Box<dyn Peer>>> {
        let started = match self {
            Kind::Tenure => boxed(tenure::start(ground, false)),
            Kind::TenureSdk => boxed(tenure::start(ground, true)),
            Kind::NatsAlways => boxed(nats::start(ground, true).await),
            Kind::NatsDefault => boxed(nats::start(ground, false).await),
            Kind::RabbitQuorum => boxed(rabbitmq::start(ground, true).await),
            Kind::RabbitClassic => boxed(rabbitmq::start(ground, false).await),
            Kind::RedisAlways => boxed(redis::start(ground, true).await),
            Kind::RedisEverysec => boxed(redis::start(ground, false).await),
            Kind::Mosquitto => boxed(mosquitto::start(ground).await),
            Kind::Postgres => boxed(postgres::start(ground).await),
            Kind::SocketIo => boxed(socketio::start(ground).await),
            Kind::Ws => boxed(ws::start_node(ground).await),
            Kind::FloorWs => boxed(ws::start_floor(ground).await),
        };
        started.with_context(|| format!("start {}", self.key()))
    }
}

fn boxed<P: Peer + 'static>(started: Result<Answer<P>>) -> Result<Answer<Box<dyn Peer>>> {
    Ok(match started? {
        Answer::Yes(peer) => Answer::Yes(Box::new(peer)),
        Answer::No(why) => Answer::No(why),
    })
}

/// A client library of this build, with its version.
fn library(name: &str) -> String {
    const LOCKED: &str = include_str!("../../Cargo.lock");
    let package = format!("name = \"{name}\"\nversion = \"");
    let version = LOCKED.split_once(&package).and_then(|(_, rest)| rest.split('"').next());
    format!("{name} {}", version.unwrap_or("of unknown version"))
}

/// Node with the packages that were set up, and the version of `package` among them.
fn node(ground: &Ground, package: &str) -> Answer<(Line, String)> {
    let Some(node) = find_program("node", &[]) else { return Answer::No("node is not installed") };
    let Some(peers) = &ground.peers else { return Answer::No("not set up: `cargo xtask bench setup`") };
    let modules = peers.join("node_modules");
    let Ok(manifest) = std::fs::read_to_string(modules.join(package).join("package.json")) else {
        return Answer::No("not set up: `cargo xtask bench setup`");
    };
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap_or_default();
    let version = manifest["version"].as_str().unwrap_or("unknown").to_owned();
    Answer::Yes((Line::new(node).env("NODE_PATH", modules.display().to_string()), version))
}

#[cfg(test)]
mod tests {
    use super::library;

    #[test]
    fn a_library_says_its_version() {
        for name in ["tenure-client", "tungstenite", "tokio-postgres"] {
            let said = library(name);
            let version = said.strip_prefix(name).map(str::trim_start);
            assert!(version.is_some_and(|version| version.starts_with(char::is_numeric)), "{said}");
        }
        assert_eq!(library("nobody's"), "nobody's of unknown version");
    }
}
