//! Runs: one key is one run, its pieces come in order and once, it ends once and the same for all, and for a reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::seen::{Key, Life, RunFate, Seen, Slot};

use super::session::SLACK_MS;
use super::world::World;
use super::{Court, who};

/// What is known of runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    calls: BTreeMap<Key, Call>,
    keys: BTreeMap<String, Key>,
    /// What a life has heard of a call: the last piece, and whether some were missing.
    heard: BTreeMap<(Life, Key), (u64, bool)>,
    ended: BTreeSet<(Life, Key)>,
}

/// A call.
#[derive(Debug)]
struct Call {
    to: Slot,
    input: String,
    timeout_ms: u64,
    asked_at: u64,
    run: Option<String>,
    /// Which processes were told that it has begun.
    begun_for: BTreeSet<Life>,
    cancelled: bool,
    /// How it ended, as whoever heard of it first was told.
    fate: Option<RunFate>,
    /// The end that its callee was told to be in force.
    taken: Option<RunFate>,
    /// Whether somebody who answers has said that it ended so.
    said: Vec<RunFate>,
    /// What the last look found.
    looked: Option<RunFate>,
    /// Which processes answered it: two that hold one key speak at cross purposes.
    answerers: BTreeSet<Life>,
    /// The store went back under it: what it was in the lost history nobody is held to.
    void: bool,
}

impl Runs {
    pub(super) fn see(&mut self, at: u64, seen: &Seen, world: &World, court: &mut Court) {
        match seen {
            Seen::Calls { key, to, input, timeout_ms, .. } => {
                self.calls.entry(key.clone()).or_insert(Call {
                    to: *to,
                    input: input.clone(),
                    timeout_ms: *timeout_ms,
                    asked_at: at,
                    run: None,
                    begun_for: BTreeSet::new(),
                    cancelled: false,
                    fate: None,
                    taken: None,
                    said: Vec::new(),
                    looked: None,
                    answerers: BTreeSet::new(),
                    void: false,
                });
            }
            Seen::CallStarted(life, key, run) => self.started(*life, key, run, court),
            Seen::CallChunk { life, key, seq, body, gap } => self.chunk(*life, key, *seq, body, *gap, court),
            Seen::CallEnded { life, key, fate, gap } => self.ended(at, *life, key, fate, *gap, world, court),
            Seen::Cancels(_, key) => {
                if let Some(call) = self.calls.get_mut(key) {
                    call.cancelled = true;
                }
            }
            Seen::RunCame(life, run, input) => self.came(*life, run, input, court),
            Seen::RunEnds(_, run, fate) => {
                if let Some(call) = self.of(run) {
                    call.said.push(fate.clone());
                }
            }
            Seen::RunEndTaken(life, run, fate) => {
                if let Some(call) = self.of(run) {
                    call.taken = Some(fate.clone());
                    call.agree(fate, &format!("{} was told that it is in force", who(*life)), court);
                }
            }
            Seen::RunOver(life, run, code)
                if code == "seq_gap"
                    && self.answerers(run) < 2
                    && self.of(run).is_some_and(|call| !call.void) =>
            {
                court.accuse("run", format!("{} was told of a gap in the run {run}", who(*life)));
            }
            Seen::RunIs(key, fate) => {
                if let Some(call) = self.calls.get_mut(key) {
                    call.looked = Some(fate.clone());
                }
            }
            Seen::Rewound { .. } => {
                self.calls.values_mut().for_each(|call| call.void = true);
                self.keys.clear();
            }
            Seen::Over => self.judge(court),
            _ => {}
        }
    }

    fn answerers(&self, run: &str) -> usize {
        let call = self.keys.get(run).and_then(|key| self.calls.get(key));
        call.map_or(0, |call| call.answerers.len())
    }

    fn of(&mut self, run: &str) -> Option<&mut Call> {
        self.calls.get_mut(self.keys.get(run)?)
    }

    fn started(&mut self, life: Life, key: &Key, run: &str, court: &mut Court) {
        let Some(call) = self.calls.get_mut(key) else { return };
        if !call.void && call.run.as_ref().is_some_and(|known| known != run) {
            let text = format!("{} was told that {} is another run than it was", who(life), key.id);
            court.accuse("run", text);
        }
        if self.keys.insert(run.to_owned(), key.clone()).is_some_and(|other| other != *key) {
            court.accuse("run", format!("the run {run} is {} and another", key.id));
        }
        call.run = Some(run.to_owned());
        call.begun_for.insert(life);
    }

    fn came(&mut self, life: Life, run: &str, input: &str, court: &mut Court) {
        let called = |(_, call): &(&Key, &mut Call)| call.input == input && call.to == life.slot;
        let Some((key, call)) = self.calls.iter_mut().find(called) else {
            let text = format!("{} was called for {input:?} ({run}), for which nobody called it", who(life));
            return court.accuse("run", text);
        };
        call.answerers.insert(life);
        // Whoever calls may hear of it later, or never.
        if self.keys.insert(run.to_owned(), key.clone()).is_some_and(|other| other != *key) {
            court.accuse("run", format!("the run {run} is {} and another", key.id));
        }
    }

