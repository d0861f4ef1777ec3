//! `cargo xtask autobahn`: the Autobahn WebSocket suite against a release broker.
//!
//! Starts a broker with its echo endpoint on a free port, waits for its ready line, and hands the address to
//! `xtask/autobahn.sh`, which brings the suite and writes its report to `target/autobahn`. The broker and its
//! data are gone afterwards, whatever the outcome; its log stays beside the report.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// Builds, starts a broker, runs the suite, and passes its exit code on.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    if let Some(arg) = args.first() {
        bail!("`autobahn` takes no arguments, got `{arg}`");
    }
    run::succeed(&mut run::cargo(&["build", "--release", "--quiet", "--package", "tenure-cli"]))?;
    let target = run::target_directory()?;
    let report = target.join("autobahn");
    fs::create_dir_all(&report).with_context(|| format!("create {}", report.display()))?;

    let (broker, listen) = Broker::start(&target.join("release").join("tenure"), &report.join("broker.log"))?;
    let mut suite = Command::new(run::root().join("xtask").join("autobahn.sh"));
    suite.arg("run").arg(format!("ws://{listen}/test/echo")).arg(&report).current_dir(run::root());
    let outcome = run::forward(&mut suite);
    drop(broker);
    outcome
}

/// A running broker and its data; dropping it ends the one and removes the other.
struct Broker {
    child: Child,
    data_dir: PathBuf,
}

impl Broker {
    /// Starts the broker and waits until it listens; answers with the address.
    fn start(binary: &Path, log: &Path) -> Result<(Self, String)> {
        let data_dir = env::temp_dir().join(format!("tenure-autobahn-{}", process::id()));
        fs::create_dir(&data_dir).with_context(|| format!("create {}", data_dir.display()))?;
        let log_file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let child = Command::new(binary)
            .args(["broker", "--json", "--listen", "127.0.0.1:0", "--test-echo", "--data-dir"])
            .arg(&data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let mut broker = Self { child, data_dir };
        let stdout = broker.child.stdout.take().context("take the broker's stdout")?;
        let listen = first_line(stdout)
            .and_then(|line| listen_address(&line))
            .with_context(|| format!("wait for the broker's ready line (its log: {})", log.display()))?;
        Ok((broker, listen))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Best effort: the child may have ended by itself, and its data may be gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.data_dir);
    }
}

/// The first line of `stdout`; the rest is read and dropped, so that the broker never waits for a reader.
fn first_line(stdout: ChildStdout) -> Result<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Only the first line has a receiver.
            let _ = sender.send(line);
        }
    });
    receiver.recv_timeout(READY_WITHIN).context("the broker printed nothing")
}

fn listen_address(line: &str) -> Result<String> {
    let ready: Value = serde_json::from_str(line).with_context(|| format!("read `{line}`"))?;
    if ready["event"] != "ready" {
        bail!("expected the event `ready`, got `{line}`");
    }
    let listen = ready["listen"].as_str().with_context(|| format!("no `listen` in `{line}`"))?;
    Ok(listen.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_gives_the_address() {
        let line = r#"{"event":"ready","listen":"127.0.0.1:4711","version":"0.1.0"}"#;
        assert_eq!(listen_address(line).expect("a ready line"), "127.0.0.1:4711");
    }

    #[test]
    fn anything_else_is_refused() {
        for line in ["listening", r#"{"event":"stopped","listen":"x"}"#, r#"{"event":"ready"}"#] {
            assert!(listen_address(line).is_err(), "{line}");
        }
    }
}
