//! The writes that can share a transaction: what a broker's writer collects into one batch.

use tenure_mesh::store::record::StoreWrite;
use tenure_proto::MeshName;

/// One write of a batch; see [`Store::apply`](crate::Store::apply). Later writes of a batch see earlier ones.
#[derive(Clone, Debug)]
pub enum Write {
    /// What a mesh wants kept.
    ///
    /// A lease that is put takes the place of whatever its session had in that mesh, and was attached in `run`;
    /// a touch raises that run if the session's lease is the one named; an end removes the lease, its
    /// subscriptions and private groups if it is still the one named, and else does nothing.
    Mesh {
        /// Which mesh.
        mesh: MeshName,
        /// The current run.
        run: u64,
        /// What it wants.
        write: StoreWrite,
    },
    /// Notes how long a run has lasted. Has no effect on that if more is on record, or the run is unknown.
    Heartbeat {
        /// The run.
        run: u64,
        /// Milliseconds since it began, on the broker's monotonic clock.
        uptime_ms: u64,
        /// The wall clock, Unix milliseconds, if it is believed: kept in place of the last one, for the next start.
        believed_at: Option<u64>,
    },
}
