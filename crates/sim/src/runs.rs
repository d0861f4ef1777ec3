//! What an application calls others for, and what it answers when it is called.
//!
//! An input says how its answer must look: so many pieces, then a result, a refusal, or nothing until the troubles are
//! over. So whoever answers, in whichever life, says the same, and the oracle knows what a caller must hear.

use serde_json::Value;
use tenure_kit::Now;
use tenure_link::{CallEnd, CallHandle, CallItem, Piece, ServedHandle, ServedItem};
use tenure_proto::WireError;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::RunId;
use tenure_proto::message::Address;
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use tenure_proto::run::{RunEnd, RunEndStatus, RunIdParams, RunStartParams};

use crate::process::{Asked, Process};
use crate::seen::{Key, RunFate, Seen, Slot};

/// Applications wait long for a broker that takes their call.
const PATIENCE_MS: u64 = 7_200_000;
/// Calls that one application lets wait.
const OUTSTANDING: usize = 6;

/// A call that has not ended, as its caller keeps it on its own disk.
#[derive(Clone, Debug)]
pub(crate) struct Calling {
    pub(crate) to: Slot,
    pub(crate) input: String,
    pub(crate) timeout_ms: u64,
}

/// A run that this process answers.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    pub(crate) run: RunId,
    input: String,
    said: u64,
    due: u64,
    cancelled: bool,
    /// What it said at the end.
    ended: Option<RunFate>,
    ending: bool,
}

/// How many pieces an answer to `input` has, and how it ends: `ok`, `error`, or `never`.
pub(crate) fn plan(input: &str) -> Option<(u64, &str)> {
    let mut words = input.rsplit('/');
    let (end, pieces) = (words.next()?, words.next()?.parse().ok()?);
    Some((pieces, end))
}

impl Process {
    /// Calls that a process before this one began are taken up again.
    pub(crate) fn call_again(&mut self, now: Now) {
        for (id, calling) in self.memo.calls.clone() {
            self.call(now, id, calling, true);
        }
    }

    /// Calls somebody who answers, now and then.
    pub(crate) fn call_somebody(&mut self, now: Now, world: u64) {
        if self.role.calls_every_ms == 0 || world < self.call_at || self.calls.len() >= OUTSTANDING {
            return;
        }
        self.call_at = world + self.rng.around(self.role.calls_every_ms);
        let Some(to) = self.rng.pick(self.names.servers()) else { return };
        self.memo.last_id += 1;
        let id = format!("{}-{}", self.role.ordinal, self.memo.last_id);
        let end = ["ok", "ok", "ok", "ok", "error", "never"][self.rng.below(6) as usize];
        let input = format!("{}.{}/{}/{end}", self.life.slot.0, id, self.rng.below(8));
        let calling = Calling { to, input, timeout_ms: self.rng.between(10_000, 120_000) };
        self.memo.calls.insert(id.clone(), calling.clone());
        self.call(now, id, calling, false);
    }

    fn call(&mut self, now: Now, id: String, calling: Calling, again: bool) {
        let Some(session) = self.names.session_key(calling.to) else { return };
        let params = RunStartParams {
            to: Address::Session(session),
            input: Value::String(calling.input.clone()),
            idempotency_key: id.clone(),
            timeout_ms: Some(U53::saturating(calling.timeout_ms)),
            from_seq: None,
        };
        if let Ok(handle) = self.link.call(now, params, PATIENCE_MS) {
            let key = Key { member: self.role.member, id };
            let Calling { to, input, timeout_ms } = calling;
            self.seen.push(Seen::Calls { life: self.life, key: key.clone(), to, input, timeout_ms, again });
            self.calls.insert(handle, key);
        }
    }

    /// Something for the caller of a run.
    pub(crate) fn call_item(&mut self, handle: CallHandle, item: CallItem) {
        let Some(key) = self.calls.get(&handle).cloned() else { return };
        let life = self.life;
        match item {
            CallItem::Started(result) => {
                self.seen.push(Seen::CallStarted(life, key.clone(), result.run_id.to_string()));
                self.memo.runs.insert(key.id.clone(), result.run_id);
                if !self.calm && self.rng.chance(60) {
                    self.cancels.push((key, result.run_id));
                }
            }
            CallItem::Chunk { seq, data, gap } => {
                let body = data.as_str().unwrap_or_default().to_owned();
                self.seen.push(Seen::CallChunk { life, key, seq, body, gap });
                self.read_calls.push(handle);
            }
            CallItem::Ended(end) => {
                self.calls.remove(&handle);
                let (fate, gap) = match end {
                    CallEnd::Run { end, gap } => (fate(&end), gap),
                    CallEnd::Refused(error) => (RunFate::Refused(error.code.as_str().to_owned()), false),
                    // The run goes on: the next process finds it under its key.
                    CallEnd::Session(_) => return,
                };
                self.memo.calls.remove(&key.id);
                self.seen.push(Seen::CallEnded { life, key, fate, gap });
            }
        }
    }

