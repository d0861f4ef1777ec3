//! Telling a reader of its own again what of its topic is gone.
//!
//! That entries are gone is an event, told when the reader's place goes past them. A socket may lose it, and a stream that begins
//! anew does not repeat it. But the reader's own position tells: what lies behind it, before its place here and pruned, it has
//! not heard of. A client that has heard of it recognises it and is told nothing.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::ids::SessionKey;
use tenure_proto::log::LogName;
use tenure_proto::number::U53;
use tenure_proto::reconcile::ReconcileParams;

use crate::Mesh;
use crate::messages::Gap;
use crate::messages::group::Holder;

impl Mesh {
    /// A client lists what it reads and how far it has come: whatever is gone since is told again.
    pub(crate) fn tell_gaps_again(&mut self, session: SessionKey, params: &ReconcileParams) {
        let Some(lease) = self.sessions.lease(&session).filter(|_| !mutant::on(Mutant::GapToldOnce)) else {
            return;
        };
        for listed in params.subscriptions.iter().filter(|listed| listed.group.is_none()) {
            let Some((id, sub)) = lease.subs.same(&listed.topic, None, listed.partition) else { continue };
            let holder = Holder { session, sub: id.clone() };
            for place in &sub.groups {
                let reading = self.messages.readings.get(place).filter(|reading| reading.is_made());
                let Some(reading) = reading else { continue };
                let LogName::Topic(_, partition) = &reading.record.log else { continue };
                let position = listed.positions.get(&partition.to_string()).copied().map(U53::get);
                let lane = self.messages.logs.lane(&reading.record.log, reading.record.lane);
                let (Some(position), Some(lane)) = (position, lane) else { continue };
                // What is open is yet to come, or to be given up with a word of its own.
                let open = reading.group.opens().map(|(seq, _)| seq);
                let gone = without(position.saturating_add(1), lane.pruned.min(reading.group.cursor()), open);
                let gap = |(from, to)| Gap { holder: holder.clone(), partition: Some(*partition), from, to };
                self.messages.gaps.extend(gone.into_iter().map(gap));
            }
        }
    }
}

/// The numbers from `from` to `to`, both included, in runs without those in `open`, which rise.
fn without(start: u64, to: u64, open: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let (mut from, mut runs) = (start, Vec::new());
    for seq in open.skip_while(|seq| *seq < start).take_while(|seq| *seq <= to) {
        if from < seq {
            runs.push((from, seq - 1));
        }
        from = seq + 1;
    }
    if from <= to {
        runs.push((from, to));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_left_out() {
        assert_eq!(without(3, 9, [].into_iter()), [(3, 9)]);
        assert_eq!(without(3, 9, [1, 3, 5, 6, 9, 12].into_iter()), [(4, 4), (7, 8)]);
        assert_eq!(without(3, 3, [3].into_iter()), []);
        assert_eq!(without(4, 3, [].into_iter()), []);
    }
}
