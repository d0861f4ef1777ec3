//! Requests: sent when a socket carries the session, sent again after a break (each is idempotent by what it
//! names), answered exactly once. Those of the application are never waited for without end.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tenure_kit::deadline::Deadlines;
use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::{Millis, Now};
use tenure_proto::codec::{Codec, ROOM};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::frame::{Head, Request, Response};
use tenure_proto::ids::ClientMessageId;
use tenure_proto::limits::MAX_INFLIGHT;
use tenure_proto::method::{Empty, Method};
use tenure_proto::number::U53;
use tenure_proto::subscribe::{FetchParams, SubscribeParams};

use crate::delivery::{SubEnd, SubHandle};
use crate::inflight::Batch;
use crate::runs::{CallEnd, CallHandle, ServedHandle};
use crate::services::OfferHandle;
use crate::{Link, LinkEffect, RequestNumber, SockId};

/// What a request is for, and so what its answer means.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The application reads the answer itself.
    App,
    /// A message; with a receipt, when somebody waits for one.
    Send(ClientMessageId, bool),
    /// A subscription.
    Subscribe(SubHandle, Box<SubscribeParams>),
    /// The end of one, or of one that is nobody's.
    Unsubscribe(Option<SubHandle>),
    /// The end of what the broker has of one that is then made again.
    Reopen(SubHandle),
    /// Entries that are pulled.
    Fetch(SubHandle, U53),
    /// Settlements.
    Settle(Batch),
    /// The profile, sent again because a hello has undone a change of it.
    Profile,
    /// The fate of messages.
    Status,
    /// A call, or what it has missed.
    Start(CallHandle),
    /// That a call is wanted no more, once again.
    Cancel(CallHandle),
    /// A piece of the answer to a run, by its number.
    Chunk(ServedHandle, u64),
    /// The end of a run; with an answer or without.
    End(ServedHandle, bool),
    /// How a run stands.
    Look(ServedHandle),
    /// All that this session offers, each as it was then.
    Renew(Vec<(OfferHandle, u32)>),
    /// Names that this session offers no more.
    Withdraw(Vec<String>),
}

impl Purpose {
    /// Whether a refusal for now is waited out.
    fn is_patient(&self) -> bool {
        let own_time = matches!(self, Purpose::Renew(_) | Purpose::Withdraw(_));
        let once =
            matches!(self, Purpose::App | Purpose::Unsubscribe(_) | Purpose::Fetch(..) | Purpose::Settle(_));
        !own_time && !once
    }

    /// The run whose chunks and end must leave in order.
    fn run(&self) -> Option<ServedHandle> {
        match self {
            Purpose::Chunk(handle, _) | Purpose::End(handle, _) => Some(*handle),
            _ => None,
        }
    }
}

/// Unanswered requests: of the application at most [`MAX_INFLIGHT`], and our own, which are bounded by what they
/// are about.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// When to give up.
    until: Deadlines<u64>,
    /// When to send again what was refused for now.
    again: Deadlines<u64>,
}

#[derive(Debug)]
struct Open {
    frame: Vec<u8>,
    sent: bool,
    purpose: Purpose,
    /// Whether it sits out a refusal.
    waits: bool,
    refusals: u32,
    refused: Option<WireError>,
}

impl Open {
    fn new(frame: Vec<u8>, sent: bool, purpose: Purpose) -> Open {
        Open { frame, sent, purpose, waits: false, refusals: 0, refused: None }
    }
}

