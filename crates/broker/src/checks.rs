//! Checking the store while the broker runs: every night, and when an operator asks. A thread with a reader of its own does it
//! in slices and rests between them, so that it holds up neither the writer nor other readers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure_mesh::Input;
use tenure_store::{Checking, StoreError, StoreReader};

use crate::mesh_task::MeshMsg;
use crate::shared::Shared;

/// How often the thread looks whether it is night.
const LOOK: Duration = Duration::from_secs(60);
/// The hour of the nightly check, UTC.
const HOUR_MS: u64 = 3 * 3_600_000;
const DAY_MS: u64 = 24 * 3_600_000;
/// The longest rest between two slices.
const REST_MAX: Duration = Duration::from_millis(100);
/// How long a nightly check rests after a slice, by how long that took; one that a person waits for rests as long as it works.
const NIGHTLY_RESTS: u32 = 4;

/// A check that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// When it began and ended, Unix milliseconds.
    pub(crate) started_at: u64,
    pub(crate) finished_at: u64,
    /// What was found, in words; the store tells at most 100 of them.
    pub(crate) findings: Vec<String>,
    /// Entries and dedupe records that were found without the other.
    pub(crate) violations: u64,
    /// Why it could not be done, if it could not.
    pub(crate) failed: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    /// When the one that is under way began.
    running: Option<u64>,
    wanted: bool,
    over: bool,
    last: Option<Checked>,
    /// Why the store writes nothing any more; `None` while it writes.
    lost: Option<String>,
    /// The damage that a read has met, until a check finds none.
    unreadable: Option<String>,
    /// What the last completed check found.
    found: Option<String>,
    /// Why the last check was not completed; `None` if it was.
    failed: Option<String>,
}

impl State {
    /// All that is wrong with the store, in a sentence for each; the worst first.
    fn reason(&self) -> Option<String> {
        let reasons = [&self.lost, &self.unreadable, &self.found, &self.failed];
        let reasons: Vec<&str> = reasons.into_iter().flatten().map(String::as_str).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// A check is over: what is wrong now.
    fn finish(&mut self, checked: Checked) {
        let count = checked.findings.len();
        let found = |first: &String| {
            format!(
                "a check of the store found {count} problems, the first: {first}; run `tenure check --running`"
            )
        };
        self.failed = checked.failed.as_ref().map(|error| format!("the store could not be checked: {error}"));
        if self.failed.is_none() {
            self.found = checked.findings.first().map(found);
        }
        if self.failed.is_none() && self.found.is_none() {
            self.unreadable = None;
        }
        (self.running, self.last) = (None, Some(checked));
    }
}

/// What the thread and those who ask share.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the meshes are told, so that they hear last what is true last.
    telling: Mutex<()>,
}

impl Checks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a check; one that is under way will do. `true` if this began it.
    pub(crate) fn ask(&self) -> bool {
        let mut state = self.state();
        let begins = !state.wanted && state.running.is_none();
        state.wanted |= begins;
        self.changed.notify_all();
        begins
    }

    /// Since when one is under way or waits for its turn, and how the last one went.
    pub(crate) fn look(&self) -> (bool, Option<u64>, Option<Checked>) {
        let state = self.state();
        (state.wanted || state.running.is_some(), state.running, state.last.clone())
    }

    /// The broker stops: so does the thread, soon.
    pub(crate) fn end(&self) {
        self.state().over = true;
        self.changed.notify_all();
    }

    /// The store writes no more: no later check says otherwise.
    pub(crate) fn lose(&self, shared: &Shared, reason: &str) {
        self.state().lost = Some(reason.to_owned());
        self.tell(shared);
    }

    /// Why the store writes nothing any more; `None` while it writes.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state().lost.clone()
    }

    /// A read came to something that is damaged. The first is told; a check says more.
    pub(crate) fn met_damage(&self, shared: &Shared, what: &str) {
        {
            let mut state = self.state();
            if state.unreadable.is_some() {
                return;
            }
            let reason =
                format!("the store is damaged and does not read: {what}; run `tenure check --running`");
            state.unreadable = Some(reason);
        }
        self.tell(shared);
    }

    /// All that is wrong with the store, if anything is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.state().reason()
    }

    /// Tells every mesh what is wrong with the store now.
    fn tell(&self, shared: &Shared) {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = self.reason();
        for mesh in shared.meshes.handles() {
            mesh.tell_blocking(MeshMsg::Input(Input::StoreChecked { reason: reason.clone() }));
        }
    }

    fn is_over(&self) -> bool {
        self.state().over
    }

    /// Waits until a check is wanted or a while has passed; whether one is wanted. Nothing when it is over.
    fn wait(&self) -> Option<bool> {
        let waits = |state: &mut State| !state.wanted && !state.over;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.state(), LOOK, waits)
            .unwrap_or_else(PoisonError::into_inner);
        (!state.over).then(|| std::mem::take(&mut state.wanted))
    }
}

/// Starts the thread. It ends when it is told so.
pub(crate) fn start(reader: Box<dyn StoreReader>, shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("tenure-check".to_owned()).spawn(move || run(reader, &shared))
}

