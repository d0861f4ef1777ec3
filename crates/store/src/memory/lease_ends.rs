//! Ends of leases, in all meshes.

use std::collections::BTreeMap;

use tenure_mesh::store::record::{LeaseEnd, LeaseEndEntry, StoreFound};
use tenure_proto::MeshName;
use tenure_proto::limits::LEASE_ENDS_MAX;

/// Ends of leases by mesh and number; at most [`LEASE_ENDS_MAX`] of a mesh.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseEnds {
    last: u64,
    ends: BTreeMap<MeshName, BTreeMap<u64, LeaseEnd>>,
}

impl LeaseEnds {
    pub(super) fn add(&mut self, mesh: &MeshName, end: &LeaseEnd) {
        self.last += 1;
        let ends = self.ends.entry(mesh.clone()).or_default();
        ends.insert(self.last, end.clone());
        while ends.len() as u64 > LEASE_ENDS_MAX {
            ends.pop_first();
        }
    }

    /// Forgets those from before this moment; how many went.
    pub(super) fn forget(&mut self, before: u64) -> u64 {
        let mut gone = 0;
        for ends in self.ends.values_mut() {
            let had = ends.len();
            ends.retain(|_, end| end.at >= before);
            gone += (had - ends.len()) as u64;
        }
        gone
    }

    pub(super) fn read(&self, mesh: &MeshName, before: Option<u64>, limit: u32) -> StoreFound {
        let mut rows =
            self.ends.get(mesh).into_iter().flat_map(|ends| ends.range(..before.unwrap_or(u64::MAX)).rev());
        let entry = |(seq, end): (&u64, &LeaseEnd)| LeaseEndEntry { seq: *seq, end: end.clone() };
        let page = rows.by_ref().take(limit as usize).map(entry).collect();
        StoreFound::LeaseEnds(page, rows.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use tenure_proto::ids::{MemberKey, SessionKey};

    use super::*;

    #[test]
    fn past_its_bound_the_oldest_of_a_mesh_goes_and_no_other() {
        let (busy, quiet): (MeshName, MeshName) = ("busy".parse().unwrap(), "quiet".parse().unwrap());
        let (session, member, lease) = (SessionKey([1; 32]), MemberKey([2; 32]), "l".parse().unwrap());
        let end = LeaseEnd { session, lease, member, name: String::new(), why: "bye".to_owned(), at: 1 };
        let mut ends = LeaseEnds::default();
        ends.add(&quiet, &end);
        (0..=LEASE_ENDS_MAX).for_each(|_| ends.add(&busy, &end));
        assert_eq!(ends.ends[&quiet].len(), 1);
        assert_eq!(ends.ends[&busy].len() as u64, LEASE_ENDS_MAX);
        assert_eq!(ends.ends[&busy].first_key_value().map(|(seq, _)| *seq), Some(3));
    }
}
