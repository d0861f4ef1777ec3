//! The client's half: one session through any number of sockets.
//!
//! What this is for: everything an SDK decides. When to dial, what to say, whether an event is the next one,
//! when a silent socket is dead, what a close means. Shells own sockets and timers; the simulator owns neither.
//!
//! How to drive it. [`Link::start`] once; [`Link::handle`] with what sockets do; [`Link::tick`] no later than
//! [`Link::next_deadline`]; [`Link::request`], [`Link::set_profile`] and [`Link::bye`] for the application.
//! Each leaves effects in order.
//!
//! What it promises: exactly one [`LinkEffect::Ended`], last, with a reason; events in order without gaps, or an
//! [`SessionEvent::Attached`] with a snapshot that replaces what was known; every request answered once.

mod attach;
mod backoff;
mod config;
mod effect;
mod peers;
mod requests;

use tenure_proto::close::{Action, Closing, Reason};
use tenure_proto::codec::Codec;
use tenure_proto::event::EventBody;
use tenure_proto::frame::{FrameType, Head};
use tenure_proto::hello::Challenge;
use tenure_proto::ids::Epoch;
use tenure_proto::limits::{
    LEASE_TTL_MS, MAX_PAYLOAD_BYTES, PING_INTERVAL_MS, TICK_INTERVAL_MS, frame_bytes,
};
use tenure_proto::peer::{Profile, ProfilePatch};

pub use backoff::Backoff;
pub use config::{LinkConfig, Voucher};
pub use effect::{End, LinkEffect, LinkInput, RequestNumber, SessionEvent, SockId};
pub use peers::{PeerChange, PeerMap};

use crate::time::{Millis, Now};
use requests::Requests;

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
    /// Numbers that the broker told, or its defaults until then.
    policy: Numbers,
    /// When anything was last heard from the broker.
    heard: Millis,
    /// Both clocks at the last look, to notice a jump; and when we asked to be woken.
    looked: Now,
    wake: Option<Millis>,
    bye_until: Option<Millis>,
    ended: bool,
}

#[derive(Debug)]
struct Current {
    sock: SockId,
    since: Millis,
    pinged: Millis,
    /// Until when it must answer, when its life is in doubt.
    probe_until: Option<Millis>,
}

#[derive(Debug)]
struct Next {
    sock: SockId,
    /// When this phase of the handshake gives up.
    until: Millis,
    phase: Phase,
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
    /// Bytes of the largest frame that the broker reads.
    frame_bytes: usize,
}

/// Why a socket or a dial came to nothing.
#[derive(Clone, Copy, Debug)]
struct Loss<'a> {
    reason: &'a str,
    /// Whether a broker, or a server in its place, said so itself.
    answered: bool,
    /// How long the broker asked to be left alone.
    retry_after: Option<u64>,
}

impl Loss<'_> {
    /// A loss that nobody has explained.
    fn of(reason: &str) -> Loss<'_> {
        Loss { reason, answered: false, retry_after: None }
    }
}

impl Link {
    /// A session that is not connected yet. `seed` makes its back-off its own.
    pub fn new(config: LinkConfig, seed: u64, now: Now) -> Link {
        Link {
            profile: config.profile.clone(),
            config,
            backoff: Backoff::new(seed),
            current: None,
            next: None,
            redial_at: None,
            last_sock: 0,
            resume: None,
            requests: Requests::default(),
            policy: Numbers {
                lease_ttl_ms: LEASE_TTL_MS,
                ping_interval_ms: PING_INTERVAL_MS,
                tick_interval_ms: TICK_INTERVAL_MS,
                frame_bytes: frame_bytes(MAX_PAYLOAD_BYTES),
            },
            heard: now.at,
            looked: now,
            wake: None,
            bye_until: None,
            ended: false,
        }
    }

    /// Dials for the first time.
    pub fn start(&mut self, now: Now, effects: &mut Vec<LinkEffect>) {
        self.look(now, effects);
        self.dial(now.at, effects);
        self.wake = self.next_deadline();
    }

