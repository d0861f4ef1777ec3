//! Who asked for something, and the two ways in which a call is answered.
//!
//! Each call comes to a [`Reply`]: its answer, or the word that the caller was put among those who wait. So no call can be
//! left without an answer by a branch that merely returns.

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{ConnId, RequestId, SessionKey};

use crate::Mesh;
use crate::access::admin::{OperateId, Operated};
use crate::effect::{Answer, Effect};

/// A request of a session: on whose behalf it acts, and where its answer goes.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) conn: ConnId,
    pub(crate) request: RequestId,
    pub(crate) session: SessionKey,
}

impl Caller {
    /// Where its answer goes.
    pub(crate) fn reply_to(&self) -> ReplyTo {
        ReplyTo::Socket(self.conn, self.request.clone())
    }
}

/// Where an answer goes.
#[derive(Clone, Debug)]
pub enum ReplyTo {
    /// To a request that came on this socket.
    Socket(ConnId, RequestId),
    /// To an operator.
    Operator(OperateId),
}

impl ReplyTo {
    /// The effect that answers.
    pub(crate) fn answer(self, outcome: Result<Answer, WireError>) -> Effect {
        match self {
            ReplyTo::Socket(conn, request) => Effect::Respond { conn, request, outcome },
            ReplyTo::Operator(id) => {
                let outcome = outcome.map(|answer| Operated::Answer(Box::new(answer)));
                Effect::Operated { id, outcome }
            }
        }
    }
}

/// What a call comes to, if it is not refused.
#[derive(Debug)]
#[must_use]
pub(crate) enum Reply {
    /// It is answered now.
    Now(Answer),
    /// The caller was put among those who wait: for a write, for a read, for the end of the round, or for a service.
    Later,
}

impl Mesh {
    /// Answers a request, or whoever operates the mesh.
    pub(crate) fn answer(&mut self, to: ReplyTo, outcome: Result<Answer, WireError>) {
        self.effects.push_back(to.answer(outcome));
    }

    /// Carries out what a call came to.
    pub(crate) fn reply(&mut self, to: ReplyTo, reply: Result<Reply, WireError>) {
        match reply {
            Ok(Reply::Now(answer)) => self.answer(to, Ok(answer)),
            Ok(Reply::Later) => {}
            Err(error) => self.answer(to, Err(error)),
        }
    }
}

/// What a call is told whose session has no lease any more.
pub(crate) fn lease_ended() -> WireError {
    WireError::new(ErrorCode::LeaseExpired, "this session's lease has ended")
}
