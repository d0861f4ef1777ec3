//! How much a member may ask for: its rates, which all its sessions share.
//!
//! What settles, ends or lists what is in hand is never held up: refusing it would only make more of it. A `send` or a
//! `run.start` is counted when it comes and given back when it turns out to be the retry of one that was accepted, which is
//! answered whatever the rate ([`crate::messages::accept`]).

use tenure_kit::rate::Rates;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};

use crate::Mesh;
use crate::input::Call;
use crate::sessions::lease::State;

/// What members have asked for lately. Bounded by [`tenure_kit::rate::ACCOUNTS`] each.
#[derive(Debug, Default)]
pub(super) struct Quota {
    sends: Rates<MemberKey>,
    requests: Rates<MemberKey>,
}

impl Quota {
    /// How many members have an account.
    pub(super) fn accounts(&self) -> usize {
        self.sends.len().max(self.requests.len())
    }
}

impl Mesh {
    /// Counts a message that this session sends; the refusal if it is one too many.
    pub(crate) fn count_send(&mut self, session: SessionKey) -> Option<WireError> {
        let (member, rate) = (self.counted(session)?, self.config.send_rate);
        let taken = self.access.quota.sends.take(self.clock.now(), &member, rate);
        taken.err().map(|wait_ms| too_often("sends", wait_ms))
    }

    /// A message that was counted was none: its id was used before, or it was refused.
    pub(crate) fn uncount_send(&mut self, session: SessionKey) {
        if let Some(member) = self.counted(session) {
            self.access.quota.sends.give_back(&member, self.config.send_rate);
        }
    }

    /// Counts a request of this session; the refusal if it is one too many.
    pub(crate) fn count_request(&mut self, session: SessionKey, call: &Call) -> Option<WireError> {
        let free = match call {
            Call::Bye | Call::Ping | Call::Ack(_) | Call::Nack(_) | Call::Progress(_) => true,
            // By itself, when its id is looked up.
            Call::Send(_) | Call::RunStart(_) => true,
            // Of a run that somebody asked for, and in order: one that was refused would be a gap.
            Call::RunChunk(_) | Call::RunEnd(_) => true,
            Call::Reconcile(_) | Call::Unsubscribe(_) | Call::ServiceWithdraw(_) => true,
            _ => false,
        };
        if free {
            return None;
        }
        let (member, rate) = (self.counted(session)?, self.config.request_rate);
        let taken = self.access.quota.requests.take(self.clock.now(), &member, rate);
        taken.err().map(|wait_ms| too_often("asks", wait_ms))
    }

    /// The member whose account a session's requests go to, if they are counted.
    fn counted(&self, session: SessionKey) -> Option<MemberKey> {
        let lease = self.sessions.lease(&session)?;
        matches!(&lease.state, State::Online(carrier) if carrier.counted).then_some(lease.member)
    }
}

fn too_often(does: &str, wait_ms: u64) -> WireError {
    let text = format!("this member {does} too often; wait as long as retryAfterMs says");
    WireError::new(ErrorCode::RateLimited, text).retry_after(wait_ms)
}
