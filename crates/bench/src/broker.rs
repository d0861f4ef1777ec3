//! A broker in a process of its own, as a user would run it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// How long one scrape of `/metrics` may take; a broker in a storm has other things to do.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(30);

/// How to start a broker.
#[derive(Clone, Debug, clap::Args)]
pub struct BrokerArgs {
    /// The binary to measure [default: `tenure` beside this one]
    #[arg(long = "broker", value_name = "FILE")]
    binary: Option<PathBuf>,
    /// An environment variable for the broker, such as MALLOC_ARENA_MAX=1
    #[arg(long = "broker-env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// `default` (lease 90 s, ping 30 s, stale 75 s, tick 30 s), or a lease in ms that the others follow
    #[arg(long, value_name = "default|MS", default_value = "default")]
    intervals: String,
    /// Where the broker keeps its data, in a directory of its own that goes away afterwards [default: the
    /// system's place for temporary files, which must be a real disk if figures are to mean anything]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Open files that the broker may have; absent is as many as we may.
    #[arg(skip)]
    files: Option<u64>,
}

impl BrokerArgs {
    /// Defaults, with this binary, in this directory.
    pub fn with(binary: PathBuf, dir: PathBuf) -> BrokerArgs {
        BrokerArgs {
            binary: Some(binary),
            env: Vec::new(),
            intervals: "default".to_owned(),
            dir: Some(dir),
            files: None,
        }
    }

    /// The same with one more variable for the broker.
    pub fn with_env(&self, pair: &str) -> BrokerArgs {
        let mut args = self.clone();
        args.env.push(pair.to_owned());
        args
    }

    /// The same with so many open files at the most.
    pub fn with_files(&self, files: u64) -> BrokerArgs {
        BrokerArgs { files: Some(files), ..self.clone() }
    }

    /// A fresh directory on the disk that is measured.
    pub fn fresh_dir(&self) -> Result<TempDir> {
        let mut builder = tempfile::Builder::new();
        let dir = match &self.dir {
            Some(dir) => {
                std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
                builder.prefix("tenure-bench-").tempdir_in(dir)
            }
            None => builder.prefix("tenure-bench-").tempdir(),
        };
        dir.context("make a data directory")
    }

    /// The `tenure` binary.
    pub fn tenure(&self) -> Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => beside_us("tenure"),
        }
    }

    /// The intervals, for people.
    pub fn shown_intervals(&self) -> String {
        match self.intervals.as_str() {
            "default" => "default: lease 90 s, ping 30 s, stale 75 s, tick 30 s".to_owned(),
            ttl => format!("lease {ttl} ms, ping and tick a third of it, stale five sixths"),
        }
    }
}

/// A running broker with a data directory of its own.
#[derive(Debug)]
pub struct BrokerProcess {
    args: BrokerArgs,
    dir: TempDir,
    child: Child,
    /// `ADDRESS:PORT`.
    listen: String,
}

impl BrokerProcess {
    /// Starts a broker on a free port with an empty store, and waits until it is ready.
    pub fn start(args: &BrokerArgs) -> Result<BrokerProcess> {
        BrokerProcess::start_on(args, args.fresh_dir()?)
    }

    /// Starts a broker on a free port with what is in `dir`, and waits until it is ready.
    pub fn start_on(args: &BrokerArgs, dir: TempDir) -> Result<BrokerProcess> {
        let (child, listen) = spawn(args, dir.path(), "127.0.0.1:0")?;
        Ok(BrokerProcess { args: args.clone(), dir, child, listen })
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the broker")?;
        self.child.wait().context("wait for the killed broker")?;
        Ok(())
    }

