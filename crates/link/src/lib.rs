//! The client's half: one session through any number of sockets.
//!
//! What this is for: everything an SDK decides. When to dial, what to say, whether an event is the next one,
//! when a silent socket is dead, what a close means. Shells own sockets and timers; the simulator owns neither.
//!
//! How to drive it. [`Link::start`] once; [`Link::handle`] with what sockets do; [`Link::tick`] no later than
//! [`Link::next_deadline`]; [`Link::request`], [`Link::send`], [`Link::subscribe`], [`Link::settle`] and the rest
//! for the application; [`Link::flush`] at the end of each turn. Each queues effects inside, in order, until
//! [`Link::poll_effect`] gives them out; the shell polls until nothing is left after each call.
//!
//! What it promises: exactly one [`LinkEffect::Ended`], last, with a reason; events in order without gaps, or an
//! [`SessionEvent::Attached`] with a snapshot that replaces what was known; every request answered once; every
//! stream of messages ended with a typed [`SubEnd`]; an entry handed out once while it is in hand or acked; the chunks
//! of a run in order, each once, and its end once.
//!
//! Where to read next: `attach` for the handshake, `loss` for what a lost socket means, `leave` for a broker that
//! stops, `requests` for what is
//! sent again; for messages `subs`, `inflight`, `book` and `ids`, then `reconcile` and `send`; for runs `runs`; for what it
//! offers `services`.

mod attach;
mod backoff;
mod book;
mod census;
mod config;
mod delivery;
mod effect;
mod feed;
mod ids;
mod inflight;
mod leave;
mod loss;
mod peers;
mod reconcile;
mod requests;
mod runs;
mod screen;
mod send;
mod services;
mod subs;

use std::collections::{BTreeSet, VecDeque};

use tenure_kit::time::{Millis, Now};
use tenure_proto::codec::Codec;
use tenure_proto::event::{EventBody, ResyncWhat};
use tenure_proto::frame::{FrameType, Head};
use tenure_proto::hello::Challenge;
use tenure_proto::ids::Epoch;
use tenure_proto::limits::{
    LEASE_TTL_MS, MAX_PAYLOAD_BYTES, PING_INTERVAL_MS, TICK_INTERVAL_MS, frame_bytes,
};
use tenure_proto::method::Method;
use tenure_proto::peer::{Profile, ProfilePatch};

use inflight::Hands;
use leave::Leave;
use loss::Loss;
use reconcile::Told;
use requests::{Purpose, Requests};
use runs::callee::Serving;
use runs::caller::Calls;
use send::Receipts;
use services::Offers;
use subs::Subs;

pub use backoff::Backoff;
pub use config::{LinkConfig, Voucher};
pub use delivery::{DeliveryId, Handed, SettleNumber, Settlement, SubEnd, SubHandle, SubItem, Verb};
pub use effect::{End, LinkEffect, LinkInput, RequestNumber, SessionEvent, SockId};
pub use feed::{Skips, UNREAD_MAX};
pub use peers::{PeerChange, PeerMap};
pub use runs::{CHUNK_WINDOW, CallEnd, CallHandle, CallItem, Piece, ServedHandle, ServedItem};
pub use screen::Screen;
pub use send::Patience;
pub use services::{OfferHandle, OfferItem};

/// A dial, and then its hello, give up after this.
const DIAL_MS: u64 = 5_000;
/// After a clock jump the old socket has this long to answer.
const PROBE_MS: u64 = 1_000;
/// Being attached this long forgives earlier failures.
const STEADY_MS: u64 = 10_000;
/// A goodbye that nobody answers ends the session all the same.
const BYE_MS: u64 = 1_000;
/// A clock further off than this has jumped: the machine slept.
const JUMP_MS: u64 = 5_000;

/// One session, whatever carries it.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    profile: Profile,
    backoff: Backoff,
    /// The socket that carries the session.
    current: Option<Current>,
    /// The socket that may carry it next.
    next: Option<Next>,
    /// When to dial again, if nothing is under way.
    redial_at: Option<Millis>,
    last_sock: u64,
    resume: Option<Position>,
    requests: Requests,
    receipts: Receipts,
    subs: Subs,
    hands: Hands,
    calls: Calls,
    serving: Serving,
    offers: Offers,
    /// What the last hello said we have.
    told: Option<Told>,
    /// The logs of which the last hello listed a position.
    listed: BTreeSet<String>,
    /// The broker's wall clock at its last challenge, and ours when it came.
    broker_clock: Option<(Millis, u64)>,
    /// Numbers that the broker told, or its defaults until then.
    policy: Numbers,
    /// When anything was last heard from the broker.
    heard: Millis,
    /// Both clocks at the last look, to notice a jump; and when we asked to be woken.
    looked: Now,
    wake: Option<Millis>,
    bye_until: Option<Millis>,
    ended: bool,
    /// What the shell is to do, in this order. The shell takes all of it each turn, so one turn bounds it.
    effects: VecDeque<LinkEffect>,
}

