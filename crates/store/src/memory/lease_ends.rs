//! Ends of leases, in all meshes.

use std::collections::BTreeMap;

use tenure_core::record::{LeaseEnd, LeaseEndEntry, StoreFound};
use tenure_proto::MeshName;
use tenure_proto::limits::LEASE_ENDS_MAX;

/// Ends of leases by number; at most [`LEASE_ENDS_MAX`].
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseEnds {
    last: u64,
    ends: BTreeMap<u64, (MeshName, LeaseEnd)>,
}

impl LeaseEnds {
    pub(super) fn add(&mut self, mesh: &MeshName, end: &LeaseEnd) {
        self.last += 1;
        self.ends.insert(self.last, (mesh.clone(), end.clone()));
        let oldest = self.last.saturating_sub(LEASE_ENDS_MAX);
        while self.ends.first_key_value().is_some_and(|(seq, _)| *seq <= oldest) {
            self.ends.pop_first();
        }
    }

    /// Forgets those from before this moment; how many went.
    pub(super) fn forget(&mut self, before: u64) -> u64 {
        let had = self.ends.len();
        self.ends.retain(|_, (_, end)| end.at >= before);
        (had - self.ends.len()) as u64
    }

    pub(super) fn read(&self, mesh: &MeshName, before: Option<u64>, limit: u32) -> StoreFound {
        let rows = self.ends.range(..before.unwrap_or(u64::MAX)).rev();
        let mut rows = rows.filter(|(_, (of, _))| of == mesh);
        let entry =
            |(seq, (_, end)): (&u64, &(MeshName, LeaseEnd))| LeaseEndEntry { seq: *seq, end: end.clone() };
        let page = rows.by_ref().take(limit as usize).map(entry).collect();
        StoreFound::LeaseEnds(page, rows.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::ids::{MemberKey, SessionKey};

    use super::*;

    #[test]
    fn past_the_bound_the_oldest_goes() {
        let mesh: MeshName = "m".parse().unwrap();
        let (session, member, lease) = (SessionKey([1; 32]), MemberKey([2; 32]), "l".parse().unwrap());
        let end = LeaseEnd { session, lease, member, name: String::new(), why: "bye".to_owned(), at: 1 };
        let mut ends = LeaseEnds::default();
        ends.add(&mesh, &end);
        ends.last = LEASE_ENDS_MAX - 1;
        ends.add(&mesh, &end);
        assert_eq!(ends.ends.len(), 2);
        ends.add(&mesh, &end);
        assert_eq!(ends.ends.keys().copied().collect::<Vec<_>>(), [LEASE_ENDS_MAX, LEASE_ENDS_MAX + 1]);
    }
}
