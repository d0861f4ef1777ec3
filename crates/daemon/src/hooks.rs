//! Hooks: programs of this machine's owner that are run with what comes.
//!
//! They are driven by the rows of the inbox and a cursor on the disk, not by a queue: what comes faster than they run
//! waits where it is, and memory is bounded. A message is shown at least once: one whose hooks were not over when the
//! daemon ended is shown again. A hook that fails, hangs or floods is told of in the log; the message is in the inbox
//! all the same.
//!
//! Where to read next: `tenure_outbox::hooks` for which and when, [`file`] for which programs are refused, [`run`] for one run.

mod file;
mod run;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_outbox::hooks::{Course, names};
use tokio::task::JoinSet;

use crate::db::DbError;
use crate::home::{HomeError, write_private};
use crate::inbox::Letter;
use crate::ipc::Arrived;
use crate::shared::Shared;
use run::{Run, TIMEOUT, Told};

/// How long to wait for an inbox that cannot be read now.
const AGAIN: Duration = Duration::from_secs(1);
/// Refusals that are remembered, so that each is told once.
const REMEMBERED: usize = 256;

/// Shows what comes until the daemon stops. `newest` is the newest letter from before this start.
pub(crate) async fn run(shared: Arc<Shared>, dir: PathBuf, newest: u64) {
    let path = shared.home.path().join("hooks.cursor");
    let cursor = match start(&path, newest) {
        Ok(cursor) => cursor,
        Err(error) => return tracing::error!(event = "hooks_off", %error, "hooks need a place to go on from"),
    };
    tracing::info!(event = "hooks_on", dir = %dir.display(), cursor);
    let mut hooks =
        Hooks { shared, dir, path, course: Course::new(cursor), work: JoinSet::new(), said: BTreeMap::new() };
    hooks.run().await;
}

/// Forgets the place: what comes while hooks are off is never shown to them.
pub(crate) fn forget(home: &Path) {
    let _ = std::fs::remove_file(home.join("hooks.cursor"));
}

/// Where to go on: where it was, and at first with what comes from now on. An inbox that began anew has smaller
/// numbers than the cursor of the one before.
fn start(path: &Path, newest: u64) -> Result<u64, HomeError> {
    let kept = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let cursor = kept.unwrap_or(newest).min(newest);
    if kept != Some(cursor) {
        write_private(path, &format!("{cursor}\n"))?;
    }
    Ok(cursor)
}

struct Hooks {
    shared: Arc<Shared>,
    dir: PathBuf,
    path: PathBuf,
    course: Course,
    work: JoinSet<(u64, Vec<Told>)>,
    /// What was refused last, by name.
    said: BTreeMap<String, String>,
}

impl Hooks {
    async fn run(&mut self) {
        let mut arrived = self.shared.arrived.subscribe();
        let stopping = self.shared.stopping.clone();
        loop {
            arrived.borrow_and_update();
            let unread = self.begin().await;
            if let Err(error) = &unread {
                tracing::error!(event = "hooks_inbox", %error, "hooks wait until the inbox can be read");
            }
            // All of these are cancel-safe.
            tokio::select! {
                Some(ended) = self.work.join_next(), if !self.work.is_empty() => {
                    // A run neither panics nor is aborted while this loop goes on.
                    if let Ok((letter, told)) = ended {
                        self.ended(letter, told);
                    }
                }
                () = tokio::time::sleep(AGAIN), if unread.is_err() => {}
                changed = arrived.changed() => if changed.is_err() { return },
                // What runs is killed with its group, and shown again after the next start.
                () = stopping.cancelled() => return self.work.shutdown().await,
            }
        }
    }

    /// Begins with as many as it is the turn of.
    async fn begin(&mut self) -> Result<(), DbError> {
        while let Some((after, room)) = self.course.wants() {
            let (letters, last) = self.shared.inbox.after(after, room).await?;
            let Some(last) = last else { return Ok(()) };
            for letter in letters {
                self.course.begins(letter.id);
                let runs = self.runs(&letter);
                self.work.spawn(show(letter, runs));
            }
            self.course.passes(last);
        }
        Ok(())
    }

    /// The hooks that a letter is shown to: those that are there and may be run.
    fn runs(&mut self, letter: &Letter) -> Vec<Run> {
        let mut runs = Vec::new();
        for name in names(&letter.message.to) {
            match file::check(&self.dir, &name) {
                Ok(false) => drop(self.said.remove(&name)),
                Ok(true) => {
                    self.said.remove(&name);
                    let home = self.shared.home.path().to_owned();
                    let (dir, mesh) = (self.dir.clone(), letter.mesh.clone());
                    runs.push(Run { dir, name, home, mesh, timeout: TIMEOUT });
                }
                Err(refusal) => self.refused(name, refusal.to_string()),
            }
        }
        runs
    }

    fn refused(&mut self, name: String, why: String) {
        if self.said.get(&name) == Some(&why) {
            return;
        }
        tracing::warn!(event = "hook_refused", hook = name, why);
        if self.said.len() >= REMEMBERED {
            self.said.clear();
        }
        self.said.insert(name, why);
    }

    fn ended(&mut self, letter: u64, told: Vec<Told>) {
        for told in told {
            told.log(letter);
        }
        if let Some(cursor) = self.course.ends(letter)
            && let Err(error) = write_private(&self.path, &format!("{cursor}\n"))
        {
            tracing::error!(event = "hooks_cursor", %error, "after a restart some hooks run again");
        }
    }
}

/// Runs the hooks of one letter, one after the other.
async fn show(letter: Letter, runs: Vec<Run>) -> (u64, Vec<Told>) {
    let (id, mut told) = (letter.id, Vec::new());
    if runs.is_empty() {
        return (id, told);
    }
    let json = match serde_json::to_vec(&Arrived::from(letter)) {
        Ok(json) => Arc::new(json),
        Err(error) => {
            tracing::error!(event = "hook_unspeakable", letter = id, %error);
            return (id, told);
        }
    };
    for run in runs {
        told.push(run.run(Arc::clone(&json)).await);
    }
    (id, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_begin_with_what_comes_from_now_on_and_go_on_where_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hooks.cursor");
        assert_eq!(start(&path, 7).unwrap(), 7);
        assert_eq!(start(&path, 9).unwrap(), 7, "what came since is shown");
        assert_eq!(start(&path, 2).unwrap(), 2, "the inbox began anew");
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(start(&path, 9).unwrap(), 9);
        forget(dir.path());
        assert_eq!(start(&path, 11).unwrap(), 11);
    }
}
