//! A broker with those who call and those who answer, as processes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::proc::Proc;
use super::{Broker, World, patience};

/// A broker and the commands that speak with it.
pub(crate) struct Stage {
    /// Before the directory that its files are in: it says so when they are taken away.
    broker: Option<Broker>,
    pub(crate) world: World,
    pub(crate) addr: SocketAddr,
}

impl Stage {
    pub(crate) async fn new() -> Stage {
        let world = World::new();
        let broker = world.broker().await;
        let addr = broker.addr;
        Stage { world, broker: Some(broker), addr }
    }

    pub(crate) fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.world.tenure(args);
        command.env("TENURE_BROKER", format!("ws://{}", self.addr));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("run tenure")
    }

    pub(crate) fn spawn(&self, name: &str, args: &[&str]) -> Proc {
        Proc::spawn(name, self.command(args))
    }

    /// A command that answers runs, and is there.
    pub(crate) async fn serve(&self, name: &str, script: &str) -> Proc {
        let mut serve = self.spawn(name, &["serve", "--json", "--name", name, "--exec", script]);
        serve.until("ready", |line| line["event"] == "ready").await;
        serve
    }

    /// Ends the broker as a power cut would, and starts another on the same disk.
    pub(crate) async fn restart(&mut self) {
        self.kill_broker().await;
        self.start_broker().await;
    }

    /// Ends the broker as a power cut would.
    pub(crate) async fn kill_broker(&mut self) {
        self.broker.take().unwrap().kill().await;
    }

    pub(crate) fn broker(&self) -> &Proc {
        &self.broker.as_ref().expect("a broker").proc
    }

    /// Starts another, on the same disk and at the same address.
    pub(crate) async fn start_broker(&mut self) {
        self.broker = Some(self.world.broker_at(&self.addr.to_string()).await);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.world.home().join(name)
    }

    /// Waits until a file has a whole line; gives it.
    pub(crate) async fn line_of(&self, name: &str) -> String {
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            if text.ends_with('\n') {
                return text.trim().to_owned();
            }
            assert!(start.elapsed() < patience(), "{name} was never written");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The pieces that a call has printed with `--json`.
pub(crate) fn pieces(call: &mut Proc) -> Vec<Value> {
    call.events("chunk").iter().map(|line| line["data"].clone()).collect()
}

pub(crate) async fn piece(call: &mut Proc, data: &str) {
    call.until(data, |line| line["event"] == "chunk" && line["data"] == data).await;
}

/// Waits until a process is gone; one that is dead and not yet waited for is.
pub(crate) async fn gone(pid: &str) {
    let start = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])) {
            return;
        }
        assert!(start.elapsed() < patience(), "{pid} runs on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
