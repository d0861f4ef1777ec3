//! The callee's half: what comes as a message of kind `run` is handed to the application once; chunks and the end are
//! sent in order, the same on every socket, until the broker has them.

use std::collections::{BTreeMap, VecDeque};

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::RunId;
use tenure_proto::message::{Message, MessageKind};
use tenure_proto::method::Method;
use tenure_proto::number::U53;
use tenure_proto::run::{
    RunChunkParams, RunEnd, RunEndParams, RunEndStatus, RunGetResult, RunIdParams, RunState,
};

use crate::delivery::{DeliveryId, Handed, SubHandle, SubItem};
use crate::requests::Purpose;
use crate::runs::{CHUNK_WINDOW, Piece, ServedHandle, ServedItem, end_too_large, json_bytes};
use crate::{Link, LinkEffect};

/// Runs that were cancelled before they came: after a break the word may be quicker than the run. The oldest are
/// forgotten first.
pub(crate) const EARLY_CANCELS: usize = 256;

/// The runs that a session answers. Each is a delivery in hand, and bounded as they are.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Whether runs are for somebody who answers them, and not messages like others.
    on: bool,
    last: u64,
    table: BTreeMap<ServedHandle, Served>,
    runs: BTreeMap<RunId, ServedHandle>,
    early_cancels: VecDeque<RunId>,
}

#[derive(Debug)]
struct Served {
    run: RunId,
    delivery: DeliveryId,
    /// The next chunk's number.
    next: u64,
    /// What the chunks without an answer cost, by number.
    unanswered: BTreeMap<u64, usize>,
    /// Whether its end is under way.
    ending: bool,
    /// Whether the application was told that it is over.
    given_up: bool,
}

impl Serving {
    pub(crate) fn contains(&self, handle: ServedHandle) -> bool {
        self.table.contains_key(&handle)
    }

    /// Whether a delivery is a run that is answered here.
    pub(crate) fn is_served(&self, delivery: &DeliveryId) -> bool {
        self.table.values().any(|served| served.delivery == *delivery)
    }

    /// What the chunks of a run that wait for their answers cost, at most.
    pub(crate) fn unanswered(&self) -> usize {
        self.table.values().map(|served| served.unanswered.values().sum()).max().unwrap_or(0)
    }

    /// How many cancelled runs are remembered that have not come.
    pub(crate) fn early_cancels(&self) -> usize {
        self.early_cancels.len()
    }

    fn remove(&mut self, handle: ServedHandle) -> Option<Served> {
        let served = self.table.remove(&handle)?;
        self.runs.remove(&served.run);
        Some(served)
    }

    /// The session is over.
    pub(crate) fn end_all(&mut self) -> impl Iterator<Item = LinkEffect> + use<> {
        self.runs.clear();
        let living = std::mem::take(&mut self.table).into_iter().filter(|(_, run)| !run.given_up);
        let over = || WireError::new(ErrorCode::LeaseExpired, "the session is over");
        living.map(move |(handle, _)| LinkEffect::Served(handle, ServedItem::Over(over())))
    }
}

/// The run that a message is.
fn run_id(message: &Message) -> RunId {
    let told = message.meta.as_ref().and_then(|meta| meta.0.get("runId")?.as_str()?.parse().ok());
    // The broker calls a run as it calls its message.
    told.unwrap_or(RunId(message.id.0))
}

/// Whether a refusal means that the run is not ours to answer, or over.
fn is_over(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::SeqGap | ErrorCode::NotOwner | ErrorCode::NotFound | ErrorCode::Conflict)
}

fn over() -> WireError {
    WireError::new(ErrorCode::Conflict, "that run is over; stop working on it")
}

impl Link {
    /// Runs that come to an inbox are handed to whoever answers them, as [`LinkEffect::Served`], and are no messages
    /// for its reader. To be called before [`Link::start`].
    pub fn serve_runs(&mut self) {
        self.serving.on = true;
    }

