//! What of a log is in memory for a group, and what must come from disk: pages for a reader that lags, single
//! entries that are handed out again; and what is forgotten when it has left its log.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::event::ReceiptState;
use tenure_proto::log::LogName;

use crate::messages::envelope::{Entry, Lane};
use crate::messages::group::Holder;
use crate::messages::log::Next;
use crate::messages::{Messages, Moment};
use crate::store::record::{DAMAGED, DamagedEntry, GroupId, GroupRecord, StoreRead};

/// Entries of one page that a lagging reader is given from disk.
pub(crate) const PAGE_ENTRIES: u32 = 128;
/// Bytes of one page.
const PAGE_BYTES: usize = 512 * 1024;
/// Pages that a mesh keeps for readers that have not come to them; the oldest is dropped for one more.
pub(crate) const PAGES: usize = 64;
/// Entries that are read again in one go to be handed out again.
const AGAIN_ENTRIES: usize = 64;

impl Messages {
    /// The first entry after the cursor, if it is in memory; else it is asked for.
    pub(crate) fn next_new(&mut self, id: GroupId) -> Option<Arc<Entry>> {
        let reading = self.readings.get_mut(&id)?;
        let cursor = reading.group.cursor();
        while reading.page.front().is_some_and(|entry| entry.seq <= cursor) {
            reading.page.pop_front();
        }
        if let Some(entry) = reading.page.front() {
            return Some(entry.clone());
        }
        match self.logs.next(&reading.record.log, reading.record.lane, cursor) {
            Next::Entry(entry) => Some(entry),
            Next::End => {
                if let Some(lane) = self.logs.lane_mut(&reading.record.log, reading.record.lane) {
                    lane.waiting.insert(id);
                }
                None
            }
            Next::OnDisk => {
                self.hungry.insert(id);
                None
            }
        }
    }

    /// The entry `seq`, if it is in memory; else it is asked for.
    pub(crate) fn body(&mut self, id: GroupId, seq: u64) -> Option<Arc<Entry>> {
        let reading = self.readings.get_mut(&id)?;
        let GroupRecord { log, lane, .. } = &reading.record;
        let found = reading.again.get(&seq).or_else(|| self.logs.find(log, *lane, seq)).cloned();
        if found.is_none() {
            reading.wanted.insert(seq);
            self.hungry.insert(id);
        }
        found
    }

    /// Reads that groups need, at most one under way for each.
    pub(crate) fn wanted_reads(&mut self) -> Vec<(GroupId, StoreRead)> {
        let mut reads = Vec::new();
        for id in std::mem::take(&mut self.hungry) {
            let Some(reading) = self.readings.get_mut(&id) else { continue };
            let GroupRecord { log, lane, .. } = reading.record.clone();
            let end = self.logs.lane(&log, lane).map_or(0, |lane| lane.end);
            if reading.loading.is_some() {
                continue;
            }
            let seqs: Vec<u64> = reading.wanted.iter().copied().take(AGAIN_ENTRIES).collect();
            let cursor = reading.group.cursor();
            if seqs.is_empty() && reading.page.back().is_some_and(|entry| entry.seq > cursor) {
                // The page that it wanted has come since.
                continue;
            }
            reading.loading = Some(end);
            let read = if seqs.is_empty() {
                let after = cursor;
                StoreRead::Page { log, lane, after, limit: PAGE_ENTRIES, bytes: PAGE_BYTES }
            } else {
                StoreRead::Entries { log, lane, seqs }
            };
            reads.push((id, read));
        }
        reads
    }

    /// A page of new entries came.
    pub(crate) fn paged(
        &mut self,
        id: GroupId,
        mut entries: Vec<Arc<Entry>>,
        damaged: &[DamagedEntry],
        wall: u64,
    ) {
        let Some(reading) = self.readings.get_mut(&id) else { return };
        let through = reading.loading.take().unwrap_or_default();
        // A reader may see what is not on the disk for sure. That comes with its commit.
        let end = self.logs.lane(&reading.record.log, reading.record.lane).map_or(0, |lane| lane.end);
        entries.retain(|entry| entry.seq <= end);
        let last = entries
            .last()
            .map(|entry| entry.seq)
            .into_iter()
            .chain(damaged.iter().map(|damaged| damaged.seq))
            .max();
        if let Some(worst) = damaged.iter().map(|damaged| damaged.seq).max()
            && entries.is_empty()
        {
            // Nothing in this page reads: go on after it.
            reading.group.skip_to(worst);
        }
        if last.is_none() {
            // What is left up to there was removed.
            reading.group.skip_to(through);
            if let Some(lane) = self.logs.lane(&reading.record.log, reading.record.lane)
                && through >= lane.end
            {
                reading.passed = (lane.count, lane.bytes);
            }
        }
        reading.page.extend(entries);
        self.paged.push_back(id);
        if self.paged.len() > PAGES
            && let Some(oldest) = self.paged.pop_front().filter(|oldest| *oldest != id)
            && let Some(reading) = self.readings.get_mut(&oldest)
        {
            // Its readers did not come to it. It is read again when their turn comes.
            reading.page.clear();
        }
        self.bury_damaged(id, damaged, wall);
        self.touch(id);
        self.wakes.insert(id);
    }

