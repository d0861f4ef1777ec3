//! Numbers and names that are never used twice, whatever the store remembers.

use tenure_proto::ids::{Epoch, LeaseId};

use crate::Mesh;
use crate::input::Boot;

/// One start of a broker, and the numbers that it has given out.
#[derive(Debug)]
pub(crate) struct Numbering {
    broker_id: String,
    boot: Boot,
    last: u64,
}

impl Numbering {
    pub(crate) fn new(boot: Boot, broker_id: String) -> Numbering {
        Numbering { broker_id, boot, last: 0 }
    }

    pub(crate) fn broker_id(&self) -> &str {
        &self.broker_id
    }

    /// Which start of the broker this is.
    pub(crate) fn boot(&self) -> Boot {
        self.boot
    }
}

impl Mesh {
    /// A number that is unique in this start.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.numbering.last += 1;
        self.numbering.last
    }

    pub(crate) fn new_lease_id(&mut self) -> Option<LeaseId> {
        let number = self.next_number();
        format!("l{}-{number}", self.numbering.boot).parse().ok()
    }

    /// The epoch as the client sees it: unique across restarts.
    pub(crate) fn epoch_name(&self, epoch: u64) -> Option<Epoch> {
        format!("e{}-{epoch}", self.numbering.boot).parse().ok()
    }
}