    /// Hands a message on: to its reader, or, when it is a run and runs are answered here, to who answers them.
    /// Gives it back when it is its reader's.
    pub(crate) fn run_came(&mut self, sub: SubHandle, handed: Handed) -> Option<Handed> {
        let inbox = matches!(sub, SubHandle::INBOX | SubHandle::MEMBER);
        let Some(delivery) = handed.id.filter(|_| self.serving.on && inbox) else { return Some(handed) };
        if handed.delivery.message.kind != MessageKind::Run {
            return Some(handed);
        }
        let run = run_id(&handed.delivery.message);
        let serving = &mut self.serving;
        if let Some(served) = serving.runs.get(&run).and_then(|handle| serving.table.get_mut(handle)) {
            // It had left our hands and comes back, and somebody is at it all the while.
            served.delivery = delivery;
            return None;
        }
        serving.last += 1;
        let handle = ServedHandle(serving.last);
        let served =
            Served { run, delivery, next: 1, unanswered: BTreeMap::new(), ending: false, given_up: false };
        serving.table.insert(handle, served);
        serving.runs.insert(run, handle);
        self.effects.push_back(LinkEffect::Served(handle, ServedItem::Came(run, handed.delivery)));
        let early = serving.early_cancels.iter().position(|early| *early == run);
        if early.and_then(|at| serving.early_cancels.remove(at)).is_some() {
            self.effects.push_back(LinkEffect::Served(handle, ServedItem::Cancelled));
        }
        None
    }

    /// Hands a message of a subscription on.
    pub(crate) fn hand_on(&mut self, sub: SubHandle, handed: Handed) {
        if let Some(handed) = self.run_came(sub, handed) {
            self.effects.push_back(LinkEffect::Sub(sub, SubItem::Message(handed)));
        }
    }

    /// Sends a piece of an answer and gives its number; [`ServedItem::Taken`] tells when the broker has it. Refused with
    /// `too_large` or `busy` it has no number, and the run goes on; otherwise the run is over.
    pub fn run_chunk(&mut self, handle: ServedHandle, piece: Piece) -> Result<u64, WireError> {
        let served = self.serving.table.get(&handle).filter(|served| !served.ending).ok_or_else(over)?;
        if piece.bytes > self.policy.max_payload {
            let text = format!(
                "a piece of {} bytes is more than the {} that the broker takes; send it in smaller ones",
                piece.bytes, self.policy.max_payload
            );
            return Err(WireError::new(ErrorCode::TooLarge, text));
        }
        let cost = piece.cost();
        if served.unanswered.values().sum::<usize>() + cost > CHUNK_WINDOW {
            let text = "the broker has not answered the pieces before this one; wait for it";
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let seq = served.next;
        let params = RunChunkParams { run_id: served.run, seq: U53::saturating(seq), data: piece.data };
        self.ask_in_order(Purpose::Chunk(handle, seq), Method::RunChunk, &params)?;
        if let Some(served) = self.serving.table.get_mut(&handle) {
            served.next += 1;
            served.unanswered.insert(seq, cost);
        }
        Ok(seq)
    }

    /// Says how a run ended; [`ServedItem::Ended`] tells when the broker has it. An answer that is too large for it ends
    /// the run with that error.
    pub fn run_end(&mut self, handle: ServedHandle, end: RunEnd) {
        let max_payload = self.policy.max_payload;
        let Some(served) = self.serving.table.get_mut(&handle).filter(|served| !served.ending) else {
            return;
        };
        served.ending = true;
        let details = end.error.as_ref().and_then(|error| error.details.as_deref());
        let message = end.error.as_ref().map_or(0, |error| error.message.len());
        let bytes = [end.result.as_ref(), details].into_iter().flatten().map(json_bytes).sum::<usize>();
        let end = if bytes.saturating_add(message) > max_payload { end_too_large(max_payload) } else { end };
        self.say_end(handle, end);
    }

    fn say_end(&mut self, handle: ServedHandle, end: RunEnd) {
        let Some(served) = self.serving.table.get(&handle) else { return };
        let params = RunEndParams {
            run_id: served.run,
            seq: U53::saturating(served.next),
            status: end.status,
            // Nothing is said in one way only, so that a repeat is one.
            result: end.result.filter(|result| !result.is_null()),
            error: end.error,
        };
        let answer = params.result.is_some();
        let purpose = Purpose::End(handle, answer);
        if let Err(error) = self.ask_in_order(purpose, Method::RunEnd, &params) {
            // More than fits into any frame.
            self.end_refused(handle, answer, error);
        }
    }

    /// The broker has a chunk, or will not have it.
    pub(crate) fn chunk_answered(&mut self, handle: ServedHandle, seq: u64, outcome: Result<(), WireError>) {
        let Some(served) = self.serving.table.get_mut(&handle) else { return };
        served.unanswered.remove(&seq);
        match outcome {
            Ok(()) => self.effects.push_back(LinkEffect::Served(handle, ServedItem::Taken(seq))),
            // The end may have been taken on an earlier socket, and this piece with it: its own answer tells.
            Err(error) if is_over(error.code) && served.ending => {}
            Err(error) if is_over(error.code) => self.run_over(handle, error),
            Err(error) => {
                // The broker waits for that number, and nobody has anything else to say under it.
                (served.next, served.ending, served.given_up) = (seq, true, true);
                self.requests.forget_run(handle);
                self.effects.push_back(LinkEffect::Served(handle, ServedItem::Over(error.clone())));
                let end = RunEnd { status: RunEndStatus::Error, result: None, error: Some(error) };
                self.say_end(handle, end);
            }
        }
    }

    /// The broker has the end, or will not have it.
    pub(crate) fn end_answered(
        &mut self,
        handle: ServedHandle,
        answer: bool,
        outcome: Result<(), WireError>,
    ) {
        if let Err(error) = outcome {
            return self.end_refused(handle, answer, error);
        }
        if let Some(served) = self.serving.remove(handle) {
            self.run_settled(served.delivery);
            if !served.given_up {
                self.effects.push_back(LinkEffect::Served(handle, ServedItem::Ended));
            }
        }
    }

    fn end_refused(&mut self, handle: ServedHandle, answer: bool, error: WireError) {
        if answer && error.code == ErrorCode::TooLarge {
            let end = end_too_large(self.policy.max_payload);
            return self.say_end(handle, end);
        }
        self.run_over(handle, error);
    }

    /// A run is over without us.
    pub(crate) fn run_over(&mut self, handle: ServedHandle, error: WireError) {
        if let Some(served) = self.serving.remove(handle) {
            self.requests.forget_run(handle);
            self.forgo(served.delivery);
            if !served.given_up {
                self.effects.push_back(LinkEffect::Served(handle, ServedItem::Over(error)));
            }
        }
    }

    /// `event run` with a word to a callee.
    pub(crate) fn run_cancelled(&mut self, run: RunId) {
        match self.serving.runs.get(&run) {
            Some(handle) => self.effects.push_back(LinkEffect::Served(*handle, ServedItem::Cancelled)),
            None => {
                self.serving.early_cancels.push_back(run);
                if self.serving.early_cancels.len() > EARLY_CANCELS {
                    self.serving.early_cancels.pop_front();
                }
            }
        }
    }

    /// Whether runs are answered here.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.on
    }