impl Requests {
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        [self.until.next(), self.again.next()].into_iter().flatten().min()
    }

    /// `number` is given up at `until`.
    pub(super) fn expires(&mut self, number: RequestNumber, until: Millis) {
        self.until.set(number.0, until);
    }

    /// A request that cannot be spelled yet.
    pub(super) fn park(&mut self, purpose: Purpose) -> RequestNumber {
        self.last += 1;
        self.open.insert(self.last, Open::new(Vec::new(), false, purpose));
        RequestNumber(self.last)
    }

    /// How many the application waits for.
    pub(super) fn of_application(&self) -> usize {
        let own =
            |open: &&Open| matches!(open.purpose, Purpose::App | Purpose::Send(..) | Purpose::Fetch(..));
        self.open.values().filter(own).count()
    }

    /// Whether one has left and has no answer.
    pub(super) fn has_unanswered(&self) -> bool {
        self.open.values().any(|open| open.sent && !open.waits)
    }

    /// How many have an end or a time to be sent again.
    pub(super) fn deadlines(&self) -> (usize, usize) {
        (self.until.len() + self.again.len(), 2 * self.open.len())
    }

    /// Nothing that was to be said of a run is said any more.
    pub(super) fn forget_run(&mut self, handle: ServedHandle) {
        let of = |(number, open): (&u64, &Open)| (open.purpose.run() == Some(handle)).then_some(*number);
        for number in self.open.iter().filter_map(of).collect::<Vec<_>>() {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Open> {
        self.until.clear(&number);
        self.again.clear(&number);
        self.open.remove(&number)
    }
}

impl Link {
    /// Asks the broker for something; the answer comes as [`LinkEffect::Answer`].
    pub fn request<P: Serialize>(
        &mut self,
        now: Now,
        method: Method,
        params: &P,
        timeout_ms: u64,
    ) -> Result<RequestNumber, WireError> {
        self.room()?;
        let number = self.ask(Purpose::App, method, params)?;
        self.requests.expires(number, now.at.plus(timeout_ms));
        self.wake = self.next_deadline();
        Ok(number)
    }

    /// Whether the application may ask for one more thing.
    pub(super) fn room(&self) -> Result<(), WireError> {
        if self.ended {
            return Err(WireError::new(ErrorCode::LeaseExpired, "the session is over"));
        }
        if self.requests.open.len() >= MAX_INFLIGHT as usize {
            return Err(WireError::new(ErrorCode::Busy, "too many requests wait for their answers"));
        }
        Ok(())
    }

    /// Asks the broker for something, for as long as it takes.
    pub(super) fn ask<P: Serialize>(
        &mut self,
        purpose: Purpose,
        method: Method,
        params: &P,
    ) -> Result<RequestNumber, WireError> {
        self.ask_on(self.sock(), purpose, (method, params, ROOM))
    }

    /// The socket that carries the session, if one does that may be asked something.
    pub(super) fn sock(&self) -> Option<SockId> {
        self.current.as_ref().filter(|_| !self.is_packed()).map(|current| current.sock)
    }

    /// Asks on `sock`, or later, in a frame that begins with room for so many bytes.
    pub(super) fn ask_on<P: Serialize>(
        &mut self,
        sock: Option<SockId>,
        purpose: Purpose,
        (method, params, room): (Method, &P, usize),
    ) -> Result<RequestNumber, WireError> {
        let number = self.requests.last + 1;
        let frame = frame_with_room(self.config.codec, &number.to_string(), (method, params), room);
        if frame.len() > self.policy.frame_bytes {
            return Err(too_large(frame.len()));
        }
        self.requests.last = number;
        if let Some(sock) = sock {
            self.effects.push_back(LinkEffect::Send(sock, frame.clone()));
        }
        self.requests.open.insert(number, Open::new(frame, sock.is_some(), purpose));
        Ok(RequestNumber(number))
    }

    /// Asks the broker for something about a run, after all that was asked about it before.
    pub(super) fn ask_in_order<P: Serialize>(
        &mut self,
        purpose: Purpose,
        method: Method,
        params: &P,
    ) -> Result<(), WireError> {
        // Only what sits out a refusal is held back while a socket carries the session.
        let held = |open: &Open| (open.waits || !open.sent) && open.purpose.run() == purpose.run();
        let held = self.requests.again.next().is_some() && self.requests.open.values().any(held);
        let sock = self.sock().filter(|_| !held);
        self.ask_on(sock, purpose, (method, params, ROOM)).map(|_| ())
    }

    /// Gives up what has waited too long.
    pub(super) fn expire(&mut self, now: Millis) {
        while let Some(number) = self.requests.until.pop_due(now) {
            let Some(open) = self.requests.open.get(&number) else { continue };
            if let Purpose::Subscribe(handle, _) = &open.purpose
                && open.sent
            {
                // Its answer may yet come: the broker then hears that nobody wants it any more.
                let end = open.refused.as_ref().map_or(SubEnd::Disconnected, SubEnd::refused);
                self.end_sub(*handle, end);
                continue;
            }
            let Some(open) = self.requests.remove(number) else { continue };
            let unanswered = || {
                let message = "no answer came in time; it may or may not have been done";
                WireError::new(ErrorCode::Unavailable, message)
            };
            let error = open.refused.clone().unwrap_or_else(unanswered);
            self.fail(number, open, error);
        }
        let (mut again, mut profile) = (false, false);
        while let Some(number) = self.requests.again.pop_due(now) {
            let Some(open) = self.requests.open.get_mut(&number) else { continue };
            if matches!(open.purpose, Purpose::Profile) {
                // The profile may have changed since: it is sent as it is now.
                self.requests.remove(number);
                profile = true;
            } else {
                (open.waits, open.sent, again) = (false, false, true);
            }
        }
        if again {
            self.send_waiting();
        }
        if profile {
            self.say_profile();
        }
    }

    /// The socket is gone: what is unanswered goes out again on the next, unless the reconciliation says it.
    pub(super) fn broken(&mut self) {
        let open = std::mem::take(&mut self.requests.open);
        for (number, mut open) in open {
            open.sent = false;
            let keep = match &open.purpose {
                Purpose::App | Purpose::Send(..) | Purpose::Fetch(..) => true,
                Purpose::Subscribe(handle, _) | Purpose::Reopen(handle) => self.subs.contains(*handle),
                Purpose::Start(handle) | Purpose::Cancel(handle) => self.calls.contains(*handle),
                Purpose::Chunk(..) if mutant::on(Mutant::ChunkForgotten) => false,
                Purpose::Chunk(run, _) | Purpose::End(run, _) | Purpose::Look(run) => {
                    self.serving.contains(*run)
                }
                Purpose::Settle(_) | Purpose::Unsubscribe(_) | Purpose::Status => false,
                // Said anew on the next socket, as it is then.
                Purpose::Profile | Purpose::Renew(_) | Purpose::Withdraw(_) => false,
            };
            if keep {
                self.requests.open.insert(number, open);
                continue;
            }
            self.requests.until.clear(&number);
            self.requests.again.clear(&number);
            if let Purpose::Settle(batch) = open.purpose {
                self.hands.unsend(batch);
            }
        }
        self.offers_broken();
        self.hands.holding = false;
        self.subs.broken();
        if mutant::on(Mutant::BookForgotten) {
            self.hands.forget();
            self.subs.forget();
        }
    }

    /// Sends what has not been sent on the socket that carries the session.
    pub(super) fn send_waiting(&mut self) {
        let Some(sock) = self.sock() else { return };
        let codec = self.config.codec;
        // What follows a chunk that sits out a refusal waits with it.
        let mut held = BTreeSet::new();
        for (number, open) in self.requests.open.iter_mut().filter(|(_, open)| open.waits || !open.sent) {
            if open.waits || open.purpose.run().is_some_and(|run| held.contains(&run)) {
                held.extend(open.purpose.run());
                continue;
            }
            if let Purpose::Start(handle) = &open.purpose
                && let Some(params) = self.calls.spelled(*handle)
            {
                // More may have been read since it was first asked for.
                open.frame = frame(codec, &number.to_string(), Method::RunStart, &params);
            }
            if let Purpose::Fetch(handle, limit) = &open.purpose {
                // It names the subscription as the broker does, and that may have changed.
                let Some(sub_id) = self.subs.id(*handle).cloned() else { continue };
                let params = FetchParams { sub_id, limit: *limit };
                open.frame = frame(codec, &number.to_string(), Method::Fetch, &params);
            }
            if let Purpose::Subscribe(handle, wish) = &mut open.purpose
                && let Some(again) = self.subs.beginning_again(*handle)
            {
                // Its log has another history since it was asked for.
                open.frame = frame(codec, &number.to_string(), Method::Subscribe, &again);
                **wish = again;
            }
            open.sent = true;
            self.effects.push_back(LinkEffect::Send(sock, open.frame.clone()));
        }
    }

    /// The broker closed `sock` over a frame that was too large: the largest that was sent is not sent again.
    pub(super) fn too_large(&mut self, sock: SockId) {
        if self.current.as_ref().is_none_or(|current| current.sock != sock) {
            return;
        }
        let sent = self.requests.open.iter().filter(|(_, open)| open.sent);
        let largest = sent.max_by_key(|(_, open)| open.frame.len()).map(|(number, _)| *number);
        if let Some(number) = largest
            && let Some(open) = self.requests.remove(number)
        {
            let error = too_large(open.frame.len());
            self.fail(number, open, error);
        }
    }

    /// A response came.
    pub(super) fn answered(&mut self, now: Millis, head: &Head, bytes: &[u8]) {
        let Some(id) = &head.id else { return };
        if id.as_str() == crate::reconcile::REQUEST {
            return self.reconcile_answered(now, bytes);
        }
        let Some(number) = id.as_str().parse().ok() else { return };
        if head.ok == Some(false) && self.refused_for_now(now, number, bytes) {
            return;
        }
        let Some(open) = self.requests.remove(number) else { return };
        let (codec, number) = (self.config.codec, RequestNumber(number));
        match open.purpose {
            Purpose::App => self.effects.push_back(LinkEffect::Answer(number, Ok(bytes.to_vec()))),
            Purpose::Send(id, receipt) => {
                self.effects.push_back(LinkEffect::Answer(number, Ok(bytes.to_vec())));
                if receipt {
                    self.send_answered(number, id, outcome(codec, bytes));
                }
            }
            Purpose::Subscribe(handle, wish) => {
                self.subscribed(handle, &wish, outcome(codec, bytes));
            }
            Purpose::Unsubscribe(Some(handle)) => self.end_sub(handle, SubEnd::Unsubscribed),
            Purpose::Unsubscribe(None) | Purpose::Cancel(_) | Purpose::Profile => {}
            // A broker that does not know it any more has ended it.
            Purpose::Reopen(handle) => self.recreate(handle),
            Purpose::Fetch(handle, _) => self.fetched(number, handle, outcome(codec, bytes)),
            Purpose::Settle(batch) => self.settle_answered(now, batch, outcome(codec, bytes)),
            Purpose::Status => self.status_answered(outcome(codec, bytes)),
            Purpose::Start(handle) => self.call_answered(handle, outcome(codec, bytes)),
            Purpose::Chunk(handle, seq) => self.chunk_answered(handle, seq, done(codec, bytes)),
            Purpose::End(handle, answer) => self.end_answered(handle, answer, done(codec, bytes)),
            Purpose::Look(handle) => self.look_answered(handle, outcome(codec, bytes)),
            Purpose::Renew(asked) => self.renewal_answered(&asked, outcome(codec, bytes)),
            Purpose::Withdraw(names) => self.withdrawal_answered(&names, outcome(codec, bytes)),
        }
    }

    /// Whether the request is merely refused for now and will be made again.
    fn refused_for_now(&mut self, now: Millis, number: u64, bytes: &[u8]) -> bool {
        let Some(open) = self.requests.open.get_mut(&number) else { return false };
        if let Purpose::Fetch(handle, _) = &open.purpose
            && self.subs.is_opening(*handle)
        {
            // It named what is being made again, and is asked when that has a name.
            open.sent = false;
            return true;
        }
        let wanted = match &open.purpose {
            Purpose::Subscribe(handle, _) | Purpose::Reopen(handle) => self.subs.contains(*handle),
            Purpose::Start(handle) | Purpose::Cancel(handle) => self.calls.contains(*handle),
            purpose => purpose.is_patient(),
        };
        let error = match outcome::<IgnoredAny>(self.config.codec, bytes) {
            Err(error) if wanted && transient(error.code) => error,
            _ => return false,
        };
        let wait = self.backoff.again_ms(open.refusals) + error.retry_after_ms.map_or(0, U53::get);
        open.refusals = open.refusals.saturating_add(1);
        open.waits = true;
        open.refused = Some(error);
        self.requests.again.set(number, now.plus(wait));
        true
    }

    /// A request comes to nothing.
    fn fail(&mut self, number: u64, open: Open, error: WireError) {
        let number = RequestNumber(number);
        match open.purpose {
            Purpose::App => self.effects.push_back(LinkEffect::Answer(number, Err(error))),
            Purpose::Send(id, receipt) => {
                self.effects.push_back(LinkEffect::Answer(number, Err(error.clone())));
                if receipt {
                    self.send_answered(number, id, Err(error));
                }
            }
            Purpose::Subscribe(handle, _) => {
                // Refused by the broker, or never heard by one.
                let told = open.refused.is_some() || error.code != ErrorCode::Unavailable;
                let end = if told { SubEnd::refused(&error) } else { SubEnd::Disconnected };
                self.end_sub(handle, end);
            }
            Purpose::Fetch(..) => self.effects.push_back(LinkEffect::Fetched(number, Err(error))),
            Purpose::Settle(batch) => self.settle_refused(batch, &error),
            Purpose::Start(handle) => self.end_call(handle, CallEnd::Refused(error)),
            Purpose::Chunk(handle, _) | Purpose::End(handle, _) => self.run_over(handle, error),
            Purpose::Unsubscribe(_)
            | Purpose::Reopen(_)
            | Purpose::Profile
            | Purpose::Status
            | Purpose::Look(_)
            | Purpose::Cancel(_) => {}
            Purpose::Renew(asked) => self.renewal_answered(&asked, Err(error)),
            Purpose::Withdraw(names) => self.withdrawal_answered(&names, Err(error)),
        }
    }

    /// The session is over: everything is answered.
    pub(super) fn end_requests(&mut self) {
        for (number, open) in std::mem::take(&mut self.requests.open) {
            let error = WireError::new(ErrorCode::LeaseExpired, "the session is over");
            if !matches!(open.purpose, Purpose::Settle(_)) {
                self.fail(number, open, error);
            }
        }
        self.requests = Requests { last: self.requests.last, ..Requests::default() };
    }
}

/// Whether a refusal passes by itself, nothing having been done.
pub(super) fn transient(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Unavailable | ErrorCode::Busy | ErrorCode::RateLimited | ErrorCode::Draining)
}

