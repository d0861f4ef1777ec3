//! One run: a call to an agent whose answer streams back.
//!
//! What it is for: the numbers of its chunks, who is streamed to and how far, and how it ends. Chunks are kept in a
//! ring, for callers that lag or come again; each caller's session has a cursor into it.
//!
//! What it promises: a run ends once. A chunk is passed on once to each watcher, in order; what a watcher missed
//! because the ring moved on, or because a broker started, is told to it as a gap with the next thing it gets.
//!
//! What it never does: know leases, inboxes or the store. [`super::Runs`] does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use tenure_proto::error::WireError;
use tenure_proto::event::EventBody;
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::limits::{RUN_RING_BYTES, RUN_WATCHERS};
use tenure_proto::log::LogName;
use tenure_proto::message::Address;
use tenure_proto::number::U53;
use tenure_proto::run::{RunEnd, RunEndStatus, RunEvent, RunGetResult, RunInfo, RunState};

use crate::reply::ReplyTo;

use super::record::{RunEnding, RunRecord, RunSpan};

/// Memory that an event takes beside its contents.
const EVENT_BYTES: usize = 256;

/// A run that has not ended, or whose end may still have to be told.
#[derive(Debug)]
pub struct Run {
    id: RunId,
    /// Who called.
    pub caller: MemberKey,
    /// Who answers, once somebody does.
    pub callee: Option<SessionKey>,
    /// Who vouched for it, once the store knows.
    pub callee_member: Option<MemberKey>,
    /// The inbox that its message is in.
    pub log: LogName,
    /// Its number there.
    pub seq: u64,
    /// Bytes of its body.
    pub size: u64,
    /// Whether its callee's lease had ended before a start: the run ends as soon as it can.
    pub orphaned: bool,
    /// Whether its caller wants it stopped.
    pub cancelled: bool,
    /// The time that it was given, if a start took it up.
    pub span: Option<RunSpan>,
    last_seq: u64,
    /// Whether `last_seq` is known; after a start the next chunk says it.
    counting: bool,
    /// Chunks without a gap, the last of them `last_seq`; at most [`RUN_RING_BYTES`], or one.
    ring: VecDeque<Chunk>,
    ring_bytes: usize,
    /// Who is streamed to, and the chunk that each wants next; at most [`RUN_WATCHERS`].
    watchers: BTreeMap<SessionKey, u64>,
    stage: Stage,
}

#[derive(Clone, Debug)]
struct Chunk {
    seq: u64,
    event: Arc<EventBody>,
    bytes: usize,
}

/// How far its end is.
#[derive(Debug)]
enum Stage {
    Living,
    /// Decided, and on its way to the disk; with whoever is answered then.
    Ending(Box<RunEnding>, Vec<Waiter>),
    Ended(Box<RunEnding>),
}

/// Somebody who is answered when a run's end is on disk: well, or with an error.
#[derive(Debug)]
pub struct Waiter {
    /// Where its answer goes.
    pub to: ReplyTo,
    /// What it is told.
    pub outcome: Result<(), WireError>,
}

/// What a number of the callee's came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is the next.
    Next,
    /// It came before.
    Again,
    /// Some are missing.
    Gap,
}

/// What a watcher gets next.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The event.
    pub event: Arc<EventBody>,
    /// Roughly the memory it takes.
    pub bytes: usize,
}

impl Run {
    /// A run that was accepted now.
    pub fn new(id: RunId, caller: MemberKey, log: LogName, seq: u64, size: u64) -> Run {
        Run {
            id,
            caller,
            callee: None,
            callee_member: None,
            log,
            seq,
            size,
            orphaned: false,
            cancelled: false,
            span: None,
            last_seq: 0,
            counting: true,
            ring: VecDeque::new(),
            ring_bytes: 0,
            watchers: BTreeMap::new(),
            stage: Stage::Living,
        }
    }

    /// A run that the store remembers.
    pub fn restored(record: RunRecord) -> Run {
        let span = record.span();
        let RunRecord { id, caller, callee, log, seq, size, last_seq, state, ended_at, .. } = record;
        let mut run = Run::new(id, caller, log, seq, size);
        (run.callee, run.callee_member) = (callee.map(|(session, _)| session), callee.map(|(_, m)| m));
        (run.last_seq, run.counting, run.cancelled) = (last_seq, ended_at.is_some(), record.cancelled);
        run.span = Some(span);
        if let Some(at) = ended_at {
            let (result, error) = (record.result, record.error);
            run.stage = Stage::Ended(Box::new(RunEnding { id, state, last_seq, result, error, at }));
        }
        run
    }

    /// Whether nothing has been decided of its end.
    pub fn is_living(&self) -> bool {
        matches!(self.stage, Stage::Living)
    }

    /// Whether its end is on disk.
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    /// Where it stands, as everybody may know.
    pub fn state(&self) -> RunState {
        match &self.stage {
            Stage::Ended(ending) => ending.state,
            _ if self.callee.is_some() => RunState::Running,
            _ => RunState::Queued,
        }
    }

