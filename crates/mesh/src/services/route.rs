//! The way of a stream to a service: who wants one, who waits for one, how many there are.
//!
//! What it promises: whoever asks is answered once. A service that can be reached is given at once; one that is stale
//! is waited for, [`RELAY_WAIT_MS`](tenure_proto::limits::RELAY_WAIT_MS) at the longest; one that is not there is not.
//!
//! What it never does: carry a byte.

use core::net::IpAddr;
use std::collections::BTreeMap;

use tenure_kit::deadline::Deadlines;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::limits::{RELAY_WAIT_MS, STREAMS_PER_MESH, STREAMS_WAITING};
use tenure_proto::name::ServiceName;
use tenure_proto::service::{RelayRole, ServiceKind};

use crate::reply::Caller;

/// What a busy or missing service is worth waiting before it is asked for again.
const RETRY_MS: u64 = 1_000;

/// A stream that a shell wants; chosen by the shell, never used twice in one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u64);

/// How somebody wants to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// HTTP, by name.
    Http,
    /// A byte stream.
    Tcp,
}

impl Want {
    /// The kind of service that can.
    pub const fn kind(self) -> ServiceKind {
        match self {
            Want::Http => ServiceKind::Http,
            Want::Tcp => ServiceKind::Tcp,
        }
    }
}

/// Who wants a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Somebody who is no session, there.
    Address(IpAddr),
    /// A session of the same mesh.
    Session(SessionKey),
}

/// Whom a stream goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The session that answers.
    pub session: SessionKey,
    /// That session's member.
    pub member: MemberKey,
    /// The service.
    pub name: ServiceName,
    /// How it is spoken to.
    pub kind: ServiceKind,
}

/// What the mesh knows for a relay ticket; the connection's task signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Which end.
    pub role: RelayRole,
    /// Who asked.
    pub session: SessionKey,
    /// That session's member.
    pub member: MemberKey,
    /// The service, if one was named.
    pub name: Option<ServiceName>,
    /// Who answers, for the end that asks.
    pub peer: Option<SessionKey>,
    /// This start of the broker.
    pub run: u64,
    /// The ticket's number.
    pub id: u64,
}

/// Somebody who wants a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKey {
    /// A shell, for a stream that it opens now.
    Shell(RouteId),
    /// A session that asks for a ticket, by a number of ours.
    Asked(u64),
}

/// What somebody wants.
#[derive(Clone, Debug)]
pub struct Route {
    /// The service.
    pub name: ServiceName,
    /// How.
    pub want: Want,
    /// The number of the name when it was asked for: another holder is another service.
    pub slot: u64,
    /// Who is answered, when it is a session.
    pub(crate) caller: Option<Caller>,
}

/// All streams of a mesh that are open or wait; at most [`STREAMS_PER_MESH`], of which [`STREAMS_WAITING`] wait.
#[derive(Debug, Default)]
pub struct Routes {
    pub(crate) all: BTreeMap<RouteKey, Route>,
    /// When those that wait give up.
    pub(crate) due: Deadlines<RouteKey>,
}

impl Routes {
    /// Whether one more may be open, or wait.
    pub(crate) fn has_room(&self, waits: bool) -> Result<(), WireError> {
        if self.all.len() >= STREAMS_PER_MESH {
            return Err(busy("this mesh has as many streams as it may; try again in a moment"));
        }
        if waits && self.due.len() >= STREAMS_WAITING {
            return Err(busy("too many already wait for services that are away; try again in a moment"));
        }
        Ok(())
    }
}

/// What somebody is told when a bound is reached.
pub fn busy(text: &str) -> WireError {
    WireError::new(ErrorCode::Busy, text).retry_after(RETRY_MS)
}

/// What somebody is told who waited for a service in vain.
pub fn unavailable(name: &ServiceName) -> WireError {
    let text =
        format!("the service {name} is away and did not come back within {RELAY_WAIT_MS} ms; try again");
    WireError::new(ErrorCode::Unavailable, text).retry_after(RETRY_MS)
}

/// What somebody is told who wants a service that is not there.
pub fn not_found(name: &ServiceName) -> WireError {
    WireError::new(ErrorCode::NotFound, format!("there is no service {name} in this mesh"))
}

/// What somebody is told who wants to speak otherwise than the service does.
pub fn wrong_kind(name: &ServiceName, kind: ServiceKind) -> WireError {
    let text = match kind {
        ServiceKind::Tcp => format!("the service {name} speaks plain tcp: use tenure connect {name}"),
        ServiceKind::Http => format!("the service {name} speaks http: ask the relay's own listener for it"),
        ServiceKind::Run => format!("the service {name} answers runs: use tenure call"),
    };
    WireError::new(ErrorCode::NotFound, text)
}
