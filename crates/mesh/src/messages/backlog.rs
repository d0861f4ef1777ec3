//! How much all groups have to read, as sums that a post changes in one step.
//!
//! What waits in a group is what its lane has counted less what the group has passed, and what is open. So the sum over all
//! groups is: the counts of their lanes, each as often as it has groups, less all that was passed, and all that is open.

use crate::messages::Messages;
use crate::messages::reading::Reading;

/// The sums of all groups of a mesh.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    /// What the lanes have counted, for each of their groups.
    appended: u64,
    /// What groups have passed of that.
    passed: u64,
    /// What is open in them.
    open: u64,
}

impl Messages {
    /// What [`Backlog::depth`] must be, counted anew.
    pub(crate) fn counted_backlog(&self) -> u64 {
        let (mut appended, mut passed, mut open) = (0, 0, 0);
        for reading in self.readings.values() {
            appended += self.logs.lane(&reading.record.log, reading.record.lane).map_or(0, |lane| lane.count);
            passed += reading.passed.0;
            open += reading.group.open_len() as u64;
        }
        u64::saturating_sub(appended, passed) + open
    }
}

impl Backlog {
    /// Entries that wait, in all groups together.
    pub(crate) fn depth(&self) -> u64 {
        self.appended.saturating_sub(self.passed) + self.open
    }

    /// A lane with so many groups has one entry more.
    pub(crate) fn grown(&mut self, groups: usize) {
        self.appended += groups as u64;
    }

    /// A group was made in a lane that has counted so much.
    pub(crate) fn opened(&mut self, count: u64) {
        self.appended += count;
    }

    /// A group is gone from a lane that has counted so much.
    pub(crate) fn closed(&mut self, count: u64, reading: &Reading) {
        let (passed, open) = reading.counted;
        self.appended = self.appended.saturating_sub(count);
        self.passed = self.passed.saturating_sub(passed);
        self.open = self.open.saturating_sub(open);
    }

    /// A group may have passed more, or have more or less open, than when it was counted last.
    pub(crate) fn counts(&mut self, reading: &mut Reading) {
        let now = (reading.passed.0, reading.group.open_len() as u64);
        let (passed, open) = std::mem::replace(&mut reading.counted, now);
        self.passed = self.passed.saturating_sub(passed) + now.0;
        self.open = self.open.saturating_sub(open) + now.1;
    }
}