#[derive(Debug)]
struct Current {
    sock: SockId,
    since: Millis,
    pinged: Millis,
    /// Until when it must answer, when its life is in doubt.
    probe_until: Option<Millis>,
    /// The broker is stopping, and has said until when this socket may be used.
    leave: Option<Leave>,
}

#[derive(Debug)]
struct Next {
    sock: SockId,
    /// When this phase of the handshake gives up.
    until: Millis,
    phase: Phase,
    /// The profile in its hello, once that is written.
    said: Option<Profile>,
    /// What the hello was refused with.
    refused: Option<tenure_proto::WireError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Dialling,
    AwaitingChallenge,
    AwaitingHello,
}

/// Where the event stream is.
#[derive(Debug)]
struct Position {
    token: String,
    epoch: Epoch,
    last_seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    lease_ttl_ms: u64,
    ping_interval_ms: u64,
    tick_interval_ms: u64,
    /// Bytes of the largest frame that the broker reads, and of what it may carry.
    frame_bytes: usize,
    max_payload: usize,
}

impl Link {
    /// A session that is not connected yet. `seed` makes its back-off its own.
    pub fn new(config: LinkConfig, seed: u64, now: Now) -> Link {
        Link {
            profile: config.profile.clone(),
            subs: Subs::new(config.inbox),
            config,
            backoff: Backoff::new(seed),
            current: None,
            next: None,
            redial_at: None,
            last_sock: 0,
            resume: None,
            requests: Requests::default(),
            receipts: Receipts::default(),
            hands: Hands::default(),
            calls: Calls::default(),
            serving: Serving::default(),
            offers: Offers::default(),
            told: None,
            listed: BTreeSet::new(),
            broker_clock: None,
            policy: Numbers {
                lease_ttl_ms: LEASE_TTL_MS,
                ping_interval_ms: PING_INTERVAL_MS,
                tick_interval_ms: TICK_INTERVAL_MS,
                frame_bytes: frame_bytes(MAX_PAYLOAD_BYTES),
                max_payload: MAX_PAYLOAD_BYTES,
            },
            heard: now.at,
            looked: now,
            wake: None,
            bye_until: None,
            ended: false,
            effects: VecDeque::new(),
        }
    }

    /// Dials for the first time.
    pub fn start(&mut self, now: Now) {
        self.look(now);
        self.dial(now.at);
        self.wake = self.next_deadline();
    }

    /// Whether a socket carries the session now.
    pub fn is_attached(&self) -> bool {
        self.current.is_some()
    }

    /// Tells the link what a socket did.
    pub fn handle(&mut self, now: Now, input: LinkInput) {
        if self.ended {
            return;
        }
        self.look(now);
        match input {
            LinkInput::Opened(sock) => self.opened(now.at, sock),
            LinkInput::Frame(sock, bytes) => self.frame(now, sock, &bytes),
            LinkInput::Heard(sock) => self.hear(now.at, sock),
            LinkInput::Answered(sock) => self.ponged(now.at, sock),
            LinkInput::Failed { sock, reason, answered } => {
                self.lose(now.at, sock, Loss { answered, ..Loss::of(&reason) });
            }
            LinkInput::Gone(sock, code) => self.gone(now.at, sock, code),
        }
        self.leave_if_done(now.at);
        self.wake = self.next_deadline();
    }

    /// Does what has come due.
    pub fn tick(&mut self, now: Now) {
        if self.ended {
            return;
        }
        self.look(now);
        let at = now.at;
        self.expire(at);
        self.effects.extend(self.receipts.expire(at));
        self.settle_all(at);
        self.renew_due(at);
        if self.bye_until.is_some_and(|until| at >= until) {
            return self.end(End::Bye);
        }
        if self.next.as_ref().is_some_and(|next| at >= next.until)
            && let Some(next) = self.next.take()
        {
            self.effects.push_back(LinkEffect::Drop(next.sock));
            let refused = next.refused.map(|error| error.to_string());
            let answered = refused.is_some();
            let reason = refused.unwrap_or_else(|| "no answer in time".to_owned());
            self.retry(at, Loss { answered, ..Loss::of(&reason) });
        }
        if self.redial_at.is_some_and(|due| at >= due) {
            self.dial(at);
        }
        self.watch(at);
        self.leave_if_done(at);
        self.wake = self.next_deadline();
    }