fn run(mut reader: Box<dyn StoreReader>, shared: &Shared) {
    let mut last = shared.clock.now().wall;
    while let Some(asked) = shared.checks.wait() {
        let now = shared.clock.now().wall;
        if !asked && !is_night_between(last, now) {
            // A clock that was set back does not hold up the next night.
            last = last.min(now);
            continue;
        }
        last = now;
        shared.checks.state().running = Some(now);
        let rests = if asked { 1 } else { NIGHTLY_RESTS };
        let Some(checked) = check(reader.as_mut(), shared, now, rests) else { return };
        finish(shared, checked);
    }
}

/// Whether the hour of the nightly check lies between two moments.
fn is_night_between(last: u64, now: u64) -> bool {
    let night = |at: u64| at.saturating_sub(HOUR_MS) / DAY_MS;
    night(now) > night(last)
}

/// One check; nothing if the broker stops meanwhile.
fn check(reader: &mut dyn StoreReader, shared: &Shared, started_at: u64, rests: u32) -> Option<Checked> {
    let mut checking = Checking::default();
    let failed = loop {
        let began = Instant::now();
        match reader.check_slice(&mut checking) {
            Ok(true) => break None,
            Ok(false) => {}
            Err(error) => break Some(error),
        }
        if shared.checks.is_over() {
            return None;
        }
        std::thread::sleep((began.elapsed() * rests).min(REST_MAX));
    };
    Some(Checked {
        started_at,
        finished_at: shared.clock.now().wall,
        findings: checking.findings(),
        violations: checking.violations(),
        failed: failed.as_ref().map(StoreError::to_string),
    })
}

/// Says how it went: to the log, the counter, health and whoever asked.
fn finish(shared: &Shared, checked: Checked) {
    let took_ms = checked.finished_at.saturating_sub(checked.started_at);
    match (&checked.failed, checked.findings.as_slice()) {
        (Some(error), _) => tracing::error!(event = "store_check_failed", error),
        (None, []) => tracing::info!(event = "store_checked", took_ms, "the store is sound"),
        (None, findings) => {
            for finding in findings {
                tracing::error!(event = "store_finding", finding);
            }
            let (findings, violations) = (findings.len(), checked.violations);
            tracing::error!(event = "store_checked", took_ms, findings, violations);
        }
    }
    {
        let mut state = shared.checks.state();
        // What was there at the last check is not counted again.
        let known = state.last.as_ref().map_or(0, |last| last.violations);
        shared.metrics.violations.inc_by(checked.violations.saturating_sub(known));
        state.finish(checked);
    }
    shared.checks.tell(shared);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_night_is_once_a_day_at_its_hour() {
        let at = |day: u64, hour: u64| day * DAY_MS + hour * 3_600_000;
        assert!(is_night_between(at(20_000, 2), at(20_000, 3)));
        assert!(!is_night_between(at(20_000, 3), at(20_000, 23)));
        assert!(!is_night_between(at(20_000, 3), at(20_001, 2)));
        assert!(is_night_between(at(20_000, 23), at(20_001, 3)));
        assert!(is_night_between(at(20_000, 4), at(20_003, 4)), "a machine that slept");
        assert!(!is_night_between(at(20_003, 4), at(20_000, 4)), "a clock that was set back");
    }

    #[test]
    fn whoever_asks_while_one_is_wanted_shares_it() {
        let checks = Checks::default();
        assert!(checks.ask());
        assert!(!checks.ask());
        assert_eq!(checks.wait(), Some(true));
        checks.state().running = Some(5);
        assert!(!checks.ask());
        assert_eq!(checks.look(), (true, Some(5), None));
        checks.end();
        assert_eq!(checks.wait(), None);
    }

    #[test]
    fn what_is_wrong_is_said_until_a_check_finds_nothing() {
        let found = |findings: &[&str]| Checked {
            findings: findings.iter().map(|finding| (*finding).to_owned()).collect(),
            ..Checked::default()
        };
        let failed = || Checked { failed: Some("no view".to_owned()), ..Checked::default() };
        let mut state = State { unreadable: Some("a page".to_owned()), ..State::default() };
        state.finish(failed());
        let reason = state.reason().unwrap();
        assert_eq!(reason, "a page; the store could not be checked: no view");
        state.finish(found(&["a hole", "another"]));
        let reason = state.reason().unwrap();
        assert!(
            reason.starts_with("a page; a check of the store found 2 problems, the first: a hole"),
            "{reason}"
        );
        state.finish(failed());
        let reason = state.reason().unwrap();
        assert!(
            reason.contains("a hole") && reason.ends_with("no view"),
            "a check that fails mends nothing: {reason}"
        );
        state.lost = Some("gone".to_owned());
        state.finish(found(&[]));
        assert_eq!(state.reason().as_deref(), Some("gone"), "no check gives a file back");
        let mut state = State { unreadable: Some("a page".to_owned()), ..State::default() };
        state.finish(found(&[]));
        assert_eq!(state.reason(), None);
    }
}
