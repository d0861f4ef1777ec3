//! The caller's half: the key is the same on every socket, so that one call is one run.
//!
//! A call remembers the next chunk that it wants. Events bring chunks and the end; where events may have been lost,
//! `run.start` with the same key and that number brings them again, and until it is answered nothing is handed on.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use tenure_kit::time::Now;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::RunId;
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use tenure_proto::run::{RunEvent, RunIdParams, RunStartParams, RunStartResult};

use crate::delivery::SubEnd;
use crate::requests::Purpose;
use crate::runs::{CallEnd, CallHandle, CallItem, json_bytes};
use crate::{Link, LinkEffect};

/// Calls of one session that have not ended; one more is refused.
pub(crate) const CALLS: usize = 1_024;
/// Chunks that may wait for a reader. Past it no more are handed on: they are asked for again when there is room, from
/// what the broker still has of them.
pub(crate) const UNREAD: usize = 1_024;
/// Bytes that may wait for a reader, besides the chunk that went past it.
const UNREAD_BYTES: usize = 1024 * 1024;

/// The calls of a session; at most [`CALLS`].
#[derive(Debug, Default)]
pub(crate) struct Calls {
    last: u64,
    table: BTreeMap<CallHandle, Call>,
}

#[derive(Debug)]
struct Call {
    params: RunStartParams,
    /// The broker's name for it, once that is known.
    run: Option<RunId>,
    /// The next chunk wanted.
    next: u64,
    /// Whether a `run.start` waits for its answer.
    asking: bool,
    /// Whether chunks may have been missed: what comes before the next answer is not handed on.
    behind: bool,
    /// Whether its caller wants it stopped.
    cancelled: bool,
    /// What waits for the reader, in bytes.
    unread: VecDeque<usize>,
    unread_bytes: usize,
}

impl Call {
    fn new(params: RunStartParams) -> Call {
        let unread = VecDeque::new();
        Call {
            params,
            run: None,
            next: 1,
            asking: true,
            behind: true,
            cancelled: false,
            unread,
            unread_bytes: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.unread.len() >= UNREAD || self.unread_bytes >= UNREAD_BYTES
    }

    /// Whether it is worth asking for more.
    fn has_room(&self) -> bool {
        self.unread.len() <= UNREAD / 2 && self.unread_bytes <= UNREAD_BYTES / 2
    }

    /// What the reader gets of a chunk.
    fn chunk(&mut self, seq: u64, data: &Value) -> Option<CallItem> {
        if self.behind || seq < self.next {
            return None;
        }
        if self.is_full() {
            self.behind = true;
            return None;
        }
        let bytes = json_bytes(data);
        self.unread.push_back(bytes);
        self.unread_bytes += bytes;
        let gap = seq > self.next;
        self.next = seq.saturating_add(1);
        Some(CallItem::Chunk { seq, data: data.clone(), gap })
    }
}

impl Calls {
    pub(crate) fn contains(&self, handle: CallHandle) -> bool {
        self.table.contains_key(&handle)
    }

    /// How many have not ended.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many chunks wait for the slowest reader.
    pub(crate) fn unread(&self) -> usize {
        self.table.values().map(|call| call.unread.len()).max().unwrap_or(0)
    }

    /// What starts `handle`, or brings what it has missed. Calls under one key are one run with one place in it, so all of
    /// them go back as far as one needs.
    pub(crate) fn spelled(&self, handle: CallHandle) -> Option<RunStartParams> {
        let call = self.table.get(&handle)?;
        let key = &call.params.idempotency_key;
        let twins = self.table.values().filter(|twin| twin.params.idempotency_key == *key);
        let from = twins.map(|twin| twin.next).min().unwrap_or(call.next);
        Some(RunStartParams { from_seq: Some(U53::saturating(from)), ..call.params.clone() })
    }

    fn of(&self, run: RunId) -> Vec<CallHandle> {
        let of = |(handle, call): (&CallHandle, &Call)| (call.run == Some(run)).then_some(*handle);
        self.table.iter().filter_map(of).collect()
    }

    #[must_use]
    pub(crate) fn end(&mut self, handle: CallHandle, end: CallEnd) -> Option<LinkEffect> {
        self.table.remove(&handle).map(|_| LinkEffect::Call(handle, CallItem::Ended(end)))
    }

    /// The session is over.
    pub(crate) fn end_all(&mut self, end: &SubEnd) -> impl Iterator<Item = LinkEffect> + use<> {
        let (all, end) = (std::mem::take(&mut self.table), CallEnd::Session(end.clone()));
        all.into_keys().map(move |handle| LinkEffect::Call(handle, CallItem::Ended(end.clone())))
    }
}

impl Link {
    pub(crate) fn end_call(&mut self, handle: CallHandle, end: CallEnd) {
        self.effects.extend(self.calls.end(handle, end));
    }

