//! Where an entry is, as one integer: log, lane and seq, so that the entries of a lane lie side by side.

use tenure_mesh::messages::envelope::Lane;

const SEQ_BITS: u32 = 37;
const LANE_BITS: u32 = 2;
const LOG_BITS: u32 = 24;
const _: () = assert!(SEQ_BITS + LANE_BITS + LOG_BITS == 63, "a place is a positive integer of SQLite");

/// The largest seq: 137 thousand million entries in one log.
pub(super) const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// The largest number of a log: 16 million logs in one store.
pub(super) const LOG_MAX: i64 = (1 << LOG_BITS) - 1;

/// A place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) log: i64,
    pub(super) lane: Lane,
    pub(super) seq: u64,
}

impl Place {
    /// The place of `seq`, or the last one there is in its lane when that is beyond it. A lane that cannot be is
    /// taken for the one that nothing is in.
    pub(super) fn new(log: i64, lane: Lane, seq: u64) -> Place {
        Place { log, lane: lane.min(Lane((1 << LANE_BITS) - 1)), seq: seq.min(SEQ_MAX) }
    }

    /// The first place of a lane; no entry has it, since seqs begin at 1.
    pub(super) fn first(log: i64, lane: Lane) -> Place {
        Place::new(log, lane, 0)
    }

    /// The last place of a lane.
    pub(super) fn last(log: i64, lane: Lane) -> Place {
        Place::new(log, lane, SEQ_MAX)
    }

    /// The integer.
    pub(super) fn pack(self) -> i64 {
        // Each part is within its bits: `log` by the table's bound, `lane` by its type, `seq` by `new`.
        (self.log << (SEQ_BITS + LANE_BITS)) | (i64::from(self.lane.0) << SEQ_BITS) | self.seq as i64
    }

    /// The place of an integer.
    pub(super) fn unpack(packed: i64) -> Place {
        let lane = (packed >> SEQ_BITS) & ((1 << LANE_BITS) - 1);
        Place { log: packed >> (SEQ_BITS + LANE_BITS), lane: Lane(lane as u8), seq: packed as u64 & SEQ_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_sort_by_log_then_lane_then_seq() {
        let mut places = Vec::new();
        for log in [1, 2, LOG_MAX] {
            for lane in Lane::ALL {
                for seq in [0, 1, SEQ_MAX] {
                    let place = Place::new(log, lane, seq);
                    assert_eq!(Place::unpack(place.pack()), place);
                    places.push(place.pack());
                }
            }
        }
        assert!(places.is_sorted() && places[0] > 0);
        assert_eq!(Place::new(1, Lane(2), u64::MAX), Place::last(1, Lane(2)));
    }
}