    /// Whether a socket carries the session now.
    pub fn is_attached(&self) -> bool {
        self.current.is_some()
    }

    /// Tells the link what a socket did.
    pub fn handle(&mut self, now: Now, input: LinkInput, effects: &mut Vec<LinkEffect>) {
        if self.ended {
            return;
        }
        self.look(now, effects);
        match input {
            LinkInput::Opened(sock) => self.opened(now.at, sock),
            LinkInput::Frame(sock, bytes) => self.frame(now, sock, &bytes, effects),
            LinkInput::Heard(sock) => self.hear(now.at, sock),
            LinkInput::Answered(sock) => self.ponged(now.at, sock, effects),
            LinkInput::Failed { sock, reason, answered } => {
                self.lose(now.at, sock, Loss { answered, ..Loss::of(&reason) }, effects);
            }
            LinkInput::Gone(sock, code) => self.gone(now.at, sock, code, effects),
        }
        self.wake = self.next_deadline();
    }

    /// Does what has come due.
    pub fn tick(&mut self, now: Now, effects: &mut Vec<LinkEffect>) {
        if self.ended {
            return;
        }
        self.look(now, effects);
        let at = now.at;
        self.requests.expire(at, effects);
        if self.bye_until.is_some_and(|until| at >= until) {
            return self.end(End::Bye, effects);
        }
        if self.next.as_ref().is_some_and(|next| at >= next.until)
            && let Some(next) = self.next.take()
        {
            effects.push(LinkEffect::Drop(next.sock));
            let refused = next.refused.map(|error| error.to_string());
            let answered = refused.is_some();
            let reason = refused.unwrap_or_else(|| "no answer in time".to_owned());
            self.retry(at, Loss { answered, ..Loss::of(&reason) }, effects);
        }
        if self.redial_at.is_some_and(|due| at >= due) {
            self.dial(at, effects);
        }
        self.watch(at, effects);
        self.wake = self.next_deadline();
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
        [watch, next, self.redial_at, self.bye_until, self.requests.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Says what peers see from here on, now and at every later hello.
    pub fn set_profile(
        &mut self,
        now: Now,
        patch: &ProfilePatch,
        timeout_ms: u64,
        effects: &mut Vec<LinkEffect>,
    ) -> Result<RequestNumber, tenure_proto::WireError> {
        let profile = self.profile.patched(patch);
        profile.check()?;
        self.profile = profile;
        self.request(now, tenure_proto::method::Method::ProfileSet, patch, timeout_ms, effects)
    }

    /// Says goodbye: the lease ends at once, and so does the session.
    pub fn bye(&mut self, now: Now, effects: &mut Vec<LinkEffect>) {
        if self.ended || self.bye_until.is_some() {
            return;
        }
        let Some(current) = &self.current else { return self.end(End::Bye, effects) };
        let bytes = requests::bye_frame(self.config.codec);
        effects.push(LinkEffect::Send(current.sock, bytes));
        self.bye_until = Some(now.at.plus(BYE_MS));
        self.wake = self.next_deadline();
    }

    /// Notices that the machine slept: either clock has moved further than our own timers explain.
    fn look(&mut self, now: Now, effects: &mut Vec<LinkEffect>) {
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
                effects.push(LinkEffect::Ping(current.sock));
            }
        }
        if self.bye_until.is_none() && self.next.is_none() {
            self.dial(now.at, effects);
        }
    }

