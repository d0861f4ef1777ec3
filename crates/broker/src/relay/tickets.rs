//! Tickets that were used: each lets one socket in, once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tenure_proto::name::MeshName;
use tenure_proto::ticket::RelayTicket;

/// Used tickets whose time is not over; past it nobody is let in until some are.
const USED: usize = 65_536;

/// Tickets that were used and could still be shown again: when they lapse, of which mesh, which.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<BTreeSet<(u64, MeshName, u64)>>);

impl Tickets {
    /// Whether this is the first time that `ticket` is shown; `now` is Unix milliseconds.
    pub(crate) fn take(&self, ticket: &RelayTicket, now: u64) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What has lapsed is refused without us.
        while used.first().is_some_and(|(lapses, ..)| *lapses <= now) {
            used.pop_first();
        }
        used.len() < USED && used.insert((ticket.exp.get(), ticket.mesh.clone(), ticket.id.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_proto::ids::{MemberKey, SessionKey};
    use tenure_proto::number::U53;
    use tenure_proto::service::RelayRole;

    fn ticket(id: u32, exp: u32) -> RelayTicket {
        RelayTicket {
            mesh: "m".parse().unwrap(),
            role: RelayRole::Publish,
            session: SessionKey([1; 32]),
            member: MemberKey([2; 32]),
            name: None,
            peer: None,
            run: U53::from(1),
            id: U53::from(id),
            exp: U53::from(exp),
        }
    }

    #[test]
    fn a_ticket_is_taken_once_and_forgotten_when_it_has_lapsed() {
        let tickets = Tickets::default();
        assert!(tickets.take(&ticket(1, 100), 0));
        assert!(!tickets.take(&ticket(1, 100), 50));
        assert!(tickets.take(&ticket(2, 100), 50));
        assert!(tickets.take(&RelayTicket { mesh: "n".parse().unwrap(), ..ticket(1, 100) }, 50));
        assert!(tickets.take(&ticket(3, 300), 200));
        assert_eq!(tickets.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn too_many_at_once_are_refused() {
        let tickets = Tickets::default();
        for id in 0..u32::try_from(USED).unwrap() {
            assert!(tickets.take(&ticket(id, 100), 0));
        }
        assert!(!tickets.take(&ticket(u32::MAX, 100), 0));
        assert!(tickets.take(&ticket(u32::MAX, 300), 200));
    }
}