    /// Has it stopped in good order by `tenure drain`, promising another after `restart_in_ms`; how many sessions were
    /// told.
    pub fn drain(&mut self, restart_in_ms: u64) -> Result<u64> {
        let mut command = Command::new(self.args.tenure()?);
        command
            .args(["drain", "--json", "--broker", &self.url(), "--restart-in", &format!("{restart_in_ms}ms")])
            .arg("--data-dir")
            .arg(self.dir.path())
            .env_remove("TENURE_ADMIN_TOKEN");
        let output = command.output().context("run tenure drain")?;
        if !output.status.success() {
            bail!("tenure drain: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let said: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("read what drain said")?;
        let status = self.child.wait().context("wait for the drained broker")?;
        if !status.success() {
            bail!("the drained broker ended with {status}");
        }
        said["sessions"].as_u64().context("drain does not say how many were told")
    }

    /// Starts another on the same port and data directory. Returns how long that took until it was ready.
    pub fn start_again(&mut self) -> Result<Duration> {
        let started = Instant::now();
        (self.child, self.listen) = spawn(&self.args, self.dir.path(), &self.listen)?;
        Ok(started.elapsed())
    }

    /// Where its data is.
    pub fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills it, as a crash would, and starts another on the same port and data directory at once. Returns how
    /// long after the kill the new one was ready.
    pub fn crash_and_restart(&mut self) -> Result<Duration> {
        let killed = Instant::now();
        self.kill()?;
        self.start_again()?;
        Ok(killed.elapsed())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `ADDRESS:PORT` of its sockets.
    pub fn address(&self) -> &str {
        &self.listen
    }

    /// Where sessions dial.
    pub fn url(&self) -> String {
        format!("ws://{}", self.listen)
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let page = self.scrape().context("read the broker's metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("the broker has no metric {name}"))?;
        Ok(value.trim().parse::<f64>().with_context(|| format!("{name} is no number"))? as u64)
    }

    /// The value of a metric for one kind; 0 as long as nothing of the kind has happened.
    pub fn labelled(&self, name: &str, kind: &str) -> Result<u64> {
        let page = self.scrape().context("read the broker's metrics")?;
        let label = format!("{name}{{kind=\"{kind}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&label));
        value.map_or(Ok(0), |value| value.trim().parse().with_context(|| format!("{name} is no number")))
    }

    fn scrape(&self) -> Result<String> {
        let mut stream = TcpStream::connect(&self.listen)?;
        stream.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.listen)?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(args: &BrokerArgs, dir: &Path, listen: &str) -> Result<(Child, String)> {
    let binary = args.tenure()?;
    let mut command = match args.files {
        None => Command::new(&binary),
        Some(files) => {
            let mut limited = Command::new("sh");
            limited.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\"")]).arg(&binary);
            limited
        }
    };
    command.args(["broker", "--json", "--log", "warn", "--listen", listen, "--data-dir"]).arg(dir);
    if args.intervals != "default" {
        command.args(["--lease-ttl-ms", &args.intervals]);
    }
    for pair in &args.env {
        let (name, value) = pair.split_once('=').with_context(|| format!("{pair} is not NAME=VALUE"))?;
        command.env(name, value);
    }
    let (child, ready) = spawn_until_ready(&mut command)?;
    let ready: serde_json::Value = serde_json::from_str(&ready).context("read the broker's ready line")?;
    let listen = ready["listen"].as_str().context("the broker's ready line has no address")?;
    Ok((child, listen.to_owned()))
}

/// Starts a child and waits for its first line.
pub fn spawn_until_ready(command: &mut Command) -> Result<(Child, String)> {
    let program = Path::new(command.get_program()).display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}; `cargo build --release` makes it"))?;
    let stdout = child.stdout.take().context("the child has no stdout")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.is_empty() {
        bail!("{program} ended before it was ready ({})", child.wait()?);
    }
    Ok((child, line.trim().to_owned()))
}

/// A program in the directory of this one.
fn beside_us(name: &str) -> Result<PathBuf> {
    let us = std::env::current_exe().context("find this program")?;
    Ok(us.with_file_name(name))
}
