//! Logs as a mesh holds them: where each lane ends, who reads it, and its newest entries.
//!
//! A reader that is caught up is fed from the tail, which is memory; one that lags asks the store for pages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_proto::log::LogName;

use crate::messages::envelope::{Entry, Lane};
use crate::store::record::{GroupId, LaneRecord, LogRecord};

/// Bytes of entries that all tails of a mesh hold together.
pub const TAIL_BYTES: usize = 32 * 1024 * 1024;
/// Entries that all tails of a mesh hold together.
pub(crate) const TAIL_ENTRIES: usize = 32_768;

/// One lane of a log.
#[derive(Clone, Debug, Default)]
pub struct LaneState {
    /// The last seq in it.
    pub end: u64,
    /// The last seq at the start of the broker.
    pub restored_end: u64,
    /// Entries ever appended, and their bytes.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries up to here may be missing because they were pruned.
    pub pruned: u64,
    /// When an entry was last appended in this run, Unix milliseconds.
    pub grown_at: u64,
    /// Who reads it.
    pub groups: BTreeSet<GroupId>,
    /// Who of them is to be woken when it grows: inboxes, private readers that have read it all, and crews with a member
    /// that could take something. The others go on by themselves when they can, so that a reader who is behind and a crew
    /// that nobody reads cost a sender nothing.
    pub waiting: BTreeSet<GroupId>,
    /// When to look for entries past their time again, Unix milliseconds.
    pub next_prune: u64,
    /// The newest entries: all that come after `tail_from`.
    tail: VecDeque<Arc<Entry>>,
    tail_from: u64,
}

/// A log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Its lanes.
    pub lanes: [LaneState; 3],
    /// Whether what a gone session left is being moved: nothing is handed out meanwhile.
    pub evacuating: bool,
}

/// The logs of a mesh.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    logs: BTreeMap<LogName, Log>,
    /// What the tails hold, oldest first.
    tails: VecDeque<(LogName, Lane, u64, usize)>,
    tail_bytes: usize,
}

/// What comes after a seq in a lane.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// This entry, which is in memory.
    Entry(Arc<Entry>),
    /// Nothing yet.
    End,
    /// Something that is only on disk.
    OnDisk,
}

impl Logs {
    /// The log called `name`, made if it is not there.
    pub fn ensure(&mut self, name: &LogName) -> &mut Log {
        self.logs.entry(name.clone()).or_default()
    }

    /// The log called `name`.
    pub fn get(&self, name: &LogName) -> Option<&Log> {
        self.logs.get(name)
    }

    /// The log called `name`.
    pub fn get_mut(&mut self, name: &LogName) -> Option<&mut Log> {
        self.logs.get_mut(name)
    }

    /// A lane of a log.
    pub fn lane(&self, name: &LogName, lane: Lane) -> Option<&LaneState> {
        self.logs.get(name).and_then(|log| log.lanes.get(lane.index()))
    }

    /// A lane of a log.
    pub fn lane_mut(&mut self, name: &LogName, lane: Lane) -> Option<&mut LaneState> {
        self.logs.get_mut(name).and_then(|log| log.lanes.get_mut(lane.index()))
    }

    /// All logs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&LogName, &Log)> {
        self.logs.iter()
    }

    /// The log after `name`, in order and around.
    pub fn after(&self, name: Option<&LogName>) -> Option<&LogName> {
        let next = name.and_then(|name| {
            use std::ops::Bound::{Excluded, Unbounded};
            self.logs.range::<LogName, _>((Excluded(name), Unbounded)).next()
        });
        next.or_else(|| self.logs.iter().next()).map(|(name, _)| name)
    }

    /// Forgets when each lane was to be pruned next: what is kept, or the clock, is another.
    pub fn prune_anew(&mut self) {
        for lane in self.logs.values_mut().flat_map(|log| &mut log.lanes) {
            lane.next_prune = 0;
        }
    }

    /// Takes up a log that the store remembers.
    pub fn restore(&mut self, record: &LogRecord) {
        let log = self.ensure(&record.log);
        for (lane, stored) in log.lanes.iter_mut().zip(&record.lanes) {
            (lane.end, lane.tail_from, lane.restored_end) = (stored.end, stored.end, stored.end);
            (lane.count, lane.bytes, lane.pruned) = (stored.count, stored.bytes, stored.pruned);
        }
    }

    /// Takes a log out whose entries are gone: where it ended.
    pub fn take(&mut self, name: &LogName) -> Option<LogRecord> {
        let log = self.logs.remove(name)?;
        let lanes = log.lanes.map(|lane| LaneRecord {
            end: lane.end,
            count: lane.count,
            bytes: lane.bytes,
            pruned: lane.end,
        });
        Some(LogRecord { log: name.clone(), lanes })
    }

    /// Entries that all tails hold, and their bytes.
    pub(crate) fn tail_sizes(&self) -> (usize, usize) {
        (self.tails.len(), self.tail_bytes)
    }

    /// An entry was appended. It stays in memory for a while if anybody reads its lane.
    pub fn append(&mut self, entry: &Arc<Entry>) {
        let lane = &mut self.ensure(&entry.log).lanes[entry.lane.index()];
        lane.end = entry.seq;
        lane.grown_at = entry.envelope.sent_at;
        lane.count += 1;
        lane.bytes += entry.envelope.body.as_bytes().len() as u64;
        if lane.groups.is_empty() {
            lane.tail.clear();
            lane.tail_from = entry.seq;
            return;
        }
        let weight = entry.envelope.weight();
        lane.tail.push_back(entry.clone());
        self.tail_bytes += weight;
        self.tails.push_back((entry.log.clone(), entry.lane, entry.seq, weight));
        while self.tail_bytes > TAIL_BYTES || self.tails.len() > TAIL_ENTRIES {
            let Some((log, lane, seq, weight)) = self.tails.pop_front() else { break };
            self.tail_bytes -= weight;
            // A tail that nobody read was cleared before.
            if let Some(lane) = self.lane_mut(&log, lane)
                && lane.tail.front().is_some_and(|oldest| oldest.seq == seq)
            {
                lane.tail.pop_front();
                lane.tail_from = seq;
            }
        }
    }

    /// An entry has left its log: it is not in memory either.
    pub fn remove(&mut self, log: &LogName, lane: Lane, seq: u64) {
        if let Some(lane) = self.lane_mut(log, lane) {
            lane.tail.retain(|entry| entry.seq != seq);
        }
    }

    /// Entries have left a log, or come back to it: whoever reads it asks the store.
    pub fn forget(&mut self, log: &LogName) {
        for lane in self.logs.get_mut(log).into_iter().flat_map(|log| &mut log.lanes) {
            lane.tail.clear();
            lane.tail_from = lane.end;
        }
    }

    /// What comes after `seq` in a lane.
    pub fn next(&self, log: &LogName, lane: Lane, seq: u64) -> Next {
        let Some(lane) = self.lane(log, lane).filter(|lane| seq < lane.end) else { return Next::End };
        if seq < lane.tail_from {
            return Next::OnDisk;
        }
        let index = lane.tail.partition_point(|entry| entry.seq <= seq);
        lane.tail.get(index).map_or(Next::OnDisk, |entry| Next::Entry(entry.clone()))
    }

    /// An entry, if it is in memory.
    pub fn find(&self, log: &LogName, lane: Lane, seq: u64) -> Option<&Arc<Entry>> {
        let lane = self.lane(log, lane)?;
        let index = lane.tail.partition_point(|entry| entry.seq < seq);
        lane.tail.get(index).filter(|entry| entry.seq == seq)
    }
}