    fn chunk(&mut self, life: Life, key: &Key, seq: u64, body: &str, gap: bool, court: &mut Court) {
        let Some(call) = self.calls.get(key).filter(|call| !call.void) else { return };
        if body != format!("{}#{seq}", call.input) {
            court.accuse("run", format!("{} heard {body:?} as piece {seq} of {}", who(life), key.id));
        }
        let heard = self.heard.entry((life, key.clone())).or_default();
        if seq <= heard.0 {
            court.accuse("run", format!("{} heard piece {seq} of {} twice", who(life), key.id));
        } else if seq > heard.0 + 1 && !gap {
            let text =
                format!("{} heard piece {seq} of {} after {}, and no word of it", who(life), key.id, heard.0);
            court.accuse("run", text);
        }
        *heard = (seq.max(heard.0), heard.1 || gap);
    }

    #[allow(clippy::too_many_arguments)]
    fn ended(
        &mut self,
        at: u64,
        life: Life,
        key: &Key,
        fate: &RunFate,
        gap: bool,
        world: &World,
        court: &mut Court,
    ) {
        let Some(call) = self.calls.get_mut(key).filter(|call| !call.void) else { return };
        if !self.ended.insert((life, key.clone())) {
            court.accuse("run", format!("{} heard the end of {} twice", who(life), key.id));
        }
        let (last, missed) = self.heard.get(&(life, key.clone())).copied().unwrap_or_default();
        let pieces = crate::runs::plan(&call.input).map_or(0, |(pieces, _)| pieces);
        if matches!(fate, RunFate::Ok(_)) && last != pieces && !gap && !missed {
            let text = format!("{} heard {last} of {pieces} pieces of {}", who(life), key.id);
            court.accuse("run", text);
        }
        call.cause(at, life, key, fate, world, court);
        if !matches!(fate, RunFate::Refused(_)) {
            call.agree(fate, &format!("{} heard it", who(life)), court);
        }
    }

    /// At the end all that were begun have ended, in one way.
    fn judge(&self, court: &mut Court) {
        for (key, call) in self.calls.iter().filter(|(_, call)| call.run.is_some() && !call.void) {
            match (&call.looked, &call.fate) {
                (Some(RunFate::Living(state)), _) => {
                    court.accuse("run", format!("{} is still {state} at the end", key.id));
                }
                (Some(RunFate::Refused(code)), _) => {
                    court.accuse("lost", format!("{} was begun, and is {code} at the end", key.id));
                }
                (Some(found), Some(heard)) if found != heard => {
                    court.accuse("run", format!("{} ended as {heard:?}, and is {found:?}", key.id));
                }
                _ => {}
            }
            if let (Some(taken), Some(found)) = (&call.taken, &call.looked)
                && taken != found
            {
                court.accuse("lost", format!("{} was answered {taken:?}, and is {found:?}", key.id));
            }
        }
    }
}

impl Call {
    /// Whoever hears of an end hears of the same.
    fn agree(&mut self, fate: &RunFate, how: &str, court: &mut Court) {
        if let Some(known) = &self.fate
            && known != fate
            && !self.void
        {
            court.accuse("run", format!("{:?} ended as {known:?}; {how} as {fate:?}", self.input));
        }
        self.fate.get_or_insert_with(|| fate.clone());
    }

    /// An end has a cause.
    fn cause(&self, at: u64, life: Life, key: &Key, fate: &RunFate, world: &World, court: &mut Court) {
        let broker = &world.broker;
        let fits = match fate {
            RunFate::Ok(result) => *result == format!("{}=", self.input) && self.said.contains(fate),
            RunFate::Cancelled => self.cancelled,
            RunFate::Error(code) => match code.as_str() {
                "forbidden" => self.said.contains(fate),
                "lease_expired" => world
                    .session(self.to)
                    .is_some_and(|session| session.may_have_ended_since(self.asked_at, broker)),
                "seq_gap" => self.answerers.len() > 1,
                "expired" => at + SLACK_MS >= self.asked_at + self.timeout_ms || broker.clock_jumped,
                _ => false,
            },
            RunFate::Refused(code) => {
                // Somebody who was never here cannot be called, and somebody who is gone cannot call.
                match code.as_str() {
                    "no_such_session" => {
                        let callee = world.session(self.to);
                        let was_there =
                            callee.is_some_and(|session| session.was_admitted_before(self.asked_at));
                        self.run.is_none() && !was_there
                    }
                    // Another process of it may have begun the same run before.
                    "lease_expired" => {
                        let caller = world.session(life.slot);
                        !self.begun_for.contains(&life)
                            && caller.is_some_and(|session| session.may_have_ended(broker))
                    }
                    _ => false,
                }
            }
            RunFate::Living(_) => false,
        };
        if !fits {
            court.accuse("run", format!("{} ended as {fate:?} without a cause", key.id));
        }
    }
}