    /// What cannot be read is a dead letter, and its sender is told.
    fn bury_damaged(&mut self, id: GroupId, damaged: &[DamagedEntry], wall: u64) {
        for DamagedEntry { seq, origin } in damaged {
            self.bury(id, *seq, None, DAMAGED, ReceiptState::Dead, wall, origin.clone());
        }
    }

    /// Entries to be handed out again came. Says which are not there any more.
    pub(crate) fn reread(
        &mut self,
        id: GroupId,
        asked: &[u64],
        entries: Vec<Arc<Entry>>,
        damaged: &[DamagedEntry],
        wall: u64,
    ) -> Vec<(u64, Option<Holder>)> {
        let Some(reading) = self.readings.get_mut(&id) else { return Vec::new() };
        reading.loading = None;
        for entry in entries {
            reading.again.insert(entry.seq, entry);
        }
        let mut lost = Vec::new();
        for seq in asked {
            reading.wanted.remove(seq);
            if !reading.again.contains_key(seq)
                && let Some(open) = reading.group.remove(*seq)
            {
                let holder = open.holder().cloned();
                lost.push((*seq, holder));
            }
        }
        self.bury_damaged(id, damaged, wall);
        self.touch(id);
        self.wakes.insert(id);
        lost
    }

    /// An entry that was pushed again is in the reader's hand only now: its time to settle it starts again, and its
    /// body need not be kept.
    pub(crate) fn pushed_again(&mut self, id: GroupId, seq: u64, moment: Moment) {
        if let Some(reading) = self.readings.get_mut(&id) {
            let until = reading.is_shared().then(|| moment.now.plus(moment.ack_timeout_ms));
            reading.again.remove(&seq);
            reading.group.progress(seq, until);
            self.touch(id);
        }
    }

    /// A read did not come to anything: it is asked for again in a while.
    pub(crate) fn unread(&mut self, id: GroupId, again: Millis) {
        if let Some(reading) = self.readings.get_mut(&id) {
            reading.loading = None;
            self.starved.insert(id);
            self.reads_due.get_or_insert(again);
        }
    }

    /// An entry whose time is over has left its log: nobody is handed it from memory, nobody waits for it.
    pub(crate) fn entry_left(&mut self, entry: &Entry) {
        let (log, lane, seq) = (&entry.log, entry.lane, entry.seq);
        self.logs.remove(log, lane, seq);
        let groups = self.logs.lane(log, lane).map(|lane| lane.groups.clone()).unwrap_or_default();
        for id in groups {
            let Some(reading) = self.readings.get_mut(&id) else { continue };
            reading.page.retain(|other| other.seq != seq);
            reading.leave(seq);
            if seq > reading.group.cursor() {
                reading.miss(seq);
                reading.discount(entry);
            }
            self.touch(id);
        }
    }

    /// These entries have left an inbox, under the place they had there or another.
    pub(crate) fn entries_left<'a>(
        &mut self,
        log: &LogName,
        gone: impl Iterator<Item = (u64, &'a Arc<Entry>)> + Clone,
    ) {
        self.logs.forget(log);
        for lane in Lane::ALL {
            let Some(group) = self.logs.lane(log, lane).and_then(|lane| lane.groups.first().copied()) else {
                continue;
            };
            let Some(reading) = self.readings.get_mut(&group) else { continue };
            reading.page.clear();
            reading.again.clear();
            for (seq, entry) in gone.clone().filter(|(_, entry)| entry.lane == lane) {
                match reading.group.open(seq) {
                    Some(open) if open.origin.is_none() && mutant::on(Mutant::LeftByOrigin) => {}
                    Some(_) => drop(reading.leave(seq)),
                    None => reading.discount(entry),
                }
            }
            self.touch(group);
        }
    }

    /// Whether a group waits for entries from disk.
    pub(crate) fn is_hungry(&self, id: GroupId) -> bool {
        self.hungry.contains(&id) || self.readings.get(&id).is_some_and(|reading| reading.loading.is_some())
    }
}