    /// How it ends, once that is decided.
    pub fn outcome(&self) -> Option<RunState> {
        match &self.stage {
            Stage::Living => None,
            Stage::Ending(ending, _) | Stage::Ended(ending) => Some(ending.state),
        }
    }

    /// Roughly the memory that its result or error takes, once it has ended.
    pub fn result_bytes(&self) -> usize {
        match &self.stage {
            Stage::Ended(ending) => end_weight(ending.result.as_ref(), ending.error.as_ref()),
            _ => 0,
        }
    }

    /// What `run.get` says.
    pub fn get(&self) -> RunGetResult {
        let ending = match &self.stage {
            Stage::Ended(ending) => Some(ending),
            _ => None,
        };
        RunGetResult {
            run_id: self.id,
            state: self.state(),
            last_seq: U53::saturating(self.last_seq),
            result: ending.and_then(|ending| ending.result.clone()),
            error: ending.and_then(|ending| ending.error.clone()),
        }
    }

    /// What `runs.list` says of one that has not ended.
    pub fn info(&self, deadline: Option<u64>) -> RunInfo {
        let to = match &self.log {
            LogName::Session(session) => Address::Session(*session),
            LogName::Member(member) => Address::Member(*member),
            // A run is a message in an inbox.
            LogName::Topic(topic, _) => Address::Topic(topic.clone()),
        };
        RunInfo {
            run_id: self.id,
            state: self.state(),
            to,
            caller: self.caller,
            callee: self.callee,
            last_seq: U53::saturating(self.last_seq),
            cancelled: self.cancelled,
            started_at: U53::saturating(self.id.unix_ms()),
            deadline: deadline.map(U53::saturating),
        }
    }

    /// Whether a session may answer: it does already, or the inbox is its own and nobody does.
    pub fn is_answered_by(&self, session: &SessionKey) -> bool {
        match &self.callee {
            Some(callee) => callee == session,
            None => self.log == LogName::Session(*session),
        }
    }

    /// Bytes of its ring.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// What the number of a chunk, or of the end, is worth. After a start the first number sets the sequence.
    pub fn step(&mut self, seq: u64) -> Step {
        if !std::mem::replace(&mut self.counting, true) {
            self.last_seq = seq.saturating_sub(1);
        }
        match seq {
            _ if seq <= self.last_seq => Step::Again,
            _ if seq == self.last_seq + 1 => Step::Next,
            _ => Step::Gap,
        }
    }

    /// Keeps the next chunk. The ring lets its oldest go until it is within its bound, or that chunk is alone in it.
    pub fn keep(&mut self, seq: u64, data: Value) {
        let bytes = weight(&data) + EVENT_BYTES;
        let event = RunEvent { seq: Some(U53::saturating(seq)), data: Some(data), ..self.event() };
        self.last_seq = seq;
        self.ring.push_back(Chunk { seq, event: Arc::new(EventBody::Run(event)), bytes });
        self.ring_bytes += bytes;
        while self.ring_bytes > RUN_RING_BYTES && self.ring.len() > 1 {
            self.drop_oldest();
        }
    }

    /// Lets chunks go up to this one.
    pub fn drop_through(&mut self, seq: u64) {
        while self.ring.front().is_some_and(|oldest| oldest.seq <= seq) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.ring.pop_front() {
            self.ring_bytes -= oldest.bytes;
        }
    }

    /// The first chunk that its ring holds.
    pub fn oldest(&self) -> Option<u64> {
        self.ring.front().map(|oldest| oldest.seq)
    }

    /// How many its ring holds.
    pub fn chunks(&self) -> usize {
        self.ring.len()
    }

    /// An event of this run that says nothing yet.
    pub fn event(&self) -> RunEvent {
        RunEvent { run_id: self.id, seq: None, data: None, end: None, cancel: false, gap: false }
    }

    /// Streams to a session, from a chunk on if it says so. `false`: there are as many as there may be.
    pub fn watch(&mut self, session: SessionKey, from: Option<u64>) -> bool {
        if self.watchers.len() >= RUN_WATCHERS && !self.watchers.contains_key(&session) {
            return false;
        }
        let next = self.watchers.entry(session).or_insert(1);
        *next = from.unwrap_or(*next).max(1);
        true
    }

    /// Streams to a session no more.
    pub fn unwatch(&mut self, session: &SessionKey) {
        self.watchers.remove(session);
    }

    /// Who is streamed to.
    pub fn watchers(&self) -> impl Iterator<Item = &SessionKey> {
        self.watchers.keys()
    }

    /// How many are.
    pub fn watched(&self) -> usize {
        self.watchers.len()
    }

    /// Whether there is something for a watcher.
    pub fn has_for(&self, session: &SessionKey) -> bool {
        let Some(next) = self.watchers.get(session) else { return false };
        self.has_ended() || self.ring.back().is_some_and(|chunk| chunk.seq >= *next)
    }

