//! A broker that says `shutdown`: the session begins its way back at once, instead of waiting until its socket is closed.
//!
//! What is in hand is settled first, for as long as the broker has said; meanwhile everything goes on. When nothing is in
//! hand, nothing new leaves on this socket; when what has left is answered, the socket is let go and the next dial is
//! planned for when the broker asked for it. At the deadline the socket is let go in any case. Runs are not waited for:
//! they go on through a restart.

use tenure_kit::time::Millis;
use tenure_proto::event::Shutdown;

use crate::loss::Loss;
use crate::{Link, LinkEffect};

/// What a `shutdown` asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leave {
    /// When the broker wants to be dialled again.
    back_at: Millis,
    /// When it closes in any case.
    pub(super) until: Millis,
    /// What it would say when it closes.
    reason: &'static str,
}

impl Leave {
    /// How long it is until the broker wants to be dialled again.
    pub(super) fn wait(&self, now: Millis) -> u64 {
        self.back_at.since(now)
    }
}

impl Link {
    /// The broker is stopping.
    pub(super) fn asked_to_leave(&mut self, now: Millis, shutdown: &Shutdown) {
        let leave = Leave {
            back_at: now.plus(shutdown.reconnect_after_ms.get()),
            until: now.plus(shutdown.deadline_ms.get()),
            reason: if shutdown.restart_expected_ms.is_some() { "restart" } else { "going_away" },
        };
        if let Some(current) = &mut self.current {
            current.leave = Some(leave);
        }
    }

    /// Whether the session is on its way out of this socket with nothing in hand: what is asked for now waits for the next.
    pub(super) fn is_packed(&self) -> bool {
        let leaving = self.current.as_ref().is_some_and(|current| current.leave.is_some());
        leaving && self.hands.are_empty_but(|delivery| self.serving.is_served(delivery))
    }

    /// Lets the socket go if there is nothing to wait for, or no more time.
    pub(super) fn leave_if_done(&mut self, now: Millis) {
        let Some(current) = &self.current else { return };
        let (Some(leave), sock) = (current.leave, current.sock) else { return };
        if self.bye_until.is_some() || self.next.is_some() {
            return;
        }
        if now >= leave.until || (self.is_packed() && !self.requests.has_unanswered()) {
            self.effects.push_back(LinkEffect::Drop(sock));
            self.lose(now, sock, Loss { answered: true, ..Loss::of(leave.reason) });
        }
    }
}
