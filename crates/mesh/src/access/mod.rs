//! Who may do what in a mesh.
//!
//! What this is for: the rights and the one table that says which method needs which; the records of members, invites and
//! bearer tokens; and [`Roll`], the rules by which a hello is let in. A mesh that is *open* lets in any key; any other
//! lets in its members, whoever brings an invite that one of its operators has signed, and whoever brings a token.
//!
//! What it promises: rights only ever narrow. What a session may do is what its member may, less what its attestation
//! leaves out. A use of an invite is taken with the member's row, and given back if the store could not take that.
//!
//! Where to read next: `roll` for the rules, `record` for what is stored, `crate::access::admin` for what operators do.

pub mod admin;
pub(crate) mod bans;
pub(crate) mod configure;
pub(crate) mod listing;
pub(crate) mod members;
pub(crate) mod operating;
pub mod operator_auth;
pub mod pattern;
mod record;
mod roll;
pub mod setting;

use tenure_proto::error::WireError;
use tenure_proto::invite::{Invite, Role};
use tenure_proto::method::Method;
use tenure_proto::name::Cap;

pub use record::{
    AccessWrite, AuditEntry, AuditRecord, BanRecord, Change, InviteRecord, MemberRecord, RestoredAccess,
    TokenRecord,
};
pub use roll::{Entry, Grant, INVITES_MAX, Roll, TOKENS_MAX};

/// Something that a session may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Send messages, and make topics.
    Send,
    /// Read and settle messages.
    Read,
    /// Call agents, and answer.
    Run,
    /// Offer services.
    Serve,
    /// Invite others.
    Admin,
}

impl Right {
    /// Every right, in the order of the contract.
    pub const ALL: [Right; 5] = [Right::Send, Right::Read, Right::Run, Right::Serve, Right::Admin];

    /// The cap that grants it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Right::Send => "send",
            Right::Read => "read",
            Right::Run => "run",
            Right::Serve => "serve",
            Right::Admin => "admin",
        }
    }

    /// The right that a cap of this name grants, if it is one that we know.
    pub fn from_wire(text: &str) -> Option<Right> {
        Right::ALL.into_iter().find(|right| right.as_str() == text)
    }

    /// The right that a cap grants; of one that grants none, a sentence that says which there are.
    pub fn of(cap: &Cap) -> Result<Right, String> {
        Right::from_wire(cap.as_str()).ok_or_else(|| {
            format!("there is no cap {cap}; there are {}", Right::ALL.map(Right::as_str).join(", "))
        })
    }
}

/// Some of the rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// All of them.
    pub const ALL: Rights = Rights(0b1_1111);
    /// None.
    pub const NONE: Rights = Rights(0);

    /// What a role may by itself.
    pub const fn of(role: Role) -> Rights {
        match role {
            Role::Member => Rights(0b0_1111),
            Role::Operator => Rights::ALL,
        }
    }

    /// Those that are in both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }

    /// Those of them that these caps leave; absent caps leave all. A cap that we do not know leaves nothing.
    pub fn narrowed(self, caps: Option<&[Cap]>) -> Rights {
        let Some(caps) = caps else { return self };
        let left = caps.iter().filter_map(|cap| Right::from_wire(cap.as_str()));
        self.and(left.fold(Rights::NONE, |rights, right| Rights(rights.0 | 1 << right as u8)))
    }

    /// Whether this one is among them.
    pub const fn allow(self, right: Right) -> bool {
        self.0 & (1 << right as u8) != 0
    }

    /// Their names, in the order of the contract.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Right::ALL.into_iter().filter(move |right| self.allow(*right)).map(Right::as_str)
    }
}

/// The right that a method needs; nothing for those that everybody who is let in may use. `relay.open` needs one by its
/// role: to publish [`Right::Serve`], to connect [`Right::Run`].
pub const fn needs(method: Method) -> Option<Right> {
    match method {
        Method::Hello | Method::Bye | Method::Ping | Method::Health => None,
        Method::PresenceList | Method::ProfileSet | Method::ServicesList => None,
        // What belongs to nobody any more is given up: that needs no right.
        Method::Reconcile | Method::Unsubscribe | Method::ServiceWithdraw => None,
        Method::Send | Method::SendStatus => Some(Right::Send),
        Method::TopicsCreate | Method::TopicsDelete => Some(Right::Send),
        Method::Subscribe | Method::Fetch | Method::History => Some(Right::Read),
        Method::TopicsList | Method::GroupsList | Method::GroupsDelete => Some(Right::Read),
        Method::Ack | Method::Nack | Method::Progress => Some(Right::Read),
        Method::DeadList | Method::DeadRetry | Method::DeadDrop => Some(Right::Read),
        Method::RunStart | Method::RunChunk | Method::RunEnd | Method::RunCancel => Some(Right::Run),
        Method::RunGet | Method::RunsList => Some(Right::Run),
        Method::ServiceRenew => Some(Right::Serve),
        Method::RelayOpen => None,
    }
}

/// What a hello brings besides its proof, as far as its bytes tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Presented {
    /// Nothing.
    #[default]
    Nothing,
    /// An invite that is signed by whom it names.
    Invite(Box<Invite>),
    /// The hash of a bearer token.
    Token([u8; 32]),
    /// Something that is good for nothing, and why.
    Bad(Box<WireError>),
}

#[cfg(test)]
mod tests;
