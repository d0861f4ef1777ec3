//! What a lost socket means: the session goes on, waits, or is over.

use tenure_kit::time::Millis;
use tenure_proto::close::{Action, Closing, Reason};

use crate::{End, Link, LinkEffect, STEADY_MS, SessionEvent, SockId};

/// Why a socket or a dial came to nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss<'a> {
    pub(super) reason: &'a str,
    /// Whether a broker, or a server in its place, said so itself.
    pub(super) answered: bool,
    /// How long the broker asked to be left alone.
    pub(super) retry_after: Option<u64>,
}

impl Loss<'_> {
    /// A loss that nobody has explained.
    pub(super) fn of(reason: &str) -> Loss<'_> {
        Loss { reason, answered: false, retry_after: None }
    }
}

impl Link {
    /// A frame that makes no sense, or a number that is not the next: this socket is not to be trusted.
    pub(super) fn garbled(&mut self, now: Millis, sock: SockId) {
        self.effects.push_back(LinkEffect::Drop(sock));
        self.lose(now, sock, Loss::of("garbled"));
    }

    pub(super) fn closing(&mut self, now: Millis, sock: SockId, bytes: &[u8]) {
        let closing: Closing = match tenure_proto::frame::data(self.config.codec, bytes) {
            Ok(closing) => closing,
            Err(_) => return self.garbled(now, sock),
        };
        self.effects.push_back(LinkEffect::Drop(sock));
        let refused =
            self.next.as_ref().filter(|next| next.sock == sock).and_then(|next| next.refused.clone());
        let retry_after = closing.retry_after_ms.map(|ms| ms.get());
        let own = closing.instance_id.as_ref() == Some(&self.config.client.instance_id);
        match closing.action() {
            Action::Done => self.end(End::Bye),
            Action::ResumeIfOwn if !own => self.end(End::Replaced { by: closing.instance_id }),
            Action::Stop => self.end(End::Stopped { reason: closing.reason, error: refused }),
            Action::Resume | Action::Backoff | Action::ResumeIfOwn => {
                if closing.reason == Reason::TooLarge.as_str() {
                    self.too_large(sock);
                }
                self.lose(now, sock, Loss { reason: &closing.reason, answered: true, retry_after });
            }
        }
    }

    pub(super) fn gone(&mut self, now: Millis, sock: SockId, code: Option<u16>) {
        if self.bye_until.is_some() && self.current.as_ref().is_some_and(|current| current.sock == sock) {
            return self.end(End::Bye);
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
                    self.end(End::Stopped { reason: reason.as_str().to_owned(), error: refused });
                }
            }
            Some(Reason::TooLarge) => {
                self.too_large(sock);
                let reason = Reason::TooLarge.as_str();
                self.lose(now, sock, Loss { answered: true, ..Loss::of(reason) });
            }
            _ => self.lose(now, sock, Loss::of("connection lost")),
        }
    }

    /// A socket is lost; the session is not.
    pub(super) fn lose(&mut self, now: Millis, sock: SockId, loss: Loss<'_>) {
        if self.current.as_ref().is_some_and(|current| current.sock == sock) {
            // A broker that had said when it wants to be dialled again need not say it twice.
            let asked = self.current.as_ref().and_then(|current| current.leave).map(|leave| leave.wait(now));
            let loss = Loss { retry_after: loss.retry_after.or(asked), ..loss };
            if let Some(current) = self.current.take()
                && now.since(current.since) >= STEADY_MS
            {
                self.backoff.reset();
            }
            self.broken();
            self.effects
                .push_back(LinkEffect::Deliver(SessionEvent::Detached { reason: loss.reason.to_owned() }));
            if self.bye_until.is_some() {
                return self.end(End::Bye);
            }
            if self.next.is_none() {
                self.retry(now, loss);
            }
        } else if let Some(next) = self.next.take_if(|next| next.sock == sock) {
            // What the hello was answered says more than how the socket ended.
            match next.refused.map(|error| error.to_string()) {
                Some(reason) => self.retry(now, Loss { reason: &reason, answered: true, ..loss }),
                None => self.retry(now, loss),
            }
        }
    }

    /// Plans the next dial, unless the session is carried.
    pub(super) fn retry(&mut self, now: Millis, loss: Loss<'_>) {
        if self.current.is_some() {
            return;
        }
        let leased = now.since(self.heard) < self.policy.lease_ttl_ms;
        let wait = self.backoff.next_ms(leased) + loss.retry_after.unwrap_or(0);
        self.redial_at = Some(now.plus(wait));
        let (reason, answered) = (loss.reason.to_owned(), loss.answered);
        self.effects.push_back(LinkEffect::Deliver(SessionEvent::Waiting { ms: wait, reason, answered }));
    }
}
