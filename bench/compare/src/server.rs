//! A peer's processes: started on loopback with data in a temporary folder, looked at through `/proc`, killed by id.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The kernel counts processor time for `/proc` in hundredths of a second, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;
/// How long a server may take until it answers.
pub(crate) const READY: Duration = Duration::from_secs(60);
/// How long one try to reach it may take.
const TRY: Duration = Duration::from_secs(3);
/// How long what was killed may take to be gone.
const GONE: Duration = Duration::from_secs(10);
/// How often a wait looks again.
const LOOK: Duration = Duration::from_millis(10);

/// A server's process and how to start it again.
#[derive(Debug)]
pub(crate) struct Server {
    command: Line,
    child: Option<Child>,
    log: PathBuf,
}

/// A command that can be given more than once.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Line {
    /// `program`, which is found on the path unless it says where it is.
    pub(crate) fn new(program: impl Into<PathBuf>) -> Line {
        Line { program: program.into(), args: Vec::new(), env: Vec::new() }
    }

    /// With one more argument.
    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Line {
        self.args.push(arg.into());
        self
    }

    /// With more arguments.
    pub(crate) fn args<const N: usize>(mut self, args: [&str; N]) -> Line {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// With one more variable.
    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Line {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// As a user who is not root, where we are root: some servers refuse to run as root.
    pub(crate) fn by_user(self, user: &str) -> Line {
        if !rustix::process::geteuid().is_root() {
            return self;
        }
        let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let mut line = Line::new("setpriv").args([&reuid, &regid, "--init-groups"]);
        line.args.push(self.program.display().to_string());
        line.args.extend(self.args);
        line.env = self.env;
        line
    }

    /// The command that this is, with nothing on its stdin.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Result<String> {
        let program = self.program.display();
        let output = self.command().output().with_context(|| format!("start {program}"))?;
        if !output.status.success() {
            bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Server {
    /// Starts it; what it says goes to a file in `dir`.
    pub(crate) fn start(command: Line, dir: &Path) -> Result<Server> {
        let log = dir.join("said.log");
        let mut server = Server { command, child: None, log };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it once more.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let said = fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = self.command.command();
        command.stdout(said.try_clone()?).stderr(said);
        let program = self.command.program.display().to_string();
        self.child = Some(command.spawn().with_context(|| format!("start {program}"))?);
        Ok(())
    }

    /// Its id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills it and all that it started, as a crash would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let family = tree(&[child.id()]);
        for pid in family.iter().copied() {
            // Whoever is gone already is what we want.
            let _ = end(pid);
        }
        child.wait().context("wait for a killed server")?;
        // Those that it started are not ours to wait for, and hold its memory and files until they are gone.
        let deadline = Instant::now() + GONE;
        while family.iter().any(|pid| lives(*pid)) {
            if Instant::now() > deadline {
                bail!("processes of a killed server do not end");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// What it said last, for a message about its failure.
    pub(crate) fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Tries `ready` until it works.
    pub(crate) async fn until_ready<T>(&mut self, mut ready: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + READY;
        loop {
            // Some accept a connection before they can answer, and some clients then wait for ever.
            let tried = tokio::time::timeout(TRY, ready()).await;
            match tried.unwrap_or_else(|_| Err(anyhow!("it does not answer"))) {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context(format!("it is not ready: {}", self.last_words())));
                }
                Err(_) => {}
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("it ended with {status}: {}", self.last_words());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn end(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no id of a process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// Whether it has not ended yet; one that has may stay as a name until whoever adopted it looks.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// A port of loopback that nobody has.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").context("find a free port")?.local_addr()?.port())
}

/// A program on the path, or in one of these folders before it.
pub(crate) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let all = folders.iter().cloned().chain(std::env::split_paths(&path)).chain(usual);
    all.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Processor seconds of these and all below them; of children that have ended too.
pub(crate) fn cpu_seconds(roots: &[u32]) -> f64 {
    let ticks: u64 = tree(roots).into_iter().filter_map(|pid| stat(pid).map(|stat| stat.ticks)).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// Processor seconds of this process alone: the servers that it started are not its load.
pub(crate) fn own_cpu_seconds() -> f64 {
    let spent = |time: rustix::time::Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    spent(rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime))
}

/// Resident bytes of these and all below them; what several share is counted once.
pub(crate) fn held_bytes(roots: &[u32]) -> u64 {
    tree(roots).into_iter().filter_map(held).sum()
}

/// Resident bytes of one process, its part of what it shares with others.
fn held(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

struct Stat {
    parent: u32,
    ticks: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent and the time of a stat line, that of ended children included; the name in it may hold spaces and brackets.
fn parse(stat: &str) -> Option<Stat> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Stat { parent, ticks })
}

/// These processes and all that came from them.
fn tree(roots: &[u32]) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return roots.to_vec() };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let (mut found, mut at) = (roots.to_vec(), 0);
    while let Some(pid) = found.get(at).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_gives_the_parent_and_all_the_time() {
        let stat = parse("7 (a) b) S 42 7 7 0 -1 4194560 9 0 0 0 120 34 5 6 20 0 3 0 5").unwrap();
        assert_eq!((stat.parent, stat.ticks), (42, 165));
    }

    #[test]
    fn a_server_is_killed_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let line = Line::new("sh").args(["-c", "sleep 600 & sleep 600"]);
        let mut server = Server::start(line, dir.path()).unwrap();
        let root = server.pid().unwrap();
        while tree(&[root]).len() < 3 {
            std::thread::yield_now();
        }
        let family = tree(&[root]);
        server.kill().unwrap();
        assert_eq!(family.iter().filter(|pid| lives(**pid)).count(), 0);
    }
}