    /// The next thing for a watcher; after the end it is none any more.
    pub fn feed(&mut self, session: &SessionKey) -> Option<Feed> {
        let next = self.watchers.get_mut(session)?;
        let skipped = self.ring.front().map_or(0, |first| next.saturating_sub(first.seq));
        if let Some(chunk) = usize::try_from(skipped).ok().and_then(|index| self.ring.get(index)) {
            let gap = chunk.seq > *next;
            *next = chunk.seq + 1;
            return Some(Feed { event: marked(&chunk.event, gap), bytes: chunk.bytes });
        }
        let Stage::Ended(ending) = &self.stage else { return None };
        let seq = ending.last_seq + 1;
        let gap = seq > *next;
        self.watchers.remove(session);
        let bytes = end_weight(ending.result.as_ref(), ending.error.as_ref()) + EVENT_BYTES;
        let (result, error) = (ending.result.clone(), ending.error.clone());
        let end = Some(RunEnd { status: status(ending.state), result, error });
        let event = RunEvent { seq: Some(U53::saturating(seq)), end, gap, ..self.event() };
        Some(Feed { event: Arc::new(EventBody::Run(event)), bytes })
    }

    /// Decides its end, if nobody has.
    pub fn decide(
        &mut self,
        state: RunState,
        result: Option<Value>,
        error: Option<WireError>,
        at: u64,
        waiter: Option<Waiter>,
    ) {
        if self.is_living() {
            let (id, last_seq) = (self.id, self.last_seq);
            let ending = RunEnding { id, state, last_seq, result, error, at };
            self.stage = Stage::Ending(Box::new(ending), waiter.into_iter().collect());
        }
    }

    /// What was decided of its end, if it is not on disk yet.
    pub fn ending(&self) -> Option<&RunEnding> {
        match &self.stage {
            Stage::Ending(ending, _) => Some(ending),
            _ => None,
        }
    }

    /// Whether its callee said just this before: then it waits with the others, or is told at once.
    pub fn says_again(&self, state: RunState, result: Option<&Value>, error: Option<&WireError>) -> bool {
        match &self.stage {
            Stage::Living => false,
            Stage::Ending(ending, _) | Stage::Ended(ending) => {
                (ending.state, ending.result.as_ref(), ending.error.as_ref()) == (state, result, error)
            }
        }
    }

    /// Lets somebody wait for the end that was decided.
    pub fn wait(&mut self, waiter: Waiter) {
        if let Stage::Ending(_, waiters) = &mut self.stage {
            waiters.push(waiter);
        }
    }

    /// The end is on disk, or is tried again: who waited for it.
    pub fn take_waiters(&mut self) -> Vec<Waiter> {
        match &mut self.stage {
            Stage::Ending(_, waiters) => std::mem::take(waiters),
            _ => Vec::new(),
        }
    }

    /// Its end is on disk.
    pub fn end(&mut self) -> Option<&RunEnding> {
        if let Stage::Ending(ending, _) = &self.stage {
            self.stage = Stage::Ended(ending.clone());
        }
        match &self.stage {
            Stage::Ended(ending) => Some(ending),
            _ => None,
        }
    }
}

/// The same event, with a mark that something before it is missing.
fn marked(event: &Arc<EventBody>, gap: bool) -> Arc<EventBody> {
    match &**event {
        EventBody::Run(event) if gap => Arc::new(EventBody::Run(RunEvent { gap, ..event.clone() })),
        _ => event.clone(),
    }
}

/// How it ended, on the wire.
fn status(state: RunState) -> RunEndStatus {
    match state {
        RunState::Ok => RunEndStatus::Ok,
        RunState::Cancelled => RunEndStatus::Cancelled,
        RunState::Error | RunState::Queued | RunState::Running => RunEndStatus::Error,
    }
}

/// Where a run stands after an end of this status.
pub fn state_after(status: RunEndStatus) -> RunState {
    match status {
        RunEndStatus::Ok => RunState::Ok,
        RunEndStatus::Error => RunState::Error,
        RunEndStatus::Cancelled => RunState::Cancelled,
    }
}

/// Roughly the memory that JSON takes.
pub fn weight(value: &Value) -> usize {
    const NODE: usize = 32;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => NODE,
        Value::String(text) => NODE + text.len(),
        Value::Array(items) => NODE + items.iter().map(weight).sum::<usize>(),
        Value::Object(fields) => {
            NODE + fields.iter().map(|(name, value)| 2 * NODE + name.len() + weight(value)).sum::<usize>()
        }
    }
}

/// Roughly the memory that the end of a run takes.
pub fn end_weight(result: Option<&Value>, error: Option<&WireError>) -> usize {
    let details = |error: &WireError| error.message.len() + error.details.as_deref().map_or(0, weight);
    result.map_or(0, weight) + error.map_or(0, details)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
