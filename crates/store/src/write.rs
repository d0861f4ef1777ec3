//! The writes that can share a transaction: what a broker's writer collects into one batch.

use tenure_proto::{LeaseId, MeshName, SessionKey};

use crate::LeaseRow;

/// One write of a batch; see [`Store::apply`](crate::Store::apply). Later writes of a batch see earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Stores the lease, in place of whatever that session had in that mesh.
    PutLease(Box<LeaseRow>),
    /// Removes the session's lease if it is still this one; another one, or none, stays as it is.
    EndLease {
        /// The mesh it is in.
        mesh: MeshName,
        /// Whose lease it is.
        session: SessionKey,
        /// Which lease ends.
        lease: LeaseId,
    },
    /// Notes that a socket was attached to the lease during `run`, which gives it a full TTL at the next start.
    /// Has no effect if the session's lease is not this one, or was touched in a later run.
    TouchLease {
        /// The mesh it is in.
        mesh: MeshName,
        /// Whose lease it is.
        session: SessionKey,
        /// Which lease was attached.
        lease: LeaseId,
        /// The run it was attached in.
        run: u64,
    },
    /// Notes how long a run has lasted. Has no effect if more is on record, or the run is unknown.
    Heartbeat {
        /// The run.
        run: u64,
        /// Milliseconds since it began, on the broker's monotonic clock.
        uptime_ms: u64,
    },
}