    /// Something about a run that this process answers.
    pub(crate) fn served_item(&mut self, world: u64, handle: ServedHandle, item: ServedItem) {
        let life = self.life;
        match item {
            ServedItem::Came(run, delivery) => {
                let body = delivery.message.body.unwrap_or_default();
                let input = serde_json::from_str::<String>(&body).unwrap_or(body);
                self.seen.push(Seen::RunCame(life, run.to_string(), input.clone()));
                let due = world + self.rng.around(self.role.work_ms);
                let serving =
                    Serving { run, input, said: 0, due, cancelled: false, ended: None, ending: false };
                self.served.insert(handle, serving);
                self.act_at = self.act_at.min(due);
            }
            ServedItem::Taken(_) => {}
            ServedItem::Cancelled => {
                if let Some(serving) = self.served.get_mut(&handle) {
                    serving.cancelled = true;
                    self.seen.push(Seen::RunUnwanted(life, serving.run.to_string()));
                }
            }
            ServedItem::Over(error) => {
                if let Some(serving) = self.served.remove(&handle) {
                    let code = error.code.as_str().to_owned();
                    self.seen.push(Seen::RunOver(life, serving.run.to_string(), code));
                }
            }
            ServedItem::Ended => {
                if let Some(Serving { run, ended: Some(fate), .. }) = self.served.remove(&handle) {
                    self.seen.push(Seen::RunEndTaken(life, run.to_string(), fate));
                }
            }
        }
    }

    /// Says what is due to be said, and reads and cancels what is.
    pub(crate) fn answer_runs(&mut self, now: Now, world: u64) {
        for handle in std::mem::take(&mut self.read_calls) {
            self.link.call_read(handle);
        }
        for (key, run_id) in std::mem::take(&mut self.cancels) {
            let params = RunIdParams { run_id };
            if let Ok(number) = self.link.request(now, Method::RunCancel, &params, PATIENCE_MS) {
                self.seen.push(Seen::Cancels(self.life, key));
                self.asked.insert(number, Asked::Cancel);
            }
        }
        let due = |(_, serving): &(&ServedHandle, &Serving)| !serving.ending && serving.due <= world;
        for handle in self.served.iter().filter(due).map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.say(world, handle);
        }
    }

    fn say(&mut self, world: u64, handle: ServedHandle) {
        let wait = if self.calm { 1 } else { self.rng.around(self.role.work_ms.max(20)) };
        let Some(serving) = self.served.get_mut(&handle) else { return };
        serving.due = world + wait;
        let (pieces, end) = plan(&serving.input).unwrap_or_default();
        if serving.said < pieces && !serving.cancelled {
            let piece = Piece::new(Value::String(format!("{}#{}", serving.input, serving.said + 1)));
            match self.link.run_chunk(handle, piece) {
                Ok(_) => serving.said += 1,
                // The broker has yet to answer the ones before.
                Err(error) if error.code == ErrorCode::Busy => {}
                Err(_) => serving.ending = true,
            }
        } else if end != "never" || serving.cancelled || self.calm {
            serving.ending = true;
            let end = end_of(&serving.input, serving.cancelled);
            serving.ended = Some(fate(&end));
            self.seen.push(Seen::RunEnds(self.life, serving.run.to_string(), fate(&end)));
            self.link.run_end(handle, end);
        }
    }

    /// When the application has something to say next.
    pub(crate) fn runs_due(&self) -> Option<u64> {
        self.served.values().filter(|serving| !serving.ending).map(|serving| serving.due).min()
    }

    /// What of runs is under way, in words.
    pub(crate) fn runs_under_way(&self) -> impl Iterator<Item = String> + '_ {
        let calls =
            self.calls.values().map(|key| format!("{:?} for the end of the run {}", self.life, key.id));
        let served = self.served.values();
        calls.chain(served.map(|serving| format!("{:?} to end the run {}", self.life, serving.run)))
    }
}

/// The end that an input asks for.
fn end_of(input: &str, cancelled: bool) -> RunEnd {
    let (status, result, error) = match plan(input) {
        _ if cancelled => (RunEndStatus::Cancelled, None, None),
        Some((_, "error")) => {
            let error = WireError::new(ErrorCode::Forbidden, "as it was asked to");
            (RunEndStatus::Error, None, Some(error))
        }
        _ => (RunEndStatus::Ok, Some(Value::String(format!("{input}="))), None),
    };
    RunEnd { status, result, error }
}

/// An end, as the oracle hears of it.
pub(crate) fn fate(end: &RunEnd) -> RunFate {
    match end.status {
        RunEndStatus::Ok => {
            let result = end.result.as_ref().and_then(Value::as_str).unwrap_or_default();
            RunFate::Ok(result.to_owned())
        }
        RunEndStatus::Error => {
            let code = end.error.as_ref().map_or("", |error| error.code.as_str());
            RunFate::Error(code.to_owned())
        }
        RunEndStatus::Cancelled => RunFate::Cancelled,
    }
}
