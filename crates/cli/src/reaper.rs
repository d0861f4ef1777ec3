//! What a command has started ends with it, also when it is killed and can do nothing about it: a process beside it is told
//! of every process group, and kills those that are left when the pipe between the two ends.
//!
//! Why not a signal at the parent's death: that reaches the first process of a group and not what it has started, there is
//! none outside of Linux, and asking for it between fork and exec takes `unsafe`.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::exit::Failure;

/// The process beside us, for as long as this or any [`Watched`] of it is there.
#[derive(Debug)]
pub(crate) struct Reaper(Mutex<ChildStdin>);

/// A process group that is killed when this process ends, unless this is dropped before.
#[derive(Debug)]
pub(crate) struct Watched {
    reaper: Arc<Reaper>,
    leader: u32,
}

impl Reaper {
    /// Starts this program once more, in a process group of its own: what ends ours does not end it.
    pub(crate) fn start() -> io::Result<Arc<Reaper>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("reap")
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = child.stdin.take().ok_or_else(|| io::Error::other("it has no standard input"))?;
        Ok(Arc::new(Reaper(Mutex::new(pipe))))
    }

    /// Has the group that `leader` leads killed when this process ends.
    pub(crate) fn watch(self: &Arc<Self>, leader: u32) -> Watched {
        self.say('+', leader);
        Watched { reaper: Arc::clone(self), leader }
    }

    fn say(&self, what: char, leader: u32) {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If it is gone, nobody is left to do better.
        let _ = pipe.write_all(format!("{what}{leader}\n").as_bytes());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.reaper.say('-', self.leader);
    }
}

/// The process beside: `+N` and `-N` are lines of its standard input; at its end it kills the groups that are left.
pub(crate) fn run() -> Result<(), Failure> {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let leader = line.get(1..).and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        match (line.chars().next(), leader) {
            (Some('+'), Some(leader)) => _ = groups.insert(leader.as_raw_nonzero()),
            (Some('-'), Some(leader)) => _ = groups.remove(&leader.as_raw_nonzero()),
            _ => {}
        }
    }
    for leader in groups.iter().filter_map(|leader| Pid::from_raw(leader.get())) {
        // It may be gone, which is as well.
        let _ = kill_process_group(leader, Signal::KILL);
    }
    Ok(())
}