/// What a response says.
pub(super) fn outcome<R: DeserializeOwned>(codec: Codec, bytes: &[u8]) -> Result<R, WireError> {
    let response: Response<R> = codec.decode(bytes)?;
    match (response.result, response.error) {
        (Some(result), _) => Ok(result),
        (None, Some(error)) => Err(error),
        (None, None) => Err(WireError::new(ErrorCode::Internal, "the broker's answer is empty")),
    }
}

/// What a response says that has nothing to say but yes.
fn done(codec: Codec, bytes: &[u8]) -> Result<(), WireError> {
    let response: Response<IgnoredAny> = codec.decode(bytes)?;
    response.error.map_or(Ok(()), Err)
}

fn too_large(bytes: usize) -> WireError {
    WireError::new(ErrorCode::TooLarge, format!("a request of {bytes} bytes is more than the broker reads"))
}

/// The request of a goodbye.
pub(super) fn bye_frame(codec: Codec) -> Vec<u8> {
    frame(codec, "bye", Method::Bye, &Empty {})
}

pub(super) fn frame<P: Serialize>(codec: Codec, id: &str, method: Method, params: &P) -> Vec<u8> {
    frame_with_room(codec, id, (method, params), ROOM)
}

fn frame_with_room<P: Serialize>(
    codec: Codec,
    id: &str,
    (method, params): (Method, &P),
    room: usize,
) -> Vec<u8> {
    match id.parse() {
        Ok(id) => codec.encode_with_room(&Request::new(id, method.as_str(), params), room),
        // Our own ids are short and printable.
        Err(_) => Vec::new(),
    }
}
