//! One run of one hook: a process group of its own with a clean environment, the message on its input, so much time
//! and so much output.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use crate::group::Group;

/// How long a hook may run.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of each of its outputs that are kept; the rest is read and thrown away.
const OUTPUT: usize = 32 * 1024;
/// How long what is left of its output may take once its group is dead.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What a hook finds of the daemon's own environment. Not `TENURE_*`: there are secrets among them.
const ENVIRONMENT: &[&str] = &["PATH", "HOME", "LANG"];

/// A hook that is to be run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) dir: PathBuf,
    pub(super) name: String,
    /// The daemon's directory, so that `tenure` finds it.
    pub(super) home: PathBuf,
    /// The mesh of the message.
    pub(super) mesh: String,
    /// How long it may take.
    pub(super) timeout: Duration,
}

/// How it ended.
#[derive(Debug)]
enum End {
    Exit(ExitStatus),
    /// It took longer than this, and was killed.
    TimeOut(Duration),
    NotRun(std::io::Error),
}

/// What there is to be told of a run.
#[derive(Debug)]
pub(super) struct Told {
    name: String,
    end: End,
    output: Vec<u8>,
    errors: Vec<u8>,
}

impl Run {
    /// Runs it to its end. Dropped before that, it and everything that it has started are killed.
    pub(super) async fn run(self, json: Arc<Vec<u8>>) -> Told {
        let mut told =
            Told { name: self.name.clone(), end: End::TimeOut(self.timeout), output: vec![], errors: vec![] };
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return Told { end: End::NotRun(error), ..told },
        };
        let group = Group::of(&child);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (output, errors) = (&mut told.output, &mut told.errors);
        let mut speech = Box::pin(async move {
            let (input, out, err) = pipes;
            tokio::join!(feed(input, json), drink(out, output), drink(err, errors));
        });
        let (over, late) = (group.ended(), tokio::time::sleep(self.timeout));
        tokio::pin!(over, late);
        let mut spoken = false;
        let in_time = loop {
            // All are cancel-safe: each keeps its progress where it is.
            tokio::select! {
                () = &mut over => break true,
                // It has closed its ends, and may go on.
                () = &mut speech, if !spoken => spoken = true,
                () = &mut late => break false,
            }
        };
        drop(group);
        if !spoken {
            let _ = tokio::time::timeout(LAST_WORDS, &mut speech).await;
        }
        drop(speech);
        match child.wait().await {
            Ok(status) if in_time => told.end = End::Exit(status),
            Ok(_) => {}
            Err(error) => told.end = End::NotRun(error),
        }
        told
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(self.dir.join(&self.name));
        command.env_clear();
        for name in ENVIRONMENT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("TENURE_HOME", &self.home)
            .env("TENURE_MESH", &self.mesh)
            .env("TENURE_HOOK", &self.name)
            .current_dir(&self.dir)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

/// Gives it the message, if it wants it.
async fn feed(input: Option<ChildStdin>, json: Arc<Vec<u8>>) {
    if let Some(mut input) = input {
        let _ = input.write_all(&json).await;
        let _ = input.write_all(b"\n").await;
    }
}

/// Reads to the end and keeps the beginning, so that nobody waits for a full pipe.
async fn drink(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let room = OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
}

impl Told {
    /// Says how it went: one line.
    pub(super) fn log(&self, letter: u64) {
        let hook = self.name.as_str();
        // As text and not as it would print: a line of the log stays one.
        let (output, errors) = (String::from_utf8_lossy(&self.output), String::from_utf8_lossy(&self.errors));
        let (output, errors) = (&*output, &*errors);
        match &self.end {
            End::Exit(status) if status.success() => {
                tracing::info!(event = "hook_done", hook, letter, output, errors);
            }
            End::Exit(status) => {
                tracing::warn!(event = "hook_failed", hook, letter, %status, output, errors);
            }
            End::TimeOut(after) => {
                let after_ms = after.as_millis() as u64;
                tracing::warn!(event = "hook_timed_out", hook, letter, after_ms, output, errors);
            }
            End::NotRun(error) => tracing::warn!(event = "hook_not_run", hook, letter, %error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    async fn ran(dir: &Path, script: &str, timeout: Duration) -> Told {
        let path = dir.join("on-dm");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let (home, name, mesh) = ("/the/home".into(), "on-dm".to_owned(), "m".to_owned());
        let run = Run { dir: dir.to_owned(), name, home, mesh, timeout };
        run.run(Arc::new(br#"{"id":1}"#.to_vec())).await
    }

    fn code(told: &Told) -> Option<i32> {
        match told.end {
            End::Exit(status) => status.code(),
            _ => None,
        }
    }

    #[tokio::test]
    async fn it_gets_the_message_and_a_clean_environment() {
        let dir = tempfile::tempdir().unwrap();
        let told =
            ran(dir.path(), "cat; echo to you >&2; env | sort > env; pwd > where; exit 3", TIMEOUT).await;
        assert_eq!(code(&told), Some(3));
        assert_eq!((told.output, told.errors), (b"{\"id\":1}\n".to_vec(), b"to you\n".to_vec()));
        let env = fs::read_to_string(dir.path().join("env")).unwrap();
        let names: Vec<&str> = env.lines().filter_map(|line| line.split('=').next()).collect();
        // A shell adds some of its own.
        let known = [
            "PATH",
            "HOME",
            "LANG",
            "TENURE_HOME",
            "TENURE_MESH",
            "TENURE_HOOK",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "_",
        ];
        assert!(names.iter().all(|name| known.contains(name)), "{env}");
        assert!(env.contains("TENURE_HOME=/the/home\n") && env.contains("TENURE_HOOK=on-dm\n"), "{env}");
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there was something to be left out");
        let cwd = fs::read_to_string(dir.path().join("where")).unwrap();
        assert_eq!(Path::new(cwd.trim()).canonicalize().unwrap(), dir.path().canonicalize().unwrap());
    }

    #[tokio::test]
    async fn what_it_says_is_bounded_and_never_stops_it() {
        let dir = tempfile::tempdir().unwrap();
        let script = "exec <&-; head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 0";
        let told = ran(dir.path(), script, TIMEOUT).await;
        assert_eq!((code(&told), told.output.len(), told.errors.len()), (Some(0), OUTPUT, OUTPUT));
    }

    /// Whether a process still runs; one that is dead and not yet waited for does not.
    fn runs(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    async fn is_over(pid: &str) {
        let over = async {
            while runs(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), over).await.expect("it runs on");
    }

    async fn child_of(dir: &Path) -> String {
        let there = async {
            loop {
                let pid = fs::read_to_string(dir.join("child")).unwrap_or_default();
                if pid.ends_with('\n') {
                    return pid.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), there).await.expect("it never began")
    }

    const FAMILY: &str = "(sleep 1000 & echo $! > child; wait) & wait";

    #[tokio::test]
    async fn one_that_takes_too_long_is_killed_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let told = ran(dir.path(), FAMILY, Duration::from_millis(500)).await;
        assert!(matches!(told.end, End::TimeOut(_)), "{told:?}");
        is_over(&child_of(dir.path()).await).await;
    }

    #[tokio::test]
    async fn what_it_leaves_behind_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let told = ran(dir.path(), "sleep 1000 & echo $! > child; exit 0", TIMEOUT).await;
        assert_eq!(code(&told), Some(0));
        is_over(&child_of(dir.path()).await).await;
    }

    #[tokio::test]
    async fn one_that_is_given_up_is_killed_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let running = tokio::spawn(async move { ran(&path, FAMILY, TIMEOUT).await });
        let child = child_of(dir.path()).await;
        assert!(runs(&child));
        running.abort();
        is_over(&child).await;
    }

    #[tokio::test]
    async fn one_that_cannot_be_started_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run {
            dir: dir.path().to_owned(),
            name: "none".to_owned(),
            home: dir.path().to_owned(),
            mesh: "m".to_owned(),
            timeout: TIMEOUT,
        };
        assert!(matches!(run.run(Arc::default()).await.end, End::NotRun(_)));
    }
}
