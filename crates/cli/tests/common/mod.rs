//! What the tests with real processes share: a world of its own for each test, and the commands in it.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod fleet;
pub(crate) mod host;
pub(crate) mod proc;
pub(crate) mod raw;
pub(crate) mod stage;
pub(crate) mod tap;

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure_client::{Events, Options, Session, random_key};

use proc::Proc;

/// How many times longer than usual everything takes: with `TENURE_SOAK=real` the defaults of the product.
fn stretch() -> u64 {
    if std::env::var("TENURE_SOAK").is_ok_and(|soak| soak == "real") { 30 } else { 1 }
}

/// The lease in force: 3 s, or 90 s.
pub(crate) fn lease() -> Duration {
    Duration::from_millis(3_000 * stretch())
}

/// How long a fact may take to come true before the test gives up. Nothing is ever proved by it.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(30) + lease() * 2
}

/// Lets a part of a lease pass, where the passing of time is what the test is about.
pub(crate) async fn pass(numerator: u32, denominator: u32) {
    tokio::time::sleep(lease() * numerator / denominator).await;
}

/// A home directory, and the commands that run in it.
pub(crate) struct World {
    home: TempDir,
}

/// A broker as a process.
pub(crate) struct Broker {
    pub(crate) proc: Proc,
    pub(crate) addr: SocketAddr,
}

impl World {
    pub(crate) fn new() -> World {
        World { home: TempDir::new().expect("a temporary directory") }
    }

    pub(crate) fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    /// `tenure`, in this world and untouched by the environment outside.
    pub(crate) fn tenure(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        let ms = |ms: u64| (ms * stretch()).to_string();
        command
            .env("TENURE_HOME", self.home.path())
            .env("TENURE_LEASE_TTL_MS", ms(3_000))
            .env("TENURE_PING_INTERVAL_MS", ms(1_000))
            .env("TENURE_STALE_AFTER_MS", ms(2_500))
            .env("TENURE_TICK_INTERVAL_MS", ms(1_000))
            .args(args);
        command
    }

    /// Runs `tenure` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.tenure(args).output().expect("run tenure")
    }

    /// A broker on a free port, with its store in this world.
    pub(crate) async fn broker(&self) -> Broker {
        self.broker_at("127.0.0.1:0").await
    }

    /// A broker at `addr`, on the same store as the one before it.
    pub(crate) async fn broker_at(&self, addr: &str) -> Broker {
        // Sessions behind a proxy name the proxy as the host.
        let args = ["broker", "--json", "--listen", addr, "--public-hosts", "127.0.0.1:*"];
        let mut proc = Proc::spawn("broker", self.tenure(&args));
        let ready = proc.until("ready", |line| line["event"] == "ready").await;
        let addr = ready["listen"].as_str().and_then(|addr| addr.parse().ok()).expect("an address");
        Broker { proc, addr }
    }

    /// A session as a process, by way of `addr`.
    pub(crate) fn session(&self, name: &str, addr: SocketAddr) -> Proc {
        let url = format!("ws://{addr}");
        Proc::spawn(name, self.tenure(&["session", "--json", "--name", name, "--broker", &url]))
    }

    /// A session as a process that is in.
    pub(crate) async fn joined(&self, name: &str, addr: SocketAddr) -> Proc {
        let mut session = self.session(name, addr);
        session.attached().await;
        session
    }

    /// What `tenure peers --all --json` says of the peer called `name`.
    pub(crate) fn debug_peer(&self, addr: SocketAddr, name: &str) -> Option<Value> {
        let output = self.run(&["peers", "--all", "--json", "--broker", &format!("ws://{addr}")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let peers: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        peers.as_array().expect("a list").iter().find(|peer| peer["name"] == name).cloned()
    }

    /// Asks until `name` is in the state `transport`; says whether it ever was. Each question takes its time.
    pub(crate) fn becomes(&self, addr: SocketAddr, name: &str, transport: &str) -> bool {
        let start = std::time::Instant::now();
        while start.elapsed() < patience() {
            match self.debug_peer(addr, name) {
                None => return false,
                Some(peer) if peer["transport"] == transport => return true,
                Some(_) => {}
            }
        }
        false
    }
}

impl Broker {
    /// Ends it as a power cut would.
    pub(crate) async fn kill(mut self) -> SocketAddr {
        self.proc.signal("KILL");
        self.proc.exit_code().await;
        self.addr
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // An error in the log is a failure, whatever else went well.
        let log = self.proc.stderr();
        let error = log.lines().find(|line| line.contains(" ERROR "));
        assert!(std::thread::panicking() || error.is_none(), "{error:?}");
    }
}

/// A session within the test itself, with a key of its own.
pub(crate) async fn join(addr: SocketAddr, name: &str) -> (Session, Events) {
    let options = Options::new(&format!("ws://{addr}"), random_key().expect("a key"), name).expect("options");
    tokio::time::timeout(patience(), Session::connect(options)).await.expect("in time").expect("joined")
}