    /// Events were lost: asks of every run whether it is still wanted.
    pub(crate) fn ask_runs(&mut self) {
        for handle in self.serving.table.keys().copied().collect::<Vec<_>>() {
            self.ask_run(handle);
        }
    }

    /// The broker has taken the delivery of a run back.
    pub(crate) fn run_lost(&mut self, delivery: DeliveryId) {
        let mut table = self.serving.table.iter();
        let handle = table.find(|(_, served)| served.delivery == delivery).map(|(handle, _)| *handle);
        if let Some(handle) = handle {
            self.ask_run(handle);
        }
    }

    fn ask_run(&mut self, handle: ServedHandle) {
        // One whose end is under way hears the same from that.
        let Some(served) = self.serving.table.get(&handle).filter(|served| !served.ending) else { return };
        let params = RunIdParams { run_id: served.run };
        // A frame of a hundred bytes fits everywhere.
        let _ = self.ask(Purpose::Look(handle), Method::RunGet, &params);
    }

    /// How a run stands, as its callee asked.
    pub(crate) fn look_answered(&mut self, handle: ServedHandle, outcome: Result<RunGetResult, WireError>) {
        let served = self.serving.table.get(&handle);
        if served.is_none_or(|served| served.ending) {
            return;
        }
        match outcome {
            Ok(result) if matches!(result.state, RunState::Queued | RunState::Running) => {}
            Ok(result) => self.run_over(handle, result.error.unwrap_or_else(over)),
            Err(error) => self.run_over(handle, error),
        }
    }
}