    /// The next thing that the shell is to do.
    pub fn poll_effect(&mut self) -> Option<LinkEffect> {
        self.effects.pop_front()
    }

    /// When [`Link::tick`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.ended {
            return None;
        }
        let watch = self.current.as_ref().map(|current| {
            let ping = current.pinged.plus(self.policy.ping_interval_ms);
            let silent = self.heard.plus(self.policy.tick_interval_ms * 2);
            ping.min(silent).min(current.probe_until.unwrap_or(ping))
        });
        let next = self.next.as_ref().map(|next| next.until);
        let asked = [self.requests.next_deadline(), self.receipts.next_deadline()];
        let pause = self.current.as_ref().and_then(|_| self.hands.next_deadline());
        let leave = self.current.as_ref().and_then(|current| current.leave).map(|leave| leave.until);
        let leave = leave.filter(|_| self.next.is_none() && self.bye_until.is_none());
        let own = [watch, next, self.redial_at, self.bye_until, pause, leave, self.offers.next_deadline()];
        own.into_iter().chain(asked).flatten().min()
    }

    /// Says what peers see from here on, now and at every later hello.
    pub fn set_profile(
        &mut self,
        now: Now,
        patch: &ProfilePatch,
        timeout_ms: u64,
    ) -> Result<RequestNumber, tenure_proto::WireError> {
        let profile = self.profile.patched(patch);
        profile.check()?;
        self.profile = profile;
        self.request(now, Method::ProfileSet, patch, timeout_ms)
    }

    /// Sends the whole profile.
    fn say_profile(&mut self) {
        let patch = ProfilePatch::from(self.profile.clone());
        // The profile was checked when it was set, and if this socket breaks the next hello carries it.
        let _ = self.ask(Purpose::Profile, Method::ProfileSet, &patch);
    }

    /// Says goodbye: the lease ends at once, and so does the session.
    pub fn bye(&mut self, now: Now) {
        if self.ended || self.bye_until.is_some() {
            return;
        }
        self.settle_all(now.at);
        let Some(current) = &self.current else { return self.end(End::Bye) };
        let bytes = requests::bye_frame(self.config.codec);
        self.effects.push_back(LinkEffect::Send(current.sock, bytes));
        self.bye_until = Some(now.at.plus(BYE_MS));
        self.wake = self.next_deadline();
    }

    /// Notices that the machine slept: either clock has moved further than our own timers explain.
    fn look(&mut self, now: Now) {
        let tolerance = JUMP_MS.min(self.policy.lease_ttl_ms / 10).max(1);
        let late = self.wake.map_or(0, |wake| now.at.since(wake));
        let wall = now.wall.saturating_sub(self.looked.wall);
        let apart = wall.saturating_sub(now.at.since(self.looked.at));
        self.looked = now;
        if late <= tolerance && apart <= tolerance {
            return;
        }
        self.wake = None;
        if let Some(current) = &mut self.current {
            // The old socket may well be alive: ask it, and prepare for the worst meanwhile.
            if current.probe_until.is_none() {
                current.probe_until = Some(now.at.plus(PROBE_MS));
                self.effects.push_back(LinkEffect::Ping(current.sock));
            }
        }
        if self.bye_until.is_none() && self.next.is_none() {
            self.dial(now.at);
        }
    }

    fn dial(&mut self, now: Millis) {
        self.redial_at = None;
        self.last_sock += 1;
        let sock = SockId(self.last_sock);
        let (until, phase) = (now.plus(DIAL_MS), Phase::Dialling);
        self.next = Some(Next { sock, until, phase, said: None, refused: None });
        self.effects.push_back(LinkEffect::Dial(sock));
    }

    fn opened(&mut self, now: Millis, sock: SockId) {
        if let Some(next) = self.next.as_mut().filter(|next| next.sock == sock) {
            next.phase = Phase::AwaitingChallenge;
            next.until = now.plus(DIAL_MS);
        }
    }

    fn hear(&mut self, now: Millis, sock: SockId) {
        if self.current.as_ref().is_some_and(|current| current.sock == sock) {
            self.heard = now;
        }
    }

    /// The socket has answered our last ping: it lives.
    fn ponged(&mut self, now: Millis, sock: SockId) {
        self.hear(now, sock);
        let Some(current) = self.current.as_mut().filter(|current| current.sock == sock) else { return };
        // Unless the new one has already said hello, the old one stays.
        if current.probe_until.take().is_some()
            && self.next.as_ref().is_some_and(|next| next.phase != Phase::AwaitingHello)
            && let Some(next) = self.next.take()
        {
            self.effects.push_back(LinkEffect::Drop(next.sock));
        }
    }

    fn frame(&mut self, now: Now, sock: SockId, bytes: &[u8]) {
        self.hear(now.at, sock);
        let Ok(head) = Head::decode(self.config.codec, bytes) else {
            return self.garbled(now.at, sock);
        };
        let is_next = self.next.as_ref().is_some_and(|next| next.sock == sock);
        let is_current = self.current.as_ref().is_some_and(|current| current.sock == sock);
        match (head.kind, head.event.as_deref()) {
            (FrameType::Event, Some("closing")) if is_next || is_current => self.closing(now.at, sock, bytes),
            (FrameType::Event, Some("challenge")) if is_next => self.challenged(now, sock, bytes),
            (FrameType::Res, _) if is_next => self.hello_answered(now.at, sock, bytes),
            (FrameType::Res, _) if is_current => self.answered(now.at, &head, bytes),
            (FrameType::Event, Some(name)) if is_current => {
                self.event(now.at, sock, head.seq.map(|s| s.get()), name, bytes);
            }
            // A socket we have given up on, or a frame kind of a newer protocol.
            _ => {}
        }
    }

    fn event(&mut self, now: Millis, sock: SockId, seq: Option<u64>, name: &str, bytes: &[u8]) {
        // Once a hello has been sent on another socket, this one's numbers mean nothing any more.
        if self.is_greeting() {
            return;
        }
        let Some(seq) = seq else { return };
        let Some(position) = &mut self.resume else { return };
        if seq != position.last_seq + 1 {
            return self.garbled(now, sock);
        }
        let Ok(body) = EventBody::decode(self.config.codec, name, bytes) else {
            return self.garbled(now, sock);
        };
        position.last_seq = seq;
        match body {
            EventBody::Message(delivery) => self.delivered(delivery),
            EventBody::Subscription(event) => self.subscription_event(event),
            EventBody::Run(event) if event.cancel && self.is_serving() => {
                self.run_cancelled(event.run_id);
            }
            EventBody::Run(event) => {
                // A run that nobody calls here is told as it came.
                if let Some(event) = self.call_event(event) {
                    let body = Box::new(EventBody::Run(event));
                    self.effects.push_back(LinkEffect::Deliver(SessionEvent::Event { seq, body }));
                }
            }
            body => {
                match &body {
                    EventBody::Receipt(receipt) => self.effects.extend(self.receipts.came(receipt)),
                    EventBody::Shutdown(shutdown) => self.asked_to_leave(now, shutdown),
                    EventBody::Resync(resync) if resync.what.contains(&ResyncWhat::Receipts) => {
                        self.ask_receipts();
                    }
                    _ => {}
                }
                self.effects
                    .push_back(LinkEffect::Deliver(SessionEvent::Event { seq, body: Box::new(body) }));
            }
        }
    }

    /// The broker's wall clock, as far as its last challenge tells.
    fn broker_wall(&self) -> Option<u64> {
        self.broker_clock.map(|(then, wall)| wall.saturating_add(self.looked.at.since(then)))
    }

    /// Whether a hello is on its way.
    fn is_greeting(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.phase == Phase::AwaitingHello)
    }

    fn watch(&mut self, now: Millis) {
        let Some(current) = &mut self.current else { return };
        let sock = current.sock;
        let unanswered = current.probe_until.is_some_and(|until| now >= until);
        if unanswered || now.since(self.heard) >= self.policy.tick_interval_ms * 2 {
            self.effects.push_back(LinkEffect::Drop(sock));
            return self.lose(now, sock, Loss::of("silent"));
        }
        if now.since(current.pinged) >= self.policy.ping_interval_ms {
            current.pinged = now;
            self.effects.push_back(LinkEffect::Ping(sock));
        }
    }

    fn end(&mut self, end: End) {
        if self.ended {
            return;
        }
        self.ended = true;
        let socks = [self.current.take().map(|c| c.sock), self.next.take().map(|n| n.sock)];
        self.effects.extend(socks.into_iter().flatten().map(LinkEffect::Drop));
        self.effects.extend(self.subs.end_all(&SubEnd::of_session(&end)));
        self.effects.extend(self.calls.end_all(&SubEnd::of_session(&end)));
        self.effects.extend(self.serving.end_all());
        self.effects.extend(self.offers.end_all(&SubEnd::of_session(&end)));
        self.end_requests();
        self.effects.extend(self.receipts.end());
        self.effects.extend(self.hands.end());
        self.effects.push_back(LinkEffect::Ended(end));
    }
}

fn challenge(codec: Codec, bytes: &[u8]) -> Option<Challenge> {
    tenure_proto::frame::data(codec, bytes).ok()
}

#[cfg(test)]
mod tests;
