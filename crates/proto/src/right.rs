//! What a session may be allowed to do: each right is granted by the cap of its name.

use crate::name::Cap;

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
