//! `tenure daemon up`: start the daemon, in the background or here.
//!
//! In the background it is this program once more, in a session of its own: without a terminal, a working directory or
//! anything else of whoever started it. Whoever did waits until it answers, and tells what it said if it does not.

use std::io::Read;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_daemon::{Daemon, DbError, HomeError, StartError, holder};
use tokio::signal::unix::{SignalKind, signal};

use super::config::{Checked, Sources};
use super::log;
use crate::exit::Failure;
use crate::home::Home;
use crate::local::Local;
use crate::output::println;
use crate::span;

/// How often somebody looks whether it answers.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of what it said that are read to find out why it did not start.
const LAST_WORDS: u64 = 16 * 1024;

/// Start the daemon in the background, and return when it answers.
///
/// It lets go of the terminal and the working directory, and logs to daemon.log under TENURE_HOME (two files of 8 MiB at
/// most). Whether the broker can be reached is another matter: what is sent waits for it. Exit code 1 if a daemon runs
/// already, or this one does not start.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure daemon up
  tenure daemon up --broker ws://10.0.0.7:7400 --mesh team
  tenure daemon up --foreground    # for a service manager: stays, logs to stderr as well")]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    foreground: bool,
    /// Print one line of JSON on stdout when ready
    #[arg(long)]
    json: bool,
    /// How long to wait for it to answer
    #[arg(long, value_name = "TIME", value_parser = span::parse, default_value = "30s", conflicts_with = "foreground")]
    timeout: Duration,
    /// We are the one in the background.
    #[arg(long, hide = true)]
    detached: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let home = Home::find()?.absolute()?;
    let checked = args.sources.check(&home)?;
    if args.detached {
        // Fails only for the leader of a group, which is one that lives without a terminal already.
        let _ = rustix::process::setsid();
    } else if !args.foreground {
        return crate::block_on(detach(args, &home));
    }
    log::start(&checked, !args.detached)?;
    if args.detached {
        // No directory is kept from being moved or unmounted.
        let gone = std::env::set_current_dir("/");
        gone.map_err(|error| Failure::Failed(format!("leave the working directory: {error}")))?;
    }
    crate::block_on(serve(checked, args.json && args.foreground))
}

/// Runs the daemon until somebody ends it, or it cannot go on.
async fn serve(checked: Checked, json: bool) -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::Failed(format!("watch for signals: {error}")));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let daemon = Daemon::start(checked.config).await.map_err(not_started)?;
    let (socket, tcp) = (daemon.socket().display().to_string(), daemon.tcp().map(|addr| addr.to_string()));
    if json {
        println(&ready(std::process::id(), &socket, tcp.as_deref()));
    }
    tracing::info!(
        event = "ready",
        pid = std::process::id(),
        socket,
        tcp,
        version = env!("CARGO_PKG_VERSION")
    );
    // All of these are cancel-safe: they only wait.
    let failed = tokio::select! {
        why = daemon.failed() => Some(why),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        _ = hangup.recv() => None,
    };
    match &failed {
        Some(reason) => tracing::error!(event = "failed", reason),
        None => tracing::info!(event = "stopping"),
    }
    // `stop` is not resumed after another signal, so it need not be cancel-safe: the process is about to end.
    tokio::select! {
        () = daemon.stop() => {}
        // Asked twice, do not insist: what was answered is on the disk.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!(event = "stopped");
    failed.map_or(Ok(()), |why| Err(Failure::Refused(why)))
}

fn not_started(error: StartError) -> Failure {
    tracing::error!(event = "not_started", %error);
    match &error {
        // A person must do something first: a service manager does not start it again.
        StartError::Home(HomeError::Open { .. })
        | StartError::Outbox(DbError::Corrupt(_) | DbError::Newer { .. })
        | StartError::Unrecovered => Failure::Usage(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    }
}

fn ready(pid: u32, socket: &str, tcp: Option<&str>) -> String {
    let mut ready = json!({"event": "ready", "pid": pid, "socket": socket});
    if let Some(tcp) = tcp {
        ready["tcp"] = json!(tcp);
    }
    ready.to_string()
}

/// Starts this program once more, and waits until it answers.
async fn detach(args: &Args, home: &Home) -> Result<(), Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
    let refused = |error: HomeError| Failure::Failed(error.to_string());
    if let Some(holder) = holder(home.path()).map_err(refused)? {
        return Err(Failure::Failed(HomeError::Held(holder).to_string()));
    }
    // What whoever started us left open is not the daemon's: a pipe would never end, a lock never be free.
    close_fds::set_fds_cloexec_threadsafe(3, &[]);
    let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Not the log: what a full disk keeps from it is still heard here. Who speaks after we have gone is heard by nobody.
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed("start the daemon", error))?;
    let (pid, said) = (child.id(), child.stderr.take());
    let status = answers(args, home, child, said).await?;
    let socket = status["socket"].as_str().unwrap_or_default();
    if args.json {
        println(&ready(pid, socket, None));
    } else {
        eprintln!("the daemon is up: process {pid}, {socket}");
    }
    Ok(())
}

/// Waits until our child answers, and not somebody else's; if it ends first, says why.
async fn answers(
    args: &Args,
    home: &Home,
    mut child: Child,
    said: Option<ChildStderr>,
) -> Result<Value, Failure> {
    let (local, since) = (Local::at(home), Instant::now());
    while since.elapsed() < args.timeout {
        let ended =
            child.try_wait().map_err(|error| Failure::Failed(format!("wait for the daemon: {error}")))?;
        if let Some(status) = ended {
            let why = said.and_then(last_words).unwrap_or_else(|| format!("it ended with {status}"));
            return Err(match status.code() {
                Some(2) => Failure::Usage(why),
                Some(4) => Failure::Refused(why),
                _ => Failure::Failed(why),
            });
        }
        if let Ok(status) = local.get("/v1/status").await
            && status["pid"] == child.id()
        {
            return Ok(status);
        }
        tokio::time::sleep(LOOK).await;
    }
    let (pid, log) = (child.id(), log::path(home.path()));
    Err(Failure::Unreachable(format!("process {pid} does not answer yet; it goes on: see {}", log.display())))
}

/// What it said last. It has ended: what it did not say by now is not waited for.
fn last_words(said: ChildStderr) -> Option<String> {
    rustix::io::ioctl_fionbio(&said, true).ok()?;
    let mut bytes = Vec::new();
    // What was read before an error is there all the same.
    let _ = said.take(LAST_WORDS).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.lines().rev().find_map(|line| line.strip_prefix("tenure: ")).map(str::to_owned)
}
