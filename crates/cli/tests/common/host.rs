//! A machine with a daemon, which ends with the test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::{World, patience};

/// Nobody listens here: the port is reserved and needs privileges.
pub(crate) const NOWHERE: &str = "ws://127.0.0.1:1";

/// A world with a daemon that ends with the test.
pub(crate) struct Host {
    pub(crate) world: World,
    pub(crate) broker: String,
}

impl Host {
    pub(crate) fn new(broker: &str) -> Host {
        Host { world: World::new(), broker: broker.to_owned() }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.world.tenure(args);
        command.env("TENURE_BROKER", &self.broker);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("run tenure")
    }

    pub(crate) fn good(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        output
    }

    /// The command must fail with this code and say this.
    pub(crate) fn fails(&self, args: &[&str], code: i32, says: &[&str]) {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        for text in says {
            assert!(stderr(&output).contains(text), "{args:?} does not say {text:?}: {}", stderr(&output));
        }
        assert!(output.stdout.is_empty(), "{args:?}: what went wrong is not data");
    }

    /// What a command that must go well prints, without the end of its last line.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        String::from_utf8(self.good(args).stdout).expect("text").trim_end().to_owned()
    }

    /// Lines of JSON that a command prints.
    pub(crate) fn lines(&self, args: &[&str]) -> Vec<Value> {
        self.text(args).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// The daemon, started, and with its broker.
    pub(crate) fn connected(&self) {
        self.good(&["daemon", "up"]);
        until("connected", || self.status()["meshes"][0]["connected"] == true);
    }

    /// The key of the daemon's own session, which is the member's.
    pub(crate) fn own(&self) -> String {
        let status = self.status();
        let own =
            status["sessions"].as_array().expect("a list").iter().find(|session| session["own"] == true);
        own.expect("its own")["session"].as_str().expect("a key").to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&self.good(&["daemon", "status", "--json"]).stdout).expect("JSON")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.world.home().join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.world.run(&["daemon", "down"]);
    }
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

pub(crate) fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Looks until it is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < patience(), "{what} never came true");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

pub(crate) fn kill(signal: &str, pid: u64) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status().expect("run kill");
    assert!(sent.success());
}

pub(crate) fn alive(pid: u64) -> bool {
    // One that has ended and was not waited for yet is dead.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}
