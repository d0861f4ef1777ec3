//! A lease as the store keeps it: enough to put a session back into its mesh after a restart.

use tenure_mesh::input::{LeaseRecord, Restored};
use tenure_proto::peer::Profile;
use tenure_proto::{Cap, InstanceId, LeaseId, MemberKey, MeshName, SessionKey};

/// One session's lease. A mesh holds at most one for each session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The mesh it is in; half of the key.
    pub mesh: MeshName,
    /// Whose lease it is; the other half of the key.
    pub session: SessionKey,
    /// Its name: a session that left and came back has another.
    pub lease: LeaseId,
    /// Who vouched for the session.
    pub member: MemberKey,
    /// The process that carried it last.
    pub instance: InstanceId,
    /// What peers see of it.
    pub profile: Profile,
    /// What its attestation allows; `None` is everything.
    pub caps: Option<Vec<Cap>>,
    /// When the lease began, Unix milliseconds.
    pub joined_at: u64,
    /// The last run in which a socket was attached: the current one for a new lease, and never lower than in
    /// the row it replaces, since runs before it are forgotten.
    pub touched_run: u64,
}

/// A lease with the part of its time that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// The lease as it was put.
    pub row: LeaseRow,
    /// How long brokers ran since it was last attached: the uptimes of the runs between `touched_run` and the
    /// current one, both left out. So the first start after an attach gives it a full TTL, and each further
    /// start what uptime has left of it.
    pub spent_ms: u64,
}

impl StoredLease {
    /// What a mesh takes up at a start.
    pub fn restored(self) -> Restored {
        let LeaseRow { session, lease, member, instance, profile, caps, joined_at, .. } = self.row;
        let record = LeaseRecord { session, lease, member, instance, profile, caps, joined_at };
        Restored { record, spent_ms: self.spent_ms }
    }
}

impl LeaseRow {
    /// The row of a lease that was attached in `run`.
    pub(crate) fn of_record(mesh: &MeshName, record: &LeaseRecord, run: u64) -> LeaseRow {
        let LeaseRecord { session, lease, member, instance, profile, caps, joined_at } = record.clone();
        let mesh = mesh.clone();
        LeaseRow { mesh, session, lease, member, instance, profile, caps, joined_at, touched_run: run }
    }

    /// A finding if the lease was touched in a run that never was, `last_run` being the newest.
    pub(crate) fn impossible_run(&self, last_run: u64) -> Option<String> {
        let possible = (1..=last_run).contains(&self.touched_run);
        (!possible).then(|| {
            let LeaseRow { mesh, session, touched_run, .. } = self;
            format!(
                "lease of {session} in {mesh}: touched in run {touched_run}, but the last run is {last_run}"
            )
        })
    }
}