    fn dial(&mut self, now: Millis, effects: &mut Vec<LinkEffect>) {
        self.redial_at = None;
        self.last_sock += 1;
        let sock = SockId(self.last_sock);
        self.next = Some(Next { sock, until: now.plus(DIAL_MS), phase: Phase::Dialling, refused: None });
        effects.push(LinkEffect::Dial(sock));
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
    fn ponged(&mut self, now: Millis, sock: SockId, effects: &mut Vec<LinkEffect>) {
        self.hear(now, sock);
        let Some(current) = self.current.as_mut().filter(|current| current.sock == sock) else { return };
        // Unless the new one has already said hello, the old one stays.
        if current.probe_until.take().is_some()
            && self.next.as_ref().is_some_and(|next| next.phase != Phase::AwaitingHello)
            && let Some(next) = self.next.take()
        {
            effects.push(LinkEffect::Drop(next.sock));
        }
    }

    fn frame(&mut self, now: Now, sock: SockId, bytes: &[u8], effects: &mut Vec<LinkEffect>) {
        self.hear(now.at, sock);
        let Ok(head) = Head::decode(self.config.codec, bytes) else {
            return self.garbled(now.at, sock, effects);
        };
        let is_next = self.next.as_ref().is_some_and(|next| next.sock == sock);
        let is_current = self.current.as_ref().is_some_and(|current| current.sock == sock);
        match (head.kind, head.event.as_deref()) {
            (FrameType::Event, Some("closing")) if is_next || is_current => {
                self.closing(now.at, sock, bytes, effects)
            }
            (FrameType::Event, Some("challenge")) if is_next => self.challenged(now, sock, bytes, effects),
            (FrameType::Res, _) if is_next => self.hello_answered(now.at, sock, bytes, effects),
            (FrameType::Res, _) if is_current => {
                if let Some(id) = head.id {
                    self.answered(&id, bytes, effects);
                }
            }
            (FrameType::Event, Some(name)) if is_current => {
                self.event(now.at, sock, head.seq.map(|s| s.get()), name, bytes, effects);
            }
            // A socket we have given up on, or a frame kind of a newer protocol.
            _ => {}
        }
    }

    fn event(
        &mut self,
        now: Millis,
        sock: SockId,
        seq: Option<u64>,
        name: &str,
        bytes: &[u8],
        effects: &mut Vec<LinkEffect>,
    ) {
        // Once a hello has been sent on another socket, this one's numbers mean nothing any more.
        if self.next.as_ref().is_some_and(|next| next.phase == Phase::AwaitingHello) {
            return;
        }
        let Some(seq) = seq else { return };
        let Some(position) = &mut self.resume else { return };
        if seq != position.last_seq + 1 {
            return self.garbled(now, sock, effects);
        }
        let Ok(body) = EventBody::decode(self.config.codec, name, bytes) else {
            return self.garbled(now, sock, effects);
        };
        position.last_seq = seq;
        effects.push(LinkEffect::Deliver(SessionEvent::Event { seq, body: Box::new(body) }));
    }

    /// A frame that makes no sense, or a number that is not the next: this socket is not to be trusted.
    fn garbled(&mut self, now: Millis, sock: SockId, effects: &mut Vec<LinkEffect>) {
        effects.push(LinkEffect::Drop(sock));
        self.lose(now, sock, Loss::of("garbled"), effects);
    }

    fn closing(&mut self, now: Millis, sock: SockId, bytes: &[u8], effects: &mut Vec<LinkEffect>) {
        let closing: Closing = match tenure_proto::frame::data(self.config.codec, bytes) {
            Ok(closing) => closing,
            Err(_) => return self.garbled(now, sock, effects),
        };
        effects.push(LinkEffect::Drop(sock));
        let refused =
            self.next.as_ref().filter(|next| next.sock == sock).and_then(|next| next.refused.clone());
        let retry_after = closing.retry_after_ms.map(|ms| ms.get());
        let own = closing.instance_id.as_ref() == Some(&self.config.client.instance_id);
        match closing.action() {
            Action::Done => self.end(End::Bye, effects),
            Action::ResumeIfOwn if !own => self.end(End::Replaced { by: closing.instance_id }, effects),
            Action::Stop => self.end(End::Stopped { reason: closing.reason, error: refused }, effects),
            Action::Resume | Action::Backoff | Action::ResumeIfOwn => {
                if closing.reason == Reason::TooLarge.as_str() {
                    self.too_large(sock, effects);
                }
                self.lose(now, sock, Loss { reason: &closing.reason, answered: true, retry_after }, effects);
            }
        }
    }

    fn gone(&mut self, now: Millis, sock: SockId, code: Option<u16>, effects: &mut Vec<LinkEffect>) {
        if self.bye_until.is_some() && self.current.as_ref().is_some_and(|current| current.sock == sock) {
            return self.end(End::Bye, effects);
        }
        // Without its `closing` event a close tells little; a code that only stopping reasons have still counts.
        let reason = code.and_then(|code| {
            let mut with_code = Reason::ALL.iter().filter(|reason| reason.code() == code);
            with_code.next().filter(|first| with_code.all(|r| r.action() == first.action()))
        });
        match reason {
            Some(reason) if reason.action() == Action::Stop => {
                let refused = self.next.as_ref().filter(|n| n.sock == sock).and_then(|n| n.refused.clone());
                let known = self.next.as_ref().is_some_and(|n| n.sock == sock)
                    || self.current.as_ref().is_some_and(|c| c.sock == sock);
                if known {
                    self.end(End::Stopped { reason: reason.as_str().to_owned(), error: refused }, effects);
                }
            }
            Some(Reason::TooLarge) => {
                self.too_large(sock, effects);
                let reason = Reason::TooLarge.as_str();
                self.lose(now, sock, Loss { answered: true, ..Loss::of(reason) }, effects);
            }
            _ => self.lose(now, sock, Loss::of("connection lost"), effects),
        }
    }

    /// A socket is lost; the session is not.
    fn lose(&mut self, now: Millis, sock: SockId, loss: Loss<'_>, effects: &mut Vec<LinkEffect>) {
        if self.current.as_ref().is_some_and(|current| current.sock == sock) {
            if let Some(current) = self.current.take()
                && now.since(current.since) >= STEADY_MS
            {
                self.backoff.reset();
            }
            self.requests.unsend();
            effects.push(LinkEffect::Deliver(SessionEvent::Detached { reason: loss.reason.to_owned() }));
            if self.bye_until.is_some() {
                return self.end(End::Bye, effects);
            }
            if self.next.is_none() {
                self.retry(now, loss, effects);
            }
        } else if let Some(next) = self.next.take_if(|next| next.sock == sock) {
            // What the hello was answered says more than how the socket ended.
            match next.refused.map(|error| error.to_string()) {
                Some(reason) => self.retry(now, Loss { reason: &reason, answered: true, ..loss }, effects),
                None => self.retry(now, loss, effects),
            }
        }
    }

    /// Plans the next dial, unless the session is carried.
    fn retry(&mut self, now: Millis, loss: Loss<'_>, effects: &mut Vec<LinkEffect>) {
        if self.current.is_some() {
            return;
        }
        let leased = now.since(self.heard) < self.policy.lease_ttl_ms;
        let wait = self.backoff.next_ms(leased) + loss.retry_after.unwrap_or(0);
        self.redial_at = Some(now.plus(wait));
        let (reason, answered) = (loss.reason.to_owned(), loss.answered);
        effects.push(LinkEffect::Deliver(SessionEvent::Waiting { ms: wait, reason, answered }));
    }

    fn watch(&mut self, now: Millis, effects: &mut Vec<LinkEffect>) {
        let Some(current) = &mut self.current else { return };
        let sock = current.sock;
        let unanswered = current.probe_until.is_some_and(|until| now >= until);
        if unanswered || now.since(self.heard) >= self.policy.tick_interval_ms * 2 {
            effects.push(LinkEffect::Drop(sock));
            return self.lose(now, sock, Loss::of("silent"), effects);
        }
        if now.since(current.pinged) >= self.policy.ping_interval_ms {
            current.pinged = now;
            effects.push(LinkEffect::Ping(sock));
        }
    }

    fn end(&mut self, end: End, effects: &mut Vec<LinkEffect>) {
        if self.ended {
            return;
        }
        self.ended = true;
        let socks = [self.current.take().map(|c| c.sock), self.next.take().map(|n| n.sock)];
        effects.extend(socks.into_iter().flatten().map(LinkEffect::Drop));
        self.requests.end(effects);
        effects.push(LinkEffect::Ended(end));
    }
}

fn challenge(codec: Codec, bytes: &[u8]) -> Option<Challenge> {
    tenure_proto::frame::data(codec, bytes).ok()
}

#[cfg(test)]
mod tests;