    /// Calls somebody. What comes of it comes as [`LinkEffect::Call`]; it is given up when no broker has taken it in
    /// `timeout_ms`, and never after that.
    pub fn call(
        &mut self,
        now: Now,
        params: RunStartParams,
        timeout_ms: u64,
    ) -> Result<CallHandle, WireError> {
        self.room()?;
        if self.calls.table.len() >= CALLS {
            let text = format!("{CALLS} calls of this session have not ended; wait for one of them");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let handle = CallHandle(self.calls.last + 1);
        let first = RunStartParams { from_seq: Some(U53::saturating(1)), ..params.clone() };
        let number = self.ask(Purpose::Start(handle), Method::RunStart, &first)?;
        self.calls.last = handle.0;
        self.calls.table.insert(handle, Call::new(params));
        self.requests.expires(number, now.at.plus(timeout_ms));
        self.wake = self.next_deadline();
        Ok(handle)
    }

    /// The reader has taken a chunk.
    pub fn call_read(&mut self, handle: CallHandle) {
        let Some(call) = self.calls.table.get_mut(&handle) else { return };
        let bytes = call.unread.pop_front().unwrap_or(0);
        call.unread_bytes = call.unread_bytes.saturating_sub(bytes);
        self.catch_up(handle);
    }

    /// The caller has asked for its run to be stopped. A broker that starts again does not know it: then it is told once
    /// more.
    pub fn call_cancelled(&mut self, handle: CallHandle) {
        if let Some(call) = self.calls.table.get_mut(&handle) {
            call.cancelled = true;
        }
    }

    /// Nobody reads a call any more. The run goes on.
    pub fn hang_up(&mut self, handle: CallHandle) {
        self.calls.table.remove(&handle);
    }

    /// Asks for what `handle` has missed, when its reader can take it.
    fn catch_up(&mut self, handle: CallHandle) {
        let Some(call) = self.calls.table.get(&handle) else { return };
        if !call.behind || call.asking || !call.has_room() {
            return;
        }
        let Some(params) = self.calls.spelled(handle) else { return };
        match self.ask(Purpose::Start(handle), Method::RunStart, &params) {
            Ok(_) => {
                if let Some(call) = self.calls.table.get_mut(&handle) {
                    call.asking = true;
                }
            }
            Err(error) => self.end_call(handle, CallEnd::Refused(error)),
        }
    }

    /// Events were lost: every call asks for what might have been among them.
    pub(crate) fn ask_calls(&mut self) {
        for handle in self.calls.table.keys().copied().collect::<Vec<_>>() {
            if let Some(call) = self.calls.table.get_mut(&handle) {
                call.behind = true;
            }
            self.catch_up(handle);
        }
    }

    /// `run.start` is answered; its chunks and its end follow as events.
    pub(crate) fn call_answered(&mut self, handle: CallHandle, outcome: Result<RunStartResult, WireError>) {
        let result = match outcome {
            Ok(result) => result,
            Err(error) => return self.end_call(handle, CallEnd::Refused(error)),
        };
        let Some(call) = self.calls.table.get_mut(&handle) else { return };
        (call.asking, call.behind) = (false, false);
        if call.cancelled {
            let params = RunIdParams { run_id: result.run_id };
            // A frame of a hundred bytes fits everywhere; of a run that has ended it changes nothing.
            let _ = self.ask(Purpose::Cancel(handle), Method::RunCancel, &params);
        }
        let Some(call) = self.calls.table.get_mut(&handle) else { return };
        if call.run.replace(result.run_id).is_none() {
            self.effects.push_back(LinkEffect::Call(handle, CallItem::Started(result)));
        }
    }

    /// `event run` of a run that somebody calls; gives it back when nobody does.
    pub(crate) fn call_event(&mut self, event: RunEvent) -> Option<RunEvent> {
        let handles = self.calls.of(event.run_id);
        if handles.is_empty() {
            return Some(event);
        }
        for handle in handles {
            let Some(call) = self.calls.table.get_mut(&handle) else { continue };
            match (&event.end, event.seq.map(U53::get)) {
                (Some(end), seq) if !call.behind => {
                    let gap = seq.is_some_and(|seq| seq > call.next);
                    self.end_call(handle, CallEnd::Run { end: end.clone(), gap });
                }
                (None, Some(seq)) => {
                    let item = call.chunk(seq, event.data.as_ref().unwrap_or(&Value::Null));
                    self.effects.extend(item.map(|item| LinkEffect::Call(handle, item)));
                }
                // It is asked for again, or says nothing.
                _ => {}
            }
        }
        None
    }
}
