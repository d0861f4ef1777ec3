//! A daemon in a process of its own, as a user would run it, to be killed and started again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use tenure_daemon::{Config, Daemon, MeshChoice};

use crate::broker::{BrokerArgs, BrokerProcess};
use crate::http::{Answered, Http};

/// How long a daemon may take until it answers.
const READY: Duration = Duration::from_secs(30);
/// How often a start looks whether it answers.
const LOOK: Duration = Duration::from_millis(2);

/// The hidden subcommand `daemon-house`: a broker and a daemon that also listens on loopback TCP, until stdin ends. One
/// line says where, and with which tokens.
pub(crate) async fn house(args: &BrokerArgs) -> Result<()> {
    let dir = args.fresh_dir()?;
    let broker = BrokerProcess::start(args)?;
    let name = "default".parse().map_err(|_| anyhow!("no name of a mesh"))?;
    let mesh = MeshChoice { name, broker: broker.url(), authority: None };
    let mut config = Config::new(dir.path().to_owned(), mesh, "bench");
    config.tcp = Some(([127, 0, 0, 1], 0).into());
    let daemon = Daemon::start(config).await?;
    let tcp = daemon.tcp().context("the daemon listens nowhere")?.to_string();
    let token = std::fs::read_to_string(dir.path().join("daemon.token")).context("read the token")?;
    let operator = broker.data_dir().join("admin.token");
    let operator = std::fs::read_to_string(operator).context("read the operator's token")?;
    let ready = json!({
        "event": "ready", "tcp": tcp, "token": token.trim(),
        "broker": broker.address(), "brokerToken": operator.trim(),
    });
    println!("{ready}");
    let mut stdin =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    // Both are cancel-safe: the thread that reads goes on without its handle, and `failed` only waits.
    tokio::select! {
        _ = &mut stdin => {}
        // An operator who tries everything ends the daemon's session as well; the broker is asked on.
        why = daemon.failed() => {
            eprintln!("{why}");
            let _ = stdin.await;
        }
    }
    daemon.stop().await;
    Ok(())
}

/// A running daemon.
#[derive(Debug)]
pub(crate) struct DaemonProcess {
    tenure: PathBuf,
    home: PathBuf,
    broker: String,
    child: Child,
}

impl DaemonProcess {
    /// Starts one in `home`, and waits until it answers.
    pub(crate) fn start(args: &BrokerArgs, home: PathBuf, broker: &str) -> Result<DaemonProcess> {
        let tenure = args.tenure()?;
        let child = spawn(&tenure, &home, broker)?;
        Ok(DaemonProcess { tenure, home, broker: broker.to_owned(), child })
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the daemon")?;
        self.child.wait().context("wait for the killed daemon")?;
        Ok(())
    }

    /// Starts another in the same place.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.tenure, &self.home, &self.broker)?;
        Ok(())
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.home)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it once.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answered> {
        let mut http = Http::connect(&self.socket()).await.context("reach the daemon")?;
        let answered = http.call(method, path, headers, body.as_bytes()).await;
        answered.with_context(|| format!("ask the daemon for {path}"))
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(home: &Path) -> PathBuf {
    home.join("daemon.sock")
}

fn spawn(tenure: &Path, home: &Path, broker: &str) -> Result<Child> {
    let started = Instant::now();
    let mut child = Command::new(tenure)
        .args(["daemon", "up", "--foreground", "--log", "warn"])
        .env("TENURE_HOME", home)
        .env("TENURE_BROKER", broker)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("start {}; `cargo build --release` makes it", tenure.display()))?;
    // A socket that a killed one has left refuses.
    while std::os::unix::net::UnixStream::connect(socket(home)).is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("the daemon ended before it answered ({status})");
        }
        if started.elapsed() > READY {
            let _ = child.kill();
            bail!("the daemon does not answer");
        }
        std::thread::sleep(LOOK);
    }
    Ok(child)
}
